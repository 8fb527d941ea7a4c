"""What a run prints: the shape that scripts rely on, and the exit code."""

from __future__ import annotations

import pytest

from curate.ledger.summary import FailureGroup, RunState, Summary
from curate.storage.protocol import Calls
from curate.tasks.books import Books


def test_the_json_has_exactly_this_shape() -> None:
    """Every name, and nothing else."""
    summary = Summary(
        job="toxicity",
        run_id="20240101T000000.000Z-abc123",
        output="gs://b/out",
        state=RunState.FAILED,
        total=10,
        done=7,
        skipped=4,
        failed=3,
        dispatched=5,
        attempts=15,
        books=Books(100, 5, 90, 2, {"z": 6, "empty": 7}, {"words": 12, "a": 0.5}),
        bytes_in=1000,
        bytes_out=400,
        seconds=1.23456,
        calls=Calls(list=2, get=30, put=9, delete=1),
        failures=(FailureGroup("ValueError: boom", 3, "a"),),
        stale=1,
    )
    assert summary.as_dict() == {
        "job": "toxicity",
        "run_id": "20240101T000000.000Z-abc123",
        "output": "gs://b/out",
        "state": "failed",
        "shards": {"total": 10, "done": 7, "skipped": 4, "failed": 3},
        "tasks": {"dispatched": 5, "attempts": 15},
        "rows": {"in": 100, "created": 5, "out": 90, "dropped": {"empty": 7, "z": 6}, "quarantined": 2},
        "counters": {"a": 0.5, "words": 12},
        "bytes": {"in": 1000, "out": 400},
        "seconds": 1.235,
        "start_seconds": 0.0,
        "storage_calls": {"list": 2, "get": 30, "put": 9, "delete": 1},
    }
    assert list(summary.as_dict()["rows"]["dropped"]) == ["empty", "z"]


@pytest.mark.parametrize(("state", "code"), [("complete", 0), ("failed", 1), ("aborted", 3), ("interrupted", 130)])
def test_exit_codes(state: str, code: int) -> None:
    """2 is a refused start, which has no summary."""
    assert RunState(state).exit_code == code


def test_every_state_has_a_code() -> None:
    """A state that is added needs one."""
    assert len({state.exit_code for state in RunState}) == len(RunState)
