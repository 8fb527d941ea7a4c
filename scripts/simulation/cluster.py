"""A cluster and a store on a virtual clock, and what happens to them, in order of time; runs what is launched."""

from __future__ import annotations

import gc
import hashlib
import heapq
import math
import random
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from curate.stage.publishing import in_flight
from curate.tasks.events import (
    Cancel,
    Event,
    Launch,
    Record,
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
from curate.tasks.scheduler import Scheduler
from curate.units import GIB

from .auditor import FAILED, NODE_MEMORY, OPEN, Auditor, Broken
from .scenario import Scenario

FOUND_S = 0.2
"""What an attempt takes that finds the output there."""
NOTICE_S = 30.0
"""How long a node drains that is preempted with notice: nothing is started on it. Half of them are."""
DETECTED_S = (0.5, 3.0)
"""After how long the driver hears of a node that died, at least and at most."""
CANCELLED_S = (0.05, 2.0)
"""How long a task goes on after it was cancelled; it may publish."""
ORPHANED_S = (0.5, 2.0)
"""How long tasks go on after their driver died; they may publish."""
PUBLISH_DELAY_S = (5.0, 60.0)
"""How long a store that throttles holds up a publish that succeeds."""
LATER_S = 30.0
"""How long user code asks to wait that is not ready."""
FLAKY = (FailureKind.USER_ERROR, FailureKind.STORAGE, FailureKind.RETRY_LATER, FailureKind.FOREIGN, FailureKind.CRASHED)
"""What a fault may be that passes."""
POISON = (FailureKind.CORRUPT, FailureKind.USER_ERROR, FailureKind.CRASHED)
"""What a shard may have that fails whenever it runs."""
WASTE = {
    "lost": "with its node",
    "head": "with the driver",
    "copies": "came second to a copy",
    "failed": "failed, crashed, hung",
    "found": "looking, the output existed",
}
SPENT = ("useful", "slow", *WASTE)


@dataclass(slots=True, eq=False)
class Node:
    """A machine. Another one takes the place of one that was preempted."""

    place: int
    slots: int
    factor: float
    """How many times longer everything takes on it."""
    open: bool = True
    """Whether tasks are started on it."""
    running: dict[Run, None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Run:
    """A task from launch to end."""

    task: TaskId
    shards: tuple[int, ...]
    attempt: int
    memory: int
    at: int = 0
    """The shard at hand."""
    since_s: float = 0.0
    """When that was begun."""
    ends_s: float = math.inf
    """When that ends, if nothing happens."""
    fate: FailureKind | None = None
    """How that will fail."""
    found: bool = False
    """Its output was there when that was begun."""
    late: bool = False
    """The publish of that was held up."""
    factor: float = 1.0
    started: bool = False
    node: Node | None = None
    """Where it runs, if it does."""
    over: bool = False
    """Nothing more is to be told of it."""


@dataclass(slots=True)
class Timeline:
    """Samples, taken at every tick."""

    at_s: array[float] = field(default_factory=lambda: array("d"))
    capacity: array[int] = field(default_factory=lambda: array("q"))
    running: array[int] = field(default_factory=lambda: array("q"))
    in_flight: array[int] = field(default_factory=lambda: array("q"))
    published: array[int] = field(default_factory=lambda: array("q"))
    wasted_s: dict[str, array[float]] = field(default_factory=lambda: {name: array("d") for name in WASTE})
    bad_times: list[tuple[str, float, float]] = field(default_factory=list)
    """Storms, and the times without a head: what, from, to."""


class Simulation:
    """A cluster, a store and a scheduler, and what happens to them, in order of virtual time."""

    def __init__(
        self,
        scenario: Scenario,
        make: Callable[..., Scheduler] = Scheduler,
        trace: Callable[[bytes], Any] | None = None,
    ) -> None:
        self.scenario = scenario
        self.make = make
        self.trace = trace
        self.digest = hashlib.sha256()
        self.policy = Policy(target_task_s=scenario.target_task_seconds, task_timeout_s=scenario.task_timeout or None)
        self.work_s = scenario.work_s()
        self.sizes = scenario.sizes(self.work_s)
        self.published = bytearray(scenario.tasks)
        """The store: first come, first served."""
        self.outputs = 0
        self.found = self.second = self.preempted = 0
        self.by_zombies: set[int] = set()
        self.heads = self.shard_attempts = 0
        self.auditor = Auditor(scenario.tasks, self.policy)
        self.scheduler: Scheduler | None = None
        self.now_s = 0.0
        self.events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self.pushed = 0
        self.inbox: deque[Event] = deque()
        self.nodes: list[Node | None] = [None] * math.ceil(scenario.slots / scenario.slots_per_node)
        """By place; None where none was yet."""
        self.runs: dict[int, Run] = {}
        self.ending: dict[int, Run] = {}
        """Those that are over, until the scheduler is told."""
        self.queue: deque[Run] = deque()
        """Launched, and waiting for a slot."""
        self.free: list[Node] = []
        """Where a task can be started, a node once for each of its free slots; nodes that closed are passed over."""
        self.slots = self.capacity = self.running = 0
        self.capacity_s = self.running_s = 0.0
        """Slot-seconds."""
        self.steps_of_capacity: list[tuple[float, int]] = []
        self.spent = dict.fromkeys(SPENT, 0.0)
        self.undecided_s = 0.0
        """Slot-seconds of zombies that may still publish."""
        self.storm_until_s = -1.0
        self.timeline = Timeline()
        self.handling_s = 0.0
        self.footprint = 0
        """Most memory seen that the scheduler held, in bytes."""
        self.next_footprint = 0
        chance = {
            name: random.Random(f"{scenario.seed} {name}")
            for name in ("nodes", "preempt", "kill", "speed", "storm", "fault", "cancel", "head")
        }
        # A stream for each, so that one disturbance more or less leaves the draws of the others as they are.
        self.nodes_rng, self.preempt_rng, self.kill_rng, self.speed_rng = (
            chance[name] for name in ("nodes", "preempt", "kill", "speed")
        )
        self.storm_rng, self.fault_rng, self.cancel_rng, self.head_rng = (
            chance[name] for name in ("storm", "fault", "cancel", "head")
        )
        special = random.Random(f"{scenario.seed} special").sample(
            range(scenario.tasks), min(scenario.tasks, scenario.poison + scenario.hogs)
        )
        self.poison = {shard: POISON[k % len(POISON)] for k, shard in enumerate(special[: scenario.poison])}
        self.hogs = {shard: (2 << (k % 2)) * GIB - 1 for k, shard in enumerate(special[scenario.poison :])}
        """Bytes that a shard needs: twice or four times what a task has at first, less a little."""

    def run(self) -> None:
        """Runs to the end. Raises Broken if a rule does not hold."""
        try:
            self._set_up()
            while self.events and not self.auditor.finished:
                at_s, _, happen, what = heapq.heappop(self.events)
                self.capacity_s += (at_s - self.now_s) * self.capacity
                self.running_s += (at_s - self.now_s) * self.running
                self.now_s = at_s
                happen(what)
                while self.inbox:
                    self._step(self.inbox.popleft())
            self._check_the_end()
        except Broken as broken:
            raise Broken(
                f"{broken}\nat {self.now_s:.3f} s, step {self.auditor.steps:,}, seed {self.scenario.seed}"
            ) from broken

    def _set_up(self) -> None:
        scenario = self.scenario
        for place in range(len(self.nodes)):
            self._at(self.nodes_rng.uniform(0, scenario.ramp), self._join, place)
        if scenario.preempt_per_hour:
            self._at(0.0, self._preempt, None)
        for name, count, happen in (
            ("dip", scenario.dips, self._dip),
            ("storm", scenario.storms, self._storm),
            ("head", scenario.head_deaths, self._head_dies),
        ):
            rng = random.Random(f"{scenario.seed} when {name}")
            for k in range(count):
                # One in each part of the run.
                self._at(scenario.horizon_s * (0.1 + 0.8 * (k + rng.random()) / count), happen, None)
        self._head_starts(None)
        self._at(0.0, self._tick, None)

    def _at(self, at_s: float, happen: Callable[[Any], None], what: Any) -> None:
        self.pushed += 1
        heapq.heappush(self.events, (at_s, self.pushed, happen, what))

    def _after(self, span_s: tuple[float, float], rng: random.Random, happen: Callable[[Any], None], what: Any) -> None:
        self._at(self.now_s + rng.uniform(*span_s), happen, what)

    def _note(self, line: str) -> None:
        data = f"{self.now_s:.6f} {line}\n".encode()
        self.digest.update(data)
        if self.trace is not None:
            self.trace(data)

    # The scheduler

    def _tell(self, event: Event) -> None:
        """Gives the scheduler an event, after those that were given before. A head that is dead hears nothing."""
        if self.scheduler is not None:
            self.inbox.append(event)

    def _step(self, event: Event) -> None:
        scheduler = self.scheduler
        if scheduler is None:
            return
        if isinstance(event, TaskEnded):
            event = self._as_seen(scheduler, event)
        if not isinstance(event, Tick):
            self._note(_line(event))
        started_s = time.process_time()
        actions = scheduler.handle(event, self.now_s)
        self.handling_s += time.process_time() - started_s
        self.auditor.check(scheduler, event, actions, self.now_s)
        for action in actions:
            self._note(_line(action))
            if isinstance(action, Launch):
                run = Run(action.task, action.shards, action.attempt, action.memory or GIB)
                self.runs[action.task] = run
                self.queue.append(run)
            elif isinstance(action, Cancel) and action.task in self.runs:
                self._after(CANCELLED_S, self.cancel_rng, self._cancel, self.runs[action.task])
        if self.auditor.done >= self.next_footprint:
            # Looked at some fifty times: it takes as long as a thousand steps.
            self.footprint = max(self.footprint, footprint(scheduler))
            self.next_footprint = self.auditor.done + max(1, self.scenario.tasks // 50)
        self._start_queued()

    def _as_seen(self, scheduler: Scheduler, event: TaskEnded) -> TaskEnded:
        """Returns the end of a task as the dispatcher tells it, which looks for the first shard without an output, and
        says how many shards from there on may have been begun."""
        left, run = scheduler.unreported(event.task), self.ending.pop(event.task)
        if not left or event.kind is None:
            return TaskEnded(event.task, None if not left else event.kind)
        if event.kind is FailureKind.LOST:
            return event
        suspect = next((shard for shard in left if not self.published[shard]), left[-1])
        begun = in_flight(run.shards.index(suspect), run.attempt, self.policy.task_timeout_s)
        suspects = min(begun, len(left) - left.index(suspect))
        return TaskEnded(event.task, event.kind, suspect, suspects, event.peak_bytes)

    def _tick(self, _: None) -> None:
        self._tell(Tick())
        line = self.timeline
        line.at_s.append(self.now_s)
        line.capacity.append(self.capacity)
        line.running.append(self.running)
        line.in_flight.append(len(self.runs))
        line.published.append(self.outputs)
        for name, seconds in line.wasted_s.items():
            seconds.append(self.spent[name])
        if self.now_s > 200 * (
            self.scenario.horizon_s + self.scenario.longest_seconds * self.scenario.straggler_slowdown
        ):
            raise Broken(f"no end in sight: {self.scenario.tasks - self.outputs} shards have no output")
        self._at(self.now_s + self.scenario.tick, self._tick, None)

    def _head_starts(self, _: None) -> None:
        """A driver lists the outputs, and starts on what has none."""
        self.heads += 1
        todo = np.flatnonzero(np.frombuffer(self.published, dtype=np.uint8) == 0)
        self._note(f"head {self.heads} starts with {len(todo)} shards")
        self.auditor.begin(todo.tolist())
        self.scheduler = self.make(todo, self.sizes[todo], self.policy)
        self.next_footprint = 0
        self._tell_slots()

    def _head_dies(self, _: None) -> None:
        """All that the scheduler knew is gone; its tasks go on for a moment."""
        if self.scheduler is None:
            return
        self._note("head dies")
        self.scheduler = None
        self.inbox.clear()
        self.ending.clear()
        for run in self.runs.values():
            run.over = True
            if run.node is not None:
                self._die(run, self.head_rng.uniform(*ORPHANED_S), "head")
        self.runs.clear()
        self.queue.clear()
        self.free = [node for node in self._open_nodes() for _ in range(node.slots)]
        self.timeline.bad_times.append(("no driver", self.now_s, self.now_s + self.scenario.head_downtime))
        self._at(self.now_s + self.scenario.head_downtime, self._head_starts, None)

    # Tasks

    def _start_queued(self) -> None:
        while self.queue and self.free:
            node = self.free.pop()
            if not node.open:
                continue
            run = self.queue.popleft()
            if run.over:
                self.free.append(node)
                continue
            run.started, run.node = True, node
            node.running[run] = None
            self.running += 1
            if self.running > self.capacity or len(node.running) > node.slots:
                raise Broken(f"{self.running} tasks run on {self.capacity} slots")
            rng, scenario = self.speed_rng, self.scenario
            run.factor = node.factor
            if rng.random() < scenario.straggler_rate:
                run.factor *= self._slowness()
            if run.attempt > 1 or self.policy.task_timeout_s is not None or rng.random() < scenario.announced:
                self._tell(TaskStarted(run.task))
            self._begin(run)

    def _slowness(self) -> float:
        return self.speed_rng.uniform(min(3.0, self.scenario.straggler_slowdown), self.scenario.straggler_slowdown)

    def _begin(self, run: Run) -> None:
        """Starts on the next shard of a task."""
        shard = run.shards[run.at]
        self.shard_attempts += 1
        run.since_s = self.now_s
        run.fate, run.late, run.found = None, False, bool(self.published[shard])
        if run.found:
            seconds = FOUND_S
        else:
            seconds = self.work_s[shard] * run.factor
            run.fate = self._fate(shard, run)
            if run.fate is FailureKind.TIMED_OUT:
                run.ends_s = math.inf
                return
            if run.fate is not None:
                seconds *= self.fault_rng.random()
        run.ends_s = self.now_s + seconds
        self._at(run.ends_s, self._shard_ends, run)

    def _fate(self, shard: int, run: Run) -> FailureKind | None:
        rng = self.fault_rng
        if shard in self.poison:
            return self.poison[shard]
        if self.hogs.get(shard, 0) > run.memory:
            return FailureKind.OUT_OF_MEMORY
        draw = rng.random()
        if draw < self.scenario.faults:
            return rng.choice(FLAKY)
        if draw < self.scenario.faults + self.scenario.hangs:
            return FailureKind.TIMED_OUT
        return None

    def _shard_ends(self, run: Run) -> None:
        if run.node is None:
            return
        shard = run.shards[run.at]
        seconds = self.now_s - run.since_s
        fate = run.fate
        if fate is None and self.now_s < self.storm_until_s and not run.found and not run.late:
            draw = self.storm_rng.random()
            if draw < self.scenario.storm_failing:
                fate = FailureKind.THROTTLED
            elif draw < 2 * self.scenario.storm_failing:
                run.late = True
                run.ends_s = self.now_s + self.storm_rng.uniform(*PUBLISH_DELAY_S)
                self._at(run.ends_s, self._shard_ends, run)
                return
        if fate in (FailureKind.CRASHED, FailureKind.OUT_OF_MEMORY):
            self.spent["failed"] += seconds
            self._leave(run)
            self._end(run, fate, run.memory)
            return
        if fate is not None:
            self.spent["failed"] += seconds
            after_s = LATER_S if fate is FailureKind.RETRY_LATER else 0.0
            self._tell(ShardFailed(run.task, shard, fate, after_s))
        else:
            computed = self._publish(shard)
            if computed:
                self._spend_usefully(shard, seconds)
            elif run.found:
                self.found += 1
                self.spent["found"] += seconds
            else:
                self.second += 1
                self.spent["copies"] += seconds
            self._tell(ShardDone(run.task, shard, int(self.sizes[shard]), seconds, computed))
        run.at += 1
        if run.at < len(run.shards):
            self._begin(run)
        else:
            self._leave(run)
            self._end(run, None)

    def _publish(self, shard: int) -> bool:
        """Creates an output, unless there is one."""
        if self.published[shard]:
            return False
        self.published[shard] = 1
        self.outputs += 1
        return True

    def _spend_usefully(self, shard: int, seconds: float) -> None:
        useful_s = min(seconds, self.work_s[shard])
        self.spent["useful"] += useful_s
        self.spent["slow"] += seconds - useful_s

    def _leave(self, run: Run) -> None:
        """A task no longer has its slot."""
        node = run.node
        assert node is not None
        run.node = None
        del node.running[run]
        self.running -= 1
        if node.open:
            self.free.append(node)

    def _end(self, run: Run, kind: FailureKind | None, peak_bytes: int = 0) -> None:
        """The driver hears that a task is over."""
        if not run.over:
            run.over = True
            del self.runs[run.task]
            self.ending[run.task] = run
            self._tell(TaskEnded(run.task, kind, peak_bytes=peak_bytes))

    def _cancel(self, run: Run) -> None:
        if run.over or (run.started and run.node is None):
            return  # its end was told, or is on its way
        if run.node is not None:
            seconds = self.now_s - run.since_s
            beaten = all(map(self.published.__getitem__, run.shards[run.at :]))
            self.spent["copies" if beaten else "failed"] += seconds
            self._leave(run)
        self._end(run, FailureKind.LOST)

    def _die(self, run: Run, goes_on_s: float, why: str) -> None:
        """A task loses its slot in the midst of a shard; it may still publish that, in the seconds that it goes on."""
        shard, seconds = run.shards[run.at], self.now_s - run.since_s
        self._leave(run)
        if run.fate is None and not self.published[shard] and run.ends_s <= self.now_s + goes_on_s:
            self.undecided_s += seconds
            self._at(run.ends_s, self._zombie_publishes, (shard, seconds, why))
        else:
            self.spent[why] += seconds

    def _zombie_publishes(self, what: tuple[int, float, str]) -> None:
        shard, seconds, why = what
        self.undecided_s -= seconds
        if self._publish(shard):
            self.by_zombies.add(shard)
            self._note(f"zombie publishes {shard}")
            self._spend_usefully(shard, seconds)
        else:
            self.spent[why] += seconds

    # Nodes and the store

    def _tell_slots(self) -> None:
        self._tell(SlotsChanged(self.slots, NODE_MEMORY))

    def _set_capacity(self, change: int) -> None:
        self.capacity += change
        self.steps_of_capacity.append((self.now_s, self.capacity))

    def _open_nodes(self) -> list[Node]:
        return [node for node in self.nodes if node is not None and node.open]

    def _join(self, place: int) -> None:
        slots = min(self.scenario.slots_per_node, self.scenario.slots - place * self.scenario.slots_per_node)
        factor = self._slowness() if self.speed_rng.random() < self.scenario.slow_nodes else 1.0
        node = self.nodes[place] = Node(place, slots, factor)
        self.slots += node.slots
        self._set_capacity(node.slots)
        self.free.extend([node] * node.slots)
        self._tell_slots()

    def _preempt(self, _: None) -> None:
        """Preempts a node now and then: each one with the same chance in each second that it is up."""
        rng, scenario = self.preempt_rng, self.scenario
        if self.now_s:
            node = rng.choice(self.nodes)
            if node is not None and node.open:
                self._take(node)
        rate = -math.log1p(-min(scenario.preempt_per_hour, 0.999999)) / 3600 * len(self.nodes)
        self._at(self.now_s + rng.expovariate(rate), self._preempt, None)

    def _dip(self, _: None) -> None:
        self._note("dip")
        nodes = self._open_nodes()
        for node in self.preempt_rng.sample(nodes, int(len(nodes) * self.scenario.dip_share)):
            self._take(node)

    def _take(self, node: Node) -> None:
        """Closes a node; kills it now, or after the notice."""
        self.preempted += 1
        node.open = False
        self.slots -= node.slots
        if self.preempt_rng.random() < 0.5:
            self._tell_slots()
            self._at(self.now_s + NOTICE_S, self._kill, node)
        else:
            self._kill(node)

    def _kill(self, node: Node) -> None:
        self._set_capacity(-node.slots)
        rng = self.kill_rng
        lost = list(node.running)
        for run in lost:
            zombie = rng.random() < self.scenario.zombies
            self._die(run, rng.uniform(1.0, self.scenario.zombie_seconds) if zombie else 0.0, "lost")
        self._after(DETECTED_S, rng, self._hear_of_death, lost)
        self._at(self.now_s + rng.expovariate(1 / self.scenario.rejoin), self._join, node.place)

    def _hear_of_death(self, lost: list[Run]) -> None:
        self._tell_slots()
        for run in lost:
            self._end(run, FailureKind.LOST)

    def _storm(self, _: None) -> None:
        self._note("storm")
        self.storm_until_s = self.now_s + self.scenario.storm_seconds
        self.timeline.bad_times.append(("storm", self.now_s, self.storm_until_s))

    # The end

    def _check_the_end(self) -> None:
        """Every shard has one output or was given up, and every second of every slot is accounted for.

        A zombie may publish a shard after it was given up: nobody can know before.
        """
        if not self.auditor.finished:
            raise Broken("nothing is left to happen, and the scheduler has not finished")
        for shard in range(self.scenario.tasks):
            ended = self.auditor.ended[shard]
            right = shard in self.by_zombies or not self.published[shard] if ended == FAILED else self.published[shard]
            if ended == OPEN or not right:
                raise Broken(f"shard {shard} has {self.published[shard]} outputs and ended as {ended}")
        if self.outputs != sum(self.published):
            raise Broken(f"{self.outputs} outputs were published, {sum(self.published)} are there")
        for run in self.runs.values():
            # Copies that came second, and were cancelled; nobody waits for their end.
            if run.node is not None:
                self.spent["copies"] += self.now_s - run.since_s
        self.spent["lost"] += self.undecided_s
        if not math.isclose(sum(self.spent.values()), self.running_s, rel_tol=1e-6):
            raise Broken(f"slots ran for {self.running_s} s, of which {self.spent} are accounted for")


def _line(what: Any) -> str:
    """Returns an event or an action in one line of the trace."""
    kind = type(what)
    if kind is Launch:
        shards = " ".join(map(str, what.shards))
        copy = "" if what.copy_of is None else f" copy of {what.copy_of}"
        return f"launch {what.task} attempt {what.attempt} memory {what.memory or 0}{copy}: {shards}"
    if kind is Record:
        return f"book {what.shard} of {what.task} {what.outcome}"
    if kind is ShardDone:
        return f"done {what.shard} of {what.task} {'computed' if what.computed else 'existed'}"
    if kind is TaskEnded:
        return f"ended {what.task} {what.kind}"
    return str(what)


def footprint(thing: Any) -> int:
    """Returns the bytes of all that is reached from `thing`, code and classes left out."""
    seen: set[int] = set()
    total = 0
    left = [thing]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType | BuiltinFunctionType):
            continue
        seen.add(id(one))
        total += one.nbytes if isinstance(one, np.ndarray) else sys.getsizeof(one)
        left.extend(gc.get_referents(one))
    return total
