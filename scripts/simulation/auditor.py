"""Audits the scheduler: a second implementation of its contract, compared at every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from curate.tasks.events import (
    Cancel,
    Event,
    Finish,
    Launch,
    Outcome,
    Record,
    SchedulerState,
    ShardDone,
    ShardFailed,
    SlotsChanged,
    TaskEnded,
)
from curate.tasks.failure import FailureKind
from curate.tasks.policy import Policy
from curate.tasks.scheduler import Scheduler
from curate.units import GIB

NODE_MEMORY = 64 * GIB
"""Bytes of the largest node, and of every other one."""
BUDGETS = {
    FailureKind.THROTTLED: 20,
    FailureKind.STORAGE: 3,
    FailureKind.LOST: 20,
    FailureKind.UNSERVED: 20,
    FailureKind.CRASHED: 2,
    FailureKind.OUT_OF_MEMORY: 2,
    FailureKind.TIMED_OUT: 2,
    FailureKind.USER_ERROR: 3,
    FailureKind.RETRY_LATER: 20,
    FailureKind.CORRUPT: 0,
    FailureKind.FOREIGN: 5,
    FailureKind.MISCONFIGURED: 0,
}
"""Failures by kind that a shard survives: the table of the design, written down a second time to be compared."""
OPEN, DONE, FAILED = range(3)


class Broken(Exception):
    """A rule does not hold: a defect of the scheduler, or of the simulator."""


class Auditor:
    """Knows from the contract what the scheduler has to do, and compares. Constant work for each shard told of."""

    def __init__(self, shards: int, policy: Policy) -> None:
        self.policy = policy
        self.steps = 0
        self.launches = 0
        self.retries: Counter[FailureKind] = Counter()
        self.given_up: Counter[FailureKind] = Counter()
        self.copies = self.parts = 0
        self.ended = bytearray(shards)
        self.begin([])

    def begin(self, todo: Iterable[int]) -> None:
        """A scheduler starts from nothing with these shards."""
        self.held = bytearray(len(self.ended))
        """Tasks in flight that have a shard."""
        self.total = self.waiting = 0
        self.done = self.failed = 0
        # What has an output is done, whoever published it.
        self.ended = bytearray([DONE]) * len(self.ended)
        for shard in todo:
            self.ended[shard] = OPEN
            self.waiting += 1
        self.total = self.waiting
        self.left: dict[int, dict[int, None]] = {}
        """Tasks in flight, each with its shards that it has not told of."""
        self.cancelled: dict[int, FailureKind] = {}
        """Tasks that are cancelled, and what it means for the shard at hand."""
        self.slots = 0
        self.newest = -1
        self.strikes: dict[int, Counter[FailureKind]] = {}
        self.memory: dict[int, int] = {}
        """What a shard was given at its last launch, in bytes."""
        self.least_memory: dict[int, int] = {}
        """What a shard has to be given after its node ran out of memory."""
        self.not_before_s: dict[int, float] = {}
        self.after_s, self.peak_bytes = 0.0, 0
        """How long the shard of the event at hand asked to wait, and the memory that its task held."""
        self.finished = False

    @property
    def window(self) -> int:
        """Tasks that may be in flight."""
        return self.policy.max_in_flight or max(16, 2 * self.slots)

    def check(self, scheduler: Scheduler, event: Event, actions: Sequence[Any], now_s: float) -> None:
        """Raises Broken unless `actions` are what the event asks for, and the scheduler's books are right."""
        self.steps += 1
        if self.finished:
            raise Broken(f"{event} was answered after the end: {actions}")
        records = self._expected(event)
        for action in actions:
            if self.finished:
                raise Broken(f"{action} follows Finish")
            if isinstance(action, Record):
                self._record(action, records, now_s)
            elif isinstance(action, Launch):
                self._launch(action, now_s)
            elif isinstance(action, Cancel):
                if action.task not in self.left or action.task in self.cancelled:
                    raise Broken(f"cancels task {action.task}, which is not in flight or was cancelled before")
                self.cancelled[action.task] = FailureKind.TIMED_OUT
            else:
                self._finish(action)
        if records:
            raise Broken(f"{event} was not booked for {records}")
        if (scheduler.done, scheduler.failed) != (self.done, self.failed):
            raise Broken(f"counts {scheduler.done} done, {scheduler.failed} failed; {self.done}, {self.failed} were")
        if scheduler.running_tasks != len(self.left):
            raise Broken(f"counts {scheduler.running_tasks} tasks in flight, there are {len(self.left)}")
        if (
            self.waiting
            and len(self.left) < self.window
            and scheduler.next_event_s() is None
            and scheduler.state is SchedulerState.ACTIVE
        ):
            raise Broken(f"{self.waiting} shards are lost: not in flight, not waiting for a time, and there is room")

    def _expected(self, event: Event) -> dict[int, tuple[Outcome | None, FailureKind | None]]:
        """Returns what is to be booked of each shard; an outcome None is retry or failure, as the budget says."""
        self.after_s, self.peak_bytes = 0.0, 0
        if isinstance(event, ShardDone):
            fresh = self._let_go(event.task, event.shard)
            return {event.shard: (Outcome.DONE, None)} if fresh else {}
        if isinstance(event, ShardFailed):
            fresh = self._let_go(event.task, event.shard)
            self.after_s = event.after_s
            return {event.shard: self._struck(event.shard, event.kind)} if fresh else {}
        if isinstance(event, TaskEnded):
            all_left = self.left.pop(event.task)
            left = [shard for shard in all_left if self.ended[shard] == OPEN]
            for shard in all_left:
                self.held[shard] -= 1
                self.waiting += self.ended[shard] == OPEN and not self.held[shard]
            why = self.cancelled.pop(event.task, event.kind)
            if not left:
                return {}
            assert why is not None
            self.peak_bytes = event.peak_bytes
            suspect = event.suspect if event.suspect in left else left[0]
            at = left.index(suspect)
            if why is not FailureKind.LOST and suspect == event.suspect and left[at + 1 : at + event.suspects]:
                # It died of one of several, which run again to say which: this time counts against none of them.
                self.peak_bytes = 0
                return {suspect: self._struck(suspect, FailureKind.LOST)}
            blamed = left if why is FailureKind.LOST else [suspect]
            return {shard: self._struck(shard, why) for shard in blamed}
        if isinstance(event, SlotsChanged):
            self.slots = event.slots
        return {}

    def _let_go(self, task: int, shard: int) -> bool:
        """A task no longer has a shard; returns whether that is news, because no copy has done it before."""
        if shard not in self.left[task]:
            # It was given to another task, which this one was not told of in time.
            return False
        del self.left[task][shard]
        if task in self.cancelled:
            # What took too long has ended after all: it is another shard that is cut off now.
            self.cancelled[task] = FailureKind.LOST
        self.held[shard] -= 1
        if self.ended[shard] != OPEN:
            return False
        self.waiting += not self.held[shard]
        return True

    def _struck(self, shard: int, kind: FailureKind) -> tuple[Outcome | None, FailureKind]:
        return Outcome.COPY_FAILED if self.held[shard] else None, kind

    def _record(self, action: Record, records: dict[int, Any], now_s: float) -> None:
        if action.shard not in records:
            raise Broken(f"{action} has no cause")
        outcome, kind = records.pop(action.shard)
        if outcome is None:
            outcome = self._judge(action.shard, kind, now_s)
        if (outcome, kind) != (action.outcome, action.kind):
            raise Broken(f"{action}, expected {outcome} of {kind}")
        if outcome in (Outcome.DONE, Outcome.FAILED):
            if self.ended[action.shard] != OPEN:
                raise Broken(f"shard {action.shard} is booked twice")
            self.ended[action.shard] = DONE if outcome is Outcome.DONE else FAILED
            self.done += outcome is Outcome.DONE
            self.failed += outcome is Outcome.FAILED
            # Of what a copy did, the straggler lets go when it ends.
            self.waiting -= not self.held[action.shard]
            self.strikes.pop(action.shard, None)
            self.memory.pop(action.shard, None)
            self.least_memory.pop(action.shard, None)
            self.not_before_s.pop(action.shard, None)

    def _judge(self, shard: int, kind: FailureKind, now_s: float) -> Outcome:
        strikes = self.strikes.setdefault(shard, Counter())
        strikes[kind] += 1
        hopeless = kind is FailureKind.OUT_OF_MEMORY and self.memory.get(shard, 0) >= NODE_MEMORY
        if hopeless or strikes[kind] > BUDGETS[kind]:
            self.given_up[kind] += 1
            return Outcome.FAILED
        self.retries[kind] += 1
        if kind is FailureKind.OUT_OF_MEMORY:
            had = max(self.memory.get(shard, 0), self.peak_bytes, GIB)
            self.least_memory[shard] = min(2 * had, NODE_MEMORY)
        backoff_s = self.policy.backoff_s * 2 ** (strikes[kind] - 1) if kind is FailureKind.USER_ERROR else 0.0
        self.not_before_s[shard] = now_s + max(backoff_s, self.after_s)
        return Outcome.RETRY

    def _launch(self, action: Launch, now_s: float) -> None:
        self.launches += 1
        self.copies += action.copy_of is not None
        self.parts += action.part_of is not None
        if action.task <= self.newest:
            raise Broken(f"{action}: the task's number is not new")
        self.newest = action.task
        if len(self.left) >= self.window:
            raise Broken(f"{action}: {len(self.left)} tasks are in flight, the window holds {self.window}")
        if not action.shards:
            raise Broken(f"{action} has no shards")
        for shard in action.shards:
            if self.ended[shard] != OPEN:
                raise Broken(f"{action}: shard {shard} has ended")
            if action.part_of is not None:
                self._hand_over(action, shard)
            if self.held[shard] != (action.copy_of is not None):
                raise Broken(f"{action}: {self.held[shard]} tasks in flight have shard {shard}")
            if action.copy_of is not None and shard not in self.left[action.copy_of]:
                raise Broken(f"{action}: that task does not have shard {shard}")
            if self.not_before_s.get(shard, now_s) > now_s + 1e-6:
                raise Broken(f"{action}: shard {shard} has to wait until {self.not_before_s[shard]:.3f} s")
            if (action.memory or 0) < self.least_memory.get(shard, 0):
                raise Broken(f"{action}: shard {shard} needs {self.least_memory[shard]} bytes")
            self.held[shard] += 1
            self.waiting -= action.copy_of is None
            if action.memory is not None:
                self.memory[shard] = action.memory
        errors = (self.strikes.get(shard, Counter())[FailureKind.USER_ERROR] for shard in action.shards)
        if action.last != all(count == BUDGETS[FailureKind.USER_ERROR] for count in errors):
            raise Broken(f"{action}: wrong about whether a user error now would be the last one")
        self.left[action.task] = dict.fromkeys(action.shards)

    def _hand_over(self, action: Launch, shard: int) -> None:
        """Takes a shard off a task in flight that another one gets: not the first that it has not told of."""
        assert action.part_of is not None
        whole = self.left.get(action.part_of, {})
        if action.part_of in self.cancelled or shard not in whole or shard == next(iter(whole)):
            raise Broken(f"{action}: that task cannot give shard {shard} away")
        del whole[shard]
        self.held[shard] -= 1
        self.waiting += 1

    def _finish(self, action: Finish) -> None:
        self.finished = True
        wanted = any(self.ended[shard] == OPEN for left in self.left.values() for shard in left)
        if action.state is not SchedulerState.FINISHED or wanted or self.done + self.failed != self.total:
            raise Broken(
                f"{action} with {len(self.left)} tasks in flight, {self.done} done and {self.failed} failed "
                f"of {self.total} shards"
            )
