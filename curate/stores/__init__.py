"""The stores: local, memory, GCS and S3, and others to read. Cheap to import: `open_store` imports what one needs."""
