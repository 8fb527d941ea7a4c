"""The canonical form of rows in run files: equal rows have equal bytes, in whatever kind of array they were.

Dictionaries, views and run-end encoding are stored as plain arrays. The file's schema notes the original type, which
rows get back when the last stage reads them.

The bytes below a null are undefined. Arrow's `take` writes zeros there, except in the fields of a null struct.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from curate.arrow.recast import Misfit, decoded, recast, sized_lists
from curate.arrow.schema import conform
from curate.arrow.sizes import per_schema
from curate.arrow.types import contains, is_list_view, plain_type, with_children
from curate.errors import ConfigError


@per_schema
def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the schema as it is written: no metadata, and plain instead of dictionaries, and of views at any depth:
    of a struct of views Arrow writes no slice."""
    return pa.schema([pa.field(field.name, _stored_type(field.type), field.nullable) for field in schema])


def _stored_type(type: pa.DataType) -> pa.DataType:
    return _stored_type(type.value_type) if pt.is_dictionary(type) else _without_views(type)


def _without_views(type: pa.DataType) -> pa.DataType:
    if pt.is_string_view(type):
        return pa.string()
    if pt.is_binary_view(type):
        return pa.binary()
    return type if is_list_view(type) else with_children(type, _without_views)


_GIVEN = b"curate:given"
"""The note in the schema of a run file."""


@per_schema
def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the schema as it is stored: no metadata, and plain types at any depth.

    Raises ConfigError for unions, views of lists, and what else Arrow cannot put in another order.
    """
    stored = pa.schema([_plain_field(field) for field in schema])
    for field, given in zip(stored, schema, strict=True):
        try:
            if contains(field.type, _is_unmovable):
                raise pa.ArrowNotImplementedError("its rows have no size of their own")
            plain_column(pa.chunked_array([pa.nulls(1, given.type)])).take(pa.array([0], pa.uint64()))
        except pa.ArrowNotImplementedError as error:
            raise ConfigError(
                f"column {field.name!r} is {given.type}, which an exchange cannot move; cast or drop it before the "
                f"exchange: {error}"
            ) from error
    return stored


def with_given_schema(stored: pa.Schema, schema: pa.Schema) -> pa.Schema:
    """Returns `stored`, the `plain_schema` of `schema`, with a note of it, if types differ."""
    schema = given_schema(schema).remove_metadata()
    return stored if stored.equals(schema) else stored.with_metadata({_GIVEN: schema.serialize().to_pybytes()})


def given_schema(stored: pa.Schema) -> pa.Schema:
    """Returns the schema that rows came with, of one that `with_given_schema` made."""
    note = (stored.metadata or {}).get(_GIVEN)
    return stored if note is None else pa.ipc.read_schema(pa.py_buffer(note))


def restore_types(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns a table, its columns that were stored plain in the way of `schema` again."""
    names = set(schema.names)
    for at, field in enumerate(table.schema):
        to = schema.field(field.name) if field.name in names else field
        if not to.type.equals(field.type) and plain_type(to.type).equals(field.type):
            try:
                chunks = [recast(chunk, to.type) for chunk in table.column(at).chunks]
            except (Misfit, pa.ArrowException):  # more values than the indexes of a dictionary can count
                continue
            table = table.set_column(at, to, pa.chunked_array(chunks, to.type))
    return table


def _plain_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, plain_type(field.type), field.nullable)


def conform_plain(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the table with exactly `schema`, a `plain_schema`. Raises SchemaMismatch as `conform` does."""
    for at, field in enumerate(table.schema):
        plain = _plain_field(field)
        if not plain.type.equals(field.type):
            table = table.set_column(at, plain, plain_column(table.column(at)))
    return conform(table, schema)


def plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column of its `plain_type`."""
    plain = plain_type(column.type)
    column = decoded(column)  # Arrow casts no dictionary of nested values
    return column if column.type.equals(plain) else column.cast(plain)


@per_schema
def _with_structs(schema: pa.Schema) -> list[int]:
    """Returns the numbers of the columns in which a struct may be null."""
    return [at for at, field in enumerate(schema) if contains(field.type, pt.is_struct)]


def _is_unmovable(type: pa.DataType) -> bool:
    # Arrow takes rows of a view of lists with all values, and casts views that have nulls to broken lists.
    return bool(pt.is_union(type) or is_list_view(type))


def zero_nulls(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the rows of a batch of `schema` that `take` gave, with zeros under every null."""
    for at in _with_structs(schema):
        column = _emptied(batch.column(at)).take(pa.array(np.arange(batch.num_rows)))
        batch = batch.set_column(at, batch.schema.field(at), column)
    return batch


def _emptied(array: pa.Array) -> pa.Array:
    """Returns the values, in whose structs fields are null where the struct is."""
    type = array.type
    if not contains(type, pt.is_struct):
        return array
    if isinstance(type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type, _emptied(array.storage))
    mask = array.is_null() if array.null_count else None
    if pt.is_struct(type):
        if not type.num_fields:
            return array
        fields = [_emptied(field) for field in array.flatten()]
        return pa.StructArray.from_arrays(fields, fields=type.fields, mask=mask)
    if pt.is_map(type):
        keys, items = _emptied(array.keys), _emptied(array.items)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=type, mask=mask)
    if pt.is_fixed_size_list(type):
        return sized_lists(_emptied(array.values), type, len(array), mask)
    if pt.is_list(type) or pt.is_large_list(type):
        return array.__class__.from_arrays(array.offsets, _emptied(array.values), type=type, mask=mask)
    return array
