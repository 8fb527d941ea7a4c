"""One run of one stage, in the driver process: dispatch, record, help other drivers, conclude."""
