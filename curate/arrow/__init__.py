"""Functions on Arrow data that know nothing of curate."""
