"""Shards, plan, scheduling, the ledger and what it says about a job."""
