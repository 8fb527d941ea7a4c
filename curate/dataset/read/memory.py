"""The functions that make a Dataset of what is in memory, or of nothing. Names are those of ray.data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from curate.arrow.batches import room_together, with_room
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError, SchemaMismatch
from curate.imports import need
from curate.operators.arguments import answers
from curate.operators.convert import from_columns, is_data_frame, rows_to_table
from curate.operators.convert import from_pandas as table_of
from curate.operators.foreign import items_of, several
from curate.plan.nodes import Scan
from curate.sources.memory import Range, Tables
from curate.units import whole

if TYPE_CHECKING:
    import pandas as pd


@answers
def from_items(items: Sequence[Any]) -> Dataset:
    """Returns rows from a list: dictionaries are rows, all of the same keys; other values become the column `item`.

    Raises ConfigError for rows with different keys, values without a common type, and what is no list of rows.

    >>> curate.from_items(["a", "b"]).take_all()
    [{'item': 'a'}, {'item': 'b'}]
    """
    rows = [item if isinstance(item, Mapping) else {"item": item} for item in items_of(items)]
    try:
        table = rows_to_table("from_items was given", rows) if rows else pa.table({})
    except SchemaMismatch as error:
        raise ConfigError(str(error)) from None
    return Dataset(Scan(Tables("from_items", (table,), table.schema)))


@answers
def from_arrow(tables: pa.Table | Sequence[pa.Table]) -> Dataset:
    """Returns the rows of Arrow tables with one schema. Raises ConfigError for other values, different schemas, or two
    columns of one name.

    >>> import pyarrow as pa
    >>> curate.from_arrow(pa.table({"n": [1]})).take_all()
    [{'n': 1}]
    """
    return of_tables(
        "from_arrow", several("from_arrow", "pyarrow.Tables", tables, lambda one: isinstance(one, pa.Table))
    )


@answers
def from_pandas(dfs: pd.DataFrame | Sequence[pd.DataFrame]) -> Dataset:
    """Returns the rows of data frames of one schema, without their indexes (`reset_index()` makes columns of them).

    Missing values, NaN among them, are null. Values are copied: a frame may change afterwards. Needs pandas:
    `pip install 'curate[pandas]'`. Raises ConfigError for other values, values without a common type, different
    schemas, or two columns of one name.

    >>> import pandas
    >>> curate.from_pandas(pandas.DataFrame({"n": [1, 2]})).take_all()
    [{'n': 1}, {'n': 2}]
    """
    need("pandas", "from_pandas needs pandas", "pandas")
    frames = several("from_pandas", "pandas.DataFrames", dfs, is_data_frame)
    for frame in frames:
        refuse_twice("from_pandas", [str(name) for name in frame.columns])
    try:
        made = tuple(with_room(table_of("from_pandas was given", frame.copy())) for frame in frames)
    except SchemaMismatch as error:
        raise ConfigError(str(error)) from None
    return of_tables("from_pandas", made)


@answers
def from_numpy(ndarrays: np.ndarray[Any, Any] | Sequence[np.ndarray[Any, Any]]) -> Dataset:
    """Returns arrays as the column `data`, a row for each entry along their first dimension.

    Entries with further dimensions are lists. Values are copied: an array may change afterwards. Raises ConfigError for
    other values, arrays without dimensions, or arrays of different types.

    >>> import numpy
    >>> curate.from_numpy(numpy.array([[1, 2], [3, 4]])).take_all()
    [{'data': [1, 2]}, {'data': [3, 4]}]
    """
    arrays = several("from_numpy", "arrays", ndarrays, lambda one: isinstance(one, np.ndarray))
    for array in arrays:
        if not array.ndim:
            raise ConfigError(f"from_numpy takes arrays of at least one dimension, found {array!r:.60}")
    try:
        made = tuple(from_columns("from_numpy was given", {"data": array.copy()}) for array in arrays)
    except SchemaMismatch as error:
        raise ConfigError(str(error)) from None
    except pa.ArrowException as error:
        raise ConfigError(f"from_numpy: {error}") from None
    return of_tables("from_numpy", made)


@answers
def range(n: int) -> Dataset:
    """Returns the numbers from 0 to `n` - 1 as the column `id`. Raises ConfigError for a negative number.

    >>> curate.range(2).take_all()
    [{'id': 0}, {'id': 1}]
    """
    return Dataset(Scan(Range(whole("range", n, 0))))


def of_tables(method: str, given: tuple[pa.Table, ...]) -> Dataset:
    for table in given:
        if not table.schema.equals(given[0].schema):
            raise ConfigError(f"{method}: tables of two schemas: {given[0].schema}; and: {table.schema}")
        refuse_twice(method, table.column_names)
    plain = room_together(tuple(table.replace_schema_metadata(None) for table in given))
    return Dataset(Scan(Tables(method, plain, plain[0].schema if plain else pa.schema([]))))


def refuse_twice(method: str, names: Sequence[str]) -> None:
    """Raises ConfigError if two columns have one name."""
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigError(f"{method}: there are {count} columns called {name!r}")
