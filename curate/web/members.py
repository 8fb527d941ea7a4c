"""The bytes of a WARC file, unpacked, with the places where a compressed member begins and those where bytes were lost.

Archives are compressed record by record: a gzip member or a zstd frame each (Common Crawl, annex D of the standard). So
whatever is broken in one member, the next can be found, and read.

    file ──▶ [ member ][ member, broken ][ member ] ──▶ block, block (begins), block (begins, lost: why)
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Literal

from isal import isal_zlib
from isal.igzip_lib import IsalError

from curate.dataclass import dataclass
from curate.requests.ranges import range_stream
from curate.units import KIB, MIB
from curate.web.inflate import until_broken

Codec = Literal["gzip", "zstd"]

GZIP, ZSTD = b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"
_SKIPPED = b"\x2a\x4d\x18"
"""The end of the four bytes with which a zstd frame begins that is no data; the first is 0x50 to 0x5f."""
_DICTIONARY = 0x5D
"""The first of these bytes where the frame is a dictionary for all others, as archives in zstd may begin with."""
_RECORD = b"WARC/"
_READ = 1 * MIB
_FED = 16 * KIB
"""Bytes that are unpacked at a time: those behind a member are copied with it."""
_HEAD = 64
_UNPACKED = 1 * MIB
_PLAIN = 0x1C
"""The flags of a gzip member (RFC 1952, 2.3.1) that `isal` reads as zlib does: extra field, name, comment."""
_WHOLE = 4 * MIB
"""Members of more bytes, unpacked, are not held until their checksum is known."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some unpacked bytes of a file."""

    data: bytes
    place: int
    """The byte of the file at which they, or the member that they are of, begin."""
    begins: bool = False
    """Whether a member begins here."""
    lost: str | None = None
    """Why bytes before these could not be read."""
    within: bool = False
    """Whether what was lost is the rest of the member before, of which some bytes were read."""
    whole: bool = False
    """Whether these are all bytes of a member."""


def codec_of(name: str) -> Codec | None:
    """Returns how a file of this name is compressed."""
    return "gzip" if name.endswith(".gz") else "zstd" if name.endswith((".zst", ".zstd")) else None


def blocks(file: BinaryIO, codec: Codec | None) -> Iterator[Block]:
    """Yields the unpacked bytes of a seekable file. What is broken is left out, up to the next member that begins with
    a record; the block behind it, which may be empty, says why."""
    if codec is None:
        place = 0
        while data := file.read(_UNPACKED):
            yield Block(data, place, begins=place == 0)
            place += len(data)
        return
    yield from _Packed(file, codec).blocks()


class _Broken(Exception):
    """A member is broken or cut off."""


