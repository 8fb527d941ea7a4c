"""Texts in words: by white space, or by spaCy's rules, which published quality rules count with.

Words are numbers into a vocabulary, so that what is asked of a word is asked once for all its occurrences. Of a corpus
of texts few words are new; so spaCy, which takes a microsecond for each character, is asked about each *chunk* (what is
between white space) once, and its rules for chunks know nothing of what is beside them. One exception is left out:
tokens of white space alone, which those who count words leave out, too.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import cache, cached_property
from itertools import chain
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.dataclass import dataclass
from curate.imports import need
from curate.keywords import option
from curate.late_pandas import numbers, text
from curate.texts.characters import sentence_marks
from curate.texts.pieces import Array, lengths, per_text

WHITESPACE, SPACY = "whitespace", "spacy"
SENTENCE_END = r"[.!?]+[\"'”’)\]]*(?:\s|$)"
"""Where a sentence ends, where nothing is known of words."""
_OTHER_BLANKS = r"\t-\r\x1c-\x1f\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_WIDE = rf"[ {_OTHER_BLANKS}]{{2,}}|[{_OTHER_BLANKS}]"
_BLANK_WORD = "\ue000"
"""A character for private use: a word that is no punctuation."""
MOST_CHUNKS, MOST_CHARACTERS = 1_000_000, 16_000_000
"""Chunks whose words are remembered, and their characters, about 300 MB; then it is begun anew."""
LONGEST_CHUNK = 64
"""Characters: a longer one is a URL, or a line of a language without blanks, and hardly comes again."""


@dataclass(frozen=True)
class Words:
    """The words of each of a number of texts, one after the other, in order."""

    vocabulary: pa.Array
    """Different words."""
    code: Array
    """Each word, as its place in the vocabulary."""
    owner: Array
    """The number of the text that each word is of."""
    texts: int

    @cached_property
    def count(self) -> Array:
        """How many words each text has."""
        return per_text(self.owner, self.texts)

    @cached_property
    def length(self) -> Array:
        """How many characters each word of the vocabulary has."""
        return lengths(self.vocabulary)

    def total(self, of_word: Array) -> Array:
        """Returns for each text the sum of what each word of the vocabulary has: true is 1."""
        return per_text(self.owner, self.texts, of_word[self.code])

    def having(self, characters: frozenset[str] | None = None) -> Array:
        """Returns which words of the vocabulary have a letter; or, a character that is none of `characters`."""
        if characters is None:
            # Letters as `str.isalpha` has them.
            return numbers(pc.match_substring_regex(self.vocabulary, r"\pL"))
        return np.fromiter(
            (not characters.issuperset(word) for word in self.vocabulary.to_pylist()), bool, len(self.vocabulary)
        )


def different(words: Words, wanted: tuple[str, ...]) -> Array:
    """Returns how many different ones of the `wanted` words each text has."""
    chosen = numbers(pc.is_in(words.vocabulary, pa.array(wanted, pa.string())))
    at = np.flatnonzero(chosen[words.code])
    size = max(len(words.vocabulary), 1)
    pairs = np.unique(words.owner[at].astype(np.int64) * size + words.code[at])
    return per_text(pairs // size, words.texts)


class Splitter(Protocol):
    """Splits texts into words, and counts their sentences."""

    def words(self, texts: pa.Array) -> Words:
        """Returns the words of texts."""

    def sentences(self, lines: pa.Array) -> Array:
        """Returns how many sentences each of a number of lines has."""


@cache
def splitter(name: str) -> Splitter:
    """Returns what splits texts, one a process: `whitespace` or `spacy`. Raises ConfigError without spaCy installed."""
    return PlainWords() if name == WHITESPACE else SpacyWords()


def check_installed(words: str) -> None:
    """Raises ConfigError if words are to be split by spaCy, and it is not installed here."""
    if words == SPACY:
        instead = f"; or choose {WHITESPACE!r}, which needs nothing"
        need("spacy", f"{option('words', words)}: they need spaCy", "words", instead)


def by_whitespace(texts: pa.Array) -> Words:
    """Returns what is between white space in texts.

    >>> by_whitespace(pa.array(["a b\\n a", ""])).count
    array([3, 0])
    """
    vocabulary, code, owner = _chunks(texts)
    return Words(vocabulary, code, owner, len(texts))


class PlainWords:
    """Splits texts at white space; sentences end at marks of punctuation before white space."""

    def words(self, texts: pa.Array) -> Words:
        """Returns the words of texts."""
        return by_whitespace(texts)

    def sentences(self, lines: pa.Array) -> Array:
        """Returns how often a sentence ends in each line; abbreviations are taken for ends."""
        return numbers(pc.count_substring_regex(lines, SENTENCE_END))


def _chunks(texts: pa.Array) -> tuple[pa.Array, Array, Array]:
    """Returns the different chunks of texts, each occurrence as its place among them, and the text that it is in."""
    # Of white space at the end of the last text, Arrow 26's function looks at the byte behind it, whatever lies there,
    # and takes it for a part of the word at times.
    parts = pc.utf8_split_whitespace(pc.utf8_rtrim_whitespace(texts))
    chunks = parts.flatten()
    owner = numbers(pc.list_parent_indices(parts))
    some = numbers(pc.not_equal(chunks, text("")))
    if not some.all():
        chunks, owner = chunks.filter(pa.array(some)), owner[some]
    coded = chunks.dictionary_encode()
    return coded.dictionary, numbers(coded.indices), owner


class ChunkWords:
    """Splits texts into words chunk by chunk, and remembers what the words of chunks are."""

    def __init__(self, split: Callable[[list[str]], list[tuple[str, ...]]]) -> None:
        """`split` returns the words of each chunk."""
        self._split = split
        self._known: dict[str, tuple[str, ...]] = {}
        self._characters = 0

    def words(self, texts: pa.Array) -> Words:
        """Returns the words of texts."""
        chunks, code, owner = _chunks(texts)
        made = self._made(chunks.to_pylist())
        sizes = np.fromiter(map(len, made), np.int64, len(made))
        starts = np.cumsum(sizes) - sizes
        coded = pa.array([*chain.from_iterable(made)], chunks.type).dictionary_encode()
        repeats = sizes[code]
        ends = np.cumsum(repeats)
        # The n-th word of an occurrence is the n-th of its chunk.
        places = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - repeats - starts[code], repeats)
        return Words(coded.dictionary, numbers(coded.indices)[places], np.repeat(owner, repeats), len(texts))

    def sentences(self, lines: pa.Array) -> Array:
        """Returns how many sentences each line has, as spaCy's `sentencizer` counts."""
        # White space beyond a single blank is a word of its own to it, with which a sentence may begin.
        return _sentences(self.words(pc.replace_substring_regex(lines, _WIDE, f" {_BLANK_WORD} ")))

    def _made(self, chunks: list[str]) -> list[tuple[str, ...]]:
        if len(self._known) > MOST_CHUNKS or self._characters > MOST_CHARACTERS:
            self._known, self._characters = {}, 0
        news = [chunk for chunk in chunks if chunk not in self._known]
        made = dict(zip(news, self._split(news), strict=True)) if news else {}
        found = [made[chunk] if chunk in made else self._known[chunk] for chunk in chunks]
        kept = {chunk: words for chunk, words in made.items() if len(chunk) <= LONGEST_CHUNK}
        self._known |= kept
        self._characters += sum(map(len, kept))
        return found


