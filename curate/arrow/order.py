"""The order of rows by some columns: sorting, positions in sorted rows, groups of equal keys.

Sorting, positions and groups use one order for all types: numbers, times and booleans by value (-0.0
equals 0.0), text and bytes by byte (for text that is by code point), NaN equal to NaN and null to null. Arrow sorts.
Types that Arrow cannot sort (float16, views, narrow decimals, dictionaries, runs, UUIDs) are converted to a type with
the same order.
"""

from __future__ import annotations

import bisect
from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.offsets import take_column
from curate.arrow.recast import decoded
from curate.arrow.sorting import arrow_is_faster, changes, keys_of, sorted_rows
from curate.arrow.types import is_encoded, is_text_or_binary
from curate.arrow.values import fitted
from curate.dataclass import dataclass
from curate.errors import ConfigError, refuse_other, unknown_column

_PLACES = ("at_end", "at_start")


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column to sort by."""

    column: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """The order by these keys, one after the other; rows of equal keys as they came. Of no key: all as they came.

    >>> import pyarrow as pa
    >>> order = Order((SortKey("score", descending=True), SortKey("id")))
    >>> table = order.sort(pa.table({"score": [1.0, None, 2.0, 2.0], "id": ["a", "b", "d", "c"]}))
    >>> table["id"].to_pylist()
    ['c', 'd', 'a', 'b']
    >>> order.position(table, pa.table({"score": [2.0], "id": ["d"]}), after=True)
    2
    """

    keys: tuple[SortKey, ...] = ()
    nulls: str = "at_end"
    """Where nulls are, whichever way a key goes: `at_end` or `at_start`. NaN is beside them, on the inner side."""

    def __post_init__(self) -> None:
        refuse_other("nulls", self.nulls, _PLACES)
        names = [key.column for key in self.keys]
        for name, times in Counter(names).items():
            if times > 1:
                raise ConfigError(f"column {name!r} occurs twice in the keys {names}; name it once")

    def check(self, where: str, schema: pa.Schema) -> None:
        """Raises ConfigError, in a message that begins with `where`, if rows of `schema` have no such order: a key
        column is missing, there twice, nested, or of a type without an order.
        """
        times = Counter(schema.names)
        for key in self.keys:
            if not times[key.column]:
                raise ConfigError.of_column(f"{where}: {unknown_column(key.column, schema.names)}", key.column)
            if times[key.column] > 1:
                raise ConfigError.of_column(
                    f"{where}: {times[key.column]} columns are named {key.column!r}; rename all but one of them first",
                    key.column,
                )
            type = schema.field(key.column).type
            if pt.is_nested(type) and not pt.is_run_end_encoded(type):
                raise ConfigError.of_column(
                    f"{where}: column {key.column!r} is nested ({type}), which has no order; add a column to sort by "
                    "first, with with_column() or map_batches()",
                    key.column,
                )
            if not _ordered(type):
                raise ConfigError.of_column(
                    f"{where}: column {key.column!r} is of type {type}, which has no order; "
                    "cast it to text, a number or a timestamp first, with with_column() or map_batches()",
                    key.column,
                )

    def identity(self) -> Any:
        """Returns what tells it from other orders, as JSON values."""
        return {"keys": [[key.column, key.descending] for key in self.keys], "nulls": self.nulls}

    def indices(self, table: pa.Table) -> pa.UInt64Array:
        """Returns the rows of `table` in this order, by number; rows of equal keys by number."""
        columns = [(_plain(table.column(key.column)), key.descending) for key in self.keys]
        # A column of the null type is equal all through, and no sort can be by it alone.
        columns = [(column, descending) for column, descending in columns if not pt.is_null(column.type)]
        if not columns:
            return pa.array(np.arange(table.num_rows, dtype=np.uint64))
        if len(columns) > 1 or not arrow_is_faster(columns[0][0]):
            keys = chain.from_iterable(keys_of(column, descending, self.nulls) for column, descending in columns)
            return pa.array(sorted_rows(table.num_rows, keys), pa.uint64())
        # Names of their own: Arrow takes a name that begins with a dot for a path.
        names = [str(number) for number in range(len(columns))]
        ways = ["descending" if descending else "ascending" for _, descending in columns]
        return pc.sort_indices(
            pa.table([column for column, _ in columns], names=names),
            sort_keys=[(name, way, self.nulls) for name, way in zip(names, ways, strict=True)],
        )

    def sort(self, table: pa.Table) -> pa.Table:
        """Returns the rows of `table` in this order; rows of equal keys as they were."""
        if not self.keys:
            return table
        return take_rows(table, self.indices(table))

    def keys_of(self, table: pa.Table) -> pa.Table:
        """Returns the key columns of `table`, in the order of the keys."""
        return table.select([key.column for key in self.keys])

    def starts(self, table: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Returns the first row of each group of equal keys; `table` is sorted. Of no rows: none."""
        new = np.zeros(table.num_rows, dtype=bool)
        new[:1] = True
        for key in self.keys:
            new[1:] |= changes(_plain(table.column(key.column)))
        return np.flatnonzero(new).astype(np.int64)

    def position(self, table: pa.Table, key: pa.Table, after: bool) -> int:
        """Returns how many rows of `table`, which is sorted, are before `key`; with `after`, how many are not after it.

        `key` has one row, and the columns of `keys_of` whatever they are called: two sides of a join may call them
        differently. Looks at log2(rows) rows.
        """
        if key.num_columns != len(self.keys) or (self.keys and key.num_rows != 1):
            raise ValueError(f"expected one row of {len(self.keys)} key columns, found {key.num_rows} of {key.schema}")
        columns = [
            (table.column(one.column), _comparable(wanted[0], self.nulls), one.descending)
            for one, wanted in zip(self.keys, key.columns, strict=True)
        ]

        def beyond(row: int) -> bool:
            for column, wanted, descending in columns:
                found = _comparable(column[row], self.nulls)
                if found != wanted:
                    # Where nulls and NaN are does not turn with the way of the key.
                    return bool(found > wanted) != (descending and found[0] == wanted[0])
            return not after

        return bisect.bisect_left(range(table.num_rows), True, key=beyond)


