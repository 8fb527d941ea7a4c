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
from jobs.quality import REASON, SETS, Quality
from tests.job.inline import output_rows, refusing, run_job
from tests.jobs.places import rows
from tests.texts import plain
from tests.texts.test_measures import TEXTS

ROOT = Path(__file__).parents[2]
PROSE = (
    "The committee agreed that the plan would be sent to all of the members before the end of the month. "
    "They have read it with care, and most of them think that it is sound. "
    "A few of the older members asked whether the garden could have a second gate, with a path to the river. "
    "Nobody knew what that would cost, and so the question was left for another day. It is the last one."
)


def judged(job: Quality, texts: list[str]) -> tuple[list[tuple[int, str]], Counter[str], Counter[str]]:
    """Returns the texts that are kept, with their numbers; what is dropped; and which lines are removed."""
    kept, dropped, removed = [], Counter[str](), Counter[str]()
    for number, text in enumerate(texts):
        reason, left, lines, _ = plain.judged(job, text)
        if reason is None:
            kept.append((number, left))
            removed += lines
        else:
            dropped[reason] += 1
    return kept, dropped, removed


THRESHOLDS = st.fixed_dictionaries(
    {
        "rules": st.permutations(SETS).flatmap(lambda sets: st.integers(1, 4).map(lambda most: sets[:most])),
        "min_words": st.integers(0, 4),
        "max_words": st.integers(4, 12),
        "min_mean_word_length": st.sampled_from([0.0, 1.5, 2.0, 3.0]),
        "max_mean_word_length": st.sampled_from([3.0, 4.5, 10.0]),
        "max_symbol_ratio": st.sampled_from([0.0, 0.1, 0.25, 0.5, 2.0]),
        "max_bullet_lines": st.sampled_from([0.0, 0.5, 0.9, 1.0]),
        "max_ellipsis_lines": st.sampled_from([0.0, 0.3, 0.5, 1.0]),
        "min_alpha_words": st.sampled_from([0.0, 0.5, 0.8, 1.0]),
        "min_stop_words": st.integers(0, 3),
        "max_repeated_lines": st.sampled_from([0.0, 0.3, 1.0]),
        "max_repeated_paragraph_chars": st.sampled_from([0.0, 0.2, 1.0]),
        "max_top_ngram_chars": st.sampled_from([{}, {"2": 0.5}, {"1": 0.9, "3": 0.9}]),
        "max_repeated_ngram_chars": st.sampled_from([{}, {"2": 0.1}, {"1": 0.9, "3": 0.2}]),
        "min_line_words": st.integers(0, 4),
        "max_word_length": st.sampled_from([5, 11, 1000]),
        "min_sentences": st.integers(0, 3),
        "ended_lines": st.booleans(),
        "min_ended_lines": st.sampled_from([0.0, 0.12, 0.5]),
        "max_short_lines": st.sampled_from([0.5, 0.67, 1.0]),
        "short_line_chars": st.integers(0, 10),
        "max_duplicate_line_chars": st.sampled_from([0.0, 0.1, 1.0]),
        "max_breaks": st.sampled_from([0.0, 0.3, 1.0]),
        "dolma_line_words": st.integers(0, 3),
        "phrases": st.sampled_from([[], ["{"], ["Lorem Ipsum", "x"]]),
        "min_median_word_length": st.sampled_from([0.0, 2.0, 2.5]),
        "max_median_word_length": st.sampled_from([2.5, 4.0, 10.0]),
        "max_recurring_lines": st.sampled_from([0.0, 0.3, 1.0]),
        "max_recurring_line_chars": st.sampled_from([0.0, 0.3, 2.0]),
        "max_personal_data": st.integers(0, 2),
        "max_repeats": st.integers(0, 4),
    }
)


@given(THRESHOLDS, st.lists(TEXTS, min_size=1, max_size=6), st.integers(1, 7))
def test_a_batch_is_judged_text_by_text(parameters: dict[str, Any], texts: list[str], chunk: int) -> None:
    """What is kept, with its text, and in which order, whatever the sets of rules and the chunks of the batch."""
    job = Quality(**parameters)
    table = pa.table({"id": pa.array(range(len(texts))), "text": pa.array(texts, pa.string())})
    pieces = [table.slice(start, chunk) for start in range(0, len(texts), chunk)]
    found = [row for part in processed(job, pa.concat_tables(pieces)) for row in part.to_pylist()]
    assert [(row["id"], row["text"]) for row in found] == judged(job, texts)[0]


