"""Runs of drivers whose clocks are days apart: they are told in the order in which they ran."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import curate
from curate.graph.entry import run
from curate.job.job import Job
from curate.observe.job import read_status
from curate.testing.clock import FakeClock
from tests.job.inline import write_jsonl

NOW_S, DAY_S = 1_700_000_000.0, 86_400.0


class Poisoned(curate.Job):
    """Fails as long as there is a file of that name."""

    version = "1"
    poison: str

    def process(self, batch: pa.Table) -> pa.Table:
        if Path(self.poison).exists():
            raise ValueError("poison")
        return batch


class PoisonedAndSorted(Poisoned):
    """Has a stage before the last one."""

    def build(self, ds: curate.Dataset) -> curate.Dataset:
        return super().build(ds.sort("n"))


@pytest.mark.parametrize("job", [Poisoned, PoisonedAndSorted])
def test_the_newest_run_is_the_last_one_whatever_the_clocks_say(tmp_path: Path, job: type[Job]) -> None:
    """One whose clock was ahead stayed the newest for days, whatever was run after it."""
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"n": 1}])
    poison, out = tmp_path / "poison", str(tmp_path / "out")
    poison.touch()
    made, seen = job(poison=str(poison)), set[str]()
    for days in (0, 3, -2, 0):
        if len(seen) == 3:
            poison.unlink()
        now_s = NOW_S + days * DAY_S
        options = job.options(input=str(tmp_path / "in"), output=out, backend="inline", retry_failed=bool(seen))
        ended = run(made.spec(), options, clock=FakeClock(now_s))
        newest, *others = [one.run_id for one in read_status(out, now_s).runs]
        assert (newest not in seen, {*others}) == (True, seen)
        assert read_status(out, now_s).runs[0].state == ended.state
        seen.add(newest)
    assert (max(seen), ended.state) == (newest, "complete")
