"""The dispatcher: the scheduler's decisions carried out exactly, each shard's end told once, and no time wasted."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.errors import StorageError
from curate.runtime.protocol import BackendEvent, Message, Started, TaskEnd, TaskFinished
from curate.tasks.dispatcher import GRACE_S, POLL_S, Dispatcher, Interrupts
from curate.tasks.events import Action, Event, Launch, Outcome, SlotsChanged
from curate.tasks.failure import Failure, FailureKind, ShardProgress, ShardRecord, ShardWaits
from curate.tasks.policy import Policy
from curate.tasks.scheduler import Scheduler
from curate.units import GIB
from tests.support.examples import examples
from tests.support.fakes import FakeBackend, FakeClock

OK, USER, STORAGE, CORRUPT, EXISTED = "ok", "user_error", "storage", "corrupt_input", "existed"
CRASH, LOST, CANCELLED, RAISED, SILENT = "crashed", "lost", "cancelled", "raised", "silent"
OOM = "out of memory"
TWICE, FAILED_TWICE = "twice", "failed twice"
RETRY = Outcome.RETRY


@dataclass
class Watcher:
    """An observer that writes down what it is told, and does something at a tick if the test wants."""

    ends: Counter[int] = field(default_factory=Counter)
    """How often each shard was said to be over, done or given up."""
    done_: list[tuple[int, int]] = field(default_factory=list)
    """(shard, attempt)"""
    failed_: list[tuple[int, str, Outcome]] = field(default_factory=list)
    errors: list[Failure] = field(default_factory=list)
    words: list[ShardWaits] = field(default_factory=list)
    slots: int | None = 4
    """What ticks have to say; None: anything."""
    ticks: int = 0
    on_tick: Callable[[int], None] = lambda _: None

    def done(self, launch: Launch, record: ShardRecord) -> None:
        self.ends[record.index] += 1
        self.done_.append((record.index, launch.attempt))

    def failed(self, launch: Launch, record: ShardRecord, outcome: Outcome) -> None:
        assert record.index in launch.shards
        assert record.failure is not None
        assert outcome is not Outcome.DONE
        self.failed_.append((record.index, record.failure.kind.value, outcome))
        self.errors.append(record.failure)
        self.ends[record.index] += outcome is Outcome.FAILED

    def moves(self, word: ShardProgress) -> None:
        raise NotImplementedError

    def waits(self, launch: Launch, word: ShardWaits) -> None:
        assert word.index in launch.shards
        self.words.append(word)

    def begun(self, launch: Launch, node: str, pid: int) -> None:
        assert launch.shards, (node, pid)

    def tick(self, slots: int) -> None:
        assert self.slots in (None, slots)
        self.ticks += 1
        self.on_tick(self.ticks)


class Run:
    """Shards whose attempts go as a script says, each taking a second; what a script does not say goes well."""

    def __init__(
        self,
        n: int,
        script: Mapping[int, Sequence[str]] | None = None,
        *,
        order: Callable[[list[int]], int] = lambda _: 0,
        bundled: bool = False,
        **policy: object,
    ) -> None:
        self.clock = FakeClock()
        self.script = {shard: list(steps) for shard, steps in (script or {}).items()}
        self.order = order
        self.seconds = 1.0
        """How long shards say that they took."""
        self.tried: Counter[int] = Counter()
        """Attempts at each shard that were begun, as a worker sees them."""
        self.begun_s: defaultdict[int, list[float]] = defaultdict(list)
        policy.setdefault("target_task_s", 1e9 if bundled else 0.001)
        self.scheduler = Scheduler(range(n), [1] * n, Policy(**policy))  # type: ignore[arg-type]
        if bundled:
            # As if much had been done in a second: everything fits into one task.
            self.scheduler._cost_seen, self.scheduler._seconds_seen = 1e12, 1.0
        self.backend = FakeBackend(self.clock, self.answer)
        self.watcher = Watcher()
        self.interrupts = Interrupts()
        self.outputs: set[int] = set()
        """Shards whose output exists."""
        self.looked: list[int] = []
        """Shards whose output was looked for."""
        self.dispatcher = Dispatcher(
            self.scheduler,
            self.backend,
            lambda launch: launch,
            lambda _: 1,
            self.has_output,
            self.watcher,
            self.clock,
            self.interrupts,
        )
        self.started_s = self.clock.monotonic()

    def interrupt(self) -> None:
        """As somebody at a terminal does."""
        self.interrupts.interrupts += 1

    def run(self) -> bool:
        return self.dispatcher.run()

    def has_output(self, shard: int) -> bool:
        self.looked.append(shard)
        return shard in self.outputs

    def answer(self, in_flight: dict[int, Launch]) -> list[BackendEvent]:
        """Ends one task that is in flight, chosen by `order`."""
        if not in_flight:
            return []
        task = list(in_flight)[self.order(list(in_flight))]
        news: list[BackendEvent] = []
        for shard in in_flight[task].shards:
            self.tried[shard] += 1
            self.begun_s[shard].append(self.clock.monotonic() - self.started_s)
            self.clock.advance(1.0)
            step = self.script[shard].pop(0) if self.script.get(shard) else OK
            if step in (CRASH, LOST, CANCELLED, RAISED, OOM):
                detail = f"Oh: shard {shard}\nsecond line\nValueError: last line"
                return [*news, TaskFinished(task, TaskEnd(step), detail, peak_bytes=2 * GIB if step == OOM else 0)]
            if step == SILENT:
                continue
            kind = USER if step == FAILED_TWICE else step
            failure = None if step in (OK, EXISTED, TWICE) else Failure(FailureKind(kind), "boom", "a traceback")
            record = ShardRecord(shard, self.seconds, failure, existed=step == EXISTED)
            if failure is None:
                self.outputs.add(shard)
            news.append(Message(task, [record, record] if step in (TWICE, FAILED_TWICE) else [record]))
        return [*news, TaskFinished(task, TaskEnd.RETURNED)]


def test_everything_goes_well() -> None:
    """Each shard is launched once, tried once and told once; then the run has finished."""
    run = Run(50)
    assert run.run() is True
    assert run.tried == dict.fromkeys(range(50), 1)
    assert run.watcher.ends == dict.fromkeys(range(50), 1)
    assert [pieces for _, _, pieces in run.backend.launched] == [
        len(launch.shards) for _, launch, _ in run.backend.launched
    ]
    assert run.backend.most_in_flight == 16
    assert run.clock.sleeps == []


def test_a_shard_fails_twice_and_then_succeeds() -> None:
    """Shard 0 of three: three attempts, a second and two apart, and every other shard exactly one."""
    run = Run(3, {0: [USER, USER]})
    assert run.run() is True
    assert run.tried == {0: 3, 1: 1, 2: 1}
    assert run.watcher.failed_ == [(0, USER, RETRY)] * 2
    assert run.watcher.done_ == [(1, 1), (2, 1), (0, 3)]
    first, second, third = run.begun_s[0]
    assert second - (first + 1) >= 1
    assert third - (second + 1) >= 2


@pytest.mark.parametrize(
    ("step", "attempts"),
    [
        (USER, 4),
        (STORAGE, 4),
        (CORRUPT, 1),
        (CRASH, 3),
        (RAISED, 3),
        (SILENT, 3),
        (LOST, 21),
        (CANCELLED, 21),
        (OOM, 3),
    ],
)
def test_a_poison_shard_is_given_up_after_exactly_its_attempts(step: str, attempts: int) -> None:
    """And all others are done with one attempt each, in a run that ends by itself."""
    run = Run(5, {2: [step] * 100})
    assert run.run() is True
    assert run.tried == {0: 1, 1: 1, 2: attempts, 3: 1, 4: 1}
    assert run.watcher.ends == dict.fromkeys(range(5), 1)
    assert [outcome for *_, outcome in run.watcher.failed_] == [RETRY] * (attempts - 1) + [Outcome.FAILED]
    assert (run.scheduler.done, run.scheduler.failed) == (4, 1)


@pytest.mark.parametrize("step", [CRASH, LOST, RAISED, SILENT])
def test_what_a_dead_task_had_reported_counts(step: str) -> None:
    """Shards of a bundle that were done before it died are not run again; those after it are done once."""
    run = Run(6, {3: [step]}, bundled=True)
    assert run.run() is True
    assert run.tried == {shard: 2 if shard == 3 else 1 for shard in range(6)}
    assert run.watcher.ends == dict.fromkeys(range(6), 1)


def test_a_crash_tells_of_its_suspect_alone() -> None:
    """The others of the bundle are no failures, and not told of as such."""
    run = Run(6, {2: [CRASH]}, bundled=True)
    run.run()
    assert run.watcher.failed_ == [(2, CRASH, RETRY)]
    assert run.watcher.errors[0].error == "crashed: Oh: shard 2"


def test_a_lost_node_strikes_all_of_the_bundle() -> None:
    """Each of its shards is told of: each has a limit of losses."""
    run = Run(4, {1: [LOST]}, bundled=True)
    run.run()
    assert run.watcher.failed_ == [(shard, LOST, RETRY) for shard in (1, 2, 3)]


def test_an_escaped_error_is_named_by_the_last_line_of_its_traceback() -> None:
    """The first line of every traceback is the same; failures are grouped by this one."""
    run = Run(1, {0: [RAISED]})
    run.run()
    assert run.watcher.errors == [
        Failure(
            FailureKind.CRASHED,
            "raised: ValueError: last line",
            "Oh: shard 0\nsecond line\nValueError: last line",
            wait_s=1.0,
        )
    ]


def test_a_task_without_a_word_says_so() -> None:
    """A program, or a backend, that loses a record: what is known is that nothing was said."""
    run = Run(1, {0: [SILENT]})
    run.run()
    error = "returned: the task ended without a result for this shard"
    assert run.watcher.errors == [Failure(FailureKind.CRASHED, error, wait_s=1.0)]


def test_a_record_that_comes_twice_is_booked_once() -> None:
    """Books would not balance otherwise."""
    run = Run(4, {1: [TWICE]}, bundled=True)
    run.run()
    assert run.watcher.ends == dict.fromkeys(range(4), 1)
    assert run.scheduler.attempts == 4


def test_a_failure_that_comes_twice_is_booked_once() -> None:
    """It would cost the shard two of its tries."""
    run = Run(4, {1: [FAILED_TWICE] * 3}, bundled=True)
    run.run()
    assert run.watcher.failed_ == [(1, USER, RETRY)] * 3
    assert run.tried[1] == 4
    assert run.watcher.ends == dict.fromkeys(range(4), 1)


def test_an_output_that_was_there_does_not_set_the_pace() -> None:
    """To look at one takes a moment whatever its size: bundles are sized by what was computed."""
    run = Run(200, {shard: [EXISTED] for shard in range(200)}, target_task_s=1e9)
    run.run()
    assert [len(launch.shards) for _, launch, _ in run.backend.launched] == [1] * 200


def test_news_of_unknown_tasks_is_ignored() -> None:
    """A probe that was interrupted may answer while shards run already."""
    run = Run(2)
    answer = run.answer

    def with_a_probe(in_flight: dict[int, Launch]) -> list[BackendEvent]:
        return [Message(-1, ["an answer"]), TaskFinished(-1, TaskEnd.RETURNED), *answer(in_flight)]

    run.backend.answer = with_a_probe
    assert run.run() is True
    assert run.watcher.ends == {0: 1, 1: 1}


def test_memory_holds_only_what_is_in_flight() -> None:
    """Nothing is kept of tasks that are over, or of shards that failed and then were done."""
    run = Run(500, {shard: [USER] for shard in range(0, 500, 7)})
    most = 0

    def look(_: int) -> None:
        nonlocal most
        most = max(most, len(run.dispatcher._launches))

    run.watcher.on_tick = look
    run.run()
    assert most <= 16
    scheduler = run.scheduler
    left = (run.dispatcher._launches, scheduler._running, scheduler._strikes, scheduler._ready, scheduler._waiting)
    assert [len(one) for one in left] == [0] * 5


# Waiting


def test_it_waits_in_the_backend_while_something_runs() -> None:
    """Half a second at most, less if a shard is due before; the clock is never slept on."""
    run = Run(2)
    quiet = 4

    def answer(in_flight: dict[int, Launch]) -> list[BackendEvent]:
        nonlocal quiet
        quiet -= 1
        return [] if quiet > 0 else Run.answer(run, in_flight)

    run.backend.answer = answer
    run.run()
    assert run.backend.polls[:4] == [POLL_S] * 4
    assert run.clock.sleeps == []


def test_it_sleeps_through_a_backoff_when_nothing_else_is_left() -> None:
    """In steps of half a second, so that a signal is noticed; and not a moment longer than the backoff."""
    run = Run(1, {0: [USER, USER, USER]})
    run.run()
    assert sum(run.clock.sleeps) == pytest.approx(1 + 2 + 4)
    assert max(run.clock.sleeps) <= POLL_S
    assert run.clock.monotonic() - run.started_s == pytest.approx(4 + 7)


def test_a_due_shard_does_not_keep_a_full_window_spinning() -> None:
    """While all slots are taken by long tasks, the loop wakes up twice a second and not thousands of times."""
    run = Run(3, {0: [USER]}, max_in_flight=1)
    quiet_until_s = run.started_s + 20.0

    def answer(in_flight: dict[int, Launch]) -> list[BackendEvent]:
        (launch,) = in_flight.values()
        if launch.shards == (1,) and run.clock.monotonic() < quiet_until_s:
            return []
        return Run.answer(run, in_flight)

    run.backend.answer = answer
    run.run()
    assert run.watcher.ends == dict.fromkeys(range(3), 1)
    assert len(run.backend.polls) <= 2 * 20 + 10


def test_ticks_come_with_every_harvest() -> None:
    """The observer updates its rates, and looks at its own clock, at least every half second."""
    run = Run(3)
    run.run()
    assert run.watcher.ticks == len(run.backend.polls)


# Stopping


def at_tick(run: Run, number: int, act: Callable[[], None]) -> None:
    def on_tick(ticks: int) -> None:
        if ticks == number:
            act()

    run.watcher.on_tick = on_tick


def test_the_first_interrupt_lets_running_tasks_end() -> None:
    """Nothing is launched after it; what runs is booked; what is left is left."""
    run = Run(100)

    at_tick(run, 5, run.interrupt)
    assert run.run() is False
    assert len(run.backend.launched) == 16 + 5
    assert run.scheduler.done == 21
    assert run.backend.cancelled == 0


def test_an_interrupt_when_all_is_launched_may_still_finish() -> None:
    """If the tasks that run are the last ones, the run is complete, not interrupted."""
    run = Run(10)

    at_tick(run, 2, run.interrupt)
    assert run.run() is True
    assert run.scheduler.done == 10


def test_after_thirty_seconds_of_grace_what_still_runs_is_cancelled() -> None:
    """And not before; by then whatever ended is booked."""
    run = Run(100)
    interrupted_s = 0.0

    def answer(in_flight: dict[int, Launch]) -> list[BackendEvent]:
        return [] if run.interrupts.interrupts and len(in_flight) == 8 else Run.answer(run, in_flight)

    def interrupt() -> None:
        nonlocal interrupted_s
        run.interrupts.interrupts += 1
        interrupted_s = run.clock.monotonic()

    run.backend.answer = answer
    at_tick(run, 1, interrupt)
    assert run.run() is False
    assert run.backend.cancelled == 1
    assert GRACE_S <= run.clock.monotonic() - interrupted_s <= GRACE_S + POLL_S
    assert run.scheduler.done == 16 + 1 - 8


def test_the_second_interrupt_cancels_at_once() -> None:
    """Without waiting out the grace."""
    run = Run(100)

    run.watcher.on_tick = lambda ticks: run.interrupt() if ticks in (3, 5) else None
    assert run.run() is False
    assert run.backend.cancelled == 1
    assert run.scheduler.done == 5
    assert run.clock.monotonic() - run.started_s == pytest.approx(5)


def test_terminated_it_leaves_at_once() -> None:
    """SIGTERM waits for nothing."""
    run = Run(100)

    def terminate() -> None:
        run.interrupts.terminated = True

    at_tick(run, 3, terminate)
    assert run.run() is False
    assert run.backend.cancelled == 1
    assert run.scheduler.done == 3
    assert len(run.backend.polls) == 3


def test_interrupted_before_it_began_it_launches_nothing() -> None:
    """A signal may come while the run is being prepared."""
    run = Run(10)
    run.interrupts.interrupts = 1
    assert run.run() is False
    assert (run.backend.launched, run.clock.sleeps, run.watcher.ticks) == ([], [], 0)


def test_an_interrupt_during_a_backoff_ends_the_run() -> None:
    """Nothing is in flight, and what waits will not be launched: there is nothing to be gracious to."""
    run = Run(1, {0: [USER]})

    at_tick(run, 2, run.interrupt)
    assert run.run() is False
    assert run.watcher.ticks == 2
    assert run.backend.cancelled == 0


def test_too_many_failures_abort() -> None:
    """One more than the limit: running tasks are cancelled, and nothing is launched in their place."""
    run = Run(100, {shard: [CORRUPT] for shard in range(100)}, max_failed=3)
    assert run.run() is False
    assert run.scheduler.failed == 4
    assert run.backend.cancelled == 1
    assert len(run.backend.launched) == 16 + 3


@pytest.mark.slow
def test_terminated_while_it_launches_it_stops_launching() -> None:
    """A large cluster gets thousands of tasks at once, which takes longer than there is time to leave."""
    run = Run(100_000)
    run.backend.slots_now = run.watcher.slots = 10_000
    launch = run.backend.launch

    def launch_and_terminate(*args: Any, **kwargs: Any) -> None:
        launch(*args, **kwargs)
        run.interrupts.terminated = len(run.backend.launched) == 50

    run.backend.launch = launch_and_terminate  # type: ignore[method-assign]
    assert run.run() is False
    assert len(run.backend.launched) == 50
    assert run.backend.cancelled == 1


# What the scheduler is told, and what it says


def scripted(run: Run, *polls: Sequence[BackendEvent]) -> None:
    """Makes the first polls answer this, and those after them as the run's script says."""
    waiting = list(polls)
    run.backend.answer = lambda in_flight: waiting.pop(0) if waiting else Run.answer(run, in_flight)


