"""Runs a function on rows in a separate process, so that a crash or a hang costs only the row in progress.

    rows ──▶ [ · · · row row ]──▶ child ──▶ [ answer answer ] ──▶ results, in order
              sent ahead            │ dies, or is killed for the time that it takes
                                    ▼
                     the row at work is bad; those behind it go to the next child

Rows are sent ahead of the answers, as many as fit into the socket between the two, so that neither waits for the other
at each row. The child rings when it has nothing more to do, and about every `RING_S` while it has: to wake the worker
for each answer would cost a tenth of a row that takes a millisecond. Answers come in order, and are in the socket
before the next row begins, rung for or not. So the first row without one is the row at work when a child dies; rows
behind it were not begun, and no row is run twice.

A child that is killed from outside, for example for lack of memory, also costs the row in progress. A row's time is
that of the processor, as a machine with too much to do must not make rows bad; a row that waits and computes nothing
gets `WAITS` times as many seconds by the clock. A row that takes about `timeout_s` may still be bad in one run and good
in the next.

The far side is `sandbox_process`.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from curate.errors import BadRow, ConfigError, add_note
from curate.pipeline import sandbox_process as far
from curate.pipeline.remote_error import CapturedError, RemoteError
from curate.pipeline.sandbox_child import AHEAD_BYTES, Child, Watch
from curate.pipeline.sandbox_outgoing import framed
from curate.runtime.shipping import interpreter, pickle_value
from curate.units import MIB

WAITS = 10
"""How many times as long a row may take by the clock as it may take of the processor."""
LONGEST_S = 86_400.0
"""Seconds that are watched for; timers and polls of the system cannot wait for very long ones."""
SOCKET_BYTES = 1 * MIB
"""What a socket is asked to hold of rows, and of answers; a system may allow less (Linux: `net.core.wmem_max`, 208 KiB
where nobody has raised it)."""
HEAP = {"MALLOC_TRIM_THRESHOLD_": str(32 * MIB), "MALLOC_MMAP_THRESHOLD_": str(32 * MIB)}
"""Has glibc keep what a row has freed for the next row (mallopt(3): M_TRIM_THRESHOLD, M_MMAP_THRESHOLD; the second is
the most that it takes). As it is, it gives some of it back to the system after each row, which clears it anew: with
pages of 69 kB that was 66 page faults a page, a tenth of the time of the child. What is set outside stays."""
_ENDS_S = 5.0
"""Seconds that the keeper has to end by itself."""


class Sandboxed:
    """A function that runs in a child process. Used by one thread, for one batch of rows at a time.

    The process starts with the first row and is replaced when it dies. It ends with `close`, when this object goes, and
    when the process that this object is in ends, however that ends. What it prints is printed here.
    """

    def __init__(self, fn: Callable[[dict[str, Any]], Any], timeout_s: float | None = None) -> None:
        """`timeout_s`: seconds of the processor that a row may take, in the process that runs it; `WAITS` times as
        many by the clock, with what that process has started. None, or more than a day: any time.

        Raises ConfigError for a time that is not above 0.
        """
        if timeout_s is not None and not timeout_s > 0:
            raise ConfigError(f"timeout_s={timeout_s!r}: expected seconds above 0, or None for no limit")
        self.children = 0
        """Processes that were started for rows."""
        self._fn = fn
        self._timeout_s = None if timeout_s is None or timeout_s > LONGEST_S else timeout_s
        self._keeper: _Keeper | None = None
        self._child: Child | None = None
        self._user: object | None = None
        """Whose rows are at work."""

    def results(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Any | BadRow]:
        """Yields what the function returns for each row, in order; for a bad row, the BadRow that says why.

        What the function raises, but BadRow, is raised when its row is reached; rows behind it are not run. Whoever
        leaves before the last result ends the process, as rows behind are at work.

        Raises ConfigError if the function cannot be sent, and what its loading raises.
        """
        if self._user is not None or (self._child is not None and not self._child.alive()):
            self._drop_child()
        me = self._user = object()
        unsent, unanswered = map(framed, rows), deque[list[bytes]]()
        try:
            while True:
                child = self._child
                if child is None and unanswered:
                    child = self._child = self._new_child()
                    for pieces in unanswered:
                        child.outgoing.add(pieces)
                while (child is None or child.outgoing.size < AHEAD_BYTES) and (row := next(unsent, None)) is not None:
                    if child is None:
                        child = self._child = self._new_child()
                    unanswered.append(row)
                    child.outgoing.add(row)
                if child is None or not unanswered:
                    return
                in_time = child.exchange(None if self._timeout_s is None else WAITS * self._timeout_s)
                for kind, data in child.answers():
                    unanswered.popleft()
                    if kind == far.RAISED:
                        unanswered.clear()
                        child.outgoing.add([far.HEADER.pack(far.RESUME, 0)])
                        raise _raised(pickle.loads(data))
                    yield pickle.loads(data) if kind == far.RESULT else BadRow(pickle.loads(data))
                    if self._user is not me:
                        raise RuntimeError("other rows were begun before the results of these had all been taken")
                if child.gone or not in_time:
                    status = self._drop_child()
                    if unanswered:
                        unanswered.popleft()
                        yield BadRow(self._reason(status, in_time))
        finally:
            if self._user is me:
                self._user = None
                if unanswered:
                    self._drop_child()

    def close(self) -> None:
        """Ends the process, if there is one. The next row starts another."""
        keeper, self._keeper, self._child = self._keeper, None, None
        if keeper is not None:
            keeper.close()

    def _new_child(self) -> Child:
        if self._keeper is not None:
            try:
                return self._counted(self._keeper.child())
            except _KeeperGone:
                self.close()
        keeper = _Keeper(self._timeout_s)
        weakref.finalize(self, keeper.close)
        try:
            keeper.load(self._packed(), self._fn)
            child = keeper.child()
        except _KeeperGone as gone:
            raise RuntimeError(f"a separate process for {_name(self._fn)} could not start: {gone}") from None
        except BaseException:
            keeper.close()
            raise
        self._keeper = keeper
        return self._counted(child)

    def _counted(self, child: Child) -> Child:
        self.children += 1
        return child

    def _packed(self) -> bytes:
        try:
            return pickle_value(self._fn)
        except Exception as error:
            raise ConfigError(
                f"{_name(self._fn)} cannot be sent to a separate process: {error}; "
                "open files, locks and connections inside the function"
            ) from error

    def _reason(self, status: int | None, in_time: bool) -> str:
        """Returns why the row at work is bad."""
        if self._timeout_s is None or (in_time and status != -far.OUT_OF_TIME):
            return _ended(status)
        if in_time:
            return f"took longer than {self._timeout_s:g} s of the processor"
        return f"took longer than {WAITS * self._timeout_s:g} s, with less than {self._timeout_s:g} s of the processor"

    def _drop_child(self) -> int | None:
        """Ends the child; returns its exit status, negative for a signal, None if nobody knows it."""
        child, self._child = self._child, None
        if child is None or self._keeper is None:
            return None
        try:
            return self._keeper.reap(child)
        except _KeeperGone:
            far.kill_group(child.pid)
            self.close()
            return None


class _KeeperGone(Exception):
    """The keeper died."""


class _Keeper:
    """The process that forks children, and the way in which what they print comes here."""

    def __init__(self, timeout_s: float | None) -> None:
        near, far_end = socket.socketpair()
        number = far_end.fileno()
        # As arguments, since nothing of curate may be found there before.
        where = "curate.pipeline.sandbox_process"
        call = f"fork_server({number}, {timeout_s})"
        start = f"from {where} import fork_server; {call}"
        with far_end:
            self._process = subprocess.Popen(
                interpreter(start),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[number],
                env={**HEAP, **os.environ},
                # Ctrl-C at the terminal is for the program.
                start_new_session=True,
            )
        self._control = near
        self._watch = Watch()
        self._watch.add(near)
        for pipe, name in ((self._process.stdout, "stdout"), (self._process.stderr, "stderr")):
            assert pipe is not None
            self._watch.print_from(pipe, name)

    def load(self, packed: bytes, fn: Any) -> None:
        """Has the function loaded. Raises what that raised."""
        try:
            self._control.sendall(far.HEADER.pack(far.ROW, len(packed)) + packed)
        except OSError:
            raise self._gone() from None
        kind, size = far.HEADER.unpack(self._reply(far.HEADER.size))
        data = self._reply(size)
        if kind == far.FAILED:
            raised: CapturedError = pickle.loads(data)
            raise _raised(raised.noted(f"while {_name(fn)} was loaded in a separate process"))

    def child(self) -> Child:
        """Forks a child."""
        with ExitStack() as ours, ExitStack() as theirs:
            (link, far_link), (bell, far_bell) = socket.socketpair(), socket.socketpair()
            for near in (link, bell):
                ours.enter_context(near)
            for end in (far_link, far_bell):
                theirs.enter_context(end)
            for end in (link, far_link):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
            try:
                socket.send_fds(self._control, [far.START], [far_link.fileno(), far_bell.fileno()])
                (pid,) = far.NUMBER.unpack(self._reply(far.NUMBER.size))
            except OSError:
                raise self._gone() from None
            ours.pop_all()
        return Child(self._watch, link, bell, pid)

    def reap(self, child: Child) -> int:
        """Kills a child, if it lives, and all that it started; returns its exit status."""
        child.close()
        try:
            self._control.sendall(far.REAP)
        except OSError:
            raise self._gone() from None
        (status,) = far.NUMBER.unpack(self._reply(far.NUMBER.size))
        # What it printed at last.
        self._watch.wait(0)
        return int(status)

    def close(self) -> None:
        """Ends the keeper, its child, and all that this has started. Once is enough."""
        if self._control.fileno() < 0:
            return
        # Which is what it ends for.
        self._watch.remove(self._control)
        self._control.close()
        try:
            self._process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._watch.close()

    def _reply(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            if self._control in self._watch.wait(None):
                try:
                    more = self._control.recv(size - len(data))
                except OSError:
                    more = b""
                if not more:
                    raise self._gone()
                data += more
        return bytes(data)

    def _gone(self) -> _KeeperGone:
        self._watch.wait(0)
        self.close()
        return _KeeperGone(_ended(self._process.returncode))


def _raised(raised: CapturedError) -> Exception:
    if raised.error is None:
        return RemoteError(raised)
    add_note(raised.error, f"in a separate process:\n{raised.failure.traceback.rstrip()}")
    return raised.error


def _ended(status: int | None) -> str:
    """Returns how a process ended.

    >>> _ended(-11), _ended(3)
    ("the parser's process died: SIGSEGV", "the parser's process ended itself: exit status 3")
    """
    if status is None:
        return "the parser's process died"
    if status >= 0:
        return f"the parser's process ended itself: exit status {status}"
    name = str(-status)
    with suppress(ValueError):
        name = signal.Signals(-status).name
    return f"the parser's process died: {name}"


def _name(fn: Any) -> str:
    return getattr(fn, "label", None) or getattr(fn, "__qualname__", None) or type(fn).__name__
