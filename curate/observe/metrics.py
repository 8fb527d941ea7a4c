"""Metrics of the operators of a pipeline: how busy each was, and which one is the bottleneck."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from curate.dataclass import dataclass, field, replace
from curate.pipeline.meters import Meter
from curate.runtime.protocol import Backend, PoolState

LEAST_BUSY = 0.25
"""What was at work for less of the time than this limits nothing."""
LOOK_AT_POOLS_S = 1.0
"""How often a run notes how its pools are doing."""
MOSTLY_CPU = 0.5
"""Work of which less than this was spent on a CPU waited for something else most of the time."""


class Role(StrEnum):
    """What an operator does in its chain."""

    READ = "read"
    STEP = "step"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class OperatorMetrics:
    """An operator of a pipeline, and what it has done so far."""

    name: str
    role: Role
    meter: Meter
    pool: PoolState | None = None
    """The pool that it runs in, as it was last seen; None: it runs in the tasks that read."""
    actor_s: float = 0.0
    """Seconds that actors were there for it, all of them together."""
    behind: bool = False
    """Whether it runs in the consumer's process, behind the tasks."""
    stage: str = ""
    """The stage that it is part of, of a job of several."""

    @property
    def actors(self) -> int:
        """How many actors it has."""
        return self.pool.ready if self.pool else 0

    @property
    def busy(self) -> float:
        """Share of the time of its actors in which they were at work; 0 without actors."""
        return min(1.0, self.meter.wall_s / self.actor_s) if self.actor_s > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Returns what a heartbeat says of it."""
        said: dict[str, Any] = {
            "name": self.name,
            "rows_in": self.meter.rows_in,
            "rows_out": self.meter.rows_out,
            "bytes_out": self.meter.bytes_out,
            "largest_bytes": self.meter.largest_bytes,
            "peak_bytes": self.meter.peak_bytes,
            "wall_s": round(self.meter.wall_s, 3),
            "cpu_s": round(self.meter.cpu_s, 3),
        }
        if self.pool is not None:
            said |= {
                "wait_s": round(self.meter.wait_s, 3),
                "actors": self.pool.ready,
                "starting": self.pool.starting,
                "queued": self.pool.queued,
                "busy": round(self.pool.busy, 3),
            }
        return said


@dataclass(frozen=True, slots=True)
class Flow:
    """How blocks go from the tasks that make them to a consumer."""

    blocks: int = 0
    """Blocks that the consumer got."""
    rows: int = 0
    bytes: int = 0
    largest_bytes: int = 0
    queued: int = 0
    """Blocks that are made and that the consumer did not get yet."""
    queued_bytes: int = 0
    budget_bytes: int = 0
    """Bytes that they may have."""
    waited_s: float = 0.0
    """Seconds that the consumer waited for a block."""
    consumer_s: float = 0.0
    """Seconds that blocks waited for the consumer."""
    blocked_s: float = 0.0
    """Seconds that tasks stood still with a block for which there was no room, all of them together."""


@dataclass(frozen=True, slots=True)
class PipelineMetrics:
    """A pipeline at one moment: chains of operators whose tasks run side by side, and what came of them."""

    operators: tuple[OperatorMetrics, ...] = ()
    """In the order in which rows go through them; those of one chain after those of another."""
    elapsed_s: float = 0.0
    slot_s: float = 0.0
    """Seconds that tasks had slots for, all of them together."""
    running: int = 0
    """Tasks that run."""
    inline: bool = False
    """Whether all of it runs in one thread of this process."""
    flow: Flow | None = None
    """None where rows are written, and nobody consumes them."""
    start_s: float = 0.0
    """Seconds that it took to start what runs tasks, before `elapsed_s`."""

    @property
    def several(self) -> bool:
        """Whether there is more to tell apart than one step in the tasks that read."""
        steps = [one for one in self.operators if one.role is Role.STEP]
        return len(steps) > 1 or any(one.pool is not None for one in steps)

    def as_dict(self) -> dict[str, Any]:
        """Returns what a heartbeat says of operators; nothing where there is no more than one step to tell of."""
        return {"operators": [one.as_dict() for one in self.operators]} if self.several else {}


@dataclass(slots=True)
class Capacity:
    """How long there were slots for tasks, and actors: from looks at what there is. Pure; the caller has the clock."""

    slot_s: float = 0.0
    actor_s: list[float] = field(default_factory=list)
    pools: list[PoolState] = field(default_factory=list)
    """Pools as they were last seen."""
    _slots: int = 0
    _looked_s: float | None = None

    def look(self, now_s: float, slots: int, pools: list[PoolState] | None) -> None:
        """Takes in how many slots there are, and how the pools are doing; None: as they were."""
        if self._looked_s is not None:
            passed_s = max(0.0, now_s - self._looked_s)
            self.slot_s += passed_s * self._slots
            for number, pool in enumerate(self.pools):
                self.actor_s[number] += passed_s * pool.ready
        self._looked_s, self._slots = now_s, slots
        if pools is not None:
            self.pools = pools
            self.actor_s += [0.0] * (len(pools) - len(self.actor_s))


class Gauge:
    """Measures the operators of a run while it goes on."""

    def __init__(self, operators: list[tuple[str, Role, bool]], now_s: float) -> None:
        """`operators` are names and roles, and whether each runs in a pool."""
        self.meters = [Meter() for _ in operators]
        self._operators = operators
        self._capacity = Capacity()
        self._backend: Backend | None = None
        self._began_s = self._ticked_s = self._looked_at_pools_s = now_s

    def begin(self, backend: Backend, now_s: float) -> None:
        """Measures from now on what the operators have to work with."""
        self._backend = backend
        self._began_s = self._ticked_s = self._looked_at_pools_s = now_s
        self._capacity.look(now_s, backend.slots(), backend.pools())

    def look(self, now_s: float, slots: int) -> str:
        """Notes how many slots there are, and now and then how the pools are doing. Returns what finds no place."""
        pools = None
        if self._backend is not None and now_s - self._looked_at_pools_s >= LOOK_AT_POOLS_S:
            self._looked_at_pools_s, pools = now_s, self._backend.pools()
        self._capacity.look(now_s, slots, pools)
        self._ticked_s = now_s
        return "" if self._backend is None else self._backend.waits()

    def metrics(self, running: int, start_s: float) -> PipelineMetrics:
        """Returns what was measured, of a run that has so many shards running and took `start_s` to start Ray."""
        return PipelineMetrics(
            operated([(self._operators, self.meters)], self._capacity),
            elapsed_s=self._ticked_s - self._began_s,
            slot_s=self._capacity.slot_s,
            running=running,
            inline=self._backend is not None and self._backend.name == "inline",
            start_s=start_s,
        )


def operated(
    chains: Sequence[tuple[Sequence[tuple[str, Role, bool]], Sequence[Meter]]], capacity: Capacity
) -> tuple[OperatorMetrics, ...]:
    """Returns the operators of chains: of each its name, role, whether it runs in a pool, and its meter.

    Pools are those of `capacity`, in the order of the operators that run in one.
    """
    found = []
    pools = zip(capacity.pools, capacity.actor_s, strict=True)
    for operators, meters in chains:
        for (name, role, pooled), meter in zip(operators, meters, strict=True):
            pool, actor_s = next(pools, (None, 0.0)) if pooled else (None, 0.0)
            found.append(OperatorMetrics(name, role, replace(meter), pool, actor_s))
    return tuple(found)


# What limits


def limit_of(found: PipelineMetrics) -> str:
    """Returns the sentence that says what limits a pipeline: the consumer, a pool, tasks, or the room for blocks.

    All of them work at once, each on what the others leave. What was at work for most of its own time is what the
    others wait for. Where the tasks limit, it is the operator that took most of their time which is named.

    >>> pool = PoolState("map(Model)", 2, 0, 3, 1.0)
    >>> model = OperatorMetrics("map(Model)", Role.STEP, Meter(wall_s=97.0), pool, 100.0)
    >>> limit_of(PipelineMetrics((model,), elapsed_s=50.0, slot_s=100.0))
    'map(Model) is the bottleneck: its 2 actors were busy 97 % of the time; more actors would help'
    """
    if not any(one.meter.wall_s for one in found.operators):
        return "nothing was measured: no operator has run yet"
    candidates = [_tasks(found)]
    if not found.inline:
        candidates += [(one.busy, _pool_sentence(one)) for one in found.operators if one.pool is not None]
    behind_s = 0.0
    for one in found.operators:
        if one.behind:
            behind_s += one.meter.wall_s
            part = _share(one.meter.wall_s, found.elapsed_s)
            says = f"{one.name} is the bottleneck: it was busy {_percent(part)} of the time, in this process"
            candidates.append((part, f"{says}; place it before the limit or the zip, where tasks share the work"))
    if found.flow is not None:
        consumer = _share(found.flow.consumer_s - behind_s, found.elapsed_s)
        candidates.append((consumer, f"the consumer is the bottleneck: blocks waited {_percent(consumer)} of the time"))
        # While the consumer is busy, tasks stand still because of it.
        room = _share(found.flow.blocked_s, found.slot_s) - _share(found.flow.consumer_s, found.elapsed_s)
        says = f"memory_budget is the bottleneck: tasks waited {_percent(room)} of the time for memory; "
        candidates.append((room, f"{says}a larger one would help"))
    busy, sentence = max(candidates, key=lambda one: one[0])
    if busy < LEAST_BUSY:
        return (
            f"no operator is the bottleneck: the busiest one was busy {_percent(busy)} of the time; the rest went to "
            "starting workers and tasks"
        )
    return sentence


def _tasks(found: PipelineMetrics) -> tuple[float, str]:
    """Returns how busy the tasks were, and what is said if they limit."""
    there = [one for one in found.operators if not one.behind and (one.pool is None or found.inline)]
    work_s = sum(one.meter.wall_s for one in there)
    busy = _share(work_s, found.elapsed_s if found.inline else found.slot_s)
    if not work_s:
        return 0.0, ""
    most = max(there, key=lambda one: one.meter.wall_s)
    part = _share(most.meter.wall_s, work_s)
    on_cpu = _share(most.meter.cpu_s, most.meter.wall_s)
    says = f"{most.name} is the bottleneck: it took {_percent(part)} of the time of the tasks, which were busy "
    says += f"{_percent(busy)} of the time; "
    if on_cpu < MOSTLY_CPU:
        on = "something other than a CPU" if most.role is Role.STEP else "the store"
        helps = "a smaller num_cpus" if not found.inline else 'backend="auto"'
        return busy, f"{says}{_percent(1 - on_cpu)} of that it waited for {on}; {helps} would run more concurrent tasks"
    return busy, says + ("more CPUs would help" if not found.inline else 'backend="auto" would use more CPUs')


def _pool_sentence(one: OperatorMetrics) -> str:
    actors = f"its {one.actors:,} actors were" if one.actors != 1 else "its actor was"
    return f"{one.name} is the bottleneck: {actors} busy {_percent(one.busy)} of the time; more actors would help"


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"
