"""Stand-ins for tests of curate, besides those of `curate.testing`: a backend by script, a store for a run's log."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from curate.runtime.protocol import (
    Backend,
    BackendEvent,
    LaunchOptions,
    PoolSpec,
    Program,
    TaskEnd,
    TaskFinished,
)
from curate.storage.protocol import Object, Published, Store
from curate.testing.clock import FakeClock

__all__ = ["NEVER_S", "After", "FakeBackend", "FakeClock", "FlakyStore"]

NEVER_S = 600.0
"""After how long what a test waits for is taken never to come: a bound for what hangs, and no measure of anything."""


@dataclass
class FakeBackend(Backend):
    """A backend whose polls answer what the test's `answer` says, with time passing by the clock.

    `answer` gets the tasks in flight, in launch order, as task -> payload, and returns the news of one poll. A poll
    without news takes its whole timeout. Of a task that was cancelled, the next poll tells the end.
    """

    clock: FakeClock
    answer: Callable[[dict[int, Any]], Sequence[BackendEvent]]
    slots_now: int = 4
    name: str = "fake"
    in_flight: dict[int, Any] = field(default_factory=dict)
    launched: list[tuple[int, Any, int]] = field(default_factory=list)
    """Task, payload and number of pieces of every launch."""
    polls: list[float] = field(default_factory=list)
    """Timeout of every poll."""
    most_in_flight: int = 0
    cancelled: int = 0
    """Times that everything was cancelled."""
    cancelled_tasks: list[int] = field(default_factory=list)
    largest: int | None = None
    share: int | None = None
    """Memory that each slot has of its node's."""
    memory: dict[int, int | None] = field(default_factory=dict)
    """Memory asked for by each launch."""
    fresh: set[int] = field(default_factory=set)
    """Tasks that were to run where nothing had run before."""
    announced: set[int] = field(default_factory=set)
    """Tasks whose start was to be told."""
    end_of: Callable[[int], TaskFinished] = lambda task: TaskFinished(task, TaskEnd.CANCELLED)
    """What is told of a task that was cancelled."""
    _dying: list[int] = field(default_factory=list)

    def load(self, program: Program, pools: Sequence[PoolSpec] = (), **how: Any) -> None:
        del program, pools, how

    def slots(self) -> int:
        return self.slots_now

    def largest_memory(self) -> int | None:
        return self.largest

    def slot_memory(self) -> int | None:
        return self.share

    def launch(self, task: int, payload: Any, pieces: int, **how: Unpack[LaunchOptions]) -> None:
        assert task not in self.in_flight
        if how.get("fresh"):
            self.fresh.add(task)
        if how.get("announce"):
            self.announced.add(task)
        self.launched.append((task, payload, pieces))
        self.memory[task] = how.get("memory")
        self.in_flight[task] = payload
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))

    def poll(self, timeout_s: float) -> list[BackendEvent]:
        self.polls.append(timeout_s)
        news: list[BackendEvent] = [
            self.end_of(task) for task in self._dying if self.in_flight.pop(task, None) is not None
        ]
        self._dying.clear()
        news += self.answer(self.in_flight)
        for one in news:
            if isinstance(one, TaskFinished):
                self.in_flight.pop(one.task, None)
        if not news:
            self.clock.advance(timeout_s)
        return news

    def cancel(self, task: int | None = None) -> None:
        if task is not None:
            self.cancelled_tasks.append(task)
            self._dying.append(task)
            return
        self.cancelled += 1
        self.in_flight.clear()

    def close(self) -> None:
        self.in_flight.clear()


class FlakyStore:
    """A store over another one whose next writes fail, or wait, as the test says. Remembers what was written.

    Each entry of `script` is for one write (`publish` or `replace`): None lets it through, an exception is raised
    before anything is written, `After(exception)` afterwards; a callable is called first (it may wait or raise).
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.script: deque[Any] = deque()
        self.written: list[str] = []
        """URIs of all writes that succeeded, in order."""
        self.tried: list[str] = []
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def publish(self, uri: str, data: bytes) -> Published:
        return self._write(uri, lambda: self.inner.publish(uri, data))

    def replace(self, uri: str, data: bytes) -> Object:
        return self._write(uri, lambda: self.inner.replace(uri, data))

    def _write(self, uri: str, write: Callable[[], Any]) -> Any:
        with self._lock:
            self.tried.append(uri)
            step = self.script.popleft() if self.script else None
        if isinstance(step, BaseException):
            raise step
        if callable(step):
            step()
        result = write()
        if isinstance(step, After):
            raise step.error
        self.written.append(uri)
        return result


@dataclass(frozen=True)
class After:
    """The write happens, and its answer is lost."""

    error: Exception
