"""Deduplication: which rows are copies of others, exactly or nearly, as exchanges of hashes.

No text travels. What is exchanged are hashes and the places of rows, `__rank` (of the shard) and `__row` (in it); what
comes out of it are marks, and the rows are read again, in their order, to drop those that are marked.
"""
