"""Totals of a run: whatever shards do, in whatever order, they are what counting them again gives."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.ledger.manifest import ShardPlan, shards_table
from curate.observe import run_totals
from curate.observe.run_totals import RunTotals
from curate.tasks.books import Books
from curate.tasks.failure import Failure, FailureKind, ShardRecord
from tests.support.ledgers import make_shard

ERRORS = ("ValueError: bad", "KeyError: 'x'", "TypeError: no number")
PLAN = ShardPlan.of([shards_table([make_shard(f"s{rank}", size=10 + rank) for rank in range(6)])])


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from((*ERRORS, "done"))), max_size=30))
def test_counts_are_those_of_shards_as_they_are_now(events: list[tuple[int, str]]) -> None:
    """A shard that was given up may be done after all; then it counts with no error, and is nobody's example."""
    size = sum(PLAN.sizes.tolist())
    totals = RunTotals(PLAN, Books(), bytes_in=0, bytes_out=0, done=0, job_done=0, bytes_left=size)
    now: dict[int, str] = {}
    for rank, what in events:
        if now.get(rank) == "done" or (rank in now and what != "done"):
            continue
        if rank in now:
            totals.failed_no_more(rank)
        if what == "done":
            totals.shard_done(ShardRecord(rank, 1.0, books=Books(3, rows_out=3), bytes_out=7))
        else:
            totals.shard_failed(rank, f"s{rank}", Failure(FailureKind.USER_ERROR, what))
        now[rank] = what
    done = [rank for rank, what in now.items() if what == "done"]
    failed = {rank: what for rank, what in now.items() if what != "done"}
    assert (totals.done, totals.job_done, totals.failed) == (len(done), len(done), len(failed))
    assert (totals.bytes_out, totals.rows_read) == (7 * len(done), 3 * len(done))
    assert totals.bytes_left == size - sum(int(PLAN.sizes[rank]) for rank in now)
    assert sorted(totals.given_up.tolist()) == sorted(failed)
    assert {one.error: one.count for one in totals.failures()} == Counter(failed.values())
    assert all(failed[int(one.shard[1:])] == one.error for one in totals.failures())


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(("here", "by others", "gathered", "lost"))), max_size=20))
def test_what_others_have_done_is_counted_as_it_is_now(events: list[tuple[int, str]]) -> None:
    """An output of theirs that is lost is none of theirs: it was counted, and fewer shards than none were done here."""
    totals = RunTotals(PLAN, Books(), bytes_in=0, bytes_out=0, done=0, job_done=0, bytes_left=0)
    now: dict[int, str] = {}
    for rank, what in events:
        if (now.get(rank, "lost") == "lost") == (what == "lost"):
            continue
        record = ShardRecord(rank, 1.0, books=Books(), existed=what != "here")
        if what == "lost":
            totals.lost(np.array([rank]))
        elif what == "gathered":
            totals.found_elsewhere(np.array([rank]))
            totals.gathered(record)
        else:
            totals.shard_done(record)
        now[rank] = what
    assert totals.by_others == sum(what in ("by others", "gathered") for what in now.values())
    assert totals.done - totals.by_others == list(now.values()).count("here")


def test_no_failed_shard_is_in_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more errors than are kept apart, each further one is among the others: and those are a group beside as many.
    The smallest group was left out then."""
    monkeypatch.setattr(run_totals, "MOST_GROUPS", 3)
    totals = RunTotals(PLAN, Books(), bytes_in=0, bytes_out=0, done=0, job_done=0, bytes_left=0)
    for rank, what in enumerate("abcdef"):
        totals.shard_failed(rank, f"s{rank}", Failure(FailureKind.USER_ERROR, f"Error: {what}"))
    found = Counter({one.error: one.count for one in totals.failures()})
    assert found == {"Error: a": 1, "Error: b": 1, "Error: c": 1, run_totals.OTHER_ERRORS.error: 3}
    assert found.total() == totals.failed
