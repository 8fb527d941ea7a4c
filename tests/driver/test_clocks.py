"""Runs of drivers whose clocks are days apart: they are told in the order in which they ran."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import curate
from curate.graph.entry import run
from curate.job.job import Job
from curate.observe import job as look
from curate.observe.failures import read_failures
from curate.observe.job import ledger_status, quick_status, read_status
from curate.testing.clock import FakeClock
from tests.job.inline import output_rows, write_jsonl

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


def test_the_ledger_alone_tells_what_a_listing_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose clock had been ahead was taken for the last word, with the shards that there were then."""
    monkeypatch.setattr(look, "COUNTED_SHARDS", 0)
    poison, out = tmp_path / "poison", str(tmp_path / "out")
    poison.touch()
    made = Poisoned(poison=str(poison))
    for number, days in enumerate((3, 0, -2)):
        write_jsonl(tmp_path / "in" / f"{number}.jsonl", [{"n": number}])
        now_s = NOW_S + days * DAY_S
        run(made.spec(), made.options(input=str(tmp_path / "in"), output=out, backend="inline"), clock=FakeClock(now_s))
        told = [one(out, now_s) for one in (read_status, ledger_status, quick_status)]
        seen = {(one.state, one.total, one.done, one.failed, one.running) for one in told}
        assert seen == {("failed", number + 1, 0, number + 1, 0)}, days


@pytest.mark.parametrize("days", [(0, 3), (3, 0)], ids=str)
@pytest.mark.parametrize("fails", [*itertools.product((False, True), repeat=2)], ids=str)
def test_of_an_output_that_was_removed_the_last_run_counts(
    tmp_path: Path, fails: tuple[bool, ...], days: tuple[int, ...]
) -> None:
    """Whatever the clocks say: of a shard that had failed at last, `failures` told nothing, and `retry` left it out."""
    poison, out = tmp_path / "poison", tmp_path / "out"
    made = Poisoned(poison=str(poison))
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"n": 1}])
    for failing, day in zip(fails, days, strict=True):
        poison.unlink(missing_ok=True)
        _ = failing and poison.touch()
        options = made.options(input=str(tmp_path / "in"), output=str(out), backend="inline")
        run(made.spec(), options, clock=FakeClock(NOW_S + day * DAY_S))
        (out / "a.parquet").unlink(missing_ok=True)
    assert read_failures(str(out)).failed.tolist() == [fails[-1]]


@pytest.mark.parametrize("days", [*itertools.permutations((3, 0, -2))], ids=str)
def test_an_output_that_could_not_be_made_again_has_failed(tmp_path: Path, days: tuple[int, ...]) -> None:
    """Whatever the clocks say: a redo that failed was told as nothing, and `retry` left the old output there."""
    poison, out = tmp_path / "poison", str(tmp_path / "out")
    made = Poisoned(poison=str(poison))

    def again(number: int, **options: Any) -> str:
        clock = FakeClock(NOW_S + days[number] * DAY_S)
        checked = made.options(input=str(tmp_path / "in"), output=out, backend="inline", **options)
        return run(made.spec(), checked, clock=clock).state

    write_jsonl(tmp_path / "in" / "a.jsonl", [{"n": 1}])
    assert again(0) == "complete"
    poison.touch()
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"n": 22}])
    assert (again(1, redo_stale=True), read_failures(out).failed.tolist()) == ("failed", [True])
    poison.unlink()
    assert (again(2, retry_failed=True), read_failures(out).failed.tolist()) == ("complete", [False])
    assert output_rows(tmp_path / "out") == [{"n": 22}]
