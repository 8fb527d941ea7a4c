"""A run's log: nothing is lost while the store fails for a while, and the store never holds up a run or its end."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog

from curate.errors import ConfigError, JobReplacedError, StorageError, TransientStorageError
from curate.ledger import layout, segments
from curate.ledger.failures import KEPT_TRACEBACKS
from curate.ledger.heartbeat import Process, ProcessState, process_started
from curate.ledger.ledger import Ledger
from curate.ledger.run_log import RunLog, command_line, new_run_id, whereabouts
from curate.ledger.segments import Segments
from curate.stores.memory import MemoryStore
from tests.support.fakes import After, FakeClock, FlakyStore

DOWN = TransientStorageError("503")
ALIKE = {"shard": "s", "error": "ValueError: x", "frame": "", "traceback": ""}
DEADLINE_S = 20.0
"""How long a test waits for another thread before it fails."""


class Logged:
    """A run's log over a store that fails on cue, with a clock that the test moves."""

    def __init__(
        self, clock: FakeClock, beat: Callable[[], dict[str, Any]] | None = None, stream: str = "events"
    ) -> None:
        self.clock = clock
        self.stream = stream
        self.store = FlakyStore(MemoryStore())
        self.root = f"memory://log-{uuid.uuid4().hex}/out"
        self.ledger = Ledger(self.store, self.root)
        self.run_id = new_run_id(clock.now())
        self.added = 0
        self.log = RunLog(self.ledger, self.run_id, clock, beat or (lambda: {"added": self.added}))

    def add(self, n: int = 1, **more: Any) -> None:
        for _ in range(n):
            if self.stream == "events":
                self.log.add({"index": self.added, **more})
            else:
                self.log.add_failure({"index": self.added, **ALIKE, **more})
            self.added += 1

    def due(self) -> None:
        """Does what the log's thread does when it wakes up, at the clock's time."""
        self.log.write_due(self.clock.monotonic())

    def segments(self) -> list[str]:
        listing = self.ledger.list()
        return sorted(listing.segments if self.stream == "events" else listing.failures)

    def name(self, number: int) -> str:
        """The name of a segment, relative to the run."""
        return f"events-{number:06d}.jsonl.zst" if self.stream == "events" else f"failures/{number:06d}.jsonl.zst"

    @property
    def waiting(self) -> Segments:
        """What was not written yet."""
        return self.log._events if self.stream == "events" else self.log._failures

    def indexes(self) -> list[int]:
        """The events in the ledger, in order."""
        return [event["index"] for event in self.ledger.events(self.segments())]

    def heartbeat(self) -> dict[str, Any]:
        return self.ledger.read_json(layout.run_file(self.run_id, "heartbeat.json"))

    def written(self) -> list[str]:
        return [uri.removeprefix(f"{self.root}/{layout.RUNS}{self.run_id}/") for uri in self.store.written]


@pytest.fixture(params=["events", "failures"])
def logged(clock: FakeClock, request: pytest.FixtureRequest) -> Logged:
    """A run's log, seen through one of its streams: what holds for the one holds for the other."""
    return Logged(clock, stream=request.param)


@pytest.fixture
def said() -> Any:
    """What is logged."""
    with structlog.testing.capture_logs() as entries:
        yield entries


# Who runs, and whether it still does


