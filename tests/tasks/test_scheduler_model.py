"""The scheduler against a model: whatever happens in whatever order, every shard is in one place and ends once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from curate.tasks.events import (
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
from curate.tasks.failure import FailureKind
from curate.tasks.memory import LEAST_MEMORY
from curate.tasks.policy import Policy
from curate.tasks.refusals import LEAST_SHARDS
from curate.tasks.scheduler import FAREWELL_S, LARGEST_BUNDLE, LOOK_S, PAUSE_S, STRAGGLER_LEAST_S, Scheduler, ShardState
from curate.units import GIB, MIB
from tests.support.examples import examples

K = FailureKind
SHARD_KINDS = [K.USER_ERROR, K.STORAGE, K.CORRUPT, K.RETRY_LATER, K.THROTTLED, K.FOREIGN, K.MISCONFIGURED]
TASK_KINDS = [K.CRASHED, K.LOST, K.OUT_OF_MEMORY, K.UNSERVED]
BLAMELESS = (K.LOST, K.UNSERVED)
AWAITED = (K.RETRY_LATER, K.UNSERVED)
AT_ONCE = {K.LOST, K.OUT_OF_MEMORY, K.FOREIGN}


def sizes_of(n: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.sampled_from([0, MIB, 300 * MIB]), min_size=n, max_size=n)


@dataclass
class Task:
    """A task as the model sees it."""

    left: list[int]
    launched_s: float
    twin: TaskId | None = None
    heard_s: float | None = None
    over_time: bool = False
    """It was cancelled for its time, and is to end as timed out."""
    cancelled: bool = False
    memory: int = 0
    """What it asks for."""
    dismissed: bool = False
    copied: bool = False
    shortened: bool = False
    """Its last shards were given to another task."""
    waits: bool = False
    """Its first shard waits where it is."""

    def take(self, shard: int) -> None:
        """Takes a shard off it."""
        self.waits = self.waits and shard != self.left[0]
        self.left.remove(shard)


@dataclass
class Shard:
    """A shard as the model sees it."""

    place: ShardState = ShardState.PENDING
    due_s: float = 0.0
    memory: int | None = None
    launches: int = 0
    wait_s: float = 0.0
    strikes: Counter[FailureKind] = field(default_factory=Counter)


class AnyOrder(RuleBasedStateMachine):
    """Every event is handed to the scheduler and to the model, which says what is to be booked; each launch, cancel and
    finish has to be one that the model allows, and has to come when it does. The model knows nothing of queues, heaps,
    rates or bundles: which shards are launched together, and which stragglers are copied, it leaves to the scheduler.
    """

    @initialize(
        sizes=st.sampled_from([0, 4, 8, 12, 16, 24]).flatmap(sizes_of),
        policy=st.builds(
            Policy,
            target_task_s=st.sampled_from([0.001, 1.0, 60.0, 1e6]),
            max_in_flight=st.sampled_from([None, 1, 3]),
            max_failed=st.sampled_from([None, None, None, 0, 3]),
            task_timeout_s=st.sampled_from([None, 20.0]),
            declared_memory=st.sampled_from([None, 3 * GIB]),
            user_error_retries=st.integers(0, 3),
            crash_limit=st.integers(1, 3),
            memory_limit=st.integers(1, 3),
            timeout_limit=st.integers(1, 3),
            loss_limit=st.integers(0, 3),
            unserved_limit=st.integers(0, 3),
            retry_later_limit=st.integers(0, 3),
        ),
        slots=st.integers(0, 20),
        held=st.sampled_from([None, None, 1, 2, 5]),
    )
    def start(self, sizes: Sequence[int], policy: Policy, slots: int, held: int | None) -> None:
        """`held`: every so many shards one is held back."""
        self.policy = policy
        self.size = {7 + rank: size for rank, size in enumerate(sizes)}
        flags = None if held is None else [rank % held == 0 for rank in range(len(sizes))]
        self.scheduler = Scheduler(list(self.size), sizes, policy, flags)
        self.shards = {shard: Shard() for shard in self.size}
        for shard, of_others in zip(self.shards.values(), flags or (), strict=False):
            shard.place = ShardState.HELD if of_others else ShardState.PENDING
        self.tasks: dict[TaskId, Task] = {}
        self.known = 0
        """Tasks launched so far: the next one's number."""
        self.now_s = 1000.0
        self.looked_s = -math.inf
        self.attempts = 0
        self.stopped = self.busy = self.served_none = False
        self.unserved: set[int] = set()
        """Shards that were not served since one was computed."""
        self.finished: SchedulerState | None = None
        self.there, self.largest, self.share = slots, None, None
        self.held_bytes: list[int] = []
        self.asked: int | None = None
        self.learnt = False
        """Whether the event at hand has other memory asked for."""
        self.begun: int | None = None
        """How many tasks may have begun, when more was asked for than those were launched with."""
        self.queued: list[TaskId] = []
        """Those that have not, at the event at hand."""
        self.slots_changed(slots, None, None)

    # Events

    @rule(
        slots=st.integers(0, 20),
        largest=st.sampled_from([None, 2 * GIB, 5 * GIB, 64 * GIB]),
        share=st.sampled_from([None, GIB, 2 * GIB]),
    )
    def slots_changed(self, slots: int, largest: int | None, share: int | None) -> None:
        if not self.finished:
            begun, self.there, self.largest, self.share = self.slots, slots, largest, share
            self._learn(begun)
        self._tell(SlotsChanged(slots, largest, share), [])

    @rule(which=st.integers(0, 30))
    def started(self, which: int) -> None:
        task = self._task(which)
        if (held := self._held(task)) and held.heard_s is None:
            held.heard_s = self.now_s
        self._tell(TaskStarted(task), [])

    @rule(
        which=st.integers(0, 30),
        nth=st.integers(0, 30),
        seconds=st.sampled_from([0.0, 1.0, 100.0]),
        computed=st.booleans(),
        held=st.sampled_from([0, 0, GIB // 2, GIB, 3 * GIB // 2, 3 * GIB]),
    )
    def shard_done(self, which: int, nth: int, seconds: float, computed: bool, held: int = 0) -> None:
        task = self._task(which)
        shard = self._shard(task, nth)
        booked = self._report(task, shard)
        records = []
        if booked:
            self.busy = self.busy and not computed
            if computed:
                self.unserved.clear()
            self.shards[shard].place = ShardState.DONE
            self._saw(held if computed else 0)
            records = [Record(shard, task, Outcome.DONE)]
            twin = self._held(self.tasks[task].twin)
            if twin is not None and shard in twin.left:
                twin.take(shard)
                twin.dismissed = not twin.left
            self._end_shortened(task)
        self._tell(ShardDone(task, shard, self.size.get(shard, 0), seconds, computed, held), records)

    @rule(
        which=st.integers(0, 30),
        nth=st.integers(0, 30),
        kind=st.sampled_from(SHARD_KINDS),
        after_s=st.sampled_from([0.0, 7.0]),
        tries=st.sampled_from([1, 1, 1, 2]),
    )
    def shard_failed(self, which: int, nth: int, kind: FailureKind, after_s: float, tries: int) -> None:
        task = self._task(which)
        shard = self._shard(task, nth)
        records = []
        if self._report(task, shard):
            records = [self._struck(task, shard, kind, after_s, tries=tries)]
            self._end_shortened(task)
        self._tell(ShardFailed(task, shard, kind, after_s, tries=tries), records)

    @rule(which=st.integers(0, 30), nth=st.integers(0, 30), waits=st.booleans())
    def shard_waits(self, which: int, nth: int, waits: bool) -> None:
        task = self._task(which)
        shard = self._shard(task, nth)
        held = self._held(task)
        if held is not None and shard in held.left:
            held.heard_s, held.waits, self.busy = self.now_s, waits, waits
            if not waits:
                self.shards[shard].strikes[K.RETRY_LATER] = 0
        self._tell(ShardWaiting(task, shard, waits), [])

    @rule(
        which=st.integers(0, 30),
        nth=st.integers(0, 30),
        kind=st.sampled_from(TASK_KINDS),
        peak=st.sampled_from([0, 2 * GIB]),
        suspects=st.integers(1, 4),
    )
    def task_ended(self, which: int, nth: int, kind: FailureKind, peak: int, suspects: int) -> None:
        task = self._task(which)
        suspect = self._shard(task, nth)
        held = self._held(task)
        records = []
        told, peak_told = kind, peak
        if held is not None:
            if held.left and kind is K.OUT_OF_MEMORY:
                self._saw(peak)
            if held.cancelled and held.left:
                # What it means is known already: it says something else.
                kind = K.TIMED_OUT if held.over_time else K.LOST
            struck = held.left if kind in BLAMELESS else [suspect] if suspect in held.left else held.left[:1]
            if kind not in BLAMELESS and suspect in held.left[:-1] and suspects > 1:
                # One of several: none is struck for it, and the first is told of.
                kind, peak = K.LOST, 0
            self.attempts += len(struck)
            for shard in held.left:
                if shard in struck:
                    records.append(self._struck(task, shard, kind, peak=peak))
                elif not self._elsewhere(task, shard):
                    self.shards[shard].place = ShardState.READY
            if (twin := self._held(held.twin)) is not None:
                twin.twin, twin.copied = None, not (held.left and kind in BLAMELESS)
            if not self.finished:
                del self.tasks[task]
        self._tell(TaskEnded(task, told if held is None or held.left else None, suspect, suspects, peak_told), records)

    @rule(most=st.integers(0, 5), last=st.booleans())
    def released(self, most: int, last: bool) -> None:
        held = [shard for shard, one in self.shards.items() if one.place is ShardState.HELD and not self.finished]
        shards = held[::-1][:most] if last else held[:most]
        for shard in shards:
            self.shards[shard].place = ShardState.PENDING
        self._tell(Released(shards), [])

    @rule(most=st.integers(0, 5), places=st.sampled_from([{ShardState.HELD}, {ShardState.HELD, ShardState.PENDING}]))
    def found(self, most: int, places: set[ShardState]) -> None:
        """Another driver has done them."""
        there = [shard for shard, one in self.shards.items() if one.place in places and not self.finished]
        for shard in there[-most:]:
            self.shards[shard].place = ShardState.DONE
        self._tell(Found(there[-most:]), [])

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 1.0, 5.0, 5.0, 12.0, 29.0, 70.0]))
    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        self._tell(Tick(), [])

    @rule(hours=st.integers(1, 3))
    def time_passes_in_ticks(self, hours: int) -> None:
        """As long as backoffs and stragglers take, in steps that are no pause."""
        for _ in range(hours):
            self.tick(20.0)

    @precondition(lambda self: not self.stopped)
    @rule(sure=st.sampled_from([False] * 9 + [True]))
    def stop(self, sure: bool) -> None:
        if sure:
            self.stopped = not self.finished
            self._tell(Stop(), [])

    # What is always so

    @invariant()
    def counts_agree(self) -> None:
        scheduler, places = self.scheduler, Counter(shard.place for shard in self.shards.values())
        assert (scheduler.done, scheduler.failed) == (places[ShardState.DONE], places[ShardState.FAILED])
        assert scheduler.unfinished == len(self.shards) - scheduler.done - scheduler.failed
        assert scheduler.attempts == self.attempts
        assert scheduler.running_tasks == len(self.tasks)
        assert scheduler.launched == self.known

    @invariant()
    def every_shard_is_in_one_place(self) -> None:
        """State bytes, queues and tasks say the same, and it is what the model says."""
        scheduler = self.scheduler
        pending = scheduler._order[scheduler._cursor : scheduler._stop].tolist()
        ready = [shard for bundle in scheduler._ready for shard in bundle]
        waiting = [shard for _, shard in scheduler._waiting]
        running = {shard for task in scheduler._running.values() for shard in task.left}
        for state, found in zip(ShardState, (pending, ready, waiting, running), strict=False):
            assert sorted(found) == [shard for shard, one in self.shards.items() if one.place is state]
        assert [scheduler._states[shard] for shard in self.shards] == [one.place for one in self.shards.values()]
        assert {task: list(one.left) for task, one in scheduler._running.items()} == {
            task: one.left for task, one in self.tasks.items()
        }

    @invariant()
    def no_shard_runs_twice_but_in_twins(self) -> None:
        holders: dict[int, list[TaskId]] = {}
        for task, one in self.tasks.items():
            for shard in one.left:
                holders.setdefault(shard, []).append(task)
        for tasks in holders.values():
            assert len(tasks) == 1 or (len(tasks) == 2 and self.tasks[tasks[0]].twin == tasks[1])

    @invariant()
    def nothing_waits_that_could_run(self) -> None:
        """The window is full, or nothing is left that may be launched now."""
        if self.finished or self.stopped or len(self.tasks) >= self._window():
            return
        places = {shard.place for shard in self.shards.values()}
        assert ShardState.READY not in places
        assert ShardState.PENDING not in places or not self._open()

    @invariant()
    def who_waits_is_not_due(self) -> None:
        due_s = [one.due_s for one in self.shards.values() if one.place is ShardState.WAITING]
        active = self.finished is None and not self.stopped
        assert self.scheduler.next_event_s() == (min(due_s) if due_s and active else None)
        assert not active or all(one > self.now_s for one in due_s)

    def teardown(self) -> None:
        """Left to itself, with nothing failing any more, it ends: everything is done that was not given up."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(20 * len(self.shards) + 20):
            if self.finished:
                break
            for task in list(self.tasks):
                for shard in list(self.tasks[task].left):
                    self._done(task, shard)
                self._ended(task)
            self.released(5, last=False)
            self.tick(29.0)
        assert self.finished
        self.counts_agree()
        if self.finished is SchedulerState.FINISHED and not self.stopped:
            assert self.scheduler.unfinished == 0

    # The model

    def _tell(self, event: Event, records: list[Record]) -> None:
        """Hands in an event of which `records` are to be booked, and goes through what the scheduler says."""
        self.queued = [] if self.begun is None else list(self.tasks)[self.begun :]
        actions = self.scheduler.handle(event, self.now_s)
        if self.finished:
            assert actions == []
            return
        self.stopped |= self.served_none and self._left()
        looking = isinstance(event, Tick) and self.now_s - self.looked_s >= LOOK_S
        judging = looking and self.now_s - self.looked_s <= PAUSE_S
        if looking:
            self.looked_s = self.now_s
        assert [action for action in actions if isinstance(action, Record)] == records
        assert any(isinstance(action, AskMemory) for action in actions) == self.learnt
        for action in actions:
            if isinstance(action, AskMemory):
                assert (action.memory, action.at_once) == (self.asked, self.slots)
            elif isinstance(action, Launch):
                self._fall_due()
                self._launched(action, judging)
            elif isinstance(action, Cancel):
                self._cancelled(action.task, event, judging)
            elif isinstance(action, Finish):
                assert action is actions[-1]
                self.finished = action.state
        if not self.stopped and self.finished is not SchedulerState.ABORTED:
            self._fall_due()
        if judging and self.policy.task_timeout_s is not None:
            limit_s = self.policy.task_timeout_s
            late = [
                one for one in self.tasks.values() if one.left and one.heard_s and self.now_s - one.heard_s > limit_s
            ]
            assert all(one.cancelled for one in late)
        assert all(one.cancelled for one in self.tasks.values() if one.dismissed)
        if isinstance(event, Tick) and self.begun is not None:
            assert self.stopped or self._taken_back(), "queued tasks that ask for too little"
            self.begun = None
        self.learnt = False
        assert self.finished == self._end(), actions

    def _launched(self, launch: Launch, judging: bool) -> None:
        shards = [self.shards[shard] for shard in launch.shards]
        assert not self.stopped
        assert launch.task == self.known
        self.known += 1
        assert 0 < len(set(launch.shards)) == len(launch.shards) <= LARGEST_BUNDLE
        assert len(self.tasks) < self._window()
        places = {shard.place for shard in shards}
        if launch.copy_of is not None:
            source = self.tasks[launch.copy_of]
            assert judging
            assert len(self.tasks) < self.slots
            left = {one.place for one in self.shards.values()}
            assert ShardState.READY not in left
            assert ShardState.PENDING not in left or not self._open()
            assert list(launch.shards) == source.left[::-1]
            assert not source.cancelled
            assert not source.copied
            assert not source.waits
            assert source.twin is None
            assert self.now_s - source.launched_s > STRAGGLER_LEAST_S
            source.twin, source.copied = launch.task, True
        elif launch.part_of is not None:
            source = self.tasks[launch.part_of]
            assert judging
            assert len(self.tasks) < self.slots
            # Those at its end, and not the one that it is at.
            kept = len(source.left) - len(shards)
            assert kept > 0
            assert list(launch.shards) == source.left[kept:]
            assert not source.cancelled
            assert not source.waits
            assert source.twin is None
            del source.left[kept:]
            source.shortened = True
        else:
            assert len(places) == 1
            assert places <= {ShardState.READY, ShardState.PENDING}
            if places == {ShardState.PENDING}:
                assert all(one.place is not ShardState.READY for one in self.shards.values())
                assert self._open()
                # The smallest one alone, where it is not known whether what it needs is there; of those that are as
                # small any one, as released ones come behind those that were there.
                least = min(self.size[shard] for shard, one in self.shards.items() if one.place is ShardState.PENDING)
                assert not self.busy or [self.size[shard] for shard in launch.shards] == [least]
            assert launch.asks == self.busy
        new = all(shard.launches == 0 for shard in shards)
        assert new == (places == {ShardState.PENDING})
        assert launch.attempt == (1 if new else max(2, *(1 + shard.strikes.total() for shard in shards)))
        # One more user error, and each of them is given up.
        limit = self.policy.user_error_retries
        assert launch.last == all(shard.strikes[K.USER_ERROR] >= limit for shard in shards)
        asked = [shard.memory for shard in shards if shard.memory is not None]
        memory = min(max(asked), self.largest or max(asked)) if asked else None
        if self.asked is not None:
            memory = max(memory or 0, self.policy.declared_memory or 0, self.asked)
        assert launch.memory == memory
        for shard in shards:
            shard.place = ShardState.RUNNING
            shard.launches += 1
        self.tasks[launch.task] = Task(list(launch.shards), self.now_s, launch.copy_of, memory=launch.memory or 0)

    def _cancelled(self, task: TaskId, event: Event, judging: bool) -> None:
        one = self.tasks[task]
        assert not one.cancelled
        one.cancelled = True
        if isinstance(event, Tick) and task in self.queued and one.left and not self._is_late(one):
            assert not self.stopped
            assert one.heard_s is None
            assert one.memory < (self.asked or 0)
            assert one.twin is None
            for shard in one.left:
                self.shards[shard].place = ShardState.READY
            one.left, one.dismissed = [], True
            return
        if isinstance(event, ShardDone | ShardFailed):
            assert one.dismissed
            return
        assert judging
        assert one.heard_s is not None
        silent_s = self.now_s - one.heard_s
        if one.left:
            assert self.policy.task_timeout_s is not None
            assert silent_s > self.policy.task_timeout_s
            one.over_time = True
        else:
            assert silent_s > FAREWELL_S
            one.dismissed = True

    def _report(self, task: TaskId, shard: int) -> bool:
        """Hears from a task; returns whether it held the shard."""
        held = self._held(task)
        if held is None:
            return False
        held.heard_s, held.over_time = self.now_s, False
        if shard not in held.left:
            return False
        held.take(shard)
        self.attempts += 1
        return True

    def _end_shortened(self, task: TaskId) -> None:
        """What goes on to shards that are another one's is cancelled, and nobody waits for its end."""
        one = self.tasks[task]
        if one.shortened and not one.left:
            one.dismissed = True

    def _struck(
        self, task: TaskId, shard: int, kind: FailureKind, after_s: float = 0.0, peak: int = 0, tries: int = 1
    ) -> Record:
        outcome = self._strike(task, shard, kind, after_s, peak, tries)
        if outcome is not Outcome.RETRY or kind is K.LOST:
            return Record(shard, task, outcome, kind)
        one = self.shards[shard]
        return Record(shard, task, outcome, kind, one.strikes[kind], 0.0 if kind in AT_ONCE else one.wait_s)

    def _strike(
        self, task: TaskId, shard: int, kind: FailureKind, after_s: float, peak: int = 0, tries: int = 1
    ) -> Outcome:
        if self._elsewhere(task, shard):
            return Outcome.COPY_FAILED
        self.busy = self.busy or kind in AWAITED
        self.unserved |= {shard} if kind is K.UNSERVED else set()
        one = self.shards[shard]
        one.strikes[kind] += tries
        count = one.strikes[kind]
        had = max(one.memory or 0, self.policy.declared_memory or 0)
        final = count > self.policy.limit(kind)
        if kind is K.OUT_OF_MEMORY:
            final = final or (self.largest is not None and had >= self.largest)
            wanted = 2 * max(had, peak, LEAST_MEMORY)
            one.memory = wanted if self.largest is None else min(wanted, self.largest)
        if final:
            one.place = ShardState.FAILED
            self.served_none |= kind is K.UNSERVED and len(self.unserved) >= LEAST_SHARDS
            return Outcome.FAILED
        one.place = ShardState.READY if kind in AT_ONCE else ShardState.WAITING
        one.wait_s = max(after_s, min(60.0, 2.0 ** (count - 1)))
        one.due_s = self.now_s + one.wait_s
        return Outcome.RETRY

    def _fall_due(self) -> None:
        for one in self.shards.values():
            if one.place is ShardState.WAITING and one.due_s <= self.now_s:
                one.place = ShardState.READY

    def _left(self) -> bool:
        return any(one.place not in (ShardState.DONE, ShardState.FAILED) for one in self.shards.values())

    def _end(self) -> SchedulerState | None:
        failed = sum(one.place is ShardState.FAILED for one in self.shards.values())
        if self.policy.max_failed is not None and failed > self.policy.max_failed:
            return SchedulerState.ABORTED
        left = self._left()
        over = (self.stopped or not left) and all(one.dismissed for one in self.tasks.values())
        return SchedulerState.FINISHED if over else None

    @property
    def slots(self) -> int:
        if self.asked is None or self.share is None or self.asked <= self.share:
            return self.there
        return min(self.there, max(1, int(self.there * self.share / self.asked)))

    def _saw(self, held_bytes: int) -> None:
        """A shard's process held that much."""
        if held_bytes:
            begun = self.slots
            self.held_bytes.append(held_bytes)
            self._learn(begun)

    def _learn(self, begun: int) -> None:
        """What nine of the last ten held is asked for, if that is more than a slot has: in eighths of it, a tenth more;
        less only if it is much less."""
        before, needed = self.asked, None
        seen = sorted(self.held_bytes[-100:])
        if (
            seen
            and self.share is not None
            and (held := seen[-1 - (len(seen) // 10 or int(len(seen) > 2))]) > self.share
        ):
            step = self.share // 8
            needed = -(-int(held * 1.1) // step) * step
            needed = needed if self.largest is None else min(needed, self.largest)
            if before is not None and 0.7 * before < needed < before:
                needed = before if self.largest is None else min(before, self.largest)
        self.asked = needed
        self.learnt = needed != before
        if needed is not None and needed > (before or 0):
            self.begun = max(self.begun or 0, begun)

    def _is_late(self, one: Task) -> bool:
        limit_s = self.policy.task_timeout_s
        return one.heard_s is not None and limit_s is not None and self.now_s - one.heard_s > limit_s

    def _taken_back(self) -> bool:
        """Whether no task waits for a slot that was launched before more was asked for."""
        newest = max((task for task, one in self.tasks.items() if one.heard_s is not None), default=-1)
        left = [self.tasks[task] for task in self.queued if task in self.tasks and task > newest]
        short = [one for one in left if one.memory < (self.asked or 0)]
        return not any(one.left and one.twin is None and not one.cancelled for one in short)

    def _window(self) -> int:
        return self.policy.max_in_flight or max(16, 2 * self.slots)

    def _open(self) -> bool:
        in_place = sum(task.waits for task in self.tasks.values())
        return not self.busy or self._told_to_wait() + in_place < self._window()

    def _told_to_wait(self) -> int:
        waiting = [one for one in self.shards.values() if one.place is ShardState.WAITING]
        return sum(any(one.strikes[kind] for kind in AWAITED) for one in waiting)

    def _held(self, task: TaskId | None) -> Task | None:
        return None if task is None or self.finished else self.tasks.get(task)

    def _elsewhere(self, task: TaskId, shard: int) -> bool:
        twin = self._held(self.tasks[task].twin)
        return twin is not None and shard in twin.left

    def _task(self, which: int) -> TaskId:
        """Mostly a task in flight; now and then one that is over, or that never was."""
        flying = list(self.tasks)
        return flying[which % len(flying)] if flying and which < 28 else TaskId(which)

    def _shard(self, task: TaskId, nth: int) -> int:
        """Mostly one that the task holds; now and then any."""
        left = self.tasks[task].left if task in self.tasks else []
        return left[nth % len(left)] if left and nth < 27 else nth

    def _done(self, task: TaskId, shard: int, seconds: float = 1.0) -> None:
        """As the rule, of what is in flight."""
        if task in self.tasks and shard in self.tasks[task].left:
            place = list(self.tasks).index(task)
            if place < 28:
                self.shard_done(place, min(26, self.tasks[task].left.index(shard)), seconds, computed=True)

    def _ended(self, task: TaskId) -> None:
        place = list(self.tasks).index(task)
        if place < 28:
            self.task_ended(place, 0, K.LOST, 0, 1)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)


class IdleSlots(AnyOrder):
    """Events in any order again, from where bundles run and all other slots are idle: they share what is not begun."""

    parts = 0

    @initialize(
        n=st.integers(22, 40),
        most=st.sampled_from([None, None, 4]),
        timeout_s=st.sampled_from([None, 20.0]),
        slots=st.sampled_from([4, 20]),
    )
    def start(self, n: int, most: int | None, timeout_s: float | None, slots: int) -> None:  # type: ignore[override]
        policy = Policy(target_task_s=1e6, max_in_flight=most, task_timeout_s=timeout_s)
        super().start([MIB] * n, policy, 1, None)
        for task in list(self.tasks):
            for shard in list(self.tasks[task].left):
                self._done(task, shard, 100.0)
            self._ended(task)
        assert max(len(one.left) for one in self.tasks.values()) > 1
        self.slots_changed(slots, None, None)
        self.tick(1.0)

    def _launched(self, launch: Launch, judging: bool) -> None:
        super()._launched(launch, judging)
        IdleSlots.parts += launch.part_of is not None


class TestIdleSlots(IdleSlots.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)

    def runTest(self) -> None:  # noqa: N802  unittest's name
        super().runTest()
        assert IdleSlots.parts > 0
