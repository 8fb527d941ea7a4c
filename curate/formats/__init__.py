"""File formats: rows out of inputs, rows into outputs.

Inputs are JSONL, CSV, text and Parquet, and files as one row each: their bytes, or their pixels. A schema is sampled
from one file when the plan is made and held for all: what does not fit it is a bad row (JSONL, CSV) or a SchemaMismatch
(Parquet). Outputs are Parquet, JSONL and CSV, and carry the record of their shard.

JSONL is parsed by `orjson.loads`, line by line, and not by `pyarrow.json`: that one crashes the process on a line that
is `null` when it is given a schema, reads date-like strings as timestamps, and takes two objects on one line or one
object over several lines for rows.
"""
