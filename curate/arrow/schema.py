"""Unifies schemas, and conforms tables to a schema: columns are reordered and widened, never narrowed or guessed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.recast import Misfit, recast
from curate.arrow.types import contains, is_binary, is_list, is_list_view, is_text, with_children
from curate.errors import ConfigError, SchemaMismatch, did_you_mean

NEXT = "convert them to one type first, for example with with_column(name, pc.field(name).cast(type)), or rename one"
"""What to do about columns of several types."""


def conform_to_union(table: pa.Table, to: pa.Schema) -> pa.Table:
    """Returns rows with the columns and types of a schema: missing ones null, others widened. Raises SchemaMismatch."""
    there = set(table.column_names)
    for field in to:
        if field.name not in there:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return conform(table.select(to.names), to, "a part of a union")


def unify_schemas(what: str, schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Returns the schema that rows of all of these are held to: the first one, if they are the same.

    Columns come in the order in which they are first there. Raises ConfigError, which begins with `what`, where a
    column has types of which none holds all values.
    """
    if all(one.equals(schemas[0]) for one in schemas):
        return schemas[0]
    types: dict[str, pa.DataType] = {}
    for field in (field for one in schemas for field in one):
        before = types.get(field.name, field.type)
        both = widen(before, field.type)
        if both is None:
            raise ConfigError(
                f"{what}: the column {field.name!r} is {before} and {field.type}; the parts have "
                f"{' and '.join(dict.fromkeys(f'({format_schema(one)})' for one in schemas))}: {NEXT}"
            )
        types[field.name] = both
    return pa.schema(list(types.items()))


