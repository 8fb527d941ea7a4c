"""When attempts were at work: however many, and however long they take, the sums hold and the size is bounded."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.tasks.books import Books
from curate.tasks.failure import Failure, FailureKind, ShardRecord
from curate.tasks.times import SPANS, InTurn, Times

ENDS = st.lists(st.tuples(st.floats(-10, 1e6), st.floats(0, 1e5)), max_size=60)


@given(ENDS)
def test_sums_hold(attempts: list[tuple[float, float]]) -> None:
    """Of slots, the seconds since the beginning; of bytes and rows, all."""
    times, slot_s, now_s = Times(0.0), 0.0, 0.0
    for number, (end_s, seconds) in enumerate(attempts):
        times.done(end_s, number, ShardRecord(number, seconds, books=Books(rows_in=3)), 7)
        slot_s += max(0.0, end_s) - max(0.0, end_s - seconds) if end_s > 0 else 0.0
        now_s = max(now_s, end_s)
    assert sum(times.amounts["slots"]) == pytest.approx(slot_s)
    assert sum(times.amounts["bytes"]) == pytest.approx(7 * len(attempts))
    assert sum(times.amounts["rows"]) == pytest.approx(3 * len(attempts))
    assert now_s <= times.span_s * SPANS
    assert all(len(found) == SPANS for found in times.amounts.values())
    assert all(one <= times.span_s * len(attempts) + 1e-6 for one in times.amounts["slots"])


@pytest.mark.parametrize(
    ("kind", "final", "name"),
    [
        (FailureKind.USER_ERROR, True, "failed"),
        (FailureKind.USER_ERROR, False, "retried"),
        (FailureKind.LOST, False, "lost"),
        (FailureKind.LOST, True, "lost"),
    ],
)
def test_what_failed_is_counted_where_it_ended(kind: FailureKind, final: bool, name: str) -> None:
    times = Times(50.0)
    times.failed(51.0, 0, ShardRecord(0, 0.5, Failure(kind, "no")), final=final)
    assert times.amounts[name][8] == sum(sum(times.amounts[one]) for one in ("failed", "retried", "lost")) == 1
    assert sum(times.amounts["slots"]) == pytest.approx(0.5)


@given(ENDS)
def test_it_is_read_back_as_it_was_told(attempts: list[tuple[float, float]]) -> None:
    times = Times(1.0)
    for number, (end_s, seconds) in enumerate(attempts):
        times.done(end_s, number, ShardRecord(number, round(seconds), books=Books(rows_in=3)), 7)
    told = orjson.dumps(times.as_dict())
    found = Times.parse(orjson.loads(told))
    assert found is not None
    assert orjson.dumps(found.as_dict()) == told
    assert len(told) < 4_000


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"start": 1},
        {"start": 1, "span_s": 0},
        {"start": 1, "span_s": -1},
        {"start": True, "span_s": 1},
        {"start": 1e300, "span_s": 1},
        {"start": 1, "span_s": 1, "slots": 3},
        {"start": 1, "span_s": 1, "slots": [-1]},
        {"start": 1, "span_s": 1, "rows": ["x"]},
        {"start": 1, "span_s": 1, "rows": [float("nan")]},
        {"start": 1, "span_s": 1, "lost": [0] * (SPANS + 1)},
    ],
)
def test_what_makes_no_sense_is_nothing(value: Any) -> None:
    assert Times.parse(value) is None


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 0.05), st.floats(0, 5)), max_size=30))
def test_a_task_is_one_slot_however_its_word_arrives(heard: list[tuple[int, float, float]]) -> None:
    """Attempts of one task of which a driver hears at once do not overlap, and none ends after it was heard of."""
    turn, now_s, last = InTurn(), 100.0, dict[int, float]()
    for task, wait_s, seconds in heard:
        now_s += wait_s
        end_s = turn.ended(task, now_s, seconds)
        assert end_s <= now_s
        assert end_s <= last.get(task, math.inf)
        last[task] = end_s - seconds
    assert turn.ended(0, now_s + 1.0, 1.0) == now_s + 1.0
