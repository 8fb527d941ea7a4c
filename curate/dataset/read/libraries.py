"""The functions that make a Dataset of what other libraries hold: rows in this process's memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from curate.dataset.dataset import Dataset
from curate.dataset.read.memory import of_tables
from curate.errors import ConfigError
from curate.operators.arguments import answers
from curate.operators.foreign import duckdb_table, is_of, polars_table, refuse, several

PIECE_BYTES = 128 << 20
"""Bytes of a table in memory that is one shard, about."""


@answers
def from_polars(frames: Any) -> Dataset:
    """Returns the rows of a `polars.DataFrame`, or of several with one schema.

    No value is copied; categoricals are texts that are stored once each. Larger frames are several shards, of about 128
    MiB. Raises ConfigError for other values (of a LazyFrame, call `collect()` first), for columns of objects or another
    type that Arrow does not have, and for different schemas.

    >>> import polars
    >>> curate.from_polars(polars.DataFrame({"n": [1, 2]})).take_all()
    [{'n': 1}, {'n': 2}]
    """
    given = several("from_polars", "polars.DataFrames", frames, lambda one: is_of(one, "polars", "DataFrame"))
    return _held("from_polars", map(polars_table, given))


@answers
def from_duckdb(relation: Any) -> Dataset:
    """Runs a relation of DuckDB, such as `duckdb.sql("select ...")` returns, and returns its rows, which have to fit
    into memory, in shards of about 128 MiB.

    Rows are in the order in which DuckDB returns them: with `order by` it is the same one each time, which a write that
    is to resume needs. Raises ConfigError for other values, and for columns of types that Arrow does not have, such as
    uhugeint.

    >>> import duckdb
    >>> curate.from_duckdb(duckdb.sql("select 1 as n, ['a', null] as texts")).take_all()
    [{'n': 1, 'texts': ['a', None]}]
    """
    if not hasattr(relation, "__arrow_c_stream__") or "duckdb" not in type(relation).__module__:
        refuse("from_duckdb", "a relation of DuckDB", relation, str="curate.from_duckdb(duckdb.sql(...))")
    return _held("from_duckdb", [duckdb_table(relation)])


@answers
def from_huggingface(dataset: Any) -> Dataset:
    """Returns the rows of a `datasets.Dataset`, in its order, in shards of about 128 MiB.

    What `datasets` has mapped into memory stays so, unless rows were selected or shuffled: then they are copied. Raises
    ConfigError for other values: of a `DatasetDict` take a split, and for a `datasets.IterableDataset`, which is read
    once and has no shards that a run could resume at, write `read_huggingface("org/name", split="train")`, which reads
    the same files.

    >>> import datasets
    >>> curate.from_huggingface(datasets.Dataset.from_dict({"n": [1, 2, 3]}).select([2, 0])).take_all()
    [{'n': 3}, {'n': 1}]
    """
    if is_of(dataset, "datasets", "DatasetDict", "IterableDatasetDict"):
        told = f"found {type(dataset).__name__}; choose one of its splits: {', '.join(map(repr, dataset))}"
        raise ConfigError(f"from_huggingface takes a datasets.Dataset, {told}")
    if not is_of(dataset, "datasets", "Dataset"):
        read = f"curate.read_huggingface({dataset!r}, split='train')"
        refuse("from_huggingface", "a datasets.Dataset", dataset, str=read)
    return _held("from_huggingface", [dataset.with_format("arrow")[:]])


def _held(method: str, tables: Iterable[pa.Table]) -> Dataset:
    return of_tables(method, tuple(piece for table in tables for piece in _pieces(table)))


def _pieces(table: pa.Table) -> Iterable[pa.Table]:
    """Returns a table in parts of about `PIECE_BYTES`, of equally many rows: the same ones for the same rows."""
    # What a library has written beside its columns is none of ours.
    plain = pa.Table.from_arrays(table.columns, names=table.column_names)
    rows = len(table) * PIECE_BYTES // table.nbytes if table.nbytes > PIECE_BYTES else len(table)
    rows = max(1, rows)
    return [plain.slice(at, rows) for at in range(0, len(table), rows)] or [plain]