class SpacyWords(ChunkWords):
    """Splits texts into the words that spaCy's blank English pipeline makes of them, as datatrove's filters do."""

    def __init__(self) -> None:
        check_installed(SPACY)
        import spacy

        self._nlp: Any = spacy.blank("en")
        super().__init__(self._spacy)

    def _spacy(self, chunks: list[str]) -> list[tuple[str, ...]]:
        # Behind a zone spaCy forgets what it has seen in it; else it keeps each word that there ever was.
        with self._nlp.memory_zone():
            return [
                tuple(word for token in self._nlp.tokenizer(chunk) if (word := str(token).strip())) for chunk in chunks
            ]


def _sentences(words: Words) -> Array:
    """Returns how many sentences each text has, as spaCy's `sentencizer` counts: one begins with the first word that is
    no punctuation behind a mark such as a full stop."""
    if not len(words.code):
        return np.zeros(words.texts, dtype=np.int64)
    marks = sentence_marks()
    vocabulary = words.vocabulary.to_pylist()
    is_mark = np.fromiter((word in marks for word in vocabulary), bool, len(vocabulary))[words.code]
    plain = (
        np.fromiter((not _is_punctuation(word) for word in vocabulary), bool, len(vocabulary))[words.code] & ~is_mark
    )
    place = np.arange(len(words.code))
    last_mark = np.maximum.accumulate(np.where(is_mark, place, -1))
    last_plain = np.maximum.accumulate(np.where(plain, place, -1))
    before = np.concatenate([[-1], last_plain[:-1]])
    first = np.searchsorted(words.owner, words.owner)
    # The first plain word behind a mark of the same text.
    begins = plain & (last_mark >= first) & (last_mark > before)
    return np.minimum(words.count, 1) + per_text(words.owner, words.texts, begins)


def _is_punctuation(word: str) -> bool:
    return all(unicodedata.category(one).startswith("P") for one in word)
