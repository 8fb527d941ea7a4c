"""Runs tasks in this process, one piece a poll: for tests, for pdb, and for small inputs. One slot, no Ray."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from curate.runtime.protocol import Block, End, Ended, Message, News, Offer, Program, Resources


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


class InlineBackend:
    """A backend of one slot that works when it is polled. Pieces end in the order in which they were launched."""

    name = "inline"

    def __init__(self) -> None:
        self._program: Program | None = None
        self._queue: deque[_Task] = deque()
        self._working = False
        self._cancelled: list[int] = []

    def start(self, resources: Resources) -> None:
        """Does nothing: there is one process, and this is it."""

    def load(self, program: Program) -> None:
        """Keeps the program."""
        self._program = program

    def slots(self) -> int:
        """Returns 1."""
        return 1

    def largest_memory(self) -> int | None:
        """Returns None: this process has what it has."""
        return None

    def launch(
        self,
        task: int,
        payload: Any,
        pieces: int,
        *,
        memory: int | None = None,
        announce: bool = False,
        stream: bool = False,
    ) -> None:
        """Queues the task."""
        del pieces, memory, announce
        if self._program is None:
            raise RuntimeError("launch before load")
        self._queue.append(_Task(task, self._program.run(payload), stream))

    def poll(self, timeout_s: float) -> list[News]:
        """Works on the first task that does not wait for its block to be taken, until it yields or ends."""
        del timeout_s
        if self._cancelled:
            ends: list[News] = [Ended(task, End.CANCELLED) for task in self._cancelled]
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

    def _work(self, task: _Task) -> Message | Offer | Ended:
        try:
            item = next(task.work)
        except StopIteration:
            end = Ended(task.number, End.RETURNED)
        except (_CancelledError, KeyboardInterrupt):
            raise
        except Exception:  # noqa: BLE001 - the dispatcher decides what an escaped error means
            end = Ended(task.number, End.RAISED, traceback.format_exc())
        except BaseException as error:  # noqa: BLE001 - `sys.exit()` in user code would end a worker, not the driver
            end = Ended(task.number, End.CRASHED, f"{type(error).__name__}: {error}")
        else:
            if task.streams and hasattr(item, "nbytes"):
                task.offers = item
                return Offer(task.number, item.nbytes)
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
        """Forgets the program and what it loaded."""
        self.cancel()
        self._program = None


def _close(work: Iterator[Any]) -> None:
    close = getattr(work, "close", None)
    if close is not None:
        close()
