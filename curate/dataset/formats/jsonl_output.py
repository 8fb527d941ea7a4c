"""JSON lines outputs, compressed, whose bytes depend on the rows alone.

What JSON does not have is written as text: times and dates in ISO 8601, decimals in digits, bytes in base64. NaN and
infinities become null. Maps become objects; of a key that is there twice the last value is kept.
"""

from __future__ import annotations

import base64
import datetime
import decimal
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.dataset.formats.compress import Compressor, Sink, Summed
from curate.dataset.formats.hold import hold
from curate.dataset.formats.record import gzip_trailer, zstd_trailer

_ENCODE_ROWS = 4096
_ENCODE_BYTES = 8 << 20
"""Rows, and about the bytes, turned into Python objects at a time."""


class JsonlOutput:
    """Writes tables of one schema as compressed JSON lines; `close` adds the record behind them."""

    def __init__(self, sink: Sink, schema: pa.Schema, codec: str) -> None:
        self.rows = 0
        self._sink = sink
        self._schema = schema
        self._stored = Summed(sink)
        self._compressor = Compressor(self._stored, codec)
        self._trailer = gzip_trailer if codec == "gzip" else zstd_trailer

    def write(self, table: pa.Table) -> None:
        """Takes the rows of `table`. Raises SchemaMismatch if it cannot be held to the schema."""
        table = hold(table, self._schema)
        self.rows += table.num_rows
        step = max(1, min(_ENCODE_ROWS, _ENCODE_BYTES * table.num_rows // max(1, table.nbytes)))
        for at in range(0, table.num_rows, step):
            self._compressor.write(b"".join(json_lines(table.slice(at, step))))

    def close(self, record: Mapping[str, Any]) -> None:
        """Writes what is pending, then the record."""
        self._compressor.close()
        self._sink.write(self._trailer(record, self._stored.crc32))


def json_lines(table: pa.Table) -> list[bytes]:
    """Returns each row of `table` as a line of JSON with its line feed."""
    names, columns = table.column_names, [_values(column) for column in table.columns]
    return [
        orjson.dumps(dict(zip(names, row, strict=True)), _other, orjson.OPT_APPEND_NEWLINE)
        for row in zip(*columns, strict=True)
    ]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Returns the column's values as what `orjson` takes."""
    if _has(column.type, _needs_text):
        column = pa.chunked_array([_texts(chunk) for chunk in column.chunks])
    values: list[Any] = column.to_pylist()
    if _has(column.type, pt.is_map):
        return [_objects(value, column.type) for value in values]
    return values


def _objects(value: Any, type: pa.DataType) -> Any:
    """Returns the value with its maps, which Arrow hands out as lists of pairs, as dictionaries."""
    if value is None or not _has(type, pt.is_map):
        return value
    if pt.is_map(type):
        return {key: _objects(item, type.item_type) for key, item in value}
    if pt.is_struct(type):
        return {field.name: _objects(value[field.name], field.type) for field in type}
    return [_objects(item, type.value_type) for item in value]


def _has(type: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    return test(type) or any(_has(type.field(index).type, test) for index in range(type.num_fields))


def _needs_text(type: pa.DataType) -> bool:
    """Returns whether Arrow has to write it: Python has no nanoseconds, and `orjson` no durations."""
    return bool(pt.is_timestamp(type) or pt.is_time64(type) or pt.is_duration(type))


def _texts(array: pa.Array) -> pa.Array:
    """Returns the array with its times as text, and its durations as numbers, at whatever depth."""
    type = array.type
    if pt.is_timestamp(type):
        return pc.strftime(array, format="%Y-%m-%dT%H:%M:%S" + ("%z" if type.tz else ""))
    if pt.is_time64(type):
        return array.cast(pa.string())
    if pt.is_duration(type):
        return array.cast(pa.int64())
    if not _has(type, _needs_text):
        return array
    if pt.is_struct(type):
        children = [_texts(child) for child in array.flatten()]
        return pa.StructArray.from_arrays(children, [field.name for field in type], mask=array.is_null())
    pairs = pt.is_map(type)
    if pairs:
        entry = pa.struct([pa.field("key", type.key_type, nullable=False), type.item_field])
        array = array.cast(pa.list_(entry))
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths.cast(pa.int32()))])
    if pairs:
        keys, items = array.flatten().flatten()
        return pa.MapArray.from_arrays(offsets, keys, _texts(items), mask=array.is_null())
    return pa.ListArray.from_arrays(offsets, _texts(array.flatten()), mask=array.is_null())


def _other(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
