"""A chain of operators over one shard: bad rows, sandbox, meters."""
