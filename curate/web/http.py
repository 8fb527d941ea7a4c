"""What a web server answered, as an archive keeps it: status, header, and the page without what it was sent in."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from curate.dataclass import dataclass
from curate.errors import BadRow
from curate.units import KIB
from curate.web.fields import fields
from curate.web.inflate import until_broken

_STATUS = re.compile(rb"HTTP/[0-9.]+[ \t]+([0-9]{3})\b")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([^\s;\"']+)", re.I)
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]{0,200})?(\r?\n)")
_CUT = re.compile(rb"[0-9a-fA-F]{1,8}[ \t]*(?:;[^\r\n]{0,200})?\r?")
"""What is left of the size of a chunk where an answer is cut off within it."""
_TRAILER = re.compile(rb"(?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[^\r\n]*\r?\n)*(?:\r?\n)?")
"""What may come behind the last chunk."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MAGIC = {"gzip": _GZIP, "zstd": _ZSTD}
"""What the encodings begin with that can be told by it, however they are named."""
_GZIP_BITS, _ZLIB_BITS, _RAW_BITS = 31, 15, -15
"""What `zlib` calls gzip, and deflate with a header and without."""
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

    def page(self, most: int) -> bytes:
        """Returns the payload without what it was sent in, as `unpacked` does."""
        encoding, transfer = (self.headers.get(f"{one}-encoding", "") for one in ("content", "transfer"))
        return unpacked(self.payload, encoding, transfer, most)


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
    place = 0
    while True:
        first = _STATUS.match(data, place)
        if first is None:
            return None
        end = _HEAD_END.search(data, place)
        behind = end.end() if end else len(data)
        if not first[1].startswith(b"1") or _STATUS.match(data, behind) is None:
            break
        place = behind  # that was "100 Continue", or hints: the answer comes behind
    head = data[place : end.start() if end else len(data)]
    return Answer(int(first[1]), fields(head.decode("latin-1")), data[behind:])


def unpacked(payload: bytes, encoding: str, transfer: str, most: int) -> bytes:
    """Returns a payload without its chunks and its compression, as its header names them (`Content-Encoding`,
    `Transfer-Encoding`). Archives often keep a page unpacked below the header of the packed one: what is not in the
    encoding that is named is returned as it is. What is cut off is unpacked as far as it goes.

    Raises TooLarge for more than `most` bytes, and BadRow for what is packed and has no byte that can be unpacked.
    """
    if "chunked" in transfer.lower():
        payload = _without_chunks(payload)
    for name in reversed([one.strip().lower().removeprefix("x-") for one in encoding.split(",")]):
        payload = _taken_off(payload, name, most)
    for _ in range(_NESTED):
        magic = next((name for name, begin in _MAGIC.items() if payload.startswith(begin)), None)
        if magic is None:
            break
        payload = _taken_off(payload, magic, most)
    return payload


def _taken_off(payload: bytes, name: str, most: int) -> bytes:
    """Returns a payload without one encoding; as it is if it is not in it."""
    if name == "deflate":
        found = _inflated(payload, _ZLIB_BITS, most)
        if found is None:
            found = _inflated(payload, _RAW_BITS, most)
        return payload if found is None else found
    if name == "br":
        return _from_brotli(payload, most) or payload
    if name not in _MAGIC or not payload.startswith(_MAGIC[name]):
        return payload
    found = _inflated(payload, _GZIP_BITS, most) if name == "gzip" else _from_zstd(payload, most)
    if found is None:
        raise BadRow(f"it cannot be unpacked: its {name} is broken from its first byte on, or cut off there")
    return found


def _inflated(data: bytes, bits: int, most: int) -> bytes | None:
    """Returns what can be unpacked, of gzip all members; None if nothing can. Of one that is broken, or has another
    checksum, that is all before."""
    inflate, found, place = zlib.decompressobj(wbits=bits), bytearray(), 0
    while place < len(data) and len(found) <= most:
        piece = data[place : place + _PIECE]
        before = inflate.copy()
        try:
            found += inflate.decompress(piece)
        except zlib.error:
            # Without a header, what breaks may be a page that is not packed.
            if bits != _RAW_BITS:
                found += until_broken(before, piece)
            break
        place += len(piece) - len(inflate.unused_data)
        if inflate.eof:
            if bits != _GZIP_BITS or not data.startswith(_GZIP, place):
                break
            inflate = zlib.decompressobj(wbits=bits)
    if len(found) > most:
        raise TooLarge
    return bytes(found) if found or inflate.eof else None


def _from_brotli(data: bytes, most: int) -> bytes | None:
    from fastwarc.stream_io import BrotliReader

    return _read(BrotliReader(io.BytesIO(data)), most)


def _from_zstd(data: bytes, most: int) -> bytes | None:
    from fastwarc.stream_io import ZstdReader

    return _read(ZstdReader(io.BytesIO(data)), most)


def _read(reader: Any, most: int) -> bytes | None:
    """Returns what can be read of a stream; None if nothing can."""
    found, whole = bytearray(), False
    with suppress(OSError):
        while more := reader.read(_PIECE):
            found += more
            if len(found) > most:
                raise TooLarge
        whole = True
    return bytes(found) if found or whole else None


def _without_chunks(data: bytes) -> bytes:
    found: list[bytes] = []
    place = 0
    while (head := _CHUNK.match(data, place)) is not None:
        size, end = int(head[1], 16), head[2]  # some servers send line feeds alone
        behind = b"" if found else data[head.end() + size : head.end() + size + len(end)]
        if not end.startswith(behind) if size else not found and not _TRAILER.fullmatch(data, head.end()):
            # A page without chunks, whose first line only looks like a size.
            break
        found.append(data[head.end() : head.end() + size])
        place = head.end() + size + len(end)
        if not size or place >= len(data):
            return b"".join(found)
    # No chunks, or other bytes behind some: as they are.
    left = b"" if found and _CUT.fullmatch(data, place) else data[place:]
    return b"".join([*found, left])
