"""An actor of the local backend: a process that loads a pool's program once and answers calls, one at a time.

One thread loads it and works; another one has all sockets. So an actor says how it is while it is at work, what the
next call is given has come by then, and an answer that nobody reads yet keeps it from nothing.

What it works on stands in a file beside its socket. So when it dies, its callers know which call was at work: that one
may have killed it, and all others only waited.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import socket
import struct
import threading
import time
import traceback
from collections import deque
from pathlib import Path

from curate.dataclass import dataclass, field
from curate.local import wire
from curate.log import get_logger
from curate.runtime.process_guard import ENDS, spoilt
from curate.runtime.protocol import ActorStatus, PoolProgram

RECORD = struct.Struct("<qq")
"""What an actor works on: the caller's process, and the number of the call; zeros for nothing."""


@dataclass(frozen=True, slots=True)
class Called:
    """A call, from a task's worker."""

    caller: int
    """The worker's process."""
    number: int
    task: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """To the caller: what came of a call."""

    number: int
    answer: bytes = b""
    raised: str = ""
    """The traceback of what was raised: an error of curate's."""
    exited: str = ""
    """How user code tried to end the process."""


@dataclass(frozen=True, slots=True)
class ActorReady:
    """To the driver: it takes calls now."""

    setup_s: float


@dataclass(frozen=True, slots=True)
class SetupRaised:
    """To the driver: it cannot be set up."""

    says: str


@dataclass(frozen=True, slots=True)
class Look:
    """From the driver: say how you are."""


def serve(link: socket.socket, program: str, path: str) -> None:
    """Loads a pickled program and answers the calls that come to a socket at `path`, until the driver is gone."""
    began_s = time.monotonic()
    try:
        loaded: PoolProgram = pickle.loads(Path(program).read_bytes())
        loaded.setup()
    except BaseException as error:  # noqa: BLE001 - the driver says it
        says = traceback.format_exc().strip()
        if not isinstance(error, Exception):
            says += f"\nsetup raised {type(error).__name__}: {error}"
        wire.send(link, SetupRaised(says))
        return
    actor = _Actor(link, path)
    wire.send(link, ActorReady(time.monotonic() - began_s))
    threading.Thread(target=actor.attend, daemon=True).start()
    while not spoilt():
        actor.work(loaded)
    get_logger().warning(ENDS, changed=spoilt())
    actor.end()


@dataclass(eq=False)
class _Caller:
    """A worker that calls."""

    link: socket.socket
    inbox: wire.Inbox
    outgoing: bytearray = field(default_factory=bytearray)


class _Actor:
    def __init__(self, link: socket.socket, path: str) -> None:
        self._driver = link
        self._inbox = wire.Inbox(link)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(path)
        self._door.listen(1024)
        self._record = os.open(record_of(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        for one in (link, self._door, self._woken):
            self._selector.register(one, selectors.EVENT_READ)
        # Guarded by `_changed`.
        self._changed = threading.Condition()
        self._queue: deque[tuple[_Caller, Called]] = deque()
        self._answers: deque[tuple[_Caller, bytes]] = deque()
        self._task: int | None = None
        self._since_s = 0.0
        self._worked_s = 0.0
        self._ends = False

    # The thread that works

    def work(self, program: PoolProgram) -> None:
        """Answers the next call; waits for it."""
        with self._changed:
            while not self._queue:
                self._changed.wait()
            caller, call = self._queue.popleft()
            self._task, self._since_s = call.task, time.monotonic()
        os.pwrite(self._record, RECORD.pack(call.caller, call.number), 0)
        try:
            answer = Answered(call.number, wire.packed(program.call(wire.unpacked(call.payload))))
        except Exception:  # noqa: BLE001 - raised where the answer is asked for
            answer = Answered(call.number, raised=traceback.format_exc().strip())
        except BaseException as error:  # noqa: BLE001 - nobody would be told
            answer = Answered(call.number, exited=f"{type(error).__name__}: {error}")
        os.pwrite(self._record, RECORD.pack(0, 0), 0)
        with self._changed:
            self._task, self._worked_s = None, self._worked_s + time.monotonic() - self._since_s
            self._answers.append((caller, wire.packed(answer)))
        self._wake.send(b"w")

    def end(self) -> None:
        """Ends the process once what it has answered is sent. What waits is made again, elsewhere."""
        with self._changed:
            self._ends = True
        self._wake.send(b"w")
        threading.Event().wait()

    # The thread that has the sockets

    def attend(self) -> None:
        """Takes calls and sends answers until the driver is gone, or this is to end."""
        while True:
            for key, events in self._selector.select():
                if key.fileobj is self._driver:
                    self._hear_driver()
                elif key.fileobj is self._door:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                elif events & selectors.EVENT_READ:
                    self._hear(key.data)
            with self._changed:
                answers, self._answers, ends = self._answers, deque(), self._ends
            for caller, data in answers:
                caller.outgoing += data
                self._send(caller)
            for key in list(self._selector.get_map().values()):
                if key.data is not None and key.data.outgoing and key.events & selectors.EVENT_WRITE:
                    self._send(key.data)
            if ends and not any(key.data.outgoing for key in self._selector.get_map().values() if key.data is not None):
                os._exit(1)

    def _hear_driver(self) -> None:
        for _ in self._inbox.values():
            with self._changed:
                now_s, task = time.monotonic(), self._task
                worked_s = self._worked_s + (now_s - self._since_s if task is not None else 0.0)
                status = ActorStatus(now_s, worked_s, len(self._queue), task)
            with contextlib.suppress(OSError):
                wire.send(self._driver, status)
        if self._inbox.ended:
            os._exit(1)

    def _accept(self) -> None:
        link, _ = self._door.accept()
        self._selector.register(link, selectors.EVENT_READ, _Caller(link, wire.Inbox(link)))

    def _hear(self, caller: _Caller) -> None:
        calls = caller.inbox.values()
        with self._changed:
            self._queue.extend((caller, call) for call in calls)
            if caller.inbox.ended:
                # Nobody waits for what has not begun.
                self._queue = deque(one for one in self._queue if one[0] is not caller)
            self._changed.notify()
        if caller.inbox.ended:
            self._selector.unregister(caller.link)
            caller.link.close()

    def _send(self, caller: _Caller) -> None:
        if caller.link.fileno() < 0:
            return
        try:
            sent = caller.link.send(caller.outgoing, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError:
            # Its end is heard of.
            caller.outgoing.clear()
            sent = 0
        del caller.outgoing[:sent]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if caller.outgoing else 0)
        self._selector.modify(caller.link, events, caller)


def record_of(path: str) -> str:
    """Returns the file in which an actor, whose socket is at `path`, notes what it works on."""
    return f"{path}.call"


def recorded(path: str) -> tuple[int, int]:
    """Returns the caller's process and the number of the call that an actor works on; zeros for nothing."""
    with contextlib.suppress(OSError):
        data = Path(record_of(path)).read_bytes()
        if len(data) == RECORD.size:
            caller, number = RECORD.unpack(data)
            return caller, number
    return 0, 0