class _Packed:
    """A compressed file, member by member."""

    def __init__(self, file: BinaryIO, codec: Codec) -> None:
        self._file = file
        self._codec = codec
        self._magic = GZIP if codec == "gzip" else ZSTD
        self._dictionary: bytes | None = None
        self._window = b""
        """Bytes of the file that were read."""
        self._start = 0
        """The byte of the file at which the window begins."""

    def blocks(self) -> Iterator[Block]:
        place, lost, within = 0, None, False
        while head := self._at(place, _HEAD, _HEAD):
            begins = True
            try:
                if (behind := self._no_data(place, head)) is not None:
                    place = behind
                    continue
                if not head.startswith(self._magic):
                    raise _Broken(f"no {self._codec} member begins at byte {place:,}")
                for data, end in self._member(place):
                    if data and begins and lost is not None and not data.startswith(_RECORD):
                        raise _Broken(lost)
                    if data:
                        yield Block(data, place, begins, lost, within, whole=begins and end is not None)
                        begins, lost, within = False, None, False
                    if end is not None:
                        place = end
            except _Broken as error:
                if lost is None:
                    lost, within = str(error), not begins
                # Behind its first byte: it may be shorter than it seems.
                found = self._found(place + 1)
                if found is None:
                    break
                place = found
        if lost is not None:
            yield Block(b"", place, begins=True, lost=lost, within=within)

    def _at(self, place: int, size: int = 1, most: int = _FED) -> bytes:
        """Returns bytes of the file: at least so many, unless it ends, and at most `most`; none at its end."""
        if place < self._start or place + size > self._start + len(self._window):
            self._file.seek(place)
            self._window, self._start = self._file.read(_READ), place
        at = place - self._start
        return self._window[at : at + most]

    def _found(self, place: int) -> int | None:
        """Returns where the next member seems to begin, at `place` or behind it."""
        while len(data := self._at(place, len(self._magic), _READ)) >= len(self._magic):
            if (found := data.find(self._magic)) >= 0:
                return place + found
            place += len(data) - len(self._magic) + 1
        return None

    def _no_data(self, place: int, head: bytes) -> int | None:
        """Returns where a frame that is no data ends; None if there is none. Keeps a dictionary. Raises _Broken for one
        that ends behind the file: its length, behind which all else would be skipped, may be wrong."""
        if self._codec != "zstd" or head[1:4] != _SKIPPED or len(head) < 8 or not 0x50 <= head[0] <= 0x5F:
            return None
        size = int.from_bytes(head[4:8], "little")
        end = place + 8 + size
        if end > self._file.seek(0, io.SEEK_END):
            raise _Broken(f"the zstd frame at byte {place:,} is cut off")
        if head[0] == _DICTIONARY and place == 0 and size <= 64 * MIB:
            self._file.seek(8)
            self._dictionary = _usable(self._file.read(size))
        return end

    def _member(self, place: int) -> Iterator[tuple[bytes, int | None]]:
        """Yields the unpacked bytes of a member; with the last ones, the place behind it."""
        what = f"the {self._codec} member at byte {place:,}"
        if self._codec == "zstd":
            end = _frame_end(self._file, place)
            if end is None:
                raise _Broken(f"{what} is cut off")
            try:
                for data in _zstd(_part(self._file, place, end), self._dictionary):
                    yield data, None
            except OSError as error:
                raise _Broken(f"{what} is broken: {error}") from error
            yield b"", end
            return
        if (whole := self._whole(place)) is not None:
            yield whole
            return
        inflate = zlib.decompressobj(wbits=31)
        at, sent = place, 0
        while not inflate.eof:
            data = self._at(at)
            if not data:
                raise _Broken(f"{what} is cut off")
            at += len(data)
            while data and not inflate.eof:
                try:
                    unpacked = inflate.decompress(data, _UNPACKED)
                except zlib.error as error:
                    yield from self._until_broken(place, sent)
                    raise _Broken(f"{what} is broken: {error}") from error
                data = inflate.unconsumed_tail
                sent += len(unpacked)
                yield unpacked, None
        yield b"", at - len(inflate.unused_data)

    def _whole(self, place: int) -> tuple[bytes, int] | None:
        """Returns the unpacked bytes of a gzip member and the place behind it, if isal can unpack it, its length and
        checksum are right, and it is not large. What there is of others, zlib alone says."""
        header = self._at(place, 4, 4)
        if len(header) < 4 or header[3] & ~_PLAIN:
            return None
        inflate = isal_zlib.decompressobj(wbits=31)
        pieces: list[bytes] = []
        at, size = place, 0
        while not inflate.eof:
            data = self._at(at)
            if not data:
                return None
            at += len(data)
            while data and not inflate.eof:
                try:
                    unpacked = inflate.decompress(data, _UNPACKED)
                except IsalError:  # type: ignore[misc]
                    return None
                data = inflate.unconsumed_tail
                size += len(unpacked)
                if size > _WHOLE:
                    return None
                pieces.append(unpacked)
        return b"".join(pieces), at - len(inflate.unused_data)

    def _until_broken(self, place: int, sent: int) -> Iterator[tuple[bytes, None]]:
        """Yields what there is of a broken gzip member behind the bytes that were sent: it is unpacked once more, a
        byte at a time where it is broken."""
        inflate, read = zlib.decompressobj(wbits=31), 0
        while data := self._at(place):
            place += len(data)
            before = inflate.copy()
            found = b""
            try:
                found = inflate.decompress(data)
            except zlib.error:
                yield until_broken(before, data)[max(0, sent - read) :], None
                return
            if read + len(found) > sent:
                yield found[max(0, sent - read) :], None
            read += len(found)


def _part(file: BinaryIO, start: int, end: int) -> BinaryIO:
    """Returns a part of a file, as a file."""

    def fetch(first: int, last: int) -> bytes:
        file.seek(start + first)
        return file.read(last - first)

    return range_stream(fetch, end - start)


def _zstd(data: BinaryIO, dictionary: bytes | None) -> Iterator[bytes]:
    """Yields the unpacked bytes of a frame. Raises OSError if it is broken."""
    from fastwarc.stream_io import ZstdReader

    reader = ZstdReader(data, dictionary=dictionary)
    while unpacked := reader.read(_UNPACKED):
        yield unpacked


def _usable(dictionary: bytes) -> bytes | None:
    """Returns the dictionary of an archive, unpacked; None if it is broken: frames that need it are broken then."""
    from fastwarc.stream_io import ZstdReader

    try:
        if dictionary.startswith(ZSTD):
            dictionary = b"".join(_zstd(io.BytesIO(dictionary), None))
        ZstdReader(io.BytesIO(), dictionary=dictionary)
    except OSError:
        return None
    except BaseException as error:
        # What `fastwarc` raises of one that it cannot use, which is no Exception and has no public name.
        if type(error).__name__ != "PanicException":
            raise
        return None
    return dictionary


def _frame_end(file: BinaryIO, place: int) -> int | None:
    """Returns where a zstd frame ends, by the lengths in it (RFC 8878, 3.1.1); None if it is cut off."""
    file.seek(place + 4)
    described = file.read(1)
    if not described:
        return None
    flags = described[0]
    single = flags >> 5 & 1
    header = (not single) + (0, 1, 2, 4)[flags & 3] + ((1 if single else 0), 2, 4, 8)[flags >> 6]
    at = place + 5 + header
    while True:
        file.seek(at)
        block = file.read(3)
        if len(block) < 3:
            return None
        word = int.from_bytes(block, "little")
        kind, size = word >> 1 & 3, word >> 3
        if kind == 3:
            return None
        at += 3 + (1 if kind == 1 else size)
        if word & 1:
            break
    at += 4 * (flags >> 2 & 1)
    file.seek(at - 1)
    return at if file.read(1) else None
