"""Texts in units that are compared across a corpus: lines, paragraphs, sentences. What is between them is of none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.dataclass import dataclass
from curate.imports import need
from curate.late_pandas import numbers, text
from curate.texts.pieces import Array, lengths

PARAGRAPH, LINE, SENTENCES = "paragraph", "line", "sentences"
UNITS = (PARAGRAPH, LINE, SENTENCES)

VERSION = 1
"""Of where units begin and end. Goes into the identity of what depends on it."""

_BREAK = 0x0A


@dataclass(frozen=True)
class Units:
    """The units of each of a number of texts, one after the other, in order; none of them is blank."""

    text: pa.Array
    """What each unit says: of `large_string`."""
    owner: Array
    """The number of the text that each is of."""
    start: Array
    """The character of that text that it begins with."""
    stop: Array
    """The character behind its last one."""
    texts: int
    """How many texts there are, with units or without."""


class Sentences(Protocol):
    """Says where the sentences of a text are."""

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yields the first characters of sentences, and those behind the last ones, in order; blanks may be around."""


def units(texts: pa.Array, unit: str, sentences: Sentences | None = None) -> Units:
    """Returns the units of texts, of which null has none.

    A `line` ends at a line feed, a `paragraph` at a blank line; `sentences` are as the given rules have them.

    >>> found = units(pa.array(["a\\n\\nb\\nc", None, "\\n d"]), "paragraph")
    >>> found.text.to_pylist(), found.owner.tolist(), found.start.tolist(), found.stop.tolist()
    (['a', 'b\\nc', ' d'], [0, 0, 2], [0, 3, 1], [1, 6, 3])
    """
    texts = texts.cast(pa.large_string()).fill_null("")
    if unit == SENTENCES:
        return _by_sentence(texts, sentences or PlainSentences())
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    if texts.buffers()[2] is None or not len(texts):
        none = np.zeros(0, np.int64)
        return Units(pa.array([], pa.large_string()), none, none, none, len(texts))
    data = texts.buffers()[2]
    breaks = offsets[0] + np.flatnonzero(np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]] == _BREAK)
    starts = np.sort(np.concatenate([offsets[:-1], breaks + 1]))
    stops = np.sort(np.concatenate([breaks, offsets[1:]]))
    owner = np.repeat(np.arange(len(texts)), 1 + np.diff(np.searchsorted(breaks, offsets)))
    some = ~_blank(data, starts, stops)
    if unit == PARAGRAPH:
        apart = np.append(True, owner[1:] != owner[:-1])
        before = np.append(False, some[:-1]) & ~apart
        after = np.append(some[1:], False) & np.append(~apart[1:], False)
        first, last = some & ~before, some & ~after
    else:
        first = last = some
    starts, stops, owner = starts[first], stops[last], owner[first]
    at = _characters(data, offsets, starts, stops)
    zero = at(offsets[:-1])[owner]
    return Units(_cut(data, starts, stops), owner, at(starts) - zero, at(stops) - zero, len(texts))


def _array(data: Any, cuts: Array) -> pa.Array:
    """Returns what is between cuts as an array of texts."""
    return pa.Array.from_buffers(pa.large_string(), len(cuts) - 1, [None, pa.py_buffer(cuts.tobytes()), data])


def _cut(data: Any, starts: Array, stops: Array) -> pa.Array:
    """Returns the texts of ranges of bytes that are in order and do not overlap."""
    cuts = np.stack([starts, stops], axis=1).ravel()
    if not len(cuts):
        return pa.array([], pa.large_string())
    return _array(data, cuts).take(pa.array(np.arange(0, len(cuts), 2)))


def _blank(data: Any, starts: Array, stops: Array) -> Array:
    """Returns which ranges have nothing but white space."""
    return numbers(pc.equal(pc.utf8_trim_whitespace(_cut(data, starts, stops)), text("")))


def _characters(data: Any, *cuts: Array) -> Any:
    """Returns a function from bytes, which are among `cuts`, to numbers of characters."""
    known = np.unique(np.concatenate(cuts))
    number = np.concatenate([[0], np.cumsum(lengths(_array(data, known)))])
    return lambda at: number[np.searchsorted(known, at)]


def _by_sentence(texts: pa.Array, sentences: Sentences) -> Units:
    found: list[str] = []
    owner: list[int] = []
    spans: list[tuple[int, int]] = []
    for number, whole in enumerate(texts.to_pylist()):
        for first, last in sentences.spans(whole):
            said = whole[first:last]
            left = said.lstrip()
            first += len(said) - len(left)
            left = left.rstrip()
            if left:
                found.append(left)
                owner.append(number)
                spans.append((first, first + len(left)))
    ends = np.array(spans, np.int64).reshape(-1, 2)
    return Units(pa.array(found, pa.large_string()), np.array(owner, np.int64), ends[:, 0], ends[:, 1], len(texts))


# Of what may repeat without a bound, what follows is never looked for: it takes linear time.
_END = re.compile(r"""[.!?…]["'”’»)\]]{0,8}\s+|[。！？]["'”’」』）]{0,8}\s*""")


class PlainSentences:
    """Sentences end at a mark of punctuation, with quotes and brackets behind it, before white space."""

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yields where sentences are; abbreviations are taken for ends.

        >>> [*PlainSentences().spans('He said: "No." And so on')]
        [(0, 15), (15, 24)]
        """
        start = 0
        for match in _END.finditer(text):
            yield start, match.end()
            start = match.end()
        if start < len(text):
            yield start, len(text)


class SpacySentences:
    """Sentences of spaCy's rules for English (its `sentencizer`), as datatrove splits texts."""

    def __init__(self) -> None:
        instead = "; or choose 'whitespace', which needs nothing"
        need("spacy", "sentences as spaCy has them need spaCy", "words", instead)
        import spacy

        self._nlp: Any = spacy.blank("en")
        self._nlp.add_pipe("sentencizer")

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yields where sentences are."""
        with self._nlp.memory_zone():
            self._nlp.max_length = len(text) + 10
            yield from [(one.start_char, one.end_char) for one in self._nlp(text).sents]
