"""Calls of pools on Ray: the actor, and the pool as the task that calls it sees it.

Who is in a pool stands on its board, a small value in the cluster's own key-value store: the driver writes it when it
changes, a worker that calls reads it every second or so, and at once when an actor died. So nobody asks the driver,
and no process is in the way. Actors have names, made of the pool's and a number that is used once; a worker looks up
those that it calls.

An actor dies with all the calls that were sent to it, of which one may have killed it. Which one it was cannot be
known, so all are made again, but from then on announced: the actor says when it begins, and has said so before it goes
on. What dies with its actor after it was begun counts; what only waited does not.

Long because both ends of a call are here, the actor and its caller, which agree on every message.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pickle
import platform
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray import exceptions
from ray.experimental import internal_kv

from curate.backends.ray.cluster import leaves
from curate.backends.ray.errors import CallSite, ended
from curate.dataclass import dataclass, replace
from curate.log import get_logger
from curate.runtime.process_guard import ENDS, spoilt
from curate.runtime.protocol import ActorStatus, Call, CallLostError, PoolProgram, TaskEnd, TaskFinished

NAMESPACE = "curate"
"""Of the boards in the key-value store."""
BEGUN = "-begun"
"""Ends the key under which an actor says where it is being set up."""
LARGE_BYTES = 64 << 10
"""A payload from this size goes to the object store once, however often it is sent."""
MAX_DEATHS = 3
"""Actors that a call may kill."""
MAX_SENDS = 10
"""Times that a call is made, whatever becomes of it."""
PATIENCE_S = 600.0
"""How long a call waits for a pool that has no actor, nor one that starts."""
LOOK_AGAIN_S = 0.5
"""How often it looks then."""
SAID_S = 0.1
"""How long an actor waits before it works on an announced call: what it said is on its way by then."""


_DEATHS = (
    exceptions.ActorDiedError,
    exceptions.NodeDiedError,
    exceptions.OutOfMemoryError,
    exceptions.WorkerCrashedError,
)
"""What a call says of an actor that will not come back."""


@dataclass(frozen=True, slots=True)
class Member:
    """An actor that takes calls."""

    serial: int
    node_id: str
    node: str
    """Name of the machine."""
    pid: int


@dataclass(frozen=True, slots=True)
class ActorDirectory:
    """What the callers of a pool must know."""

    members: tuple[Member, ...] = ()
    starting: tuple[int, ...] = ()
    """Serials of the actors that will take calls."""
    dismissed: frozenset[int] = frozenset()
    """Serials of actors that no call is to blame for: ended by the driver, or before they could take calls."""
    share: int = 2
    """Calls that each task may have made."""
    refresh_s: float = 1.0
    """How long a worker may trust this."""


@dataclass(frozen=True, slots=True)
class PoolAddress:
    """Where the actors of a pool are found."""

    key: str
    """Of its board; unique."""
    name: str
    """What the pool is called in messages."""

    def actor(self, serial: int) -> str:
        """Returns the name of an actor."""
        return f"{self.key}-{serial}"

    def begun(self, serial: int) -> str:
        """Returns where an actor is being set up, or was, empty if it has not begun."""
        found = internal_kv._internal_kv_get(f"{self.actor(serial)}{BEGUN}", namespace=NAMESPACE)
        return found.decode() if found else ""

    def forget(self, serial: int) -> None:
        """Removes what an actor said of where it is."""
        internal_kv._internal_kv_del(f"{self.actor(serial)}{BEGUN}", namespace=NAMESPACE)

    def publish(self, board: ActorDirectory) -> None:
        """Shows a board in place of the one before."""
        internal_kv._internal_kv_put(self.key, pickle.dumps(board), overwrite=True, namespace=NAMESPACE)

    def remove(self) -> None:
        """Takes the board down, and what its actors said of where they are: also those that were being set up."""
        internal_kv._internal_kv_del(self.key, del_by_prefix=True, namespace=NAMESPACE)

    def read(self) -> bytes | None:
        """Returns the board as it was published, None if there is none."""
        found: bytes | None = internal_kv._internal_kv_get(self.key, namespace=NAMESPACE)
        return found


# The actor


@dataclass(frozen=True, slots=True)
class PlacedStatus(ActorStatus):
    """What an actor says of itself, and where it is."""

    waiting: frozenset[int]
    """The tasks of the calls that wait."""
    setup_s: float
    """How long it took to load."""
    node_id: str
    node: str
    pid: int


@dataclass(frozen=True, slots=True)
class _Exited:
    """An answer: user code tried to end the process."""

    detail: str


class Actor:
    """Runs a pool's program in one thread, in which it is set up too, and answers all else in another.

    So it says how long its queue is while it is at work, and what the next call is given is fetched meanwhile.
    """

    def __init__(self, program: PoolProgram, check: Callable[[], None], name: str) -> None:
        """`check` raises what keeps this process from working for the pool; `name` is the actor's."""
        check()
        # Until it is set up, it answers nobody.
        place = f"in process {os.getpid()} on {platform.node()}"
        with contextlib.suppress(exceptions.RayError, ConnectionError, TimeoutError):
            internal_kv._internal_kv_put(f"{name}{BEGUN}", place, overwrite=True, namespace=NAMESPACE)
        began_s = time.monotonic()
        self._program = program
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(_set_up, program).result()
        self._setup_s = time.monotonic() - began_s
        self._node_id = ray.get_runtime_context().get_node_id()
        self._waiting: dict[object, int] = {}
        """Calls that wait, and their tasks."""
        self._work: tuple[int, float] | None = None
        """The task whose call is worked on, and since when."""
        self._worked_s = 0.0
        self._begun: dict[str, asyncio.Event] = {}

    async def call(self, task: int, payload: Any, announced: str = "") -> Any:
        """Returns the answer to a payload of a task; says by `begun` when it begins if it is `announced` by a name."""
        loop, waiting = asyncio.get_running_loop(), object()

        def work() -> Any:
            self._waiting.pop(waiting, None)
            if why := spoilt():
                # This call has not begun, and is made again elsewhere. What was answered before is on its way by then.
                get_logger().warning(ENDS, changed=why)
                time.sleep(SAID_S)
                os._exit(1)
            if announced:
                loop.call_soon_threadsafe(self._event(announced).set)
                time.sleep(SAID_S)
            began_s = time.monotonic()
            self._work = (task, began_s)
            try:
                return self._program.call(payload)
            except Exception:
                raise
            except BaseException as error:  # noqa: BLE001 - `sys.exit()` would end the loop, and nobody would be told
                return _Exited(f"{type(error).__name__}: {error}")
            finally:
                self._work = None
                self._worked_s += time.monotonic() - began_s

        self._waiting[waiting] = task
        try:
            # Ray cancels this when the task's worker dies: what has not begun by then never does.
            return await loop.run_in_executor(self._thread, work)
        finally:
            self._waiting.pop(waiting, None)
            if announced:
                self._event(announced).set()
                del self._begun[announced]

    async def begun(self, announced: str) -> CallSite:
        """Returns where it is, when a call that was announced begins."""
        await self._event(announced).wait()
        return CallSite(platform.node(), os.getpid(), self._node_id)

    def _event(self, announced: str) -> asyncio.Event:
        return self._begun.setdefault(announced, asyncio.Event())

    async def look(self) -> PlacedStatus:
        """Returns how it is doing."""
        work, now = self._work, time.monotonic()
        return PlacedStatus(
            now,
            self._worked_s + (now - work[1] if work else 0.0),
            len(self._waiting),
            work[0] if work else None,
            # At once: the thread that works takes its call out of these.
            frozenset(tuple(self._waiting.values())),
            self._setup_s,
            self._node_id,
            platform.node(),
            os.getpid(),
        )