def test_starts_are_announced_where_somebody_needs_to_know() -> None:
    """Of tasks that run again, whose failure should name a node; of all, where a time limit counts from their start.
    To tell costs a message, so tasks that never failed are not asked."""
    run = Run(5, {2: [USER], 3: [LOST]}, max_in_flight=1)
    run.seconds = 0.001
    run.run()
    again = {task for task, launch, _ in run.backend.launched if launch.attempt > 1}
    assert len(again) == 2
    # Of the first one, nobody knew how long it would take.
    assert run.backend.announced == again | {0}

    run = Run(5, max_in_flight=1)
    run.run()
    assert run.backend.announced == {task for task, *_ in run.backend.launched}, "what takes long may have to wait"

    run = Run(5, {2: [USER], 3: [LOST]}, task_timeout_s=1e6)
    run.run()
    assert run.backend.announced == {task for task, *_ in run.backend.launched}


def test_a_task_over_its_time_limit_is_cancelled_once() -> None:
    """The limit counts from its start, not from its launch; it ends as timed out, with node and pid, and runs again."""
    run = Run(3, task_timeout_s=100.0, max_in_flight=2)
    hung_s = 0.0

    def answer(in_flight: dict[int, Launch]) -> list[BackendEvent]:
        nonlocal hung_s
        if 0 not in in_flight:
            return Run.answer(run, in_flight)
        seconds = run.clock.monotonic() - run.started_s
        if not hung_s and seconds >= 500:
            hung_s = run.clock.monotonic()
            return [Started(0, "node-a", 17)]
        return []

    run.backend.answer = answer
    run.backend.end_of = lambda task: TaskFinished(task, TaskEnd.CANCELLED, "", "node-a", 17, 123)
    assert run.run() is True
    assert run.backend.cancelled_tasks == [0]
    assert run.watcher.failed_ == [(0, "timed_out", RETRY)]
    (failure,) = run.watcher.errors
    assert failure.error == "timed out: the shard took longer than task_timeout_s and was cancelled"
    assert (failure.node, failure.pid, failure.peak_bytes) == ("node-a", 17, 123)
    # Heard once, then silent for the limit; looked for once a second, in polls of half a second.
    assert 100.0 < run.begun_s[1][0] + run.started_s - hung_s <= 102.0
    assert run.watcher.ends == dict.fromkeys(range(3), 1)