def processed(job: Quality, table: pa.Table) -> list[pa.Table]:
    """Calls the code of the job as a worker does."""
    job.setup()
    return list(job.process(table))


@given(THRESHOLDS, st.lists(TEXTS, min_size=1, max_size=4))
def test_annotated_nothing_is_dropped_and_all_is_told(parameters: dict[str, Any], texts: list[str]) -> None:
    """Each row with its text as it was, with each measure, and the reason for which it would be dropped."""
    job = Quality(annotate=True, **parameters)
    [found] = processed(job, pa.table({"id": pa.array(range(len(texts))), "text": pa.array(texts, pa.string())}))
    rows = found.to_pylist()
    assert [(row.pop("id"), row.pop("text")) for row in rows] == list(enumerate(texts))
    expected = [plain.judged(job, text) for text in texts]
    assert [row.pop(REASON) for row in rows] == [reason for reason, _, _, _ in expected]
    assert rows == [measured for _, _, _, measured in expected]


LONG_LINE = " ".join(["word"] * 60) + " and the end."
CASES = {
    "gopher: too few words": "The end of the road and that was it.",
    "gopher: too many words": PROSE * 3,
    "gopher: words too short": "I am to be of " * 12 + ".",
    "gopher: words too long": "and incomprehensibilities the " + "incomprehensibilities " * 58,
    "gopher: too many hash signs": PROSE + " #" * 12,
    "gopher: too many ellipses": PROSE.replace(" of ", "... ").replace(" the ", "… ").replace(" and ", "… "),
    "gopher: too many bullet points": "\n".join(f"- {part}" for part in PROSE.split(".") if part),
    "gopher: too many lines end with an ellipsis": f"{PROSE}\nMore of it ...\nWhat came of it …",
    "gopher: too few words with a letter": PROSE + " 1234" * 30,
    "gopher: too few stop words": "Some text without any common words goes here. " * 10,
    "repetition: too many paragraphs": f"{PROSE}\n\nShort.\n\nShort.\n\nShort.",
    "repetition: too much text in paragraphs": f"{PROSE}\n\n{PROSE[:140]}\n\n{PROSE[:140]}\n\nWell.",
    "repetition: too many lines": f"{PROSE}\nShort.\nShort.\nShort.\n\nWell.",
    "repetition: too much text in lines": f"{PROSE}\n{PROSE[:140]}\n{PROSE[:140]}\nWell.",
    "repetition: the most frequent 2 words": PROSE.replace(" of ", " in between, ").replace(" the ", " in between, "),
    "repetition: 10 words": f"{PROSE} {PROSE[:100]}",
    "c4: lorem ipsum": f"{PROSE} Lorem Ipsum dolor sit amet.",
    "c4: curly bracket": f"{PROSE}\nif (x) {{ it is returned.",
    "c4: too few sentences": LONG_LINE,
    "fineweb: too few lines end in punctuation": PROSE[:-1],
    "fineweb: too many short lines": f"{PROSE}\nOne here.\nTwo there.\nThree.\nFour.",
    "fineweb: repeated lines": PROSE + "\nIt is said more than once, and it stays." * 2,
    "fineweb: too many line feeds": PROSE + "\n" * 60,
    "fineweb: no line": " \n \n",
    "dolma: unwanted phrase": f"{PROSE} Please enable JavaScript.",
    "dolma: too few words": "Home\nThe end of the road and that was it.",
    "dolma: too many words": PROSE * 3,
    "dolma: words too short": "I am to be of " * 12 + ".",
    "dolma: words too long": "and the " + " ".join(f"incomprehensibilities{n}" for n in range(60)) + ".",
    "dolma: too many symbols": PROSE.replace(" of ", " #of ").replace(" the ", " the… "),
    "dolma: too few words with a letter": PROSE[:-1] + "".join(f" {n}" for n in range(1000, 1040)) + ".",
    "dolma: too few stop words": " ".join(f"Some plain text without common words goes here {n}." for n in "abcdefghi"),
    "dolma: too many bullet points": "\n".join(f"* {part}." for part in PROSE.split(".") if part),
    "dolma: too many lines end with an ellipsis": f"{PROSE}\nMore of it…\nWhat came of it…",
    "dolma: too many recurring lines": f"{PROSE}\nShort.\nShort.\nWell.",
    "dolma: too much text in recurring lines": "\n".join([*PROSE.split(". "), "One.", "Two.", *[PROSE[:110]] * 2]),
    "dolma: the most frequent 2 words": PROSE.replace(" of ", " in between, ").replace(" the ", " in between, "),
    "dolma: recurring 10 words": f"{PROSE} {PROSE[:80]}.",
    "dolma: too much personal data": PROSE + " Mail to a@b.co " * 6 + ".",
    "dolma: the same again and again": PROSE + " haha" * 100 + " now.",
}
SET = {"gopher": "gopher", "repetition": "gopher-repetition", "c4": "c4", "fineweb": "fineweb", "dolma": "dolma"}
LAX: dict[str, dict[str, Any]] = {
    "dolma: too many lines end with an ellipsis": {"ended_lines": False},
    "dolma: too much text in recurring lines": {"ended_lines": False},
    "dolma: too much personal data": {"max_top_ngram_chars": {}, "max_repeated_ngram_chars": {}},
    "dolma: the same again and again": {"max_top_ngram_chars": {}, "max_repeated_ngram_chars": {}, "max_words": 200},
}
"""Without which an earlier rule of the set decides."""


