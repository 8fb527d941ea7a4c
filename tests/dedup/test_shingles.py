"""Words, n-grams and their sets, against plain Python."""

from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.dedup import shingles as module
from curate.dedup.normalise import normalised, worded
from curate.dedup.shingles import Shingles, distinct, shingles

ALPHABET = "aB1_ .,\n\u00a0éÉ\u0301ß“中\0"
GOLDEN_WORDS = [0x5C5857F3230C2275, 0xD8F8CC04ECD9F33F, 0xD8F18316DCD54357, 0x2B3FD238CE2FC894]
GOLDEN_CHARACTERS = [0x93022BF7F01AEE02, 0x8EBEC4122B19A3F0]
TEXTS = st.lists(st.none() | st.text(ALPHABET, max_size=30) | st.text("ab ", max_size=90), max_size=12)


def words_of(text: str | None) -> list[str]:
    """The words of a text, by the categories of its characters."""
    plain = unicodedata.normalize("NFC", (text or "").lower())
    inside = [unicodedata.category(one)[0] in "LNM" or one == "_" for one in plain]
    return "".join(one if keep else " " for one, keep in zip(plain, inside, strict=True)).split(" ")


def ngrams_of(tokens: list[str], ngram: int) -> list[tuple[str, ...]]:
    """The n-grams of tokens; all of them where they are fewer."""
    tokens = [one for one in tokens if one]
    if not tokens:
        return []
    return [tuple(tokens[at : at + ngram]) for at in range(max(1, len(tokens) - ngram + 1))]


def same_structure(found: Shingles, expected: list[list[tuple[str, ...]]]) -> None:
    """Asserts that hashes are equal exactly where the n-grams are, over all texts."""
    assert found.counts.tolist() == [len(one) for one in expected]
    flat = [one for text in expected for one in text]
    hashes = found.hashes.tolist()
    assert [hashes.index(one) for one in hashes] == [flat.index(one) for one in flat]


@given(TEXTS, st.integers(1, 6))
def test_ngrams_of_words(texts: list[str | None], ngram: int) -> None:
    """N-grams of words have one hash exactly where their words are the same, in all texts of a batch."""
    same_structure(shingles(pa.array(texts, pa.string()), ngram), [ngrams_of(words_of(one), ngram) for one in texts])


@given(TEXTS, st.integers(1, 6))
def test_ngrams_of_characters(texts: list[str | None], ngram: int) -> None:
    """N-grams of characters have one hash exactly where their code points are the same, once normalised."""
    plain = [unicodedata.normalize("NFC", (one or "").lower()) for one in texts]
    expected = [ngrams_of(list(" ".join(one.split())), ngram) for one in plain]
    same_structure(shingles(pa.array(texts, pa.string()), ngram, "character"), expected)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 17, 31, 32, 33, 40, 100])
def test_words_of_any_length(length: int) -> None:
    """A word is told from one that differs in any one byte, from its beginning, and from itself with a byte more."""
    word = "ab" * 50
    word = word[:length]
    others = [word[:at] + "z" + word[at + 1 :] for at in range(length)] + [word[:-1], word + "a", word + "\u00e9"]
    found = shingles(pa.array([word, f"  {word}, ", *others]), 1)
    assert found.of(0).tolist() == found.of(1).tolist()
    assert len({int(found.of(at)[0]) for at in range(1, len(others) + 2) if len(found.of(at))}) == (
        len(others) + 1 - (length == 1)
    )


def test_the_bits_are_frozen() -> None:
    """Golden values: sets of n-grams travel between tasks of runs that may be years apart."""
    texts = pa.array(
        ["The quick, brown fox", "the quick", "internationalisations von Straßenbahnhaltestellenschildern"]
    )
    assert shingles(texts, 3).hashes.tolist() == GOLDEN_WORDS
    assert shingles(pa.array(["Abc\u0301"]), 2, "character").hashes.tolist() == GOLDEN_CHARACTERS


def test_slices_and_chunks_are_those_of_the_whole() -> None:
    """What is before and after a slice does not matter."""
    texts = ["one two three", None, "four five", "", "six é seven eight"] * 3
    whole = shingles(pa.array(texts), 2)
    cut = shingles(pa.array(texts).slice(3, 7), 2)
    assert cut.hashes.tolist() == whole.hashes[whole.offsets[3] : whole.offsets[10]].tolist()
    chunked = shingles(pa.chunked_array([texts[:4], [], texts[4:]], pa.string()), 2)
    assert chunked.hashes.tolist() == whole.hashes.tolist()


@given(st.lists(st.lists(st.integers(0, 5), max_size=8), max_size=6), st.integers(1, 3))
def test_distinct_gives_sets(sets: list[list[int]], bits: int) -> None:
    """Each text keeps each hash once, ordered, however many texts are sorted at a time; bits beyond 52 do not count."""
    offsets = np.cumsum([0, *map(len, sets)], dtype=np.int64)
    hashes = np.array([(x << 60) + x for one in sets for x in one], np.uint64)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_TEXTS", 1 << bits)
        found = distinct(Shingles(hashes, offsets))
    assert [found.of(at).tolist() for at in range(len(sets))] == [sorted({x << 60 for x in one}) for one in sets]


@given(st.text())
def test_normalising_twice_is_normalising_once(text: str) -> None:
    """What is normalised stays as it is."""
    once = normalised(pa.array([text]))
    assert normalised(once).equals(once)


def test_normalised_texts_differ_in_what_matters() -> None:
    """Case, composition and white space do not matter; punctuation and accents do."""
    same = ["Das  Café\n", "das cafe\u0301", "\tDAS CAFÉ\u2003"]
    assert len(set(normalised(pa.array(same)).to_pylist())) == 1
    others = ["das café.", "das cafe", "dascafé"]
    assert len(set(normalised(pa.array(same + others)).to_pylist())) == 4


def test_types_stay_as_they_are() -> None:
    """Large texts give large texts, chunks give chunks, nulls stay null."""
    for type in (pa.string(), pa.large_string()):
        found = normalised(pa.chunked_array([["A ", None]], type))
        assert found.type == type
        assert found.to_pylist() == ["a", None]
    assert worded(pa.array([None, "A!"])).to_pylist() == [b"", b"a "]


@pytest.mark.parametrize("unit", ["word", "character"])
def test_an_ngram_that_no_text_has_takes_no_longer(unit: str) -> None:
    """Texts are then one n-gram each, whatever its length is: of two thousand million, as of a thousand."""
    texts = pa.array(["one two", "one two three", None, "one two"])
    found, other = shingles(texts, 2**31 - 1, unit), shingles(texts, 1000, unit)
    assert found.counts.tolist() == [1, 1, 0, 1]
    assert found.hashes.tolist() == other.hashes.tolist()
