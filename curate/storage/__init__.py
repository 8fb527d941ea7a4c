"""Storage: list, read ranges, publish create-only. Local, memory, GCS and S3 behind one protocol, others to read.

Importing it is cheap; a store's own libraries are imported by the `open_store` that needs them.
"""
