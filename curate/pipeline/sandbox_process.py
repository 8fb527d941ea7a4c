"""The far side of `sandbox`: a keeper that has loaded the function, and the child that it forks to run it on rows.

    worker ──commands──▶ keeper: start, reap
       │                   │ fork
       └──rows, answers──▶ child

The keeper runs no row, so it lives as long as the worker, and a child that died is replaced by another fork: that takes
milliseconds, where loading the function may take a second. It is one thread, started afresh and not forked from the
worker: a fork of a worker, which has threads of Ray, may find a lock that nobody holds any more. It also watches: when
the worker is gone, however it went, the keeper kills the child and what that has started, and ends.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from curate.errors import BadRow

HEADER = struct.Struct("<cQ")
"""What comes before everything that is sent: its kind, and its length in bytes."""

ROW, PART, RESUME = b"r", b"p", b"s"
"""To the child: a row; a large value of the row that comes next, as it is; whatever was sent after a row that raised is
to be left alone until here."""

RESULT, BAD, RAISED = b"a", b"b", b"x"
"""From the child, one for each row: what the function returned, why the row is bad, what was raised."""

LOADED, FAILED = b"l", b"f"
"""From the keeper: it has the function, or what was raised instead."""

START, REAP = b"S", b"R"
"""To the keeper: fork a child, which talks through the first socket that comes with it and rings through the second;
tell how the child ended."""

OUT_OF_TIME = signal.SIGPROF
"""What ends the child, by the system and in the middle of any code, once a row has had its time of the processor."""

RING_S = 0.02
"""How long the child may have answered rows and not rung, when it answers the next one."""

NUMBER = struct.Struct("<q")
"""What the keeper answers: the child's process, or its exit status, negative for a signal."""


def fork_server(number: int, timeout_s: float | None) -> None:
    """Loads what comes through a socket, then does what it is told until nobody can tell it anything any more. A row
    may take `timeout_s` seconds of the processor."""
    faulthandler.enable()
    # What was printed before a crash is seen.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    control = socket.socket(fileno=number)
    reader = control.makefile("rb", buffering=0)
    _, size = HEADER.unpack(_exactly(reader, HEADER.size))
    try:
        fn = pickle.loads(_exactly(reader, size))
    except Exception as error:  # noqa: BLE001 - user code is imported here; the worker tells what it raised
        _send(control, FAILED, _captured(error))
        return
    _send(control, LOADED, b"")
    child = 0
    while True:
        try:
            command, sockets, *_ = socket.recv_fds(control, 1, 2)
        except ConnectionError:  # the worker was killed while an answer was on its way
            command, sockets = b"", []
        if command == START:
            child = _forked(control, sockets, partial(_timed, fn, timeout_s) if timeout_s else fn)
            control.sendall(NUMBER.pack(child))
            continue
        if child:
            # Before it is reaped: until then no other process can have its number.
            kill_group(child)
            _, status = os.waitpid(child, 0)
            child = 0
        if command != REAP:
            return
        control.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))


