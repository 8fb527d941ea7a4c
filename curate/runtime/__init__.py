"""Where tasks run: in this process, or on Ray. Of it, `curate.runtime.ray` alone imports ray."""
