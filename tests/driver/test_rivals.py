"""Who is still at work on an output, told from heartbeats."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.driver.rivals import (
    BETWEEN_LOOKS_S,
    OVERWRITE_SILENT_S,
    PART_SILENT_S,
    OtherDrivers,
    refuse_rivals,
    running_drivers,
    second_look,
)
from curate.errors import ConfigError
from curate.ledger.heartbeat import (
    LONG_SILENT_S,
    NEWEST_RUNS,
    Heartbeat,
    Liveness,
    Process,
    ProcessState,
    first_look,
    process_started,
)
from curate.ledger.ledger import Ledger
from curate.ledger.run_log import HEARTBEAT_S, whereabouts
from curate.tasks.parts import Part
from tests.support.fakes import FakeClock
from tests.support.ledgers import heartbeat, make_job

NOW = 1_700_000_000.0

beats = st.builds(
    Heartbeat,
    run_id=st.just("r"),
    started=st.just(0.0),
    updated=st.integers(int(NOW - 2 * OVERWRITE_SILENT_S), int(NOW) + 100),
    state=st.sampled_from(["running", "failed", "complete"]),
)


@given(beats, st.sampled_from(ProcessState), st.sampled_from([LONG_SILENT_S, OVERWRITE_SILENT_S]))
def test_what_one_look_tells(beat: Heartbeat, process: ProcessState, silent_s: float) -> None:
    """Over is gone; of one that says it runs, its process decides; where that is not known, only a long silence."""
    if not beat.running:
        expected = Liveness.GONE
    elif process is not ProcessState.UNKNOWN:
        expected = Liveness.GONE if process is ProcessState.GONE else Liveness.ALIVE
    else:
        expected = Liveness.GONE if beat.updated + silent_s < NOW else Liveness.UNCLEAR
    assert first_look(beat, process, NOW, silent_s) is expected


@given(beats, beats)
def test_what_a_second_look_tells(before: Heartbeat, after: Heartbeat) -> None:
    """Alive is who says that it runs and said so again, earlier or later by its own clock."""
    alive = after.running and after.updated != before.updated
    assert second_look(before, after) is (Liveness.ALIVE if alive else Liveness.GONE)


def test_the_wait_is_longer_than_a_heartbeat() -> None:
    """Else a driver that is alive would be found without a move."""
    assert BETWEEN_LOOKS_S >= 2 * HEARTBEAT_S
    assert LONG_SILENT_S > BETWEEN_LOOKS_S


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"pid": os.getppid(), "pid_started": "parent"}, ProcessState.GONE),
        ({"pid": 2**22 + 1, "pid_started": "7"}, ProcessState.GONE),
        ({}, ProcessState.UNKNOWN),
        ({"boot_id": "another boot or machine"}, ProcessState.UNKNOWN),
        ({"pid_space": "another container"}, ProcessState.UNKNOWN),
        ({"pid_started": ""}, ProcessState.UNKNOWN),
    ],
)
def test_a_process_of_this_host(change: Mapping[str, Any], expected: ProcessState) -> None:
    """Gone if nobody has the number, or somebody else who started later; a run of this process itself may be over."""
    assert Process.of(whereabouts() | change).state() is expected


def test_another_process_of_this_host_is_alive() -> None:
    parent = os.getppid()
    assert (
        Process.of(whereabouts() | {"pid": parent, "pid_started": process_started(parent)}).state()
        is ProcessState.ALIVE
    )


@pytest.mark.parametrize("value", [{}, {"updated": "now", "shards": {}}, {"updated": 1.0}, {"updated": 1, "shards": 7}])
def test_a_heartbeat_that_makes_no_sense_says_nothing(value: dict[str, Any]) -> None:
    assert Heartbeat.of("r", value) is None


class Store:
    """A ledger of runs elsewhere whose heartbeats move while the clock is slept on, or do not."""

    def __init__(self, root: Path, runs: Mapping[str, float], moving: tuple[str, ...] = ()) -> None:
        self.clock = FakeClock(NOW)
        self.runs = runs
        shards = {"total": 1200, "done": 345}
        self.ledger: Ledger = make_job(
            str(root),
            total=1,
            done=0,
            runs={name: heartbeat("running", started=1, updated=at, shards=shards) for name, at in runs.items()},
        )
        slept = self.clock.sleep

        def sleep(seconds: float) -> None:
            slept(seconds)
            for name in moving:
                make_beat(self.ledger, name, self.clock.now() - 3)

        self.clock.sleep = sleep  # type: ignore[method-assign]

    def look(self, **options: Any) -> list[str]:
        return [beat.run_id for beat, _ in running_drivers(self.ledger, self.runs, self.clock, **options)]

    def gets(self) -> int:
        return self.ledger.store.calls.get


def make_beat(ledger: Ledger, run_id: str, updated: float) -> None:
    import orjson

    value = heartbeat("running", started=1, updated=updated, shards={"total": 1200, "done": 345}) | {"run_id": run_id}
    ledger.store.replace(ledger.uri(f"_curate/runs/{run_id}/heartbeat.json"), orjson.dumps(value))


def test_one_wait_for_all_that_are_unclear(tmp_path: Path) -> None:
    """Two heartbeats, once; those that moved are alive. One read each, one more of each that was unclear."""
    store = Store(tmp_path, {"a": NOW - 5, "b": NOW - 9, "c": NOW - LONG_SILENT_S - 1}, moving=("b",))
    before = store.gets()
    assert store.look() == ["b"]
    assert store.clock.sleeps == [BETWEEN_LOOKS_S]
    assert store.gets() - before == 3 + 2


def test_no_wait_where_none_is_unclear(tmp_path: Path) -> None:
    store = Store(tmp_path, {"a": NOW - LONG_SILENT_S - 1})
    assert store.look() == []
    assert store.clock.sleeps == []


def test_no_wait_if_it_may_not(tmp_path: Path) -> None:
    store = Store(tmp_path, {"a": NOW - 5})
    assert [standing for _, standing in running_drivers(store.ledger, store.runs, store.clock, wait=False)] == [
        Liveness.UNCLEAR
    ]
    assert store.clock.sleeps == []


def test_a_run_without_a_heartbeat_has_only_begun(tmp_path: Path) -> None:
    """Its `run.json` says where it runs; killed there on this host, it is gone."""
    ledger = make_job(str(tmp_path), total=1, done=0)
    about = {"run_id": "new", "started": NOW - 1, "shards": {"total": 9, "scope": 9, "skipped": 2}}
    ledger.create_json("_curate/runs/new/run.json", about | whereabouts() | {"pid": 2**22 + 1, "pid_started": "7"})
    ledger.create_json("_curate/runs/far/run.json", about | {"run_id": "far", "host": "far", "pid": 3})
    found = running_drivers(ledger, ["new", "far", "neither"], FakeClock(NOW), wait=False)
    assert [(beat.run_id, beat.shards["done"], beat.shards["total"]) for beat, _ in found] == [("far", 2, 9)]


def test_only_the_newest_runs_are_looked_at(tmp_path: Path) -> None:
    """A job may have been run a thousand times."""
    store = Store(tmp_path, {f"r{number:03}": NOW - LONG_SILENT_S - 1 for number in range(NEWEST_RUNS + 15)})
    before = store.gets()
    assert store.look() == []
    assert store.gets() - before == NEWEST_RUNS


def refusal(store: Store, **options: bool) -> str:
    with pytest.raises(ConfigError) as caught:
        refuse_rivals(
            store.ledger, store.runs, store.clock, **{"allow_concurrent": False, "overwrite": False} | options
        )
    return str(caught.value)


def test_a_refusal_says_who_and_what_to_do(tmp_path: Path) -> None:
    store = Store(tmp_path, {"a": NOW - 5}, moving=("a",))
    text = refusal(store)
    assert re.search(r"run a on elsewhere \(pid 1\), 345 of 1,200 shards done, last heartbeat 3 s ago", text)
    assert f"curate status {tmp_path}" in text
    assert "allow_concurrent=True" in text


def test_helping_is_free(tmp_path: Path) -> None:
    store = Store(tmp_path, {"a": NOW - 5}, moving=("a",))
    before = store.gets()
    refuse_rivals(store.ledger, store.runs, store.clock, allow_concurrent=True, overwrite=False)
    assert (store.gets(), store.clock.sleeps) == (before, [])


def test_overwriting_what_is_being_made_is_refused(tmp_path: Path) -> None:
    """Even to who would help; and an hour of silence is looked at twice: it would cost the other one's outputs."""
    store = Store(tmp_path, {"a": NOW - 3600}, moving=("a",))
    text = refusal(store, allow_concurrent=True, overwrite=True)
    assert "overwrite=True would remove what it makes" in text
    assert "on elsewhere: kill 1" in text
    assert "allow_concurrent=True" not in text


