"""Tests of the jobs in `jobs/examples`, which people copy."""
