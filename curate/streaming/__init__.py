"""Blocks for a consumer, as they are made: nothing is written."""