def test_what_was_silent_for_a_day_is_overwritten_at_once(tmp_path: Path) -> None:
    store = Store(tmp_path, {"a": NOW - OVERWRITE_SILENT_S - 1}, moving=("a",))
    refuse_rivals(store.ledger, store.runs, store.clock, allow_concurrent=False, overwrite=True)
    assert store.clock.sleeps == []


@pytest.mark.parametrize("behind_s", [0, LONG_SILENT_S - 60, LONG_SILENT_S + 60, OVERWRITE_SILENT_S, -LONG_SILENT_S])
def test_a_driver_of_a_part_is_told_by_its_moves_whatever_its_clock_says(tmp_path: Path, behind_s: float) -> None:
    """By the second look at the latest; it is let go of once it stands still, and not read again once that is sure."""
    store = Store(tmp_path, {"a": NOW - behind_s})
    others = OtherDrivers(store.ledger, Part(0, 2), store.clock)

    def look(moves: bool) -> list[str]:
        if moves:
            make_beat(store.ledger, "a", store.clock.now() - behind_s)
        return [beat.run_id for beat in others.alive(store.runs)]

    look(moves=False)
    for _ in range(9):
        store.clock.advance(HEARTBEAT_S)
        assert look(moves=True) == ["a"]
    store.clock.advance(PART_SILENT_S - 1)
    assert look(moves=False) == ["a"]
    store.clock.advance(2)
    assert look(moves=False) == []
    store.clock.advance(LONG_SILENT_S + max(0, -behind_s))
    assert look(moves=False) == []
    before = store.gets()
    assert look(moves=False) == []
    assert store.gets() == before


def test_runs_that_were_silent_for_long_are_waited_for_by_nobody(tmp_path: Path) -> None:
    """Not at the first look either; and they are read for no longer than it takes to see that they stand still."""
    store = Store(tmp_path, {f"r{number}": NOW - LONG_SILENT_S - 1 for number in range(5)})
    others = OtherDrivers(store.ledger, Part(0, 2), store.clock)
    reads = []
    for _ in range(6):
        before = store.gets()
        assert others.alive(store.runs) == []
        reads.append(store.gets() - before)
        store.clock.advance(HEARTBEAT_S)
    assert reads == [5, 5, 5, 5, 5, 0]
