"""Compresses documents of the ledger, and decompresses them up to a limit."""

from __future__ import annotations

import pyarrow as pa

SEGMENT_READ_BYTES = 1 << 20
MOST_SEGMENT_BYTES = 32 << 20
"""Bytes of lines in a segment, at most: they are sealed at 8 MiB, and a line is far shorter than the rest."""


def compress(data: bytes) -> bytes:
    """Returns `data` as one zstd frame."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def decompress(data: bytes) -> bytes:
    """Returns what zstd frames hold. Raises OSError if they are broken, or hold far more than a segment does."""
    parts: list[bytes] = []
    size = 0
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        while part := stream.read(SEGMENT_READ_BYTES):
            parts.append(bytes(part))
            size += len(part)
            if size > MOST_SEGMENT_BYTES:
                raise OSError(f"{len(data):,} bytes are more than {MOST_SEGMENT_BYTES:,}: too long for a segment")
    return b"".join(parts)
