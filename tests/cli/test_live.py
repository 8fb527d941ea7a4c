"""A job as `curate status` sees it, from before its first shard to after its last, with a real run at work."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from curate.cli.status import show_all
from curate.job.job import Job
from curate.ledger.summary import RunState
from curate.observe.job import read_status
from curate.observe.status import JobStatus
from tests.support.fakes import FakeClock

SHARDS = 5


class Watched(Job):
    """Looks at its own status in the middle of every shard."""

    version = "1"
    output_schema = pa.schema([("id", pa.string())])
    max_bad_rows = "100%"

    output: ClassVar[str] = ""
    poison: ClassVar[str] = ""
    seen: ClassVar[list[JobStatus]] = []

    def process(self, batch: pa.Table) -> pa.Table:
        self.seen.append(read_status(self.output, time.time()))
        if self.poison and batch["id"][0].as_py() == self.poison:
            raise ValueError("boom")
        return batch.select(["id"])


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for number in range(SHARDS):
        path = tmp_path / "in" / f"s{number}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'{{"id": "{number}"}}\n' * (number + 1))
    monkeypatch.setattr(Watched, "output", f"{tmp_path}/out")
    monkeypatch.setattr(Watched, "seen", [])
    return f"{tmp_path}/in"


def run(inputs: str) -> Any:
    return Watched().run(input=inputs, output=Watched.output, backend="inline", target_task_seconds=0.001)


def test_a_running_job_is_seen_running(inputs: str) -> None:
    """The outputs are counted as they appear; the books of a complete job are whole."""
    assert run(inputs).state is RunState.COMPLETE
    assert [status.state for status in Watched.seen] == ["running"] * SHARDS
    assert [status.done for status in Watched.seen] == list(range(SHARDS))
    assert {status.total for status in Watched.seen} == {SHARDS}
    assert [len(status.runs) for status in Watched.seen] == [1] * SHARDS
    after = read_status(Watched.output, time.time())
    assert (after.state, after.done, after.pending) == ("complete", SHARDS, 0)
    assert after.rows == {"in": 15, "created": 0, "out": 15, "dropped": {}, "quarantined": 0}
    assert [(one.state, one.run_id) for one in after.runs] == [("complete", Watched.seen[0].runs[0].run_id)]


def test_a_failed_shard_is_seen_and_grouped(inputs: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its error and its name; and gone from sight once it is mended."""
    monkeypatch.setattr(Watched, "poison", "3")
    monkeypatch.setattr("curate.graph.entry.SystemClock", lambda: clock)
    assert run(inputs).state is RunState.FAILED
    status = read_status(Watched.output, clock.now())
    assert (status.state, status.done, status.failed, status.pending) == ("failed", 4, 1, 0)
    assert status.failures == [{"error": "ValueError: boom", "count": 1, "shard": "s3"}]
    monkeypatch.setattr(Watched, "poison", "")
    assert run(inputs).state is RunState.COMPLETE
    status = read_status(Watched.output, clock.now())
    assert (status.state, status.done, status.failed, status.failures) == ("complete", SHARDS, 0, [])
    assert [one.state for one in status.runs] == ["complete", "failed"]


def test_a_job_that_ran_is_known(inputs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It notes itself under $CURATE_HOME, by its absolute output."""
    run(inputs)
    assert show_all(FakeClock(), as_json=False, watch_s=None) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split()[:3] == ["watched", "complete", f"{SHARDS}/{SHARDS}"]
    assert line.endswith(Watched.output)


def test_a_finished_job_that_runs_again_leaves_no_trace(inputs: str) -> None:
    """Nothing was done, so there is nothing to tell: no run, no heartbeat, no event."""
    run(inputs)
    before = read_status(Watched.output, time.time())
    summary = run(inputs)
    assert (summary.skipped, summary.dispatched) == (SHARDS, 0)
    assert read_status(Watched.output, time.time()).runs == before.runs
