"""Records out of WARC files (ISO 28500), one after the other, and what is broken between them.

Every record is told exactly once: as a record, or as broken with its reason. A record is broken if it is cut off, if
its member cannot be unpacked or has another checksum, if its header cannot be read, or if its length is not that of its
body. Behind a broken one, reading goes on with the next that can be found: the next member that begins with a record,
or the next line in the same one that does.

`fastwarc` is not used for this: at the first broken member it leaves the rest of the file, and a length that is too
large gives, without a word, a body with the records behind it.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from operator import eq

from curate.dataclass import dataclass, replace
from curate.units import KIB, MIB
from curate.web.fields import fields
from curate.web.members import Block

MAX_HEADER = 1 * MIB
_BEGIN = b"WARC/"
_HEADER_END = re.compile(rb"\r?\n\r?\n")
_HEAD = re.compile(rb"WARC/[01]\.[0-9]{1,2}\r?\n[A-Za-z-]+:")
_NEXT = re.compile(rb"\n(?=" + _HEAD.pattern + rb")")
"""Where another record begins; it is looked at with some bytes behind."""
_FIELD = re.compile(rb"\n(WARC/|WARC-[A-Za-z-]+:)")
_LINES = b"\r\n\r\n"
"""What comes behind a record."""
_BETWEEN = b"\r\n" + codecs.BOM_UTF8
"""Bytes of which nothing is a part of a record."""
_LOOK = 64
_CHUNK = 256 * KIB
_DIGITS = 18
_END = Block(b"", 0, begins=True)
"""What comes behind the last block."""


@dataclass(frozen=True, slots=True)
class Record:
    """A whole record."""

    headers: Mapping[str, str]
    """By their names in lower case."""
    body: bytes | None
    """None: it is larger than was asked for."""
    size: int


@dataclass(frozen=True, slots=True)
class Broken:
    """What could not be read: one record, or what lies between two."""

    reason: str
    headers: Mapping[str, str]
    """Of the record, as far as they were read."""


def records(blocks: Iterator[Block], most: int, *, packed: bool) -> Iterator[tuple[int, Record | Broken]]:
    """Yields each record, or what is broken, with the byte of the file at which it, or its member, begins. The body of
    a record of more than `most` bytes is left out. `packed`: the blocks are of a compressed file."""
    yield from _Reader(blocks, most, packed).records()


class _Reader:
    """Unpacked bytes, and where the member that they are of ends, if another record begins behind it."""

    def __init__(self, blocks: Iterator[Block], most: int, packed: bool) -> None:
        self._blocks = blocks
        self._most = most
        self._packed = packed
        self._data = bytearray()
        self._place = 0
        """The byte of the file at which `_data`, or the member in which it begins, does."""
        self._held: Block | None = None
        """What is behind `_data`: the first block of the next member."""

    def records(self) -> Iterator[tuple[int, Record | Broken]]:
        fresh = False
        while True:
            self._drop(self._line_ends(0))
            if self._data:
                place = self._place
                yield place, self._record(alone=fresh)
                fresh = False
                continue
            held = self._held
            assert held is not None
            if held.lost is not None:
                yield held.place, Broken(held.lost, {})
            if held is _END:
                return
            self._held, self._place, fresh = None, held.place, self._packed
            if held.whole and (record := _alone(held.data, self._most)) is not None:
                yield held.place, record
                continue
            self._data += held.data

    def _record(self, alone: bool) -> Record | Broken:
        """`alone`: it is the first of a member, which tells where it ends."""
        self._fill(len(_BEGIN))
        if not self._data.startswith(_BEGIN):
            reason = f"no record begins with {bytes(self._data[:40])!r}"
            headers = self._damaged_head(0)
            self._go_on()
            return Broken(reason, headers)
        end = self._header_end()
        if end is None:
            reason = self._loss() or "its header has no end"
            self._drop(len(_BEGIN))
            self._go_on()
            return Broken(reason, {})
        headers = fields(self._data[:end].decode("utf-8", "replace"))
        if (size := _length(headers)) is None:
            self._drop(len(_BEGIN))
            self._go_on()
            length = headers.get("content-length", "").strip()
            return Broken(f"the record does not say its length: Content-Length is {length[:40]!r}", headers)
        self._drop(end)
        if size > self._most:
            return self._large(headers, size, alone)
        if (found := self._fill(size)) < size:
            return self._cut(headers, size, found)
        end, wrong = self._behind(size)
        if wrong is not None:
            return Broken(wrong, headers)
        with memoryview(self._data) as data:
            body = bytes(data[:size])
        self._drop(end)
        return Record(headers, body, size)

    def _large(self, headers: Mapping[str, str], size: int, alone: bool) -> Record | Broken:
        """Leaves a body out, without holding it, so there is no way back: unless its member tells where it ends, it
        ends where another record begins."""
        left = size
        while left:
            found = self._fill(min(left, _CHUNK))
            if not found:
                return self._cut(headers, size, size - left)
            if not alone:
                self._fill(found + _LOOK)
                inner = _NEXT.search(self._data, 0, found + _LOOK)
                if inner is not None and inner.end() < left:
                    self._drop(inner.end())
                    at = size - left + inner.end()
                    return Broken(f"it says {size:,} bytes, and another record begins after {at:,}", headers)
            left -= found
            self._drop(found)
        _, reason = self._behind(0)
        return Record(headers, None, size) if reason is None else Broken(reason, headers)

    def _behind(self, size: int) -> tuple[int, str | None]:
        """Returns where the line ends behind a body end, and what is wrong with what comes there, which is to be
        another record; if it is wrong, goes on behind it."""
        end = self._line_ends(size)
        if len(self._data) == end:
            if (reason := self._loss()) is not None:
                self._drop(end)
            return end, reason
        # Or the file ends within this.
        if _BEGIN.startswith(self._data[end : end + len(_BEGIN)]):
            return end, None
        # What comes behind is damaged, and is where it should be.
        same = sum(map(eq, self._data[size : size + len(_LINES)], _LINES))
        if same == len(_LINES) and self._damaged_head(end):
            return end, None
        if same == len(_LINES) - 1 and _HEAD.match(self._data, size + len(_LINES)):
            return size + len(_LINES), None
        self._go_on()
        return end, "it has not the length that it says"

    def _line_ends(self, start: int) -> int:
        """Returns where the line ends that begin at `start` end, and a byte order mark as editors put it before a file;
        some bytes behind are there."""
        while True:
            wanted = start + _LOOK
            found = self._fill(wanted, across=False)
            start = found - len(self._data[start:found].lstrip(_BETWEEN))
            if start + len(_BEGIN) <= found or found < wanted:
                return start

    def _cut(self, headers: Mapping[str, str], size: int, found: int) -> Broken:
        """A record ends before its length; one that begins within it is not lost."""
        where = "the file ends" if self._held is _END else "another record begins"
        reason = self._loss() or f"it says {size:,} bytes, and {where} after {found:,}"
        self._go_on()
        return Broken(reason, headers)

    def _loss(self) -> str | None:
        """Returns why the rest of the member could not be read, once."""
        if self._held is None or self._held.lost is None or not self._held.within:
            return None
        reason = self._held.lost
        self._held = replace(self._held, lost=None)
        return reason

    def _header_end(self) -> int | None:
        size = 4 * KIB
        while True:
            for across in (False, True):
                found = self._fill(size, across=across)
                if (end := _HEADER_END.search(self._data, 0, found)) is not None:
                    return end.end()
            if found < size or size > MAX_HEADER:
                return None
            size *= 4

    def _damaged_head(self, start: int) -> dict[str, str]:
        """Returns the fields of a record whose header begins at `start`, its first line damaged; none if nothing of a
        header is there."""
        stop = self._fill(start + 4 * KIB, across=False)
        if (end := _HEADER_END.search(self._data, start, stop)) is not None:
            stop = end.start()
        found = _FIELD.search(self._data, start, stop)
        if found is None or found[1] == _BEGIN:
            return {}
        return fields(self._data[start:stop].decode("utf-8", "replace"))

    def _go_on(self) -> None:
        """Leaves all out up to the next record, which begins here or with a line, or to the end of the member."""
        if _HEAD.match(self._data):
            return
        while (begin := _NEXT.search(self._data)) is None:
            found = len(self._data)
            if self._fill(found + _CHUNK) == found:
                self._drop(found)
                # Whatever else is wrong with this member is told with what was wrong first.
                self._loss()
                return
            self._drop(max(0, found - _LOOK))
        self._drop(begin.end())

    def _fill(self, size: int, *, across: bool = True) -> int:
        """Reads until there are so many bytes, or all up to the next member that begins with a record, or, unless
        `across`, that begins at all; returns how many of these there are."""
        while len(self._data) < size:
            if self._held is None:
                block = next(self._blocks, _END)
                if block.begins:
                    self._held = block
                    continue
            elif (
                across and self._held.lost is None and not self._held.data.startswith(_BEGIN) and self._held is not _END
            ):
                # Packers that work in blocks begin members anywhere.
                block, self._held = self._held, None
            else:
                break
            self._data += block.data
        return min(len(self._data), size)

    def _drop(self, size: int) -> None:
        del self._data[:size]
        if not self._packed:
            self._place += size


def _alone(member: bytes, most: int) -> Record | None:
    """Returns the record that a member is, to its last byte, as most are; None where there is more to say."""
    if not member.startswith(_BEGIN) or (end := _HEADER_END.search(member, 0, MAX_HEADER)) is None:
        return None
    headers = fields(member[: end.end()].decode("utf-8", "replace"))
    size = _length(headers)
    if size is None or size > most or len(member) != end.end() + size + len(_LINES) or not member.endswith(_LINES):
        return None
    return Record(headers, member[end.end() : -len(_LINES)], size)


def _length(headers: Mapping[str, str]) -> int | None:
    """Returns how long a record says that it is; None if it does not."""
    length = headers.get("content-length", "").strip()
    return int(length) if length.isascii() and length.isdecimal() and len(length) <= _DIGITS else None
