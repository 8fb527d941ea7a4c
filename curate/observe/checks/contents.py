"""Reads whole files that curate wrote, and compares them with their records and checksums.

Bytes are compared with checksums: in Parquet those of each page and of the footer (headers of pages have none: they
fail to parse, or hold statistics that are there once more in the footer), in JSON lines the one in the record, and for
quarantined rows their file's name. Memory is bounded as for reading an input.
"""

from __future__ import annotations

import csv
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from curate.arrow.canonical import stored_schema
from curate.errors import CorruptInput, SchemaMismatch
from curate.exchange.run_file import RunFile
from curate.formats.read.npy import ArrayHeader
from curate.formats.read.parquet import decode_rows
from curate.formats.read.parquet_file import broken, open_parquet
from curate.objects.compress import STORED
from curate.objects.quarantine import content_hash
from curate.objects.record import IGNORE_REST, Carried, OutputFormat
from curate.objects.stream import BLOCK_BYTES, Codec, DecompressedStream, StoredStream, buffered
from curate.objects.tar import samples
from curate.objects.tf_example import WRONG_CHECKSUM, framed
from curate.storage.protocol import Object, Store
from curate.tasks.books import Books

PAGES = 32
"""Pages of a run file that are read at a time, of 256 KiB each."""
RECORD_FIELDS = frozenset({"job", "shard", "fingerprint", "rows", "counters", "quarantine"})
_MAGIC = b"PAR1"
_STREAM_BYTES = 1 << 20
"""Stored bytes of a column chunk that are held at a time."""


def output_schema(store: Store, object: Object, format: OutputFormat, codec: str) -> pa.Schema | None:
    """Returns the schema that an output has: the types of JSON lines and CSV, which say none, are null.

    None if there is no row to tell, and for formats of one column, or of rows that may lack any. Raises CorruptInput.
    """
    if format in IGNORE_REST or format is OutputFormat.TFRECORDS:
        return None
    if format is OutputFormat.PARQUET:
        with StoredStream(store, object) as stored:
            return open_parquet(stored).schema_arrow.remove_metadata()
    with DecompressedStream(store, object, _codec(codec)) as source:
        if format is OutputFormat.CSV:
            names = _Rows(object.uri).names(source.read(BLOCK_BYTES))
            return pa.schema([(name, pa.null()) for name in names]) if names else None
        for lines in _lines(source):
            for line in lines:
                return pa.schema([(name, pa.null()) for name in _row(object.uri, 1, line)])
    return None


def count_rows(
    store: Store, object: Object, carried: Carried, format: OutputFormat, codec: str, held: pa.Schema | None
) -> int:
    """Returns the rows of an output, all of it read. Raises CorruptInput for what is not as it was written,
    SchemaMismatch for another schema than `held`: columns, and in Parquet types."""
    if format is OutputFormat.PARQUET:
        return _parquet_rows(store, object, held)
    return _read_rows(store, object, carried, codec, _counting(format, None if held is None else held.names))


def _counting(format: OutputFormat, names: Sequence[str] | None) -> Callable[[DecompressedStream], int]:
    match format:
        case OutputFormat.NUMPY:
            return lambda source: ArrayHeader(source.uri, buffered(source)).rows
        case OutputFormat.WEBDATASET:
            return lambda source: _sound((source.uri, one.broken) for one in samples(source))
        case OutputFormat.TFRECORDS:
            return lambda source: _sound((source.uri, "" if sound else WRONG_CHECKSUM) for _, sound in framed(source))
        case OutputFormat.CSV:
            return partial(_csv_rows, names)
        case _:
            return partial(_json_rows, names)


def check_bytes(store: Store, object: Object, carried: Carried) -> None:
    """Reads the bytes of an output of any format. Raises CorruptInput for those that are not as they were written."""
    crc = _Crc32(carried.data_bytes)
    stored = StoredStream(store, object)
    with stored:
        while data := stored.read(BLOCK_BYTES):
            crc.update(data)
    _check_crc32(object, crc, carried)


