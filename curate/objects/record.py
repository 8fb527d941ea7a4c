"""The record of a shard, carried by its output where ordinary readers do not look.

    Parquet    key-value metadata "curate"
    .gz        trailing empty gzip members; the record is in their extra field (RFC 1952), subfield "CU"
    .zst       a trailing skippable frame (RFC 8878, 3.1.2)
    .tar .npy  the same frame: readers of these formats ignore what lies behind their end; .bin, .idx and .mds, too;
               so do those of .ds.metadata, which take it for text
    .run       in front of the last bytes, which say where the parts of the file's end are

These trailers end in their own length, so that one small read of the tail finds them. A record is canonical JSON: its
bytes depend on its values only. With it come checksums: its own; behind JSON lines that of all stored bytes before it,
for neither a gzip extra field nor a skippable frame has one, and Arrow's zstd stream writes none; in Parquet that of
the footer, for pages have theirs; in run files none, as theirs are in the index of the pages.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from curate.dataclass import dataclass
from curate.errors import ConfigError, CorruptInput, WrongRecord
from curate.ledger import validation
from curate.objects.stream import naming
from curate.storage.protocol import Object, Store


class OutputFormat(StrEnum):
    """What outputs are written as."""

    PARQUET = "parquet"
    JSONL = "jsonl"
    CSV = "csv"
    WEBDATASET = "webdataset"
    """Offered by a method of its own, as are the next two."""
    TFRECORDS = "tfrecords"
    NUMPY = "numpy"
    """Arrays of one column."""
    MEMMAP = "memmap"
    """All tokens of a shard as one array of numpy."""
    MEGATRON = "megatron"
    """A `.bin` of tokens with its `.idx`, of documents or sequences."""
    DATATROVE = "datatrove"
    """A `.ds` of tokens with its `.ds.index` and `.ds.metadata`."""
    MDS = "mds"
    """Shards of mosaicml-streaming."""
    SINK = "sink"
    """What a class of the user's makes of rows: offered by a method of its own."""
    RUN = "run"
    """Run files of exchanges: for curate alone, so that no job and no method of a dataset offers them."""


OFFERED = (OutputFormat.PARQUET, OutputFormat.JSONL, OutputFormat.CSV)
"""Formats that outputs can be asked for in."""
OF_TOKENS = (OutputFormat.MEMMAP, OutputFormat.MEGATRON, OutputFormat.DATATROVE, OutputFormat.MDS)
"""Formats that outputs of tokens can be asked for in, beside these."""
IGNORE_REST = (OutputFormat.WEBDATASET, OutputFormat.NUMPY, *OF_TOKENS, OutputFormat.SINK)
"""Formats whose readers ignore what lies behind the end: outputs that are not compressed have their record there."""
PARQUET_KEY = "curate"
RECORD_CRC32 = "record_crc32"
"""Checksum of the record without this field."""
DATA_CRC32 = "data_crc32"
"""Checksum of the stored bytes in front of the record's trailer."""
FOOTER_CRC32 = "footer_crc32"
"""Checksum of a Parquet footer, eight hex digits, which are zeros in what it is made of."""
_TAIL_BYTES = (16 << 10) + 64
"""Bytes of the first read: the footer of some fifty columns, or a record of that length; and checksums."""


# Gzip: header (10), length of the extra field (2), subfields; then an empty deflate stream, CRC and size.
_GZIP_HEADER = b"\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff"
_GZIP_END = b"\x03\x00" + bytes(8)
_GZIP_PART = 60_000
_GZIP_LENGTH = struct.Struct("<2sHI")  # the last subfield: bytes from the first trailing member to the end
_GZIP_TAIL = _GZIP_LENGTH.size + len(_GZIP_END)
_ZSTD_HEADER = struct.Struct("<II")
_ZSTD_MAGIC = 0x184D2A5C
_ZSTD_TAIL = struct.Struct("<I8s")
_ZSTD_MARK = b"curate\x00\x01"


RUN_VERSION = 1
_RUN_MARK = b"curateR\x00"
_RUN_SUMMED = struct.Struct("<QQQI")  # bytes of the index, of the schema and of the record; version
_RUN_END = struct.Struct("<QI8s")  # checksum of all that the end of the file is made of, before this; zeros; mark
RUN_TAIL = _RUN_SUMMED.size + _RUN_END.size
"""Bytes that every run file ends in."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What an output says of itself."""

    record: dict[str, Any]
    data_bytes: int
    """Stored bytes in front of what holds the record: the trailer, or the footer."""
    data_crc32: int | None
    """Their checksum; None where the format has its own."""


def encode(record: Mapping[str, Any], **checksums: Any) -> bytes:
    """Returns the record with its own checksum and others as canonical JSON: keys sorted, no spaces."""
    return _canonical({**record, RECORD_CRC32: zlib.crc32(_canonical(record)), **checksums})


