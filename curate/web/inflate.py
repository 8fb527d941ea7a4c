"""What there is of bytes packed by zlib that are broken."""

from __future__ import annotations

import zlib
from contextlib import suppress


def until_broken(inflate: zlib._Decompress, data: bytes) -> bytes:
    """Returns what there is of packed bytes that are broken somewhere: of what is unpacked with the broken ones, zlib
    returns nothing, so it is given a byte at a time."""
    pieces: list[bytes] = []
    with suppress(zlib.error):
        for one in range(len(data)):
            pieces.append(inflate.decompress(data[one : one + 1]))
    return b"".join(pieces)
