"""What other libraries hold, given for rows or a dataset, and what they call its methods: what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.types as pt

from curate.arrow.types import contains
from curate.errors import ConfigError, did_you_mean
from curate.operators.ray_data import METHODS

_WRITE = {
    "pandas.DataFrame": "from_pandas(df)",
    "pandas.Series": "from_pandas(series.to_frame())",
    "polars.DataFrame": "from_polars(df)",
    "polars.LazyFrame": "from_polars(df.collect())",
    "polars.Series": "from_polars(series.to_frame())",
    "pyarrow.Table": "from_arrow(table)",
    "pyarrow.RecordBatch": "from_arrow(pyarrow.Table.from_batches([batch]))",
    "pyarrow.RecordBatchReader": "from_arrow(reader.read_all())",
    "numpy.ndarray": "from_numpy(array)",
    "duckdb.DuckDBPyRelation": "from_duckdb(relation)",
    "datasets.Dataset": "from_huggingface(dataset)",
    "datasets.IterableDataset": "read_huggingface('org/name', split='train'), from_items(list(dataset)) if it is small",
    "ray.Dataset": "read_parquet(path) of what its write_parquet(path) has written",
    "dict": "from_items([row]) for one row, from_arrow(pyarrow.table(columns)) for columns",
    "list": "from_items(rows)",
    "str": "from_items([text]) for one row, read_parquet(path) and the like for files",
    "bytes": "from_items([value])",
}
"""What makes a dataset of values, by what they are."""
_ITEMS = ("list", "numpy.ndarray", "pandas.Series", "polars.Series", "datasets.Dataset", "datasets.IterableDataset")
"""Values of which rows are iterated."""

_ROWS = "write take(5), or limit(5) for a dataset of the first rows"
_TABLE = "write to_arrow(), to_pandas() or take_all(); Polars takes the dataset itself, polars.DataFrame(ds)"
_COUNT = "write count()"
_DEDUP = "write dedup_exact('text'), or dedup_minhash('text', id_column='id', threshold=0.8) for what is nearly alike"
_ONE = "write select_columns(['a']) for columns, and filter(curate.col('n') > 0) for rows"

NAMES: Mapping[str, str] = {
    # how many, and which columns
    "column_names": "write columns()",
    "dtypes": "write schema()",
    "features": "write schema()",
    "height": _COUNT,
    "len": _COUNT,
    "num_rows": _COUNT,
    "shape": "write count() and columns()",
    "size": _COUNT,
    # all rows, or some
    "collect": _TABLE,
    "head": _ROWS,
    "tail": "write sort(key, descending=True).limit(5), or the last of split_at_indices([n])",
    "to_dict": _TABLE,
    "to_dicts": "write take_all()",
    "to_list": "write take_all()",
    "to_polars": _TABLE,
    "iter": "write iter_rows(), or iter_batches(batch_size=...)",
    "batch": "write iter_batches(batch_size=...)",
    "sample": "write random_sample(0.1, seed=...)",
    "shuffle": "write random_shuffle(seed=...)",
    "shard": "write split(n), or streaming_split(n)",
    "with_format": "write iter_batches(batch_format='numpy'), or iter_torch_batches()",
    "first": "write take(1)",
    "iterrows": "write iter_rows()",
    "skip": "write the last of split_at_indices([n])",
    "slice": "write limit(n), or split_at_indices([start, stop])",
    "top_k": "write sort('n', descending=True).limit(5)",
    "where": "write filter(curate.col('n') > 0)",
    # columns
    "assign": "write with_columns({'n': curate.col('a') + 1})",
    "cast": "write with_column('n', curate.col('n').cast('int64'))",
    "drop": "write drop_columns(['a'])",
    "fill_null": "write with_column('n', pyarrow.compute.fill_null(curate.col('n'), 0))",
    "fillna": "write with_column('n', pyarrow.compute.fill_null(curate.col('n'), 0))",
    "remove_columns": "write drop_columns(['a'])",
    "rename": "write rename_columns({'old': 'new'})",
    "rename_column": "write rename_columns({'old': 'new'})",
    "select": _ONE,
    "with_row_index": "write zip(curate.range(ds.count()))",
    # rows
    "apply": "write map(fn), or map_batches(fn)",
    "concat": "write union(other)",
    "drop_duplicates": "write distinct(['a'])",
    "drop_nulls": "write filter(curate.col('n').is_valid())",
    "dropna": "write filter(curate.col('n').is_valid())",
    "explode": "write flat_map(fn)",
    "loc": _ONE,
    "iloc": _ROWS,
    "merge": "write join(other, on='id')",
    "query": "write filter(curate.col('n') > 0)",
    "sort_values": "write sort('n', descending=True)",
    "dedup": _DEDUP,
    "deduplicate": _DEDUP,
    "group_by": "write groupby('a')",
    "order_by": "write sort('n', descending=True)",
    # all rows
    "agg": "write aggregate([('n', 'sum')])",
    "describe": "write aggregate([('n', 'mean'), ('n', 'min'), (None, 'count')])",
    "value_counts": "write groupby('a').count()",
    "cache": "write checkpoint(path), which keeps rows in files, or materialize(), in memory",
    "coalesce": "write repartition(n)",
    "persist": "write checkpoint(path), which keeps rows in files, or materialize(), in memory",
    # files
    "save_to_disk": "write write_parquet(path)",
    "sink_parquet": "write write_parquet(path)",
    "sink_csv": "write write_csv(path)",
    "sink_ndjson": "write write_json(path)",
    "to_csv": "write write_csv(path)",
    "to_json": "write write_json(path)",
    "to_parquet": "write write_parquet(path)",
    "write_jsonl": "write write_json(path)",
    "write_ndjson": "write write_json(path)",
}
"""Methods of Polars, pandas and Hugging Face datasets that a dataset lacks, or has by another name."""


def kind_of(value: Any) -> str:
    """Returns what a value is, with the library that it is of.

    >>> kind_of(pa.table({})), kind_of([1])
    ('pyarrow.Table', 'list')
    """
    names = ["dict"] if isinstance(value, Mapping) else [_name(one) for one in type(value).__mro__]
    return next((name for name in names if name in _WRITE), names[0])


def _name(kind: type) -> str:
    library = kind.__module__.partition(".")[0].lstrip("_")
    return kind.__name__ if library in ("builtins", "") else f"{library}.{kind.__name__}"


def is_of(value: Any, library: str, *names: str) -> bool:
    """Returns whether a value is of a library, and of one of these classes, which nobody has to have imported."""
    kinds = type(value).__mro__
    return any(one.__module__.partition(".")[0] == library and (not names or one.__name__ in names) for one in kinds)


def refuse(method: str, takes: str, found: Any, **write: str) -> NoReturn:
    """Raises ConfigError for a value that a function does not take, with what to write for such a value: by its kind,
    or what makes a dataset of it."""
    kind = kind_of(found)
    instead = write.get(kind) or (f"curate.{_WRITE[kind]}" if kind in _WRITE else "")
    raise ConfigError(f"{method} takes {takes}, found {kind}{'; write ' * bool(instead)}{instead}")


def no_attribute(kind: str, value: Any, name: str) -> AttributeError:
    """Returns the error of a name that a value does not have, with what to write for a method of another library, or
    else the name that was meant."""
    names = [one for one in dir(type(value)) if not one.startswith("_")]
    told = METHODS.get(name) or NAMES.get(name)
    near = "" if name.startswith("_") else did_you_mean(name, names)
    return AttributeError(f"a curate.{kind} has no {name}{f': {told}' if told else near}", name=name, obj=value)


def several(method: str, takes: str, given: Any, is_one: Callable[[Any], bool]) -> tuple[Any, ...]:
    """Returns one value, or those of a list, as a tuple. Raises ConfigError for a value that is none of those."""
    if is_one(given):
        return (given,)
    if kind_of(given) in _WRITE.keys() - {"list"} or not isinstance(given, Iterable):
        refuse(method, takes, given)
    values = tuple(given)
    for one in values:
        if not is_one(one):
            refuse(method, takes, one)
    return values


def items_of(given: Any) -> list[Any]:
    """Returns the values of a list, or of what is iterated like one. Raises ConfigError for anything else: of a
    dictionary, a frame and a table columns are iterated, of a text letters, and a set in an order of each process."""
    kind = kind_of(given)
    if isinstance(given, set | frozenset):
        raise ConfigError("from_items: a set has another order in each process; pass sorted(...), or a list")
    if not isinstance(given, Iterable) or (kind in _WRITE and kind not in _ITEMS):
        refuse("from_items", "a list of rows or values", given)
    return list(given)


def polars_table(frame: Any) -> pa.Table:
    """Returns a frame of polars as a table. Raises ConfigError for a column of a type that Arrow does not have: of
    objects, polars exports their addresses in memory."""
    columns = {}
    for name, dtype in frame.schema.items():
        if is_of(dtype, "polars", "Object"):
            raise ConfigError(
                f"from_polars: column {name!r} has Python objects, which Arrow has no type for; drop it, or make "
                "another type of it: curate.from_items(df.to_dicts()) if they are dictionaries, lists or numbers"
            )
        try:
            columns[name] = frame.get_column(name).to_frame().to_arrow().column(0)
        except pa.ArrowException as error:
            raise ConfigError(
                f"from_polars: column {name!r} is {dtype}, which Arrow does not have; drop it, or cast it: whole "
                f"numbers to polars.Int64 or polars.Decimal(38, 0) ({error})"
            ) from error
    return pa.table(columns)


_UNLIKE = re.compile(r"\b(UHUGEINT|BIGNUM|BIT|TIME WITH TIME ZONE)\b")
"""Types of DuckDB of which Arrow is given other values: negative numbers, bytes as they lie in memory, times without
their zone."""


def duckdb_table(relation: Any) -> pa.Table:
    """Runs a relation of DuckDB and returns its rows. Raises ConfigError for a column whose values would be others."""
    for name, type in zip(relation.columns, relation.types, strict=True):
        if _UNLIKE.search(str(type)):
            raise ConfigError(
                f"from_duckdb: column {name!r} is {type}, which Arrow does not have; cast it in the query, to varchar "
                "or to hugeint, or leave it out"
            )
    table = pa.table(relation)
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            column.validate(full=contains(column.type, pt.is_decimal))
        except pa.ArrowInvalid as error:
            raise ConfigError(
                f"from_duckdb: column {name!r} has a number of more than 38 digits, which Arrow does not have; cast "
                f"it in the query, to varchar or to double ({error})"
            ) from error
    return table