def _canonical(record: Mapping[str, Any]) -> bytes:
    return orjson.dumps(dict(record), option=orjson.OPT_SORT_KEYS)


class _SenselessError(ValueError):
    """A record says what no record says."""


def _decode(data: bytes) -> tuple[dict[str, Any], int | None, str | None]:
    """Returns the record, and the checksums of data and footer. Raises ValueError if its own is another."""
    record = orjson.loads(data)
    if not isinstance(record, dict):
        raise ValueError("not an object")
    expected, rest, footer = (record.pop(name, None) for name in (RECORD_CRC32, DATA_CRC32, FOOTER_CRC32))
    # A record of an earlier curate has none.
    if expected is not None and (found := zlib.crc32(_canonical(record))) != expected:
        raise ValueError(f"its checksum is {found}, expected {expected}")
    if name := validation.wrong(record, validation.RECORD):
        raise _SenselessError(f"its field {name!r} is not valid")
    return record, rest, footer


def gzip_trailer(record: Mapping[str, Any], data_crc32: int) -> bytes:
    """Returns empty gzip members holding the record; behind gzip data they add nothing to what it unpacks to."""
    data = encode(record, data_crc32=data_crc32)
    parts = [data[at : at + _GZIP_PART] for at in range(0, len(data), _GZIP_PART)]
    fixed = len(_GZIP_HEADER) + 2 + 4 + _GZIP_TAIL
    length = len(data) + len(parts) * fixed
    return b"".join(
        _GZIP_HEADER
        + struct.pack("<H2sH", 4 + len(part) + _GZIP_LENGTH.size, b"CU", len(part))
        + part
        + _GZIP_LENGTH.pack(b"CL", 4, length)
        + _GZIP_END
        for part in parts
    )


def _gzip_length(tail: bytes) -> int | None:
    if len(tail) < _GZIP_TAIL or not tail.endswith(_GZIP_END):
        return None
    mark, size, length = _GZIP_LENGTH.unpack_from(tail, len(tail) - _GZIP_TAIL)
    return int(length) if (mark, size) == (b"CL", 4) else None


def _gzip_record(trailer: bytes) -> bytes:
    at, parts = 0, []
    while at < len(trailer):
        extra, mark, size = struct.unpack_from("<H2sH", trailer, at + len(_GZIP_HEADER))
        if trailer[at : at + len(_GZIP_HEADER)] != _GZIP_HEADER or mark != b"CU" or extra != 12 + size:
            raise ValueError("no gzip member where one was expected")
        begin = at + len(_GZIP_HEADER) + 6
        parts.append(trailer[begin : begin + size])
        at = begin + size + _GZIP_TAIL
    return b"".join(parts)


def zstd_trailer(record: Mapping[str, Any], data_crc32: int, *, text: bool = False) -> bytes:
    """Returns a skippable zstd frame holding the record; it goes behind the data (Polars fails on a leading one).

    `text`: spaces behind the record make its size one whose bytes are ASCII, so that the whole frame is UTF-8.
    """
    data = encode(record, data_crc32=data_crc32)
    if text:
        size = len(data)
        while not (_ZSTD_TAIL.pack(size, b"") + _ZSTD_TAIL.pack(size + _ZSTD_TAIL.size, b"")).isascii():
            size += 1
        data = data.ljust(size)
    content = data + _ZSTD_TAIL.pack(len(data), _ZSTD_MARK)
    return _ZSTD_HEADER.pack(_ZSTD_MAGIC, len(content)) + content


def _zstd_length(tail: bytes) -> int | None:
    if len(tail) < _ZSTD_TAIL.size:
        return None
    length, mark = _ZSTD_TAIL.unpack_from(tail, len(tail) - _ZSTD_TAIL.size)
    return int(length) + _ZSTD_HEADER.size + _ZSTD_TAIL.size if mark == _ZSTD_MARK else None


def _zstd_record(trailer: bytes) -> bytes:
    magic, size = _ZSTD_HEADER.unpack_from(trailer)
    if magic != _ZSTD_MAGIC or size != len(trailer) - _ZSTD_HEADER.size:
        raise ValueError("no skippable zstd frame where one was expected")
    return trailer[_ZSTD_HEADER.size : -_ZSTD_TAIL.size]


_FOOTER_MARK = f'"{FOOTER_CRC32}":"'.encode()
_NO_CRC32 = "0" * 8


def parquet_record(record: Mapping[str, Any]) -> str:
    """Returns the record for a footer that is then sealed."""
    return encode(record, footer_crc32=_NO_CRC32).decode()


def seal_footer(footer: bytes) -> bytes:
    """Returns a footer, with a `parquet_record` among its metadata, with its checksum filled in."""
    return _with_crc32(footer, f"{zlib.crc32(footer):08x}")


def _with_crc32(footer: bytes, digits: str) -> bytes:
    # The last one: before it come statistics, which may hold anything. In the record itself quotes are escaped.
    at = footer.rindex(_FOOTER_MARK) + len(_FOOTER_MARK)
    return footer[:at] + digits.encode() + footer[at + len(digits) :]


