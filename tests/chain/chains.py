"""A chain of five jobs in a file, over 24 files, and what each step of a run did."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from curate.chain.chain import Chain
from curate.chain.plan import Action, Asked, verdicts
from curate.chain.run import ChainSummary
from curate.runtime import shipping
from tests.job.inline import write_jsonl

JOBS = '''
import os

import pyarrow as pa
import pyarrow.compute as pc

import curate


class Clean(curate.Job):
    """Keep the rows that have a text."""

    version = "1"

    def process(self, batch):
        if os.path.exists("kill"):
            least, how = map(int, open("kill").read().split())
            if batch["n"][0].as_py() >= least:
                os.kill(os.getpid(), how)
        if os.path.exists("poison") and str(batch["n"][0]) == open("poison").read():
            raise ValueError("poison")
        return batch


class Scored(curate.Job):
    """Score, and keep what is odd apart."""

    version = "1"
    sides = {"odd": pa.schema([("n", pa.int64())])}

    def process(self, batch):
        odd = pc.equal(pc.bit_wise_and(batch["n"], 1), 1)
        scored = batch.append_column("score", pc.multiply(batch["n"], 2))
        return {"main": scored, "odd": batch.filter(odd).select(["n"])}


class Kept(curate.Job):
    """Keep what has a score."""

    version = "1"
    least: int = 0

    def process(self, batch):
        kept = batch.filter(pc.greater_equal(batch["score"], self.least))
        self.drop(len(batch) - len(kept), "low")
        return kept


class Copied(curate.Job):
    """Copy the rows."""

    version = "1"

    def process(self, batch):
        return batch


class Picky(curate.Job):
    """Read a column that is not there."""

    version = "1"
    columns = ["m"]

    def process(self, batch):
        return batch


class Unique(curate.Job):
    """Keep the first of all rows with one number."""

    version = "1"

    def build(self, ds):
        return ds.dedup_exact("n")


class Ordered(curate.Job):
    """Sort all rows."""

    version = "1"

    def build(self, ds):
        return ds.sort("n")
'''
CHAIN = """
[steps.clean]
job = "steps_of_test.py:Clean"
input = "in/*.jsonl"
output = "out/clean"

[steps.scored]
job = "steps_of_test.py:Scored"
input_from = "clean"
output = "out/scored"

[steps.odd]
job = "steps_of_test.py:Copied"
input_from = ["scored/odd"]
output = "out/odd"

[steps.kept]
job = "steps_of_test.py:Kept"
input_from = "scored"
output = "out/kept"
least = 4

[steps.last]
job = "steps_of_test.py:Copied"
input_from = ["kept"]
output = "out/last"
"""
FILES = 24
STEPS = ("clean", "scored", "odd", "kept", "last")


def add_input(place: Path, number: int, rows: int = 2) -> None:
    """Writes an input file, of so many rows that begin with twice its number."""
    write_jsonl(place / "in" / f"{number:02}.jsonl", [{"n": 2 * number + one} for one in range(rows)])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with inputs, the jobs and the file of the chain; what is imported from it is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(shipping, "BY_VALUE", [])
    monkeypatch.setattr(shipping, "FOLDERS", [])
    for number in range(FILES):
        add_input(tmp_path, number)
    (tmp_path / "steps_of_test.py").write_text(JOBS)
    (tmp_path / "pipeline.toml").write_text(CHAIN)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [one for one in sys.modules if one.startswith("steps_of_test")]:
        del sys.modules[name]


def ran(ended: ChainSummary) -> dict[str, int]:
    """Returns how many shards each step ran, those that ran none left out; each of the others has launched no task."""
    summaries = {one.name: one.summary for one in ended.steps if one.summary is not None}
    assert all(one.attempts > 0 or one.dispatched == 0 for one in summaries.values())
    return {name: one.attempts for name, one in summaries.items() if one.attempts}


def predicted(chain: Chain, **asked: bool) -> list[str]:
    """Returns the steps that would run, as the buckets show."""
    return [one.name for one in verdicts(chain.status(), Asked(**asked)) if one.action is Action.RUN]


def seen(place: Path) -> dict[str, tuple[int, int]]:
    """Returns every file below the outputs, with inode and time of change: nothing is written without being seen."""
    found = (Path(folder) / name for folder, _, names in os.walk(place / "out") for name in names)
    return {str(one): (one.stat().st_ino, one.stat().st_mtime_ns) for one in found}
