"""Which shards run together, when, and again: a pure state machine. Events in, actions out; no Ray, no clock, no I/O.

`handle` takes one event and the time, and returns what is to be done about it. The dispatcher feeds it from a backend
and carries the actions out; a simulator feeds it from a virtual clock, a million tasks at a time.

A shard is in one state, and `TRANSITIONS` holds every change of it that there is:

    held      of another part             until this driver helps with it
    pending   never launched              at or after the cursor
    ready     to be launched again        in a bundle of `_ready`
    waiting   its backoff runs            on the heap `_waiting`
    running   in a launched task          in the record of that task, of two if one is a speculative copy
    done      its output exists
    failed    given up

Of what is over, one byte a shard is kept. Everything else is in the record of a running task, or counts failures of
shards that are not done.

Large shards come first and small ones last, whatever the order of the plan: what is long would hold up the end, what is
small fills the gaps. At the end slots that are idle take what a task has not begun, and what still takes too long gets
a copy. Backends need know nothing of either: a task that was shortened is cancelled when it has ended what it kept.

Long because it is one state machine: its table and everything that changes a state are read together.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np

from curate.dataclass import dataclass
from curate.tasks.events import (
    Action,
    AskMemory,
    Cancel,
    Event,
    Finish,
    Found,
    Launch,
    Outcome,
    Record,
    Released,
    SchedulerState,
    ShardDone,
    ShardFailed,
    ShardWaiting,
    SlotsChanged,
    Stop,
    TaskEnded,
    TaskId,
    TaskStarted,
    Tick,
)
from curate.tasks.failure import FailureKind, Refusal
from curate.tasks.memory import LearntMemory, more_memory, slots_with
from curate.tasks.policy import _REQUEUED_AT_ONCE, Policy
from curate.tasks.refusals import LEAST_SHARDS, Refusals
from curate.units import KIB

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
FIRST_LOOK = 64
"""Shards that are looked at first for the end of a bundle."""

STRAGGLER_FACTOR = 3.0
STRAGGLER_LEAST_S = 10.0
"""A task is a straggler when what it has done, with the shard at hand, took this many times longer than the bytes say,
and this much longer: half of what a copy does is wasted."""
PART_LEAST_S = 10.0
"""A slot that is idle takes over shards that another task has not begun if they are so much work: whose task was
shortened so is cancelled at the end of the others, and its worker has to be set up again."""
LOOK_S = 1.0
"""How often running tasks are looked through for stragglers and passed deadlines: it costs time for each of them."""
PAUSE_S = 30.0
"""A driver that did not look for so long stood still itself: it judges nobody before the news that waited is heard."""
WAY_S = 5.0
"""How long an actor gets to take the place of a task that made way, before another one does."""
FAREWELL_S = 60.0
"""How long a task may take to end after it has reported on its last shard."""

BLAMELESS = frozenset({FailureKind.LOST, FailureKind.UNSERVED})
"""Ends of a task that no shard of it is to blame for: all that it left are told of, alike."""
_FUTILE = {
    None: "the disk is full",
    Refusal.WRITE: "the store refuses outputs of this run",
    Refusal.READ: "the store refuses to let this run read its inputs",
}
"""Why the next shards would fail as the last ones did, by what was refused."""
UNSERVED = "what runs the tasks has no room for any of them, or does not answer"
_AWAITED = (FailureKind.RETRY_LATER, FailureKind.UNSERVED)
"""Kinds that say that what others need, too, is not there now."""
MOST_WAITING = 10_000
"""Shards that wait out a backoff while new ones are launched: were all of them to fail, they would fill the memory."""


class ShardState(IntEnum):
    """Where a shard is."""

    PENDING = 0
    READY = 1
    WAITING = 2
    RUNNING = 3
    DONE = 4
    FAILED = 5
    HELD = 6


class Move(StrEnum):
    """What happens to a shard."""

    RELEASE = "release"
    FIND = "find"
    LAUNCH = "launch"
    FINISH = "finish"
    REQUEUE = "requeue"
    DELAY = "delay"
    FALL_DUE = "fall due"
    GIVE_UP = "give up"


TRANSITIONS: Mapping[tuple[int, Move], ShardState] = {
    (ShardState.HELD, Move.RELEASE): ShardState.PENDING,
    # Another driver has done it.
    (ShardState.HELD, Move.FIND): ShardState.DONE,
    (ShardState.PENDING, Move.FIND): ShardState.DONE,
    (ShardState.PENDING, Move.LAUNCH): ShardState.RUNNING,
    (ShardState.READY, Move.LAUNCH): ShardState.RUNNING,
    # A speculative copy.
    (ShardState.RUNNING, Move.LAUNCH): ShardState.RUNNING,
    (ShardState.RUNNING, Move.FINISH): ShardState.DONE,
    (ShardState.RUNNING, Move.REQUEUE): ShardState.READY,
    (ShardState.RUNNING, Move.DELAY): ShardState.WAITING,
    (ShardState.RUNNING, Move.GIVE_UP): ShardState.FAILED,
    (ShardState.WAITING, Move.FALL_DUE): ShardState.READY,
}
"""All legal changes. Done and failed are final: a failure of one copy means nothing while the other one runs."""


class IllegalTransitionError(RuntimeError):
    """The scheduler was about to do what its table does not allow: a defect of the scheduler."""


@dataclass(slots=True)
class _Task:
    """All that is known of a task in flight."""

    left: dict[int, None]
    """Its shards that have not ended, in the order in which it runs them."""
    cost: float
    """Of all its shards, in bytes."""
    cost_left: float
    """Of those that have not ended."""
    launched_s: float
    memory: int | None = None
    """What it asks for, where that is not what every task asks for."""
    started_s: float | None = None
    """When it was first known to run: to be heard of, or to be launched before one that is."""
    heard_s: float | None = None
    """When it was last heard of: the shard at hand has run since then, at most."""
    held_up_s: float = 0.0
    """How long since then it has waited for an actor that worked for another task: that time is not its own."""
    twin: TaskId | None = None
    """The copy of it, or what it is a copy of, while both are in flight."""
    copied: bool = False
    """Whether it has, or had, a copy."""
    waits: bool = False
    """Whether the shard at hand waits for what is not there now."""
    elsewhere: bool = False
    """Whether it was launched to see whether the store refuses other shards, too."""
    shortened: bool = False
    """Whether its last shards were given to another task: it does not know, and would go on to them."""
    cancelled: FailureKind | None = None
    """What its cancellation means for the shards that it leaves; None: it is not being cancelled."""
    dismissed: bool = False
    """It is being cancelled, and leaves no shard: nobody waits for its end."""


class Scheduler:
    """Feeds bundles of `todo` to slots until every shard is done or given up.

    `todo` are shard ranks, each once, and `sizes` their bytes; both are only read, and may be arrays. Shards of one
    size keep their order. Those that are `held`, one boolean each, are not launched before `Released` names them.
    """

    def __init__(
        self, todo: Sequence[int], sizes: Sequence[int], policy: Policy | None = None, held: Any = None
    ) -> None:
        self.policy = policy or Policy()
        self.total = len(todo)
        self.done = 0
        self.failed = 0
        self.disk_full = False
        """Whether a shard was given up because there was no room for its output: there is none for others either."""
        self.refused: Refusal | None = None
        """What the store refuses to every shard, which stops the run."""
        self._refusals = Refusals()
        self.unserved = False
        """Whether what runs tasks serves none: the run stops."""
        self._unserved: set[int] = set()
        """Shards that it did not serve since one was computed."""
        self.launched = 0
        """Tasks launched so far."""
        self.attempts = 0
        """Tries of shards so far that ended, each of them recorded. Of a task that died, that is one, of the shard that
        it died of; of one that was lost with its node, all that it had left."""
        self.state = SchedulerState.ACTIVE
        # Of ten million shards, each number of eight bytes takes as much as their plan.
        by_size = np.argsort(-np.asarray(sizes, dtype=np.int64), kind="stable").astype(np.int32)
        ranks: Any = np.asarray(todo, dtype=np.int32)
        order: Any = ranks[by_size]
        self._costs: Any = np.zeros(int(order.max()) + 1 if self.total else 0, dtype=np.float32)
        self._costs[ranks] = sizes
        self._costs[ranks] += SHARD_OVERHEAD_BYTES
        self._states = bytearray(len(self._costs))
        if held is not None:
            of_others = np.asarray(held, dtype=bool)[by_size]
            self._view()[order[of_others]] = ShardState.HELD
            order = order[~of_others]
        self._queue(order)
        self._appended = False
        """Whether shards were released, which come behind those that were there, whatever their size."""
        self._next_task = 0
        self._slots = 0
        """How many tasks can run at once, with the memory that they ask for."""
        self._offered = SlotsChanged(0)
        """What there is of slots and memory, as it was told last."""
        self._learnt = LearntMemory()
        self._asked: int | None = None
        """What tasks ask for because of what was learnt."""
        self._begun: int | None = None
        """How many tasks have begun at most, of those in flight when more was learnt to be needed: the others are taken
        back once all news is heard, for what has ended made room for them."""
        self._cost_seen = 0.0
        self._seconds_seen = 0.0
        self._cost_computed = 0.0
        self._seconds_computed = 0.0
        """Of the whole run: at the end only stragglers report, and would set the pace that they are judged by."""
        self._ready: deque[tuple[int, ...]] = deque()
        self._waiting: list[tuple[float, int]] = []
        self._told_to_wait = 0
        """Shards on the heap whose code asked for it, or that were not served."""
        self._wait_in_place = 0
        """Tasks whose shard at hand waits where it is."""
        self._busy = False
        """Whether the last word of what shards need was that it is not there now."""
        self._running: dict[TaskId, _Task] = {}
        self._strikes: dict[int, Counter[FailureKind]] = {}
        """Failed tries by kind, of shards that failed and are not done."""
        self._memory: dict[int, int] = {}
        """Bytes that a shard asks for since its node ran out of memory."""
        self._heard_of = TaskId(-1)
        """The newest task that is known to run, or to have run."""
        self._none_queued_since_s: float | None = None
        """Since when every task in flight has had a slot."""
        self._looked_s = -math.inf
        self._held_up = frozenset[int]()
        """Tasks that were held up at the last look."""
        self._crowded = False
        """Whether at the last look an actor had no place because of tasks."""
        self._way_s = -math.inf
        """When the next one of these may make way."""
        self._handlers: dict[type, Callable[[Any, float, list[Action]], None]] = {
            SlotsChanged: self._slots_changed,
            TaskStarted: self._task_started,
            ShardDone: self._shard_done,
            ShardFailed: self._shard_failed,
            ShardWaiting: self._shard_waiting,
            TaskEnded: self._task_ended,
            Tick: self._tick,
            Stop: self._wind_up,
            Released: self._released,
            Found: self._found,
        }

    # What there is to see

    @property
    def unfinished(self) -> int:
        """Shards neither done nor given up."""
        return self.total - self.done - self.failed

    @property
    def futile(self) -> str:
        """Why it was stopped: what shards need is there for none of them. Empty if it was not."""
        if not self.unfinished or not (self.disk_full or self.refused or self.unserved):
            return ""
        return UNSERVED if self.unserved else _FUTILE[self.refused]

    @property
    def running_tasks(self) -> int:
        """Tasks launched and not ended."""
        return len(self._running)

    @property
    def slots(self) -> int:
        """Tasks that can run at once, with the memory that they ask for."""
        return self._slots

    @property
    def window(self) -> int:
        """Tasks that may be in flight now."""
        if self.policy.max_in_flight is not None:
            return self.policy.max_in_flight
        return max(self.policy.least_window, 2 * self._slots)

    @property
    def idle(self) -> int:
        """Slots for which there is nothing to launch, or more than there are shards left. Without any slots, one: a
        cluster starts them for what is launched."""
        if self._cursor < self._stop or self._ready or self.state is not SchedulerState.ACTIVE:
            return 0
        return max(0, max(1, self._slots) - len(self._running))

    def from_here(self, shard: int, most: int) -> Any:
        """Returns the ranks of shards in the order of their launch, from one on that was launched by the last event,
        `most` at most; none if that was launched before, or out of order."""
        at = np.flatnonzero(self._order[self._before : self._cursor] == shard)
        return self._order[self._before + at[0] : self._stop][:most] if len(at) else at

    def held(self) -> Any:
        """Returns the ranks of the shards that are held back."""
        return np.flatnonzero(self._view() == ShardState.HELD)

    def at_hand(self) -> list[int]:
        """Returns the shards that run now, as far as is known: the first one of each task that can have a slot."""
        tasks = itertools.islice(self._running.values(), self._slots)
        return [next(iter(task.left)) for task in tasks if task.left]

    def longest(self) -> tuple[TaskId, int, float] | None:
        """Returns the task of which nothing was heard for longest, of those that can have a slot; the shard that it is
        at, as far as is known, and since when. None if nothing runs."""
        tasks = itertools.islice(self._running.items(), max(1, self._slots))
        found = [
            (task.heard_s or task.started_s or task.launched_s, number, next(iter(task.left)))
            for number, task in tasks
            if task.left
        ]
        if not found:
            return None
        since_s, number, shard = min(found)
        return number, shard, since_s

    def unreported(self, task: TaskId) -> tuple[int, ...]:
        """Returns the shards of a task that have not ended, in the order in which it runs them."""
        record = self._running.get(task)
        return () if record is None else tuple(record.left)

    def looks(self, now_s: float) -> bool:
        """Returns whether a tick now looks at the time that tasks take."""
        return now_s - self._looked_s >= LOOK_S

    def next_event_s(self) -> float | None:
        """Returns the time at which a waiting shard falls due, None if none waits or none will be launched."""
        return self._waiting[0][0] if self._waiting and self.state is SchedulerState.ACTIVE else None

    # Events

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Returns what is to be done about an event, in this order. After `Finish` nothing is done about anything."""
        actions: list[Action] = []
        if self.state in (SchedulerState.ABORTED, SchedulerState.FINISHED):
            return actions
        self._before = self._cursor
        self._handlers[type(event)](event, now_s, actions)
        too_many = self.policy.max_failed is not None and self.failed > self.policy.max_failed
        # What can still be read is published: that store takes it. So may what still runs.
        if too_many or (self.futile and self.refused is not Refusal.READ and not self.unserved):
            self.state = SchedulerState.ABORTED
            actions.append(Finish(self.state))
            return actions
        if self.futile:
            self.state = SchedulerState.STOPPING
        if self.state is SchedulerState.ACTIVE:
            self._fall_due(now_s)
            self._fill(now_s, actions)
        if len(self._running) > self._slots:
            self._none_queued_since_s = None
        elif self._none_queued_since_s is None:
            self._none_queued_since_s = now_s
        over = self.state is SchedulerState.STOPPING or not self.unfinished
        if over and all(record.dismissed for record in self._running.values()):
            self.state = SchedulerState.FINISHED
            actions.append(Finish(self.state))
        return actions

    def _slots_changed(self, event: SlotsChanged, now_s: float, actions: list[Action]) -> None:
        del now_s
        self._offered = event
        self._learnt.shared(event.slot_memory, event.largest_memory)
        self._count_slots(actions)

    def _see_held(self, held_bytes: int, actions: list[Action]) -> None:
        """Takes the memory that the process of a task held, if that is known."""
        if held_bytes and self._learnt.held(held_bytes, self._offered.slot_memory, self._offered.largest_memory):
            self._count_slots(actions)

    def _count_slots(self, actions: list[Action]) -> None:
        """Counts the slots that there are for tasks that ask for what was learnt."""
        offered, before, had = self._offered, self._asked, self._slots
        self._asked = self._learnt.asked
        self._slots = slots_with(self._asked, offered.slots, offered.slot_memory)
        if self._asked == before:
            return
        actions.append(AskMemory(self._asked, self._slots))
        if self._asked is not None and self._asked > (before or 0):
            self._begun = max(self._begun or 0, had)

    def _take_back(self, begun: int, actions: list[Action]) -> None:
        """Takes back the tasks that no slot was free for, where so many have begun: launched again, they ask for what
        was learnt. Of one that has begun since the last news, what it has published is found."""
        for task, record in list(itertools.islice(self._running.items(), begun, None)):
            asks_enough = (record.memory or 0) >= (self._asked or 0)
            queued = record.started_s is None and record.left and not asks_enough
            if queued and record.twin is None and _undisturbed(record):
                self._requeue(task, record, actions)

    def _make_way(self, held_up: frozenset[int], now_s: float, actions: list[Action]) -> None:
        """Takes back tasks that wait for an actor which waits for the place of one: all that have not begun, then one
        after the other, the newest first."""
        if now_s < self._way_s:
            return
        self._way_s = now_s + WAY_S
        waiting = [
            (task, record)
            for task, record in self._running.items()
            if task in held_up and record.left and _undisturbed(record)
        ]
        for task, record in [one for one in waiting if one[1].started_s is None] or waiting[-1:]:
            self._requeue(task, record, actions)

    def _requeue(self, task: TaskId, record: _Task, actions: list[Action]) -> None:
        """Takes back a task: its shards are launched again, of which one that it has published is found."""
        shards = tuple(shard for shard in record.left if not self._runs_elsewhere(record, shard))
        for shard in shards:
            self._move(shard, Move.REQUEUE)
        if shards:
            self._ready.append(shards)
        record.left, record.cost_left = {}, 0.0
        self._dismiss(task, actions)

    def _task_started(self, event: TaskStarted, now_s: float, actions: list[Action]) -> None:
        del actions
        record = self._running.get(event.task)
        if record is not None and record.heard_s is None:
            self._heard(event.task, record, now_s)

    def _shard_done(self, event: ShardDone, now_s: float, actions: list[Action]) -> None:
        record = self._report(event, now_s)
        if record is None:
            return
        self._move(event.shard, Move.FINISH)
        self.done += 1
        self._strikes.pop(event.shard, None)
        self._memory.pop(event.shard, None)
        if event.computed:
            self._busy = False
            self._refusals.accepted()
            self._unserved.clear()
            cost, seconds = event.size_bytes + SHARD_OVERHEAD_BYTES, max(event.seconds, 1e-6)
            self._cost_seen = self._cost_seen * RATE_DECAY + cost
            self._seconds_seen = self._seconds_seen * RATE_DECAY + seconds
            self._cost_computed += cost
            self._seconds_computed += seconds
            self._see_held(event.held_bytes, actions)
        actions.append(Record(event.shard, event.task, Outcome.DONE))
        twin = None if record.twin is None else self._running.get(record.twin)
        if twin is not None and event.shard in twin.left:
            assert record.twin is not None
            self._take_off(twin, event.shard)
            if not twin.left:
                self._dismiss(record.twin, actions)
        self._end_shortened(event.task, record, actions)

    def _shard_failed(self, event: ShardFailed, now_s: float, actions: list[Action]) -> None:
        record = self._report(event, now_s)
        if record is None:
            return
        if self._runs_elsewhere(record, event.shard):
            actions.append(Record(event.shard, event.task, Outcome.COPY_FAILED, event.kind))
            self._end_shortened(event.task, record, actions)
            return
        if event.kind is FailureKind.OUT_OF_MEMORY:
            self._see_held(event.peak_bytes, actions)
        if (refusal := event.refused) is not None:
            all_are = self._refusals.refused(refusal, event.shard, now_s, elsewhere=record.elsewhere)
            # The last few may as well have all their tries.
            if all_are and self.unfinished > LEAST_SHARDS:
                self.refused = self.refused or refusal
        memory = record.memory or 0, event.peak_bytes
        outcome, tries, wait_s = self._strike(
            event.shard, event.kind, now_s, after_s=event.after_s, memory=memory, tries=event.tries
        )
        actions.append(Record(event.shard, event.task, outcome, event.kind, tries, wait_s))
        self._end_shortened(event.task, record, actions)

    def _shard_waiting(self, event: ShardWaiting, now_s: float, actions: list[Action]) -> None:
        del actions
        record = self._running.get(event.task)
        if record is None or event.shard not in record.left:
            return
        self._heard(event.task, record, now_s)
        self._busy = event.waits
        if not event.waits:
            # A batch of it is done: only tries in a row count in which none was.
            self._forgive(event.shard)
        self._wait_in_place += event.waits - record.waits
        record.waits = event.waits

    def _task_ended(self, event: TaskEnded, now_s: float, actions: list[Action]) -> None:
        record = self._running.pop(event.task, None)
        if record is None:
            return
        self._wait_in_place -= record.waits
        kind = record.cancelled or event.kind
        if record.left and kind is None:
            raise ValueError(
                f"task {event.task} ended well, but {len(record.left)} of its shards did not report "
                f"(first: {next(iter(record.left))})"
            )
        if record.left:
            assert kind is not None
            self.attempts += len(record.left) if kind in BLAMELESS else 1
            if event.kind is FailureKind.OUT_OF_MEMORY:
                self._see_held(event.peak_bytes, actions)
            if kind in BLAMELESS:
                self._lost(event.task, record, kind, now_s, actions)
            else:
                self._died(event, record, kind, now_s, actions)
        twin = None if record.twin is None else self._running.get(record.twin)
        if twin is not None:
            twin.twin = None
            # A copy that failed would fail again.
            twin.copied = kind not in BLAMELESS

    def _lost(self, task: TaskId, record: _Task, kind: FailureKind, now_s: float, actions: list[Action]) -> None:
        """Queues the shards of a task that was lost with its node again, in two halves if any was lost before. Those
        that were not served wait, each by itself."""
        again: list[int] = []
        for shard in record.left:
            outcome, tries, wait_s = Outcome.COPY_FAILED, 0, 0.0
            if not self._runs_elsewhere(record, shard):
                outcome, tries, wait_s = self._strike(shard, kind, now_s, queue=False)
            if kind is FailureKind.LOST:
                tries = 0  # of none
                if outcome is Outcome.RETRY:
                    again.append(shard)
            actions.append(Record(shard, task, outcome, kind, tries, wait_s))
        if any(self._strikes[shard][FailureKind.LOST] > 1 for shard in again):
            # Too long for the nodes it gets, or with a shard in it that takes them down: no other shares its end.
            self._ready.extend(_halves(again))
        elif again:
            self._ready.append(tuple(again))

    def _died(self, event: TaskEnded, record: _Task, kind: FailureKind, now_s: float, actions: list[Action]) -> None:
        """Strikes the shard that the task died of, which runs alone from now on; the others are bundled anew.

        Where nobody looked for outputs it is the first one, which may be wrong: small shards end faster than word of
        them arrives. Halves find the culprit in a handful of crashes; the whole rest together would crash once for
        every shard before it.

        Where it may have been one of several, they run again together: a second try says which, so this one counts
        against none of them. What is told of the first is that it was lost.
        """
        suspect = event.suspect if event.suspect in record.left else next(iter(record.left))
        left = list(record.left)
        first = left.index(suspect)
        behind = left[first + 1 : first + event.suspects] if suspect == event.suspect else []
        others = [*left[:first], *left[first + 1 + len(behind) :]]
        again, others = ([one for one in some if not self._runs_elsewhere(record, one)] for some in (behind, others))
        for shard in (*again, *others):
            self._move(shard, Move.REQUEUE)
        self._ready.extend(_halves(others))
        kind = FailureKind.LOST if behind else kind
        outcome, tries, wait_s = Outcome.COPY_FAILED, 0, 0.0
        if not self._runs_elsewhere(record, suspect):
            memory = record.memory or 0, event.peak_bytes
            outcome, tries, wait_s = self._strike(suspect, kind, now_s, memory=memory, queue=not behind)
            if behind and outcome is Outcome.RETRY:
                again.insert(0, suspect)
                tries = 0
        if again:
            self._ready.append(tuple(again))
        actions.append(Record(suspect, event.task, outcome, kind, tries, wait_s))

    def _tick(self, event: Tick, now_s: float, actions: list[Action]) -> None:
        if self._begun is not None:
            begun, self._begun = self._begun, None
            if self.state is SchedulerState.ACTIVE:
                self._take_back(begun, actions)
        since_s = now_s - self._looked_s
        if since_s < LOOK_S:
            return
        self._looked_s = now_s
        # What was held up at the last look was so until now, as far as anybody knows; through a pause, too.
        for task, record in self._running.items() if self._held_up else ():
            record.held_up_s += since_s if task in self._held_up else 0.0
        self._held_up = event.held_up
        self._crowded = event.crowded
        if since_s > PAUSE_S:
            return
        if event.crowded and self.state is SchedulerState.ACTIVE:
            self._make_way(event.held_up, now_s, actions)
        timeout_s = self.policy.task_timeout_s
        for task, record in self._running.items():
            if record.started_s is None and task < self._heard_of:
                # Backends start tasks in the order of their launches, and need not say when.
                record.started_s = now_s
            if record.heard_s is None or not _undisturbed(record):
                continue
            silent_s = now_s - record.heard_s - record.held_up_s
            if not record.left and silent_s > FAREWELL_S:
                self._dismiss(task, actions)
            elif record.left and timeout_s is not None and silent_s > timeout_s:
                record.cancelled = FailureKind.TIMED_OUT
                actions.append(Cancel(task))
        if self.policy.speculate:
            self._use_idle_slots(now_s, actions)

    def _wind_up(self, event: Stop, now_s: float, actions: list[Action]) -> None:
        del event, now_s, actions
        self.state = SchedulerState.STOPPING

    def _released(self, event: Released, now_s: float, actions: list[Action]) -> None:
        del now_s, actions
        for shard in event.shards:
            self._move(shard, Move.RELEASE)
        pending = self._order[self._cursor : self._stop]
        self._queue(np.concatenate([pending, np.asarray(event.shards, dtype=np.int32)]))
        self._appended = self._appended or bool(len(event.shards))

    def _found(self, event: Found, now_s: float, actions: list[Action]) -> None:
        del now_s, actions
        for shard in event.shards:
            self._move(shard, Move.FIND)
        self.done += len(event.shards)
        pending = self._order[self._cursor : self._stop]
        self._queue(pending[self._view()[pending] == ShardState.PENDING])

    def _queue(self, order: Any) -> None:
        """Takes these shards for those that are pending, in this order."""
        self._order = order
        self._cost_pending = float(self._costs[order].sum(dtype=np.float64))
        """Of the shards that are pending, all together."""
        self._cursor = 0
        self._before = 0
        """Where the cursor was before the last event."""
        self._stop = len(order)
        """Shards of `_order` from the cursor to here are pending."""

    def _view(self) -> Any:
        return np.frombuffer(self._states, dtype=np.uint8)

    # Launching

    def _fall_due(self, now_s: float) -> None:
        while self._waiting and self._waiting[0][0] <= now_s:
            shard = heapq.heappop(self._waiting)[1]
            self._move(shard, Move.FALL_DUE)
            self._told_to_wait -= _awaits(self._strikes[shard])
            self._ready.append((shard,))

    def _fill(self, now_s: float, actions: list[Action]) -> None:
        window = 0 if self._crowded else self.window
        while len(self._running) < window:
            if self._ready and not self._looks_elsewhere():
                actions.append(self._launch(self._next_ready(), now_s))
            elif self._cursor < self._stop and self._open(window) and len(self._waiting) < MOST_WAITING:
                doubtful = self._refusals.doubtful
                launch = self._launch(self._smallest() if self._busy or doubtful else self._bundle(), now_s)
                self._running[launch.task].elsewhere = doubtful
                actions.append(launch)
            else:
                return

    def _looks_elsewhere(self) -> bool:
        """Returns whether a shard never launched comes before those to be tried again: it shows if all are refused."""
        if not self._refusals.lack_others or self._cursor == self._stop or len(self._waiting) >= MOST_WAITING:
            return False
        return self._open(self.window) and not any(record.elsewhere for record in self._running.values())

    def _open(self, window: int) -> bool:
        """Returns whether shards may be launched that never were.

        A service that is down would be asked for every shard that there is. One that has answered since is asked again.
        So would a store that refuses all, while those that it has refused are about to be tried again.
        """
        if self._refusals.suffice and (self._waiting or self._running):
            return False
        return not self._busy or self._told_to_wait + self._wait_in_place < window

    def _smallest(self) -> tuple[int, ...]:
        """Returns the smallest shard never launched, alone: it asks at least cost whether a service is there, or if
        each shard is refused."""
        if not self._appended:
            self._stop -= 1
            smallest = int(self._order[self._stop])
            self._cost_pending -= float(self._costs[smallest])
            return (smallest,)
        pending = self._order[self._cursor : self._stop]
        at = len(pending) - 1 - int(np.argmin(self._costs[pending][::-1]))
        self._queue(np.delete(pending, at))
        return (int(pending[at]),)

    def _next_ready(self) -> tuple[int, ...]:
        """Returns the next shards to run again; a part of them where that lets slots share them that would be idle."""
        shards = self._ready.popleft()
        spare = self._slots - len(self._running) - len(self._ready)
        if spare > 1 and self._cursor == self._stop:
            length = -(-len(shards) // spare)
            parts = [shards[start : start + length] for start in range(length, len(shards), length)]
            self._ready.extendleft(reversed(parts))
            return shards[:length]
        return shards

    def _launch(
        self, shards: tuple[int, ...], now_s: float, copy_of: TaskId | None = None, part_of: TaskId | None = None
    ) -> Launch:
        tries = [self._strikes[shard] for shard in shards if shard in self._strikes]
        # A shard that was launched, even without a strike against it, may have its output.
        again = self._states[shards[0]] != ShardState.PENDING
        attempt = max(2, 1 + max((sum(one.values()) for one in tries), default=0)) if again else 1
        # Whose `process` raised runs alone since then.
        errors = tries[0][FailureKind.USER_ERROR] if tries else 0
        memory = max((self._memory[shard] for shard in shards if shard in self._memory), default=None)
        if memory is not None and self._offered.largest_memory is not None:
            # The node that had more may be gone.
            memory = min(memory, self._offered.largest_memory)
        if self._asked is not None:
            memory = max(memory or 0, self.policy.declared_memory or 0, self._asked)
        for shard in shards:
            self._move(shard, Move.LAUNCH)
        task = TaskId(self._next_task)
        self._next_task += 1
        self.launched += 1
        cost = float(self._costs[list(shards)].sum())
        self._running[task] = _Task(dict.fromkeys(shards), cost, cost, now_s, memory, twin=copy_of)
        last = errors >= self.policy.user_error_retries
        fresh = any(one[FailureKind.CRASHED] for one in tries)
        return Launch(task, shards, attempt, last, memory, copy_of, part_of, self._busy, fresh)

    def _bundle(self) -> tuple[int, ...]:
        """Returns the next shards that were never launched: as many as fit into a task at the rate seen so far."""
        budget, length = 0.0, 1
        if self._seconds_seen > 0:
            rate = self._cost_seen / self._seconds_seen
            share_s = self._cost_pending / rate / (2 * max(self._slots, 1))
            shortest_s = max(SHORTEST_BUNDLE_S, self._slots / LAUNCHES_PER_S)
            budget, length = rate * min(self.policy.target_task_s, max(share_s, shortest_s)), FIRST_LOOK
        while True:
            # Most bundles are a few shards.
            shards = self._order[self._cursor : min(self._stop, self._cursor + length)]
            ends = np.cumsum(self._costs[shards], dtype=np.float64)
            if ends[-1] > budget or len(shards) < length or length >= LARGEST_BUNDLE:
                break
            length *= 8
        shards = shards[: max(1, min(LARGEST_BUNDLE, int(ends.searchsorted(budget, side="right"))))]
        self._cursor += len(shards)
        self._cost_pending -= float(ends[len(shards) - 1])
        return tuple(shards.tolist())

    def _use_idle_slots(self, now_s: float, actions: list[Action]) -> None:
        """Gives slots for which nothing is left what others have not begun, then copies of what takes too long."""
        if self.state is not SchedulerState.ACTIVE:
            return
        # First what is launched for its own sake.
        self._fall_due(now_s)
        self._fill(now_s, actions)
        since_s = self._none_queued_since_s
        if since_s is None or self._seconds_computed <= 0:
            return
        self._share_out(since_s, now_s, actions)
        self._copy_stragglers(since_s, now_s, actions)

    def _idle_slots(self) -> int:
        return 0 if self._crowded else min(self._slots, self.window) - len(self._running)

    def _copy_stragglers(self, since_s: float, now_s: float, actions: list[Action]) -> None:
        """Starts a second copy of what runs far beyond its peers' rate, one for each slot that is idle."""
        idle = self._idle_slots()
        if idle <= 0:
            return
        rate = self._cost_computed / self._seconds_computed
        slow: list[tuple[float, TaskId]] = []
        for task, record in self._running.items():
            # A copy would wait for the same, and call again what is done.
            waits = record.waits or task in self._held_up
            if record.left and record.twin is None and not record.copied and not waits and _undisturbed(record):
                # One of which nothing is known started by the time when every task had a slot.
                started_s = max(record.launched_s, since_s) if record.started_s is None else record.started_s
                took_s, through = now_s - started_s, record.cost - record.cost_left
                at_hand = float(self._costs[next(iter(record.left))])
                if took_s > STRAGGLER_FACTOR * (through + at_hand) / rate + STRAGGLER_LEAST_S:
                    slow.append((took_s * record.cost_left / max(through, SHARD_OVERHEAD_BYTES), task))
        # First the one that would end last.
        for _, task in heapq.nlargest(idle, slow):
            straggler = self._running[task]
            # From its end: the two meet, wherever the one that is slow has got to.
            copy = self._launch(tuple(reversed(straggler.left)), now_s, copy_of=task)
            straggler.twin, straggler.copied = copy.task, True
            actions.append(copy)

    def _share_out(self, since_s: float, now_s: float, actions: list[Action]) -> None:
        """Gives idle slots what tasks have not begun: of the one that would end last, half of it, again and again."""
        idle = self._idle_slots()
        if idle <= 0:
            return
        pace = self._seconds_computed / self._cost_computed
        long: list[tuple[float, TaskId]] = []
        for task, record in self._running.items():
            if len(record.left) > 1 and record.twin is None and not record.waits and _undisturbed(record):
                started_s = max(record.launched_s, since_s) if record.started_s is None else record.started_s
                through = record.cost - record.cost_left
                # Its own pace, if that is slower: of the shards that it has ended.
                own = ((record.heard_s or now_s) - started_s) / through if through > 0 else 0.0
                long.append((-max(pace, own) * self._not_begun(record), task))
        heapq.heapify(long)
        while idle > 0 and long and -long[0][0] / 2 >= PART_LEAST_S:
            left_s, task = heapq.heappop(long)
            whole = self._running[task]
            before = self._not_begun(whole)
            part = self._launch(self._last_half(whole), now_s, part_of=task)
            whole.shortened = True
            actions.append(part)
            idle -= 1
            for one in (task, part.task):
                heapq.heappush(long, (left_s * self._not_begun(self._running[one]) / before, one))

    def _not_begun(self, record: _Task) -> float:
        """Returns the cost of what a task has not begun, as far as is known."""
        return record.cost_left - float(self._costs[next(iter(record.left))])

    def _last_half(self, record: _Task) -> tuple[int, ...]:
        """Takes about half of what it has not begun off a task, from its end; returns it in its order."""
        half = self._not_begun(record) / 2
        taken: list[int] = []
        while half > 0:
            shard, _ = record.left.popitem()
            cost = float(self._costs[shard])
            record.cost -= cost
            record.cost_left -= cost
            half -= cost
            taken.append(shard)
        return tuple(reversed(taken))

    def _end_shortened(self, task: TaskId, record: _Task, actions: list[Action]) -> None:
        if record.shortened and not record.left:
            self._dismiss(task, actions)

    # Books of single shards

    def _report(self, event: ShardDone | ShardFailed, now_s: float) -> _Task | None:
        """Takes a shard off the task that reports on it, which is returned; None if the shard is over already."""
        record = self._running.get(event.task)
        if record is None:
            return None
        self._heard(event.task, record, now_s)
        if record.cancelled is not None:
            # The shard that took too long has ended after all: what is cut off now is another one.
            record.cancelled = FailureKind.LOST
        if event.shard not in record.left:
            return None
        self._take_off(record, event.shard)
        self.attempts += 1
        return record

    def _take_off(self, record: _Task, shard: int) -> None:
        if shard == next(iter(record.left)):
            self._wait_in_place -= record.waits
            record.waits = False
        del record.left[shard]
        record.cost_left -= float(self._costs[shard])

    def _heard(self, task: TaskId, record: _Task, now_s: float) -> None:
        self._heard_of = max(self._heard_of, task)
        record.heard_s, record.held_up_s = now_s, 0.0
        if record.started_s is None:
            record.started_s = now_s

    def _dismiss(self, task: TaskId, actions: list[Action]) -> None:
        record = self._running[task]
        if _undisturbed(record):
            actions.append(Cancel(task))
        record.dismissed = True

    def _runs_elsewhere(self, record: _Task, shard: int) -> bool:
        twin = None if record.twin is None else self._running.get(record.twin)
        return twin is not None and shard in twin.left

    def _strike(
        self,
        shard: int,
        kind: FailureKind,
        now_s: float,
        *,
        after_s: float = 0.0,
        memory: tuple[int, int] = (0, 0),
        queue: bool = True,
        tries: int = 1,
    ) -> tuple[Outcome, int, float]:
        """Books a failed try, or several in a row; returns what becomes of the shard, its tries of this kind so far,
        and the seconds until the next. `memory`: the bytes that its task asked for, and those that it held."""
        self._busy |= kind in _AWAITED
        if kind is FailureKind.UNSERVED:
            self._unserved.add(shard)
        strikes = self._strikes.setdefault(shard, Counter())
        strikes[kind] += tries
        hopeless = (
            kind is FailureKind.OUT_OF_MEMORY
            and not self._ask_for_more(shard, *memory)
            and not self._some_hold_unasked()
        )
        # None is tried again that others were refused with: one at least is told as failed, and why.
        hopeless |= kind is FailureKind.STORAGE and self.refused is not None
        if hopeless or strikes[kind] > self.policy.limit(kind):
            self._move(shard, Move.GIVE_UP)
            self.failed += 1
            self.disk_full |= kind is FailureKind.DISK_FULL
            # One alone may be larger than what there is room for.
            self.unserved |= kind is FailureKind.UNSERVED and len(self._unserved) >= LEAST_SHARDS
            del self._strikes[shard]
            self._memory.pop(shard, None)
            return Outcome.FAILED, 0, 0.0
        if kind in _REQUEUED_AT_ONCE:
            self._move(shard, Move.REQUEUE)
            if queue:
                self._ready.append((shard,))
            return Outcome.RETRY, strikes[kind], 0.0
        self._move(shard, Move.DELAY)
        wait_s = self.policy.wait_s(kind, strikes[kind], after_s)
        heapq.heappush(self._waiting, (now_s + wait_s, shard))
        # Counted while it waits, as one that did so before: whatever it waits for this time.
        self._told_to_wait += _awaits(strikes)
        return Outcome.RETRY, strikes[kind], wait_s

    def _forgive(self, shard: int) -> None:
        """Forgets how often a shard was run later: it got something done."""
        strikes = self._strikes.get(shard)
        if strikes is not None:
            strikes.pop(FailureKind.RETRY_LATER, None)
            if not strikes:
                del self._strikes[shard]

    def _ask_for_more(self, shard: int, asked_bytes: int, peak_bytes: int) -> bool:
        """Doubles what a shard asks for; False if it had the most that there is."""
        had = max(self.policy.declared_memory or 0, self._memory.get(shard, 0), asked_bytes)
        wanted = more_memory(had, peak_bytes, self._offered.largest_memory)
        if wanted is None:
            return False
        self._memory[shard] = wanted
        return True

    def _some_hold_unasked(self) -> bool:
        """Returns whether tasks run that ask for no memory: what had all there is to be had may have shared it."""
        if self.policy.declared_memory:
            return False
        return any(one.memory is None and one.started_s is not None for one in self._running.values())

    def _move(self, shard: int, move: Move) -> None:
        state = TRANSITIONS.get((self._states[shard], move))
        if state is None:
            raise IllegalTransitionError(f"shard {shard} is {ShardState(self._states[shard]).name}: it cannot {move}")
        self._states[shard] = state


def _awaits(strikes: Counter[FailureKind]) -> bool:
    return any(strikes[kind] for kind in _AWAITED)


def _undisturbed(record: _Task) -> bool:
    return record.cancelled is None and not record.dismissed


def _halves(shards: Sequence[int]) -> Iterable[tuple[int, ...]]:
    middle = (len(shards) + 1) // 2
    return (tuple(half) for half in (shards[:middle], shards[middle:]) if half)