def test_a_time_limit_strikes_the_shard_that_has_no_output() -> None:
    """Word of the shards before it may be lost with the worker."""
    run = Run(6, task_timeout_s=100.0, bundled=True, speculate=False)
    run.outputs = {0, 1, 2}
    scripted(run, [Started(0, "a", 1)], *[[]] * 210)
    run.run()
    assert run.watcher.failed_ == [(3, "timed_out", RETRY)]


@pytest.mark.parametrize(
    "end", [TaskEnd.CRASHED, TaskEnd.RAISED, TaskEnd.RETURNED, TaskEnd.OUT_OF_MEMORY, TaskEnd.CANCELLED]
)
@pytest.mark.parametrize("finished", range(17))
def test_what_a_bundle_died_of_is_found_in_few_looks(end: TaskEnd, finished: int) -> None:
    """The first of 16 without an output: halving looks at four of them, or five."""
    run = Run(16, bundled=True)
    run.outputs = set(range(finished))
    scripted(run, [TaskFinished(0, end)])
    run.run()
    assert len(run.looked) in (4, 5)
    struck = {shard for shard, *_ in run.watcher.failed_}
    assert struck == (set(range(16)) if end is TaskEnd.CANCELLED else {min(finished, 15)})


@pytest.mark.parametrize(("finished", "struck"), [(3, "crashed"), (9, "lost"), (13, "lost"), (15, "crashed")])
def test_what_was_begun_before_the_first_without_an_output_is_suspected_too(finished: int, struck: str) -> None:
    """None of several is struck, and it is said that there are several; there is one at the end of a task."""
    run, asked = Run(16, bundled=True), []

    def in_flight(launch: Launch, number: int) -> int:
        asked.append((launch.attempt, number))
        return 1 if number < 8 else 4

    run.dispatcher.in_flight = in_flight
    run.outputs = set(range(finished))
    scripted(run, [TaskFinished(0, TaskEnd.CRASHED, "gone")])
    assert run.run() is True
    assert asked == ([] if finished == 15 else [(1, finished)])
    assert run.watcher.failed_ == [(finished, struck, RETRY)]
    several = f"lost with its task, by it or by another of {min(4, 16 - finished)} shards, which run again one by one; "
    assert run.watcher.errors[0].error == (several if struck == "lost" else "") + "crashed: gone"
    assert run.watcher.ends == dict.fromkeys(range(16), 1)


