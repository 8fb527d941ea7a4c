"""Words in a row: hashes of n-grams, and where they are in their texts.

A text is first split at white space into *chunks*. Each different chunk is brought into the form that is compared, and
split into words, once. So an n-gram knows the chunks that it is of, and by them its place in the text as it was.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from curate.arrow.hashing import hash_bytes
from curate.dataclass import dataclass
from curate.texts.pieces import Array
from curate.texts.words import Splitter, Words, by_whitespace

VERSION = 1
"""Of the hash. Goes into the identity of what depends on it."""

_BLANK = np.array([chr(point).isspace() for point in range(0x3002)])
"""Which characters are white space; none behind these are."""

Form = Callable[[pa.Array], pa.Array]
"""Brings texts into the form that is compared."""

_FACTOR = 0x9E3779B97F4A7C15
_INVERSE = pow(_FACTOR, -1, 1 << 64)


@dataclass(frozen=True)
class Tokens:
    """The words of texts as they are compared, and the chunks that they are of."""

    words: Words
    chunk: Array
    """The number of the chunk that each word is of, of all chunks of all texts."""
    chunks: Words

    def spans(self, text: str, number: int) -> tuple[Array, Array]:
        """Returns where the chunks of a text begin and end, which is that number, in characters."""
        first, last = np.searchsorted(self.chunks.owner, [number, number + 1])
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        blank = _BLANK[np.minimum(points, len(_BLANK) - 1)]
        edges = np.flatnonzero(np.diff(np.concatenate([[True], blank, [True]])))
        if len(edges) == 2 * (last - first):
            return edges[::2], edges[1::2]
        # White space that is news to this Python, or to Arrow: chunk by chunk.
        said = self.chunks.vocabulary.take(pa.array(self.chunks.code[first:last])).to_pylist()
        starts = np.empty(len(said), np.int64)
        at = 0
        for place, chunk in enumerate(said):
            starts[place] = text.index(chunk, at)
            at = int(starts[place]) + len(chunk)
        return starts, starts + np.fromiter(map(len, said), np.int64, len(said))


def tokens(texts: pa.Array, form: Form, split: Splitter) -> Tokens:
    """Returns the words of texts; null has none.

    >>> from curate.texts.words import PlainWords
    >>> found = tokens(pa.array(["To be, or", None, "be"]), lambda texts: pa.compute.utf8_lower(texts), PlainWords())
    >>> found.words.vocabulary.take(pa.array(found.words.code)).to_pylist(), found.words.owner.tolist()
    (['to', 'be,', 'or', 'be'], [0, 0, 0, 2])
    """
    chunks = by_whitespace(texts.fill_null(""))
    made = split.words(form(chunks.vocabulary))
    sizes = made.count[chunks.code]
    ends = np.cumsum(sizes)
    starts = np.cumsum(made.count) - made.count
    # The n-th word of an occurrence is the n-th of its chunk.
    places = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes - starts[chunks.code], sizes)
    owner = np.repeat(chunks.owner, sizes)
    words = Words(made.vocabulary, made.code[places], owner, len(texts))
    return Tokens(words, np.repeat(np.arange(len(chunks.code)), sizes), chunks)


def ngrams(words: Words, n: int) -> tuple[Array, Array]:
    """Returns a hash of 64 bits of each n words in a row of a text, and the number of the first word.

    It takes the same time for any `n`: the hash is a polynomial of those of the words, modulo 2**64.

    >>> from curate.texts.words import by_whitespace
    >>> hashes, first = ngrams(by_whitespace(pa.array(["a b a b", "b", "a b"])), 2)
    >>> first.tolist(), bool(hashes[0] == hashes[2] == hashes[3]), bool(hashes[0] == hashes[1])
    ([0, 1, 2, 5], True, False)
    """
    first = np.arange(max(0, len(words.code) - n + 1))
    first = first[words.owner[first] == words.owner[first + n - 1]]
    if not len(first):
        return np.zeros(0, np.uint64), first
    own = hash_bytes(words.vocabulary)
    rising = np.cumprod(np.full(len(words.code) + 1, _FACTOR, np.uint64))
    falling = np.cumprod(np.full(len(words.code), _INVERSE, np.uint64))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(own[words.code] * falling)])
    hashes = (sums[first + n] - sums[first]) * rising[first + n - 1]
    # The lowest bits of a product depend on the lowest alone.
    hashes ^= hashes >> np.uint64(32)
    hashes *= np.uint64(_FACTOR)
    hashes ^= hashes >> np.uint64(29)
    return hashes, first


def said(words: Words, first: Array, n: int) -> list[str]:
    """Returns n-grams as texts, their words with blanks between."""
    if not len(first):
        return []
    code = words.code[(np.asarray(first)[:, None] + np.arange(n)).ravel()]
    found = words.vocabulary.take(pa.array(code)).to_pylist()
    return [" ".join(found[at : at + n]) for at in range(0, len(found), n)]
