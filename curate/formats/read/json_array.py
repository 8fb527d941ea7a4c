"""Files that are one JSON array, element by element: `json.dump` of a list, and what many tools export.

The end of an element is found by brackets and strings alone; the parser checks whether it is JSON and an object. So a
malformed element costs only itself, as a malformed line does. Memory holds one block and one element.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from curate.errors import CorruptInput, ObjectNotFound
from curate.objects.stream import BLOCK_BYTES, DecompressedStream
from curate.storage.protocol import Object, Store

HEAD_BYTES = 64 << 10
"""Bytes at the beginning of a file that tell whether it is an array."""
_LARGEST_ELEMENT_BYTES = 1 << 28
_BOM = b"\xef\xbb\xbf"
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_IN_ARRAY = re.compile(rb'(?:[^"\[\]{},]++|' + _STRING + rb")*+", re.DOTALL)
"""Up to what begins or ends an element, or a string that does not end."""
_IN_ELEMENT = re.compile(rb'(?:[^"\[\]{}]++|' + _STRING + rb")*+", re.DOTALL)


def is_array(head: bytes) -> bool:
    r"""Returns whether a file that begins so is a JSON array, and not lines of which the first one is an array.

    >>> is_array(b' [{"a": 1},\n {"a": 2}]\n'), is_array(b"[1]\n[2]\n"), is_array(b'{"a": [1]}')
    (True, False, False)
    """
    head = head[:HEAD_BYTES].removeprefix(_BOM).lstrip()
    if not head.startswith(b"["):
        return False
    found = _Elements(head)
    found.scan()
    closed = found.ended and b"\n" not in head[: found.at]
    return not (closed and head[found.at :].strip())


def stored_as_array(store: Store, object: Object) -> bool:
    """Returns whether an uncompressed object is a JSON array, by its first 64 KiB; one that is gone is none."""
    try:
        return is_array(store.read(object.uri, 0, min(HEAD_BYTES, object.size)))
    except ObjectNotFound:
        return False


def element_blocks(source: DecompressedStream, uri: str) -> Iterator[list[bytes]]:
    """Yields the elements of an array as they stand, without the space around them, about a block of them at a time;
    the source is at its beginning. What follows the array is left in the source.

    An element of which there is nothing is empty. Raises CorruptInput for an array that does not end, and for an
    element of more than 256 MiB.
    """
    found = _Elements(source.read(BLOCK_BYTES).removeprefix(_BOM).lstrip())
    elements = 0
    while not found.ended:
        if block := found.scan():
            elements += len(block)
            yield block
        if found.ended:
            break
        if found.held > _LARGEST_ELEMENT_BYTES:
            raise CorruptInput(
                f"{uri}: element {elements + 1:,} of the JSON array is larger than {_LARGEST_ELEMENT_BYTES >> 20} MiB; "
                "is a quote or a bracket not closed?"
            )
        # As much again as is held, so that no byte of a large element is looked at more than twice.
        more = source.read(max(BLOCK_BYTES, found.held))
        if not more:
            raise CorruptInput(
                f"{uri}: ends within element {elements + 1:,} of a JSON array, expected a closing ]; it is truncated, "
                "or a quote or a bracket is not closed: write it again, preferably as one JSON object per line"
            )
        found.add(more)
    source.unread(found.rest)


class _Elements:
    """Finds elements in an array that comes in pieces, of which the first begins with its bracket."""

    def __init__(self, data: bytes) -> None:
        self.ended = False
        self.at = 1
        """Where the scan goes on; behind the array's end once it has ended."""
        self._data = data
        self._start = 1
        """Where the element at hand begins."""
        self._depth = 0

    @property
    def held(self) -> int:
        """Bytes of the element at hand so far."""
        return len(self._data) - self._start

    @property
    def rest(self) -> bytes:
        """What follows the array, as far as it was added."""
        return self._data[self.at :]

    def add(self, data: bytes) -> None:
        """Takes the bytes that come next."""
        self._data = self._data[self._start :] + data
        self.at -= self._start
        self._start = 0

    def scan(self) -> list[bytes]:
        """Returns the elements that end in what was added."""
        data = self._data
        found: list[bytes] = []
        while True:
            match = (_IN_ELEMENT if self._depth else _IN_ARRAY).match(data, self.at)
            assert match is not None
            self.at = match.end()
            mark = data[self.at : self.at + 1]
            if not mark or mark == b'"':
                return found  # a string whose end is to come begins anew
            self.at += 1
            if mark in b"[{":
                self._depth += 1
            elif self._depth:
                self._depth -= 1
            elif mark != b"}":  # one that closes nothing is part of a malformed element
                found.append(data[self._start : self.at - 1].strip())
                self._start = self.at
                if mark == b"]":
                    self.ended = True
                    return found
