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

SHARDS = 24


class Numbered(curate.Job):
    version = "1"
    began: ClassVar[list[int]] = []

    def process(self, batch: pa.Table) -> pa.Table:
        self.began.append(batch["id"][0].as_py())
        on_shard()
        return batch


def on_shard() -> None:
    """Is replaced."""


@pytest.mark.parametrize("when", ["while it helps", "at the end"])
def test_an_output_of_another_driver_is_removed(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the books of it are read. The run was called complete, without that output and its rows."""
    (tmp_path / "in").mkdir()
    for number in range(SHARDS):
        (tmp_path / f"in/{number:02}.jsonl").write_text(f'{{"id": {number}}}\n')
    given: dict[str, Any] = {"input": tmp_path / "in", "backend": "inline"}
    assert Numbered().run(output=tmp_path / "whole", **given).state == "complete"
    Numbered.began.clear()
    last = f"{SHARDS - 1:02}.parquet"
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
    summary = Numbered().run(output=tmp_path / "out", part="0/2", **given)
    assert True in seen
    assert removed
    assert (summary.state, summary.done, summary.total, summary.books.rows_out) == ("complete", SHARDS, SHARDS, SHARDS)
    assert ours.read_bytes() == theirs.read_bytes()
    told = json.loads((tmp_path / "out/_curate/summary.json").read_bytes())
    assert told["rows"]["out"] == SHARDS
    assert Numbered.began.count(SHARDS - 1) == 1
