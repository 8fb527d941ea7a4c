"""Casts the result of a function to its declared schema: never with loss, and never to another kind of type."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.recast import recast
from curate.arrow.schema import cast, format_schema, null_rows, widens
from curate.arrow.types import is_binary, is_encoded, is_list, is_list_view, is_text
from curate.errors import ConfigError, SchemaMismatch, did_you_mean


def check_declared(method: str, schema: Any) -> pa.Schema | None:
    """Returns a schema that was declared, None if none was. Raises ConfigError for what is no schema of columns."""
    if schema is None:
        return None
    if not isinstance(schema, pa.Schema):
        raise ConfigError(
            f"{method}(output_schema={schema!r:.80}) is not a schema; write for example pyarrow.schema([('id', "
            "pyarrow.int64())])"
        )
    for name, count in Counter(schema.names).items():
        if count > 1:
            raise ConfigError(f"{method}(output_schema=...): the column {name!r} occurs {count} times")
    if not len(schema):
        raise ConfigError(f"{method}(output_schema=...) has no column; name at least one")
    return schema.remove_metadata()


def identity_of(schema: pa.Schema | None) -> list[Any]:
    """Returns what a declared schema adds to an identity: nothing, if there is none."""
    return [] if schema is None else [["output_schema", [[one.name, str(one.type), one.nullable] for one in schema]]]


def as_declared(table: pa.Table, schema: pa.Schema, where: str, rows: str) -> pa.Table:
    """Returns a table with exactly the columns of `schema`, in its order and types, every value what it was.

    Raises SchemaMismatch, which begins with `where` and tells `rows`, for columns that are missing or not declared,
    nulls where none may be, and values that the declared type does not hold.
    """
    if table.schema.equals(schema) and not any(_has_null(table, field) for field in schema):
        return table
    names, declared = dict.fromkeys(table.column_names), frozenset(schema.names)
    missing = [f"{one.name!r} is missing{did_you_mean(one.name, names)}" for one in schema if one.name not in names]
    missing += [f"{name!r} is not declared" for name in table.column_names if name not in declared]
    if missing:
        raise SchemaMismatch(
            f"{where} returned columns ({format_schema(table.schema)}) of {rows}, but output_schema declares "
            f"({format_schema(schema)}): {'; '.join(missing)}; change what it returns, or output_schema"
        )
    columns = []
    for field in schema:
        column = table.column(field.name)
        try:
            columns.append(cast_exactly(column, field.type))
            if _has_null(table, field):
                raise _LossError("it has nulls, but is declared not null")
        except _LossError as error:
            raise SchemaMismatch(
                f"{where} returned the column {field.name!r} as {column.type} of {rows}, but output_schema declares "
                f"{field.type}: "
                f"{error}; change what it returns, or output_schema"
            ) from error
    return pa.Table.from_arrays(columns, schema=schema)


def _has_null(table: pa.Table, field: pa.Field) -> bool:
    return bool(len(null_rows(table.column(field.name), field)))


class _LossError(Exception):
    """A type does not hold a value."""


def cast_exactly(column: pa.ChunkedArray, type: pa.DataType) -> pa.ChunkedArray:
    """Returns a column as a type, every value what it was. Raises _LossError."""
    if column.type.equals(type):
        return column
    if isinstance(type, pa.BaseExtensionType) and not isinstance(column.type, pa.BaseExtensionType):
        storage = cast_exactly(column, type.storage_type)
        return pa.chunked_array([pa.ExtensionArray.from_storage(type, chunk) for chunk in storage.chunks], type)
    if not _alike(column.type, type):
        raise _LossError("the two types share no values")
    if is_list_view(column.type):
        return cast_exactly(_stored_as(column, pa.large_list(column.type.value_field)), type)
    if is_list_view(type):
        return _stored_as(cast_exactly(column, pa.large_list(type.value_field)), type)
    try:
        if widens(column.type, type):
            return cast("", column, pa.field("", type))
        made = _cast(column, type)
        if _same(_cast(made, column.type), column):
            return made
    except (pa.ArrowException, SchemaMismatch) as error:
        raise _LossError(str(error)) from error
    raise _LossError("values would change")


def _stored_as(column: pa.ChunkedArray, type: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([recast(chunk, type) for chunk in column.chunks], type)


def _cast(column: pa.ChunkedArray, type: pa.DataType) -> pa.ChunkedArray:
    if pt.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pt.is_integer(column.type) and pt.is_decimal(type) and type.scale >= 0:
        # Arrow asks for room for all numbers there are, and not for those in the column.
        column = column.cast(pa.decimal256(min(76, 20 + type.scale), type.scale))
    return column.cast(type)


def _same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    if one.equals(other):
        return True
    # NaN equals nothing.
    if pt.is_floating(one.type):
        same = pc.or_(pc.equal(one, other), pc.and_(pc.is_nan(one), pc.is_nan(other)))
        return one.null_count == other.null_count and bool(pc.all(same).as_py() is not False)
    return pt.is_nested(one.type) and repr(one.to_pylist()) == repr(other.to_pylist())


_KINDS = (
    ("boolean", pt.is_boolean),
    ("number", lambda type: pt.is_integer(type) or pt.is_floating(type) or pt.is_decimal(type)),
    ("text", is_text),
    ("bytes", is_binary),
    ("date", pt.is_date),
    ("time", pt.is_time),
    ("moment", lambda type: pt.is_timestamp(type) and type.tz is not None),
    ("timestamp", pt.is_timestamp),
    ("duration", pt.is_duration),
    ("list", is_list),
    ("struct", pt.is_struct),
    ("map", pt.is_map),
)


def _alike(found: pa.DataType, declared: pa.DataType) -> bool:
    """Returns whether values of two types are of one kind, at every depth."""
    if pt.is_null(found) or found.equals(declared):
        return True
    if is_encoded(found):
        return _alike(found.value_type, declared)
    if is_encoded(declared):
        return _alike(found, declared.value_type)
    kinds = [next((name for name, is_one in _KINDS if is_one(type)), None) for type in (found, declared)]
    if kinds[0] is None or kinds[0] != kinds[1]:
        return False
    if kinds[0] == "number":
        # 0.1 is no tenth.
        return not any(
            pt.is_floating(one) and pt.is_decimal(two) for one, two in ((found, declared), (declared, found))
        )
    if kinds[0] == "list":
        return _alike(found.value_type, declared.value_type)
    if kinds[0] == "map":
        return _alike(found.key_type, declared.key_type) and _alike(found.item_type, declared.item_type)
    if kinds[0] == "struct":
        fields = {one.name: one.type for one in found.fields}
        same = fields.keys() == {one.name for one in declared.fields} and len(fields) == declared.num_fields
        return same and all(_alike(fields[one.name], one.type) for one in declared.fields)
    return True