def kill_group(child: int) -> None:
    """Kills a child and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def _forked(control: socket.socket, numbers: Sequence[int], fn: Callable[[Any], Any]) -> int:
    # Or the child has it too.
    _flush()
    with warnings.catch_warnings():
        # Libraries may have started threads when they were imported. They are idle, as nothing was called yet.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _run(control, numbers, fn)
    # Here too: the worker may kill the group before the child has come to make it.
    with suppress(ProcessLookupError, PermissionError):
        os.setpgid(child, child)
    for number in numbers:
        os.close(number)
    return child


def _run(control: socket.socket, numbers: Sequence[int], fn: Callable[[Any], Any]) -> NoReturn:
    """Is the child. Never returns to what the keeper was doing."""
    status = 1
    try:
        os.setpgid(0, 0)
        control.close()
        link, bell = (socket.socket(fileno=number) for number in numbers)
        # A process that the function forks must not hold them open: their end is how the worker sees that the child
        # died.
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in numbers:
            os.register_at_fork(after_in_child=partial(os.dup2, nothing, number))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(OUT_OF_TIME, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [OUT_OF_TIME])
        _serve(link, _Answers(link, bell), fn)
        status = 0
    except ConnectionError:
        pass  # the worker was killed: nobody wants an answer
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001 - nothing is above it: told as the interpreter would tell it
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError, ValueError):
            _flush()
        os._exit(status & 0xFF)


def _timed(fn: Callable[[Any], Any], timeout_s: float, row: Any) -> Any:
    """Runs a row. Does not return if that takes too long: the process is over."""
    signal.setitimer(signal.ITIMER_PROF, timeout_s)
    try:
        return fn(row)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


class _Answers:
    """Answers, and tells the worker that there are answers: not of each, as waking it costs as much as some rows do."""

    def __init__(self, link: socket.socket, bell: socket.socket) -> None:
        self._link, self._bell = link, bell
        self._rows, self._room = select.poll(), select.poll()
        self._rows.register(link, select.POLLIN)
        self._room.register(link, select.POLLOUT)
        self._rung_s = 0.0
        self._silent = False
        """Whether there is an answer that was not rung for."""
        bell.setblocking(False)

    def send(self, kind: bytes, data: bytes) -> None:
        """Puts an answer into the socket, and rings, unless that was just done."""
        left = memoryview(HEADER.pack(kind, len(data)) + data)
        while left:
            try:
                left = left[self._link.send(left, socket.MSG_DONTWAIT) :]
                # Again after it has rung for room: who has taken all that was there by then waits for the rest.
                self._silent = True
            except BlockingIOError:
                # Nobody makes room who does not know that there is something.
                self.ring()
                self._room.poll()
        if time.monotonic() - self._rung_s > RING_S:
            self.ring()

    def at_rest(self) -> None:
        """Rings if nothing waits to be done."""
        if self._silent and not self._rows.poll(0):
            self.ring()

    def ring(self) -> None:
        """Rings. Nobody hears it twice."""
        with suppress(BlockingIOError):
            self._bell.send(b"\0")
        self._silent, self._rung_s = False, time.monotonic()


def _serve(link: socket.socket, answers: _Answers, fn: Callable[[Any], Any]) -> None:
    skipping = False
    parts: list[bytes] = []
    while True:
        answers.at_rest()
        if len(header := _received(link, HEADER.size)) < HEADER.size:
            return
        kind, size = HEADER.unpack(header)
        data = _received(link, size)
        if kind == PART:
            parts.append(data)
            continue
        values, parts = parts, []
        if kind == RESUME:
            skipping = False
        elif not skipping:
            kind, answer = _answer(fn, data, values)
            # Nobody wants the rows behind one that raised, and they may take long.
            skipping = kind == RAISED
            # What a row printed is there before its answer.
            _flush()
            answers.send(kind, answer)


def _answer(fn: Callable[[Any], Any], data: bytes, parts: list[bytes]) -> tuple[bytes, bytes]:
    try:
        result = fn(pickle.loads(data, buffers=parts))
        try:
            return RESULT, pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
            what = type(result).__name__
            raise TypeError(f"what was returned, {what}, cannot be sent to another process: {error}") from error
    except BadRow as error:
        return BAD, pickle.dumps(str(error.reason))
    except Exception as error:  # noqa: BLE001 - whatever user code raises is the answer
        return RAISED, _captured(error)


def _captured(error: Exception) -> bytes:
    try:
        return _told(error)
    except MemoryError:
        # What the row holds is still there, in the frames of the error that says that memory is gone.
        trace = error.__traceback__
        while trace is not None:
            with suppress(RuntimeError):
                trace.tb_frame.clear()
            trace = trace.tb_next
        return _told(error)


def _told(error: Exception) -> bytes:
    # Most children see no error, and what tells of one takes as long to import as the rest of this process.
    from curate.pipeline.remote_error import CapturedError

    return pickle.dumps(CapturedError.of(error))


def _flush() -> None:
    # Either may be None, if user code said so.
    for stream in (sys.stdout, sys.stderr):
        print(end="", file=stream, flush=True)


def _send(link: socket.socket, kind: bytes, data: bytes) -> None:
    link.sendall(HEADER.pack(kind, len(data)) + data)


def _received(link: socket.socket, size: int) -> bytes:
    """Returns the next bytes; fewer where no more will come."""
    data = link.recv(size, socket.MSG_WAITALL)
    # A signal, or more than two gigabytes.
    while len(data) < size and (more := link.recv(size - len(data), socket.MSG_WAITALL)):
        data += more
    return data


def _exactly(reader: Any, size: int) -> bytes:
    """Returns the next bytes. Raises EOFError where there are fewer."""
    data = bytearray()
    while len(data) < size:
        more = reader.read(size - len(data))
        if not more:
            raise EOFError(f"the worker ended after {len(data)} of {size} bytes")
        data += more
    return bytes(data)
