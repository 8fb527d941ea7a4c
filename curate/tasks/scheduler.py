"""Which shards run together, when, and again: a pure state machine. No Ray, no clock, no I/O.

Events come in through the methods, each with the time as a value; `next_launch` and `state` say what to do. The same
object is driven by the dispatcher and by tests that have no cluster.

State, all of it:

    cursor      rank in `todo` of the next shard that was never launched
    ready       shards to launch again, each bundle as it is to run: lost bundles, shards to be tried alone
    delayed     heap of (ready_at_s, shard): shards that wait out their backoff
    running     task -> its shards that have not ended yet, in order
    strikes     shard -> failed tries by kind; only shards that failed and are not done
    failed      number of shards given up on
    rate        decayed sums of cost done and seconds spent, from which bundles are sized

A shard is in exactly one of: not yet launched (at or after the cursor), ready, delayed, running, done, failed.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NewType

import numpy as np

from curate.tasks.record import FailureKind
from curate.units import KIB

TaskId = NewType("TaskId", int)

SHARD_OVERHEAD_BYTES = 256 * KIB
"""What opening an input and publishing an output cost beside the bytes, expressed as bytes: with it one rate fits tiny
and large shards alike. 1-3 ms on a local disk at 100 MB/s; object stores have higher latency and lower rates."""
RATE_DECAY = 0.98
"""Weight left to the past by each finished shard: the last ~50 decide, so a bundle follows the data as it changes."""
SHORTEST_BUNDLE_S = 0.05
"""Towards the end bundles shrink so that all slots finish together, but not below this: it hides the cost of a task
(0.5 ms), and no slot waits longer than this for the last one. Only the last few tasks of a slot are that short."""
LAUNCHES_PER_S = 1000.0
"""Tasks that a driver launches and harvests with time to spare. Many slots may not shrink bundles to where they would
wait for it."""
LARGEST_BUNDLE = 4096
"""Shards in one task, at most: its arguments stay around half a megabyte."""
LEAST_WINDOW = 16
"""Tasks in flight even with few slots, or none: pending tasks are the demand that an autoscaler sees."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules that a run may choose; the defaults are the design's."""

    target_task_s: float = 120.0
    """Seconds of work to bundle into one task."""
    max_in_flight: int | None = None
    """Tasks launched and not ended, at most; None: max(16, 2 x slots)."""
    max_failed: int | None = None
    """Stop when more shards than this have failed; None: never."""
    user_error_retries: int = 3
    """Times a shard whose `process` raised is tried again, alone."""
    storage_retries: int = 3
    """Times a shard is tried again after the store failed for longer than a call's deadline."""
    crash_limit: int = 3
    """Tries of a shard at which its worker may die before it is given up."""
    loss_limit: int = 20
    """Losses of a shard with its node before it is given up."""
    backoff_s: float = 1.0
    """Wait before the first retry of a failed shard; doubles each time."""

    def __post_init__(self) -> None:
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise ValueError(f"max_in_flight is {self.max_in_flight}; with less than 1 a run would never end")

    def limit(self, kind: FailureKind) -> int:
        """Returns how many failures of `kind` a shard survives."""
        return {
            FailureKind.USER_ERROR: self.user_error_retries,
            FailureKind.STORAGE: self.storage_retries,
            FailureKind.CORRUPT: 0,
            FailureKind.CRASHED: self.crash_limit - 1,
            FailureKind.LOST: self.loss_limit,
        }[kind]


@dataclass(frozen=True, slots=True)
class Launch:
    """Run these shards as one task."""

    task: TaskId
    shards: tuple[int, ...]
    attempt: int
    """1 for shards that were never launched; the outputs of later attempts may exist already."""


class SchedulerState(StrEnum):
    """Where the whole run stands."""

    ACTIVE = "active"
    STOPPING = "stopping"
    """Nothing new is launched; running tasks may end."""
    ABORTED = "aborted"
    """Too many shards failed; running tasks are to be cancelled."""
    FINISHED = "finished"