def _set_up(program: PoolProgram) -> None:
    try:
        program.setup()
    except Exception:
        raise
    except BaseException as error:
        # As such it would end the actor without a word of why.
        raise RuntimeError(f"setup raised {type(error).__name__}: {error}") from error


# The pool in the process of a task


class TaskAtWork:
    """The task that this process works on."""

    number = 0


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Call:
    """A call that was made and whose answer nobody has asked for."""

    pool: CalledPool
    task: int
    payload: Any
    number: int
    """Calls are numbered as they are made."""
    ref: Any = None
    """The answer to come; None while there is no actor to send it to."""
    member: Member | None = None
    """Whom it was sent to; None if it has not started yet."""
    serial: int = -1
    began: Any = None
    """What comes when it begins, if it was announced."""
    sends: int = 0
    deaths: int = 0
    answer: Any = None
    error: Exception | None = None
    settled: bool = False

    def ready(self) -> bool:
        if not self.settled and self.ref is not None and _arrived(self.ref):
            self._settle()
        return self.settled

    def result(self) -> Any:
        while not self.settled:
            if self.ref is None:
                self.pool.send_patiently(self)
            else:
                self._settle()
        answer, self.answer = self.answer, None
        if self.error is not None:
            raise self.error
        return answer

    def _settle(self) -> None:
        """Waits for what becomes of it: an answer, an error, or that it is sent again."""
        serial = self.serial
        if not self.take():
            # What was sent to the same actor need not wait until somebody asks for it.
            for other in self.pool.sent_to(serial):
                if _arrived(other.ref):
                    other.take()

    def take(self) -> bool:
        """Takes what came; returns False if the actor was lost with it."""
        self.pool.wait_for_start(self)
        try:
            answer = ray.get(self.ref)
        except exceptions.RayError as error:
            end = ended(self.task, error, self._place, leaves=leaves, names={})
            if end.end in (TaskEnd.CRASHED, TaskEnd.LOST, TaskEnd.OUT_OF_MEMORY, TaskEnd.UNSERVED):
                self.pool.lost(self, end, dead=isinstance(error, _DEATHS))
                return False
            self.settle(error=error)
        else:
            if isinstance(answer, _Exited):
                place = self._place
                self.settle(
                    error=CallLostError(TaskFinished(self.task, TaskEnd.CRASHED, answer.detail, place.node, place.pid))
                )
            else:
                self.settle(answer)
        return True

    @property
    def _place(self) -> CallSite:
        return CallSite(self.member.node, self.member.pid, self.member.node_id) if self.member else CallSite()

    def settle(self, answer: Any = None, error: Exception | None = None) -> None:
        self.answer, self.error, self.settled = answer, error, True
        # Nothing is kept of what was sent.
        self.payload = self.ref = self.began = None


