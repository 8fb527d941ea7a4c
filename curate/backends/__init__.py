"""Run tasks: in this process, in others of this machine, or on Ray. `curate.backends.ray` alone imports ray."""