def test_nobody_looks_where_there_is_nothing_to_find() -> None:
    """Not after a task of one shard, of which only one is left, or that was lost with its node."""
    run = Run(16, {7: [CRASH], 3: [LOST]})
    run.run()
    assert run.looked == []
    run = Run(16, {15: [CRASH]}, bundled=True)
    run.run()
    assert run.looked == []
    run = Run(16, {3: [LOST]}, bundled=True)
    run.run()
    assert run.looked == []


def test_where_the_store_does_not_answer_the_first_shard_is_suspected() -> None:
    """It costs a few tries more, and not the run."""
    run = Run(6, bundled=True)

    def has_output(shard: int) -> bool:
        run.looked.append(shard)
        raise StorageError("503")

    run.dispatcher.has_output = has_output
    scripted(run, [Message(0, [ShardRecord(0, 1.0)]), TaskFinished(0, TaskEnd.CRASHED, "gone")])
    assert run.run() is True
    assert run.watcher.failed_ == [(1, CRASH, RETRY)]
    assert len(run.looked) == 1
    assert run.watcher.ends == dict.fromkeys(range(6), 1)


def test_memory_is_asked_for_as_the_scheduler_says() -> None:
    """Twice the peak, at most what the largest node has; and there it is over."""
    run = Run(1, {0: [OOM, OOM, OOM]})
    run.backend.largest = 5 * GIB
    assert run.run() is True
    assert run.backend.memory == {0: None, 1: 4 * GIB, 2: 5 * GIB}
    assert [failure.peak_bytes for failure in run.watcher.errors] == [2 * GIB] * 3
    assert run.watcher.failed_ == [(0, "out_of_memory", one) for one in (RETRY, RETRY, Outcome.FAILED)]


