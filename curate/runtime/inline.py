"""Runs tasks in this process, one piece a poll: for tests, for pdb, and for small inputs. One slot, no Ray."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Iterator
from typing import Any

from curate.runtime.protocol import End, Ended, Message, News, Program, Resources


class _CancelledError(BaseException):
    """Raised in the task at hand. Not an Exception: user code that goes on after any error must not after this one."""


class InlineBackend:
    """A backend of one slot that works when it is polled. Pieces end in the order in which they were launched."""

    name = "inline"

    def __init__(self) -> None:
        self._program: Program | None = None
        self._queue: deque[tuple[int, Iterator[Any]]] = deque()
        self._working = False

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
        self, task: int, payload: Any, pieces: int, *, memory: int | None = None, announce: bool = False
    ) -> None:
        """Queues the task."""
        del pieces, memory, announce
        if self._program is None:
            raise RuntimeError("launch before load")
        self._queue.append((task, self._program.run(payload)))

    def poll(self, timeout_s: float) -> list[News]:
        """Works on the first task until it yields or ends."""
        del timeout_s
        if not self._queue:
            return []
        try:
            try:
                self._working = True
                return [self._work(*self._queue[0])]
            finally:
                self._working = False
        except _CancelledError:
            self._queue.clear()
            return []

    def _work(self, task: int, work: Iterator[Any]) -> Message | Ended:
        try:
            return Message(task, [next(work)])
        except StopIteration:
            end = Ended(task, End.RETURNED)
        except (_CancelledError, KeyboardInterrupt):
            raise
        except Exception:  # noqa: BLE001 - the dispatcher decides what an escaped error means
            end = Ended(task, End.RAISED, traceback.format_exc())
        except BaseException as error:  # noqa: BLE001 - `sys.exit()` in user code would end a worker, not the driver
            end = Ended(task, End.CRASHED, f"{type(error).__name__}: {error}")
        self._queue.popleft()
        return end

    def cancel(self, task: int | None = None) -> None:
        """Closes what is queued. From a signal handler, called in the middle of a task, it ends that first.

        A single task has no one to cancel it: this process is busy with it, or it waits and costs nothing.
        """
        if task is not None:
            return
        if self._working:
            raise _CancelledError
        for _, work in self._queue:
            close = getattr(work, "close", None)
            if close is not None:
                close()
        self._queue.clear()

    def close(self) -> None:
        """Forgets the program and what it loaded."""
        self.cancel()
        self._program = None
