"""A seekable stream over an object that is read by ranges: few large requests in sequence, small ones at random.

It knows nothing of any store: a function that fetches `start` to `stop` is handed in.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


FIRST_BYTES = 1 << 20
"""A stream's first request from its beginning; doubled while reading goes on in sequence."""
LARGEST_BYTES = 8 << 20
"""The most that is read ahead of what was asked for."""
RANDOM_BYTES = 256 << 10
"""A request at a place that does not follow the last one."""
TAIL_BYTES = 64 << 10
"""Fetched at once by a first look at the end: a Parquet footer and the eight bytes that say how long it is."""
WHOLE_BYTES = 64 << 20
"""The most that one request fetches when the caller wants all the rest."""
_BUFFER_BYTES = 128 << 10


def range_stream(fetch: Callable[[int, int], bytes], size: int) -> BinaryIO:
    """Returns a buffered, seekable stream of `size` bytes; `fetch(start, stop)` must return exactly that range."""
    return cast(BinaryIO, io.BufferedReader(_RangeReader(fetch, size), _BUFFER_BYTES))


class _RangeReader(io.RawIOBase):
    """Holds one block at a time. The buffered reader around it serialises threads."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self._fetch = fetch
        self._size = size
        self._position = 0
        self._block = b""
        self._block_start = 0
        self._ahead = FIRST_BYTES
        """Size of the next request if it follows the block."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"seek to {base + offset}, before the beginning")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        if self._position >= self._size or not len(view):
            return 0
        offset = self._position - self._block_start
        if not 0 <= offset < len(self._block):
            self._load(len(view))
            offset = self._position - self._block_start
        count = min(len(view), len(self._block) - offset)
        view[:count] = memoryview(self._block)[offset : offset + count]
        self._position += count
        return count

    def readall(self) -> bytes:
        parts = []
        offset = self._position - self._block_start
        if 0 <= offset < len(self._block):
            parts.append(self._block[offset:])
            self._position += len(parts[0])
        while self._position < self._size:
            parts.append(self._fetch(self._position, min(self._size, self._position + WHOLE_BYTES)))
            self._position += len(parts[-1])
        return b"".join(parts)

    def _load(self, wanted: int) -> None:
        """Fetches a block that covers the position."""
        start = self._position
        if start == self._block_start + len(self._block):
            length = self._ahead
            self._ahead = min(2 * self._ahead, LARGEST_BYTES)
        else:
            length = RANDOM_BYTES
            self._ahead = 2 * RANDOM_BYTES
            if self._size - start <= TAIL_BYTES:
                start = max(0, self._size - TAIL_BYTES)
        stop = min(self._size, max(start + length, self._position + min(wanted, WHOLE_BYTES)))
        # Let go of the old block first: the two together would double the memory.
        self._block = b""
        self._block, self._block_start = self._fetch(start, stop), start
