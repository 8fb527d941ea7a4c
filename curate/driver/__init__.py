"""One run of one stage, in the driver process: look, plan, check, commit, dispatch, conclude."""
