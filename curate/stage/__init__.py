"""What one task does: shards are read, run through operators, written and published."""
