"""What a web server answered, as an archive keeps it: status, header, and the page without what it was sent in."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from curate.dataclass import dataclass
from curate.units import KIB, MIB

_STATUS = re.compile(rb"HTTP/[0-9.]+[ \t]+([0-9]{3})\b")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([^\s;\"']+)", re.I)
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]{0,200})?(\r?\n)")
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_GZIP_BITS = 31
"""What `zlib` calls gzip."""
_PIECE = 16 * KIB
"""Bytes that are read at a time: of those that end in an error nothing is left."""
_NESTED = 3
"""How often a page is unpacked that is packed again within."""


class TooLarge(Exception):
    """A page is larger than was asked for once it is unpacked."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; its payload is as it was sent."""

    status: int
    headers: Mapping[str, str]
    """By their names in lower case."""
    payload: bytes

    @property
    def content_type(self) -> str | None:
        """The type that the server says, such as `text/html`."""
        return media_type(self.headers.get("content-type", ""))

    @property
    def charset(self) -> str | None:
        """The charset that the server says."""
        found = _CHARSET.search(self.headers.get("content-type", ""))
        return found[1] if found else None


def media_type(value: str) -> str | None:
    """Returns the type that a field says, without its parameters; of several that were joined the first.

    >>> media_type("Text/HTML, text/html; charset=utf-8")
    'text/html'
    """
    return re.split("[;,]", value)[0].strip().lower() or None


def answer(data: bytes) -> Answer | None:
    """Returns the answer that is kept as these bytes; None if they are none.

    >>> answer(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/html; charset=utf-8\\r\\n\\r\\n<p>").charset
    'utf-8'
    """
    while True:
        first = _STATUS.match(data)
        if first is None:
            return None
        end = _HEAD_END.search(data)
        head, payload = (data[: end.start()], data[end.end() :]) if end else (data, b"")
        if not first[1].startswith(b"1") or _STATUS.match(payload) is None:
            break
        data = payload  # that was "100 Continue", or hints: the answer comes behind
    headers: dict[str, str] = {}
    # Not `splitlines`: 0x85, which ends a line for it, is a part of many letters in UTF-8.
    for line in re.split("[\r\n]+", head.decode("latin-1"))[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers.setdefault(name.strip().lower(), value.strip())
    return Answer(int(first[1]), headers, payload)


def unpacked(payload: bytes, encoding: str, transfer: str, most: int) -> bytes:
    """Returns a payload without its chunks and its compression, as its header names them (`Content-Encoding`,
    `Transfer-Encoding`). Archives often keep a page unpacked below the header of the packed one: what is not in the
    encoding that is named is returned as it is. What is cut off is unpacked as far as it goes.

    Raises TooLarge for more than `most` bytes.
    """
    if "chunked" in transfer.lower():
        payload = _without_chunks(payload)
    for name in reversed([one.strip().lower() for one in encoding.split(",")]):
        if name == "deflate":
            payload = _inflated(payload, 15, most) or _inflated(payload, -15, most) or payload
        elif name == "br":
            payload = _from_brotli(payload, most) or payload
    for _ in range(_NESTED):
        if payload.startswith(_GZIP):
            payload = _inflated(payload, _GZIP_BITS, most) or b""
        elif payload.startswith(_ZSTD):
            payload = _from_zstd(payload, most) or b""
        else:
            break
    return payload


def _inflated(data: bytes, bits: int, most: int) -> bytes | None:
    """Returns what can be unpacked, of gzip all members; None if nothing can."""
    inflate = zlib.decompressobj(wbits=bits)
    found = bytearray()
    with suppress(zlib.error):
        while data:
            found += inflate.decompress(data, 1 * MIB)
            data = inflate.unconsumed_tail
            if len(found) > most:
                raise TooLarge
            if inflate.eof and inflate.unused_data.startswith(_GZIP) and bits == _GZIP_BITS:
                data, inflate = inflate.unused_data, zlib.decompressobj(wbits=bits)
    return bytes(found) or None


def _from_brotli(data: bytes, most: int) -> bytes | None:
    from fastwarc.stream_io import BrotliReader

    return _read(BrotliReader(io.BytesIO(data)), most)


def _from_zstd(data: bytes, most: int) -> bytes | None:
    from fastwarc.stream_io import ZstdReader

    return _read(ZstdReader(io.BytesIO(data)), most)


def _read(reader: Any, most: int) -> bytes | None:
    """Returns what can be read of a stream; None if nothing can."""
    found = bytearray()
    with suppress(OSError):
        while more := reader.read(_PIECE):
            found += more
            if len(found) > most:
                raise TooLarge
    return bytes(found) or None


def _without_chunks(data: bytes) -> bytes:
    found: list[bytes] = []
    place = 0
    while (head := _CHUNK.match(data, place)) is not None:
        size, end = int(head[1], 16), head[2]  # some servers send line feeds alone
        behind = b"" if found else data[head.end() + size : head.end() + size + len(end)]
        if size and not end.startswith(behind):
            # A page without chunks, whose first line only looks like a size.
            break
        found.append(data[head.end() : head.end() + size])
        place = head.end() + size + len(end)
        if not size or place >= len(data):
            return b"".join(found)
    # No chunks, or other bytes behind some: as they are.
    return data if not found else b"".join(found) + data[place:]
