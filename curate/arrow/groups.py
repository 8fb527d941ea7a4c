"""Group numbers for rows with equal keys; sums, extremes and first rows of groups.

Rows are processed one after the other, in order, so a sum of floats is always the same, on every machine. Sums of whole
numbers and decimals are exact, or raise SumOverflow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from curate.arrow.offsets import one_array
from curate.arrow.order import Order, take_rows
from curate.arrow.recast import python_value
from curate.arrow.types import is_text_or_binary
from curate.dataclass import dataclass, field
from curate.errors import SumOverflow
from curate.late_pandas import numbers

Numbers = np.ndarray[Any, Any]


DIRECT = 4
"""Whole numbers are told apart by a table of their whole range where that has at most as many places for each row."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Which group each row belongs to: `ids`, from 0 to `count - 1`. Every group has a row."""

    ids: Numbers
    count: int
    told: Callable[[int], str] = field(default=str, repr=False, compare=False)
    """Returns what the key of a row is, as text for errors."""

    def firsts(self) -> Numbers:
        """Returns the first row of each group."""
        found = np.empty(self.count, np.int64)
        # Of several values for one place numpy keeps the last.
        found[self.ids[::-1]] = np.arange(len(self.ids) - 1, -1, -1)
        return found

    def lasts(self) -> Numbers:
        """Returns the last row of each group."""
        found = np.empty(self.count, np.int64)
        found[self.ids] = np.arange(len(self.ids))
        return found

    def first_values(self, values: pa.Array) -> pa.Array:
        """Returns the first value of each group that is not null; null if there is none."""
        rows = np.flatnonzero(_valid(values))[::-1]
        found = np.full(self.count, -1)
        found[self.ids[rows]] = rows
        table = pa.table({"values": values})
        return one_chunk(take_rows(table, pa.array(found, mask=found < 0)).column(0))

    def total(self, values: Numbers) -> Numbers:
        """Returns the sum of each group of numbers: of floats also if it is infinite or no number, of whole ones where
        it cannot overflow."""
        sums = np.zeros(self.count, values.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            np.add.at(sums, self.ids, values)
        return sums

    def sums(self, values: pa.Array, column: str) -> pa.Array:
        """Returns the sum of each group of int64, uint64, double or decimal256, of the values that are not null; null
        if there is none. Raises SumOverflow, naming `column` and the key, for whole numbers that come to over 64 bits.
        """
        if pt.is_decimal(values.type):
            return self._by_arrow(values, "sum")
        if not values.null_count:
            return pa.array(self._sums(numbers(values), column))
        valid = _valid(values)
        ids = self.ids[valid]
        seen = np.zeros(self.count, bool)
        seen[ids] = True
        rows = np.flatnonzero(valid)
        some = Groups(ids, self.count, lambda row: self.told(int(rows[row])))
        return pa.array(some._sums(numbers(values.drop_null()), column), mask=~seen)

    def _sums(self, values: Numbers, column: str) -> Numbers:
        if values.dtype.kind == "f" or not len(values):
            return self.total(values)
        if max(abs(int(values.min())), abs(int(values.max()))) * len(values) < 1 << 63:
            return self.total(values)
        # In two halves, which less than 2**31 rows cannot bring over 64 bits.
        half, ones = values.dtype.type(32), values.dtype.type(0xFFFF_FFFF)
        low = self.total((values & ones).astype(np.int64))
        high = self.total((values >> half).astype(np.int64)) + (low >> 32)
        least, most = (-(1 << 31), (1 << 31) - 1) if values.dtype.kind == "i" else (0, (1 << 32) - 1)
        over = np.flatnonzero((high < least) | (high > most))
        if len(over):
            group = int(over[0])
            sum = (int(high[group]) << 32) + (int(low[group]) & 0xFFFF_FFFF)
            raise self.overflow(group, column, sum, str(pa.from_numpy_dtype(values.dtype)))
        whole: Numbers = (high << 32) | (low & 0xFFFF_FFFF)
        return whole.view(values.dtype)

    def overflow(self, group: int, column: str, sum: Any, type: str) -> SumOverflow:
        """Returns the error for a sum that does not fit."""
        return SumOverflow(
            f"the sum of column {column!r} where {self.told(int(self.firsts()[group]))} is {sum}, which does not "
            f"fit into {type}; cast the column to double, or to a decimal, before it"
        )

    def extremes(self, values: pa.Array, function: str) -> pa.Array:
        """Returns the `min` or `max` of each group: of numbers if there are any, else NaN, and null if all are null."""
        plain = pt.is_integer(values.type) or pt.is_float32(values.type) or pt.is_float64(values.type)
        if not plain or values.null_count or not len(values):
            return self._by_arrow(values, function)
        given = numbers(values)
        whole = given.dtype.kind != "f"
        if not whole and np.isnan(given).any():
            return self._by_arrow(values, function)
        least, most = (np.iinfo(given.dtype).min, np.iinfo(given.dtype).max) if whole else (-np.inf, np.inf)
        found = np.full(self.count, most if function == "min" else least, given.dtype)
        (np.minimum if function == "min" else np.maximum).at(found, self.ids, given)
        return pa.array(found)

    def _by_arrow(self, values: pa.Array, function: str) -> pa.Array:
        table = pa.table([pa.array(self.ids), values], names=["id", "value"])
        found = table.group_by("id", use_threads=False).aggregate([("value", function)])
        places = np.empty(self.count, np.int64)
        places[numbers(found["id"])] = np.arange(self.count)
        return one_chunk(found[f"value_{function}"]).take(pa.array(places))


def groups_of_sorted(order: Order, table: pa.Table) -> Groups:
    """Returns the groups of equal keys of a sorted table, numbered in its order."""
    starts = order.starts(table)
    ids = np.zeros(table.num_rows, np.int64)
    ids[starts[1:]] = 1
    return Groups(np.cumsum(ids), len(starts), _teller(order, table))


def groups_of(order: Order, table: pa.Table) -> Groups | None:
    """Returns the groups of equal keys of a table in any order; None where a key is of a type that cannot be numbered
    without sorting.
    """
    groups = None
    for key in order.keys:
        found = _numbered(one_chunk(table.column(key.column)))
        if found is not None and groups is not None:
            # As many numbers as there are rows at most, of each: 64 bits hold the product.
            found = _numbered(pa.array(groups.ids * found.count + found.ids))
        if found is None:
            return None
        groups = found
    if groups is None:
        groups = Groups(np.zeros(table.num_rows, np.int64), min(1, table.num_rows))
    return Groups(groups.ids, groups.count, _teller(order, table))


def _numbered(values: pa.Array) -> Groups | None:
    """Returns the groups of equal values, as an order sees them; None for a type that Arrow does not number."""
    type = values.type
    if pt.is_dictionary(type):
        return _numbered(values.cast(type.value_type))
    if pt.is_float32(type) or pt.is_float64(type):
        # The two zeros are one value, and so is all that is not a number.
        given = values.to_numpy(zero_copy_only=False) + 0.0
        given[np.isnan(given)] = np.nan
        values = pa.array(given, mask=~_valid(values))
    elif pt.is_integer(type) and not values.null_count and len(values):
        given = numbers(values)
        given = given if pt.is_uint64(type) else given.astype(np.int64, copy=False)
        least, most = given.min(), given.max()
        if int(most) - int(least) < DIRECT * len(given):
            places = (given - least).astype(np.int64, copy=False)
            there = np.zeros(int(most) - int(least) + 1, bool)
            there[places] = True
            return Groups((np.cumsum(there) - 1).take(places), int(there.sum()))
    elif not (pt.is_primitive(type) or pt.is_null(type) or is_text_or_binary(type)) or pt.is_float16(type):
        return None
    try:
        found = values.dictionary_encode("encode")
    except pa.ArrowNotImplementedError:
        return None
    return Groups(numbers(found.indices).astype(np.int64), len(found.dictionary))


def _valid(values: pa.Array) -> Numbers:
    """Returns which values are not null."""
    return numbers(values.is_valid())


def _teller(order: Order, table: pa.Table) -> Callable[[int], str]:
    names = [key.column for key in order.keys]
    return lambda row: (
        ", ".join(f"{name} is {python_value(table[name][row])!r}" for name in names) or "all rows are together"
    )


def one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Returns a column as one array. Raises ShardError for one that is too large."""
    return column if isinstance(column, pa.Array) else one_array(column)
