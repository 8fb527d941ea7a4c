"""Feeds the scheduler from a backend, carries out its actions and notifies an observer.

One loop, one thread. All it keeps is what is in flight; nothing of what is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from curate.clock import Clock, SystemClock
from curate.dataclass import dataclass, field, replace
from curate.errors import StorageError
from curate.log import get_logger
from curate.runtime.protocol import Backend, BackendEvent, Message, Started, TaskEnd, TaskFinished
from curate.tasks.events import (
    AskMemory,
    Cancel,
    Event,
    Finish,
    Launch,
    Outcome,
    Record,
    SchedulerState,
    ShardDone,
    ShardFailed,
    ShardWaiting,
    SlotsChanged,
    Stop,
    TaskEnded,
    TaskStarted,
    Tick,
)
from curate.tasks.failure import Failure, FailureKind, ShardProgress, ShardRecord, ShardWaits
from curate.tasks.scheduler import Scheduler
from curate.tasks.setup import SetUp, SetupWatch
from curate.tasks.task_end import failure_of_end, kind_of_end
from curate.units import format_bytes

POLL_S = 0.5
"""Longest wait for news: signals and deadlines are looked at this often."""
GRACE_S = 30.0
"""How long running tasks may go on after the first interrupt."""
LONG_S = 0.25
"""What a shard that takes longer says at once, costs nothing beside it."""


class Observer(Protocol):
    """Who wants to know what happens to shards."""

    def done(self, launch: Launch, record: ShardRecord) -> None:
        """A shard's output exists."""

    def failed(self, launch: Launch, record: ShardRecord, outcome: Outcome) -> None:
        """A try of a shard failed; `outcome` says what becomes of the shard."""

    def waits(self, launch: Launch, word: ShardWaits) -> None:
        """A shard waits, within its task, for what is not there now; or it no longer does."""

    def moves(self, word: ShardProgress) -> None:
        """A shard that takes long says how far it is."""

    def begun(self, launch: Launch, node: str, pid: int) -> None:
        """A task has begun, in a process of a node; told of those that take long."""

    def tick(self, slots: int) -> None:
        """Called after every harvest, and at least every half second (after every shard, inline)."""


@dataclass(slots=True)
class Interrupts:
    """How often the user asked to stop; written by signal handlers, read by the loop."""

    interrupts: int = 0
    """SIGINTs so far: one lets running tasks end, the second cancels them."""
    terminated: bool = False
    """SIGTERM: leave at once, after writing down what is known."""

    @property
    def came(self) -> bool:
        """Whether there was any."""
        return self.terminated or self.interrupts > 0


