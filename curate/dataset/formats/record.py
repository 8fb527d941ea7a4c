"""The record of a shard, carried by its output where ordinary readers do not look.

    Parquet    key-value metadata "curate"
    .gz        trailing empty gzip members; the record is in their extra field (RFC 1952), subfield "CU"
    .zst       a trailing skippable frame (RFC 8878, 3.1.2)

Both trailers end in their own length, so that one small read of the tail finds them. A record is canonical JSON: its
bytes depend on its values only. It carries its own checksum, and behind JSON lines that of all stored bytes before it,
for neither a gzip extra field nor a skippable frame has one, and Arrow's zstd stream writes none; in Parquet the pages
have theirs.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from curate.dataset.formats.source import naming
from curate.errors import ConfigError, CorruptInput
from curate.storage.protocol import Object, Store


class OutputFormat(StrEnum):
    """What outputs are written as."""

    PARQUET = "parquet"
    JSONL = "jsonl"


PARQUET_KEY = "curate"
RECORD_CRC32 = "record_crc32"
"""Checksum of the record without this field."""
DATA_CRC32 = "data_crc32"
"""Checksum of the stored bytes in front of the record's trailer."""
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


@dataclass(frozen=True, slots=True)
class Carried:
    """What an output says of itself."""

    record: dict[str, Any]
    data_bytes: int
    """Stored bytes in front of what holds the record: the trailer, or the footer."""
    data_crc32: int | None
    """Their checksum; None where the format has its own."""


def encode(record: Mapping[str, Any]) -> bytes:
    """Returns the record with its checksum as canonical JSON: keys sorted, no spaces."""
    return _canonical({**record, RECORD_CRC32: zlib.crc32(_canonical(record))})


def _canonical(record: Mapping[str, Any]) -> bytes:
    return orjson.dumps(dict(record), option=orjson.OPT_SORT_KEYS)


def _decode(data: bytes) -> dict[str, Any]:
    """Returns the record with what was added to it but its checksum. Raises ValueError if that is another."""
    record = orjson.loads(data)
    if not isinstance(record, dict):
        raise ValueError("not an object")
    expected = record.pop(RECORD_CRC32, None)
    # A record of an earlier curate has none.
    if expected is not None and (found := zlib.crc32(_canonical(record))) != expected:
        raise ValueError(f"its checksum is {found}, expected {expected}")
    return record


def gzip_trailer(record: Mapping[str, Any], data_crc32: int) -> bytes:
    """Returns empty gzip members holding the record; behind gzip data they add nothing to what it unpacks to."""
    data = encode({**record, DATA_CRC32: data_crc32})
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


def zstd_trailer(record: Mapping[str, Any], data_crc32: int) -> bytes:
    """Returns a skippable zstd frame holding the record; it goes behind the data (Polars fails on a leading one)."""
    data = encode({**record, DATA_CRC32: data_crc32})
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


def _parquet_length(tail: bytes) -> int | None:
    if len(tail) < 12 or not tail.endswith(b"PAR1"):
        raise ValueError("it does not end in a Parquet footer")
    return int.from_bytes(tail[-8:-4], "little") + 8


def _parquet_record(footer: bytes) -> bytes | None:
    # The footer alone, behind a magic number, passes for a file whose metadata can be read.
    metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + footer)).metadata or {}
    found: bytes | None = metadata.get(PARQUET_KEY.encode())
    return found


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
    elif codec == "gzip":
        length_of, record_of = _gzip_length, _gzip_record
    elif codec == "zstd":
        length_of, record_of = _zstd_length, _zstd_record
    else:
        raise ConfigError(f"{format} with codec {codec!r} carries no record")
    if not object.size:
        return None
    try:
        with naming(object.uri):
            tail = store.read(object.uri, -min(_TAIL_BYTES, object.size))
            length = length_of(tail)
            if length is None:
                return None
            if length > object.size:
                raise ValueError(f"it says that its last {length} bytes are the record, but has {object.size}")
            if length > len(tail):
                tail = store.read(object.uri, -length)
        data = record_of(tail[-length:])
        if data is None:
            return None
        record = _decode(data)
    except (ValueError, struct.error, OSError, pa.ArrowException) as error:
        raise CorruptInput(f"{object.uri}: the record it should carry is broken: {error}") from error
    return Carried(record, object.size - length, record.pop(DATA_CRC32, None))