def widen(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Returns the type that holds the values of both; None if there is none."""
    if one.equals(other):
        return one
    one, other = plain(one), plain(other)
    if widens(one, other):
        return other
    if widens(other, one):
        return one
    try:
        fields = (pa.schema([("column", type)]) for type in (one, other))
        both = pa.unify_schemas(list(fields), promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None
    return both if widens(one, both) and widens(other, both) else None


def agreed(name: str, before: pa.Schema | None, found: pa.Schema) -> pa.Schema:
    """Returns the schema that holds both, types of nulls filled in and numbers widened. Raises SchemaMismatch.

    It is Arrow's idea of one type and no `widen`: what goes from step to step is held to no type, so that a struct may
    lack a field in one batch. A type that `widen` does not give is refused where rows are kept, or consumed.
    """
    if before is None or before.equals(found):
        return found
    if before.names == found.names:
        try:
            return pa.unify_schemas([before, found], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            pass
    error = SchemaMismatch(
        f"{name} returned a batch with ({format_schema(found)}) after batches with ({format_schema(before)}); every "
        "batch must have the same columns and types"
    )
    error.returned = True
    raise error


def format_schema(schema: pa.Schema) -> str:
    """Returns a schema in one line.

    >>> format_schema(pa.schema([("id", pa.int64()), ("text", pa.string())]))
    'id: int64, text: string'
    """
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "no columns"


DECLARE = (
    "Without output_schema, the schema is taken from the first rows: declare an output_schema that fits all values"
)
"""What to do about rows that do not have the schema that is held."""
_UNITS = ["s", "ms", "us", "ns"]


def plain(type: pa.DataType) -> pa.DataType:
    """Returns the type without dictionary encoding, which is a way of storing and no part of the values."""
    return plain(type.value_type) if pt.is_dictionary(type) else type


def plain_within(type: pa.DataType) -> pa.DataType:
    """Returns the type without dictionary encoding, at any depth of lists and structs.

    >>> plain_within(pa.struct([("word", pa.dictionary(pa.int32(), pa.string()))]))
    StructType(struct<word: string>)
    """
    return with_children(plain(type), plain_within)


def widens(found: pa.DataType, held: pa.DataType) -> bool:
    """Returns whether every value of `found` may be held as `held` (int64 as float64: where it is exact)."""
    if found.equals(held) or pt.is_null(found):
        return True
    if pt.is_dictionary(found) or pt.is_dictionary(held):
        return widens(plain(found), plain(held))
    if is_text(found):
        return is_text(held)
    if is_binary(found):
        return is_binary(held) and not pt.is_fixed_size_binary(held)
    if pt.is_integer(found):
        return _widens_integer(found, held)
    if pt.is_floating(found):
        return bool(pt.is_floating(held) and held.bit_width >= found.bit_width)
    if pt.is_decimal(found) and pt.is_decimal(held):
        whole = held.precision - held.scale >= found.precision - found.scale
        return bool(whole and held.scale >= found.scale)
    if any(is_one(found) and is_one(held) for is_one in (pt.is_timestamp, pt.is_time, pt.is_duration)):
        same = not pt.is_timestamp(found) or found.tz == held.tz
        return same and _UNITS.index(held.unit) >= _UNITS.index(found.unit)
    if pt.is_date(found):
        return bool(pt.is_date64(held))
    if is_list(found) and is_list(held) and not is_list_view(found) and not is_list_view(held):
        sized = pt.is_fixed_size_list(held) and not (pt.is_fixed_size_list(found) and found.list_size == held.list_size)
        return not sized and widens(found.value_type, held.value_type)
    if pt.is_struct(found) and pt.is_struct(held):
        return [f.name for f in found] == [f.name for f in held] and all(
            widens(f.type, h.type) for f, h in zip(found, held, strict=True)
        )
    if pt.is_map(found) and pt.is_map(held):
        return widens(found.key_type, held.key_type) and widens(found.item_type, held.item_type)
    return False


def in_parquet(type: pa.DataType) -> pa.DataType:
    """Returns the type that a Parquet file has for another one, which it does not know.

    >>> in_parquet(pa.list_(pa.timestamp("s"))).value_type
    TimestampType(timestamp[ms])
    """
    if pt.is_dictionary(type):
        return in_parquet(type.value_type)
    if pt.is_timestamp(type) and type.unit == "s":
        return pa.timestamp("ms", type.tz)
    if pt.is_time32(type):
        return pa.time32("ms")
    if pt.is_date64(type):
        return pa.date32()
    return with_children(type, in_parquet)


def readable(found: pa.DataType, held: pa.DataType) -> bool:
    """Returns whether a file's column of the type `found` may be read as `held`: it widens, or is what Parquet makes of
    it; then the cast sees to it that no value is changed."""
    return widens(found, held) or widens(found, in_parquet(held))


def _has_strict(type: pa.DataType) -> bool:
    return bool(pt.is_struct(type) and any(not field.nullable for field in type))


def _widens_integer(found: pa.DataType, held: pa.DataType) -> bool:
    if pt.is_floating(held):
        return bool(held.bit_width == 64)
    if not pt.is_integer(held):
        return False
    if pt.is_signed_integer(found) == pt.is_signed_integer(held):
        return bool(held.bit_width >= found.bit_width)
    return bool(pt.is_signed_integer(held) and held.bit_width > found.bit_width)


def cast(what: str, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Returns the column as the field's type. Raises SchemaMismatch if that is no widening, or not exact."""
    if column.type.equals(field.type):
        return column
    if not readable(column.type, field.type):
        raise SchemaMismatch(f"{what}: column {field.name!r} is {column.type}, expected {field.type}")
    try:
        if pt.is_null(column.type):  # which Arrow does not cast to views of lists, runs and unions
            return pa.chunked_array([pa.nulls(len(column), field.type)])
        if contains(column.type, pt.is_null) or contains(field.type, _has_strict):
            # Arrow casts the nulls of a list or a map to as many as there are rows: the process ends, or worse. And it
            # refuses nulls in a field of a struct that has none, and says no row: in a list or a map it does not look.
            return pa.chunked_array([recast(chunk, field.type, wider=True) for chunk in column.chunks], field.type)
        # Arrow casts a dictionary to its values, and to nothing else.
        column = column.cast(plain_within(column.type))
        if pt.is_dictionary(field.type):
            column = column.cast(field.type.value_type).dictionary_encode()
        elif not plain_within(field.type).equals(field.type):
            # Arrow makes dictionaries within lists and structs of texts, and of nothing else.
            return pa.chunked_array([recast(chunk, field.type, wider=True) for chunk in column.chunks], field.type)
        return column.cast(field.type)
    except (Misfit, pa.ArrowException) as error:
        raise SchemaMismatch(
            f"{what}: column {field.name!r} is {column.type}, expected {field.type}: {error}"
        ) from error


_CALLED = b"curate:called"


def calling(field: pa.Field, text: str) -> pa.Field:
    """Returns a column with a note of what people know it by, who never gave it its name."""
    return field.with_metadata({_CALLED: text})


def called(field: pa.Field) -> str:
    """Returns what people know a column by.

    >>> called(pa.field("n", pa.int8())), called(calling(pa.field("_0", pa.int8()), "the sum of 'n'"))
    ("'n'", "the sum of 'n'")
    """
    note = (field.metadata or {}).get(_CALLED)
    return repr(field.name) if note is None else str(note, "utf-8")


def conform(table: pa.Table, schema: pa.Schema, what: str = "the output") -> pa.Table:
    """Returns the table with exactly `schema`: columns in its order, types widened to its types.

    Widening: null to anything, to a wider integer or float, integer to float64, text and bytes of any offset width,
    dictionary to plain, a finer unit of times, date32 to date64. `what` begins the message.

    Raises SchemaMismatch if a column is missing, unexpected, there twice, or of a type that does not widen; the message
    shows every field that differs, on both sides.
    """
    if table.schema is schema or table.schema.equals(schema, check_metadata=True):
        return table
    # Once: each time that a schema is asked for its names it makes a list of them, and there may be thousands.
    names, differences = table.column_names, []
    times, held = Counter(names), set(schema.names)
    for field in schema:
        count = times[field.name]
        if count == 0:
            near = did_you_mean(field.name, [name for name in names if name not in held])
            differences.append(f"{field.name!r} is missing, expected {field.type}{near}")
        elif count > 1:
            differences.append(f"{field.name!r} occurs {count} times")
        elif not widens((found := table.schema.field(field.name)).type, field.type):
            differences.append(f"{called(found)} is {found.type}, expected {field.type}")
    for name in times:
        if name not in held:
            differences.append(f"{name!r} ({table.schema.field(names.index(name)).type}) is not expected")
    if differences:
        raise SchemaMismatch(f"{what} does not match the schema of the output: {'; '.join(differences)}. {DECLARE}")
    columns = [cast(what, table.column(field.name), field) for field in schema]
    for field, column in zip(schema, columns, strict=True):
        if len(null_rows(column, field.with_nullable(True))):
            raise SchemaMismatch(
                f"{what}: column {field.name!r} has a null within, where {field.type} has none. {DECLARE}"
            )
    return pa.Table.from_arrays(columns, schema=schema)


# Nulls where none may be


def may_be_strict(field: pa.Field) -> bool:
    """Returns whether a field, or one within it, says that it has no null."""
    return not field.nullable or any(map(may_be_strict, _within(field.type)))


def null_rows(column: pa.Array | pa.ChunkedArray, field: pa.Field) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the rows with a null where the field, or one within it, says that there is none."""
    strict = [one for one in _within(field.type) if may_be_strict(one)]
    if not strict and (field.nullable or not column.null_count):
        return np.zeros(0, np.int64)
    if isinstance(column, pa.ChunkedArray):
        starts = np.cumsum([0, *map(len, column.chunks)])
        found = [at + null_rows(chunk, field) for at, chunk in zip(starts, column.chunks, strict=False)]
        return np.concatenate([np.zeros(0, np.int64), *found])
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    bad = np.zeros(len(column), bool) if field.nullable else ~valid
    for inner in strict:
        rows, values = _values_within(column, inner)
        of = rows[null_rows(values, inner)]
        bad[of[valid[of]]] = True  # what lies under a null is none of its values
    return np.flatnonzero(bad)


def _within(type: pa.DataType) -> list[pa.Field]:
    if pt.is_map(type):
        return [type.item_field]
    if pt.is_struct(type):
        return list(type.fields)
    return [type.value_field] if is_list(type) else []


def _values_within(array: pa.Array, field: pa.Field) -> tuple[np.ndarray[Any, np.dtype[np.int64]], pa.Array]:
    """Returns the values of a field within others, and the row of each."""
    rows = np.arange(len(array))
    if pt.is_struct(array.type):
        return rows, array.field(array.type.get_field_index(field.name))
    if pt.is_map(array.type):
        ends = array.offsets.to_numpy()
        return np.repeat(rows, np.diff(ends)), array.items.slice(ends[0], ends[-1] - ends[0])
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    return np.repeat(rows, lengths), array.flatten()
