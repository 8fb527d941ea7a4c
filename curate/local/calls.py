"""A pool as the worker of a task sees it: to which actor a call goes, and what becomes of it.

Who is in a pool stands in a file, its board, which the driver replaces when it changes and workers read twice a second,
and at once when an actor died. Calls go to the actors' own sockets. So nobody asks the driver, and no process is in the
way.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import platform
import selectors
import socket
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from curate.dataclass import dataclass, field, replace
from curate.local import wire
from curate.local.actor import Answered, Called, recorded
from curate.runtime.protocol import Call, CallLostError, TaskEnd, TaskFinished

MAX_DEATHS = 3
"""Actors that a call may kill."""
PATIENCE_S = 600.0
"""How long a call waits for a pool that has no actor, nor one that starts."""
REFRESH_S = 0.5
"""How long a board is trusted."""
LOOK_S = 0.02
"""How often it is looked whether there is an actor, where there was none."""
TOLD_S = 2.0
"""How long the driver may take to say how an actor ended."""
WAITS_S = 0.02
"""From when on a worker that waits for an answer lets others run in its place."""


class ActorError(Exception):
    """An actor raised what is not part of an answer; the text has its traceback."""


@dataclass(frozen=True, slots=True)
class Member:
    """An actor that takes calls."""

    serial: int
    path: str
    """Of its socket."""
    pid: int


@dataclass(frozen=True, slots=True)
class Board:
    """What the callers of a pool must know."""

    members: tuple[Member, ...] = ()
    dismissed: frozenset[int] = frozenset()
    """Serials of actors that the driver ended, for which no call is to blame."""
    ended: dict[int, TaskFinished] = field(default_factory=dict)
    """How others ended."""
    share: int = 2
    """Calls that each task may have made."""

    def publish(self, path: str) -> None:
        """Puts this into the place of the board before."""
        Path(f"{path}.part").write_bytes(pickle.dumps(self))
        os.replace(f"{path}.part", path)  # noqa: PTH105 - on the way of every look at a pool


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Call:
    """A call that was made and whose answer nobody has asked for."""

    pool: CalledPool
    task: int
    number: int
    """Calls are numbered as they are made."""
    payload: bytes
    line: _Line | None = None
    """To whom it was sent; None while there is nobody."""
    deaths: int = 0
    answer: bytes = b""
    error: Exception | None = None
    settled: bool = False

    def ready(self) -> bool:
        if not self.settled:
            self.pool.listen(0.0)
        return self.settled

    def result(self) -> Any:
        self.pool.wait_for(self)
        answer, self.answer = self.answer, b""
        if self.error is not None:
            raise self.error
        return wire.unpacked(answer)

    def settle(self, answer: bytes = b"", error: Exception | None = None) -> None:
        self.answer, self.error, self.settled = answer, error, True
        # Nothing is kept of what was sent.
        self.payload, self.line = b"", None


@dataclass(eq=False, slots=True)
class _Line:
    """A connection to an actor."""

    member: Member
    link: socket.socket
    inbox: wire.Inbox


class CalledPool:
    """A pool as a task sees it. A call goes to the actor with the fewest calls of this task."""

    def __init__(self, name: str, board: str, waits: Callable[[bool], None]) -> None:
        """`board` is the file; `waits` is told whether the worker does nothing but wait for an answer."""
        self.task = 0
        """The task that calls."""
        self._name = name
        self._file = board
        self._waits = waits
        self._board = Board()
        self._read_s = float("-inf")
        self._calls: weakref.WeakSet[_Call] = weakref.WeakSet()
        self._numbers = itertools.count(1)
        self._lines: dict[int, _Line] = {}
        self._gone: set[int] = set()
        """Serials of actors that were found dead."""
        self._selector = selectors.DefaultSelector()
        # Where there are more actors than calls, not all workers begin with the same one.
        self._turn = os.getpid()

    @property
    def room(self) -> int:
        self._look()
        return self._board.share

    def call(self, payload: Any) -> Call:
        call = _Call(self, self.task, next(self._numbers), wire.packed(payload))
        self._look()
        self._calls.add(call)
        self._send(call)
        return call

    def wait_for(self, call: _Call) -> None:
        """Waits until a call is settled; lets others run in place of this worker meanwhile, unless that is soon."""
        until_s = time.monotonic() + PATIENCE_S
        if not call.settled:
            self._listen_for(call, WAITS_S)
        if call.settled:
            return
        self._waits(True)
        try:
            while not call.settled:
                if call.line is not None:
                    until_s = time.monotonic() + PATIENCE_S
                elif time.monotonic() > until_s:
                    says = f"the pool {self._name} had no actor for {PATIENCE_S:g} s"
                    call.settle(error=CallLostError(TaskFinished(call.task, TaskEnd.LOST, says)))
                self._listen_for(call, REFRESH_S)
        finally:
            self._waits(False)

    def _listen_for(self, call: _Call, timeout_s: float) -> None:
        if call.line is not None:
            self.listen(timeout_s)
            return
        time.sleep(LOOK_S)
        self._look(now=True)
        # The others that had nowhere to go are not to wait until somebody asks for them.
        for one in sorted((one for one in self._calls if not one.settled), key=lambda one: one.number):
            if one.line is None:
                self._send(one)

    def listen(self, timeout_s: float) -> None:
        """Takes the answers that have come; waits for the first of them."""
        for key, _ in self._selector.select(timeout_s):
            line: _Line = key.data
            sent = {call.number: call for call in self._calls if call.line is line}
            for value in line.inbox.values():
                self._answered(sent.get(value.number), value, line)
            if line.inbox.ended:
                self._lost(line)

    def _answered(self, call: _Call | None, value: Answered, line: _Line) -> None:
        if call is None:
            # Nobody wants it any more.
            return
        if value.exited:
            end = TaskFinished(call.task, TaskEnd.CRASHED, value.exited, platform.node(), line.member.pid)
            call.settle(error=CallLostError(end))
        elif value.raised:
            call.settle(error=ActorError(f"in an actor of {self._name}\n{value.raised}"))
        else:
            call.settle(value.answer)

    def _lost(self, line: _Line) -> None:
        """Makes the calls again that were sent to an actor that is gone; gives up one that has killed three."""
        serial = line.member.serial
        self._hang_up(line)
        at_work = _at_work(line.member)
        for call in sorted((one for one in self._calls if one.line is line), key=lambda one: one.number):
            call.line = None
            if at_work == call.number:
                end = self._end_of(line.member)
                # Ended by the driver, or with the machine's other processes, it is nobody's fault.
                if serial not in self._board.dismissed and end.end is not TaskEnd.LOST:
                    call.deaths += 1
                if call.deaths >= MAX_DEATHS:
                    call.settle(error=CallLostError(replace(end, task=call.task)))
                    continue
            self._send(call)

    def _end_of(self, member: Member) -> TaskFinished:
        """Returns how an actor ended; the driver knows, but may be busy."""
        until_s = time.monotonic() + TOLD_S
        while True:
            self._look(now=True)
            found = self._board.ended.get(member.serial)
            if found is not None:
                return found
            if member.serial in self._board.dismissed or time.monotonic() > until_s:
                return TaskFinished(0, TaskEnd.CRASHED, "the actor died", platform.node(), member.pid)
            time.sleep(LOOK_S)

    def _send(self, call: _Call) -> None:
        """Sends a call to the best actor; leaves it without one if there is none."""
        while (line := self._best()) is not None:
            try:
                wire.send(line.link, Called(os.getpid(), call.number, call.task, call.payload))
            except OSError:
                # Those that it has are sent again when its end is heard.
                self._gone.add(line.member.serial)
                continue
            call.line = line
            return

    def _best(self) -> _Line | None:
        while members := [one for one in self._board.members if one.serial not in self._gone]:
            sent: dict[int, int] = {}
            for call in self._calls:
                if call.line is not None:
                    sent[call.line.member.serial] = sent.get(call.line.member.serial, 0) + 1
            self._turn += 1
            count = len(members)
            k = min(range(count), key=lambda k: (sent.get(members[k].serial, 0), (k - self._turn) % count))
            line = self._line(members[k])
            if line is not None:
                return line
        return None

    def _line(self, member: Member) -> _Line | None:
        found = self._lines.get(member.serial)
        if found is not None:
            return found
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(member.path)
        except OSError:
            link.close()
            self._gone.add(member.serial)
            return None
        line = self._lines[member.serial] = _Line(member, link, wire.Inbox(link))
        self._selector.register(link, selectors.EVENT_READ, line)
        return line

    def _hang_up(self, line: _Line) -> None:
        self._gone.add(line.member.serial)
        self._lines.pop(line.member.serial, None)
        self._selector.unregister(line.link)
        line.link.close()

    def _look(self, *, now: bool = False) -> None:
        """Reads the board if that is due."""
        if not now and time.monotonic() - self._read_s <= REFRESH_S:
            return
        self._read_s = time.monotonic()
        with contextlib.suppress(OSError):
            self._board = pickle.loads(Path(self._file).read_bytes())


def _at_work(member: Member) -> int:
    """Returns the number of the call of this worker that an actor worked on when it died, 0 if that was none."""
    caller, number = recorded(member.path)
    return number if caller == os.getpid() else 0
