"""What a run finds of earlier ones, checks, and writes to its ledger before its first task."""
