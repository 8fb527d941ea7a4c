"""Inputs as pieces, and pieces as shards."""
