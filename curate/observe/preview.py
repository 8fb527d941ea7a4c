"""The first rows of an output of any format as lines of JSON; reads only as many as are consumed."""

from __future__ import annotations

import base64
import contextlib
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import orjson
import pyarrow as pa

from curate.arrow.expressions import refuse_unknown
from curate.arrow.types import is_text, is_text_or_binary
from curate.arrow.unknown import all_nullable, told_as_text
from curate.dataclass import replace
from curate.errors import ConfigError, CorruptInput
from curate.formats.encoding import Encoding, Format, ReadAs
from curate.formats.file_slice import FileSlice
from curate.formats.read.csv import read_csv, sample_csv
from curate.formats.read.parquet import decode_rows
from curate.formats.read.parquet_file import broken, open_parquet
from curate.formats.read.webdataset import KEY, NUMBERS, TEXTS, kind_of
from curate.formats.rows import read, sample_schema
from curate.objects.bad_line import RejectedRow
from curate.objects.compress import STORED
from curate.objects.record import OF_TOKENS, OutputFormat
from curate.objects.stream import Codec, StoredStream
from curate.objects.tar import samples
from curate.storage.protocol import Object, Store
from curate.writers.jsonl import json_lines

_STREAM_BYTES = 256 << 10
"""Stored bytes of a column that are read at a time: the first rows of a large output are a small part of it."""
_FIRST_ROWS = 100
NOT_TOLD = (OutputFormat.CSV, OutputFormat.TFRECORDS, OutputFormat.WEBDATASET)
"""Formats that do not tell the schema of their rows: their first rows may have less than later ones."""


def preview(
    store: Store,
    object: Object,
    format: OutputFormat,
    codec: str,
    columns: Sequence[str] | None = None,
    held: pa.Schema | None = None,
    texts: bool = True,
) -> Iterator[bytes]:
    """Yields each row as a line of JSON without its line feed, with all columns or with these, in their order.

    `held` is the schema that the job held its rows to, which formats of `NOT_TOLD` do not tell; None if it is not
    known: values of CSV are texts then. Types that JSON does not have are as in outputs of JSON lines; of formats of
    `NOT_TOLD`, bytes that are text are text, unless they are known to be bytes and no `texts` are wanted. Raises
    CorruptInput; ConfigError for a column that is not there.
    """
    if format is OutputFormat.PARQUET:
        return _parquet(store, object, columns)
    if format is OutputFormat.RUN:
        return _run(store, object, columns)
    if format is OutputFormat.SINK or format in OF_TOKENS:
        told = "by a curate.Datasink" if format is OutputFormat.SINK else f"as {format}"
        raise ConfigError(f"{object.uri} was written {told}: only readers of its format have its rows")
    packed: Codec | None = None if codec == STORED else "gzip" if codec == "gzip" else "zstd"
    held = None if format not in NOT_TOLD or not held else all_nullable(held.remove_metadata())
    file = FileSlice(store, object, Encoding(Format(format.value), packed))
    if format is OutputFormat.JSONL:
        return _jsonl(file, columns)
    if format is OutputFormat.CSV:
        return _csv(file, columns, held)
    read_as = _samples if format is OutputFormat.WEBDATASET else _decoded
    return read_as(file, columns, held, texts or held is None)


def _parquet(store: Store, object: Object, columns: Sequence[str] | None) -> Iterator[bytes]:
    with StoredStream(store, object) as stored:
        file = open_parquet(stored, _STREAM_BYTES)
        names = file.schema_arrow.names
        if not names and not file.metadata.num_rows:
            return  # of an input without rows, before there was one that told columns
        refuse_unknown(object.uri, columns or (), names)
        rows = min(_FIRST_ROWS, decode_rows(file.metadata, range(file.metadata.num_row_groups)))
        batches = file.iter_batches(rows, columns=names if columns is None else list(columns), use_threads=False)
        while True:
            with broken(stored):
                batch = next(batches, None)
            if batch is None:
                return
            table = pa.Table.from_batches([batch])
            try:
                lines = list(json_lines(table if columns is None else table.select(columns)))
            except (pa.ArrowException, ValueError, LookupError) as error:  # texts that are none, times of no calendar
                raise CorruptInput(f"{object.uri}: it has a value that JSON cannot have: {error}") from error
            for line in lines:
                yield line[:-1]