def count_quarantined(store: Store, object: Object) -> tuple[int, str]:
    """Returns the rows of a file of quarantined rows, and the hash of its bytes, which is its name.

    Raises CorruptInput.
    """
    digest, rows = content_hash(), 0
    with DecompressedStream(store, object, "zstd", stored=_Tapped(store, object, digest.update)) as source:
        for lines in _lines(source):
            rows += len(lines)
    return rows, digest.hexdigest()


def count_run_rows(store: Store, object: Object) -> int:
    """Returns the rows of a run file, all pages of it read. Raises DamagedRun."""
    file, total = RunFile.open(store, object), 0
    for number, segment in enumerate(file.segments):
        starts = [0, *np.cumsum(segment.rows).tolist()]
        for start in range(0, len(segment.rows), PAGES):
            stop = min(len(segment.rows), start + PAGES)
            total += file.read(number, starts[start], starts[stop]).num_rows
    return total


def wrong_record(record: Mapping[str, Any], job: Mapping[str, Any], shard: str) -> str:
    """Returns why a record is not that of this shard of a job; empty if it is."""
    if differing := RECORD_FIELDS ^ (record.keys() - {"seed"}):
        return f"its record lacks, or has beyond what curate writes: {', '.join(sorted(differing))}"
    told = {"job": job["job"], "fingerprint": job["fingerprint"], "shard": shard}
    # Only a job whose first run chose a seed has one, and outputs of earlier versions do not say it.
    for name, value in (told | ({"seed": job.get("seed")} if "seed" in record else {})).items():
        if record[name] != value:
            return f"its record is that of {name} {record[name]!r}, expected {value!r}"
    try:
        Books.parse(record["rows"], record["counters"]).balanced()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"the row counts in its record are not valid: {error!r}"
    return ""


class _Tapped(StoredStream):
    """Stored bytes that something else sees too. They must be read from the beginning, in order."""

    def __init__(self, store: Store, object: Object, tap: Callable[[bytes], object]) -> None:
        super().__init__(store, object)
        self._tap = tap

    def read(self, size: int = -1) -> bytes:
        """Returns up to `size` bytes; none at the end."""
        data = super().read(size)
        self._tap(data)
        return data


class _Crc32:
    """The checksum of the first bytes that it is given."""

    def __init__(self, size: int) -> None:
        self.value = 0
        self.left = size

    def update(self, data: bytes) -> None:
        """Takes further bytes; those behind the first ones do not count."""
        counted = data[: self.left]
        self.value = zlib.crc32(counted, self.value)
        self.left -= len(counted)


