"""Detects a setup that fails or hangs in all workers, whatever their shards.

Until one worker is ready, each task reports its start and the end of its setup. So a worker that died or hangs between
the two did so in the setup.
"""

from __future__ import annotations

from curate.clock import Clock
from curate.dataclass import dataclass, replace
from curate.errors import SetupFailed
from curate.runtime.protocol import TaskEnd, TaskFinished
from curate.units import format_duration

PATIENCE_S = 600.0
"""How long a worker may take to be set up, where a job does not say how long a shard may take."""
MOST_DEATHS = 3
"""Workers that may die while they are set up, before any was ready."""
ENDED = "setup() ended the worker process"


@dataclass(frozen=True, slots=True)
class SetUp:
    """Word of a worker: it is set up; or why none will ever be."""

    problem: str = ""


class SetupWatch:
    """What is known of the workers of a run. Raises SetupFailed when it is known that none will be ready."""

    def __init__(self, clock: Clock, task_timeout_s: float | None = None, *, done: bool = False) -> None:
        self.done = done
        """Whether one was ready. From then on nothing is watched."""
        self._clock = clock
        self._patience_s = task_timeout_s or PATIENCE_S
        self._begun: dict[int, tuple[float, str]] = {}
        """Tasks whose workers are being set up: since when, and where."""
        self._deaths = 0

    def started(self, task: int, where: str) -> None:
        """A task has begun, in a worker that may have to be set up."""
        if not self.done:
            self._begun[task] = self._clock.monotonic(), where

    def told(self, word: SetUp) -> None:
        """A worker said how it went."""
        if word.problem:
            raise SetupFailed(word.problem)
        self.done = True
        self._begun.clear()

    def ended(self, task: int, end: TaskFinished) -> TaskFinished:
        """A task is over; returns how it ended, as it is to be told."""
        if self._begun.pop(task, None) is None or end.end is not TaskEnd.CRASHED:
            return end
        self._deaths += 1
        if self._deaths >= MOST_DEATHS:
            raise SetupFailed(f"{ENDED}, {self._deaths} times in a row, before any was ready: {end.detail}")
        return replace(end, detail=f"{ENDED}\n{end.detail}")

    def look(self) -> None:
        """Sees whether one takes too long."""
        now_s = self._clock.monotonic()
        for since_s, where in self._begun.values():
            if now_s - since_s >= self._patience_s:
                raise SetupFailed(f"setup() did not return within {format_duration(self._patience_s)} {where}")
