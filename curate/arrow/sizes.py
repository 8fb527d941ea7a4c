"""The size of rows in memory. Values that depend only on the schema are computed once: small shards need them often."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.types import is_list, is_text_or_binary
from curate.late_pandas import numbers


def row_bytes(table: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the bytes of each row, from its values alone: null or not, in whatever buffers they lie."""
    sizes = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        at = 0
        for chunk in column.chunks:
            sizes[at : at + len(chunk)] += _sizes(chunk)
            at += len(chunk)
    return sizes


def ranges_within(sizes: np.ndarray[Any, np.dtype[np.int64]], most: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of neighbours of at most `most` together, or of one that is larger.

    >>> list(ranges_within(np.array([2, 2, 9, 1]), 4))
    [(0, 2), (2, 3), (3, 4)]
    """
    ends = np.cumsum(sizes)
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield first, last
        first = last


def _sizes(array: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    type = array.type
    if pt.is_dictionary(type):
        sizes = np.append(_sizes(array.dictionary), 0)  # nulls have none
        return np.asarray(sizes[numbers(pc.fill_null(array.indices.cast(pa.int64()), -1))])
    if isinstance(type, pa.BaseExtensionType):
        return _sizes(array.storage)
    if pt.is_fixed_size_list(type):
        # Those of nulls count too: they take their place.
        values = array.values.slice(array.offset * type.list_size, len(array) * type.list_size)
        rows = _sizes(values).reshape(len(array), type.list_size)
        return np.asarray(rows.sum(axis=1), np.int64)
    if pt.is_struct(type):
        total = np.zeros(len(array), np.int64)
        for child in array.flatten():  # with the struct's own nulls, so that what lies under them does not count
            total += _sizes(child)
        return total
    if is_list(type) or pt.is_map(type):
        lists = array.cast(pa.list_(_pair(type))) if pt.is_map(type) else array
        counts = numbers(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
        ends = np.concatenate([[0], np.cumsum(_sizes(lists.flatten()))])
        stops = np.cumsum(counts)
        return np.asarray(ends[stops] - ends[stops - counts] + 4, np.int64)
    if pt.is_string_view(type) or pt.is_binary_view(type):
        return _sizes(array.cast(pa.large_binary()))
    if is_text_or_binary(type) and not pt.is_fixed_size_binary(type):
        lengths = numbers(pc.fill_null(pc.binary_length(array), 0))
        return np.asarray(lengths.astype(np.int64) + 4, np.int64)
    if pt.is_run_end_encoded(type):
        return _sizes(pc.run_end_decode(array))
    try:
        width = type.bit_width // 8
    except ValueError:
        width = 0
    return np.full(len(array), width, np.int64)


def _pair(type: pa.DataType) -> pa.DataType:
    return pa.struct([pa.field("key", type.key_type, nullable=False), type.item_field])


T = TypeVar("T")
P = ParamSpec("P")


_MOST = 16


def per_schema(make: Callable[Concatenate[pa.Schema, P], T]) -> Callable[Concatenate[pa.Schema, P], T]:
    """Caches a function of a schema, and of what can be hashed, by the schema object, not its value: metadata, which
    may differ between equal schemas, counts here."""
    made: dict[tuple[Any, ...], tuple[pa.Schema, T]] = {}

    @wraps(make)
    def cached(schema: pa.Schema, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (id(schema), *args, *kwargs.items())
        found = made.get(key)
        if found is None:
            if len(made) >= _MOST:
                made.clear()
            # Kept together: while the schema lives, no other object has its id.
            found = made[key] = (schema, make(schema, *args, **kwargs))
        return found[1]

    return cached
