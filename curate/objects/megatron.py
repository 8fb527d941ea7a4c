"""The index (`.idx`) of tokens as Megatron stores them: a `.bin` has the tokens of all documents one after another.

The layout is that of Megatron-LM's `megatron/core/datasets/indexed_dataset.py`, little-endian: nine bytes (`MAGIC`);
version 1 (uint64); the type of the tokens (uint8, see `DTYPES`); the numbers of sequences and of document ends (uint64
each); then for each sequence its length (int32), for each its first byte in the `.bin` (int64), and the document ends,
as numbers of sequences (int64), the first of which is 0.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from curate.errors import CorruptInput

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
DTYPES: dict[int, type[np.number[Any]]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.float64,
    7: np.float32,
    8: np.uint16,
}
"""Types of tokens by their code."""
_HEAD = struct.Struct("<9sQBQQ")


@dataclass(frozen=True, slots=True)
class Index:
    """What an index says of its tokens as a whole."""

    dtype: np.dtype[Any]
    sequences: int
    documents: int
    """Document ends, the 0 at the beginning among them."""
    tokens: int
    """Of all sequences."""


def read_index(stream: BinaryIO, uri: str, size: int) -> Index:
    """Returns what an index of `size` bytes says, from its head and its last sequence. Raises CorruptInput."""
    head = stream.read(_HEAD.size)
    if len(head) < _HEAD.size or head[:9] != MAGIC:
        raise CorruptInput(f"{uri}: not an index of Megatron (.idx): it does not begin with {MAGIC!r}")
    _, version, code, sequences, documents = _HEAD.unpack(head)
    if version != VERSION or code not in DTYPES:
        raise CorruptInput(
            f"{uri}: has version {version} and type {code} of tokens; expected version {VERSION} and a type of "
            f"{', '.join(map(str, DTYPES))}"
        )
    dtype = np.dtype(DTYPES[code])
    needed = _HEAD.size + 12 * sequences + 8 * documents
    if size < needed:
        raise CorruptInput(f"{uri}: has {size:,} bytes, but {sequences:,} sequences take {needed:,}: it was cut off")
    if not sequences:
        return Index(dtype, 0, documents, 0)
    (length,) = struct.unpack("<i", _at(stream, _HEAD.size + 4 * (sequences - 1), 4))
    (begin,) = struct.unpack("<q", _at(stream, _HEAD.size + 4 * sequences + 8 * (sequences - 1), 8))
    if length < 0 or begin < 0 or begin % dtype.itemsize:
        raise CorruptInput(f"{uri}: its last sequence has {length} tokens from byte {begin} on: the index is damaged")
    return Index(dtype, sequences, documents, begin // dtype.itemsize + length)


def _at(stream: BinaryIO, place: int, size: int) -> bytes:
    stream.seek(place)
    return stream.read(size)
