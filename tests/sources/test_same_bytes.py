"""An input that is another object of the same bytes has not changed: outputs of another job, made again."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import structlog

from curate.errors import DiskFull
from curate.job.job import Job
from curate.ledger import layout
from curate.ledger.summary import RunState
from curate.observe.verify import verify
from curate.sources.same_bytes import KEPT_OVERWRITES
from curate.storage.faults import Fault
from curate.testing.stores import faulty_stores
from tests.job.inline import everything, numbered, run_job, write_jsonl
from tests.support.gcs_emulator import GcsEmulator


class Copy(Job):
    """Writes what it reads."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


class Sorted(Copy):
    """Moves rows between shards."""

    def build(self, ds):  # type: ignore[no-untyped-def]
        return ds.sort("n")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for number, name in enumerate("abc"):
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", numbered(10 * number, 10 * number + 3))
    return tmp_path / "in"


@pytest.fixture
def first(source: Path, tmp_path: Path) -> Path:
    run_job(Copy(), source, tmp_path / "first")
    return tmp_path / "first"


def make_again(source: Path, first: Path) -> None:
    before = (first / "b.parquet").stat().st_mtime_ns
    (first / "b.parquet").unlink()
    run_job(Copy(), source, first)
    assert (first / "b.parquet").stat().st_mtime_ns != before


def check_nothing_is_stale(first: Path, out: Path) -> None:
    """The plan learns the new generation once; after that a run is free."""
    with structlog.testing.capture_logs() as logs:
        ended = run_job(Copy(), first, out)
    assert (ended.state, ended.stale, ended.attempts) == (RunState.COMPLETE, 0, 0)
    assert not [one for one in logs if "out of date" in one["event"]]
    before = everything(out)
    again = run_job(Copy(), first, out)
    assert (again.stale, again.calls.put, again.calls.delete) == (0, 0, 0)
    assert everything(out) == before


def test_an_output_that_was_made_again_is_not_stale(source: Path, first: Path, tmp_path: Path) -> None:
    run_job(Copy(), first, tmp_path / "out")
    for _ in range(2):
        make_again(source, first)
        check_nothing_is_stale(first, tmp_path / "out")


def test_it_is_if_the_ledger_was_removed(source: Path, first: Path, tmp_path: Path) -> None:
    """Its old events are gone with the old ledger: nothing tells that the bytes are the same, and it is said to be
    stale; made again with --redo-stale the output is the same object."""
    run_job(Copy(), first, tmp_path / "out")
    shutil.rmtree(first)
    run_job(Copy(), source, first)
    ended = run_job(Copy(), first, tmp_path / "out")
    assert (ended.stale, ended.attempts) == (3, 0)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")}
    ended = run_job(Copy(), first, tmp_path / "out", redo_stale=True)
    assert (ended.stale, ended.attempts) == (0, 3)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")} == before


@pytest.mark.slow
def test_nor_after_any_overwrite(source: Path, first: Path, tmp_path: Path) -> None:
    """The new ledger keeps what the old one said of the bytes, over as many overwrites as it says, and no more."""
    run_job(Copy(), first, tmp_path / "out")
    run_job(Sorted(), first, tmp_path / "sorted")
    shutil.copytree(tmp_path / "out", tmp_path / "late")
    for _ in range(KEPT_OVERWRITES):
        run_job(Copy(), source, first, overwrite=True, yes=True)
    assert run_job(Sorted(), first, tmp_path / "sorted").attempts == 0
    check_nothing_is_stale(first, tmp_path / "out")
    run_job(Copy(), source, first, overwrite=True, yes=True)
    assert len(list((first / layout.REPLACED).iterdir())) == KEPT_OVERWRITES
    assert verify(str(first)).state == "ok"
    check_nothing_is_stale(first, tmp_path / "out")
    assert run_job(Copy(), first, tmp_path / "late").stale == 3


def test_one_of_other_bytes_is_after_an_overwrite(source: Path, first: Path, tmp_path: Path) -> None:
    run_job(Copy(), first, tmp_path / "out")
    write_jsonl(source / "b.jsonl", [{**row, "n": row["n"] + 50} for row in numbered(10, 13)])
    run_job(Copy(), source, first, overwrite=True, yes=True)
    assert run_job(Copy(), first, tmp_path / "out").stale == 1


class Killed(BaseException):
    """In place of SIGKILL."""


