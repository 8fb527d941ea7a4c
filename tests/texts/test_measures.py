"""Each measure of each published set of rules equals plain Python, on texts of what tells implementations apart."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.errors import ConfigError
from curate.texts import dolma, fineweb, gopher, repetition
from curate.texts.pieces import lengths, seen_before, split_lines
from curate.texts.words import LONGEST_CHUNK, ChunkWords, PlainWords, SpacyWords, by_whitespace, splitter
from jobs.quality import SETS, Quality
from tests.support.lines import lines_run
from tests.texts import plain

PIECES = [
    *("the", "The", "“and”", "to", "be,", "HAVE.", "with", "then", "a", "garden", "señor", "猫", "42", "1.5", "x" * 12),
    *("#", "##tag", "...", "…", "....", "wait...", "•", "- ", "* ", "*", "**bold**", "–", "{", "}", "[1]", "[edit]"),
    *(".", "!", "?", '"', '."', "?!", "”", ")", "(so.)", "e.g. this.", "Nice one!", 'They said "no."', "。", "।", "１"),
    *("JavaScript", "lorem Ipsum", "our Privacy Policy.", "use cookies", "terms of\nuse", "[citation needed]"),
    *("\n", "\n\n", "\n\n\n", "\r\n", "\t", "\u00a0", "\u2003", "\u2028", "\x1c", "\x85", " ", "  "),
    *("a.b@c.d", "@c.d", "x@y", "x@y..", "a@b.c?", "555 123-4567", " (555)1234567", "1.2.3.4", "256.1.1.10.1", "?!@"),
    *("a b c a b c a b c", "a a a a", "b"),
    *("don't", "U.S.", "1,000.5km", "a-b", "http://a.b/c?d=e", "x@y.z", "100%", "$5", "you'll"),
]
TEXTS = st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from([" ", " ", " ", "", "\n"])), max_size=30).map(
    lambda parts: "".join(piece + end for piece, end in parts)
)
SPLITTER = PlainWords()


def column(values: list[Any]) -> pa.Array:
    return pa.array(values, pa.string())


def same(found: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    """Holds the measures of all texts, and their order, against those of each text."""
    for number, one in enumerate(expected):
        assert {name: values[number] for name, values in found.items()} == one


@given(st.lists(TEXTS, max_size=6))
def test_gopher(texts: list[str]) -> None:
    words = SPLITTER.words(column(texts))
    same(gopher.measure(column(texts), words), [plain.gopher(text, text.split()) for text in texts])


@given(st.lists(TEXTS, max_size=6), st.sets(st.integers(1, 5)), st.sets(st.integers(1, 5)))
def test_repetition(texts: list[str], top: set[int], repeated: set[int]) -> None:
    """Of lines, paragraphs and n-grams of any n; of texts that are next to each other, each for itself."""
    texts = [*texts, *texts]
    words, chars = SPLITTER.words(column(texts)), lengths(column(texts))
    found = repetition.measure(column(texts)) | repetition.measure_words(chars, words, [*top], [*repeated])
    same(found, [plain.repetition(text, text.split(), [*top], [*repeated]) for text in texts])


@given(st.lists(TEXTS, max_size=6), st.integers(0, 20))
def test_fineweb(texts: list[str], short: int) -> None:
    found = fineweb.measure(column(texts), SPLITTER.words(column(texts)), short)
    same(found, [plain.fineweb(text, text.split(), short) for text in texts])


@given(st.lists(TEXTS, max_size=6), st.sets(st.integers(1, 5)), st.sets(st.integers(1, 5)))
def test_dolma(texts: list[str], top: set[int], recurring: set[int]) -> None:
    texts = [*texts, *texts]
    job = Quality(
        rules=["dolma"],
        max_top_ngram_chars=dict.fromkeys(map(str, top), 1.0),
        max_repeated_ngram_chars=dict.fromkeys(map(str, recurring), 1.0),
    )
    words = by_whitespace(column(texts))
    found = {"dolma_phrases": np.zeros(len(texts)), **dolma.measure(column(texts), words, [*top], [*recurring])}
    same(found, [plain.dolma(job, text, text) for text in texts])


@given(st.lists(TEXTS, max_size=6), st.booleans(), st.integers(0, 3))
def test_lines_that_dolma_keeps(texts: list[str], ended: bool, words: int) -> None:
    """Each with its own line feed, and blank ones only if neither rule is asked for."""
    job = Quality(rules=["dolma"], ended_lines=ended, dolma_line_words=words)
    found = dolma.keep_lines(column(texts), dolma.Lines(ended, words))
    for number, text in enumerate(texts):
        left, removed = plain.dolma_lines(job, text)
        assert found.texts[number].as_py() == left
        assert {reason: count[number] for reason, count in found.removed.items() if count[number]} == +removed


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("a " * 100, 100),
        ("a b " * 99 + "a", 99),
        ("a b c d e f g h i j k l m " * 7, 7),
        ("a b c d e f g h i j k l m n " * 7, 0),
        ("a a b b", 0),
        ("", 0),
    ],
)
def test_what_follows_itself(text: str, times: int) -> None:
    """Of up to 13 words, three times or more; a part of a last time is none."""
    [found] = dolma.measure(column([text]), by_whitespace(column([text])), [], [])["dolma_repeats"]
    assert found == times == plain.repeats(text.split())


@given(st.lists(TEXTS, max_size=6), st.integers(0, 4), st.sampled_from([5, 11, 1000]), st.booleans())
def test_c4(texts: list[str], words: int, longest: int, ended: bool) -> None:
    """What is measured, what is left, and what is removed for what."""
    job = Quality(rules=["c4"], min_line_words=words, max_word_length=longest, ended_lines=ended, min_sentences=0)
    job.setup()
    for text in texts:
        [table] = job.process(pa.table({"id": [1], "text": column([text])}))
        reason, left, _, _ = plain.judged(job, text)
        assert table["text"].to_pylist() == ([] if reason else [left])


@given(TEXTS)
def test_lines_are_those_of_python(text: str) -> None:
    assert split_lines(column([text, text])).text.to_pylist() == text.splitlines() * 2


@given(st.lists(st.integers(0, 4)))
def test_what_was_seen_before(values: list[int]) -> None:
    codes = pa.array(values, pa.int64()).dictionary_encode().indices.to_numpy()
    assert seen_before(codes).tolist() == [value in values[:at] for at, value in enumerate(values)]


def test_hashes_of_different_words_differ() -> None:
    """Words of zero bytes, of one kind of byte, and words that begin where others end."""
    texts = ["\0 \0\0 a aa aaa b ab ba", "ab c a bc", "猫 犬 猫犬 犬猫"]
    words = by_whitespace(column(texts))
    found = repetition.measure_words(lengths(column(texts)), words, [1], [1, 2])
    assert found["repeated_1_gram_chars"].tolist() == [0, 0, 0]
    # Without blanks "ab c" is "a bc".
    assert found["repeated_2_gram_chars"][1] == 3 / len(texts[1])


HOSTILE = ["a ", "a\n", "\n", " ", ".", "#", "a", "ab " * 7 + "c ", "[", "[1", "e.g. ", "a a b ", "{", "lorem ipsum.\n"]
HOSTILE += ["a@", "a@b.", "@.", "1.", "1.1.1.1.", " 555 ", "(555)", "\u00a0", "a " * 13 + "b. ", "…"]


@pytest.mark.ci(4)
@pytest.mark.slow
@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_rule_takes_more_than_linear_time(hostile: str) -> None:
    """Of a text twice as long at most twice as many lines of Python run; the kernels of Arrow and numpy are linear."""
    job = Quality(rules=[*SETS], phrases=["{"], annotate=True)
    job.setup()

    def run(size: int) -> int:
        table = pa.table({"id": [1], "text": column([hostile * size])})
        return lines_run(lambda: list(job.process(table)))

    assert run(400) <= 2 * run(200) + 100


def letters_and_marks(chunks: list[str]) -> list[tuple[str, ...]]:
    return [tuple(re.findall(r"\w+|\W", chunk)) for chunk in chunks]


@given(st.lists(st.lists(TEXTS, max_size=4), max_size=5), st.integers(0, 30), st.integers(0, 90))
def test_words_by_chunks_are_those_of_a_plain_loop(batches: list[list[str]], chunks: int, characters: int) -> None:
    """Whatever was split before, and when it was forgotten; a batch has its own words, and no others to look at."""
    ours = ChunkWords(letters_and_marks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("curate.texts.words.MOST_CHUNKS", chunks)
        patch.setattr("curate.texts.words.MOST_CHARACTERS", characters)
        for texts in batches:
            found = ours.words(column(texts))
            vocabulary = found.vocabulary.to_pylist()
            said = [vocabulary[code] for code in found.code]
            wanted = [word for text in texts for words in letters_and_marks(text.split()) for word in words]
            assert said == wanted
            assert sorted(vocabulary) == sorted({*wanted})
            assert found.count.tolist() == [sum(map(len, letters_and_marks(text.split()))) for text in texts]


def test_what_is_remembered_of_chunks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their number, by their characters, and a long one is not: texts without white space are long ones."""
    monkeypatch.setattr("curate.texts.words.MOST_CHUNKS", 10)
    monkeypatch.setattr("curate.texts.words.MOST_CHARACTERS", 100)
    ours = ChunkWords(letters_and_marks)
    for start in range(0, 100, 7):
        texts = [f"w{number}" * (number % 9) + "語" * (10 * number) for number in range(start, start + 7)]
        ours.words(column(texts))
        assert len(ours._known) <= 10 + 7
        assert sum(map(len, ours._known)) <= 100 + 7 * LONGEST_CHUNK
        assert all(len(chunk) <= LONGEST_CHUNK for chunk in ours._known)


