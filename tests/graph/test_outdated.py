"""Checkpoints of a job that an exchange follows, whose inputs change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.errors import ConfigError
from curate.job.job import Job
from curate.job.params import param
from curate.ledger.summary import RunState
from tests.job.inline import everything, output_rows, refusing, run_job, write_jsonl


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


class Once(Kept):
    """Keeps each number once, behind a first checkpoint and before a second one."""

    def build(self, ds: Any) -> Any:
        kept = Job.build(self, ds).checkpoint(f"{self.path}/first")
        return kept.dedup_exact("n").checkpoint(f"{self.path}/second").sort("n")


@pytest.mark.parametrize("answer", [True, False], ids=["yes", "no"])
@pytest.mark.parametrize("change", ["changed", "removed", "before others"])
def test_where_a_checkpoint_is_refused_the_job_is_as_it_was(tmp_path: Path, change: str, answer: bool) -> None:
    """Also where one with an exchange is: an overwrite would have removed the outputs by then. It is asked before what
    may take hours."""
    source, out, kept = tmp_path / "in", tmp_path / "out", tmp_path / "kept"
    for name, n in (("b", 1), ("c", 2), ("d", 3)):
        write_jsonl(source / f"{name}.jsonl", [{"n": n}])
    job = Once(path=str(kept))
    assert run_job(job, source, out).state is RunState.COMPLETE
    match change:
        case "changed":
            write_jsonl(source / "c.jsonl", [{"n": 7}])
        case "removed":
            (source / "c.jsonl").unlink()
        case _:
            write_jsonl(source / "a.jsonl", [{"n": 7}])
    before, checkpoints = everything(out), everything(kept)
    told = {"overwrite": True, "redo_stale": True, "drop_removed": True, "confirm": lambda _: answer}
    asks = change == "changed"  # the other ones are refused for what the first checkpoint is, before it is asked
    with refusing(
        "remove this checkpoint, which makes the next run write it anew"
        if answer or not asks
        else "overwrite=True was not confirmed: remove the outputs and the ledger of 'once'"
    ):
        run_job(job, source, out, **told)
    assert everything(out) == before
    assert answer or everything(kept) == checkpoints
    # As it says.
    for _ in range(3):
        try:
            done = run_job(job, source, out, **told | {"confirm": lambda _: True})
        except ConfigError as error:
            shutil.rmtree(kept / ("second" if "second" in str(error) else "first"))
    assert done.state is RunState.COMPLETE
    expected = {"changed": [1, 3, 7], "removed": [1, 3], "before others": [1, 2, 3, 7]}[change]
    assert [row["n"] for row in output_rows(out)] == expected
