"""File formats: rows out of inputs. `writers` makes outputs of rows.

Inputs are JSONL, CSV, text, Parquet, WebDataset, TFRecord and arrays of numpy, and files as one row each: their bytes,
or their pixels. A schema is sampled from one file when the plan is made and held for all: what does not fit it is a bad
row, or a SchemaMismatch (Parquet, arrays).

JSONL is parsed by `orjson.loads`, line by line, and not by `pyarrow.json`: that one crashes the process on a line that
is `null` when it is given a schema, reads date-like strings as timestamps, and takes two objects on one line or one
object over several lines for rows.
"""
