"""The code of `scripts/compare`."""
