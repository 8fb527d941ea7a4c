"""The columns that input files have, as those tell it that are looked into before anything runs.

Where a file spells its values out (JSON lines, CSV, TFRecords), types are what values look like, and what one
file shows need not hold for the next: the first one may have whole numbers only, or lack a key. So some of the others,
from all over the inputs, are looked into, too, and columns are what all of them tell together, as if they were one
file. Others say their types: more files are looked into for columns alone that have none.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from curate.arrow.schema import plain, widens
from curate.arrow.types import is_list, is_text
from curate.arrow.unknown import NAMES_ALONE, exact, fill_schema, is_known, is_of_no_rows, told_as_text
from curate.errors import (
    ConfigError,
    CorruptInput,
    MissingColumn,
    PermissionDenied,
    SchemaMismatch,
    StorageError,
    did_you_mean,
)
from curate.formats.encoding import Encoding, Format
from curate.formats.file_schema import refuse_mismatch
from curate.formats.file_slice import FileSlice
from curate.formats.read.json_schema import TEXTS_AND
from curate.formats.read.json_values import JSON_TEXT, json_text
from curate.formats.rows import sample_schema
from curate.log import get_logger
from curate.objects.bad_line import DECLARE
from curate.objects.stream import BLOCK_BYTES
from curate.prefetch import ahead
from curate.sources.protocol import StoreOf
from curate.storage.protocol import Object
from curate.stores.open import open_store

MORE_FILES = 8
"""Further files that are looked into beside the first one. They are from all over the inputs: sources follow each
other, and files of one source are alike."""
MORE_BYTES = 128 << 10
"""Of each of these, if it is one of JSON lines. A MiB of small rows takes 50 ms of a core, before anything runs."""
_SPELT = (Format.JSONL, Format.CSV, Format.TFRECORDS)
"""Not samples of a WebDataset: of those, files are looked into by the eight MiB."""

LOOKED_AT = 1024
"""Footers that are read, at most; of more files as many, evenly spread: what differs in the others is refused when they
are read."""
READERS = 32
"""Footers that are read at once: 1,024 of them from a bucket take about two seconds."""
_EXAMPLES = 3


def objects_in(listing: pa.Table) -> list[Object]:
    """Returns the objects of some rows of a listing."""
    return [Object(one["uri"], one["size"], one["generation"]) for one in listing.to_pylist()]


def spread(count: int) -> list[int]:
    """Returns which of so many files are looked into beside the first one: from all over them, the last among them.

    >>> spread(4), spread(100)
    ([1, 2, 3], [12, 24, 37, 49, 61, 74, 86, 99])
    """
    most = min(MORE_FILES, count - 1)
    return [(at + 1) * (count - 1) // most for at in range(most)]


def some_of(listing: Any) -> list[Object]:
    """Returns the objects of the rows of a listing, a table or a packed one, that `spread` names."""
    return objects_in(listing.take(np.array(spread(len(listing)), dtype=np.int64)))


def first_schema(
    files: Iterable[Object],
    others: Callable[[], Iterable[Object]],
    encoding: Callable[[str], Encoding],
    store_of: StoreOf,
    columns: Mapping[str, Any] | None = None,
    required: Container[str] = (),
) -> tuple[pa.Schema, str, CorruptInput | None]:
    """Returns the schema of the first of some listed files that can be read and has rows, of these `columns`, or of the
    first that has columns, if all have none, or it holds those rows too; the URI of that file; and what the first one
    said that could not be read.

    Behind its columns come those that only `others` have, in formats that spell values out, and its types hold the
    values of those, too (see `joined`). Types that none of them tells, of columns with only nulls, are texts there. In
    Parquet files, types of nulls alone are those of others. A column that is asked for and that the first file of JSON
    lacks may be one of the others, unless it is `required`. Raises MissingColumn for one that none of these files has.
    """
    missing: dict[str, MissingColumn] = {}

    def sampled(item: Object, json_bytes: int = BLOCK_BYTES) -> pa.Schema | ConfigError | CorruptInput:
        how, wanted = encoding(item.uri), columns
        while True:
            try:
                return sample_schema(FileSlice(store_of(item.uri), item, how), wanted, json_bytes)
            except MissingColumn as error:
                if how.format is not Format.JSONL or error.column in required or not (wanted and error.column):
                    return error
                missing.setdefault(error.column, error)
                wanted = {name: type for name, type in wanted.items() if name != error.column}
            except (ConfigError, CorruptInput) as error:
                return error

    def more(item: Object) -> pa.Schema:
        """Returns what a further file tells: nothing, where something is wrong, which its own shard says."""
        try:
            found = sampled(item, MORE_BYTES)
        except PermissionDenied:
            return pa.schema([])
        return found if isinstance(found, pa.Schema) and not is_of_no_rows(found) else pa.schema([])

    schema, first, problem = pa.schema([]), "", None
    for item in files:
        found = sampled(item)
        if isinstance(found, CorruptInput):
            problem = problem or found
            continue
        if isinstance(found, ConfigError):
            raise found
        tells = bool(len(found)) and not is_of_no_rows(found)
        if tells and len(schema) and _holds(schema, found):
            schema = schema.remove_metadata()
        elif tells or not len(schema):
            schema, first = found, item.uri
        if not tells:
            continue
        format = encoding(item.uri).format
        if format not in _SPELT:
            schema = _filled(schema, map(more, others()))
        elif missing or columns is None or None in columns.values():
            for _, other in ahead(more, others(), READERS):
                schema = joined(schema, other, format)
            if columns is not None:
                _refuse_mixed(schema, first)
        break
    if missing and columns is not None:
        for name, refusal in missing.items():
            if name not in schema.names:
                raise refusal
        schema = pa.schema([schema.field(name) for name in columns], schema.metadata)
    if first and not is_of_no_rows(schema) and encoding(first).format in (*_SPELT, Format.WEBDATASET):
        _warn_of_nulls(first, tuple(one.name for one in schema if not is_known(one.type)))
        schema = say_quoted(told_as_text(schema))
    return schema, first, problem


@lru_cache(maxsize=1024)
def _warn_of_nulls(first: str, columns: Sequence[str]) -> None:
    """Says once in a process that nothing told the type of columns: a dataset asks for it before the run does."""
    if columns:
        get_logger().warning(
            "columns with nothing but nulls in the files that were looked at are read as text, in later runs too",
            columns=list(columns),
            first_file=first,
            next="if they are something else, say their types: `schema` of the reader, or `columns` of the job",
        )


def _filled(schema: pa.Schema, others: Iterator[pa.Schema]) -> pa.Schema:
    """Returns a schema with the types that it does not know taken from others; no more are looked at than it takes."""
    while not all(is_known(field.type) for field in schema) and (other := next(others, None)) is not None:
        schema = fill_schema(schema, other) or schema
    return schema


def _holds(schema: pa.Schema, rows: pa.Schema) -> bool:
    """Returns whether a schema has all columns of some rows, of types that hold theirs."""
    types = {one.name: one.type for one in schema}
    return all(one.name in types and widens(one.type, types[one.name]) for one in rows)


def joined(schema: pa.Schema, other: pa.Schema, format: Format) -> pa.Schema:
    """Returns the schema of values that are spelt out in one file as the first schema says, and in another as `other`
    does: with the columns and fields of both, those of the first one before, and types that hold the values of both.
    Where there is none, the first one's stays, and what does not fit it is a bad row; whole numbers that a float would
    round, and floats, are texts: JSON's, in JSON.

    CSV has headers: files that differ there are refused, or not, when they are read. And text holds all that it has.

    >>> a, b = pa.schema([("n", pa.int64())]), pa.schema([("more", pa.string()), ("n", pa.float64())])
    >>> joined(a, b, Format.JSONL)
    n: double
    more: string
    """

    def both(one: pa.Field, found: pa.Field) -> pa.Field:
        try:
            return _both(one, found, format)
        except _Rounded:
            return pa.field(one.name, pa.string(), one.nullable, None if format is Format.CSV else JSON_TEXT)

    there = {field.name: field for field in other}
    held = [both(one, there.pop(one.name, one)) for one in schema]
    return pa.schema(held if format is Format.CSV else [*held, *there.values()], schema.metadata)


class _Rounded(Exception):
    """The one type that would hold the values of both files is a float, and it would round some."""


def _both(one: pa.Field, found: pa.Field, format: Format) -> pa.Field:
    if pt.is_null(one.type):
        return found.with_nullable(one.nullable)
    return one if json_text(one) or json_text(found) else one.with_type(_joined(one.type, found.type, format))


def _joined(one: pa.DataType, other: pa.DataType, format: Format) -> pa.DataType:
    if pt.is_null(other) or one.equals(other):
        return one
    if pt.is_null(one) or (one.equals(NAMES_ALONE) and is_text(other)):
        return other
    if pt.is_struct(one) and pt.is_struct(other):
        there = {field.name: field for field in other}
        return pa.struct([*(_both(field, there.pop(field.name, field), format) for field in one), *there.values()])
    if is_list(one) and is_list(other):
        return pa.list_(_joined(one.value_type, other.value_type, format))
    if format is Format.TFRECORDS:
        # A feature has one value, or several.
        return other if is_list(other) and other.value_type.equals(one) else one
    numbers = [found for type in (one, other) if (found := _number(type)) is not None]
    rounded = any(pt.is_run_end_encoded(type) and not type.equals(NAMES_ALONE) for type in (one, other))
    if len(numbers) == 2 and any(map(pt.is_floating, numbers)):
        if rounded:
            raise _Rounded
        return pa.float64() if any(map(pt.is_integer, numbers)) else numbers[0]
    if len(numbers) == 2 and numbers[0].equals(numbers[1]):
        return exact(numbers[0])  # of one of them
    return pa.string() if format is Format.CSV else one


def _number(type: pa.DataType) -> pa.DataType | None:
    """Returns the type of numbers, also of what stands for one; None, if it is none of numbers."""
    if type.equals(NAMES_ALONE):
        return pa.float64()
    type = type.value_type if pt.is_run_end_encoded(type) else type
    return type if pt.is_integer(type) or pt.is_floating(type) else None


def _refuse_mixed(schema: pa.Schema, first: str) -> None:
    """Raises ConfigError for a column that was asked for by name, where files have no type in common."""
    for field in schema:
        if json_text(field):
            raise ConfigError(
                f"column {field.name!r} has no single type: in some files there are whole numbers that a float would "
                f"round, and in others floats, {first} is one of them; declare a type for {field.name!r}"
            )


def say_quoted(schema: pa.Schema) -> pa.Schema:
    """Warns of columns with texts that are read as JSON, and so in quotes; returns the schema without what says so."""
    fields = []
    for field in schema:
        if json_text(field) and (types := field.metadata.get(TEXTS_AND)) is not None:
            get_logger().warning(
                "a column has texts and other values, so all of them are read as JSON, the texts in quotes",
                column=field.name,
                types=types.decode(),
                next=f"then what does not fit is a bad row: {DECLARE}",
            )
            field = field.with_metadata(JSON_TEXT)
        fields.append(field)
    return pa.schema(fields, schema.metadata)


def refuse_other_types(
    what: str, columns: Sequence[str], held: pa.Schema, files: Sequence[Object], *, nulls_for_missing: bool
) -> None:
    """Raises ConfigError, in a message that begins with `what`, if one of these columns is of a type in some files that
    cannot be read as the one in `held`; or is missing, unless that is read as null.

    Reads the footers of Parquet files, of which `files` are some; one that cannot be read is left to who reads it all.
    """
    there = frozenset(held.names)
    columns = [name for name in columns if name in there]
    step = -(-len(files) // LOOKED_AT) or 1
    looked_at = files[::step]
    if not columns:
        return
    with ThreadPoolExecutor(READERS) as pool:
        schemas = list(pool.map(_schema_of, looked_at))
    for name in columns:
        expected = held.field(name).type
        others: dict[str, list[str]] = {}
        for item, found in zip(looked_at, schemas, strict=True):
            if found is not None and (other := _other(found, name, expected, nulls_for_missing)):
                others.setdefault(other, []).append(item.uri)
        if others:
            told = "; ".join(f"{other} in {', '.join(_few(uris))}" for other, uris in others.items())
            near = "" if "missing" not in others else did_you_mean(name, (schemas[0] or held).names)
            raise ConfigError(
                f"{what}: the key {name!r} is read as {expected}, and it is {told}{near}; keys of several types cannot "
                "be sorted: write those files again with one type, or leave them out"
            )


def _few(uris: Sequence[str]) -> Iterator[str]:
    yield from uris[:_EXAMPLES]
    if len(uris) > _EXAMPLES:
        yield f"{len(uris) - _EXAMPLES:,} more"


def _other(found: pa.Schema, name: str, expected: pa.DataType, nulls_for_missing: bool) -> str:
    """Returns what a column is there, if it cannot be read as expected; else nothing."""
    indices = found.get_all_field_indices(name)
    if not indices:
        return "" if nulls_for_missing else "missing"
    type = plain(found.field(indices[0]).type)
    return "" if widens(type, plain(expected)) else str(type)


def warn_of_misfits(files: Iterable[Object], held: pa.Schema, encoding: Callable[[str], Encoding]) -> None:
    """Warns of those of some Parquet files that cannot be read as `held`: the shards of such files fail, perhaps hours
    later. Reads their footers."""
    looked_at, problems = 0, []
    for item, found in ahead(_schema_of, files, READERS):
        looked_at += 1
        try:
            if found is not None:
                refuse_mismatch(item.uri, found, held, encoding(item.uri))
        except SchemaMismatch as error:
            problems.append(str(error))
    if problems:
        get_logger().warning(
            "some inputs have other columns than the first one; their shards will fail",
            found=f"{len(problems)} of {looked_at} that were looked at",
            error=problems[0],
        )


def _schema_of(item: Object) -> pa.Schema | None:
    try:
        with open_store(item.uri).open(item) as stream:
            metadata = pq.read_metadata(pa.PythonFile(stream, mode="r"))
    except (pa.ArrowException, OSError, StorageError):
        return None
    return metadata.schema.to_arrow_schema() if metadata.num_rows else None
