"""Pools of actors of the local backend, as the driver sees them: starts, replaces, scales and ends actors.

No call passes here. An actor is ready once it has said so, and leaves when its pool shrinks: then no more calls are
sent to it, and it ends when it has none.
"""

from __future__ import annotations

import itertools
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from curate.dataclass import dataclass, field
from curate.errors import PoolFailed
from curate.local.actor import ActorReady, Look, SetupRaised, record_of, recorded
from curate.local.calls import REFRESH_S, Board, Member
from curate.local.processes import Process, Processes, end_of
from curate.local.room import Room
from curate.local.server import WorkerEnd
from curate.local.worker import ActorPlace, Hello, PoolAddress
from curate.log import get_logger
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
from curate.runtime.protocol import ActorStatus, PoolSpec, PoolState, Resources, TaskEnd, TaskFinished
from curate.runtime.scaling import fits, needs


@dataclass(eq=False, slots=True, kw_only=True)
class _Actor(PoolActor[ActorStatus]):
    """An actor that was started and is not known to have ended."""

    path: str
    release: Callable[[], None]
    """Gives back what it holds."""
    process: Process | None = None
    pid: int = 0
    asked: bool = False
    """Whether it was asked how it is, and has not answered."""


@dataclass(eq=False, slots=True, kw_only=True)
class _Pool(ActorPool[_Actor]):
    """A pool and its actors."""

    number: int
    address: PoolAddress
    dismissed: list[int] = field(default_factory=list)
    ended: dict[int, TaskFinished] = field(default_factory=dict)
    board: Board | None = None
    untold: bool = False
    """Whether the last board could not be written."""

    def show(self) -> None:
        """Tells the callers who is there, if that has changed."""
        board = Board(
            tuple(Member(one.serial, one.path, one.pid) for one in self.called),
            frozenset(self.dismissed[-MAX_DISMISSED:]),
            dict(list(self.ended.items())[-MAX_DISMISSED:]),
            self.share,
        )
        if board != self.board:
            try:
                board.publish(self.address.board)
            except OSError as error:
                # Disk full, or the folder went with what starts processes. It is tried again each time this is called.
                if not self.untold:
                    says = "a list of actors could not be written; it is tried again"
                    get_logger().warning(says, pool=self.spec.name, error=str(error))
                self.untold = True
            else:
                self.board, self.untold = board, False


