"""What the statistics of Parquet files say wrongly of rows, so that no filter may go by them."""

from __future__ import annotations

import math
import re
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from curate.arrow.expressions import binds, columns_of, project, shown
from curate.arrow.recast import recast
from curate.arrow.types import contains, value_type

_CALL = re.compile(r"(\w+)\(")
"""A function in the text of an expression."""


def misled_by_statistics(expression: Any, schema: pa.Schema) -> bool:
    """Returns whether the statistics of Parquet may say that a filter drops rows which it keeps, as far as can be told.

    They leave NaN out, and do not tell zeros apart: by them, a row group of 1.0 and NaN has nothing but ones, and one
    of 0.0 nothing but -0.0. So it is, too, in structs.

    >>> import pyarrow.compute as pc
    >>> schema = pa.schema([("x", pa.float64()), ("lang", pa.string())])
    >>> misled_by_statistics((pc.field("lang") == "en") & (pc.field("x") > 0.5), schema)
    False
    >>> misled_by_statistics(pc.field("x") != 1, schema)
    True
    >>> misled_by_statistics(pc.field("x").isin([0.0]), schema)
    True
    """
    read = columns_of(expression, schema)
    columns = [field for field in schema if field.name in read]
    if not any(contains(column.type, pt.is_floating) for column in columns):
        return False
    calls = set(_CALL.findall(shown(expression))) - _PLAIN_CALLS
    if "struct_field" in calls:
        return True  # which may say by its number which field it reads
    paths = [path for column in columns for path in _paths_read(expression, schema, column)]
    floats = [path for path in paths if pt.is_floating(_type_at(schema, path))]
    if floats and len(paths) > 1 and calls:
        # What null becomes there says nothing about other values; what is compared, or joined by and and or, is false
        # with null only if it is false with every value.
        return True
    for path in floats:
        row = {one.name: _only(one.type, path[1:] if one.name == path[0] else None) for one in schema}
        try:
            nan, zero, below_zero = project(pa.table(row), [expression], ["kept"])["kept"].to_pylist()
        except pa.ArrowInvalid:
            return True  # such as a cast of NaN to a whole number
        if nan or (nan is None and len(paths) > 1) or zero != below_zero:
            return True
    return False


_PLAIN_CALLS = {"invert", "Nested", "Name"}
"""What stands in the text of an expression like a function, and makes no other value of a column than it has."""
_MISLEADING = (math.nan, 0.0, -0.0)

_Path = tuple[str, ...]
"""A column, and the field in it, and the field in that, if these are structs."""


def _paths_read(expression: Any, schema: pa.Schema, column: pa.Field) -> list[_Path]:
    """Returns the paths of what is no struct in a column that is read, without which the expression cannot be bound."""
    if not pt.is_struct(column.type):
        return [(column.name,)]
    at = schema.get_field_index(column.name)
    return [path for path in _paths(column) if not binds(expression, schema.set(at, _renamed(column, path[1:])))]


def _paths(field: pa.Field) -> list[_Path]:
    if not pt.is_struct(field.type):
        return [(field.name,)]
    return [(field.name, *path) for one in field.type.fields for path in _paths(one)]


def _renamed(field: pa.Field, path: _Path) -> pa.Field:
    """Returns a field with another name for what is at a path in it."""
    if not path:
        return field.with_name(f"not {field.name}")
    return field.with_type(
        pa.struct([_renamed(one, path[1:]) if one.name == path[0] else one for one in field.type.fields])
    )


def _type_at(schema: pa.Schema, path: _Path) -> pa.DataType:
    type = schema.field(path[0]).type
    for name in path[1:]:
        type = type.field(name).type
    return value_type(type)


def _only(type: pa.DataType, path: _Path | None) -> pa.Array:
    """Returns rows that have nothing but what misleads at a path; nothing at all without one."""
    if path is None:
        return pa.nulls(len(_MISLEADING), type)
    if not path:
        return recast(pa.array(_MISLEADING).cast(value_type(type)), type)
    children = [_only(one.type, path[1:] if one.name == path[0] else None) for one in type.fields]
    return pa.StructArray.from_arrays(children, fields=[one.with_nullable(True) for one in type.fields])
