"""Columns of more text, bytes or lists than 32-bit offsets can count: Arrow's `take` and `combine_chunks` fail.

Rows are taken from such a column as one of 64-bit offsets, and come back in chunks that 32 bits are enough for.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from curate.arrow.types import with_children
from curate.errors import ShardError
from curate.units import format_bytes

MOST_OFFSET_BYTES = (1 << 31) - 1
"""Bytes of a column up to which 32-bit offsets are sure to be enough."""
_NARROW = b"curate.narrow"
"""Under which a field that was made `wide` says of which type it was."""


def is_over(column: pa.ChunkedArray | pa.Array) -> bool:
    """Returns whether a column may be too large to be one array."""
    return column.nbytes > MOST_OFFSET_BYTES and not wide_type(column.type).equals(column.type)


def wide_type(type: pa.DataType) -> pa.DataType:
    """Returns the type of the same values with 64-bit offsets.

    >>> wide_type(pa.list_(pa.struct([("text", pa.string()), ("n", pa.int8())])))
    LargeListType(large_list<item: struct<text: large_string, n: int8>>)
    """
    if pt.is_string(type):
        return pa.large_string()
    if pt.is_binary(type):
        return pa.large_binary()
    wide = with_children(type, wide_type)
    return pa.large_list(wide.value_field) if pt.is_list(type) else wide


def take_column(column: pa.ChunkedArray, rows: pa.Array) -> pa.ChunkedArray:
    """Returns these rows of a column, nulls for nulls; in several chunks where one would be too large."""
    if not is_over(column):
        try:
            return column.take(rows)
        except pa.ArrowInvalid:
            # Few rows, taken often, may be too many bytes as well.
            if wide_type(column.type).equals(column.type):
                raise
    return narrowed(column.cast(wide_type(column.type)).take(rows), column.type)


def narrowed(column: pa.ChunkedArray, type: pa.DataType) -> pa.ChunkedArray:
    """Returns a column of a wide type as `type`, in chunks of which none is too large."""
    if column.type.equals(type):
        return column
    if column.nbytes <= MOST_OFFSET_BYTES or len(column) <= 1:
        # By copies: Arrow goes by where a slice ends in the whole, and not by what is in it.
        whole = [chunk.take(pa.array(np.arange(len(chunk)))) for chunk in column.chunks]
        return pa.chunked_array(whole, column.type).cast(type)
    half = len(column) // 2
    parts = [narrowed(column.slice(0, half), type), narrowed(column.slice(half), type)]
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], type)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Returns a column as one array. Raises ShardError for one that is too large."""
    if is_over(column) and column.num_chunks > 1:
        raise ShardError(
            f"a column of {column.type} has {format_bytes(column.nbytes)} in one output, but it must fit into one "
            f"array of {format_bytes(MOST_OFFSET_BYTES)} at most; cast it to {wide_type(column.type)} before it, "
            "with with_column()"
        )
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


# Rows as one array of structs


def pack_rows(rows: pa.Table) -> pa.StructArray:
    """Returns rows as one array; columns that are too large for that as wide ones, which `unpack_rows` knows."""
    arrays, fields = [], []
    for column, field in zip(rows.columns, rows.schema, strict=True):
        if is_over(column):
            was = base64.b64encode(pa.schema([field]).serialize().to_pybytes())
            column, field = column.cast(wide_type(field.type)), field.with_type(wide_type(field.type))
            field = field.with_metadata({**(field.metadata or {}), _NARROW: was})
        arrays.append(one_array(column))
        fields.append(field)
    return pa.StructArray.from_arrays(arrays, fields=fields)


def unpack_rows(rows: pa.StructArray) -> pa.Table:
    """Returns the rows that `pack_rows` was given, or a slice of them."""
    columns: list[Any] = []
    fields: list[pa.Field] = []
    for number, field in enumerate(rows.type.fields):
        # None of them is null; and of one that may be, Arrow makes runs that it calls invalid.
        array = rows.field(number)
        was = (field.metadata or {}).get(_NARROW)
        if was is None:
            columns.append(pa.chunked_array([array], field.type))
            fields.append(field)
            continue
        [before] = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(was)))
        columns.append(narrowed(pa.chunked_array([array]), before.type))
        fields.append(before)
    return pa.table(columns, schema=pa.schema(fields))
