"""Texts as sets of n-grams of words or characters, each n-gram a 64-bit hash.

All of it goes through numpy, a batch of texts at a time: words are found by their bytes, a word of up to 32 bytes is
hashed eight bytes at a time, and an n-gram is a polynomial of its words. It takes 50 ns an n-gram.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow.hashing import Words, hash_bytes, hash_words
from curate.arrow.offsets import is_over, wide_type
from curate.dataclass import dataclass
from curate.dedup.normalise import normalised, worded

VERSION = 1
"""Goes into the identity of what depends on these hashes. Another way to make them is another version."""


UNITS = ("word", "character")
"""What n-grams are made of."""


Offsets = npt.NDArray[np.int64]


_TEXTS_BITS = 12
_TEXTS = 1 << _TEXTS_BITS
"""Texts whose n-grams are sorted at a time."""
_BLANK = 32
_SHORT_BYTES = 32
"""Words of more bytes, which are few, go through the library one by one."""
_BASE = np.uint64(0x9E3779B185EBCA87)
_SEED = 0x7F6A0B3C5D21E94B
"""Of hashes of n-grams; what was shorter has a seed beside it, so that it is no n-gram."""


@dataclass(frozen=True, slots=True)
class Shingles:
    """The n-grams of texts, those of text i from `offsets[i]` to `offsets[i + 1]`."""

    hashes: Words
    offsets: Offsets

    @property
    def counts(self) -> Offsets:
        """How many each text has."""
        return np.diff(self.offsets)

    @property
    def sums(self) -> Words:
        """The sum of the hashes of each text, which texts of the same n-grams have in common, and hardly any others."""
        until = np.append(np.uint64(0), np.cumsum(self.hashes))
        return until[self.offsets[1:]] - until[self.offsets[:-1]]

    def of(self, text: int) -> Words:
        """Returns those of one text."""
        return self.hashes[self.offsets[text] : self.offsets[text + 1]]


def shingles(texts: pa.Array | pa.ChunkedArray, ngram: int = 5, unit: str = "word") -> Shingles:
    """Returns the n-grams of each text, in order, the same ones as often as they are there.

    Words are as `worded` finds them. Characters are code points of `normalised` texts. A text that is shorter than one
    n-gram is one n-gram, which no longer text has; a null, or a text without a word, has none.

    >>> shingles(pa.array(["one two three four", "One, two; THREE!", "one two", "?", None]), 3).counts.tolist()
    [2, 1, 1, 0, 0]
    >>> found = shingles(pa.array(["Hello", "ello", "hell"]), 4, "character")
    >>> sorted(found.of(0)) == sorted([found.of(1)[0], found.of(2)[0]])
    True
    """
    if isinstance(texts, pa.ChunkedArray):
        texts = (texts.cast(wide_type(texts.type)) if is_over(texts) else texts).combine_chunks()
    whole = texts
    tokens = _words(whole) if unit == "word" else _characters(whole)
    return _ngrams(tokens, ngram)


def distinct(found: Shingles) -> Shingles:
    """Returns the n-grams of each text once each, by the upper 52 bits of their hashes, in the order of these; the
    lower bits are 0.

    Two of a million n-grams of one text are taken for one once in 9,000 times.

    >>> distinct(shingles(pa.array(["a a a a"]), 2)).counts.tolist()
    [1]
    """
    parts = [_distinct(found, first) for first in range(0, max(1, len(found.counts)), _TEXTS)]
    return Shingles(np.concatenate([one for one, _ in parts]), _ends(np.concatenate([counts for _, counts in parts])))


def _distinct(found: Shingles, first: int) -> tuple[Words, Offsets]:
    """Returns the n-grams of some texts, and how many each has: text and hash are sorted as one number."""
    counts = found.counts[first : first + _TEXTS]
    start = found.offsets[first]
    hashes = found.hashes[start : start + counts.sum()] >> np.uint64(_TEXTS_BITS)
    keys = hashes | (np.repeat(np.arange(len(counts), dtype=np.uint64), counts) << np.uint64(64 - _TEXTS_BITS))
    # Not np.unique, which hashes what is sorted several times as fast.
    keys.sort()
    keys = keys[np.append(True, keys[1:] != keys[:-1])[: len(keys)]]
    texts = (keys >> np.uint64(64 - _TEXTS_BITS)).astype(np.int64)
    return keys << np.uint64(_TEXTS_BITS), np.bincount(texts, minlength=len(counts))


def take_shingles(sets: Shingles, which: Offsets) -> Shingles:
    """Returns the n-grams of these texts, by number, each as often as it is asked for.

    >>> sets = Shingles(np.array([5, 6, 7], np.uint64), np.array([0, 1, 3]))
    >>> take_shingles(sets, np.array([1, 0, 1])).hashes.tolist()
    [6, 7, 5, 6, 7]
    """
    counts = sets.counts[which]
    offsets = _ends(counts)
    at = np.repeat(sets.offsets[which] - offsets[:-1], counts) + np.arange(offsets[-1])
    return Shingles(sets.hashes[at], offsets)


def _ends(counts: Any) -> Offsets:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _words(texts: pa.Array) -> Shingles:
    """Returns the hash of each word of each text."""
    plain = worded(texts)
    rows = np.frombuffer(plain.buffers()[1], np.int64)[: len(plain) + 1]
    if not len(plain) or rows[-1] == 0:
        return Shingles(np.zeros(0, np.uint64), np.zeros(len(plain) + 1, np.int64))
    data = np.frombuffer(plain.buffers()[2], np.uint8)[: rows[-1]]
    # Words begin where no word was before, or a text begins; and end where none follows, or a text ends.
    inside = data != _BLANK
    edges = np.empty(len(data) + 1, bool)
    edges[0], edges[-1] = inside[0], inside[-1]
    np.not_equal(inside[1:], inside[:-1], out=edges[1:-1])
    joined = rows[1:-1]
    joined = joined[(joined > 0) & (joined < len(data))]
    joined = np.unique(joined[inside[joined] & inside[joined - 1]])
    # Where a word goes on from one text to the next, it both ends and begins.
    found = np.sort(np.concatenate([np.flatnonzero(edges), joined, joined]))
    starts, ends = found[::2], found[1::2]
    return Shingles(_word_hashes(data, starts, ends), np.searchsorted(starts, rows).astype(np.int64))


def _word_hashes(data: npt.NDArray[np.uint8], starts: Offsets, ends: Offsets) -> Words:
    lengths = ends - starts
    # Eight bytes from any byte on.
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    eights: Words = np.ndarray((len(data),), "<u8", padded.data, strides=(1,))
    hashes = hash_words(_cut(eights[starts], lengths), _SEED)
    for at in range(8, _SHORT_BYTES, 8):
        longer = np.flatnonzero(lengths > at)
        if not len(longer):
            break
        piece = _cut(eights[starts[longer] + at], lengths[longer] - at)
        hashes[longer] = hash_words(hashes[longer] * _BASE + piece, _SEED + at)
    long = np.flatnonzero(lengths > _SHORT_BYTES)
    if len(long):
        pieces = [data[starts[one] : ends[one]].tobytes() for one in long]
        hashes[long] = hash_bytes(pa.array(pieces, pa.large_binary()), _SEED)
    return hashes


def _cut(pieces: Words, lengths: Offsets) -> Words:
    """Returns eight bytes each with zeros where the word is over."""
    over = (8 - np.minimum(lengths, 8)).astype(np.uint64) * np.uint64(8)
    return pieces & (np.uint64(0xFFFFFFFFFFFFFFFF) >> over)


def _characters(texts: pa.Array) -> Shingles:
    """Returns the code point of each character of each text, as its hash: what it is made of, polynomials mix."""
    plain = normalised(texts.cast(pa.large_string())).fill_null("")
    counts = pc.utf8_length(plain).to_numpy()
    whole = "".join(plain.to_pylist()).encode("utf-32-le")
    return Shingles(np.frombuffer(whole, "<u4").astype(np.uint64), _ends(counts))


def _ngrams(tokens: Shingles, ngram: int) -> Shingles:
    counts = tokens.counts
    rows = np.flatnonzero(counts)
    made = np.where(counts >= ngram, counts - ngram + 1, np.minimum(counts, 1))
    offsets = _ends(made)
    hashes = np.empty(offsets[-1], np.uint64)
    long = rows[counts[rows] >= ngram]
    if len(long):
        # Those that begin at every token, also across texts; then those that lie within one.
        values = tokens.hashes
        mixed = values[: len(values) - ngram + 1].copy()
        for next in range(1, ngram):
            mixed *= _BASE
            mixed += values[next : len(values) - ngram + 1 + next]
        at = np.repeat(tokens.offsets[long] - _ends(made[long])[:-1], made[long]) + np.arange(made[long].sum())
        to = np.repeat(offsets[long] - _ends(made[long])[:-1], made[long]) + np.arange(made[long].sum())
        hashes[to] = hash_words(mixed[at], _SEED)
    for length in np.unique(counts[rows[counts[rows] < ngram]]).tolist():
        short = rows[counts[rows] == length]
        whole = np.zeros(len(short), np.uint64)
        for next in range(length):
            whole = whole * _BASE + tokens.hashes[tokens.offsets[short] + next]
        hashes[offsets[short]] = hash_words(whole, _SEED + length)
    return Shingles(hashes, offsets)
