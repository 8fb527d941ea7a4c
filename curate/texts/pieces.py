"""Texts in pieces: lines, paragraphs; an array of all pieces, and the text that each is of."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow.types import is_text
from curate.dataclass import dataclass
from curate.late_pandas import numbers, text

Array = np.ndarray[Any, Any]

_BREAKS = r"\r\n|[\n\r\x0b\x0c\x1c-\x1e\x{85}\x{2028}\x{2029}]"
"""Where Python's `str.splitlines` splits."""


@dataclass(frozen=True)
class Pieces:
    """The pieces of each of a number of texts, one after the other, in order."""

    text: pa.Array
    """All pieces, those of the first text first."""
    owner: Array
    """The number of the text that each piece is of."""
    texts: int
    """How many texts there are, with pieces or without."""

    def where(self, chosen: pa.Array | Array) -> Pieces:
        """Returns the pieces for which `chosen` is true."""
        mask = numbers(chosen) if isinstance(chosen, pa.Array) else chosen
        return Pieces(self.text.filter(pa.array(mask)), self.owner[mask], self.texts)

    def count(self, chosen: pa.Array | Array | None = None) -> Array:
        """Returns for each text how many of its pieces there are, or are chosen."""
        return per_text(self.owner, self.texts, numbers(chosen) if isinstance(chosen, pa.Array) else chosen)

    def joined(self, separator: str) -> pa.Array:
        """Returns each text's pieces as one text, which is empty where there are none."""
        ends = np.cumsum(np.bincount(self.owner, minlength=self.texts))
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        return pc.binary_join(pa.ListArray.from_arrays(offsets, self.text), pa.scalar(separator, self.text.type))

    def repeated(self) -> Array:
        """Returns which pieces are equal to an earlier one of their text."""
        return seen_before(self._codes())

    def recurring(self) -> Array:
        """Returns which pieces are equal to another one of their text."""
        codes = self._codes()
        return np.bincount(codes)[codes] > 1

    def _codes(self) -> Array:
        """Returns a number for each piece, equal for equal ones of one text, in order of first occurrence."""
        codes = numbers(self.text.dictionary_encode().indices).astype(np.int64)
        keys = pa.array(codes * max(self.texts, 1) + self.owner)
        return numbers(keys.dictionary_encode().indices)


NOT_UTF8 = "texts that are not UTF-8"
"""What is counted of texts that stay as they are, because they cannot be read."""


def readable(texts: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, int]:
    """Returns texts as one array of `large_string`, null where one is not UTF-8, and how many of these there are.

    >>> readable(pa.chunked_array([pa.array([b"a", b"\\xff"]).view(pa.string())]))[1]
    1
    """
    if pa.types.is_run_end_encoded(texts.type):
        texts = pc.run_end_decode(texts)
    plain = texts.cast(pa.large_string())
    if isinstance(plain, pa.ChunkedArray):
        plain = plain.combine_chunks()
    try:
        plain.validate(full=True)
        return plain, 0
    except pa.ArrowInvalid:
        bad = [not _is_text(one) for one in plain.view(pa.large_binary()).to_pylist()]
        return pc.if_else(pa.array(bad), pa.scalar(None, pa.large_string()), plain), sum(bad)


def shown(value: pa.Scalar) -> Any:
    """Returns a value for people: the bytes of a text that is not UTF-8, and a time of day as text, which `orjson`
    would leave a zero out of.

    >>> shown(pa.array([b"\\xff"]).view(pa.string())[0])
    b'\\xff'
    >>> shown(pa.array([64], pa.time32("ms"))[0])
    '00:00:00.064000'
    """
    try:
        found = value.as_py()
        return found.isoformat() if isinstance(found, datetime.time) else found
    except UnicodeDecodeError:
        return value.as_buffer().to_pybytes() if is_text(value.type) else f"{value.type} with texts that are not UTF-8"


def _is_text(data: bytes | None) -> bool:
    try:
        return data is None or data.decode() is not None
    except UnicodeDecodeError:
        return False


def per_text(owner: Array, texts: int, amount: Array | None = None) -> Array:
    """Returns for each text the number of its pieces, or the sum of `amount`, whole numbers below 2**53, over them."""
    if amount is None:
        return np.bincount(owner, minlength=texts)
    return np.bincount(owner, weights=amount, minlength=texts).astype(np.int64)


def seen_before(codes: Array) -> Array:
    """Returns where a code occurs again, of codes that count up from 0 in the order in which they first occur."""
    if not len(codes):
        return np.zeros(0, dtype=bool)
    highest = np.maximum.accumulate(codes)
    again = np.ones(len(codes), dtype=bool)
    again[0] = False
    again[1:] = codes[1:] <= highest[:-1]
    return again


def ratio(part: Array, whole: Array) -> Array:
    """Returns part / whole as doubles; 0 where there is no whole."""
    return np.divide(part, whole, out=np.zeros(len(part)), where=np.asarray(whole) != 0)


def lengths(texts: pa.Array) -> Array:
    """Returns how many characters each text has."""
    return numbers(pc.utf8_length(texts))


def occurrences(texts: pa.Array, *marks: str) -> Array:
    """Returns how often any of the `marks` occurs in each text."""
    counts: list[Any] = [numbers(pc.count_substring(texts, mark)) for mark in marks]
    found: Array = sum(counts)
    return found


def split_lines(texts: pa.Array) -> Pieces:
    """Returns the lines of texts as `str.splitlines` does: with their blanks, blank lines too.

    >>> split_lines(pa.array(["a\\r\\n b\\n", ""])).text.to_pylist()
    ['a', ' b']
    """
    pieces = split(texts, _BREAKS, regex=True)
    # What is behind the last break is a line only if there is anything.
    last = np.ones(len(pieces.owner), dtype=bool)
    last[:-1] = pieces.owner[1:] != pieces.owner[:-1]
    empty = numbers(pc.equal(pieces.text, text("")))
    return pieces.where(~(last & empty))


def split(texts: pa.Array, at: str, *, regex: bool = False) -> Pieces:
    """Returns the parts of texts between the separators `at`, empty ones too."""
    parts = pc.split_pattern_regex(texts, at) if regex else pc.split_pattern(texts, at)
    return Pieces(parts.flatten(), numbers(pc.list_parent_indices(parts)), len(texts))


def not_blank(pieces: Pieces) -> Pieces:
    """Returns the pieces that have anything but white space."""
    return pieces.where(pc.not_equal(pc.utf8_trim_whitespace(pieces.text), text("")))
