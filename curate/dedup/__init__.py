"""Deduplication: which rows are copies of others, exactly or nearly, as exchanges of hashes.

No text is moved. Exchanges move hashes and the places of rows, `__rank` (of the shard) and `__row` (in it); their
results are marks, and the rows are read again, in order, to drop the marked ones.
"""
