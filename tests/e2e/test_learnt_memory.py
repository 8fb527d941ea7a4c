"""Tasks that hold more than a slot has of this machine's memory: a job in worker processes that are killed for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.graph.entry import run
from curate.job.job import Job
from curate.job.params import param
from curate.ledger.summary import RunState
from curate.local import machine
from curate.local.backend import LocalBackend
from curate.runtime.protocol import BackendEvent, TaskEnd, TaskFinished
from tests.job.inline import numbered, outputs, write_jsonl

MIB = 1 << 20
LIMIT = 480 * MIB
SHARDS = 16
SLOTS = 2


class Hungry(Job):
    """Hold much for a moment."""

    version = "1"
    takes: int = param(0, identity=False, help="bytes")

    def process(self, batch: pa.Table) -> pa.Table:
        """Touches every page of what it takes."""
        taken = bytearray(b"x") * self.takes
        del taken
        return batch


class Watching(LocalBackend):
    """Remembers what tasks asked for, and those that were killed for memory."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int | None] = []
        self.killed = 0

    def launch(self, task: int, payload: Any, pieces: int, **how: Any) -> None:
        """As the backend."""
        self.asked.append(how.get("memory"))
        super().launch(task, payload, pieces, **how)

    def poll(self, timeout_s: float) -> list[BackendEvent]:
        """As the backend."""
        news = super().poll(timeout_s)
        self.killed += sum(isinstance(one, TaskFinished) and one.end is TaskEnd.OUT_OF_MEMORY for one in news)
        return news


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize(("takes", "asks"), [(0, False), (220 * MIB, True)], ids=["little", "much"])
def test_all_but_the_first_tasks_ask_for_what_those_held(
    takes: int, asks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at once do not fit. At most those are killed that began before anything was known: the first two, and the one
    that took the place of one of them."""
    monkeypatch.setenv(machine.MEMORY, str(LIMIT))
    monkeypatch.setattr(machine, "cpus", lambda: float(SLOTS))
    for k in range(SHARDS):
        write_jsonl(tmp_path / "in" / f"{k}.jsonl", numbered(k, k + 1))
    job, backend = Hungry(takes=takes), Watching()
    checked = job.options(input=tmp_path / "in", output=tmp_path / "out", target_task_seconds=1e-9)
    summary = run(job.spec(), checked, backend=backend)
    assert summary.state is RunState.COMPLETE
    assert len(outputs(tmp_path / "out")) == SHARDS
    asked = [one for one in backend.asked if one is not None]
    assert bool(asked) == asks
    assert backend.killed <= (SLOTS + 1 if asks else 0)
    if asks:
        assert backend.asked[-1] is not None
        assert min(asked) > LIMIT // SLOTS
