r"""Lines of a source, a block at a time, the rule that makes byte slices partition a file, and what JSON in them says.

A slice [start, stop) owns the lines that *begin* in it. So it begins after the first line end at or behind byte
start - 1 and ends with the first line end at or behind byte stop - 1: the same rule for both, hence neighbours meet.

    bytes    a a \n b b b \n c \n          slices [0,4) [4,9)
             0 1 2  3 4 5 6  7 8           [0,4): first \n >= 3 is 6: "aa", "bbb"
                                           [4,9): after 6: "c"
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

from curate.errors import CorruptInput
from curate.objects.charset import HEAD_BYTES, refuse_no_text
from curate.objects.stream import BLOCK_BYTES, Codec, DecompressedStream
from curate.storage.protocol import Object, Store

_BEYOND_BYTES = 64 << 10
"""Bytes read at a time behind `stop`, to finish the last line."""
LARGEST_LINE_BYTES = 1 << 28
_BOM = b"\xef\xbb\xbf"
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_NINETEEN_DIGITS = b"0" * 19
"""What numbers of 64 bits have at most, and those that are larger at least."""
_NUMBER = re.compile(rb"-?([0-9]+)([.eE]?)")


def line_blocks(
    store: Store, object: Object, codec: Codec | None, start: int = 0, stop: int | None = None
) -> Iterator[list[bytes]]:
    """Yields the lines that begin in [start, stop) without their line feed, about a block of them at a time.

    A carriage return stays; a byte order mark at the start of the file is dropped; a last line needs no line feed.
    Blank lines are kept, so that lines can be numbered. Raises CorruptInput, also for text in UTF-16 or UTF-32.
    """
    if stop is not None and stop <= start:
        return
    with DecompressedStream(store, object, codec, max(0, start - 1)) as source:
        yield from lines_of(source, start, stop)


def lines_of(source: DecompressedStream, start: int = 0, stop: int | None = None) -> Iterator[list[bytes]]:
    """Yields the lines of a source as `line_blocks` does; it is at byte start - 1, or at the beginning."""
    begin = max(0, start - 1)
    # Bytes before the end of the line that byte start - 1 is in belong to the neighbour.
    skipping = start > 0
    at = begin  # offset of the next byte to be read
    rest: list[bytes] = []  # an unfinished line
    held = 0  # bytes in it, about
    while True:
        size = BLOCK_BYTES
        if stop is not None:
            size = min(size, stop - at) if stop > at else _BEYOND_BYTES
        if not at:
            # A mark is read as a whole, wherever the file is cut, or it would be part of the first line.
            size = max(size, HEAD_BYTES)
        block = source.read(size)
        block_at, at = at, at + len(block)
        if at == len(block):
            refuse_no_text(source.uri, block)
            if block.startswith(_BOM):
                block, block_at = block[len(_BOM) :], len(_BOM)
        if not block and at == block_at:
            if rest and not skipping and (last := b"".join(rest)):
                yield [last]
            return
        if skipping:
            end = block.find(b"\n")
            if end < 0:
                continue
            block, block_at, skipping = block[end + 1 :], block_at + end + 1, False
            if stop is not None and block_at >= stop:
                return
        finished = False
        if stop is not None and at >= stop:
            end = block.find(b"\n", max(0, stop - 1 - block_at))
            finished = end >= 0
        if not finished:
            end = block.rfind(b"\n")
        if end < 0:
            rest.append(block)
            held += len(block)
            if held > LARGEST_LINE_BYTES:
                raise CorruptInput(
                    f"{source.uri}: a line of more than {LARGEST_LINE_BYTES >> 20} MiB, which begins at byte "
                    f"{at - sum(map(len, rest)):,}{' of what it unpacks to' if source.compressed else ''}; split it, "
                    "or take it out"
                )
            continue
        rest.append(block[:end])
        held = 0
        yield (b"".join(rest) if len(rest) > 1 else rest[0]).split(b"\n")
        if finished:
            return
        rest = [block[end + 1 :]] if end + 1 < len(block) else []


def json_of(text: bytes) -> Any:
    """Returns what JSON text says, with all digits of whole numbers of more than 64 bits, of which orjson makes floats.
    Raises orjson.JSONDecodeError."""
    value = orjson.loads(text)
    if _is_beyond_64_bits(text):
        try:
            return json.loads(text)
        except RecursionError:
            pass
    return value


def _is_beyond_64_bits(text: bytes) -> bool:
    """Returns whether JSON text has a whole number of which orjson makes a float, or digits in a text that look so.
    Hashes, which many a line has, are no such numbers: Python's parser takes five times as long as orjson."""
    digits = text.translate(_DIGITS)
    at = digits.find(_NINETEEN_DIGITS)
    while at >= 0:
        start = at - 1 if text[at - 1 : at] == b"-" else at
        number = _NUMBER.match(text, start)
        assert number is not None
        # A fraction, an exponent, or a number that has one, is a float anyway.
        if text[start - 1 : start] not in _PART_OF_A_FLOAT and not number[2]:
            most = 2**63 if start < at else 2**64 - 1
            if len(number[1]) > 20 or int(number[1]) > most:
                return True
        at = digits.find(_NINETEEN_DIGITS, number.end())
    return False


_PART_OF_A_FLOAT = (b".", b"e", b"E", b"+")