def test_run_ids_sort_by_start_and_never_collide() -> None:
    """Drivers that start within one millisecond have ids of their own; later ones come later."""
    ids = [new_run_id(1_700_000_000.0 + ms / 1000) for ms in range(0, 3000, 7) for _ in range(10)]
    assert len(set(ids)) == len(ids)
    assert [one[:20] for one in ids] == [one[:20] for one in sorted(ids)]
    assert len({one[:20] for one in ids}) == len(ids) // 10
    assert all(re.fullmatch(r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{6}", one) for one in ids)


def test_a_run_id_sorts_behind_all_that_are_known_whatever_the_clocks_say() -> None:
    """What is no run id, of whatever day, moves nobody."""
    known = {"zzz", "20261399T000000.000Z-0a1b2c", "99991231T235959.999Z-0a1b2c"}
    assert new_run_id(1_700_000_000.0, known) < "2024"
    for now in (1_700_000_000.0, 1_700_000_000.0, 1_600_000_000.0, 1_699_999_999.9995, 1_800_000_000.0, 0.0):
        newest = new_run_id(now, known)
        assert all(one < newest for one in known if one.startswith("202") and "1399" not in one)
        known.add(newest)


def is_gone(beat: dict[str, Any]) -> bool:
    return Process.of(beat).state() is ProcessState.GONE


def test_this_process_is_not_gone() -> None:
    """The heartbeat of a run whose process lives, on this host."""
    assert is_gone(whereabouts()) is False


def test_a_process_that_ended_is_gone_even_before_it_is_reaped() -> None:
    """A killed driver counts as gone at once, though its parent has not looked yet and it is a zombie still."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    beat = {**whereabouts(), "pid": child.pid, "pid_started": process_started(child.pid)}
    assert is_gone(beat) is False
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(beat) is True
    child.communicate()
    assert is_gone(beat) is True


def test_another_process_under_the_same_number_is_not_it() -> None:
    """Numbers are reused; the start time tells them apart."""
    assert is_gone({**whereabouts(), "pid_started": "1"}) is True


@pytest.mark.parametrize(
    "change",
    [
        {"boot_id": "another boot"},
        {"boot_id": ""},
        {"pid_space": "pid:[1]"},
        {"pid_started": ""},
        {"pid_started": None},
    ],
)
def test_what_cannot_be_told_from_here_is_not_called_gone(change: dict[str, Any]) -> None:
    """Another host, another boot, another container on this host: only silence tells, and that takes a minute."""
    assert is_gone({**whereabouts(), "pid": 2**22 + 1, **change}) is False


def test_a_heartbeat_of_an_older_kind_is_not_called_gone() -> None:
    """Without the fields to tell by."""
    assert is_gone({"pid": 1}) is False


# What is written


def test_a_run_is_introduced_once_and_then_beats(logged: Logged) -> None:
    """`run.json` says who, where, when and with what; the first heartbeat comes with it."""
    logged.log.open({"job": "toxicity", "started": 5.0})
    run = logged.ledger.read_json(layout.run_file(logged.run_id, "run.json"))
    assert run["run_id"] == logged.run_id
    assert run["job"] == "toxicity"
    assert run["pid"] == os.getpid()
    assert run["command"] == command_line(sys.argv, sys.orig_argv)
    assert run["cwd"] == str(Path.cwd())
    assert set(run["versions"]) == {"curate", "python", "ray", "pyarrow"}
    assert run["user"]
    assert logged.heartbeat()["updated"] == logged.clock.now()
    logged.log.close()


@pytest.mark.parametrize(
    ("argv", "original", "told"),
    [
        (["mine.py", "--x"], ["/usr/bin/python3", "mine.py", "--x"], ["python3", "mine.py", "--x"]),
        (["/a/curate/__main__.py", "run"], ["python", "-m", "curate", "run"], ["python", "-m", "curate", "run"]),
        (["-c", "a"], ["python", "-c", "print(1)", "a"], ["python", "-c", "...", "a"]),
        (["/v/bin/curate", "run"], ["/v/bin/python", "/v/bin/curate", "run"], ["/v/bin/curate", "run"]),
        (["mine.py", "other"], ["python", "mine.py", "--x"], ["mine.py", "other"]),
        ([""], ["python"], [""]),
        (["mine.py"], [], ["mine.py"]),
        ([], ["python"], []),
    ],
)
def test_a_command_starts_the_process_again(argv: list[str], original: list[str], told: list[str]) -> None:
    assert command_line(argv, original) == told


def test_an_id_that_is_taken_is_refused(logged: Logged) -> None:
    """Else two runs would write one heartbeat; and to close this one must not touch the other's."""
    name = layout.run_file(logged.run_id, "run.json")
    logged.ledger.create_json(name, {"run_id": logged.run_id, "host": "another", "pid": 1})
    with pytest.raises(ConfigError, match="is taken by another run"):
        logged.log.open({})
    logged.log.close()
    assert "heartbeat.json" not in logged.written()


def test_segments_only_when_there_is_something(logged: Logged) -> None:
    """An hour without events writes none; heartbeats go on."""
    for _ in range(360):
        logged.clock.advance(10.0)
        logged.due()
    assert logged.segments() == []
    assert logged.written() == ["heartbeat.json"] * 360


def test_a_heartbeat_after_two_seconds_and_every_ten_from_there(logged: Logged) -> None:
    """Not before, and with the time and the totals of that moment. The first shows that a run moves."""
    beats = []
    for second in range(1, 61):
        logged.clock.advance(1.0)
        before = len(logged.store.written)
        logged.added = second
        logged.due()
        if len(logged.store.written) > before:
            beats.append((second, logged.heartbeat()["updated"] - 1_700_000_000.0, logged.heartbeat()["added"]))
    assert beats == [(s, float(s), s) for s in (2, 12, 22, 32, 42, 52)]


@pytest.mark.slow
def test_segments_come_every_two_seconds_at_first_and_every_minute_later(logged: Logged) -> None:
    """A short job is followed closely, a long one leaves few objects."""
    times = []
    for second in range(1, 1001):
        logged.clock.advance(1.0)
        logged.add()
        before = len(logged.segments())
        logged.due()
        if len(logged.segments()) > before:
            times.append(second)
    gaps = [b - a for a, b in zip([0, *times], times, strict=False)]
    assert gaps[:4] == [2, 2, 3, 5]
    assert gaps == sorted(gaps)
    assert set(gaps[-10:]) == {60}
    assert logged.indexes() == list(range(times[-1]))


def test_many_events_do_not_wait_for_their_time(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that is full is written at once, and is that long."""
    monkeypatch.setattr(segments, "SEGMENT_LINES", 100)
    logged.add(99)
    logged.due()
    assert logged.segments() == []
    logged.add(151)
    logged.due()
    logged.log.flush()
    lengths = [len(list(logged.ledger.events([name]))) for name in logged.segments()]
    assert lengths == [100, 100, 50]
    assert logged.indexes() == list(range(250))


def test_large_events_do_not_wait_either(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracebacks are thousands of characters: memory is bounded in bytes, not only in events."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 10_000)
    logged.add(3, traceback="x" * 5000)
    logged.due()
    assert len(logged.segments()) == 1
    assert logged.indexes() == [0, 1]


def test_what_json_does_not_know_is_told_as_text(logged: Logged) -> None:
    """An event never stops the run that it tells of."""
    logged.add(1, odd={1, 2}.__class__)
    logged.log.flush()
    assert logged.indexes() == [0]


def test_a_run_whose_job_was_replaced_falls_silent(logged: Logged, said: Any) -> None:
    """Nothing there is its own any more: it does not try again, and does not say that it will. The run ends of it."""
    logged.log.open({})
    logged.store.script.append(JobReplacedError("the output now belongs to another run"))
    tried = len(logged.store.tried)
    logged.add(5)
    logged.log.flush()
    logged.clock.advance(3600.0)
    logged.due()
    logged.log.close()
    assert len(logged.store.tried) == tried + 1
    assert said == []


def test_events_come_before_the_heartbeat_that_counts_them(logged: Logged) -> None:
    """Whoever reads the heartbeat finds the events."""
    logged.add(3)
    logged.log.flush()
    assert logged.written() == [logged.name(1), "heartbeat.json"]
    assert logged.heartbeat()["added"] == 3


def test_closing_writes_the_rest(logged: Logged) -> None:
    """The last events, then the last heartbeat; the thread has ended."""
    logged.log.open({})
    logged.add(5)
    logged.log.close()
    assert logged.written() == ["run.json", "heartbeat.json", logged.name(1), "heartbeat.json"]
    assert logged.indexes() == list(range(5))
    assert logged.heartbeat()["added"] == 5
    assert not logged.log._thread.is_alive()


# A store that fails


def test_a_failed_write_keeps_the_events_and_raises_nothing(logged: Logged, said: list[Any]) -> None:
    """They are in the next segment that the store takes, in order, once each; the heartbeat is tried all the same."""
    logged.add(2)
    logged.clock.advance(10.0)
    logged.store.script.extend([DOWN])
    logged.due()
    assert logged.written() == ["heartbeat.json"]
    assert [entry["event"] for entry in said] == ["ledger write failed; it will be retried"]
    logged.add(2)
    logged.clock.advance(60.0)
    logged.due()
    assert logged.indexes() == [0, 1, 2, 3]


@pytest.mark.parametrize("failures", [1, 5])
def test_a_write_whose_answer_was_lost_is_not_written_twice(logged: Logged, failures: int) -> None:
    """Events added since do not get lost under a name that is taken, and none is there twice."""
    for _ in range(failures):
        logged.add(1)
        logged.store.script.extend([After(DOWN)])
        logged.clock.advance(60.0)
        logged.due()
    logged.add(1)
    logged.log.flush()
    assert logged.indexes() == list(range(failures + 1))


def test_a_name_that_others_hold_is_passed_over(logged: Logged) -> None:
    """Nothing is overwritten, and nothing is lost."""
    foreign = logged.ledger.uri(layout.run_file(logged.run_id, logged.name(1)))
    logged.store.inner.publish(foreign, b"something else")
    logged.add(2)
    logged.log.flush()
    assert logged.store.read(foreign) == b"something else"
    assert [event["index"] for event in logged.ledger.events(logged.segments()[1:])] == [0, 1]


def test_a_failed_heartbeat_is_tried_again_in_ten_seconds(logged: Logged) -> None:
    """And not in a spin before that."""
    logged.store.script.extend([DOWN])
    for _ in range(20):
        logged.clock.advance(1.0)
        logged.due()
    assert len(logged.store.tried) == 2
    assert logged.written() == ["heartbeat.json"]


def test_an_error_of_another_kind_does_not_end_the_thread(clock: FakeClock, said: list[Any]) -> None:
    """Without it the run would be shown as stalled while it works."""
    broken = [True]

    def beat() -> dict[str, Any]:
        if broken[0]:
            raise RuntimeError("dictionary changed size during iteration")
        return {}

    logged = Logged(clock, beat)
    logged.log.flush()
    assert said[0]["event"] == "ledger write failed; it will be retried"
    broken[0] = False
    logged.log.flush()
    assert logged.heartbeat()


def test_adding_never_waits_for_the_store(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that throttles for minutes: tasks are dispatched all the while, no event is lost, order holds."""
    monkeypatch.setattr(segments, "SEGMENT_LINES", 10)
    entered, release = threading.Event(), threading.Event()

    def throttle() -> None:
        entered.set()
        assert release.wait(DEADLINE_S)

    logged.log.open({})
    logged.store.script.extend([throttle])
    logged.add(10)
    assert entered.wait(DEADLINE_S)
    logged.add(1005)
    assert len(logged.segments()) == 0
    release.set()
    logged.log.close()
    assert logged.indexes() == list(range(1015))


def test_it_beats_while_a_slow_store_takes_a_backlog(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten segments of 20 s each: without beats in between the run would be shown as stalled."""
    monkeypatch.setattr(segments, "SEGMENT_LINES", 10)
    logged.add(100)
    logged.store.script.extend([lambda: logged.clock.advance(20.0), None] * 10)
    logged.due()
    assert logged.written() == [name for number in range(1, 11) for name in (logged.name(number), "heartbeat.json")]


def test_memory_is_bounded_however_long_the_store_is_down(
    logged: Logged, monkeypatch: pytest.MonkeyPatch, said: list[Any]
) -> None:
    """The oldest events go, which is said; outputs are the truth, and the next run reads them instead."""
    monkeypatch.setattr(segments, "SEGMENT_LINES", 100)
    monkeypatch.setattr(segments, "MOST_WAITING_BYTES", 2000)
    for _ in range(200):
        logged.store.script.append(DOWN)
        logged.add(100, noise=uuid.uuid4().hex)
        logged.due()
    assert logged.waiting._sealed_bytes <= 2000
    assert logged.waiting._lines == b""
    assert any("the oldest are dropped" in entry["event"] for entry in said)
    logged.store.script.clear()
    logged.log.flush()
    kept = logged.indexes()
    assert kept == list(range(20_000 - len(kept), 20_000))
    assert len(kept) >= 100


def test_closing_survives_a_store_that_is_down(logged: Logged, said: list[Any]) -> None:
    """The run's result is not lost for its log."""
    logged.log.open({})
    logged.add(1)
    logged.store.script.extend([StorageError("gone")] * 10)
    logged.log.close()
    assert [entry["event"] for entry in said] == ["ledger write failed; it will be retried"] * 2


def test_closing_does_not_wait_for_ever(logged: Logged, said: list[Any]) -> None:
    """A store that does not answer is left behind; its thread does not keep the process."""
    release = threading.Event()
    logged.log.open({})
    logged.add(1)
    logged.store.script.extend([lambda: release.wait(DEADLINE_S)])
    logged.log.close(within_s=0.01)
    assert said[-1]["event"] == "the last part of the ledger could not be written in time; the outputs are safe"
    assert logged.log._thread.daemon
    release.set()
    logged.log._thread.join(DEADLINE_S)
    assert logged.indexes() == [0]


def test_two_flushes_at_once_number_their_segments_one_after_the_other(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No segment takes another's place, and no event is in two."""
    monkeypatch.setattr(segments, "SEGMENT_LINES", 7)
    threads = [threading.Thread(target=logged.log.flush) for _ in range(8)]
    adder = threading.Thread(target=logged.add, args=(500,))
    for thread in [adder, *threads]:
        thread.start()
    for thread in [adder, *threads]:
        thread.join(DEADLINE_S)
    logged.log.flush()
    names = [name for name in logged.written() if name.endswith(".zst")]
    assert names == [logged.name(number) for number in range(1, len(names) + 1)]
    assert logged.indexes() == list(range(500))


def test_the_heartbeat_may_take_the_lock_that_events_are_added_under(clock: FakeClock) -> None:
    """The run adds events while it holds its own lock, which the heartbeat takes in another thread: no deadlock."""
    lock = threading.Lock()
    beats = 0

    def beat() -> dict[str, Any]:
        nonlocal beats
        with lock:
            beats += 1
            return {}

    logged = Logged(clock, beat)
    stop = threading.Event()

    def flush() -> None:
        while not stop.is_set():
            logged.log.flush()

    flusher = threading.Thread(target=flush, daemon=True)
    flusher.start()
    for _ in range(300):
        with lock:
            logged.add()
    stop.set()
    flusher.join(DEADLINE_S)
    assert not flusher.is_alive()
    assert beats > 0


def test_a_wall_clock_that_goes_back_stops_nothing(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due is told by the monotonic clock."""
    monkeypatch.setattr(logged.clock, "now", lambda: 1_600_000_000.0 - logged.clock.monotonic())
    updated = []
    for _ in range(3):
        logged.clock.advance(10.0)
        logged.due()
        updated.append(logged.heartbeat()["updated"])
    assert updated == sorted(updated, reverse=True)
    assert len(logged.store.written) == 3


def test_the_thread_writes_by_itself(logged: Logged) -> None:
    """Opened, it needs no one to ask: a full segment wakes it."""
    wrote = threading.Event()
    logged.log.open({})
    logged.store.script.extend([wrote.set])
    logged.add(segments.SEGMENT_LINES)
    assert wrote.wait(DEADLINE_S)
    logged.log.close()
    assert len(logged.indexes()) == segments.SEGMENT_LINES


def test_a_heartbeat_is_one_json_object(logged: Logged) -> None:
    """With who wrote it, so that a reader can tell whether that one lives."""
    logged.log.flush()
    value = orjson.loads(logged.store.read(logged.ledger.uri(layout.run_file(logged.run_id, "heartbeat.json"))))
    assert {"run_id", "updated", "host", "boot_id", "pid_space", "pid", "pid_started"} <= value.keys()


# Failures


def test_a_failure_is_there_when_the_event_that_mentions_it_is(clock: FakeClock) -> None:
    """Both are due at once; failures are written first."""
    logged = Logged(clock)
    logged.add(1)
    logged.log.add_failure({"index": 7, **ALIKE})
    clock.advance(2.0)
    logged.due()
    assert logged.written() == ["failures/000001.jsonl.zst", "heartbeat.json", "events-000001.jsonl.zst"]


@pytest.mark.slow
def test_a_million_failures_fill_neither_memory_nor_store(clock: FakeClock) -> None:
    """Of failures that are alike a hundred keep their traceback: what each further one costs is small."""
    logged = Logged(clock, stream="failures")
    for number in range(20_000):
        text = random.randbytes(500).hex()
        logged.add(1, shard=f"s{number}", error=f"ValueError: bad row {number}", traceback=text)
        if not number % 1000:
            logged.due()
    logged.log.flush()
    lines = list(logged.ledger.events(logged.segments()))
    assert [bool(line["traceback"]) for line in lines] == [True] * KEPT_TRACEBACKS + [False] * 19_900
    stored = sum(item.size for item in logged.store.list(logged.ledger.uri(layout.RUNS)) if "failures" in item.uri)
    assert stored < 200_000