def test_spacy_is_asked_for_by_name() -> None:
    assert isinstance(splitter("whitespace"), PlainWords)


@pytest.mark.extras
class TestSpacy:
    """Words and sentences are those of spaCy's blank English pipeline, whatever was split before."""

    def test_words_and_sentences(self) -> None:
        import spacy

        theirs = spacy.blank("en")
        theirs.add_pipe("sentencizer")
        ours = SpacyWords()

        @given(st.lists(TEXTS, max_size=5))
        def same_words(texts: list[str]) -> None:
            found = ours.words(column(texts))
            vocabulary = found.vocabulary.to_pylist()
            for number, text in enumerate(texts):
                expected = [word for word in (token.text.strip() for token in theirs(text)) if word]
                assert [vocabulary[code] for code in found.code[found.owner == number]] == expected
            lines = [line.strip() for text in texts for line in text.splitlines()]
            counted = ours.sentences(column(lines)).tolist()
            assert counted == [len(list(theirs(line).sents)) for line in lines]

        same_words()

    def test_it_keeps_nothing_of_what_it_was_asked(self) -> None:
        """What is remembered is what curate remembers, which is bounded: spaCy would keep each word that there is."""
        ours = SpacyWords()
        ours.words(column(["so it begins"]))
        before = len(ours._nlp.vocab.strings)
        for start in range(0, 1000, 100):
            ours.words(column([" ".join(f"w{number}x." for number in range(start, start + 100))]))
            assert len(ours._nlp.vocab.strings) <= before

    def test_the_job_takes_them(self) -> None:
        """`a.b, c` is two words between white space, and four to spaCy."""
        job = Quality(rules=["gopher"], words="spacy", annotate=True)
        job.setup()
        [table] = job.process(pa.table({"id": [1], "text": ["don't, c"]}))
        assert table["gopher_words"].to_pylist() == [3]


def test_without_spacy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "spacy", None)
    with pytest.raises(ConfigError, match=r"pip install 'curate\[words\]'; or choose 'whitespace'"):
        SpacyWords()


def test_no_measure_is_nan() -> None:
    """Not of no text, no word, no line."""
    job = Quality(rules=[*SETS], phrases=["{"], annotate=True)
    job.setup()
    texts = ["", " ", "\n", "...", "a", "\n\n\n", "x" * 100_000, "\ud7ff", "שלום", "é"]
    [table] = job.process(pa.table({"id": list(range(len(texts))), "text": column(texts)}))
    for name in table.column_names[2:-1]:
        assert not any(isinstance(value, float) and math.isnan(value) for value in table[name].to_pylist())
