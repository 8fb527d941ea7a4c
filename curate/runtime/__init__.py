"""Where tasks run: in this process, or on Ray. The only package that imports ray."""
