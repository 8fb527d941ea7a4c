"""What `scripts/bench` measures: tasks beside a bare loop, datasets beside Ray Data, and the memory of a stream."""
