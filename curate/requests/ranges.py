"""Parts of objects: what to ask for and what arrived; and a seekable stream over an object that is read by ranges, with
few large requests in sequence and small ones at random.

It knows nothing of any store: a function that fetches `start` to `stop` is handed in.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, cast

from curate.errors import TransientStorageError

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


def clip(start: int, stop: int | None, size: int) -> tuple[int, int]:
    """Returns the range that `Store.read` means by `start` and `stop` in an object of `size` bytes.

    >>> clip(-4, None, 10), clip(8, 20, 10), clip(5, 3, 10)
    ((6, 10), (8, 10), (5, 5))
    """
    if stop is not None and stop < 0:
        raise ValueError(f"stop is {stop}; only start may be negative and count from the end")
    start = max(size + start, 0) if start < 0 else min(start, size)
    return start, max(start, size if stop is None else min(stop, size))


def range_header(start: int, stop: int | None) -> dict[str, str]:
    """Returns the headers that ask for what `Store.read` means by `start` and `stop`; none for the whole.

    >>> range_header(2, 9), range_header(-4, None), range_header(0, None)
    ({'Range': 'bytes=2-8'}, {'Range': 'bytes=-4'}, {})
    """
    if (start, stop) == (0, None):
        return {}
    return {"Range": f"bytes={start}" if start < 0 else f"bytes={start}-{'' if stop is None else stop - 1}"}


def part_of(
    body: bytes, told: str | None, start: int, stop: int | None, cut: Callable[[str], TransientStorageError]
) -> bytes:
    """Returns bytes `start` to `stop` of an object, as `Store.read` means them, of an answer that has a part of it.

    `told` is its Content-Range. Raises what `cut` makes of the problem if the answer lacks some of them.

    >>> part_of(b"2345", "bytes 2-5/10", 3, 6, TransientStorageError)
    b'345'
    """
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", told or "")
    if found is None:
        raise cut(f"a part of an object arrived without its position (Content-Range {told!r})")
    first, last, size = map(int, found.groups())
    if len(body) != last + 1 - first:
        raise cut(f"{len(body)} bytes arrived for the range {found.group()}")
    begin, end = clip(start, stop, size)
    if first > begin or first + len(body) < end:
        raise cut(f"bytes {first} to {first + len(body)} arrived, expected {begin} to {end}")
    return body if len(body) == end - begin else body[begin - first : end - first]


def exact_part(
    status: int,
    body: bytes,
    told: str | None,
    start: int,
    stop: int,
    size: int,
    cut: Callable[[str], TransientStorageError],
) -> bytes:
    """Returns exactly bytes `start` to `stop` of an object of `size` bytes, of an answer that has a part of it (206) or
    the whole.

    `told` is its Content-Range. Raises what `cut` makes of the problem if what answers tells of an object of another
    size: what is cut out of that is other bytes, be they as many as were asked for.

    >>> exact_part(200, b"0123456789", None, 3, 6, 10, TransientStorageError)
    b'345'
    """
    if status == 206:
        found, whole = part_of(body, told, start, stop, cut), int((told or "").rpartition("/")[2])
    else:
        found, whole = body[start:stop], len(body)
    if whole != size or len(found) != stop - start:
        raise cut(
            f"{len(found):,} bytes of {whole:,} arrived, expected {stop - start:,} of {size:,}; if it stays so, look "
            "for a proxy that changes what the store sends"
        )
    return found


NOT_PLAIN = (OSError, EOFError, zlib.error)
"""What `plain` raises of an answer that is cut."""


def plain(encoding: str | None, body: bytes) -> bytes:
    """Returns an answer of a service, not an object, as it was made: some services pack it, and some proxies do.

    >>> plain("gzip", gzip.compress(b"<Error/>")), plain(None, b"<Error/>")
    (b'<Error/>', b'<Error/>')
    """
    return gzip.decompress(body) if encoding == "gzip" else body


def range_stream(fetch: Callable[[int, int], bytes], size: int) -> BinaryIO:
    """Returns a buffered, seekable stream of `size` bytes; `fetch(start, stop)` must return exactly that range."""
    return cast(BinaryIO, _Buffered(_RangeReader(fetch, size), _BUFFER_BYTES))


class _Buffered(io.BufferedReader):
    """Says how far it is to read: it asks for whole buffers first, and what is behind them would be a request of its
    own, with more read ahead."""

    def __init__(self, reader: _RangeReader, buffer_bytes: int) -> None:
        super().__init__(reader, buffer_bytes)
        self._reader = reader

    def read(self, size: int | None = -1, /) -> bytes:
        self._reader.until = self.tell() + (size or 0)
        return super().read(size)


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
        self.until = 0
        """Where what is asked for ends, if that is further than what one call wants."""

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
        wanted = max(wanted, self.until - start)
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