def _run(store: Store, object: Object, columns: Sequence[str] | None) -> Iterator[bytes]:
    # Which imports formats itself.
    from curate.exchange.run_file import RunFile

    file = RunFile.open(store, object)
    if not file.schema.names and not any(segment.rows.sum() for segment in file.segments):
        return
    refuse_unknown(object.uri, columns or (), file.schema.names)
    for number, segment in enumerate(file.segments):
        rows = int(segment.rows.sum())
        for start in range(0, rows, _FIRST_ROWS):
            table = file.read(number, start, min(rows, start + _FIRST_ROWS))
            for line in json_lines(table if columns is None else table.select(columns)):
                yield line[:-1]


def _decoded(file: FileSlice, columns: Sequence[str] | None, held: pa.Schema | None, texts: bool) -> Iterator[bytes]:
    schema = told_as_text(sample_schema(file) if held is None else held)
    if not len(schema):
        columns = None  # there is no row, or one that is told
    refuse_unknown(file.uri, columns or (), schema.names)
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    for table in read(file, wanted, _FIRST_ROWS, partial(broken_row, file.object)):
        for line in json_lines(_with_texts(table) if texts else table):
            yield line[:-1]


def _samples(file: FileSlice, columns: Sequence[str] | None, held: pa.Schema | None, texts: bool) -> Iterator[bytes]:
    # Not read as rows of a schema: what first samples do not have, be it a file or a key of JSON, would not be there.
    schema = sample_schema(file) if held is None else held
    if not len(schema):
        return
    types = {} if held is None else dict(zip(held.names, held.types, strict=True))
    refuse_unknown(file.uri, columns or (), names := list(dict.fromkeys((*schema.names, KEY))))
    absent: dict[str, Any] = dict.fromkeys(names if KEY in schema.names else (KEY, *schema.names))
    with file.open() as source:
        for sample in samples(source):
            if sample.broken:
                broken_row(file.object, RejectedRow(sample.number, sample.broken, sample.key))
            row = absent | {KEY: sample.key}
            for name, data in sample.files.items():
                try:
                    row[name] = _value(name, data, types.get(name), texts)
                except ValueError:
                    reason = f"{name!r} is not what its name says"
                    broken_row(file.object, RejectedRow(sample.number, reason, sample.key))
            yield orjson.dumps(row if columns is None else {name: row[name] for name in columns})


def _value(name: str, data: bytes, type: pa.DataType | None, texts: bool) -> Any:
    """Returns what a file of a sample says, as JSON has it: JSON as it stands, bytes that are no text in base64.

    Raises ValueError for what cannot be read as its type, or as what its name says where the type is not known.
    """
    kind = kind_of(name)
    if kind in NUMBERS or kind == "json":
        if type is None or not is_text_or_binary(type):
            return orjson.loads(data)
    elif type is None and kind in TEXTS:
        return data.decode()
    if type is not None and is_text(type):
        return data.decode()
    if texts:
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode()
    return base64.b64encode(data).decode()


def _with_texts(table: pa.Table) -> pa.Table:
    """Returns rows with their bytes as text, column by column, where all are text, which some formats do not have."""
    for at, field in enumerate(table.schema):
        if pa.types.is_binary(field.type):
            with contextlib.suppress(pa.ArrowInvalid):
                table = table.set_column(at, field.name, table.column(at).cast(pa.string()))
    return table


def broken_row(object: Object, row: RejectedRow) -> None:
    """Raises CorruptInput for a row of an output that cannot be read."""
    raise CorruptInput(f"{object.uri}: row {row.line:,} cannot be read: {row.reason}")


def _jsonl(file: FileSlice, columns: Sequence[str] | None) -> Iterator[bytes]:
    for number, line in enumerate(itertools.chain.from_iterable(file.lines()), 1):
        # Of zstd nothing has a checksum that is looked at here: damaged bytes may come as a line.
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise CorruptInput(f"{file.uri}: row {number:,} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise CorruptInput(f"{file.uri}: row {number:,} is not an object")
        if columns is None:
            yield line
            continue
        refuse_unknown(file.uri, columns or (), list(row))
        yield orjson.dumps({name: row[name] for name in columns})


def _csv(file: FileSlice, columns: Sequence[str] | None, held: pa.Schema | None) -> Iterator[bytes]:
    names = sample_csv(file, None).names
    if not names:
        return
    refuse_unknown(file.uri, columns or (), names)
    # What its first values look like need not hold for those that follow.
    types = {} if held is None else dict(zip(held.names, told_as_text(held).types, strict=True))
    wanted = names if columns is None else dict.fromkeys(columns)
    schema = pa.schema([(name, types.get(name, pa.string())) for name in wanted])
    # Declared, so that a null is none of its texts, which are quoted.
    declared = replace(file, encoding=replace(file.encoding, how=ReadAs(Format.CSV, schema)))
    for table in read_csv(declared, schema, partial(broken_row, file.object)):
        for line in json_lines(table):
            yield line[:-1]
