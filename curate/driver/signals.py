"""Handles SIGINT and SIGTERM during a run.

While a run gets ready, either ends it at once: nothing is lost. While tasks run, they are counted for the dispatcher,
which stops launching, cancels or leaves in order. Once they have ended, a first SIGINT lets the run write down how it
ended, which takes as long as its store takes to answer. Whatever hangs after a SIGTERM, the process is gone in time;
after a third SIGINT, a second one when no task runs, or any signal once it has written down how it ended, it is gone at
once, with a line that says how to go on. SIGHUP is ignored: who closes the terminal does not end the run.

A signal that arrives in a finaliser or a callback of the interpreter can raise nothing there: Python tells of it and
goes on. It is sent again then.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any, Self

from curate.around import contextmanager
from curate.ledger.summary import RunState
from curate.runtime.interrupts import end_process, leave_at_once, send_again
from curate.runtime.protocol import Backend
from curate.tasks.dispatcher import GRACE_S, Interrupts

SAID_AFTER_S = 3.0
"""After which who interrupted tasks is told that what takes so long is no task any more."""
LEAVE_WITHIN_S = 1.4
"""After a SIGTERM is noticed, which takes half a second in the middle of a poll, the process is gone by then, whatever
still hangs: within 2 s in all, since `ray job stop` kills after 3 s."""


class Signals:
    """Handles both signals while its block lasts, if `wanted` and in the main thread; else leaves them alone."""

    def __init__(self, wanted: bool, log: Any) -> None:
        self.interrupts = Interrupts()
        self._wanted = wanted and threading.current_thread() is threading.main_thread()
        self._log = log
        self._backend: Backend | None = None
        self._tasks_run = False
        self._grace: threading.Timer | None = None
        self._hint: threading.Timer | None = None
        self._before: tuple[Any, Any] | None = None
        self._hangup_before: Any = None
        self._unraisable_before = sys.unraisablehook
        self._arrivals: tuple[socket.socket, socket.socket] | None = None
        """Where the system notes every signal that arrives. Python itself calls a handler once for all that came while
        it was in the middle of a wait."""

    def __enter__(self) -> Self:
        if self._wanted:
            self._before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
            # A terminal that is closed ends no run, nor what the run starts: this is passed on to child processes.
            self._hangup_before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
            self._arrivals = socket.socketpair()
            for end in self._arrivals:
                end.setblocking(False)
            self._unraisable_before, sys.unraisablehook = sys.unraisablehook, self._unraisable
            self.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for timer in (self._grace, self._hint):
            if timer is not None:
                timer.cancel()
        if self._before is None:
            return
        sys.unraisablehook = self._unraisable_before
        if self._arrivals is not None:
            signal.set_wakeup_fd(-1)
            for end in self._arrivals:
                end.close()
            self._arrivals = None
        if kind is KeyboardInterrupt or self.interrupts.came:
            # The program ends now. An exception in the middle of Ray's farewell has ended in a corrupted heap, and in a
            # traceback from the depths of Ray.
            signal.signal(signal.SIGINT, _leave)
            signal.signal(signal.SIGTERM, _leave)
        else:
            signal.signal(signal.SIGINT, self._before[0])
            signal.signal(signal.SIGTERM, self._before[1])
            signal.signal(signal.SIGHUP, self._hangup_before)

    def install(self) -> None:
        """Takes both signals; again after whatever may have taken them, as `ray.init` does."""
        if self._wanted:
            signal.signal(signal.SIGINT, self._on_interrupt)
            signal.signal(signal.SIGTERM, self.terminate)
            if self._arrivals is not None:
                signal.set_wakeup_fd(self._arrivals[1].fileno(), warn_on_full_buffer=False)

    @contextmanager
    def in_order(self, backend: Backend) -> Iterator[None]:
        """Counts signals while the block runs, instead of raising KeyboardInterrupt where they happen to arrive."""
        self._backend = backend
        try:
            yield
        finally:
            self._backend = None

    @contextmanager
    def getting_ready(self) -> Iterator[None]:
        """Is a part of a block in order in which nothing runs yet: signals raise KeyboardInterrupt again."""
        backend, self._backend = self._backend, None
        try:
            yield
        finally:
            self._backend = backend

    @contextmanager
    def while_tasks_run(self) -> Iterator[None]:
        """Is a part of a block in order in which somebody looks at what is counted."""
        self._tasks_run = True
        try:
            yield
        finally:
            self._tasks_run = False
            if self._grace is not None:
                self._grace.cancel()
            if self.interrupts.interrupts:
                # Who was told of tasks alone would wait for a store that is away.
                self._hint = threading.Timer(SAID_AFTER_S, self._say, [False])
                self._hint.daemon = True
                self._hint.start()

    @contextmanager
    def starting(self, backend: Backend) -> Iterator[None]:
        """Is what a backend starts in, whose handlers of signals are replaced then. Raises KeyboardInterrupt if it is
        interrupted; then the program ends without a farewell, in the middle of which Ray aborts that started half."""
        try:
            yield
        except (SystemExit, KeyboardInterrupt) as error:
            # SystemExit: Ray's handler of SIGTERM, while `ray.init` runs.
            if self._wanted and backend.name == "ray" and "ray" in sys.modules:
                # What was registered last runs first. The processes of a cluster that was begun end with this one.
                atexit.register(end_process, RunState.INTERRUPTED.exit_code)
            raise KeyboardInterrupt from error
        finally:
            self.install()

    def _unraisable(self, ignored: Any) -> None:
        """Is told of exceptions that Python ignores, for the places where they were raised."""
        if not issubclass(ignored.exc_type, KeyboardInterrupt | SystemExit):
            self._unraisable_before(ignored)
            return
        # What comes again is the same one.
        self._arrived()
        # SystemExit: Ray's handler of SIGTERM, while `ray.init` runs.
        number = signal.SIGINT if issubclass(ignored.exc_type, KeyboardInterrupt) else signal.SIGTERM
        send_again(number)

    def _on_interrupt(self, *_signal: Any) -> None:
        if self._backend is None:
            raise KeyboardInterrupt
        for _ in range(self._arrived()):
            self._interrupted(self._backend)

    def _arrived(self) -> int:
        """Returns how many SIGINTs came since the last call, one at least."""
        noted = b""
        if self._arrivals is not None:
            with contextlib.suppress(BlockingIOError):
                while data := self._arrivals[0].recv(4096):
                    noted += data
        return max(1, noted.count(signal.SIGINT))

    def _interrupted(self, backend: Backend) -> None:
        self.interrupts.interrupts += 1
        if self.interrupts.interrupts > (2 if self._tasks_run else 1):
            _leave()
        if self.interrupts.interrupts > 1:
            self._cancel_here()
            return
        # From a thread of its own: the main one may be in the middle of a write to the same stream.
        threading.Thread(target=self._say, args=[self._tasks_run], daemon=True).start()
        if backend.name == "inline":
            # The dispatcher waits inside a task and cannot look at the clock.
            self._grace = threading.Timer(GRACE_S, os.kill, (os.getpid(), signal.SIGINT))
            self._grace.daemon = True
            self._grace.start()

    def terminate(self, *_: Any) -> None:
        if self.interrupts.terminated:
            return
        self.interrupts.terminated = True
        leave = threading.Timer(LEAVE_WITHIN_S, _leave)
        leave.daemon = True
        leave.start()
        if self._backend is None:
            raise KeyboardInterrupt
        self._cancel_here()

    def _cancel_here(self) -> None:
        """Ends the task that this thread is in the middle of. A task elsewhere is the dispatcher's to cancel."""
        if self._backend is not None and self._backend.name == "inline":
            self._backend.cancel()

    def _say(self, tasks_run: bool) -> None:
        if tasks_run:
            self._log.warning(f"interrupted: running tasks get {GRACE_S:.0f} s to end; interrupt again to cancel them")
        else:
            self._log.warning("interrupted: how this run ended is being written down; interrupt again to leave at once")


def _leave(*_: Any) -> None:
    leave_at_once(RunState.INTERRUPTED.exit_code)
