"""The measurements of `scripts/bench`, one file each."""
