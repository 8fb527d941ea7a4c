"""A shard that was to be made again, for its input had changed, and failed: its old output stands and hides nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.cli.status import _next
from curate.graph import entry
from curate.job.job import Job
from curate.ledger.summary import RunState, Summary
from curate.observe.failures import read_failures
from curate.observe.job import read_status
from curate.stores.open import open_store
from tests.job.inline import refusing, write_jsonl
from tests.support.fakes import FakeClock

POISON = 13


class Poisoned(Job):
    """Choke on some rows."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        if POISON in batch["n"].to_pylist():
            raise ValueError("poison")
        return batch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job of two shards, one of which was to be made again and failed."""
    for name, n in (("a", 1), ("b", 2)):
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", [{"n": n}])
    assert run(tmp_path).state is RunState.COMPLETE
    write_jsonl(tmp_path / "in" / "b.jsonl", [{"n": POISON}])
    summary = run(tmp_path, redo_stale=True)
    assert (summary.state, summary.failed) == (RunState.FAILED, 1)
    return tmp_path


def run(folder: Path, **options: Any) -> Summary:
    job = Poisoned()
    checked = job.options(input=folder / "in", output=folder / "out", backend="inline", **options)
    # Each a while after those before: the last one is told by its time.
    before = len(list(folder.glob("out/_curate/runs/*")))
    return entry.run(job.spec(), checked, clock=FakeClock(1.7e9 + 1000.0 * before))


def failed(folder: Path) -> list[str]:
    found = read_failures(str(folder / "out"))
    return [found.plan.shard_id(rank) for rank, is_failed in enumerate(found.failed) if is_failed]


def rows(folder: Path) -> list[int]:
    return sorted(n for name in "ab" for n in pq.read_table(folder / "out" / f"{name}.parquet")["n"].to_pylist())


def test_it_is_told(folder: Path) -> None:
    """As a failure, and as an output that is out of date: what lies there is not all done."""
    assert failed(folder) == ["b"]
    status = read_status(str(folder / "out"), 1.8e9)
    assert (status.state, status.done, status.stale) == ("failed", 2, 1)
    assert _next(status).startswith("fix the cause and run the job again with --redo-stale;")
    assert run(folder, retry_failed=True).stale == 1
    assert rows(folder) == [1, 2]


def test_a_retry_makes_it_again_and_nothing_else(folder: Path) -> None:
    """Once the cause is fixed; before, it fails again, and is told again."""
    again = run(folder, retry_failed=True)
    assert (again.total, again.failed) == (1, 1)
    assert failed(folder) == ["b"]
    write_jsonl(folder / "in" / "b.jsonl", [{"n": 3}])
    mended = run(folder, retry_failed=True)
    assert (mended.total, mended.done, mended.failed) == (1, 1, 0)
    assert failed(folder) == []
    assert rows(folder) == [1, 3]


def test_a_part_does_not_make_it_again(folder: Path) -> None:
    """Drivers of other parts would take the old output for a new one, and the plan would say that it is up to date."""
    write_jsonl(folder / "in" / "b.jsonl", [{"n": 3}])
    for part in ("0/2", "1/2"):
        with refusing("1 of the shards that failed would replace an output that is out of date, such as 'b'"):
            run(folder, retry_failed=True, part=part)
    assert rows(folder) == [1, 2]
    assert (run(folder).stale, failed(folder)) == (1, ["b"])
    run(folder, retry_failed=True)
    assert rows(folder) == [1, 3]


def test_it_is_over_once_the_output_is_another(folder: Path) -> None:
    """That another driver made, of which nothing is known but that."""
    path = str(folder / "out" / "b.parquet")
    store = open_store(path, scratch=str(folder / "out" / "_curate" / "tmp" / "x"))
    data = store.read(path)
    store.delete(path)
    assert failed(folder) == ["b"]
    store.publish(path, data)
    assert failed(folder) == []