def take_rows(table: pa.Table, rows: pa.Array) -> pa.Table:
    """Returns these rows of `table`, in memory of their own; of any type, also those that Arrow has no take for."""
    return pa.table([_take(column, rows) for column in table.columns], schema=table.schema)


def rows_where(table: pa.Table, chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Table:
    """Returns some rows of `table`, those that are true in `chosen`, also of types that Arrow has no filter for."""
    return table if chosen.all() else take_rows(table, pa.array(np.flatnonzero(chosen)))


def _ordered(type: pa.DataType) -> bool:
    """Whether values of this type have an order."""
    if is_encoded(type):
        return _ordered(type.value_type)
    return (
        pt.is_null(type)
        or pt.is_boolean(type)
        or pt.is_integer(type)
        or pt.is_floating(type)
        or pt.is_decimal(type)
        or (pt.is_temporal(type) and not pt.is_interval(type))
        or is_text_or_binary(type)
        or isinstance(type, pa.UuidType)
    )


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns `column` in a type that Arrow sorts and compares, of the same order."""
    type = column.type
    if is_encoded(type):
        return _plain(decoded(column))
    if isinstance(type, pa.UuidType):
        return column.cast(type.storage_type)
    if pt.is_float16(type):
        return column.cast(pa.float32())
    if pt.is_decimal(type) and type.scale < 0:
        return column.cast(pa.decimal256(min(76, type.precision - type.scale), 0))
    if pt.is_decimal32(type) or pt.is_decimal64(type):
        return column.cast(pa.decimal128(type.precision, type.scale))
    if pt.is_string_view(type):
        return column.cast(pa.large_string())
    if pt.is_binary_view(type):
        return column.cast(pa.large_binary())
    return column


def _take(column: pa.ChunkedArray, rows: pa.Array) -> pa.ChunkedArray:
    type = column.type
    if pt.is_run_end_encoded(type):
        plain = _take(_plain(column), rows).combine_chunks()
        return pa.chunked_array([pc.run_end_encode(plain, run_end_type=type.run_end_type)])
    if pt.is_string_view(type) or pt.is_binary_view(type):
        return _plain(column).take(rows).cast(type)
    try:
        return take_column(column, rows)
    except pa.ArrowNotImplementedError:  # a view, or runs, inside
        values = column.to_pylist()
        array = fitted([None if one is None else values[one] for one in rows.to_pylist()], type)
        if array is None:
            raise
        return pa.chunked_array([array], type)


def _comparable(scalar: pa.Scalar, nulls: str) -> tuple[int, Any]:
    """Returns a value as one that Python compares as this order does, its way left out."""
    while isinstance(scalar, pa.DictionaryScalar | pa.RunEndEncodedScalar | pa.ExtensionScalar):
        scalar = scalar.value
        if scalar is None:
            break
    outwards = 1 if nulls == "at_end" else -1
    if scalar is None or not scalar.is_valid:
        return 2 * outwards, 0
    type = scalar.type
    if pt.is_temporal(type):
        return 0, scalar.value
    if is_text_or_binary(type):
        return 0, scalar.as_buffer().to_pybytes()
    value = scalar.as_py()
    if pt.is_floating(type) and value != value:
        return outwards, 0
    return 0, value
