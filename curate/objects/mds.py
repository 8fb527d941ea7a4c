"""A shard as mosaicml-streaming reads it (MDS, version 2), and the `index.json` beside all shards.

    uint32   number of samples, n
    uint32   n + 1 offsets in the file: where each sample begins, and where the last one ends
    JSON     the columns, for people
    samples  uint32 sizes of the values whose size varies, then all values, columns in order of their names

As `streaming/base/format/mds` of mosaicml-streaming describes it. Readers take a sample by its offsets; behind the last
one lies a record. An array of one dimension is its shape, `1 << 2 | width of the length`, length, then its values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.types as pt

from curate.arrow.types import is_list
from curate.dataclass import dataclass
from curate.errors import ConfigError, CorruptInput
from curate.keywords import option

VERSION = 2
MOST_BYTES = (1 << 32) - 1
"""Offsets have 32 bits."""
_HEAD_BYTES = 1 << 16


def encoding_of(field: pa.Field) -> tuple[str, int | None]:
    """Returns how the values of a column are stored, and their size in bytes; None: it varies. Raises ConfigError for a
    type that there is no place for.

    >>> encoding_of(pa.field("tokens", pa.list_(pa.uint16()))), encoding_of(pa.field("id", pa.int64()))
    (('ndarray:uint16', None), ('int64', 8))
    """
    type = field.type
    if pt.is_string(type) or pt.is_large_string(type):
        return "str", None
    if pt.is_binary(type) or pt.is_large_binary(type):
        return "bytes", None
    if pt.is_integer(type) or pt.is_floating(type):
        dtype = np.dtype(type.to_pandas_dtype())
        return dtype.name, dtype.itemsize
    if is_list(type) and (pt.is_integer(type.value_type) or pt.is_floating(type.value_type)):
        return f"ndarray:{np.dtype(type.value_type.to_pandas_dtype()).name}", None
    raise ConfigError(
        f"column {field.name!r} is {type}, which MDS has no place for; expected numbers, lists of numbers, text or "
        "bytes: convert it, leave it out, or write parquet"
    )


def columns_of(schema: pa.Schema) -> list[tuple[str, str, int | None]]:
    """Returns name, encoding and size of each column, in the order in which they are stored. Raises ConfigError."""
    return [(name, *encoding_of(schema.field(name))) for name in sorted(schema.names)]


def described(columns: Sequence[tuple[str, str, int | None]]) -> dict[str, Any]:
    """Returns what a shard and the index say of columns."""
    return {
        "column_encodings": [encoding for _, encoding, _ in columns],
        "column_names": [name for name, _, _ in columns],
        "column_sizes": [size for _, _, size in columns],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": None,
        "version": VERSION,
    }


def encode_sample(values: Sequence[bytes], sizes: Sequence[int | None]) -> bytes:
    """Returns a sample of values that are encoded already."""
    varying = [len(value) for value, size in zip(values, sizes, strict=True) if size is None]
    return b"".join([np.array(varying, "<u4").tobytes(), *values])


def encode_array(values: bytes, length: int) -> bytes:
    """Returns an array of one dimension; `values` are its bytes.

    >>> encode_array(bytes([7, 0]), 1)
    b'\\x04\\x01\\x07\\x00'
    """
    width = 0 if length < 1 << 8 else 1 if length < 1 << 16 else 2
    return bytes([1 << 2 | width]) + length.to_bytes(1 << width, "little") + values


def encode_head(columns: Sequence[tuple[str, str, int | None]], sizes: Sequence[int]) -> bytes:
    """Returns the head of a shard with samples of these sizes. Raises ConfigError for more than 32 bits can count."""
    config = orjson.dumps(described(columns), option=orjson.OPT_SORT_KEYS)
    begin = 4 + 4 * (len(sizes) + 1) + len(config)
    offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]) + begin
    if int(offsets[-1]) > MOST_BYTES:
        raise ConfigError(
            f"the output would have {int(offsets[-1]):,} bytes, and a shard of MDS at most {MOST_BYTES:,}: make them "
            f"smaller with {option('shard_bytes', ...)}"
        )
    return np.array([len(sizes)], "<u4").tobytes() + offsets.astype("<u4").tobytes() + config


@dataclass(frozen=True, slots=True)
class ShardHead:
    """What a shard says of itself."""

    samples: int
    offsets: npt.NDArray[np.uint32]
    about: dict[str, Any]
    """Its columns, as the index says them."""


def decode_head(name: str, read: Callable[[int], bytes]) -> ShardHead:
    """Returns the head of a shard; `read` returns its first so many bytes. Raises CorruptInput."""
    try:
        data = read(_HEAD_BYTES)
        samples = int.from_bytes(data[:4], "little")
        if len(data) < 4 * (samples + 2):
            data = read(4 * (samples + 2))
        offsets = np.frombuffer(data, "<u4", samples + 1, 4)
        begin = int(offsets[0])
        about = orjson.loads((data if len(data) >= begin else read(begin))[4 * (samples + 2) : begin])
    except ValueError as error:
        raise CorruptInput(f"{name}: not a shard of MDS: {error}") from error
    return ShardHead(samples, offsets, about)


def encode_index(about: Mapping[str, Any], shards: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> bytes:
    """Returns the `index.json` of shards of these columns, each with `basename`, stored `bytes` and `samples`; and
    `more`, which readers ignore."""
    return orjson.dumps(
        {
            **more,
            "version": VERSION,
            "shards": [
                {
                    **about,
                    "raw_data": {"basename": one["basename"], "bytes": one["bytes"], "hashes": {}},
                    "samples": one["samples"],
                    "zip_data": None,
                }
                for one in shards
            ],
        },
        option=orjson.OPT_SORT_KEYS,
    )