@pytest.mark.ci(1)
@pytest.mark.slow
@pytest.mark.parametrize("again", [{}, {"overwrite": True, "yes": True}], ids=["going on", "overwriting again"])
@pytest.mark.parametrize("exchange", [False, True], ids=["copied", "sorted"])
def test_nor_if_the_overwrite_was_killed_at_any_removal(
    source: Path, first: Path, tmp_path: Path, exchange: bool, again: dict[str, Any]
) -> None:
    """Whatever is left, the job that is made again, or goes on, has the same bytes, and what reads it is up to date."""
    job = Sorted() if exchange else Copy()
    run_job(job, source, first, overwrite=True, yes=True)
    for at in itertools.count(1):
        run_job(Sorted(), first, tmp_path / f"out {at}")
        fault = Fault("delete", nth=at, name=str(first), error=Killed)
        with faulty_stores(fault), contextlib.suppress(Killed):
            run_job(job, source, first, overwrite=True, yes=True)
        if not fault.fired:
            break
        assert run_job(job, source, first, **again).state is RunState.COMPLETE
        ended = run_job(Sorted(), first, tmp_path / f"out {at}")
        assert (ended.state, ended.attempts, ended.stale) == (RunState.COMPLETE, 0, 0), at
    assert at > 10


def test_without_room_an_overwrite_goes_on(source: Path, first: Path, tmp_path: Path) -> None:
    """It may be what makes room: what cannot be written down is said, and costs that what reads it is stale."""
    run_job(Copy(), first, tmp_path / "out")
    full = Fault("publish", name=layout.REPLACED, error=DiskFull("", None, 0))
    with faulty_stores(full), structlog.testing.capture_logs() as logs:
        assert run_job(Copy(), source, first, overwrite=True, yes=True).state is RunState.COMPLETE
    assert any("will be said to be out of date" in one["event"] for one in logs)
    assert run_job(Copy(), first, tmp_path / "out").stale == 3


def test_where_there_is_room_for_nothing_else_it_says_that_a_job_was_here(source: Path, first: Path) -> None:
    """Or what late workers of that job write would be taken for outputs that are what they say."""
    full = Fault("publish", nth=1, name=layout.REPLACED, error=DiskFull("", None, 0))
    with faulty_stores(full):
        assert run_job(Copy(), source, first, overwrite=True, yes=True).state is RunState.COMPLETE
    assert full.fired == 1
    assert len(list((first / layout.REPLACED).iterdir())) == 1
    assert verify(str(first)).state == "ok"


def test_one_of_other_bytes_is(source: Path, first: Path, tmp_path: Path) -> None:
    """Of the same size, even: the checksum tells, not the size."""
    run_job(Copy(), first, tmp_path / "out")
    size = (first / "b.parquet").stat().st_size
    write_jsonl(source / "b.jsonl", [{**row, "n": row["n"] + 50} for row in numbered(10, 13)])
    run_job(Copy(), source, first, redo_stale=True)
    assert (first / "b.parquet").stat().st_size == size
    assert run_job(Copy(), first, tmp_path / "out").stale == 1


def test_behind_an_exchange_that_is_complete(source: Path, first: Path, tmp_path: Path) -> None:
    """Its inputs are frozen, and they are the same bytes."""
    run_job(Sorted(), first, tmp_path / "out")
    make_again(source, first)
    ended = run_job(Sorted(), first, tmp_path / "out")
    assert (ended.state, ended.attempts, ended.stale) == (RunState.COMPLETE, 0, 0)


def test_without_events_it_is_stale(source: Path, first: Path, tmp_path: Path) -> None:
    """What nobody says cannot be known."""
    run_job(Copy(), first, tmp_path / "out")
    for path in (first / layout.RUNS).glob("*/events-*"):
        path.unlink()
    make_again(source, first)
    assert run_job(Copy(), first, tmp_path / "out").stale == 1


def test_in_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generations are numbers there; the events tell the same."""
    with GcsEmulator().here(monkeypatch) as emulator:
        for name in "ab":
            emulator.put(f"gs://bucket/in/{name}.jsonl", b'{"n":1}\n')
        run_job(Copy(), "gs://bucket/in", "gs://bucket/first")
        run_job(Copy(), "gs://bucket/first", "gs://bucket/out")
        emulator.remove("gs://bucket/first/b.parquet")
        run_job(Copy(), "gs://bucket/in", "gs://bucket/first")
        ended = run_job(Copy(), "gs://bucket/first", "gs://bucket/out")
        assert (ended.stale, ended.attempts) == (0, 0)
