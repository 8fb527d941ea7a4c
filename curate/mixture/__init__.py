"""Mixtures: how many rows of each source a corpus has, which rows these are, and how often each is there."""