class Pools:
    """The pools of one program. Their programs are those of the processes, after that of the tasks."""

    def __init__(self, specs: Sequence[PoolSpec], processes: Processes, task: Mapping[str, float], room: Room) -> None:
        self._processes = processes
        self._task = task
        self._room = room
        self._log = get_logger()
        self._failed: PoolFailed | None = None
        self._looked_s = self._scaled_s = time.monotonic()
        self._cancelled: dict[int, float] = {}
        """Processes of the workers whose tasks were cancelled, and when."""
        self._pools = [
            _Pool(number=number, spec=spec, size=spec.min_size, address=PoolAddress(spec.name, ""))
            for number, spec in enumerate(specs, 1)
        ]
        self._folder = ""
        self._settle()

    @property
    def addresses(self) -> tuple[PoolAddress, ...]:
        """Where callers find them that are forked next."""
        self._settle()
        return tuple(pool.address for pool in self._pools)

    def _settle(self) -> None:
        """Moves to the folder of what starts processes now: if that was killed, its folder went, and all processes."""
        self._processes.attached()
        if self._folder != self._processes.folder:
            self._folder = self._processes.folder
            for pool in self._pools:
                pool.address, pool.board = PoolAddress(pool.spec.name, f"{self._folder}/{_name()}.board"), None
                pool.show()

    def at_work(self) -> frozenset[int]:
        """Returns the processes of the workers of whose calls one is worked on."""
        return frozenset(recorded(actor.path)[0] for pool in self._pools for actor in pool.ready)

    def wait(self, stopped: Callable[[], bool]) -> None:
        """Waits until each pool has an actor that is ready, or `stopped` says so. Raises PoolFailed."""
        while not stopped():
            self.tend(0)
            if all(pool.ready for pool in self._pools):
                return
            self._processes.wait(WAIT_S)

    def tend(self, tasks: int) -> None:
        """Does what is due; `tasks` are in flight. Raises PoolFailed."""
        now_s = time.monotonic()
        looks = now_s - self._looked_s >= LOOK_S
        for pool in self._pools:
            self._hurry(pool, now_s)
            self._let_go(pool, now_s)
        if looks:
            self._looked_s = now_s
            elapsed_s, self._scaled_s = now_s - self._scaled_s, now_s
            rescale(self._pools, [self._room.left(self.held())], self._task, now_s, elapsed_s)
            self._look(now_s)
        for pool in self._pools:
            self._fill(pool, now_s)
            pool.share_among(tasks)
            pool.show()
        if self._failed is not None:
            raise self._failed

    def cancelled(self, pids: Iterable[int]) -> None:
        """Ends the actors that go on with calls of these workers, whose tasks were cancelled. What waits, they drop."""
        now_s = time.monotonic()
        for pid in pids:
            # One that has not said its number yet has called nobody.
            if pid:
                self._cancelled.setdefault(pid, now_s)

    def held(self) -> list[Resources]:
        """Returns what each actor holds."""
        return [pool.spec.resources for pool in self._pools for _ in pool.actors]

    def states(self) -> list[PoolState]:
        """Returns how the pools are doing."""
        return [pool.state(max(len(pool.actors), pool.size) - len(pool.ready)) for pool in self._pools]

    def close(self) -> None:
        """Removes what callers were told. Their actors end with the processes."""
        for pool in self._pools:
            for path in (pool.address.board, *(one.path for one in pool.actors.values())):
                Path(path).unlink(missing_ok=True)
                Path(record_of(path)).unlink(missing_ok=True)

    # Actors

    def _start(self, pool: _Pool, now_s: float) -> bool:
        """Starts an actor; returns False if there is no GPU for it now."""
        held = self._room.hold(pool.spec.resources)
        if held is None:
            return False
        environ, release = held
        self._settle()
        # Short: it is the name of a socket.
        path = f"{self._processes.folders[0]}/{_name()}.a"
        actor = _Actor(serial=pool.started, path=path, begun_s=now_s, release=release)
        pool.started += 1
        pool.actors[actor.serial] = actor
        actor.process = self._processes.fork(
            environ,
            lambda value: self._hear(pool, actor, value),
            actor=ActorPlace(actor.path, self._processes.program(pool.number)),
        )
        return True

    def _end(self, pool: _Pool, actor: _Actor) -> None:
        """Ends an actor now. What it works on is made again, and no call is to blame."""
        pool.dismissed.append(actor.serial)
        actor.ready, actor.leaves_s = False, actor.leaves_s or time.monotonic()
        pool.show()
        if actor.process is not None:
            self._processes.kill(actor.process)

    def _hear(self, pool: _Pool, actor: _Actor, value: Any) -> None:
        match value:
            case Hello(pid):
                actor.pid = pid
            case ActorReady(setup_s):
                if actor.serial not in pool.dismissed:
                    actor.ready, pool.failed_starts, pool.start_s = True, 0, setup_s
                    pool.show()
            case SetupRaised(says):
                pool.dismissed.append(actor.serial)
                self._not_started(pool, says, fails=True)
            case ActorStatus():
                actor.before, actor.seen, actor.asked = actor.seen, value, False
            case WorkerEnd():
                del pool.actors[actor.serial]
                actor.release()
                self._ended(pool, actor, value)

    def _ended(self, pool: _Pool, actor: _Actor, value: WorkerEnd) -> None:
        assert actor.process is not None
        end = end_of("actor", 0, actor.pid, actor.process, value)
        pool.ended[actor.serial] = end
        pool.show()
        if actor.serial in pool.dismissed:
            return
        if actor.ready:
            if actor.leaves_s is None:
                self._log.warning("an actor died and is replaced", pool=pool.spec.name, **end.told())
        elif end.end is not TaskEnd.LOST:
            self._not_started(pool, end.detail, fails=False)

    def _not_started(self, pool: _Pool, says: str, *, fails: bool) -> None:
        self._failed = pool.not_started(time.monotonic(), says, fails=fails) or self._failed

    def _hurry(self, pool: _Pool, now_s: float) -> None:
        """Ends actors whose setup does not return."""
        for actor in pool.hanging(now_s):
            self._end(pool, actor)
            self._not_started(pool, hangs(f"in process {actor.pid} on {platform.node()}"), fails=True)

    def _let_go(self, pool: _Pool, now_s: float) -> None:
        """Ends actors that leave and have done what they had."""
        listed = None if pool.board is None else {one.serial for one in pool.board.members}
        for actor, leaves_s in pool.unlisted(now_s, listed):
            status = actor.seen
            # By then everybody has read that it leaves, and has sent what was on its way.
            late_s = leaves_s + 3 * REFRESH_S
            if status is not None and status.at_s > late_s and status.task is None and not status.queued:
                self._end(pool, actor)

    def _fill(self, pool: _Pool, now_s: float) -> None:
        """Starts the actors that are missing, lets go of those that are too many."""
        for _ in range(pool.missing(now_s) if self._failed is None else 0):
            if not fits(self._room.has, needs(pool.spec.resources)) or not self._start(pool, now_s):
                break
        for actor in pool.shrink(now_s):
            self._end(pool, actor)

    def _look(self, now_s: float) -> None:
        """Asks each actor how it is, and ends those that go on with what was cancelled.

        They have noted what they work on, so that one that cannot answer, as user code keeps the interpreter's lock, is
        ended too, and no other.
        """
        due = {pid for pid, at_s in self._cancelled.items() if now_s - at_s >= CANCEL_S}
        for pool in self._pools:
            for actor in pool.ready:
                if due and recorded(actor.path)[0] in due:
                    self._log.warning("an actor continues a cancelled call and is stopped", pool=pool.spec.name)
                    self._end(pool, actor)
                elif actor.process is not None and not actor.asked:
                    # One at a time: what is not read fills the socket, and then this would wait for it.
                    actor.asked = True
                    actor.process.say(Look())
        self._cancelled = {pid: at_s for pid, at_s in self._cancelled.items() if now_s - at_s < 10 * CANCEL_S}


_names = itertools.count()


def _name() -> str:
    return f"{os.getpid()}-{next(_names)}"
