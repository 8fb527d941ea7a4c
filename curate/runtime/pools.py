"""Pools of actors as the driver sees them: who takes calls, how busy they are, how many there are to be, who is to go.

How actors are started, heard of and ended is each backend's own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

from curate.dataclass import dataclass, field
from curate.errors import PoolFailed
from curate.log import get_logger
from curate.runtime.protocol import ActorStatus, PoolSpec, PoolState
from curate.runtime.scaling import LoadTrend, PoolLoad, mean, needs, scale

LOOK_S = 1.0
"""How often actors are asked how they are, in a small pool."""
WAIT_S = 0.25
"""How often a pool that starts is looked at, and whether to stop waiting for it."""
MAX_FAILED_STARTS = 3
"""Actors in a row that die while they start, before a pool without any has failed."""
RETRY_S = 60.0
"""Longest wait before an actor is started after others failed to."""
CANCEL_S = 3.0
"""How long an actor may go on with a call of a task that was cancelled."""
SETUP_S = 600.0
"""How long an actor may take to be set up."""
MAX_DISMISSED = 1000
"""Actors that are remembered, of those that no call is to blame for."""


S = TypeVar("S", bound=ActorStatus)


@dataclass(eq=False, slots=True, kw_only=True)
class PoolActor(Generic[S]):
    """An actor that was started and is not known to be dead."""

    serial: int
    ready: bool = False
    seen: S | None = None
    """What it said last."""
    before: S | None = None
    """What it said before that."""
    begun_s: float | None = None
    """Since when it is being set up; None while it waits for a place."""
    leaves_s: float | None = None
    """Since when no calls are to be sent to it."""

    @property
    def busy(self) -> float:
        """Share of the time between the last two looks in which it was at work."""
        if self.seen is None or self.before is None or self.seen.at_s <= self.before.at_s:
            return 0.0
        return min(1.0, (self.seen.worked_s - self.before.worked_s) / (self.seen.at_s - self.before.at_s))

    def held_up(self, now: float) -> float:
        """Returns the share of the time in which no other call could run."""
        del now
        return self.busy

    @property
    def queued(self) -> int:
        """Calls that wait for it."""
        return self.seen.queued if self.seen else 0


A = TypeVar("A", bound=PoolActor[Any])


@dataclass(eq=False, slots=True, kw_only=True)
class ActorPool(Generic[A]):
    """A pool and its actors."""

    spec: PoolSpec
    size: int
    """Actors that it should have."""
    actors: dict[int, A] = field(default_factory=dict)
    started: int = 0
    """Actors that were ever started; the next one's serial."""
    failed_starts: int = 0
    """In a row."""
    wait_until_s: float = -math.inf
    """No actor is started before."""
    trend: LoadTrend = field(default_factory=LoadTrend)
    start_s: float = 0.0
    """How long the last actor took to load."""
    share: int = 2
    """Calls that a task may have made at a time."""

    @property
    def staying(self) -> list[A]:
        """Those that are not to leave."""
        return [one for one in self.actors.values() if one.leaves_s is None]

    @property
    def ready(self) -> list[A]:
        """Those that can answer calls."""
        return [one for one in self.actors.values() if one.ready]

    @property
    def called(self) -> list[A]:
        """Those that calls are sent to: who leaves goes on until there is another."""
        return [one for one in self.ready if one.leaves_s is None] or self.ready

    def missing(self, now: float) -> int:
        """Returns how many actors are to be started: none for a while after one could not."""
        return max(0, self.size - len(self.staying)) if now >= self.wait_until_s else 0

    def shrink(self, now: float) -> list[A]:
        """Sends no more calls to actors that are too many: those with the least to do. Returns those of them that are
        not ready, to be ended now."""
        queue = sorted(self.staying, key=lambda one: (one.ready, one.queued, -one.serial))
        too_many = queue[: max(0, len(queue) - self.size)]
        for one in too_many:
            one.leaves_s = now
        return [one for one in too_many if not one.ready]

    def unlisted(self, now: float, listed: Collection[int] | None) -> list[tuple[A, float]]:
        """Returns the actors that leave and that callers are told of no more, each with since when it leaves; `listed`
        are those that they are told of, None for all. One of these leaves from now on: it may be the only one."""
        found = []
        for one in self.ready:
            if one.leaves_s is not None and (listed is None or one.serial in listed):
                one.leaves_s = now
            elif one.leaves_s is not None:
                found.append((one, one.leaves_s))
        return found

    def hanging(self, now: float) -> list[A]:
        """Returns the actors whose setup does not return."""
        starting = (one for one in self.staying if not one.ready)
        return [one for one in starting if one.begun_s is not None and now - one.begun_s >= SETUP_S]

    def not_started(
        self, now: float, says: str, *, fails: bool = False, told: Mapping[str, Any] | None = None
    ) -> PoolFailed | None:
        """Counts an actor that could not start, and waits before the next one starts, longer each time. Returns the
        error of a pool that has none and cannot have one: as this one `fails`, or several in a row did not start."""
        self.failed_starts += 1
        self.wait_until_s = now + min(RETRY_S, 2.0**self.failed_starts)
        often = self.failed_starts >= MAX_FAILED_STARTS
        if (fails or often) and not self.ready:
            times = f", {self.failed_starts} times in a row" if often else ""
            return PoolFailed(f"{self.spec.name}: an actor cannot be set up{times}\n{says}")
        told = {"detail": says[-300:]} if told is None else told
        get_logger().warning("an actor could not start", pool=self.spec.name, **told)
        return None

    def share_among(self, tasks: int) -> None:
        """Sets the share of each of these tasks."""
        self.share = max(2, math.ceil(self.spec.max_in_flight * len(self.ready) / max(1, tasks)))

    def state(self, starting: int) -> PoolState:
        """Returns how it is doing."""
        ready = self.ready
        return PoolState(
            self.spec.name,
            ready=len(ready),
            starting=starting,
            queued=sum(one.queued for one in ready),
            busy=mean([one.busy for one in ready]),
        )

    def _load(self, now: float) -> PoolLoad:
        return PoolLoad(
            needs(self.spec.resources),
            self.spec.min_size,
            self.spec.max_size,
            self.size,
            sum(one.ready for one in self.staying),
            sum(one.queued for one in self.ready),
            mean([one.held_up(now) for one in self.staying if one.ready]),
            self.start_s,
            self.trend,
        )


def hangs(where: str) -> str:
    """Returns what is wrong with an actor whose setup does not return."""
    return f"setup did not return within {SETUP_S:g} s, {where}"


def rescale(
    pools: Sequence[ActorPool[A]],
    nodes: Sequence[Mapping[str, float]],
    task: Mapping[str, float],
    now: float,
    elapsed_s: float,
) -> None:
    """Sets how many actors each pool should have, as `scale` has it."""
    loads = [pool._load(now) for pool in pools]
    for pool, load, target in zip(pools, loads, scale(loads, nodes, task, elapsed_s), strict=True):
        if target.size != load.size:
            get_logger().info("a pool is scaled", pool=pool.spec.name, size=target.size, before=load.size)
        pool.size, pool.trend = target.size, target.trend
