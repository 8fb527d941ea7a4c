"""The quality job: each rule against plain Python, what is dropped for which, and what is left of a text."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.ledger.summary import RunState
from curate.testing.local import run_local
from jobs.langid import LangId
from jobs.quality import Quality, lines
from tests.job.inline import output_rows, refusing, run_job

ROOT = Path(__file__).parents[2]
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~…“”‘’«»"
STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}
POLICY = ["terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies"]

PROSE = (
    "The committee agreed that the plan would be sent to all of the members before the end of the month. "
    "They have read it with care, and most of them think that it is sound. "
    "A few of the older members asked whether the garden could have a second gate, with a path to the river. "
    "Nobody knew what that would cost, and so the question was left for another day."
)


def rows(*texts: Any) -> list[dict[str, Any]]:
    return [{"id": f"r{k}", "text": text} for k, text in enumerate(texts)]


# The rules once more, a text at a time.


def text_lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def gopher(job: Quality, text: str) -> dict[str, bool]:
    words, all_lines = text.split(), text_lines(text)
    n, m = max(len(words), 1), max(len(all_lines), 1)
    mean = sum(len(word) for word in words) / n
    bullets = sum(line[0] in "•‣⁃◦∙▪▫●○■□–-" or line.startswith("* ") for line in all_lines)
    stops = {word.strip(PUNCTUATION).lower() for word in words} & STOP_WORDS
    return {
        "gopher: too few words": len(words) < job.min_words,
        "gopher: too many words": len(words) > job.max_words,
        "gopher: words too short": mean < job.min_mean_word_length,
        "gopher: words too long": mean > job.max_mean_word_length,
        "gopher: too many hash signs": text.count("#") / n > job.max_symbol_ratio,
        "gopher: too many ellipses": (text.count("...") + text.count("…")) / n > job.max_symbol_ratio,
        "gopher: too many bullet points": bullets / m > job.max_bullet_lines,
        "gopher: too many lines end with an ellipsis": sum(line.endswith(("...", "…")) for line in all_lines) / m
        > job.max_ellipsis_lines,
        "gopher: too few words with a letter": sum(any(map(str.isalpha, word)) for word in words) / n
        < job.min_alpha_words,
        "gopher: too few stop words": len(stops) < job.min_stop_words,
    }


def line_fault(job: Quality, line: str) -> str | None:
    if any(len(word) > job.max_word_length for word in line.split()):
        return "a word is too long"
    if not line.endswith((".", "!", "?", '"')) or line.endswith("..."):
        return "no end of a sentence"
    if len(line.split()) < job.min_line_words:
        return "too few words"
    if "javascript" in line.lower():
        return "javascript"
    if any(phrase in line.lower() for phrase in POLICY):
        return "policy"
    return None


def sentences(line: str) -> int:
    """Counts ends one character at a time: marks, then what closes, then white space or nothing."""
    found = at = 0
    while at < len(line):
        if line[at] not in ".!?":
            at += 1
            continue
        while at < len(line) and line[at] in ".!?":
            at += 1
        while at < len(line) and line[at] in "\"'”’)]":
            at += 1
        found += at == len(line) or line[at] in " \t\r\f\v"
    return found


def c4(job: Quality, text: str) -> tuple[dict[str, bool], str, Counter[str]]:
    faults = {number: line_fault(job, line) for number, line in enumerate(text_lines(text))}
    kept = [line for number, line in enumerate(text_lines(text)) if faults[number] is None]
    failed = {
        "c4: lorem ipsum": "lorem ipsum" in text.lower(),
        "c4: curly bracket": "{" in text or "}" in text,
        "c4: too few sentences": sum(map(sentences, kept)) < job.min_sentences,
    }
    return failed, "\n".join(kept), Counter(fault for fault in faults.values() if fault)


def judged(job: Quality, texts: list[str]) -> tuple[list[tuple[int, str]], Counter[str], Counter[str]]:
    """Returns the texts that are kept, with their numbers; what is dropped; and which lines are removed."""
    kept, dropped, removed = [], Counter[str](), Counter[str]()
    for number, text in enumerate(texts):
        by_page, left, by_line = c4(job, text)
        failed = (gopher(job, text) if "gopher" in job.rules else {}) | (by_page if "c4" in job.rules else {})
        reason = next((reason for reason, fails in failed.items() if fails), None)
        if reason is not None:
            dropped[reason] += 1
        else:
            kept.append((number, left if "c4" in job.rules else text))
            removed.update(by_line if "c4" in job.rules else {})
    return kept, dropped, removed


PIECES = [
    *("the", "The", "“and”", "to", "be,", "HAVE.", "with", "then", "a", "garden", "señor", "猫", "42", "1.5", "x" * 12),
    *("#", "##tag", "...", "…", "....", "wait...", "•", "- ", "* ", "*", "**bold**", "–", "{", "}", "[1]"),
    *(".", "!", "?", '"', '."', "?!", "”", ")", "(so.)", "e.g. this.", "Nice one!", 'They said "no."'),
    *("JavaScript", "lorem Ipsum", "Lorem  ipsum", "our Privacy Policy.", "use cookies", "terms of\nuse"),
    *("\n", "\n\n", "\r\n", "\t", "\u00a0", "\u2003", "\u2028", " ", "  "),
]
TEXTS = st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from([" ", " ", " ", "", "\n"])), max_size=14).map(
    lambda parts: "".join(piece + end for piece, end in parts)
)
THRESHOLDS = st.fixed_dictionaries(
    {
        "rules": st.sampled_from([["gopher"], ["c4"], ["gopher", "c4"]]),
        "min_words": st.integers(0, 4),
        "max_words": st.integers(4, 12),
        "min_mean_word_length": st.sampled_from([0.0, 1.5, 2.0, 3.0]),
        "max_mean_word_length": st.sampled_from([3.0, 4.5, 10.0]),
        "max_symbol_ratio": st.sampled_from([0.0, 0.1, 0.25, 0.5, 2.0]),
        "max_bullet_lines": st.sampled_from([0.0, 0.5, 0.9, 1.0]),
        "max_ellipsis_lines": st.sampled_from([0.0, 0.3, 0.5, 1.0]),
        "min_alpha_words": st.sampled_from([0.0, 0.5, 0.8, 1.0]),
        "min_stop_words": st.integers(0, 3),
        "min_line_words": st.integers(0, 4),
        "max_word_length": st.sampled_from([5, 11, 1000]),
        "min_sentences": st.integers(0, 3),
    }
)


def flags(rules: dict[str, pa.Array]) -> dict[str, list[bool]]:
    return {reason: fails.to_pylist() for reason, fails in rules.items()}


@given(THRESHOLDS, st.lists(TEXTS, max_size=5))
def test_each_rule_is_what_it_says(parameters: dict[str, Any], texts: list[str]) -> None:
    """All rules, in their order, and the lines that are left, equal those of plain Python."""
    job, column = Quality(**parameters), pa.array(texts, pa.string())
    assert flags(job.gopher(column)) == by_reason([gopher(job, text) for text in texts], job.gopher(column))
    kept, removed = job.c4_lines(lines(column))
    expected = [c4(job, text) for text in texts]
    assert flags(job.c4(column, kept)) == by_reason([failed for failed, _, _ in expected], job.c4(column, kept))
    assert kept.joined("\n").to_pylist() == [left for _, left, _ in expected]
    assert {reason: counts.to_pylist() for reason, counts in removed.items()} == {
        reason: [faults[reason] for _, _, faults in expected] for reason in removed
    }


def by_reason(found: list[dict[str, bool]], rules: dict[str, pa.Array]) -> dict[str, list[bool]]:
    """Turns rules by text into texts by rule; holds the order, too."""
    for one in found:
        assert list(one) == list(rules)
    return {reason: [one[reason] for one in found] for reason in rules}


@given(THRESHOLDS, st.lists(TEXTS, min_size=1, max_size=6), st.integers(1, 7))
def test_a_batch_is_judged_text_by_text(parameters: dict[str, Any], texts: list[str], chunk: int) -> None:
    """What is kept, with its text, and in which order, whatever the chunks of the batch."""
    job = Quality(**parameters)
    table = pa.table({"id": pa.array(range(len(texts))), "text": pa.array(texts, pa.string())})
    pieces = [table.slice(start, chunk) for start in range(0, len(texts), chunk)]
    found = [row for part in job.process(pa.concat_tables(pieces)) for row in part.to_pylist()]
    assert [(row["id"], row["text"]) for row in found] == judged(job, texts)[0]


LONG_LINE = " ".join(["word"] * 60) + " and the end."
CASES = {
    "gopher: too few words": "The end of the road and that was it.",
    "gopher: too many words": PROSE * 3,
    "gopher: words too short": "I am to be of " * 12 + ".",
    "gopher: words too long": "and incomprehensibilities the " + "incomprehensibilities " * 58,
    "gopher: too many hash signs": PROSE + " #" * 12,
    "gopher: too many ellipses": PROSE.replace(" of ", "... ").replace(" the ", "… ").replace(" and ", "… "),
    "gopher: too many bullet points": "\n".join(f"- {part}" for part in PROSE.split(".")),
    "gopher: too many lines end with an ellipsis": f"{PROSE}\nMore of it ...\nWhat came of it …",
    "gopher: too few words with a letter": PROSE + " 1234" * 30,
    "gopher: too few stop words": "Some text without any common words goes here. " * 10,
    "c4: lorem ipsum": f"{PROSE} Lorem Ipsum dolor sit amet.",
    "c4: curly bracket": f"{PROSE}\nif (x) {{ return",
    "c4: too few sentences": LONG_LINE,
}


def test_each_reason_is_given_for_a_text_that_fails_that_rule_alone() -> None:
    """With the published thresholds, but for 150 words at most; alone of its set. The books count each once."""
    job = Quality(max_words=150)
    for reason, text in CASES.items():
        failed = gopher(job, text) | (c4(job, text)[0] if reason.startswith("c4") else {})
        assert [name for name, fails in failed.items() if fails] == [reason]
    ran = run_local(job, rows(*CASES.values(), PROSE))
    assert ran.rows == [{"id": f"r{len(CASES)}", "text": PROSE}]
    assert ran.summary.books.dropped == dict.fromkeys(CASES, 1)
    assert ran.summary.books.rows_in == len(CASES) + 1


def test_the_first_rule_counts() -> None:
    """A text that fails many rules is dropped once, for the first in the order of the rules."""
    ran = run_local(Quality, rows("{lorem ipsum} #", ""))
    assert ran.summary.books.dropped == {"gopher: too few words": 2}
    ran = run_local(Quality(rules=["c4"]), rows("{lorem ipsum} #", "{", ""))
    assert ran.summary.books.dropped == {"c4: lorem ipsum": 1, "c4: curly bracket": 1, "c4: too few sentences": 1}


def test_the_defaults_are_the_published_values() -> None:
    job = Quality()
    found = {name: getattr(job, name) for name in Quality._params if re.match("min_|max_", name)}
    assert found == {
        "min_words": 50,
        "max_words": 100_000,
        "min_mean_word_length": 3,
        "max_mean_word_length": 10,
        "max_symbol_ratio": 0.1,
        "max_bullet_lines": 0.9,
        "max_ellipsis_lines": 0.3,
        "min_alpha_words": 0.8,
        "min_stop_words": 2,
        "min_line_words": 5,
        "max_word_length": 1000,
        "min_sentences": 3,
    }


@pytest.mark.parametrize(("words", "kept"), [(49, False), (50, True), (100_000, True), (100_001, False)])
def test_the_number_of_words_at_its_bounds(words: int, kept: bool) -> None:
    text = " ".join((["the", "garden", "and", "river"] * (words // 4 + 1))[:words])
    assert bool(run_local(Quality(rules=["gopher"]), rows(text)).rows) is kept


NOTICES = "Please enable JavaScript to see this page.\r\n  We think that cats use cookies.  \nOk then.\n"
MENU = f"Home\nLog in\n\n{PROSE}\n{NOTICES}"


def test_lines_that_c4_removes_are_gone_from_the_text_and_counted() -> None:
    """Only of texts that are kept; without C4 a text is what it was."""
    ran = run_local(Quality, rows(MENU, f"Home\n{CASES['c4: curly bracket']}"))
    assert ran.rows == [{"id": "r0", "text": PROSE}]
    assert ran.summary.books.counters == {
        "lines removed: no end of a sentence": 2,
        "lines removed: too few words": 1,
        "lines removed: javascript": 1,
        "lines removed: policy": 1,
    }
    assert run_local(Quality(rules=["gopher"]), rows(MENU)).rows == [{"id": "r0", "text": MENU}]


def test_columns_that_are_kept_stand_beside_the_new_text() -> None:
    table = pa.table({"url": ["u"], "body": [MENU], "n": [1]})
    job = Quality(id_column="url", text_column="body", keep_columns=["body", "n"])
    assert run_local(job, table).rows == [{"url": "u", "body": PROSE, "n": 1}]
    job = Quality(id_column="url", text_column="body", keep_columns=["n"])
    assert run_local(job, table).rows == [{"url": "u", "n": 1, "body": PROSE}]


def test_a_null_is_set_aside_and_an_empty_file_is_no_error() -> None:
    ran = run_local(Quality, rows(PROSE, None))
    assert (ran.summary.books.rows_out, ran.summary.books.quarantined) == (1, 1)
    empty = run_local(Quality, pa.table({"id": pa.array([], pa.string()), "text": pa.array([], pa.string())}))
    assert (empty.summary.state, empty.rows) == (RunState.COMPLETE, [])


@pytest.mark.parametrize("size", [1, 3, 4096])
def test_the_same_whatever_the_batches(size: int) -> None:
    texts = [MENU, *CASES.values(), PROSE, ""]
    one, other = run_local(Quality(batch_size=size), rows(*texts)), run_local(Quality, rows(*texts))
    assert (one.table, one.summary.books) == (other.table, other.summary.books)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rules": ["gofer"]}, "--rules gofer: there are gopher and c4; did you mean 'gopher'?"),
        ({"rules": []}, "--rules is empty, so every text would be kept; give gopher, c4, or both"),
        ({"min_words": 9, "max_words": 8}, "--min-words 9 is above --max-words 8, so no text would be kept"),
        ({"min_mean_word_length": 11.0}, "--min-mean-word-length 11 is above --max-mean-word-length 10"),
        ({"max_bullet_lines": 90.0}, "--max-bullet-lines 90 is no share; shares are between 0 and 1"),
        ({"min_alpha_words": -1.0}, "--min-alpha-words -1 is no share"),
        ({"min_stop_words": 9}, "--min-stop-words 9: there are 8 stop words"),
        ({"id_column": "text"}, "the text 'text' is no id"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with refusing(message):
        run_local(Quality(**given), rows(PROSE), directory=tmp_path)
    assert not (tmp_path / "out").exists()


def test_the_demo_corpus(tmp_path: Path) -> None:
    """What is kept, what is dropped for what, and which lines are removed equal what plain Python makes of it."""
    corpus = [sys.executable, str(ROOT / "scripts/corpus"), "--output", str(tmp_path / "in"), "--comments", "3000"]
    subprocess.run(corpus, check=True, capture_output=True)
    run_job(LangId(text_column="body", keep_columns=["body"]), tmp_path / "in", tmp_path / "all")
    comments = output_rows(tmp_path / "all")
    assert len(comments) == 3000
    job = Quality(text_column="body", min_words=20, min_line_words=12)
    summary = run_job(job, tmp_path / "in", tmp_path / "out")
    kept, dropped, removed = judged(job, [row["body"] for row in comments])
    assert (summary.state, summary.books.rows_in, summary.books.quarantined) == (RunState.COMPLETE, 3003, 3)
    assert output_rows(tmp_path / "out") == [{"id": comments[number]["id"], "body": text} for number, text in kept]
    assert summary.books.dropped == dict(dropped)
    assert summary.books.counters == {f"lines removed: {reason}": count for reason, count in removed.items()}
    assert len(kept) > 500
    assert len(dropped) > 1
    assert removed["too few words"] > 10
