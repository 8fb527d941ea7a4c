"""Tables brought to a held schema: reordered and widened, never narrowed or guessed at."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from curate.dataset.formats.encoding import Format, ReadAs
from curate.errors import SchemaMismatch, did_you_mean

DECLARE = "Where no output_schema is declared, it is that of the first rows: declare one that holds all values"
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
    type = plain(type)
    if pt.is_struct(type):
        return pa.struct([field.with_type(plain_within(field.type)) for field in type.fields])
    if pt.is_list(type) or pt.is_large_list(type):
        make = pa.list_ if pt.is_list(type) else pa.large_list
        return make(type.value_field.with_type(plain_within(type.value_type)))
    return type


def widens(found: pa.DataType, held: pa.DataType) -> bool:
    """Returns whether every value of `found` may be held as `held` (int64 as float64: where it is exact)."""
    if found.equals(held) or pt.is_null(found):
        return True
    if pt.is_dictionary(found):
        return widens(found.value_type, held)
    if _is_text(found):
        return _is_text(held)
    if _is_bytes(found):
        return _is_bytes(held)
    if pt.is_integer(found):
        return _widens_integer(found, held)
    if pt.is_floating(found):
        return bool(pt.is_floating(held) and held.bit_width >= found.bit_width)
    if pt.is_decimal(found) and pt.is_decimal(held):
        whole = held.precision - held.scale >= found.precision - found.scale
        return bool(whole and held.scale >= found.scale)
    if pt.is_timestamp(found) and pt.is_timestamp(held):
        return found.tz == held.tz and _UNITS.index(held.unit) >= _UNITS.index(found.unit)
    if _is_list(found) and _is_list(held):
        return widens(found.value_type, held.value_type)
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
    if pt.is_struct(type):
        return pa.struct([field.with_type(in_parquet(field.type)) for field in type])
    if pt.is_map(type):
        return pa.map_(in_parquet(type.key_type), in_parquet(type.item_type))
    if pt.is_fixed_size_list(type):
        return pa.list_(in_parquet(type.value_type), type.list_size)
    if pt.is_list(type):
        return pa.list_(in_parquet(type.value_type))
    return pa.large_list(in_parquet(type.value_type)) if pt.is_large_list(type) else type


def _readable(found: pa.DataType, held: pa.DataType) -> bool:
    """Returns whether a file's column of the type `found` may be read as `held`: it widens, or is what Parquet makes of
    it; then the cast sees to it that no value is changed."""
    return widens(found, held) or widens(found, in_parquet(held))


def _widens_integer(found: pa.DataType, held: pa.DataType) -> bool:
    if pt.is_floating(held):
        return bool(held.bit_width == 64)
    if not pt.is_integer(held):
        return False
    if pt.is_signed_integer(found) == pt.is_signed_integer(held):
        return bool(held.bit_width >= found.bit_width)
    return bool(pt.is_signed_integer(held) and held.bit_width > found.bit_width)


def _is_text(type: pa.DataType) -> bool:
    return bool(pt.is_string(type) or pt.is_large_string(type) or pt.is_string_view(type))


def _is_bytes(type: pa.DataType) -> bool:
    return bool(pt.is_binary(type) or pt.is_large_binary(type) or pt.is_binary_view(type))


def _is_list(type: pa.DataType) -> bool:
    return bool(pt.is_list(type) or pt.is_large_list(type))


def cast(what: str, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Returns the column as the field's type. Raises SchemaMismatch if that is no widening, or not exact."""
    if column.type.equals(field.type):
        return column
    if not _readable(column.type, field.type):
        raise SchemaMismatch(f"{what}: column {field.name!r} is {column.type}, expected {field.type}")
    try:
        # Arrow casts a dictionary to its values, and to nothing else.
        column = column.cast(plain_within(column.type))
        if pt.is_dictionary(field.type):
            column = column.cast(field.type.value_type).dictionary_encode()
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise SchemaMismatch(
            f"{what}: column {field.name!r} is {column.type}, expected {field.type}: {error}"
        ) from error


def unify(uri: str, found: pa.Schema, held: pa.Schema, how: ReadAs | None) -> None:
    """Raises SchemaMismatch if a file of the columns `found` cannot be read as `held`; a type of null fits all.

    A column that is missing is refused, unless `how` is given: then it will be null, and it is a column that is not
    held that is refused, where the whole file is read and no schema was declared.
    """
    if how is None:
        for name in held.names:
            if name not in found.names:
                near = did_you_mean(name, found.names)
                raise SchemaMismatch(f"{uri}: no column {name!r}{near}; it has {', '.join(map(repr, found.names))}")
    problems = [
        f"column {field.name!r} is {type}, expected {field.type}"
        for field in held
        if field.name in found.names and not _readable(type := found.field(field.name).type, field.type)
    ]
    if how is None:
        if problems:
            raise SchemaMismatch(f"{uri}: {problems[0]}")
        return
    for name in dict.fromkeys(found.names):
        if found.names.count(name) > 1 and name in held.names:
            problems.append(f"column {name!r} is there {found.names.count(name)} times")
        if how.whole and how.schema is None and name not in held.names:
            problems.append(f"column {name!r} is in this file only{did_you_mean(name, held.names)}")
    if problems:
        other = f"{how.first} has" if how.first else "declared is"
        raise SchemaMismatch(
            f"{uri}: {'; '.join(problems)}. This file has ({told(found)}), and {other} ({told(held)}); declare all "
            f"columns with schema={', or name those to keep with columns=' if how.format is Format.PARQUET else ''}"
        )


def told(schema: pa.Schema) -> str:
    """Returns a schema as people are told."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "no columns"


def hold(table: pa.Table, schema: pa.Schema, what: str = "the output") -> pa.Table:
    """Returns the table with exactly `schema`: columns in its order, types widened to its types.

    Widening: null to anything, to a wider integer or float, integer to float64, text and bytes of any offset width,
    dictionary to plain, a finer timestamp. `what` begins the message.

    Raises SchemaMismatch if a column is missing, unexpected, there twice, or of a type that does not widen; the message
    shows every field that differs, on both sides.
    """
    if table.schema is schema or table.schema.equals(schema, check_metadata=True):
        return table
    names, differences = table.column_names, []
    for field in schema:
        count = names.count(field.name)
        if count == 0:
            near = did_you_mean(field.name, [name for name in names if name not in schema.names])
            differences.append(f"{field.name!r} is missing, expected {field.type}{near}")
        elif count > 1:
            differences.append(f"{field.name!r} is there {count} times")
        elif not widens(table.schema.field(field.name).type, field.type):
            found = table.schema.field(field.name).type
            differences.append(f"{field.name!r} is {found}, expected {field.type}")
    for name in dict.fromkeys(names):
        if name not in schema.names:
            differences.append(f"{name!r} ({table.schema.field(names.index(name)).type}) is not expected")
    if differences:
        raise SchemaMismatch(f"{what} does not have the schema that is held: {'; '.join(differences)}. {DECLARE}")
    return pa.Table.from_arrays([cast(what, table.column(field.name), field) for field in schema], schema=schema)
