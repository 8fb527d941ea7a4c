"""What a run tells about failures while it goes on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import structlog

import curate
from curate.driver.run_recorder import RunRecorder
from curate.job.job import Job
from curate.ledger.summary import RunState
from curate.observe.failures import read_failures
from curate.observe.metrics import PipelineMetrics
from curate.observe.progress import Display, Progress
from curate.observe.retries import MOST_ALIKE, MOST_WARNINGS, Warned
from curate.stage import program
from curate.tasks.failure import Failure, FailureKind
from tests.job.inline import run_job, write_jsonl
from tests.support.fakes import FakeClock


class Broken(Job):
    """Fails on every batch."""

    version = "1"

    def process(self, batch: Any) -> Any:
        raise ValueError(f"cannot read {batch.num_rows} rows")


def test_what_fails_alike_is_logged_three_times(tmp_path: Path) -> None:
    """Of tries that fail alike three are logged, of the last tries of shards three more; then one line says that there
    are others. Each is in the ledger."""
    source = tmp_path / "in"
    source.mkdir()
    for number in range(20):
        # Cut off: fails at once, without a backoff.
        (source / f"{number:04}.parquet").write_bytes(b"PAR1")
    (source / "whole.jsonl").write_text('{"id": 1}\n')
    with structlog.testing.capture_logs() as logs:
        summary = Broken(max_bad_rows=0).run(
            input=str(source / "*.parquet"), output=str(tmp_path / "out"), backend="inline"
        )
    assert summary.failed == 20
    assert sum(log["event"] == "shard failed" for log in logs) == MOST_ALIKE
    assert sum(log["event"].startswith("more fail in the same way") for log in logs) == 1
    assert [one.shards for one in read_failures(summary.output).groups()] == [20]


def test_a_flood_of_failures_does_not_flood_the_log() -> None:
    """The first hundred tries that fail are logged, however they fail; then one line says that more do."""
    warned = Warned()
    kinds = ["".join(chr(ord("a") + int(digit)) for digit in str(number)) for number in range(MOST_WARNINGS + 20)]
    told = [
        warned.failed(Failure(FailureKind.USER_ERROR, f"ValueError: it is {kind}"), final=final)
        for kind in kinds
        for final in (False, True)
    ]
    assert [logged for logged, _ in told] == [True] * MOST_WARNINGS + [False] * (len(told) - MOST_WARNINGS)
    assert [more[:16] for _, more in told if more] == ["more shards fail"]
    assert not warned.busy()


CLOCK = FakeClock()


class Slow(Job):
    """Takes three seconds for ten rows, by a clock that a test moves."""

    version = "1"
    batch_size = 10

    def process(self, batch: pa.Table) -> pa.Table:
        CLOCK.sleep(3.0)
        return batch


class Watched(Display):
    """Notes all that it is shown."""

    interval_s = 0.0

    def __init__(self) -> None:
        self.shown: list[Progress] = []

    def show(self, progress: Progress) -> None:
        self.shown.append(progress)


def test_a_long_shard_shows_progress_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows read so far, and the bytes that they stand for as far as that is known from shards that are done; no call of
    a store is made for it."""
    write_jsonl(tmp_path / "in/a.jsonl", [{"id": f"{number:03}"} for number in range(100)])
    write_jsonl(tmp_path / "in/b.jsonl", [{"id": f"{number:03}"} for number in range(100)])
    display = Watched()
    ended = run_job(Slow(), tmp_path / "in", tmp_path / "out", clock=CLOCK, display=display, max_in_flight=1)
    assert ended.state is RunState.COMPLETE
    first = [one.rows_running for one in display.shown if one.done == 0 and one.rows_running]
    assert first == sorted(first)
    assert len(set(first)) >= 5
    later = [one for one in display.shown if one.done == 1 and one.rows_running]
    assert all(0.5 < one.part < 1.0 for one in later)
    assert max(one.part for one in later) > 0.8
    assert max(one.rate["rows_per_s"] for one in later) == pytest.approx(10 / 3, rel=0.2)
    assert (display.shown[-1].part, display.shown[-1].rows_running) == (1.0, 0)
    monkeypatch.setattr(program, "PROGRESS_S", math.inf)
    silent = Watched()
    without = run_job(Slow(), tmp_path / "in", tmp_path / "without", clock=CLOCK, display=silent, max_in_flight=1)
    assert not any(one.rows_running for one in silent.shown)
    assert without.calls == ended.calls


class Stepped(Job):
    """As many steps as are asked for, in a pool or in tasks."""

    version = "1"
    steps: int = 1
    pool: bool = False

    def build(self, ds: curate.Dataset) -> curate.Dataset:
        for _ in range(self.steps):
            ds = ds.map_batches(_same, compute=curate.ActorPool(size=1) if self.pool else None)
        return ds


def _same(batch: pa.Table) -> pa.Table:
    return batch


class Shown:
    """Keeps what it is shown."""

    interval_s = 0.0
    seen: ClassVar[list[PipelineMetrics]] = []

    def show(self, progress: Progress) -> None:
        assert progress.measured is not None
        self.seen.append(progress.measured)

    def close(self, last: Progress) -> None:
        self.show(last)


@pytest.mark.parametrize(("steps", "pool", "told"), [(1, False, False), (2, False, True), (1, True, True)])
def test_operators_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, pool: bool, told: bool
) -> None:
    """To a display always, shard by shard; in heartbeats where there is a pool, or more than one step."""
    beats: list[dict[str, Any]] = []
    heartbeat = RunRecorder.heartbeat

    def kept(account: RunRecorder) -> dict[str, Any]:
        beats.append(heartbeat(account))
        return beats[-1]

    monkeypatch.setattr(RunRecorder, "heartbeat", kept)
    monkeypatch.setattr(Shown, "seen", [])
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text('{"id": "1"}\n' * 10)
    Stepped(steps=steps, pool=pool).run(
        input=f"{tmp_path}/*.jsonl",
        output=f"{tmp_path}/out",
        backend="inline",
        display=Shown(),
        target_task_seconds=1e-6,
    )
    rows = [[one.meter.rows_in + one.meter.rows_out for one in measured.operators] for measured in Shown.seen]
    assert rows[-1] == [30, *([60] * steps), 30]
    assert rows == sorted(rows)
    assert len({tuple(one) for one in rows}) >= 3
    assert ("operators" in beats[-1]) is told
    if told:
        assert [one["name"] for one in beats[-1]["operators"]] == ["read", *(["map_batches(_same)"] * steps), "write"]
        assert [("actors" in one) for one in beats[-1]["operators"]] == [False, *([pool] * steps), False]
