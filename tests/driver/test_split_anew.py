"""Large inputs that change between runs are split as a run from nothing splits them, or are said to be out of date."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from curate.errors import StorageError
from curate.graph.entry import dry_run
from curate.ledger.summary import RunState, Summary
from curate.storage.faults import Fault
from curate.testing.stores import faulty_stores
from tests.job.inline import write_jsonl
from tests.resume.test_removal import Parted, check_same_as_fresh, rows, run_job

SHARD_BYTES = 2_000
ONE, THREE, FOUR = 10, 120, 160
"""Rows of an input of one part, and of more parts."""


def large(source: Path, count: int, text: str = "text") -> None:
    many = [{"id": f"{k}", "text": f"{text} of {k}"} for k in range(count)]
    write_jsonl(source / "large.jsonl", many)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in "am":
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", rows(name))
    return tmp_path / "in"


def run(source: Path, out: Path, **options: Any) -> Summary:
    return run_job(Parted(shard_bytes=SHARD_BYTES), source, out, **options)


def check(source: Path, out: Path) -> None:
    check_same_as_fresh(Parted(shard_bytes=SHARD_BYTES), source, out, out.parent / "fresh")
    again = run(source, out)
    assert (again.attempts, again.stale, again.calls.put, again.calls.delete) == (0, 0, 0, 0)


@pytest.mark.parametrize("now", [ONE, THREE, FOUR])
@pytest.mark.parametrize("before", [ONE, THREE])
def test_an_input_that_was_done(source: Path, tmp_path: Path, before: int, now: int) -> None:
    """Its outputs stay until they are asked to be replaced; a dry run says what that does."""
    out = tmp_path / "out"
    large(source, before)
    parts = run(source, out).total - 2
    large(source, now, "another")
    assert run(source, out).stale == parts
    if max(before, now) > ONE:
        assert run(source, out, redo_stale=True, limit=9).stale == parts
    job = Parted(shard_bytes=SHARD_BYTES)
    text = dry_run(job.spec(), job.options(input=source, output=out, backend="inline", redo_stale=True)).text
    assert ("planned anew" in text) == (max(before, now) > ONE)
    assert "stale" not in text or "redo     1: stale" in text
    ended = run(source, out, redo_stale=True)
    assert (ended.state, ended.stale, ended.dropped) == (RunState.COMPLETE, 0, 0)
    check(source, out)


@pytest.mark.ci(6)
@pytest.mark.parametrize("now", [ONE, THREE, FOUR])
@pytest.mark.parametrize("before", [ONE, THREE])
@pytest.mark.parametrize("options", [{}, {"retry_failed": True}])
def test_an_input_that_was_not_done(
    source: Path, tmp_path: Path, before: int, now: int, options: dict[str, Any]
) -> None:
    """Nothing is made of it yet, so that nothing has to be asked for."""
    out = tmp_path / "out"
    large(source, before)
    fault = Fault("publish", name="out/large", times=1000, error=StorageError("as scripted"))
    with faulty_stores(fault):
        assert run(source, out).failed > 0
    large(source, now, "another")
    ended = run(source, out, **options)
    assert (ended.state, ended.failed) == (RunState.COMPLETE, 0)
    check(source, out)


def test_an_input_of_which_a_part_was_done(source: Path, tmp_path: Path) -> None:
    """The others cannot be made any more: they fail, until all of it is asked for."""
    out = tmp_path / "out"
    large(source, THREE)
    run(source, out, limit=2)
    large(source, FOUR)
    failed = run(source, out)
    assert failed.state is RunState.FAILED
    # To run it again, and no more, would fail again.
    assert "or says how to replace outputs of its other parts" in str(failed.failures)
    assert run(source, out, redo_stale=True).state is RunState.COMPLETE
    check(source, out)


@pytest.mark.parametrize("gone", ["large.part-00001", "plan/00002"])
def test_a_kill_in_between(source: Path, tmp_path: Path, gone: str) -> None:
    """Parts that are called as those before: what is left of the old ones is not taken for what is made of the new."""
    out = tmp_path / "out"
    large(source, THREE)
    run(source, out)
    large(source, THREE, "tent")
    fault = Fault("delete" if "part" in gone else "publish", name=gone, times=100, error=StorageError("as scripted"))
    with faulty_stores(fault), pytest.raises(StorageError):
        run(source, out, redo_stale=True)
    assert run(source, out).state is RunState.COMPLETE
    check(source, out)


def test_one_is_removed_while_another_one_changes(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    large(source, THREE)
    run(source, out)
    large(source, FOUR)
    (source / "a.jsonl").unlink()
    ended = run(source, out, redo_stale=True, drop_removed=True)
    assert (ended.state, ended.stale, ended.dropped) == (RunState.COMPLETE, 0, 1)
    check(source, out)


class _Before(Fault):
    """No fault: it calls something before the first read of an object of that name."""

    __slots__ = ("_call", "_called", "_named")

    def __init__(self, named: str, call: Callable[[], object]) -> None:
        super().__init__()
        self._named, self._call, self._called = named, call, False

    def hits(self, operation: str, uri: str) -> bool:
        if operation == "read" and self._named in uri and not self._called:
            self._called = True
            self._call()
        return False


@pytest.mark.parametrize("now", [ONE, THREE, FOUR])
def test_what_another_driver_removes_meanwhile_is_nobody_elses(source: Path, tmp_path: Path, now: int) -> None:
    """An old output of a part that is gone since it was listed."""
    out = tmp_path / "out"
    large(source, THREE)
    run(source, out)
    large(source, now, "another")
    old = next(out.glob("large.part-00001-*"))
    with faulty_stores(_Before(old.name, old.unlink)):
        assert run(source, out, redo_stale=True).state is RunState.COMPLETE
    check(source, out)


def test_what_another_driver_replaces_meanwhile_is_nobody_elses(source: Path, tmp_path: Path) -> None:
    """It stays as that driver has it, and nobody is told to move it."""
    out = tmp_path / "out"
    large(source, THREE)
    run(source, out)
    large(source, FOUR, "another")
    old = next(out.glob("large.part-00001-*"))

    def replace() -> None:
        old.unlink()
        old.write_bytes(b"what another driver writes there")

    with faulty_stores(_Before(old.name, replace)):
        assert run(source, out, redo_stale=True).state is RunState.COMPLETE
    assert old.read_bytes() == b"what another driver writes there"