@pytest.mark.ci(20)
@pytest.mark.quick(26)
@pytest.mark.parametrize("reason", CASES)
def test_each_reason_is_given_for_a_text_that_fails_that_rule(reason: str) -> None:
    """First of its set, with the published thresholds, but for 150 words at most; the book counts it once."""
    parameters = {"max_words": 150, "phrases": ["javascript"], **LAX.get(reason, {})}
    job = Quality(rules=[SET[reason.split(":")[0]]], **parameters)
    ran = run_local(job, rows(CASES[reason], PROSE))
    assert ran.rows == [{"id": "r1", "text": PROSE}]
    assert ran.summary.books.dropped == {reason: 1}
    assert ran.summary.books.rows_in == 2


def test_all_published_rules_have_a_case() -> None:
    """Of the rules for n words in a row those for one n."""
    job = Quality()
    reasons = {rule.reason for name in SETS for rule in getattr(job, name.removeprefix("gopher-"))()}
    assert set(CASES) <= reasons
    assert {re.sub(r"\d+", "n", reason) for reason in reasons} == {re.sub(r"\d+", "n", reason) for reason in CASES}


def test_the_first_rule_counts() -> None:
    """A text that fails many rules is dropped once, for the first in the order of the rules."""
    ran = run_local(Quality, rows("{lorem ipsum} #", ""))
    assert ran.summary.books.dropped == {"gopher: too few words": 2}
    ran = run_local(Quality(rules=["c4"]), rows("The {lorem ipsum} one.", "It is { here.", ""))
    assert ran.summary.books.dropped == {"c4: lorem ipsum": 1, "c4: curly bracket": 1, "c4: too few sentences": 1}


def test_a_set_sees_what_those_before_it_left() -> None:
    """A menu is taken out by C4 before FineWeb counts its short lines; in the other order it drops the text."""
    menu = "Home\nLog in\nHelp\n" + PROSE
    assert run_local(Quality(rules=["c4", "fineweb"]), rows(menu)).rows == [{"id": "r0", "text": PROSE}]
    dropped = run_local(Quality(rules=["fineweb", "c4"]), rows(menu)).summary.books.dropped
    assert dropped == {"fineweb: too many short lines": 1}


