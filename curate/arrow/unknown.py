"""Unknown types: columns with only nulls, at any depth, tables without any row, and schemas that no row told."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import pyarrow as pa
import pyarrow.types as pt

from curate.arrow.schema import may_be_strict, null_rows
from curate.arrow.sizes import per_schema
from curate.arrow.types import is_list, with_children

_NO_ROWS = {b"curate:rows": b"none"}
NAMES_ALONE = pa.run_end_encoded(pa.int16(), pa.string())
"""Stands for texts of JSON that are all names of numbers, such as "NaN": of floats, if other files have some. Nothing
is read as it."""


def exact(type: pa.DataType) -> pa.DataType:
    """Returns what stands for whole numbers of that type of which a float would round some: they and the floats of
    other files have no type in common. Nothing is read as it."""
    return pa.run_end_encoded(pa.int16(), type)


def rounds(number: int) -> bool:
    """Returns whether a float has other digits than a whole number.

    >>> rounds(2**53 + 1), rounds(10**22), rounds(10**400)
    (True, False, True)
    """
    if -(2**53) <= number <= 2**53:
        return False
    try:
        return Decimal(repr(float(number))) != number
    except OverflowError:
        return True


def find_nulls(columns: Iterable[pa.Array | pa.ChunkedArray], schema: pa.Schema, misfits: dict[int, str]) -> None:
    """Adds to `misfits` the rows with a null where the schema has none, at any depth; those there keep their reason."""
    if not _strict(schema):
        return
    for field, column in zip(schema, columns, strict=True):
        for index in null_rows(column, field).tolist():
            within = f" within, where {field.type} has none" if column[index].is_valid else ""
            misfits.setdefault(index, f"column {field.name!r} is null{within}")


@per_schema
def _strict(schema: pa.Schema) -> bool:
    return any(map(may_be_strict, schema))


@per_schema
def all_nullable(schema: pa.Schema) -> pa.Schema:
    """Returns the schema with every field nullable: what tables have once their nulls were looked at."""
    return pa.schema([field.with_nullable(True) for field in schema])


def is_known(type: pa.DataType) -> bool:
    """Returns whether a type says what its values are, at every depth.

    >>> is_known(pa.list_(pa.struct([("a", pa.null())])))
    False
    """
    if pt.is_null(type):
        return False
    return all(is_known(type.field(k).type) for k in range(type.num_fields))


def empty(schema: pa.Schema) -> pa.Table:
    """Returns a table without rows, of any types: Arrow's own `empty_table` raises for some tensors."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)


def is_blank(table: pa.Table) -> bool:
    """Returns whether a table has neither columns nor rows: user functions left no row to tell the columns by."""
    return not table.num_columns and not table.num_rows


def filled(type: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Returns a type with what it does not know taken from another one, where that is alike.

    >>> filled(pa.list_(pa.null()), pa.list_(pa.int64()))
    ListType(list<item: int64>)
    >>> filled(pa.struct([("a", pa.null()), ("b", pa.int8())]), pa.struct([("b", pa.int64()), ("a", pa.string())]))
    StructType(struct<a: string, b: int8>)
    """
    if pt.is_null(type):
        return other
    if is_known(type) or type.id != other.id:
        return type
    if pt.is_struct(type):
        types = {other.field(k).name: other.field(k).type for k in range(other.num_fields)}
        fields = [type.field(k) for k in range(type.num_fields)]
        return pa.struct([one.with_type(filled(one.type, types.get(one.name, one.type))) for one in fields])
    if is_list(type):
        return with_children(type, lambda one: filled(one, other.value_type))
    return type


def told_as_text(schema: pa.Schema) -> pa.Schema:
    """Returns a schema with texts for what its types do not tell, and nothing that stands for another type.

    >>> told_as_text(pa.schema([("a", pa.list_(pa.null())), ("b", pa.int8())]))
    a: list<item: string>
      child 0, item: string
    b: int8
    """

    def told(type: pa.DataType) -> pa.DataType:
        if pt.is_run_end_encoded(type):
            return type.value_type
        return pa.string() if pt.is_null(type) else with_children(type, told)

    return pa.schema([one.with_type(told(one.type)) for one in schema], schema.metadata)


def fill_schema(schema: pa.Schema | None, other: pa.Schema | None) -> pa.Schema | None:
    """Returns a schema with what its types do not tell taken from another one; that one, if there is none."""
    if schema is None or other is None:
        return other if schema is None else schema
    there = {field.name: field for field in other}

    def fill(one: pa.Field) -> pa.Field:
        found = there.get(one.name, one)
        return (
            found.with_nullable(one.nullable) if pt.is_null(one.type) else one.with_type(filled(one.type, found.type))
        )

    return pa.schema([fill(one) for one in schema])


def of_no_rows(schema: pa.Schema) -> pa.Schema:
    """Returns a schema that no row told, but a header or a footer: of files with rows, the first one's is held."""
    return schema.with_metadata(_NO_ROWS)


def is_of_no_rows(schema: pa.Schema) -> bool:
    """Returns whether no row told a schema. What there is of types holds until there are rows."""
    return bool(schema.metadata == _NO_ROWS)