def test_what_python_refused_to_allocate_is_asked_for_like_what_a_kill_was_about() -> None:
    """A MemoryError comes from a worker that knows its peak; twice the least there is would be no more than it had."""
    run = Run(1)
    full = ShardRecord(0, 1.0, Failure(FailureKind.OUT_OF_MEMORY, "MemoryError", peak_bytes=6 * GIB))
    scripted(run, [Message(0, [full]), TaskFinished(0, TaskEnd.RETURNED)])
    assert run.run() is True
    assert run.backend.memory == {0: None, 1: 12 * GIB}


def test_slots_and_memory_are_told_when_they_change() -> None:
    """And only then: it is asked many times a second."""
    run = Run(200)
    told: list[SlotsChanged] = []
    handle = run.scheduler.handle

    def note(event: Event, now_s: float) -> list[Action]:
        if isinstance(event, SlotsChanged):
            told.append(event)
        return handle(event, now_s)

    def on_tick(ticks: int) -> None:
        now = (run.backend.slots_now, run.backend.largest)
        run.backend.slots_now, run.backend.largest = {3: (20, None), 6: (0, GIB), 9: (0, 2 * GIB)}.get(ticks, now)

    run.scheduler.handle = note  # type: ignore[method-assign]
    run.watcher.on_tick = on_tick
    run.watcher.slots = None
    run.run()
    assert told == [SlotsChanged(4), SlotsChanged(20), SlotsChanged(0, GIB), SlotsChanged(0, 2 * GIB)]
    assert run.backend.most_in_flight == 40