def test_the_defaults_are_the_published_values() -> None:
    job = Quality()
    found = {name: getattr(job, name) for name in Quality._params if re.match("min_|max_|short_|ended_", name)}
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
        "max_repeated_lines": 0.3,
        "max_repeated_paragraphs": 0.3,
        "max_repeated_line_chars": 0.2,
        "max_repeated_paragraph_chars": 0.2,
        "max_top_ngram_chars": {"2": 0.2, "3": 0.18, "4": 0.16},
        "max_repeated_ngram_chars": {"5": 0.15, "6": 0.14, "7": 0.13, "8": 0.12, "9": 0.11, "10": 0.1},
        "min_line_words": 3,
        "max_word_length": 1000,
        "min_sentences": 5,
        "ended_lines": True,
        "min_ended_lines": 0.12,
        "max_short_lines": 0.67,
        "short_line_chars": 30,
        "max_duplicate_line_chars": 0.01,
        "max_breaks": 0.3,
        "min_median_word_length": 3,
        "max_median_word_length": 10,
        "max_recurring_lines": 0.3,
        "max_recurring_line_chars": 0.3,
        "max_personal_data": 5,
        "max_repeats": 99,
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
        (
            {"rules": ["gofer"]},
            "--rules gofer: there are gopher, gopher-repetition, c4, fineweb and dolma; did you mean 'gopher'?",
        ),
        ({"rules": []}, "--rules is empty, so every text would be kept; there are gopher, gopher-repetition"),
        ({"phrases": ["a", ""]}, "--phrases has an empty one, which all texts have"),
        ({"max_recurring_lines": 3.0}, "--max-recurring-lines 3 is no share"),
        ({"rules": ["c4", "c4"]}, "--rules has c4 twice; name each set once"),
        ({"words": "nltk"}, "nltk"),
        ({"max_top_ngram_chars": {"two": 0.2}}, "--max-top-ngram-chars has the key 'two'; keys are numbers of words"),
        ({"max_repeated_ngram_chars": {"5": 15.0}}, "--max-repeated-ngram-chars for 5 words 15 is no share"),
        ({"min_words": 9, "max_words": 8}, "--min-words 9 is above --max-words 8, so no text would be kept"),
        ({"min_mean_word_length": 11.0}, "--min-mean-word-length 11 is above --max-mean-word-length 10"),
        ({"max_bullet_lines": 90.0}, "--max-bullet-lines 90 is no share; shares are between 0 and 1"),
        ({"min_alpha_words": -1.0}, "--min-alpha-words -1 is no share"),
        ({"min_stop_words": 9}, "--min-stop-words 9: there are 8 stop words"),
        ({"id_column": "text"}, "the text 'text' is no id"),
        ({"max_symbol_ratio": -0.1}, "--max-symbol-ratio -0.1 is below 0, so no text would be kept"),
        ({"max_repeats": -1}, "--max-repeats -1 is below 0, so no text would be kept"),
        ({"min_words": -1}, "--min-words -1 is below 0; give 0, which no text falls short of, or more"),
        ({"short_line_chars": -3, "rules": ["fineweb"]}, "--short-line-chars -3 is below 0; give 0"),
        ({"dolma_line_words": -1, "rules": ["dolma"]}, "--dolma-line-words -1 is below 0; give 0"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with refusing(message):
        run_local(Quality(**given), rows(PROSE), directory=tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("sets", [SETS, ["dolma"]])
def test_a_column_that_is_kept_is_called_like_none_that_is_written(sets: list[str]) -> None:
    """As the annotations of an earlier run are. Without any there is no such column."""
    annotated = run_local(Quality(annotate=True, rules=list(sets)), rows(PROSE)).table
    own = [name for name in annotated.column_names if name not in ("id", "text")]
    assert len(own) > 20
    for name in own:
        with refusing(f"the output's column {name!r} is the job's own; leave {name!r} out of what is kept"):
            run_local(Quality(annotate=True, rules=list(sets), keep_columns=[name]), annotated)
    kept = run_local(Quality(rules=["gopher"], min_words=1, keep_columns=own), annotated).table
    assert kept.column_names == ["id", *own, "text"]


@pytest.mark.slow
def test_the_demo_corpus(tmp_path: Path) -> None:
    """What is kept, what is dropped for what, and which lines are removed equal what plain Python makes of it."""
    corpus = [sys.executable, str(ROOT / "scripts/corpus"), "--output", str(tmp_path / "in"), "--comments", "3000"]
    subprocess.run(corpus, check=True, capture_output=True)
    run_job(LangId(text_column="body", keep_columns=["body"]), tmp_path / "in", tmp_path / "all")
    comments = output_rows(tmp_path / "all")
    assert len(comments) == 3000
    job = Quality(text_column="body", min_words=20, min_line_words=12, min_sentences=2)
    summary = run_job(job, tmp_path / "in", tmp_path / "out")
    kept, dropped, removed = judged(job, [row["body"] for row in comments])
    assert (summary.state, summary.books.rows_in, summary.books.quarantined) == (RunState.COMPLETE, 3003, 3)
    assert output_rows(tmp_path / "out") == [{"id": comments[number]["id"], "body": text} for number, text in kept]
    assert summary.books.dropped == dict(dropped)
    assert summary.books.counters == {f"lines removed: {reason}": count for reason, count in removed.items()}
    assert len(kept) > 500
    assert len(dropped) > 1
    assert removed["too few words"] > 10