@dataclass(slots=True)
class Scheduler:
    """Feeds bundles of `todo` to slots until every shard is done or given up.

    `todo` are shard ranks in plan order and `sizes` their bytes; both are only read, and may be arrays.
    """

    todo: Sequence[int]
    sizes: Sequence[int]
    policy: Policy = field(default_factory=Policy)
    done: int = 0
    failed: int = 0
    launched: int = 0
    """Tasks launched so far."""
    attempts: int = 0
    """Attempts at shards so far that ended one way or the other."""
    _cursor: int = 0
    _next_task: int = 0
    _stopping: bool = False
    _ends: Any = None
    """Cost of the shards of `todo` up to and with each, a NumPy array: finds the end of a bundle without a loop."""
    _cost_seen: float = 0.0
    _seconds_seen: float = 0.0
    _ready: deque[tuple[int, ...]] = field(default_factory=deque)
    _delayed: list[tuple[float, int]] = field(default_factory=list)
    _running: dict[TaskId, dict[int, None]] = field(default_factory=dict)
    _strikes: dict[int, Counter[FailureKind]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ends = np.cumsum(np.asarray(self.sizes, dtype=np.float64) + SHARD_OVERHEAD_BYTES)

    # What is to be done

    @property
    def state(self) -> SchedulerState:
        """Returns where the run stands after the events so far."""
        if self.policy.max_failed is not None and self.failed > self.policy.max_failed:
            return SchedulerState.ABORTED
        if self._running:
            return SchedulerState.STOPPING if self._stopping else SchedulerState.ACTIVE
        if self._stopping or not self.unfinished:
            return SchedulerState.FINISHED
        return SchedulerState.ACTIVE

    @property
    def unfinished(self) -> int:
        """Shards neither done nor given up."""
        return len(self.todo) - self.done - self.failed

    @property
    def running_tasks(self) -> int:
        """Tasks launched and not ended."""
        return len(self._running)

    @property
    def running_shards(self) -> int:
        """Shards of launched tasks that have not ended yet."""
        return sum(len(shards) for shards in self._running.values())

    def next_launch(self, now_s: float, slots: int) -> Launch | None:
        """Returns the next task to launch, or None while the window is full or nothing is ready."""
        if self.state is not SchedulerState.ACTIVE:
            return None
        # Before the look at the window: what is due no longer has a time for which a caller could wait.
        while self._delayed and self._delayed[0][0] <= now_s:
            self._ready.append((heapq.heappop(self._delayed)[1],))
        if len(self._running) >= self.window(slots):
            return None
        if self._ready:
            shards = self._ready.popleft()
            # A shard that was launched, even without a strike against it, may have its output.
            attempt = max(2, 1 + max(sum(self._strikes.get(shard, Counter()).values()) for shard in shards))
        elif self._cursor < len(self.todo):
            shards, attempt = self._bundle(slots), 1
        else:
            return None
        task = TaskId(self._next_task)
        self._next_task += 1
        self.launched += 1
        self._running[task] = dict.fromkeys(shards)
        return Launch(task, shards, attempt)

    def window(self, slots: int) -> int:
        """Returns how many tasks may be in flight on `slots` slots."""
        if self.policy.max_in_flight is not None:
            return self.policy.max_in_flight
        return max(LEAST_WINDOW, 2 * slots)

    def next_event_s(self) -> float | None:
        """Returns the time at which a delayed shard becomes ready, None if none waits or none will be launched."""
        return self._delayed[0][0] if self._delayed and not self._stopping else None

    def _bundle(self, slots: int) -> tuple[int, ...]:
        start, stop = self._cursor, self._cursor + 1
        if self._seconds_seen > 0:
            rate = self._cost_seen / self._seconds_seen
            before = float(self._ends[start - 1]) if start else 0.0
            share_s = (float(self._ends[-1]) - before) / rate / (2 * max(slots, 1))
            shortest_s = max(SHORTEST_BUNDLE_S, slots / LAUNCHES_PER_S)
            budget = rate * min(self.policy.target_task_s, max(share_s, shortest_s))
            fitting = int(self._ends.searchsorted(before + budget, side="right"))
            stop = max(stop, min(fitting, start + LARGEST_BUNDLE))
        self._cursor = stop
        return tuple(int(shard) for shard in self.todo[start:stop])

    # What happened

    def shard_done(self, task: TaskId, shard: int, size_bytes: int, seconds: float, *, computed: bool) -> bool:
        """Books a shard as done; returns False if that task was not (or no longer) running it.

        With `computed` false its output existed already, which says nothing about the rate.
        """
        if not self._end(task, shard):
            return False
        self.done += 1
        self._strikes.pop(shard, None)
        if computed:
            self._cost_seen = self._cost_seen * RATE_DECAY + size_bytes + SHARD_OVERHEAD_BYTES
            self._seconds_seen = self._seconds_seen * RATE_DECAY + max(seconds, 1e-6)
        return True

    def shard_failed(self, task: TaskId, shard: int, kind: FailureKind, now_s: float) -> bool | None:
        """Books a failed try of one shard; returns whether it was given up (else it runs again, alone).

        None if that task was not (or no longer) running it: nothing is booked.
        """
        return self._strike(shard, kind, now_s) if self._end(task, shard) else None

    def unreported(self, task: TaskId) -> int:
        """Returns how many shards of a task have not ended yet."""
        return len(self._running.get(task, ()))

    def task_ended(self, task: TaskId, now_s: float, kind: FailureKind | None = None) -> tuple[tuple[int, bool], ...]:
        """Books the end of a task; `kind` says why, if it did not get to its last shard.

        Lost with its node: every shard that had not ended is queued again, in two halves if any was lost before.
        Crashed: the first of them is suspected and runs alone, the others are bundled anew, in two halves. Returns the
        shards that this counts against, each with whether it was given up.
        """
        left = list(self._running.pop(task, ()))
        if not left:
            return ()
        if kind is None:
            raise ValueError(f"task {task} ended well, but {len(left)} of its shards did not report (first: {left[0]})")
        self.attempts += len(left)
        if kind is FailureKind.LOST:
            struck = tuple((shard, self._strike(shard, kind, now_s, queue=False)) for shard in left)
            again = [shard for shard, given_up in struck if not given_up]
            if any(self._strikes[shard][kind] > 1 for shard in again):
                # Too long for the nodes it gets, or with a shard in it that takes them down: no other shares its end.
                self._queue_halves(again)
            elif again:
                self._ready.append(tuple(again))
            return struck
        suspect, *others = left
        # Small shards end faster than word of them arrives, so that the culprit may be any of hundreds. Halves find it
        # in a handful of crashes; the whole rest together would crash once for every shard before it.
        self._queue_halves(others)
        return ((suspect, self._strike(suspect, kind, now_s)),)

    def _queue_halves(self, shards: list[int]) -> None:
        middle = (len(shards) + 1) // 2
        self._ready.extend(tuple(half) for half in (shards[:middle], shards[middle:]) if half)

    def stop(self) -> None:
        """Launches nothing from now on."""
        self._stopping = True

    def _end(self, task: TaskId, shard: int) -> bool:
        shards = self._running.get(task)
        if shards is None or shard not in shards:
            return False
        del shards[shard]
        self.attempts += 1
        return True

    def _strike(self, shard: int, kind: FailureKind, now_s: float, *, queue: bool = True) -> bool:
        strikes = self._strikes.setdefault(shard, Counter())
        strikes[kind] += 1
        if strikes[kind] > self.policy.limit(kind):
            self.failed += 1
            del self._strikes[shard]
            return True
        if queue:
            delay_s = self.policy.backoff_s * 2 ** (strikes[kind] - 1)
            heapq.heappush(self._delayed, (now_s + delay_s, shard))
        return False


def max_failed_shards(text: str, total: int) -> int:
    """Returns how many failed shards of `total` the option value `text` (`N` or `P%`) tolerates.

    >>> max_failed_shards("3", 1000), max_failed_shards("1%", 1000)
    (3, 10)
    """
    from curate.errors import ConfigError
    from curate.units import parse_percent

    if text.strip().endswith("%"):
        return math.floor(parse_percent(text) * total)
    try:
        count = int(text)
    except ValueError:
        count = -1
    if count < 0:
        raise ConfigError(f"--max-failed-shards {text!r} is neither a number of shards nor a percentage like 1%")
    return count
