"""Pools of actors on Ray, as the driver sees them: starts, replaces, scales and ends actors. No call passes here.

Whatever is done is done by `tend`, about once a second: it asks each actor how it is, which an actor says also while it
is at work, and takes what those said that were asked before. An actor starts, is ready once it has said so, and leaves
when its pool shrinks or its node drains: then no more calls are sent to it, and it ends when it has none.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ray
from ray import exceptions

from curate.backends.ray.calls import Actor, ActorDirectory, Member, PlacedStatus, PoolAddress
from curate.backends.ray.cluster import ClusterView, Node, leaves
from curate.backends.ray.errors import CallSite, ended
from curate.backends.ray.versions import check_of_workers, refuse_other_code
from curate.dataclass import dataclass, field
from curate.log import get_logger
from curate.runtime.demand import Demand
from curate.runtime.pools import (
    CANCEL_S,
    LOOK_S,
    MAX_DISMISSED,
    WAIT_S,
    ActorPool,
    PoolActor,
    hangs,
    rescale,
)
from curate.runtime.protocol import PoolSpec, PoolState, Resources, TaskEnd
from curate.runtime.scaling import CROWDED_S, by_gpu, fits, needs, take_resources

LOOKS_PER_S = 100
"""Actors that are asked in a second, in a large one."""
READS_PER_S = 500
"""Times a second that all tasks together read a board."""
SILENT_S = 10.0
"""An actor that has not said how it is for that long is taken to be at work on such a call."""
LONG_SILENT_S = 120.0
"""The same, where a task that was cancelled is not known to have a call there."""
QUEUED_CALLS = 100_000
"""Calls that an actor takes at a time: what is sent is bounded by those who send it."""


@dataclass(eq=False, slots=True, kw_only=True)
class _Actor(PoolActor[PlacedStatus]):
    """An actor that was started and is not known to be dead. It is ready once it was seen."""

    handle: Any
    asked_s: float
    ask: Any
    """What it will say."""
    seen_s: float = -math.inf
    """When it was asked what it said last."""

    def is_silent(self, now: float) -> bool:
        """Returns whether it does not answer: what it said last may be over."""
        return self.ask is not None and now - self.asked_s > 2 * LOOK_S

    def held_up(self, now: float) -> float:
        """Returns its share of time at work; one that does not say is held up by what it works on."""
        return 1.0 if self.is_silent(now) else self.busy


@dataclass(eq=False, slots=True, kw_only=True)
class _Pool(ActorPool[_Actor]):
    """A pool and its actors."""

    address: PoolAddress
    program: Any
    """Reference to what its actors run."""
    dismissed: set[int] = field(default_factory=set)
    board: ActorDirectory | None = None

    def start(self, now: float) -> None:
        """Starts an actor; the cluster makes room for it, or lets it wait."""
        serial, asked = self.started, self.spec.resources
        self.started += 1
        options: dict[str, Any] = {
            "name": self.address.actor(serial),
            "num_cpus": asked.num_cpus,
            "num_gpus": asked.num_gpus,
            "resources": dict(asked.custom) or None,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": QUEUED_CALLS,
            # Next to as many of the tasks that call them as can be.
            "scheduling_strategy": "SPREAD",
        }
        if asked.memory:
            options["memory"] = asked.memory
        handle = (
            ray.remote(Actor).options(**options).remote(self.program, check_of_workers(), self.address.actor(serial))
        )
        self.actors[serial] = _Actor(serial=serial, handle=handle, asked_s=now, ask=handle.look.remote())

    def end(self, actor: _Actor) -> None:
        """Ends an actor now. What it was working on is made again, and no call is to blame."""
        self.dismissed.add(actor.serial)
        del self.actors[actor.serial]
        self.show(self.board.refresh_s if self.board else LOOK_S)
        with contextlib.suppress(exceptions.RayError):
            ray.kill(actor.handle)

    def show(self, refresh_s: float) -> None:
        """Tells the callers who is there, if that has changed."""
        board = ActorDirectory(
            tuple(Member(one.serial, one.seen.node_id, one.seen.node, one.seen.pid) for one in self.called if one.seen),
            tuple(one.serial for one in self.actors.values() if not one.ready),
            frozenset(serial for serial in self.dismissed if serial >= self.started - MAX_DISMISSED),
            self.share,
            refresh_s,
        )
        if board != self.board:
            self.address.publish(board)
            self.board = board


class Pools:
    """The pools of one program."""

    def __init__(self, specs: Sequence[PoolSpec], view: ClusterView, task: Resources) -> None:
        self._view = view
        self._task = needs(task)
        self._log = get_logger()
        self.version = 0
        """Changes with what the actors hold."""
        self._tended_s = -math.inf
        self._scaled_s = time.monotonic()
        self._cancelled: dict[int, float] = {}
        """Tasks that were cancelled, and when."""
        self._pools = [
            _Pool(
                spec=spec,
                size=spec.min_size,
                address=PoolAddress(f"curate-{uuid.uuid4().hex}", spec.name),
                program=ray.put(spec.program),
            )
            for spec in specs
        ]

    @property
    def addresses(self) -> list[PoolAddress]:
        """Where callers find them."""
        return [pool.address for pool in self._pools]

    def wants(self) -> list[Demand]:
        """Returns the pools without an actor that takes calls, and what one holds."""
        return [Demand(f"the pool {one.spec.name}", needs(one.spec.resources)) for one in self._pools if not one.ready]

    def wait(self, stopped: Callable[[], bool], look: Callable[[], None]) -> None:
        """Waits until each pool has an actor that is ready, or `stopped` says so; calls `look` now and then. Raises
        PoolFailed."""
        while not stopped():
            self.tend(0, now=True)
            look()
            late = [pool for pool in self._pools if not pool.ready]
            if not late:
                return
            asks = [one.ask for pool in late for one in pool.actors.values() if one.ask is not None]
            if asks:
                ray.wait(asks, timeout=WAIT_S)
            else:
                time.sleep(WAIT_S)

    def tend(self, tasks: int, *, now: bool = False) -> None:
        """Does what is due: once a second, or `now`. `tasks` are in flight. Raises PoolFailed."""
        time_s = time.monotonic()
        actors = sum(len(pool.actors) for pool in self._pools)
        every_s = max(LOOK_S, actors / LOOKS_PER_S)
        if not now and time_s - self._tended_s < every_s:
            return
        self._tended_s = time_s
        self.version += 1
        self._hear(time_s)
        for pool in self._pools:
            self._hurry(pool, time_s)
            self._leave(pool, time_s)
        if time_s - self._scaled_s >= every_s:
            elapsed_s, self._scaled_s = time_s - self._scaled_s, time_s
            rescale(self._pools, self.left(self._view.nodes().values()), self._task, time_s, elapsed_s)
        for pool in self._pools:
            self._fill(pool, time_s)
            pool.share_among(tasks)
            pool.show(max(LOOK_S, tasks / READS_PER_S))
        self._ask(time_s, every_s)

    def _hear(self, now: float) -> None:
        """Takes what actors said, and notices those that died."""
        asks = {one.ask: (pool, one) for pool in self._pools for one in pool.actors.values() if one.ask is not None}
        if not asks:
            return
        arrived, _ = ray.wait(list(asks), num_returns=len(asks), timeout=0)
        for ask in arrived:
            pool, actor = asks[ask]
            actor.ask = None
            try:
                seen: PlacedStatus = ray.get(ask)
            except exceptions.ActorUnavailableError:
                continue
            except exceptions.RayError as error:
                del pool.actors[actor.serial]
                self._died(pool, actor, error, now)
                continue
            if not actor.ready:
                actor.ready, pool.failed_starts, pool.start_s = True, 0, seen.setup_s
                pool.address.forget(actor.serial)
            actor.before, actor.seen, actor.seen_s = actor.seen, seen, actor.asked_s

    def _hurry(self, pool: _Pool, now: float) -> None:
        """Ends actors whose setup does not return."""
        for actor in pool.actors.values():
            if not actor.ready and actor.begun_s is None and pool.address.begun(actor.serial):
                actor.begun_s = now
        for actor in pool.hanging(now):
            says = hangs(pool.address.begun(actor.serial))
            pool.address.forget(actor.serial)
            pool.end(actor)
            if failed := pool.not_started(now, says, fails=True):
                raise failed

    def _died(self, pool: _Pool, actor: _Actor, error: exceptions.RayError, now: float) -> None:
        seen = actor.seen
        place = CallSite(seen.node, seen.pid, seen.node_id) if seen else CallSite()
        end = ended(0, error, place, leaves=leaves, names=self._view.names)
        if seen is not None:
            if actor.leaves_s is None:
                self._log.warning("an actor died and is replaced", pool=pool.spec.name, **end.told())
            return
        pool.address.forget(actor.serial)
        # No call can have begun there.
        pool.dismissed.add(actor.serial)
        refuse_other_code(error)
        raised = bool(getattr(error, "actor_init_failed", False)) or end.end is TaskEnd.RAISED
        if end.end is TaskEnd.LOST and not raised:
            self._log.warning("an actor could not start", pool=pool.spec.name, **end.told())
        elif failed := pool.not_started(now, str(error) if raised else end.detail, fails=raised, told=end.told()):
            raise failed

    def _leave(self, pool: _Pool, now: float) -> None:
        """Sends no more calls to actors on nodes that are about to leave; ends those that have done what they had."""
        nodes = self._view.nodes()
        for actor in pool.actors.values():
            node = nodes.get(actor.seen.node_id) if actor.seen else None
            if actor.leaves_s is None and node is not None and not node.stays:
                actor.leaves_s = now
        refresh_s = pool.board.refresh_s if pool.board else LOOK_S
        listed = None if pool.board is None else {one.serial for one in pool.board.members}
        for actor, leaves_s in pool.unlisted(now, listed):
            idle = actor.seen is None or (actor.seen.task is None and not actor.seen.queued and actor.ask is None)
            # By then everybody has read that it leaves, and has sent what was on its way.
            if idle and now - leaves_s > 3 * refresh_s:
                pool.end(actor)

    def _fill(self, pool: _Pool, now: float) -> None:
        """Starts the actors that are missing, lets go of those that are too many."""
        for _ in range(pool.missing(now)):
            pool.start(now)
        for actor in pool.shrink(now):
            pool.end(actor)

    def _ask(self, now: float, every_s: float) -> None:
        """Asks each actor how it is, and ends those that go on with what was cancelled."""
        for pool in self._pools:
            for actor in list(pool.actors.values()):
                if self._is_stuck(actor, now):
                    self._log.warning("an actor continues a cancelled call and is stopped", pool=pool.spec.name)
                    pool.end(actor)
                elif actor.ask is None and now - actor.asked_s >= every_s / 2:
                    actor.ask, actor.asked_s = actor.handle.look.remote(), now
        # Until every actor has said how it is since: this may not have been called for long.
        said_s = min((one.seen_s for pool in self._pools for one in pool.ready), default=now)
        patience_s = CANCEL_S + SILENT_S + 3 * every_s
        self._cancelled = {
            task: at_s for task, at_s in self._cancelled.items() if now - at_s < patience_s or said_s - at_s < CANCEL_S
        }

    def _is_stuck(self, actor: _Actor, now: float) -> bool:
        """Returns whether an actor is at work, as far as it can be known, on a call of a task that was cancelled."""
        due = [task for task, at_s in self._cancelled.items() if now - at_s >= CANCEL_S]
        if not due or actor.seen is None:
            return False
        if actor.ask is not None and now - actor.asked_s >= SILENT_S:
            # Of what it had last, or, as others may have come since, of any: but that one may be at work for another.
            known = {actor.seen.task, *actor.seen.waiting}
            return not known.isdisjoint(due) or now - actor.asked_s >= LONG_SILENT_S
        # What it was at work on before that may be over.
        return actor.seen.task in due and actor.seen_s - self._cancelled[actor.seen.task] >= CANCEL_S

    def cancelled(self, tasks: Iterable[int]) -> None:
        """Ends the actors that go on with calls of tasks that were cancelled. What waits of those, Ray drops."""
        for task in tasks:
            self._cancelled.setdefault(task, time.monotonic())

    def left(self, nodes: Iterable[Node]) -> list[dict[str, float]]:
        """Returns what each node that stays has beside the actors there, and beside those that will be."""
        return self._placed(nodes)[0]

    def _placed(self, nodes: Iterable[Node]) -> tuple[list[dict[str, float]], list[_Pool]]:
        """Returns what is left of each node, and the pools that have room there for an actor which is not there yet."""
        left, able = {node.id: by_gpu(node.resources) for node in nodes if node.stays}, list[_Pool]()
        for pool in self._pools:
            held = needs(pool.spec.resources)
            for actor in pool.ready:
                if actor.seen and actor.seen.node_id in left:
                    take_resources(left[actor.seen.node_id], held)
        for pool in self._pools:
            held = needs(pool.spec.resources)
            for _ in range(sum(not one.ready for one in pool.actors.values())):
                node = next((node for node in left.values() if fits(node, held)), None)
                if node is not None:
                    take_resources(node, held)
                    able.append(pool)
        return list(left.values()), able

    def crowded_out(self) -> bool:
        """Returns whether a pool has long had no actor but for want of a place, which there would be without tasks."""
        late_s = time.monotonic() - CROWDED_S
        return any(
            all(one.seen is None and one.begun_s is None and one.asked_s <= late_s for one in pool.actors.values())
            for pool in self._placed(self._view.nodes().values())[1]
        )

    def held_up(self, tasks: Iterable[int]) -> frozenset[int]:
        """Returns those of these tasks that have a call waiting, and none at work, as actors last said; all that have
        none at work, where a pool has no actor that is ready, as each may wait for one.

        What actors have said that do not answer now is no longer so: nobody knows for whom they are at work.
        """
        now = time.monotonic()
        ready = [one for pool in self._pools for one in pool.ready]
        seen = [one.seen for one in ready if one.seen and not one.is_silent(now)]
        waiting = frozenset(tasks)
        if all(pool.ready for pool in self._pools):
            waiting &= frozenset[int]().union(*(one.waiting for one in seen))
        return waiting - {one.task for one in seen if one.task is not None}

    def states(self) -> list[PoolState]:
        """Returns how the pools are doing."""
        return [pool.state(len(pool.actors) - len(pool.ready)) for pool in self._pools]

    def close(self) -> None:
        """Ends all actors."""
        for pool in self._pools:
            for actor in pool.actors.values():
                with contextlib.suppress(exceptions.RayError):
                    ray.kill(actor.handle)
                pool.address.forget(actor.serial)
            pool.actors.clear()
            pool.address.remove()
        self._pools.clear()
