"""A driver writes only while the job is its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from curate.driver.rivals import BETWEEN_LOOKS_S
from curate.errors import JobReplacedError, ObjectNotFound
from curate.ledger.fencing import SURE_S, FencedStore
from curate.ledger.listing import sort_listing
from curate.ledger.run_log import HEARTBEAT_S
from curate.stores.memory import MemoryStore, clear
from curate.stores.open import open_store
from tests.support.fakes import FakeClock

ROOT = "memory://owned/out"
JOB, PART, BEAT = f"{ROOT}/_curate/job.json", f"{ROOT}/_curate/plan/00001.parquet", f"{ROOT}/_curate/heartbeat.json"
HOUR_S = 3600.0


class Pausing(MemoryStore):
    """A memory store in the middle of whose next write something happens."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] = lambda: None

    def publish(self, uri: str, data: bytes) -> Any:
        self.meanwhile()
        return super().publish(uri, data)

    def replace(self, uri: str, data: bytes) -> Any:
        self.meanwhile()
        return super().replace(uri, data)


@pytest.mark.quick
@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("where", ["output", "stage", "scratch"])
def test_who_lost_it_is_told_what_can_be_looked_at(
    where: str, removed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of stages are no output of a job, and a stage that is gone may have been removed by a cleaner."""
    monkeypatch.setenv("CURATE_SCRATCH", str(tmp_path / "scratch"))
    places = {
        "output": f"{tmp_path}/out",
        "stage": f"{tmp_path}/out/_curate/stages/0a",
        "scratch": f"{tmp_path}/scratch/1/0a",
    }
    root, store = places[where], open_store(f"{tmp_path}/out", scratch=f"{tmp_path}/out/_curate/tmp/1")
    fence = FencedStore(store, root, FakeClock(), beats=False)
    fence.claim(store.publish(f"{root}/_curate/job.json", b"mine").object.generation, fence.moment())
    store.delete(f"{root}/_curate/job.json")
    if not removed:
        store.publish(f"{root}/_curate/job.json", b"theirs")
    with pytest.raises(JobReplacedError) as lost:
        fence.confirm()
    said = str(lost.value)
    assert (f"curate status {tmp_path}/out" in said) == (where == "output" or (where == "stage" and not removed))
    assert f"curate status {root}" not in said or where == "output"
    assert ("Run it again" in said) == (removed and where != "output")
    assert ("CURATE_SCRATCH" in said) == (removed and where == "scratch")


class Bench:
    """A driver's store, and another driver that takes the job."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.inner = Pausing()
        self.others = MemoryStore()
        self.store = FencedStore(self.inner, ROOT, self.clock)
        self.store.claim(self.inner.publish(JOB, b"mine").object.generation, self.store.moment())
        self.start = self.inner.calls.copy()

    def overwrite(self) -> None:
        self.others.delete(JOB)
        self.others.publish(JOB, b"theirs")

    def hour_passes(self) -> None:
        self.clock.advance(HOUR_S)
        self.overwrite()

    @property
    def gets(self) -> int:
        return self.inner.calls.since(self.start).get

    def names(self) -> list[str]:
        return [found.uri for found in self.others.list(ROOT)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    clear("owned")
    yield Bench()
    clear("owned")


WRITES: dict[str, Callable[[FencedStore], object]] = {
    "publish": lambda store: store.publish(PART, b"part"),
    "replace": lambda store: store.replace(BEAT, b"beat"),
    "delete": lambda store: store.delete(JOB),
    "writer": lambda store: store.writer(PART),
}
every_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)


def test_others_wait_for_longer_than_it_is_sure() -> None:
    """Who beats every 10 s is never asked, and is asked before others can have taken it for gone."""
    assert HEARTBEAT_S < SURE_S < BETWEEN_LOOKS_S


@every_write
def test_a_write_looks_only_after_a_silence(bench: Bench, write: Callable[[FencedStore], object]) -> None:
    bench.clock.advance(SURE_S)
    write(bench.store)
    assert bench.gets == 0


@every_write
def test_a_silence_costs_one_look(bench: Bench, write: Callable[[FencedStore], object]) -> None:
    bench.clock.advance(HOUR_S)
    write(bench.store)
    assert bench.gets == 1


def test_heartbeats_keep_it_sure(bench: Bench) -> None:
    """A run that is never paused asks nothing, for a day."""
    for _ in range(8640):
        bench.clock.advance(HEARTBEAT_S)
        bench.store.replace(BEAT, b"beat")
        bench.store.publish(PART, b"part")
        bench.store.delete(PART)
    assert bench.gets == 0


def test_a_heartbeat_does_not_count_from_its_end(bench: Bench) -> None:
    """One that took long may have been seen by nobody all the while."""
    bench.inner.meanwhile = lambda: bench.clock.advance(SURE_S)
    bench.store.replace(BEAT, b"beat")
    bench.inner.meanwhile = lambda: None
    bench.clock.advance(1)
    bench.store.delete(PART)
    assert bench.gets == 1


@every_write
@pytest.mark.parametrize("gone", [False, True])
def test_nothing_is_written_to_another_s_job(bench: Bench, write: Callable[[FencedStore], object], gone: bool) -> None:
    """Replaced or removed while the driver was paused; from then on it asks nobody and refuses."""
    bench.hour_passes()
    if gone:
        bench.others.delete(JOB)
    before = bench.names()
    for _ in range(2):
        with pytest.raises(JobReplacedError, match="was removed" if gone else "was replaced"):
            write(bench.store)
    assert bench.names() == before
    assert bench.gets == 1
    with pytest.raises(JobReplacedError):
        bench.store.raise_if_lost()


@pytest.mark.parametrize("name", ["publish", "replace"])
def test_a_write_in_the_middle_of_which_it_was_paused_is_undone(bench: Bench, name: str) -> None:
    bench.inner.meanwhile = bench.hour_passes
    with pytest.raises(JobReplacedError):
        WRITES[name](bench.store)
    assert bench.names() == [JOB]


def test_what_others_wrote_under_that_name_stays(bench: Bench) -> None:
    """Only what this driver created is undone."""

    def theirs() -> None:
        bench.hour_passes()
        bench.others.publish(PART, b"part")

    bench.inner.meanwhile = theirs
    with pytest.raises(JobReplacedError):
        bench.store.publish(PART, b"part")
    assert bench.others.read(PART) == b"part"


def test_before_there_is_a_job_nothing_is_another_s(bench: Bench) -> None:
    bench.store.claim(None, bench.store.moment())
    bench.clock.advance(HOUR_S)
    bench.store.publish(PART, b"part")
    bench.store.confirm()
    assert bench.gets == 0


def test_a_machine_that_slept_was_silent(bench: Bench) -> None:
    """Its monotonic clock stands still meanwhile, and its wall clock may be set back when it wakes up."""
    now = bench.clock.now()
    for wall in (now + HOUR_S, now - HOUR_S):
        bench.clock.now = lambda wall=wall: wall  # type: ignore[method-assign]
        before = bench.gets
        bench.store.delete(PART)
        assert bench.gets == before + 1


def test_a_listing_tells_as_well(bench: Bench) -> None:
    """Without a request of its own, unless it says that the job is another one."""
    bench.store.confirm_by(sort_listing(bench.others.list(ROOT), ROOT))
    assert bench.gets == 0
    bench.overwrite()
    with pytest.raises(JobReplacedError, match="was replaced"):
        bench.store.confirm_by(sort_listing(bench.others.list(ROOT), ROOT))
    assert bench.gets == 1


def test_a_listing_that_is_late_accuses_nobody(bench: Bench) -> None:
    """It lacks what this run has written, or has what was there before: the store itself is asked."""
    nothing = sort_listing(iter(()), ROOT)
    bench.store.confirm_by(nothing)
    assert bench.gets == 1
    bench.overwrite()
    with pytest.raises(JobReplacedError, match="was replaced"):
        bench.store.confirm_by(nothing)


def test_reading_is_free_to_all(bench: Bench) -> None:
    bench.hour_passes()
    assert bench.store.read(JOB) == b"theirs"
    assert bench.store.stat(JOB).size == 6
    assert [found.uri for found in bench.store.list(ROOT)] == [JOB]
    assert bench.store.open(bench.store.stat(JOB)).read() == b"theirs"
    with pytest.raises(ObjectNotFound):
        bench.store.stat(PART)
