"""What another driver has done, and what is removed before this one has read its books: it is done again, and told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import curate
from curate.driver import helping
from curate.driver.helping import Helping
from curate.driver.run_recorder import RunRecorder
from curate.errors import CorruptInput
from curate.ledger.fencing import SURE_S
from curate.observe.job import read_status
from tests.job.inline import run_job, write_jsonl
from tests.support.fakes import FakeClock

SHARDS = 24
SOME = 16
"""Shards that a run is asked for: some of them are of another part."""


class Numbered(curate.Job):
    version = "1"
    began: ClassVar[list[int]] = []

    def process(self, batch: pa.Table) -> pa.Table:
        self.began.append(batch["id"][0].as_py())
        on_shard()
        return batch


def on_shard() -> None:
    """Is replaced."""


def broken() -> None:
    """Makes a shard fail at once."""
    raise CorruptInput("as scripted")


@pytest.mark.parametrize(
    ("when", "only"),
    [
        ("while it helps", {}),
        ("at the end", {}),
        ("at the end", {"limit": SOME}),
        ("at the end", {"retry_failed": True}),
    ],
)
def test_an_output_of_another_driver_is_removed(
    when: str, only: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the books of it are read. The run was called complete, without that output and its rows. A run that was
    asked for some shards does no others: of a job that was not done as a whole, not all that is left is its to do."""
    (tmp_path / "in").mkdir()
    for number in range(SHARDS):
        (tmp_path / f"in/{number:02}.jsonl").write_text(f'{{"id": {number}}}\n')
    # What `on_shard` does is code of the job.
    given: dict[str, Any] = {"input": tmp_path / "in", "backend": "inline", "accept_code_change": True}
    assert Numbered().run(output=tmp_path / "whole", **given).state == "complete"
    if "retry_failed" in only:
        monkeypatch.setitem(globals(), "on_shard", broken)
        assert Numbered().run(output=tmp_path / "out", limit=SOME, **given).failed == SOME
    Numbered.began.clear()
    scope = SOME if only else SHARDS
    last = f"{scope - 1:02}.parquet"
    theirs, ours = tmp_path / "whole" / last, tmp_path / "out" / last
    # One that is listed, not one of few that are looked at one by one.
    monkeypatch.setattr(helping, "FEW_SHARDS", 0)
    listed, gather = Helping._listed, Helping.gather
    seen: list[bool] = []
    removed: list[bool] = []

    def remove() -> None:
        if not removed and ours.exists():
            ours.unlink()
            removed.append(True)

    def listing(self: Helping) -> Any:
        found = listed(self)
        seen.append(ours.exists())
        return found

    def gathering(self: Helping) -> Any:
        if when == "at the end":
            remove()
        return gather(self)

    def act() -> None:
        if not ours.exists() and not seen:
            shutil.copy(theirs, ours)
        elif True in seen and when == "while it helps":
            remove()

    monkeypatch.setattr(Helping, "_listed", listing)
    monkeypatch.setattr(Helping, "gather", gathering)
    monkeypatch.setitem(globals(), "on_shard", act)
    summary = Numbered().run(output=tmp_path / "out", part="0/2", **only, **given)
    assert True in seen
    assert removed
    # What had failed is no longer known to have, once another driver has made it: it is left to the next run.
    left = int("retry_failed" in only)
    assert (summary.state, summary.failed) == ("failed" if left else "complete", left)
    assert (summary.done, summary.total) == (scope - left, scope)
    assert set(Numbered.began) == set(range(scope - left))
    assert Numbered.began.count(scope - 1) == 1 - left
    assert ours.exists() == (not left)
    if left:
        assert Numbered().run(output=tmp_path / "out", limit=SOME, **given).state == "complete"
    assert ours.read_bytes() == theirs.read_bytes()
    told = tmp_path / "out/_curate/summary.json"
    assert told.exists() == (not only)
    if not only:
        assert summary.books.rows_out == json.loads(told.read_bytes())["rows"]["out"] == SHARDS


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_run_with_nothing_to_do_says_what_its_last_look_found(
    rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was paused, and meanwhile an output was removed: it is made again, or the run ends as failed. It returned
    "complete", beside a heartbeat that said "failed" and without a summary."""
    source, out, clock = tmp_path / "in", tmp_path / "out", FakeClock(1.8e9)
    for number in range(2):
        write_jsonl(source / f"{number}.jsonl", [{"id": number}])
    assert run_job(Numbered(), source, out).state == "complete"
    (out / "_curate/summary.json").unlink()
    opened = RunRecorder.open

    def pause(self: RunRecorder) -> None:
        opened(self)
        clock.advance(2 * SURE_S)
        (out / "0.parquet").unlink(missing_ok=True)

    monkeypatch.setattr(RunRecorder, "open", pause)
    monkeypatch.setattr("curate.driver.stage_run.MOST_ROUNDS", rounds)
    ended = run_job(Numbered(), source, out, clock=clock)
    assert (ended.state, ended.done, ended.failed) == (("complete", 2, 0) if rounds else ("failed", 1, 1))
    assert read_status(str(out), clock.now()).state == ended.state
    assert (out / "_curate/summary.json").exists() == bool(rounds)