def test_the_slower_of_two_copies_is_cancelled_and_no_failure() -> None:
    """A straggler's copy is told as what it is; who loses is ended by force, and the run does not wait for that."""
    run = Run(12, max_in_flight=None)
    slow = 5

    def answer(in_flight: dict[int, Launch]) -> list[BackendEvent]:
        rest = {task: launch for task, launch in in_flight.items() if task != slow}
        return Run.answer(run, rest)

    run.backend.answer = answer
    assert run.run() is True
    copies = [launch for _, launch, _ in run.backend.launched if launch.copy_of is not None]
    assert [(launch.shards, launch.copy_of, launch.attempt) for launch in copies] == [((5,), slow, 2)]
    assert run.backend.cancelled_tasks == [slow]
    assert run.watcher.failed_ == []
    assert run.watcher.ends == dict.fromkeys(range(12), 1)


def test_a_copy_that_fails_is_told_as_that() -> None:
    """It is no failure of the shard, which another task runs still, and which is done in the end."""
    run = Run(12)
    slow, copies = 5, 0

    def answer(in_flight: dict[int, Launch]) -> list[BackendEvent]:
        nonlocal copies
        for task, launch in in_flight.items():
            if launch.copy_of is not None:
                copies += 1
                return [TaskFinished(task, TaskEnd.CRASHED, "SIGKILL", "node-b", 9)]
        if copies:
            return Run.answer(run, in_flight)
        return Run.answer(run, {task: launch for task, launch in in_flight.items() if task != slow})

    run.backend.answer = answer
    assert run.run() is True
    assert copies == 1
    assert run.watcher.failed_ == [(5, CRASH, Outcome.COPY_FAILED)]
    assert (run.watcher.errors[0].node, run.watcher.errors[0].pid) == ("node-b", 9)
    assert run.watcher.ends == dict.fromkeys(range(12), 1)


