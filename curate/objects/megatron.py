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
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from curate.errors import CorruptInput

MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
"""Of the types of integers."""
_TYPES = {code: name for name, code in CODES.items()}


@dataclass(frozen=True, slots=True)
class MegatronIndex:
    """Where documents are."""

    dtype: np.dtype[Any]
    lengths: npt.NDArray[np.int32]
    """Tokens of each document."""
    pointers: npt.NDArray[np.int64]
    """Where each begins, in bytes."""


def encode_index(dtype: np.dtype[Any], lengths: npt.NDArray[Any]) -> bytes:
    """Returns the index of documents of these lengths, in tokens, which lie one after the other.

    >>> decode_index("x", encode_index(np.dtype("uint16"), np.array([3, 0, 2]))).pointers.tolist()
    [0, 6, 6]
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    header = _HEADER.pack(MAGIC, 1, CODES[dtype.name], len(lengths), len(lengths) + 1)
    pointers = (ends - lengths) * dtype.itemsize
    documents = np.arange(len(lengths) + 1, dtype="<i8")
    return b"".join([header, lengths.astype("<i4").tobytes(), pointers.astype("<i8").tobytes(), documents.tobytes()])


def decode_index(uri: str, data: bytes) -> MegatronIndex:
    """Returns what an index says; what lies behind it is ignored. Raises CorruptInput."""
    try:
        magic, version, code, number, documents = _HEADER.unpack_from(data)
        if magic != MAGIC or version != 1 or code not in _TYPES:
            raise ValueError(f"it begins with {data[:18]!r}")
        at = _HEADER.size
        lengths = np.frombuffer(data, "<i4", number, at)
        pointers = np.frombuffer(data, "<i8", number, at + 4 * number)
        np.frombuffer(data, "<i8", documents, at + 12 * number)
    except (struct.error, ValueError) as error:
        raise CorruptInput(f"{uri}: not an index of Megatron-LM (.idx): {error}") from error
    return MegatronIndex(np.dtype(_TYPES[code]), lengths, pointers)