def _parquet_rows(store: Store, object: Object, held: pa.Schema | None) -> int:
    with StoredStream(store, object) as stored, broken(stored):
        if stored.read(len(_MAGIC)) != _MAGIC:
            raise CorruptInput(f"{object.uri}: does not begin with {_MAGIC!r}")
        file = open_parquet(stored, _STREAM_BYTES)
        metadata, found = file.metadata, file.schema_arrow.remove_metadata()
        # Of inputs without a row, before there was one, nobody knew the columns, or their types.
        if held is not None and (metadata.num_rows or found.names not in ([], held.names)):
            _check_schema(object.uri, found, stored_schema(held))
        # Nothing is done with the rows, and many files are read at once: an eighth of a batch costs no time.
        size = max(1, decode_rows(metadata, range(metadata.num_row_groups)) // 8)
        rows = 0
        for batch in file.iter_batches(size, use_threads=False):
            rows += batch.num_rows
        if rows != metadata.num_rows:
            raise CorruptInput(f"{object.uri}: {rows:,} rows can be read, its footer says {metadata.num_rows:,}")
        return rows


def _check_schema(uri: str, found: pa.Schema, held: pa.Schema) -> None:
    if not found.equals(held):
        raise SchemaMismatch(f"{uri}: its columns are {_columns(found)}; expected {_columns(held)}")


def _columns(schema: pa.Schema) -> str:
    return (
        ", ".join(f"{field.name!r} {field.type}{'' if field.nullable else ' not null'}" for field in schema) or "none"
    )


def _read_rows(
    store: Store, object: Object, carried: Carried, codec: str, rows_of: Callable[[DecompressedStream], int]
) -> int:
    """Returns what `rows_of` counts in an output, all stored bytes of which are held against their checksum."""
    crc = _Crc32(carried.data_bytes)
    with DecompressedStream(store, object, _codec(codec), stored=_Tapped(store, object, crc.update)) as source:
        rows = rows_of(source)
        while source.read(BLOCK_BYTES):
            pass
    _check_crc32(object, crc, carried)
    return rows


def _json_rows(names: Sequence[str] | None, source: DecompressedStream) -> int:
    rows = 0
    for lines in _lines(source):
        for line in lines:
            rows += 1
            found = _row(source.uri, rows, line)
            if names is not None and found != names:
                raise SchemaMismatch(
                    f"{source.uri}: row {rows:,} has the columns {', '.join(map(repr, found)) or 'none'}; "
                    f"expected {', '.join(map(repr, names)) or 'none'}"
                )
    return rows


def _check_crc32(object: Object, crc: _Crc32, carried: Carried) -> None:
    if carried.data_crc32 is not None and (crc.left or crc.value != carried.data_crc32):
        raise CorruptInput(
            f"{object.uri}: the checksum of its rows is {crc.value}, its record says {carried.data_crc32}"
        )


def _csv_rows(names: Sequence[str] | None, source: DecompressedStream) -> int:
    rows = _Rows(source.uri)
    while block := source.read(BLOCK_BYTES):
        if not rows.ends and names is not None and (found := rows.names(block)) != names:
            raise SchemaMismatch(
                f"{source.uri}: its columns are {', '.join(map(repr, found)) or 'none'}; expected "
                f"{', '.join(map(repr, names)) or 'none'}"
            )
        rows.take(block)
    if rows.quoted:
        raise CorruptInput(f"{source.uri}: a quote is not closed")
    return max(0, rows.ends - 1)


def _sound(rows: Iterable[tuple[str, str]]) -> int:
    """Returns how many rows there are, each with where it is and what is wrong with it. Raises CorruptInput."""
    number = 0
    for number, (uri, reason) in enumerate(rows, 1):
        if reason:
            raise CorruptInput(f"{uri}: row {number:,} cannot be read: {reason}")
    return number


class _Rows:
    """Counts the rows of CSV as it is written: their ends are the line feeds outside of quotes."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self.ends = 0
        self.quoted = False

    def take(self, block: bytes) -> None:
        """Counts those of further bytes."""
        # A quote in a value is two, between which nothing is outside.
        for index, part in enumerate(block.split(b'"')):
            self.quoted ^= index > 0
            if not self.quoted:
                self.ends += part.count(b"\n")

    def names(self, block: bytes) -> list[str]:
        """Returns the columns of a file that begins with these bytes. Raises CorruptInput."""
        try:
            return next(csv.reader(block.decode(errors="surrogateescape").splitlines(keepends=True), strict=True), [])
        except csv.Error as error:
            raise CorruptInput(f"{self._uri}: its header is not CSV: {error}") from error


def _row(uri: str, number: int, line: bytes) -> list[str]:
    """Returns the columns of a line."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise CorruptInput(f"{uri}: row {number:,} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise CorruptInput(f"{uri}: row {number:,} is not an object")
    return list(row)


def _lines(source: DecompressedStream) -> Iterator[list[bytes]]:
    """Yields all lines, some at a time. Raises CorruptInput if the last one has no end: each is written with one."""
    rest = b""
    while block := source.read(BLOCK_BYTES):
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        yield lines
    if rest:
        raise CorruptInput(f"{source.uri}: its last line has no end")


def _codec(codec: str) -> Codec | None:
    return None if codec == STORED else "gzip" if codec == "gzip" else "zstd"
