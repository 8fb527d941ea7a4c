"""The bytes of an output as they are stored: compressed, or as they are, and behind them the record of its shard.

Compressed bytes depend only on the data, not on the sizes of the pieces that are written.

Data is gathered and handed on in pieces of exactly `_PIECE_BYTES`. Arrow's own zlib and zstd are used, not the
system's, so that the bytes are a matter of the lock file: zstd as one frame from one thread; gzip as one member a
piece with modification time 0, since Arrow's gzip stream knows only level 9, ten times slower.
"""

from __future__ import annotations

import io
import tempfile
import weakref
import zlib
from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa

from curate.errors import ConfigError
from curate.folders.temporary import kept, let_go
from curate.objects.record import gzip_trailer, zstd_trailer

_VALUES = "values of an output, until its head is written,"
_PIECE_BYTES = 1 << 20
_GZIP_LEVEL = 6
STORED = "none"
"""The codec of outputs that are not compressed. Readers of their format ignore what lies behind its end."""
_IN_MEMORY_BYTES = 4 << 20
_COPIED_BYTES = 1 << 20


class Sink(Protocol):
    """Where bytes go."""

    def write(self, data: Any, /) -> Any:
        """Takes all of `data`."""


class Buffer(io.BytesIO):
    """Bytes from Arrow on their way to a sink, which gets them when the writer says so and not when Arrow does.

    An Arrow stream that is dropped unfinished finishes itself. It may do so here, where nobody sees it, but not in a
    sink whose upload was given up. (`write` is inherited as it is: Arrow calls it a dozen times for the smallest file.)
    """

    def drain(self, sink: Sink) -> None:
        """Hands on what was written since the last time, in one write."""
        if data := self.getvalue():
            sink.write(data)
            self.seek(0)
            self.truncate()

    def close(self) -> None:
        """Arrow closes what it was given; what was written can still be drained."""


class Crc32Sink:
    """A sink that hands on what it is given, and keeps its checksum."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.crc32 = 0

    def write(self, data: bytes) -> None:
        """Hands on all of `data`."""
        self.crc32 = zlib.crc32(data, self.crc32)
        self._sink.write(data)


class Compressor:
    """Compresses into a sink. `write` any number of times, then `close`; the sink stays open."""

    def __init__(self, sink: Sink, codec: str) -> None:
        """Raises ConfigError for a codec other than gzip and zstd."""
        self._sink = sink
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._written = False
        self._stream: Any = None
        if codec == "zstd":
            self._buffer = Buffer()
            self._stream = pa.CompressedOutputStream(pa.PythonFile(self._buffer, mode="w"), "zstd")
        elif codec == "gzip":
            self._member = pa.Codec("gzip", _GZIP_LEVEL)
        else:
            raise ConfigError(f"cannot write codec {codec!r}; expected 'zstd' or 'gzip'")

    def write(self, data: bytes) -> None:
        """Takes all of `data`."""
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= _PIECE_BYTES:
            joined = b"".join(self._pending)
            whole = len(joined) - len(joined) % _PIECE_BYTES
            for at in range(0, whole, _PIECE_BYTES):
                self._piece(joined[at : at + _PIECE_BYTES])
            self._pending, self._pending_bytes = [joined[whole:]], len(joined) - whole

    def close(self) -> None:
        """Writes what is pending; no data at all gives a valid stream of nothing."""
        if self._pending_bytes or not self._written:
            self._piece(b"".join(self._pending))
        if self._stream is not None:
            self._stream.close()
            self._buffer.drain(self._sink)

    def _piece(self, piece: bytes) -> None:
        self._written = True
        if self._stream is not None:
            self._stream.write(piece)
            self._buffer.drain(self._sink)
        else:
            self._sink.write(self._member.compress(piece, asbytes=True))


class Waiting:
    """Bytes that wait, in a temporary file once they are many, for those that are to come before them."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 - closed once it is copied
        # Or once it is not held any more: a writer is made to see whether there is one, and shards fail.
        weakref.finalize(self, let_go, self._file)

    def write(self, data: Any) -> None:
        """Takes all of `data`."""
        with kept(_VALUES):
            self._file.write(data)

    def copy_into(self, sink: Envelope) -> None:
        """Writes all that was taken, and lets go of it."""
        with kept(_VALUES):
            self._file.seek(0)  # writes what is pending
        with self._file as waiting:
            while data := waiting.read(_COPIED_BYTES):
                sink.write(data)


class Envelope:
    """A sink for the bytes of one output; `close` adds the record behind them."""

    def __init__(self, sink: Sink, codec: str) -> None:
        """Raises ConfigError for a codec other than gzip, zstd and none."""
        self._sink = sink
        self._stored = Crc32Sink(sink)
        self._compressor = None if codec == STORED else Compressor(self._stored, codec)
        self._into = self._compressor or self._stored
        self._trailer = gzip_trailer if codec == "gzip" else zstd_trailer

    def write(self, data: bytes) -> None:
        """Takes all of `data`."""
        self._into.write(data)

    def close(self, record: Mapping[str, Any]) -> None:
        """Writes what is pending, then the record; the sink stays open."""
        if self._compressor is not None:
            self._compressor.close()
        self._sink.write(self._trailer(record, self._stored.crc32))
