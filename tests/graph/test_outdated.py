"""Checkpoints of a job that an exchange follows, whose inputs change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.job.job import Job
from curate.job.params import param
from curate.ledger.summary import RunState
from tests.job.inline import output_rows, refusing, run_job, write_jsonl


class Kept(Job):
    """Keeps what `process` returns, perhaps twice, and sorts it."""

    version = "1"
    path: str = param(help="where checkpoints are", identity=False)
    twice: bool = param(False, help="whether there are two")

    def process(self, batch: pa.Table) -> pa.Table:
        return batch

    def build(self, ds: Any) -> Any:
        kept = super().build(ds).checkpoint(f"{self.path}/first")
        return (kept.add_column("m", _negated).checkpoint(f"{self.path}/second") if self.twice else kept).sort("n")


def _negated(row: dict[str, Any]) -> int:
    return -row["n"]


@pytest.mark.ci(1)
@pytest.mark.slow
@pytest.mark.parametrize("twice", [False, True])
def test_it_is_made_again_where_that_is_asked_for(tmp_path: Path, twice: bool) -> None:
    """And is not said to be up to date before."""
    source, out, kept = tmp_path / "in", tmp_path / "out", tmp_path / "kept"
    job, overwrite = Kept(path=str(kept), twice=twice), {"overwrite": True, "confirm": lambda _: True}
    for name, n in (("a", 1), ("b", 2)):
        write_jsonl(source / f"{name}.jsonl", [{"n": n}])
    assert run_job(job, source, out, redo_stale=True, drop_removed=True).state is RunState.COMPLETE
    write_jsonl(source / "a.jsonl", [{"n": 7}])
    for _ in range(2):
        with refusing("first is out of date: the inputs of 1 shard of it, such as 'a', changed since"):
            run_job(job, source, out, **overwrite)
    assert run_job(job, source, out, redo_stale=True, **overwrite).state is RunState.COMPLETE
    assert [row["n"] for row in output_rows(out)] == [2, 7]
    assert sorted(row["n"] for row in output_rows(kept / "first")) == [2, 7]
    write_jsonl(source / "c.jsonl", [{"n": 3}])
    assert run_job(job, source, out, **overwrite).state is RunState.COMPLETE
    assert [row["n"] for row in output_rows(out)] == [2, 3, 7]
