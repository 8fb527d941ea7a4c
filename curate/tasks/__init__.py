"""Which shards run, when, and again: a pure scheduler, what feeds it, and the books of a shard."""
