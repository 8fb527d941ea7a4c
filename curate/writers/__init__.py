"""Rows into outputs, one file for each format, in bytes that depend on the rows alone, not on the tables they come in.

Outputs carry the record of their shard, and are of all formats that are read but text.
"""