def _check_footer(footer: bytes, expected: str) -> None:
    found = f"{zlib.crc32(_with_crc32(footer, _NO_CRC32)):08x}"
    if found != expected:
        raise ValueError(f"the checksum of the footer is {found}, expected {expected}")


def _parquet_length(tail: bytes) -> int | None:
    if len(tail) < 12 or not tail.endswith(b"PAR1"):
        raise ValueError("it does not end in a Parquet footer")
    return int.from_bytes(tail[-8:-4], "little") + 8


def _parquet_record(footer: bytes) -> bytes | None:
    # The footer alone, behind a magic number, passes for a file whose metadata can be read.
    metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + footer)).metadata or {}
    return metadata.get(PARQUET_KEY.encode())


def run_end(index: bytes, schema: bytes, record: Mapping[str, Any]) -> bytes:
    """Returns what a run file ends in, behind its pages: index, schema, record, and where they are."""
    data = encode(record)
    parts = b"".join((index, schema, data, _RUN_SUMMED.pack(len(index), len(schema), len(data), RUN_VERSION)))
    return parts + _RUN_END.pack(xxhash.xxh3_64_intdigest(parts), 0, _RUN_MARK)


def run_sizes(tail: bytes) -> tuple[int, int, int] | None:
    """Returns the bytes of index, schema and record of the run file that ends in `tail`; None if it is none.

    Raises ValueError for a version that this curate does not read.
    """
    if len(tail) < RUN_TAIL or not tail.endswith(_RUN_MARK):
        return None
    index, schema, record, version = _RUN_SUMMED.unpack_from(tail, len(tail) - RUN_TAIL)
    if version != RUN_VERSION:
        raise ValueError(f"it is of version {version}, expected {RUN_VERSION}")
    return index, schema, record


def check_run_end(end: bytes) -> None:
    """Raises ValueError if a whole end of a run file is not what `run_end` made."""
    expected, zeros, _ = _RUN_END.unpack_from(end, len(end) - _RUN_END.size)
    found = xxhash.xxh3_64_intdigest(memoryview(end)[: -_RUN_END.size])
    if found != expected or zeros:
        raise ValueError(f"the checksum of its index is {found:016x}, expected {expected:016x}")


def _run_length(tail: bytes) -> int | None:
    sizes = run_sizes(tail)
    return None if sizes is None else sizes[2] + RUN_TAIL


def _run_record(trailer: bytes) -> bytes:
    return trailer[:-RUN_TAIL]


def run_record(trailer: bytes) -> dict[str, Any]:
    """Returns the record at the end of a run file. Raises ValueError if it is broken."""
    return _decode(_run_record(trailer))[0]


def read_record(store: Store, object: Object, format: OutputFormat, codec: str) -> dict[str, Any] | None:
    """Returns the record that an output carries; None if it carries none (somebody else wrote it).

    One read of the tail, a second if the record is longer than 16 KiB. Raises CorruptInput if what is there is broken,
    and if the object is gone.
    """
    carried = read_carried(store, object, format, codec)
    return None if carried is None else carried.record


def read_carried(store: Store, object: Object, format: OutputFormat, codec: str) -> Carried | None:
    """Returns the record that an output carries with what it says of the rest; None, and raises, as `read_record`."""
    length_of: Callable[[bytes], int | None]
    record_of: Callable[[bytes], bytes | None]
    if format is OutputFormat.PARQUET:
        length_of, record_of = _parquet_length, _parquet_record
    elif format is OutputFormat.RUN:
        length_of, record_of = _run_length, _run_record
    elif codec == "gzip":
        length_of, record_of = _gzip_length, _gzip_record
    elif codec == "zstd" or format in IGNORE_REST:
        length_of, record_of = _zstd_length, _zstd_record
    else:
        raise ConfigError(f"{format} with codec {codec!r} cannot contain a record")
    if not object.size:
        return None
    try:
        with naming(object.uri):
            tail = store.read(object.uri, -min(_TAIL_BYTES, object.size))
            length = length_of(tail)
            if length is None:
                return None
            if length > object.size:
                raise ValueError(f"its record should be its last {length} bytes, but the object has only {object.size}")
            if length > len(tail):
                tail = store.read(object.uri, -length)
        data = record_of(tail[-length:])
        if data is None:
            return None
        record, data_crc32, footer_crc32 = _decode(data)
        if footer_crc32 is not None:
            _check_footer(tail[-length:], footer_crc32)
    except _SenselessError as error:
        raise WrongRecord(f"{object.uri}: its record is not one of curate: {error}") from error
    except (ValueError, struct.error, OSError, pa.ArrowException) as error:
        raise CorruptInput(f"{object.uri}: its record is damaged: {error}") from error
    return Carried(record, object.size - length, data_crc32)
