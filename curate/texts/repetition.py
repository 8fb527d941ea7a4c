"""Gopher's rules for repetition: Rae et al. 2021, table A1, as `GopherRepetitionFilter` of datatrove 0.10.1 counts.

Shares are of the characters of a text. Of lines, and of paragraphs (between blank lines), those count that are equal
to an earlier one. Of the n-grams of words for small n, the most frequent one counts, all its occurrences, and the
blanks between its words; where several are as frequent, the one that comes first. For larger n those count that are
equal to an earlier one and do not overlap it, without blanks.

N-grams are compared by a hash of 64 bits: one text of 50,000 words in 10**10 has two different ones that are taken for
equal. Those of the second kind are equal if their letters are, wherever words begin: the hash is a polynomial of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.late_pandas import numbers
from curate.texts.pieces import Array, Pieces, lengths, per_text, ratio, seen_before, split
from curate.texts.words import Words

_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_BYTES = np.random.default_rng(0).integers(0, 2**64, 256, np.uint64)
"""What each byte counts as: plain numbers of bytes would make short texts of few kinds of bytes collide."""


def measure(texts: pa.Array) -> dict[str, Array]:
    """Returns the shares of repeated lines and paragraphs, by number and by characters."""
    chars = lengths(texts)
    paragraphs = split(pc.utf8_trim_whitespace(texts), "\n\n+", regex=True)
    lines = split(texts, "\n+", regex=True)
    return {
        **_repeated("paragraph", paragraphs, chars),
        **_repeated("line", lines, chars),
    }


def _repeated(what: str, pieces: Pieces, chars: Array) -> dict[str, Array]:
    again = pieces.repeated()
    return {
        f"repeated_{what}s": ratio(pieces.count(again), pieces.count()),
        f"repeated_{what}_chars": ratio(pieces.count(again * lengths(pieces.text)), chars),
    }


def measure_words(chars: Array, words: Words, top: Sequence[int], repeated: Sequence[int]) -> dict[str, Array]:
    """Returns the shares of `chars` that n-grams of words take: for each n in `top` the most frequent one, for each n
    in `repeated` all that were there before."""
    found = NGrams(words)
    return {
        **{f"top_{n}_gram_chars": ratio(found.top(n), chars) for n in top},
        **{f"repeated_{n}_gram_chars": ratio(found.repeated(n), chars) for n in repeated},
    }


def _polynomials(words: pa.Array) -> tuple[Array, Array]:
    """Returns for each word the polynomial of its bytes, and the power of the base by its length: of a word `a` and a
    word `b` behind it, `ab` has the polynomial `hash(a) * power(b) + hash(b)`. All modulo 2**64."""
    raw = words.cast(pa.large_binary())
    offsets = np.frombuffer(raw.buffers()[1], np.int64)[raw.offset : raw.offset + len(raw) + 1]
    data = np.frombuffer(raw.buffers()[2], np.uint8)[offsets[0] : offsets[-1]] if len(raw) else np.zeros(0, np.uint8)
    sizes = np.diff(offsets)
    powers = np.full(int(sizes.max(initial=0)) + 1, _ODD)
    powers[0] = 1
    powers = np.cumprod(powers, dtype=np.uint64)
    ends = np.repeat(offsets[1:] - offsets[0], sizes)
    terms = _BYTES[data] * powers[ends - 1 - np.arange(len(data))]
    sums = np.zeros(len(data) + 1, np.uint64)
    np.cumsum(terms, out=sums[1:])
    return sums[offsets[1:] - offsets[0]] - sums[offsets[:-1] - offsets[0]], powers[sizes]


class NGrams:
    """The n-grams of the words of texts."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._hash, self._power = (of_word[words.code] for of_word in _polynomials(words.vocabulary))
        self._chars = np.concatenate([[0], np.cumsum(words.length[words.code], dtype=np.int64)])
        """The characters before each word."""
        self._end = np.repeat(np.cumsum(words.count), words.count)
        """For each word, the end of its text."""

    def _codes(self, n: int, blank: bool) -> tuple[Array, Array]:
        """Returns where n-grams start, and the code of each: equal for equal ones of one text, in order of first
        occurrence. `blank`: there is one between words, else n-grams are equal whose letters are."""
        words = self._words
        starts = np.flatnonzero(np.arange(len(words.code)) + n <= self._end)
        # The text is a part of what is hashed.
        value = (words.owner[starts].astype(np.uint64) + np.uint64(1)) * _MIX
        for k in range(n if len(starts) else 0):
            value = value * self._power[starts + k] + self._hash[starts + k]
            if blank:
                value = value * _ODD + _MIX
        return starts, numbers(pa.array(value).dictionary_encode().indices).astype(np.int64)

    def top(self, n: int, *, blanks: bool = True) -> Array:
        """Returns for each text the characters of its most frequent n-gram, `blanks` between its words included, times
        its occurrences; 0 for a text of fewer words."""
        starts, code = self._codes(n, blank=True)
        found = np.zeros(self._words.texts, dtype=np.int64)
        if not len(starts):
            return found
        count = np.bincount(code)
        first = starts[np.flatnonzero(~seen_before(code))]
        owner = self._words.owner[first]
        # Codes count up from text to text, so those of a text lie beside each other.
        begin = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
        most = np.maximum.reduceat(count, begin)
        best = np.flatnonzero(count == np.repeat(most, np.diff(np.append(begin, len(owner)))))
        best = best[np.concatenate([[True], owner[best][1:] != owner[best][:-1]])]
        chars = self._chars[first[best] + n] - self._chars[first[best]] + (n - 1 if blanks else 0)
        found[owner[best]] = chars * count[best]
        return found

    def recurring(self, n: int) -> tuple[Array, Array]:
        """Returns for each text the characters of n-grams that occur more than once, and those of all n-grams; each
        occurrence counts, those that overlap others, too."""
        starts, code = self._codes(n, blank=True)
        chars = self._chars[starts + n] - self._chars[starts]
        owner = self._words.owner[starts]
        recurs = np.bincount(code)[code] > 1 if len(code) else np.zeros(0, dtype=bool)
        return per_text(owner, self._words.texts, chars * recurs), per_text(owner, self._words.texts, chars)

    def repeated(self, n: int) -> Array:
        """Returns for each text the characters of n-grams that are equal to an earlier one, from left to right, where
        one that counts is skipped as a whole: those that begin within it neither count nor are remembered."""
        starts, code = self._codes(n, blank=False)
        found = np.zeros(self._words.texts, dtype=np.int64)
        owner = self._words.owner[starts]
        # What is never repeated need not be walked through.
        for text in np.unique(owner[seen_before(code)]):
            low, high = np.searchsorted(owner, [text, text + 1])
            found[text] = self._walk(starts[low], code[low:high], n)
        return found

    def _walk(self, start: int, code: Array, n: int) -> int:
        chars, seen, at, codes = 0, set(), 0, code.tolist()
        while at < len(codes):
            if codes[at] in seen:
                chars += int(self._chars[start + at + n] - self._chars[start + at])
                at += n
            else:
                seen.add(codes[at])
                at += 1
        return chars
