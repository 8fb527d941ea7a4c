"""A summary as a person reads it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from curate.ledger.summary import FailureGroup, RunState, Summary
from curate.observe.summary_text import render
from curate.storage.protocol import Calls
from curate.tasks.books import UNSPECIFIED, Books
from curate.units import SHOWN_CHARS

NASTY = "two\nlines \x1b[31mred\x07"
SHOWN = "two lines \\x1b[31mred\\x07"


def failed(error: str = "ValueError: x", output: str = "/out") -> Summary:
    books = Books(rows_in=1, dropped={NASTY: 1}, counters={NASTY: 1})
    return Summary(
        "job", "run", output, RunState.FAILED, 2, 1, 0, 1, 2, 5, books, 1, 1, 1.0, Calls(),
        failures=(FailureGroup(error, 1, "a/b"),),
    )  # fmt: skip


def test_nothing_that_a_job_says_can_act_on_the_terminal() -> None:
    """Errors, reasons and counters are a job's own words: each is one line, and no control character gets through."""
    lines = render(failed(NASTY)).split("\n")
    assert all(line.isprintable() for line in lines)
    assert [line.strip() for line in lines if SHOWN in line] == [
        f"1 dropped: {SHOWN}",
        f"counter  {SHOWN} = 1",
        f"failed   1 x {SHOWN} (for example a/b)",
    ]


def test_an_error_that_quotes_what_it_choked_on_is_cut() -> None:
    assert max(map(len, render(failed("x" * 100_000)).split("\n"))) < SHOWN_CHARS + 100


@pytest.mark.parametrize(
    ("output", "word"), [("/out", "/out"), ("gs://b/out", "gs://b/out"), ("/my out", "'/my out'"), ("/a$b", "'/a$b'")]
)
def test_what_to_type_next_is_what_a_shell_takes(output: str, word: str) -> None:
    text = render(failed(output=output))
    assert f"curate failures {word};" in text
    assert f"curate retry {word}\n" in text
    assert text.endswith(f"curate status {word}")


@pytest.mark.parametrize(
    ("books", "hint"),
    [
        (Books(rows_in=3, dropped={UNSPECIFIED: 3}), True),
        (Books(rows_in=3, dropped={UNSPECIFIED: 2, "short": 1}), True),
        (Books(rows_in=3, rows_out=1, dropped={UNSPECIFIED: 2}), False),
        (Books(rows_in=3, dropped={"short": 3}), False),
        (Books(), False),
    ],
)
def test_a_process_that_forgot_to_return_is_told(books: Books, *, hint: bool) -> None:
    """Nothing else said so of a job that is complete, and has written no row."""
    assert ("is a `return` missing?" in render(replace(failed(), state=RunState.COMPLETE, books=books))) is hint


@pytest.mark.parametrize("by_code", [False, True])
@pytest.mark.parametrize(("frame", "raised"), [("", False), ("a.py:3 in process", False), ("", True)])
def test_what_goes_on_after_a_change_of_code_is_said_where_the_code_of_the_job_raised(
    frame: str, *, raised: bool, by_code: bool
) -> None:
    """Nowhere else: a shard that was killed, or could not be read, is no defect of that code."""
    group = FailureGroup("ValueError: x", 1, "a/b", frame, raised)
    text = render(replace(failed(), failures=(group,), by_code=by_code))
    in_code = raised or bool(frame)
    assert ("After a change of the job's code: " in text) is in_code
    assert ("the same with accept_code_change=True" in text) is (in_code and not by_code)
    assert ("overwrite=True" in text) is (in_code and by_code)


@pytest.mark.parametrize("state", [RunState.ABORTED, RunState.INTERRUPTED])
def test_where_shards_are_left_that_did_not_fail_the_job_is_to_be_run_again(state: RunState) -> None:
    """`curate retry` runs those that failed, and no others; why it was stopped is said."""
    lines = render(replace(failed(), state=state, total=12)).split("\n")
    assert lines[-2:] == [
        "What failed: curate failures /out; after fixing the cause, run it again: curate retry would leave the other "
        "shards",
        "For all of it, see: curate status /out",
    ]
    stopped = "  stopped  more shards failed than max_failed_shards=... allows; not done yet: 10 other shards"
    assert (stopped in lines) == (state is RunState.ABORTED)
