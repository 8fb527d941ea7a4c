"""The index of tokens as Megatron-LM reads them: `NAME.bin` has all tokens, `NAME.idx` where each document is.

    9 bytes  "MMIDIDX", two zeros
    uint64   version, 1
    uint8    code of the type of a token
    uint64   number of sequences, n
    uint64   number of documents and one, d
    int32    n tokens of each sequence
    int64    n where each sequence begins in the .bin, in bytes
    int64    d at which sequence each document begins, and n

All of it is little-endian. As `megatron/core/datasets/indexed_dataset.py` of Megatron-LM describes it. Readers take as
many bytes as these numbers say; behind them lie records, in both files. A sequence is a document here.
"""

from __future__ import annotations

import struct
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from curate.dataclass import dataclass
from curate.errors import CorruptInput

MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
"""Of the types of integers."""
_TYPES = {code: name for name, code in CODES.items()}


def encode_index(dtype: np.dtype[Any], lengths: npt.NDArray[Any]) -> bytes:
    """Returns the index of documents of these lengths, in tokens, which lie one after the other.

    >>> np.frombuffer(encode_index(np.dtype("uint16"), np.array([3, 0, 2])), "<i8", 3, offset=46).tolist()
    [0, 6, 6]
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    header = _HEADER.pack(MAGIC, 1, CODES[dtype.name], len(lengths), len(lengths) + 1)
    pointers = (ends - lengths) * dtype.itemsize
    documents = np.arange(len(lengths) + 1, dtype="<i8")
    return b"".join([header, lengths.astype("<i4").tobytes(), pointers.astype("<i8").tobytes(), documents.tobytes()])


@dataclass(frozen=True, slots=True)
class MegatronTotals:
    """What an index says of its tokens as a whole."""

    dtype: np.dtype[Any]
    sequences: int
    tokens: int
    """Of all sequences."""


def read_totals(stream: BinaryIO, uri: str, size: int) -> MegatronTotals:
    """Returns what an index of `size` bytes says, from its beginning and its last sequence alone: the index of a large
    shard has as many entries as that has documents. Raises CorruptInput."""
    head = stream.read(_HEADER.size)
    if len(head) < _HEADER.size or not head.startswith(MAGIC):
        raise CorruptInput(f"{uri}: not an index of Megatron-LM (.idx): it does not begin with {MAGIC!r}")
    _, version, code, sequences, documents = _HEADER.unpack(head)
    if version != 1 or code not in _TYPES:
        raise CorruptInput(
            f"{uri}: has version {version} and type {code} of tokens; expected version 1 and a type of "
            f"{', '.join(map(str, _TYPES))}"
        )
    dtype = np.dtype(_TYPES[code])
    needed = _HEADER.size + 12 * sequences + 8 * documents
    if size < needed:
        raise CorruptInput(f"{uri}: has {size:,} bytes, but {sequences:,} sequences take {needed:,}: it was cut off")
    if not sequences:
        return MegatronTotals(dtype, 0, 0)
    stream.seek(_HEADER.size + 4 * (sequences - 1))
    (length,) = struct.unpack("<i", stream.read(4))
    stream.seek(_HEADER.size + 12 * sequences - 8)
    (begin,) = struct.unpack("<q", stream.read(8))
    if length < 0 or begin < 0 or begin % dtype.itemsize:
        raise CorruptInput(f"{uri}: its last sequence has {length} tokens from byte {begin} on: the index is damaged")
    return MegatronTotals(dtype, sequences, begin // dtype.itemsize + length)
