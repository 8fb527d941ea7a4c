"""Another driver adds shards, and does them, while this one runs: what this one does at its end harms none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curate.driver.run_recorder import RunRecorder
from curate.observe.verify import verify
from tests.e2e.test_tokens import Shards, corpus
from tests.job.inline import quarantined, write_jsonl
from tests.resume.test_removal import Parted, check_same_as_fresh, rows, run_job


def when_it_runs(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Has `act` called when the next run has begun; not in a run that it begins itself."""
    opened, left = RunRecorder.open, [act]

    def opening(self: RunRecorder) -> None:
        opened(self)
        if left:
            left.pop()()

    monkeypatch.setattr(RunRecorder, "open", opening)


def test_rows_that_were_set_aside_there_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No output that this driver knows of names the file that they are in: it was removed with those that killed
    attempts leave, and the rows were nowhere any more."""
    source, out = tmp_path / "in", tmp_path / "out"
    write_jsonl(source / "a.jsonl", rows("a"))

    def grow() -> None:
        write_jsonl(source / "m.jsonl", rows("m"))
        assert run_job(Parted(), source, out, allow_concurrent=True).state == "complete"

    when_it_runs(monkeypatch, grow)
    ended = run_job(Parted(), source, out)
    assert (ended.state, ended.total) == ("complete", 1)
    assert len(quarantined(out)) == 2
    assert verify(str(out)).state == "ok"
    assert run_job(Parted(), source, out).attempts == 0
    check_same_as_fresh(Parted(), source, out, tmp_path / "fresh")


def test_an_index_names_their_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver of fewer shards put its own in the place of that of all, for good: the job was complete."""
    shards = Shards(tmp_path)

    def grow() -> None:
        (shards.source / "3.jsonl").write_bytes(corpus(seed=2)["0.jsonl"])
        assert shards.run("mds", allow_concurrent=True).state == "complete"

    when_it_runs(monkeypatch, grow)
    assert shards.run("mds").total == 3
    assert shards.run("mds").attempts == 0
    found = shards.bytes()
    shards.out = tmp_path / "fresh"
    shards.run("mds")
    assert found == shards.bytes()