def test_what_user_code_asked_to_wait_for_is_passed_on() -> None:
    """In the failure of its record, seconds from when it was told."""
    run = Run(1)
    record = ShardRecord(0, 1.0, Failure(FailureKind.RETRY_LATER, "503", after_s=77.0))
    scripted(run, [Message(0, [record]), TaskFinished(0, TaskEnd.RETURNED)])
    assert run.run() is True
    assert run.begun_s[0] == [pytest.approx(77.0)]


# Any script


STEPS = st.sampled_from(
    [OK, USER, STORAGE, CORRUPT, EXISTED, CRASH, OOM, LOST, CANCELLED, RAISED, SILENT, TWICE, FAILED_TWICE]
)


@given(
    n=st.integers(1, 30),
    script=st.dictionaries(st.integers(0, 29), st.lists(STEPS, max_size=30), max_size=10),
    seed=st.integers(0, 1000),
    bundled=st.booleans(),
)
@settings(max_examples=examples(150), deadline=None)
def test_whatever_happens_in_whatever_order_every_shard_ends_once(
    n: int, script: dict[int, list[str]], seed: int, bundled: bool
) -> None:
    """Completion order, faults and bundling change neither which shards end, nor how often that is told."""
    shuffled = random.Random(seed)
    run = Run(n, script, order=lambda tasks: shuffled.randrange(len(tasks)), bundled=bundled)
    assert run.run() is True
    assert run.watcher.ends == dict.fromkeys(range(n), 1)
    assert len(run.watcher.done_) == run.scheduler.done
    assert run.scheduler.done + run.scheduler.failed == n
    assert run.backend.most_in_flight <= 16
    # A shard is given up only for what was held against it, never for its neighbours: all others are done.
    faultless = set(range(n)) - {shard for shard, steps in script.items() if set(steps) - {OK, EXISTED, TWICE}}
    assert faultless <= {shard for shard, _ in run.watcher.done_}


@given(seeds=st.tuples(st.integers(0, 1000), st.integers(0, 1000)))
@settings(max_examples=examples(30), deadline=None)
def test_completion_order_does_not_change_who_fails(seeds: tuple[int, int]) -> None:
    """The same faults give the same done and the same failed, whichever task ends first."""

    def outcome(seed: int) -> tuple[list[int], list[tuple[int, str, Outcome]], Counter[int]]:
        shuffled = random.Random(seed)
        script = {1: [USER] * 9, 4: [USER, USER], 7: [CORRUPT], 9: [CRASH, CRASH, CRASH], 11: [LOST]}
        # Without copies, which would use up steps of the script.
        run = Run(20, script, order=lambda tasks: shuffled.randrange(len(tasks)), speculate=False)
        assert run.run() is True
        return sorted(shard for shard, _ in run.watcher.done_), sorted(run.watcher.failed_), run.tried

    assert outcome(seeds[0]) == outcome(seeds[1])