@dataclass(slots=True)
class Dispatcher:
    """Runs a scheduler's shards on a backend until it has finished, aborted, or was interrupted."""

    scheduler: Scheduler
    backend: Backend
    payload: Callable[[Launch], Any]
    """Makes what the program gets for a launch."""
    size_of: Callable[[int], int]
    """Returns a shard's bytes."""
    has_output: Callable[[int], bool]
    """Returns whether a shard's output exists now. Asked only after a task of several shards has died."""
    observer: Observer
    clock: Clock
    interrupts: Interrupts = field(default_factory=Interrupts)
    setup: SetupWatch = field(default_factory=lambda: SetupWatch(SystemClock(), done=True))
    """Hears of workers that are set up; then payloads make them say so, until one has."""
    in_flight: Callable[[Launch, int], int] = lambda *_: 1
    """Returns how many shards of a task, from its shard `number` on, are begun before that one's output is there."""
    others: Callable[[], Sequence[Event]] = lambda: ()
    """Returns what other drivers have done, and what to help them with."""
    _launches: dict[int, Launch] = field(default_factory=dict)
    _slots: SlotsChanged | None = None
    """What the scheduler was last told of the cluster."""
    _grace_until_s: float | None = None
    _finished: SchedulerState | None = None
    _told_futile: bool = False
    """Whether it was said why the run stops."""
    _long: bool = True
    """Whether the last shard that ended took long; so may the first ones."""

    def run(self) -> bool:
        """Returns True when nothing is left to run, False if it was interrupted or aborted before."""
        while True:
            # First, because an interrupt may be what finishes a run of which nothing is in flight.
            out_of_patience = self._out_of_patience()
            self._look_at_slots()
            if self._finished is SchedulerState.FINISHED:
                return self.scheduler.unfinished == 0
            if self._finished is SchedulerState.ABORTED or out_of_patience:
                self.backend.cancel()
                return False
            for news in self.backend.poll(self._timeout_s()):
                self._hear(news)
            self.setup.look()
            for event in self.others():
                self._handle(event)
            # Only where it is looked at: it may read files.
            looks = self.scheduler.looks(self.clock.monotonic())
            self._handle(Tick(self.backend.held_up(), self.backend.crowded_out()) if looks else Tick())
            self.observer.tick(self.scheduler.slots)

    @property
    def _leaving(self) -> bool:
        return self.interrupts.terminated or self.interrupts.interrupts > 1

    def _out_of_patience(self) -> bool:
        if self._leaving:
            return True
        if self.interrupts.interrupts == 1:
            if self._grace_until_s is None:
                self._grace_until_s = self.clock.monotonic() + GRACE_S
                self._handle(Stop())
            return self.clock.monotonic() >= self._grace_until_s
        return False

    def _look_at_slots(self) -> None:
        told = SlotsChanged(self.backend.slots(), self.backend.largest_memory(), self.backend.slot_memory())
        if told != self._slots:
            self._slots = told
            self._handle(told)

    def _timeout_s(self) -> float:
        """Waits for the next backoff here when nothing runs: then the backend has nothing to wait for."""
        due_s = self.scheduler.next_event_s()
        wait_s = POLL_S if due_s is None else min(POLL_S, max(0.0, due_s - self.clock.monotonic()))
        if not self.scheduler.running_tasks:
            self.clock.sleep(wait_s)
            return 0.0
        return wait_s

    # What the backend tells

    def _hear(self, news: BackendEvent) -> None:
        launch = self._launches.get(news.task)
        if launch is None:
            # A task that others launched on this backend before, such as a probe that was interrupted.
            return
        if isinstance(news, Message):
            for record in news.items:
                if isinstance(record, ShardWaits):
                    self._handle(ShardWaiting(launch.task, record.index, record.wait_s > 0))
                    self.observer.waits(launch, record)
                elif isinstance(record, ShardProgress):
                    # No event: whoever hangs in its last batch is not less late for it.
                    self.observer.moves(record)
                elif isinstance(record, SetUp):
                    self.setup.told(record)
                else:
                    self._shard_ended(launch, record)
        elif isinstance(news, Started):
            self.setup.started(launch.task, f"in process {news.pid} on {news.node}")
            self._handle(TaskStarted(launch.task))
            self.observer.begun(launch, news.node, news.pid)
        elif isinstance(news, TaskFinished):
            self._task_ended(launch, news)

    def _shard_ended(self, launch: Launch, record: ShardRecord) -> None:
        failure = record.failure
        event: Event
        if failure is None:
            size = self.size_of(record.index)
            computed = not record.existed
            event = ShardDone(launch.task, record.index, size, record.seconds, computed, record.held_bytes)
        else:
            event = ShardFailed(
                launch.task,
                record.index,
                failure.kind,
                failure.after_s,
                failure.peak_bytes,
                failure.tries,
                failure.refused,
            )
        self._long = record.seconds >= LONG_S
        self._handle(event, lambda _: record)

    def _task_ended(self, launch: Launch, news: TaskFinished) -> None:
        news = self.setup.ended(launch.task, news)
        left = self.scheduler.unreported(launch.task)
        kind = kind_of_end(news.end) if left else None
        # A node that is lost is nobody's fault, and there may be many of them; nor is a cluster without room.
        suspect = None if news.end in (TaskEnd.LOST, TaskEnd.UNSERVED) else self._first_without_output(left)
        suspects = 1
        if suspect is not None and kind is not FailureKind.LOST and suspect != left[-1]:
            begun = self.in_flight(launch, launch.shards.index(suspect))
            suspects = min(begun, len(left) - left.index(suspect))

        def record_of(one: Record) -> ShardRecord:
            assert one.kind is not None
            return ShardRecord(one.shard, 0.0, failure_of_end(news, one.kind, suspects))

        self._handle(TaskEnded(launch.task, kind, suspect, suspects, news.peak_bytes), record_of)
        del self._launches[launch.task]

    def _first_without_output(self, shards: Sequence[int]) -> int | None:
        """Returns the shard that a task died of: it runs them in order. None where there is nothing to find out."""
        if len(shards) < 2:
            return None
        low, high = 0, len(shards)
        try:
            while low < high:
                middle = (low + high) // 2
                if self.has_output(shards[middle]):
                    low = middle + 1
                else:
                    high = middle
        except StorageError:
            return None  # the first one is suspected instead, which costs a few tries more
        return shards[min(low, len(shards) - 1)]

    # What the scheduler says

    def _handle(self, event: Event, record_of: Callable[[Record], ShardRecord] | None = None) -> None:
        """Carries out what is to be done about an event; `record_of` returns what is told of a shard that it ended."""
        for action in self.scheduler.handle(event, self.clock.monotonic()):
            if isinstance(action, Launch):
                if self._leaving:
                    # Of thousands that a large cluster gets at once, each would take a moment.
                    continue
                self._launches[action.task] = action
                # Where it runs is of interest once something went wrong, and a time limit counts from its start. What
                # takes long may have to wait for something, and says so.
                limited = self.scheduler.policy.task_timeout_s is not None
                announce = action.attempt > 1 or limited or self._long or not self.setup.done
                self.backend.launch(
                    action.task,
                    self.payload(action),
                    len(action.shards),
                    memory=action.memory,
                    announce=announce,
                    fresh=action.fresh,
                )
            elif isinstance(action, Cancel):
                self.backend.cancel(action.task)
            elif isinstance(action, AskMemory):
                _tell_memory(action)
            elif isinstance(action, Finish):
                self._finished = action.state
            else:
                assert record_of is not None
                launch, record = self._launches[action.task], record_of(action)
                if action.outcome is Outcome.RETRY and record.failure is not None:
                    failure = replace(record.failure, tries=action.tries, wait_s=action.wait_s)
                    record = replace(record, failure=failure)
                if action.outcome is Outcome.DONE:
                    self.observer.done(launch, record)
                else:
                    self.observer.failed(launch, record, action.outcome)
                if self.scheduler.futile and not self._told_futile and record.failure is not None:
                    self._told_futile = True
                    _tell_refused(self.scheduler, record.failure)


def _tell_refused(scheduler: Scheduler, failure: Failure) -> None:
    if not (scheduler.refused or scheduler.unserved):
        return  # of a full disk, who knows what is left to write tells more
    get_logger().error(
        f"{scheduler.futile}, so it stops",
        refused=failure.error,
        kept=f"all that is done, {scheduler.done:,} of the {scheduler.total:,} shards that this run began with",
        next="do what the error says, then run this again; it resumes",
    )


def _tell_memory(what: AskMemory) -> None:
    if what.memory is None:
        get_logger().info("tasks ask for no more memory than was declared: what they hold fits again")
        return
    get_logger().info(
        "tasks hold more memory than a slot has, so fewer run at once",
        each=format_bytes(what.memory),
        at_once=what.at_once,
    )