class CalledPool:
    """A pool as a task sees it. A call goes to the actor with the fewest calls of this task, the nearest first."""

    def __init__(self, address: PoolAddress) -> None:
        self._address = address
        self._raw: bytes | None = None
        self._board = ActorDirectory()
        self._read_s = float("-inf")
        self._handles: dict[int, Any] = {}
        self._gone: set[int] = set()
        """Serials of actors that were found dead."""
        self._calls: weakref.WeakSet[_Call] = weakref.WeakSet()
        self._numbers = itertools.count()
        self._node_id = ray.get_runtime_context().get_node_id()
        self._worker_id = ray.get_runtime_context().get_worker_id()
        # Where there are more actors than calls, not all workers begin with the same one.
        self._turn = int(self._worker_id[:8], 16)

    @property
    def room(self) -> int:
        self._look()
        return self._board.share

    def call(self, payload: Any) -> Call:
        call = _Call(self, TaskAtWork.number, payload, next(self._numbers))
        try:
            call.payload = ray.put(payload) if _size(payload) >= LARGE_BYTES else payload
        except exceptions.RayError as error:
            call.settle(error=CallLostError(ended(call.task, error, CallSite(), leaves=leaves, names={})))
            return call
        self._look()
        self._send(call)
        self._calls.add(call)
        return call

    def sent_to(self, serial: int) -> list[_Call]:
        """Returns the calls that an actor has, as far as is known, in the order in which they were made."""
        return self._in_order(call for call in self._calls if call.serial == serial and call.ref is not None)

    def lost(self, call: _Call, end: TaskFinished, *, dead: bool) -> None:
        """Makes a call again that has no answer, or gives it up; `dead` if its actor is gone for good."""
        if dead:
            self._gone.add(call.serial)
        else:
            # It, or the answer, may be out of reach for a moment.
            time.sleep(LOOK_AGAIN_S)
        self._look(now=True)
        begun = _begun(call.began) if call.began else None
        if begun is not None and not end.pid:
            end = replace(end, node=begun.node, pid=begun.pid)
        # Not announced, it may be what killed the actor, like all that were sent there.
        suspect = call.began is None or begun is not None
        blamed = end.end not in (TaskEnd.LOST, TaskEnd.UNSERVED)
        if suspect and blamed and call.serial not in self._board.dismissed:
            call.deaths += 1
        call.ref = call.began = None
        if call.deaths >= MAX_DEATHS or call.sends >= MAX_SENDS:
            call.settle(error=CallLostError(end))
        else:
            self._send(call)

    def send_patiently(self, call: _Call) -> None:
        """Sends a call once there is an actor, or one that starts; gives it up after ten minutes without."""
        until_s = time.monotonic() + PATIENCE_S
        while call.ref is None and not call.settled:
            self._look(now=True)
            if self._send(call):
                # The others that had nowhere to go are not to wait until somebody asks for them.
                for other in self._in_order(one for one in self._calls if one.ref is None and not one.settled):
                    self._send(other)
                return
            if time.monotonic() > until_s:
                what = f"the pool {self._address.name} had no actor for {PATIENCE_S:g} s"
                call.settle(error=CallLostError(TaskFinished(call.task, TaskEnd.LOST, what)))
                return
            time.sleep(LOOK_AGAIN_S)

    def wait_for_start(self, call: _Call) -> None:
        """Waits until a call that was sent to an actor which starts has begun there, or is over; sends it to another
        one that is ready before: the first may wait for a place for ever."""
        while call.member is None and call.ref is not None:
            # It lets go of this task's CPU, which that actor may need.
            if ray.wait([call.ref], timeout=self._board.refresh_s)[0] or _begun(call.began) is not None:
                return
            self._look(now=True)
            ready = {one.serial: one for one in self._board.members if one.serial not in self._gone}
            if call.serial in ready:
                call.member = ready[call.serial]
            elif ready:
                with contextlib.suppress(exceptions.RayError):
                    ray.cancel(call.ref)
                call.ref = call.began = None
                self._send(call)

    @staticmethod
    def _in_order(calls: Iterable[_Call]) -> list[_Call]:
        return sorted(calls, key=lambda call: call.number)

    def _send(self, call: _Call) -> bool:
        """Sends a call to the best actor; returns False if there is none."""
        while True:
            member, serial = self._best()
            if serial is None:
                return False
            actor = self._handle(serial)
            if actor is not None:
                break
        call.member, call.serial = member, serial
        call.sends += 1
        name = ""
        # To one that starts, too: it may never get there, which is no call's fault.
        if call.sends > 1 or member is None:
            name = f"{self._worker_id}-{call.number}-{call.sends}"
            call.began = actor.begun.remote(name)
        call.ref = actor.call.remote(call.task, call.payload, name)
        return True

    def _best(self) -> tuple[Member | None, int | None]:
        members = [one for one in self._board.members if one.serial not in self._gone]
        sent: dict[int, int] = {}
        for call in self._calls:
            if call.ref is not None:
                sent[call.serial] = sent.get(call.serial, 0) + 1
        self._turn += 1
        if members:
            count = len(members)
            k = min(
                range(count),
                key=lambda k: (
                    sent.get(members[k].serial, 0),
                    members[k].node_id != self._node_id,
                    (k - self._turn) % count,
                ),
            )
            return members[k], members[k].serial
        # A call that waits for one that starts lets go of its CPU, which that one may need.
        starting = [serial for serial in self._board.starting if serial not in self._gone]
        return None, min(starting, key=lambda serial: sent.get(serial, 0), default=None)

    def _handle(self, serial: int) -> Any:
        found = self._handles.get(serial)
        if found is None:
            try:
                found = self._handles[serial] = ray.get_actor(self._address.actor(serial))
            except ValueError:
                self._gone.add(serial)
        return found

    def _look(self, *, now: bool = False) -> None:
        """Reads the board if that is due."""
        if not now and time.monotonic() - self._read_s <= self._board.refresh_s:
            return
        self._read_s = time.monotonic()
        raw = None
        # While the cluster's head is away, what is known has to do.
        with contextlib.suppress(exceptions.RayError, ConnectionError, TimeoutError):
            raw = self._address.read()
        if raw is not None and raw != self._raw:
            self._raw, self._board = raw, pickle.loads(raw)
            listed = {one.serial for one in self._board.members} | set(self._board.starting)
            self._gone &= listed
            self._handles = {serial: one for serial, one in self._handles.items() if serial in listed}


def _arrived(ref: Any) -> bool:
    return bool(ray.wait([ref], timeout=0)[0])


def _begun(ref: Any) -> CallSite | None:
    """Returns where a call that was announced has begun, None if that was not said."""
    if not _arrived(ref):
        return None
    try:
        place: CallSite = ray.get(ref)
    except exceptions.RayError:
        return None
    return place


def _size(payload: Any) -> int:
    parts = payload if isinstance(payload, tuple) else (payload,)
    return sum(getattr(part, "nbytes", 0) for part in parts)
