"""Carries out what the scheduler decides: launches tasks, harvests them in completion order, tells an observer.

One loop, one thread. All it keeps is the scheduler's state and what is in flight; nothing of what is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from curate.clock import Clock
from curate.runtime.protocol import Backend, End, Ended, Message
from curate.tasks.record import Failure, FailureKind, ShardRecord
from curate.tasks.scheduler import Launch, Scheduler, SchedulerState

POLL_S = 0.5
"""Longest wait for news: signals and deadlines are looked at this often."""
GRACE_S = 30.0
"""How long running tasks may go on after the first interrupt."""
MAX_ERROR = 1000
MAX_DETAIL = 8000
"""Characters of what is told about a task that died: it is kept for every shard that this counts against."""


class Observer(Protocol):
    """Who wants to know what happens to shards."""

    def done(self, launch: Launch, record: ShardRecord) -> None:
        """A shard's output exists."""
        ...

    def failed(self, launch: Launch, record: ShardRecord, *, final: bool) -> None:
        """A try of a shard failed; `final` if it is not tried again."""
        ...

    def tick(self, slots: int) -> None:
        """Called after every harvest, and at least every half second (after every shard, inline)."""
        ...


@dataclass(slots=True)
class Interrupts:
    """How often the user asked to stop; written by signal handlers, read by the loop."""

    interrupts: int = 0
    """SIGINTs so far: one lets running tasks end, the second cancels them."""
    terminated: bool = False
    """SIGTERM: leave at once, after writing down what is known."""


@dataclass(slots=True)
class Dispatcher:
    """Runs a scheduler's shards on a backend until it has finished, aborted, or was interrupted."""

    scheduler: Scheduler
    backend: Backend
    payload: Callable[[Launch], Any]
    """Makes what the program gets for a launch."""
    size_of: Callable[[int], int]
    """Returns a shard's bytes."""
    observer: Observer
    clock: Clock
    interrupts: Interrupts = field(default_factory=Interrupts)
    _launches: dict[int, Launch] = field(default_factory=dict)
    _grace_until_s: float | None = None

    def run(self) -> bool:
        """Returns True when nothing is left to run, False if it was interrupted or aborted before."""
        while True:
            # First, because an interrupt may be what finishes a run of which nothing is in flight.
            out_of_patience = self._out_of_patience()
            state = self.scheduler.state
            if state is SchedulerState.FINISHED:
                return self.scheduler.unfinished == 0
            if state is SchedulerState.ABORTED or out_of_patience:
                self.backend.cancel()
                return False
            slots = self._launch()
            for news in self.backend.poll(self._timeout_s()):
                launch = self._launches.get(news.task)
                if launch is None:
                    # A task that others launched on this backend before, such as a probe that was interrupted.
                    continue
                if isinstance(news, Ended):
                    self._ended(launch, news)
                elif isinstance(news, Message):
                    for record in news.items:
                        self._record(launch, record)
            self.observer.tick(slots)

    def _out_of_patience(self) -> bool:
        if self.interrupts.terminated or self.interrupts.interrupts > 1:
            return True
        if self.interrupts.interrupts == 1:
            if self._grace_until_s is None:
                self._grace_until_s = self.clock.monotonic() + GRACE_S
                self.scheduler.stop()
            return self.clock.monotonic() >= self._grace_until_s
        return False

    def _launch(self) -> int:
        slots = self.backend.slots()
        while launch := self.scheduler.next_launch(self.clock.monotonic(), slots):
            self._launches[launch.task] = launch
            self.backend.launch(launch.task, self.payload(launch), len(launch.shards))
        return slots

    def _timeout_s(self) -> float:
        """Waits for the next backoff here when nothing runs: then the backend has nothing to wait for."""
        due_s = self.scheduler.next_event_s()
        wait_s = POLL_S if due_s is None else min(POLL_S, max(0.0, due_s - self.clock.monotonic()))
        if not self.scheduler.running_tasks:
            self.clock.sleep(wait_s)
            return 0.0
        return wait_s

    def _record(self, launch: Launch, record: ShardRecord) -> None:
        if record.failure is None:
            known = self.scheduler.shard_done(
                launch.task,
                record.index,
                self.size_of(record.index),
                record.seconds,
                computed=not record.existed,
            )
            if known:
                self.observer.done(launch, record)
            return
        final = self.scheduler.shard_failed(launch.task, record.index, record.failure.kind, self.clock.monotonic())
        if final is not None:
            self.observer.failed(launch, record, final=final)

    def _ended(self, launch: Launch, news: Ended) -> None:
        del self._launches[launch.task]
        failure = _failure(news) if self.scheduler.unreported(launch.task) else None
        struck = self.scheduler.task_ended(launch.task, self.clock.monotonic(), failure.kind if failure else None)
        for shard, given_up in struck:
            self.observer.failed(launch, ShardRecord(shard, 0.0, failure), final=given_up)


def _failure(news: Ended) -> Failure:
    """Returns what the end of a task means for those of its shards that it did not report on."""
    if news.end is End.RETURNED:
        # The backend lost a message, or the program kept one back. Tried again like a crash, and as often: the other
        # shards go on, and the run ends and says so.
        return Failure(FailureKind.CRASHED, "returned: the task ended without a word on this shard")
    kind = FailureKind.LOST if news.end in (End.LOST, End.CANCELLED) else FailureKind.CRASHED
    lines = [line.strip() for line in news.detail.splitlines() if line.strip()] or ["no detail"]
    # A traceback says what happened in its last line, a message of Ray's in its first.
    line = lines[-1] if news.end is End.RAISED else lines[0]
    return Failure(kind, f"{news.end.value}: {line}"[:MAX_ERROR], news.detail[-MAX_DETAIL:])
