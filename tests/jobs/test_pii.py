"""The job that replaces personal data: what each action writes, and what is counted."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from curate.testing.local import run_local
from jobs.pii import Pii
from tests.job.inline import refusing

TEXTS = ["nothing here", "mail a@b.de or c@d.de, from 8.8.8.8", "", "+49 30 123456 is ä phone"]
ROWS = [{"id": k, "text": text} for k, text in enumerate(TEXTS)]
COUNTS = {"found: email": 2, "found: ip": 1, "found: phone": 1}


def test_replaced() -> None:
    ran = run_local(Pii, ROWS)
    assert [row["text"] for row in ran.rows] == [
        "nothing here",
        "mail [email] or [email], from [ip]",
        "",
        "[phone] is ä phone",
    ]
    assert ran.summary.books.counters == COUNTS


def test_replaced_by_what_was_asked_for_and_only_the_kinds_that_were() -> None:
    ran = run_local(Pii(kinds=["email"], replacements={"email": "x@example.com"}), ROWS)
    assert ran.rows[1]["text"] == "mail x@example.com or x@example.com, from 8.8.8.8"
    assert ran.summary.books.counters == {"found: email": 2}


def test_annotated() -> None:
    """Places are characters of the text, which stays as it is."""
    ran = run_local(Pii(action="annotate"), ROWS)
    assert [row["text"] for row in ran.rows] == TEXTS
    found = [[(one["kind"], row["text"][one["start"] : one["stop"]]) for one in row["pii"]] for row in ran.rows]
    assert found == [
        [],
        [("email", "a@b.de"), ("email", "c@d.de"), ("ip", "8.8.8.8")],
        [],
        [("phone", "+49 30 123456")],
    ]
    assert ran.summary.books.counters == COUNTS


def test_dropped() -> None:
    ran = run_local(Pii(action="drop"), ROWS)
    assert [row["id"] for row in ran.rows] == [0, 2]
    assert ran.summary.books.dropped == {"has email": 1, "has phone": 1}


@pytest.mark.parametrize("size", [1, 4096])
def test_the_same_whatever_the_batches(size: int) -> None:
    assert run_local(Pii(batch_size=size), ROWS).table == run_local(Pii, ROWS).table


def test_no_row_is_no_error() -> None:
    empty = pa.table({"id": pa.array([], pa.int64()), "text": pa.array([], pa.string())})
    assert run_local(Pii(action="annotate"), empty).rows == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"kinds": ["mail"]},
            "--kinds has 'mail'; did you mean 'email'?; there are: card, email, iban, ip, key, phone",
        ),
        ({"kinds": []}, "--kinds is empty, so nothing would be found"),
        ({"replacements": {"emails": "x"}}, "--replacements has 'emails'; did you mean 'email'?"),
        (
            {"replacements": {"email": "x"}, "action": "drop"},
            "--replacements is for --action replace, and the action is",
        ),
        (
            {"replacements": {"email": "x"}, "kinds": ["ip"]},
            "--replacements has 'email', and --kinds does not; leave it out, or look for it",
        ),
        ({"action": "annotate", "keep_columns": ["pii"]}, "a column is called 'pii' already"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with refusing(message):
        run_local(Pii(**given), ROWS)
