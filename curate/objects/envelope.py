"""The bytes of an output as they are stored: compressed, or as they are, and behind them the record of its shard."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

from curate.objects.compress import Compressor, Crc32Sink, Sink
from curate.objects.record import gzip_trailer, zstd_trailer

STORED = "none"
"""The codec of outputs that are not compressed. Readers of their format ignore what lies behind its end."""


_IN_MEMORY_BYTES = 4 << 20
_COPIED_BYTES = 1 << 20


class Waiting:
    """Bytes that wait, in a temporary file once they are many, for those that are to come before them."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 - closed once it is copied

    def write(self, data: Any) -> None:
        """Takes all of `data`."""
        self._file.write(data)

    def copy_into(self, sink: Envelope) -> None:
        """Writes all that was taken, and lets go of it."""
        with self._file as waiting:
            waiting.seek(0)
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
