"""Reads rows from files of any format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from curate.arrow.batches import rechunk
from curate.arrow.recast import has_text
from curate.arrow.sizes import per_schema
from curate.arrow.unknown import all_nullable
from curate.errors import ConfigError
from curate.formats.encoding import Format, ReadAs
from curate.formats.file_columns import file_columns, filled_in, with_file_columns
from curate.formats.file_slice import FileSlice
from curate.formats.read.binary import BINARY_SCHEMA, read_binary
from curate.formats.read.csv import read_csv, sample_csv
from curate.formats.read.images import image_schema, read_image
from curate.formats.read.json_schema import missing_column
from curate.formats.read.json_values import readable
from curate.formats.read.jsonl import read_jsonl, sample_jsonl
from curate.formats.read.npy import read_npy, sample_npy
from curate.formats.read.parquet import read_parquet, sample_parquet
from curate.formats.read.text import LINES_SCHEMA, read_lines, read_text, sample_text
from curate.formats.read.tfrecords import feature_type, read_tfrecords, sample_tfrecords
from curate.formats.read.webdataset import read_webdataset, sample_webdataset
from curate.objects.bad_line import OnBadRow, OnBlankLine, OnOtherKeys, ignored
from curate.objects.stream import BLOCK_BYTES
from curate.tasks.shard import SliceKind

SAMPLED_FILES = 256
"""Files of a format, empty ones left out, that are looked into for its schema, until one has rows."""


def sample_schema(
    file: FileSlice, wanted: Mapping[str, pa.DataType | None] | None = None, json_bytes: int = BLOCK_BYTES
) -> pa.Schema:
    """Returns the schema to hold, from the first MiB of the file (decompressed), of JSON lines from the first that
    are so long together; or from its footer (Parquet).

    `wanted` None means all columns; otherwise these, in this order, and a type given is held instead of what is
    inferred. A file without rows gives one that is empty, or of no rows: sample another. Raises ConfigError for a
    wanted column that is missing or has no single type, CorruptInput for a file that cannot be read.

    Nothing is read where the schema is known: it was declared, or is the same for all files of the format.
    """
    how = file.how
    if how is not None and (known := known_schema(how)) is not None:
        return _part(file.uri, known, wanted)
    own = file_columns(how).names
    asked = None if wanted is None else {name: type for name, type in wanted.items() if name not in own}
    found = _sampled(file, asked, json_bytes)
    if not own or not len(found):
        return found
    made = with_file_columns(pa.schema([field for field in found if field.name not in own]), how)
    made = made if wanted is None else pa.schema([made.field(name) for name in wanted])
    return made.with_metadata(found.metadata)


def _sampled(file: FileSlice, wanted: Mapping[str, pa.DataType | None] | None, json_bytes: int) -> pa.Schema:
    """Returns the columns that a file has inside."""
    match file.encoding.format:
        case Format.PARQUET:
            return sample_parquet(file, wanted)
        case Format.JSONL:
            return sample_jsonl(file, wanted, json_bytes)
        case Format.CSV:
            return sample_csv(file, wanted)
        case Format.TEXT:
            return sample_text(file.uri, wanted)
        case Format.WEBDATASET:
            return sample_webdataset(file, wanted)
        case Format.TFRECORDS:
            return sample_tfrecords(file, wanted)
        case Format.NUMPY:
            return _declared(_part(file.uri, sample_npy(file), wanted), wanted)
        case Format.BINARY | Format.IMAGE:
            raise ValueError(f"{file.encoding.format} cannot be detected; it must be given")


def known_schema(how: ReadAs) -> pa.Schema | None:
    """Returns the schema of files that are read so where no file has to be looked at; else None."""
    if how.schema is not None:
        return how.schema
    match how.format:
        case Format.TEXT:
            return with_file_columns(LINES_SCHEMA, how)
        case Format.BINARY:
            return with_file_columns(BINARY_SCHEMA, how)
        case Format.IMAGE:
            return with_file_columns(image_schema(how), how)
    return None


def check_declared(method: str, format: Format, schema: Any) -> pa.Schema:
    """Returns a schema that was declared for files of a format, every field nullable. Raises ConfigError."""
    if not isinstance(schema, pa.Schema) or not len(schema):
        raise ConfigError(f"{method}(schema={schema!r}): expected a pyarrow.Schema with a column")
    times = Counter(schema.names)
    for field in schema:
        if times[field.name] > 1:
            raise ConfigError(f"{method}(schema=...): column {field.name!r} occurs {times[field.name]} times")
        if not _readable(format, field.type):
            raise ConfigError(
                f"{method}(schema=...): column {field.name!r} is {field.type}, which {format} cannot hold"
            )
    return all_nullable(schema.remove_metadata())


def _readable(format: Format, type: pa.DataType) -> bool:
    if format is Format.JSONL:
        return readable(type)
    if format is Format.TFRECORDS:
        return feature_type(type) is not None
    return format is not Format.CSV or has_text(type)


def _part(uri: str, schema: pa.Schema, wanted: Mapping[str, pa.DataType | None] | None) -> pa.Schema:
    if wanted is None:
        return schema
    there = dict.fromkeys(schema.names)
    for name in wanted:
        if name not in there:
            raise missing_column(uri, name, list(there))
    return pa.schema([schema.field(name) for name in wanted])


def _declared(schema: pa.Schema, wanted: Mapping[str, pa.DataType | None] | None) -> pa.Schema:
    """Returns a schema with the types that are wanted."""
    return pa.schema([field.with_type((wanted or {}).get(field.name) or field.type) for field in schema])


def read(
    file: FileSlice,
    schema: pa.Schema,
    batch_rows: int,
    on_bad_row: OnBadRow,
    on_blank_line: OnBlankLine = ignored,
    on_other_keys: OnOtherKeys | None = None,
) -> Iterator[pa.Table]:
    """Yields the slice's rows in tables of `batch_rows` rows (the last one smaller, none empty) with exactly `schema`,
    every field of which is nullable by then: a null in a field that is not makes a bad row.

    Memory is bounded by a block of about a MiB (Parquet: by a row group's wanted columns) and one batch. Every row that
    cannot be read or does not fit goes to `on_bad_row`, in order, before the rows behind it are handed out;
    likewise the number of each blank line that is left out, to `on_blank_line`. `on_other_keys` is told how many rows
    of JSON have keys that are no columns, and those of the first one.

    Raises CorruptInput if the file is gone, replaced, truncated or not what its name says; SchemaMismatch (Parquet,
    CSV) for a missing column or one whose type does not widen to the held one; ValueError for a slice that the encoding
    does not have. TransientStorageError and PermissionDenied pass through.
    """
    _check_slice(file)
    how = file.how
    of_file = file_columns(how).names
    # One object for all shards: what is known of a schema is kept by the object.
    inside = pa.schema([field for field in schema if field.name not in of_file]) if of_file else _fields_of(schema)
    found: Iterator[pa.Table]
    match file.encoding.format:
        case _ if not len(inside) and not file.object.size:
            found = iter(())  # no file says a column, and this one has nothing
        case Format.PARQUET:
            found = read_parquet(file, inside, on_bad_row)
        case Format.JSONL:
            found = read_jsonl(file, inside, on_bad_row, on_blank_line, on_other_keys)
        case Format.TEXT if how is not None:
            found = read_lines(file, on_bad_row, on_blank_line)
        case Format.TEXT:
            found = read_text(file, inside, on_bad_row, on_blank_line)
        case Format.CSV:
            found = read_csv(file, inside, on_bad_row)
        case Format.BINARY:
            found = read_binary(file, inside)
        case Format.WEBDATASET:
            found = read_webdataset(file, inside, on_bad_row, on_other_keys)
        case Format.TFRECORDS:
            found = read_tfrecords(file, inside, on_bad_row)
        case Format.NUMPY:
            found = read_npy(file, inside)
        case Format.IMAGE:
            found = read_image(file, inside, on_bad_row)
    rows = rechunk(found, batch_rows)
    return rows if len(inside) == len(schema) else filled_in(file.uri, rows, all_nullable(schema), how)


@per_schema
def _fields_of(schema: pa.Schema) -> pa.Schema:
    return pa.schema(list(schema))


def _check_slice(file: FileSlice) -> None:
    if file.kind is SliceKind.WHOLE:
        return
    needed = SliceKind.ROW_GROUPS if file.encoding.format is Format.PARQUET else SliceKind.BYTES
    if file.kind is not needed or not file.encoding.splittable:
        raise ValueError(f"{file.uri}: {file.encoding} has no slices of kind {file.kind.value!r}")
