"""Sources, formats, and the one generator that turns a shard into an output."""
