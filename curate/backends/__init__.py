"""Run tasks, in this process or on Ray; which backend a name means. `curate.backends.ray` alone imports ray."""
