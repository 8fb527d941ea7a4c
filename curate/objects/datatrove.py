"""Tokens as datatrove writes and reads them, a shard in three files:

    NAME.ds           all tokens, uint16 or uint32
    NAME.ds.index     uint64, where each document ends, in tokens
    NAME.ds.metadata  lines of text: TOKENIZER|BYTES OF A TOKEN; tokens; the same for people

All of it is little-endian. datatrove goes by the sizes of the first two, so nothing may lie behind their end: no
record. It reads the first line of the third alone, as text. There checksums of the other two follow, and a record.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from curate.dataclass import dataclass
from curate.errors import CorruptInput
from curate.storage.protocol import Object, Store
from curate.units import format_count

TYPES: Mapping[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
"""Of a token, by its bytes."""
_END = struct.Struct("<Q")
_HEAD_BYTES = 512
"""All lines of a metadata file of curate."""
_CHECKSUM = re.compile(rb"crc32 ([0-9a-f]{8}) ([a-z.]+)")


def encode_ends(lengths: npt.NDArray[Any]) -> bytes:
    """Returns the index of documents of these lengths, in tokens.

    >>> np.frombuffer(encode_ends(np.array([3, 0, 2])), "<u8").tolist()
    [3, 3, 5]
    """
    return np.cumsum(lengths, dtype=np.int64).astype("<u8").tobytes()


def encode_metadata(itemsize: int, tokens: int, checksums: Mapping[str, int]) -> bytes:
    """Returns the lines of a metadata file; `checksums` are CRC-32 of the other files, by suffix.

    >>> encode_metadata(2, 5, {".ds": 255}).decode().splitlines()
    ['unknown|2', '5', '5 tokens', 'crc32 000000ff .ds']
    """
    lines = [f"unknown|{itemsize}", str(tokens), format_count(tokens, "token")]
    lines += [f"crc32 {value:08x} {suffix}" for suffix, value in checksums.items()]
    return "".join(f"{line}\n" for line in lines).encode()


def read_metadata(store: Store, object: Object) -> dict[str, int]:
    """Returns the checksums that a metadata file of curate has of the other files, by suffix: of one that is damaged,
    those that can be read."""
    lines = store.read(object.uri, 0, min(_HEAD_BYTES, object.size)).split(b"\n")
    return {found[2].decode(): int(found[1], 16) for line in lines if (found := _CHECKSUM.fullmatch(line))}


@dataclass(frozen=True, slots=True)
class DatatroveTotals:
    """What a shard has as a whole."""

    dtype: np.dtype[Any]
    documents: int
    tokens: int


def read_totals(stream: BinaryIO, uri: str, size: int, token_bytes: int) -> DatatroveTotals:
    """Returns what an index of `size` bytes says of tokens that take `token_bytes`, by its last entry alone.

    Raises CorruptInput.
    """
    if size % _END.size:
        raise CorruptInput(f"{uri}: has {size:,} bytes, which are no whole numbers of 8 bytes: it was cut off")
    documents, tokens = size // _END.size, 0
    if documents:
        stream.seek(size - _END.size)
        (tokens,) = _END.unpack(stream.read(_END.size))
    if not tokens and not token_bytes:
        return DatatroveTotals(TYPES[2], documents, 0)
    if not tokens or token_bytes % tokens or token_bytes // tokens not in TYPES:
        raise CorruptInput(
            f"{uri}: the last document ends at token {tokens:,}, but the tokens take {token_bytes:,} bytes; expected "
            f"{2 * tokens:,} or {4 * tokens:,}: one of both files was cut off, or is of another shard"
        )
    return DatatroveTotals(TYPES[token_bytes // tokens], documents, tokens)
