"""JSON lines outputs, compressed, whose bytes depend on the rows alone.

What JSON does not have is written as text: times and dates in ISO 8601, decimals in digits, bytes in base64, NaN and
infinities by their names ("NaN", "Infinity", "-Infinity"). Maps become objects. What is written is what
`read_json(schema=)` reads, value by value: a type that JSON has no place for is refused, and a map with a key twice.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import math
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.recast import BeyondText, decoded, dictionaries, is_told_as_text, texts_of
from curate.arrow.types import contains, is_text, plain_type
from curate.errors import ConfigError
from curate.formats.read.json_values import readable
from curate.objects.compress import Sink
from curate.writers.lines import LinesWriter


class JsonlOutput(LinesWriter):
    """Writes tables of one schema as compressed JSON lines; `close` adds the record behind them."""

    format = "JSON lines"

    def __init__(self, sink: Sink, schema: pa.Schema, codec: str) -> None:
        """Raises ConfigError for a column of a type that JSON has no place for."""
        for field in schema:
            if not readable(field.type):
                raise ConfigError(
                    f"column {field.name!r} is {field.type}, which JSON lines cannot store; leave it out, make it "
                    "text, numbers, lists or structs of them, or write parquet"
                )
        super().__init__(sink, schema, codec)

    def _lines(self, table: pa.Table) -> bytes:
        return b"".join(json_lines(table, exact=True))


def json_lines(table: pa.Table, *, exact: bool = False) -> list[bytes]:
    """Returns each row of `table` as a line of JSON with its line feed. Of a key that is twice in a map the last value
    is kept; if `exact`, it raises ConfigError."""
    names = table.column_names
    columns = [_values(name, column, exact) for name, column in zip(names, table.columns, strict=True)]
    return [orjson.dumps(row, _other, orjson.OPT_APPEND_NEWLINE) for row in dictionaries(names, columns)]


def _values(name: str, column: pa.ChunkedArray, exact: bool) -> list[Any]:
    """Returns the column's values for `orjson`. Raises ConfigError for a map with a key twice, if `exact`."""
    plain = plain_type(column.type)
    if not plain.equals(column.type) and contains(plain, is_told_as_text):
        column = decoded(column).cast(plain)
    spelled = any(map(_not_finite, column.chunks))
    if contains(column.type, is_told_as_text):
        try:
            column = pa.chunked_array([texts_of(chunk, exact) for chunk in column.chunks])
        except BeyondText as error:
            raise ConfigError(f"column {name!r} is {column.type} and {error}") from None
    values: list[Any] = column.to_pylist()
    if contains(column.type, pt.is_map):
        try:
            values = [_objects(value, column.type, exact) for value in values]
        except _TwiceError as error:
            raise ConfigError(
                f"column {name!r} is {column.type} and has a map with the key {error.args[0]!r} twice, which JSON "
                "cannot store; make it a list of structs, or write parquet"
            ) from None
    return [_spelled(value) for value in values] if spelled else values


class _TwiceError(Exception):
    """A map has a key twice, which is the argument."""


def _objects(value: Any, type: pa.DataType, exact: bool) -> Any:
    """Returns the value with its maps, which Arrow hands out as lists of pairs, as dictionaries; as such lists
    where keys are no text, for people to read. Raises _TwiceError, if `exact`."""
    if value is None or not contains(type, pt.is_map):
        return value
    if pt.is_map(type):
        if not is_text(type.key_type):
            return [[key, _objects(item, type.item_type, exact)] for key, item in value]
        found = {key: _objects(item, type.item_type, exact) for key, item in value}
        if exact and len(found) < len(value):
            keys = [key for key, _ in value]
            raise _TwiceError(next(key for key in keys if keys.count(key) > 1))
        return found
    if pt.is_struct(type):
        return {field.name: _objects(value[field.name], field.type, exact) for field in type}
    return [_objects(item, type.value_type, exact) for item in value]


def _not_finite(array: pa.Array) -> bool:
    """Returns whether there is a number in an array, at any depth, that JSON does not have."""
    type = array.type
    if pt.is_floating(type):
        return bool(pc.any(pc.invert(pc.is_finite(array))).as_py())
    if pt.is_dictionary(type):
        return _not_finite(array.dictionary)
    if isinstance(type, pa.BaseExtensionType):
        return _not_finite(array.storage)
    if not contains(type, pt.is_floating):
        return False
    if pt.is_struct(type) or pt.is_map(type):
        children = array.flatten() if pt.is_struct(type) else [array.keys, array.items]
        return any(map(_not_finite, children))
    return _not_finite(array.values if not pt.is_union(type) else pa.nulls(0))


_NAMES = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}


def _spelled(value: Any) -> Any:
    """Returns a value with the names of the numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else _NAMES[repr(value)]
    if isinstance(value, dict):
        return {key: _spelled(one) for key, one in value.items()}
    return [_spelled(one) for one in value] if isinstance(value, list) else value


def _other(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
