"""A scheduler with everything that it says written down."""

from __future__ import annotations

from collections.abc import Sequence

from curate.tasks.events import (
    Action,
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
    SlotsChanged,
    TaskEnded,
    TaskId,
    TaskStarted,
    Tick,
)
from curate.tasks.failure import FailureKind
from curate.tasks.policy import Policy
from curate.tasks.scheduler import SHARD_OVERHEAD_BYTES, SHORTEST_BUNDLE_S, Scheduler
from curate.units import MIB


class Driven:
    """Feeds a scheduler one event at a time. Time stands still unless a test moves it."""

    def __init__(self, scheduler: Scheduler, slots: int = 4, largest_memory: int | None = None) -> None:
        self.scheduler = scheduler
        self.now_s = 1000.0
        self.flying: dict[TaskId, Launch] = {}
        """Tasks launched and not ended, in launch order."""
        self.launches: list[Launch] = []
        self.records: list[Record] = []
        self.cancelled: list[TaskId] = []
        self.asked: list[AskMemory] = []
        self.finished: list[SchedulerState] = []
        self.tell(SlotsChanged(slots, largest_memory))

    def tell(self, event: Event) -> list[Launch]:
        """Hands in an event; returns the launches that it brings about."""
        actions = self.scheduler.handle(event, self.now_s)
        if isinstance(event, TaskEnded):
            self.flying.pop(event.task, None)
        for action in actions:
            self._note(action)
        return [action for action in actions if isinstance(action, Launch)]

    def _note(self, action: Action) -> None:
        assert not self.finished, f"{action} after Finish"
        if isinstance(action, Launch):
            assert action.task not in self.flying
            self.flying[action.task] = action
            self.launches.append(action)
        elif isinstance(action, Cancel):
            assert action.task in self.flying
            assert action.task not in self.cancelled, "cancelled twice"
            self.cancelled.append(action.task)
        elif isinstance(action, AskMemory):
            self.asked.append(action)
        elif isinstance(action, Finish):
            self.finished.append(action.state)
        else:
            self.records.append(action)

    def at(self, now_s: float) -> list[Launch]:
        """Lets it be `now_s`, and tells of it."""
        self.now_s = now_s
        return self.tell(Tick())

    def pass_(self, seconds: float) -> list[Launch]:
        """Lets time pass, half a second at a time as the dispatcher does."""
        end_s, launches = self.now_s + seconds, []
        while self.now_s < end_s:
            launches += self.at(min(self.now_s + 0.5, end_s))
        return launches

    def start(self, launch: Launch) -> None:
        """Says that a task has left the queue."""
        self.tell(TaskStarted(launch.task))

    def offer(self, slots: int, largest: int | None = None, share: int | None = None) -> list[Launch]:
        """Says what there is of slots and memory."""
        return self.tell(SlotsChanged(slots, largest, share))

    def done(
        self, launch: Launch, *shards: int, seconds: float = 1.0, computed: bool = True, held: int = 0
    ) -> list[Launch]:
        """Reports shards of a task as done; all of them if none is named. `held`: bytes that its process held."""
        launches = []
        for shard in shards or launch.shards:
            launches += self.tell(ShardDone(launch.task, shard, MIB, seconds, computed, held))
        return launches

    def failed(self, launch: Launch, shard: int, kind: FailureKind, after_s: float = 0.0) -> list[Launch]:
        """Reports a shard of a task as failed."""
        return self.tell(ShardFailed(launch.task, shard, kind, after_s))

    def ended(
        self,
        launch: Launch,
        kind: FailureKind | None = None,
        suspect: int | None = None,
        peak_bytes: int = 0,
        suspects: int = 1,
    ) -> list[Launch]:
        """Reports the end of a task."""
        return self.tell(TaskEnded(launch.task, kind, suspect, suspects, peak_bytes))

    def finish(self, launch: Launch, seconds: float = 1.0) -> list[Launch]:
        """Reports every shard of a task as done, and its end."""
        return self.done(launch, seconds=seconds) + self.ended(launch)

    def took(self) -> list[Record]:
        """Returns what was booked since the last call."""
        records, self.records = self.records, []
        return records


def make(n: int, *, size: int | Sequence[int] = MIB, slots: int = 4, **policy: object) -> Driven:
    """A scheduler of `n` shards, ranked from 100 on so that no rank is also a position."""
    sizes = [size] * n if isinstance(size, int) else list(size)
    return Driven(Scheduler(range(100, 100 + n), sizes, Policy(**policy)), slots)  # type: ignore[arg-type]


def bundle_of(
    n: int, *, more: int = 0, slots: int = 1, largest_memory: int | None = None, **policy: object
) -> tuple[Driven, Launch]:
    """A scheduler whose first `n` shards run as one task, and `more` after them; the pace is set as very fast."""
    policy.setdefault("target_task_s", SHORTEST_BUNDLE_S)
    scheduler = Scheduler(range(100, 100 + n + more), [MIB] * n + [0] * more, Policy(**policy))  # type: ignore[arg-type]
    # As if much had been done: so much fits into the shortest task, and into one of a target as short as that.
    scheduler._cost_seen, scheduler._seconds_seen = 1.001 * n * (MIB + SHARD_OVERHEAD_BYTES), SHORTEST_BUNDLE_S
    scheduler._cost_computed, scheduler._seconds_computed = 1000 * scheduler._cost_seen, 1000 * SHORTEST_BUNDLE_S
    driven = Driven(scheduler, slots, largest_memory)
    launch = driven.launches[0]
    assert launch.shards == tuple(range(100, 100 + n))
    return driven, launch


def said(driven: Driven) -> list[tuple[int, Outcome]]:
    """Returns shard and outcome of what was booked since the last call."""
    return [(record.shard, record.outcome) for record in driven.took()]
