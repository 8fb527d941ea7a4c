"""Runs tasks in this process, one piece a poll: for tests, for pdb, and for small inputs. One slot, no Ray.

A pool is one instance in this process, which answers a call at once.
"""

from __future__ import annotations

import copy
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Unpack, cast

from curate.dataclass import dataclass
from curate.errors import PoolFailed
from curate.runtime.protocol import (
    Backend,
    BackendEvent,
    Block,
    BlockReady,
    Call,
    CallLostError,
    LaunchOptions,
    Message,
    PoolProgram,
    PoolSpec,
    PoolState,
    PoolUser,
    Program,
    TaskEnd,
    TaskFinished,
)
from curate.runtime.worker import crashed_end


class _CancelledError(BaseException):
    """Raised in the task at hand. Not an Exception: user code that goes on after any error must not after this one."""


@dataclass(slots=True)
class _Task:
    """A task that was launched and is not over."""

    number: int
    work: Iterator[Any]
    streams: bool
    offers: Any = None
    """The block that it made and nobody took yet."""


@dataclass(frozen=True, slots=True)
class _Block:
    value: Any

    def fetch(self) -> Any:
        return self.value


@dataclass(slots=True)
class _Call:
    """A call that was answered when it was made. The answer is kept until it is asked for."""

    answer: Any = None
    error: Exception | None = None

    def ready(self) -> bool:
        return True

    def result(self) -> Any:
        answer, self.answer = self.answer, None
        if self.error is not None:
            raise self.error
        return answer


class _Pool:
    """A pool of one actor, which is this process."""

    def __init__(self, name: str, actor: PoolProgram) -> None:
        self.name = name
        self._actor = actor
        self._worked_s = 0.0
        self._looked_s = time.monotonic()

    @property
    def room(self) -> int:
        return 1

    def call(self, payload: Any) -> Call:
        began_s = time.monotonic()
        try:
            return _Call(self._actor.call(payload))
        except (_CancelledError, KeyboardInterrupt):
            raise
        except Exception as error:  # noqa: BLE001 - raised where the answer is asked for, as on a cluster
            return _Call(error=error)
        except BaseException as error:  # noqa: BLE001 - `sys.exit()` in user code would end an actor, not the driver
            detail = f"{type(error).__name__}: {error}"
            return _Call(error=CallLostError(TaskFinished(0, TaskEnd.CRASHED, detail)))
        finally:
            self._worked_s += time.monotonic() - began_s

    def state(self) -> PoolState:
        """Returns how it did since the last look."""
        now = time.monotonic()
        busy = self._worked_s / (now - self._looked_s) if now > self._looked_s else 0.0
        self._worked_s, self._looked_s = 0.0, now
        return PoolState(self.name, ready=1, starting=0, queued=0, busy=min(1.0, busy))


class InlineBackend(Backend):
    """A backend of one slot that works when it is polled. Pieces end in the order in which they were launched.

    One task runs at a time, in this process, which has what it has: so nothing waits for an actor, a place or memory.
    """

    name = "inline"

    def __init__(self) -> None:
        self._program: Program | None = None
        self._pools: list[_Pool] = []
        self._queue: deque[_Task] = deque()
        self._working = False
        self._cancelled: list[int] = []

    def load(
        self, program: Program, pools: Sequence[PoolSpec] = (), *, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Keeps the program; makes one actor for each pool, as far as nobody stops it, and connects them."""
        self._program, self._pools = program, []
        for spec in pools:
            if stopped():
                return
            self._pools.append(_Pool(spec.name, _actor_of(spec)))
        if pools:
            cast(PoolUser, program).connect(self._pools)

    def pools(self) -> list[PoolState]:
        """Returns how the pools are doing: one actor each, for which nothing waits."""
        return [pool.state() for pool in self._pools]

    def slots(self) -> int:
        """Returns 1."""
        return 1

    def alone(self) -> bool:
        """Returns True."""
        return True

    def launch(self, task: int, payload: Any, pieces: int, **how: Unpack[LaunchOptions]) -> None:
        """Queues the task."""
        del pieces
        if self._program is None:
            raise RuntimeError("launch before load")
        self._queue.append(_Task(task, self._program.run(payload), how.get("stream", False)))

    def poll(self, timeout_s: float) -> list[BackendEvent]:
        """Works on the first task that does not wait for its block to be taken, until it yields or ends."""
        del timeout_s
        if self._cancelled:
            ends: list[BackendEvent] = [TaskFinished(task, TaskEnd.CANCELLED) for task in self._cancelled]
            self._cancelled.clear()
            return ends
        task = next((one for one in self._queue if one.offers is None), None)
        if task is None:
            return []
        try:
            try:
                self._working = True
                return [self._work(task)]
            finally:
                self._working = False
        except _CancelledError:
            self._queue.clear()
            return []

    def _work(self, task: _Task) -> Message | BlockReady | TaskFinished:
        try:
            item = next(task.work)
        except StopIteration:
            end = TaskFinished(task.number, TaskEnd.RETURNED)
        except (_CancelledError, KeyboardInterrupt):
            raise
        except Exception:  # noqa: BLE001 - the dispatcher decides what an escaped error means
            end = TaskFinished(task.number, TaskEnd.RAISED, traceback.format_exc())
        except BaseException as error:  # noqa: BLE001 - `sys.exit()` in user code would end a worker, not the driver
            end = crashed_end(task.number, error)
        else:
            if task.streams and hasattr(item, "nbytes"):
                task.offers = item
                return BlockReady(task.number, item.nbytes)
            return Message(task.number, [item])
        self._queue.remove(task)
        return end

    def take(self, task: int) -> Block:
        """Returns the block; the task goes on when it is polled."""
        offering = next(one for one in self._queue if one.number == task and one.offers is not None)
        block, offering.offers = _Block(offering.offers), None
        return block

    def cancel(self, task: int | None = None) -> None:
        """Closes what is queued. From a signal handler, called in the middle of a task, it ends that first.

        A single task that does not stream has no one to cancel it: this process is busy with it, or it waits and costs
        nothing.
        """
        if task is not None:
            for one in [one for one in self._queue if one.number == task and one.streams]:
                self._queue.remove(one)
                _close(one.work)
                self._cancelled.append(task)
            return
        if self._working:
            raise _CancelledError
        for one in self._queue:
            _close(one.work)
        self._queue.clear()
        self._cancelled.clear()

    def close(self) -> None:
        """Forgets the program, the pools, and what they loaded."""
        self.cancel()
        self._program, self._pools = None, []


def _actor_of(spec: PoolSpec) -> PoolProgram:
    # A copy, so that what it loads goes when the pool goes.
    actor = copy.copy(spec.program)
    try:
        actor.setup()
    except (Exception, SystemExit) as error:
        raise PoolFailed(f"{spec.name}: an actor cannot be set up\n{traceback.format_exc()}") from error
    return actor


def _close(work: Iterator[Any]) -> None:
    close = getattr(work, "close", None)
    if close is not None:
        close()
