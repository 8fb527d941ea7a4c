"""The child of `sandbox`, as the worker sees it: rows go there, answers come, and what it prints is printed here."""

from __future__ import annotations

import codecs
import os
import selectors
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any

from curate.pipeline import sandbox_process as far
from curate.pipeline.sandbox_outgoing import Outgoing
from curate.units import KIB

AHEAD_BYTES = 64 * KIB
"""Rows that wait for the socket."""
_CHUNK = 256 * KIB


class Watch:
    """What news are waited for from, and pipes of which all that comes is printed here."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def add(self, link: socket.socket, events: int = selectors.EVENT_READ) -> None:
        """Makes `wait` tell of these events of a socket."""
        self._selector.register(link, events)

    def print_from(self, pipe: IO[bytes], name: str) -> None:
        """Makes `wait` print what comes through a pipe, to the stream of `sys` of that name."""
        self._selector.register(pipe, selectors.EVENT_READ, _Printed(pipe, name))

    def remove(self, link: socket.socket) -> None:
        """Tells of a socket no more, if it did."""
        if link in self._selector.get_map():
            self._selector.unregister(link)

    def wait(self, timeout_s: float | None) -> set[Any]:
        """Waits for news; prints what was printed, and returns what else has any."""
        ready = set()
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                ready.add(key.fileobj)
            elif not key.data.forward():
                self._selector.unregister(key.fileobj)
        return ready

    def close(self) -> None:
        """Closes all that is watched."""
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()


class Child:
    """The process that runs rows, as a socket to it, and one through which it rings."""

    def __init__(self, watch: Watch, link: socket.socket, bell: socket.socket, pid: int) -> None:
        self.pid = pid
        self.outgoing = Outgoing()
        self.gone = False
        """Whether nothing will come any more."""
        self._watch = watch
        self._link = link
        self._bell = bell
        self._incoming = bytearray()
        self._buffer = memoryview(bytearray(_CHUNK))
        self._full = False
        """Whether the socket takes no more at present. Only then its room is waited for."""
        link.setblocking(False)
        bell.setblocking(False)
        watch.add(bell)

    def alive(self) -> bool:
        """Returns whether it is there, while it has nothing to do."""
        try:
            return bool(self._link.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def exchange(self, timeout_s: float | None) -> bool:
        """Sends and receives until something has come; returns False if nothing has moved for so many seconds."""
        while not self.gone:
            if self.outgoing.size and not self._full:
                self._send()
                if self.outgoing.size < AHEAD_BYTES // 2:
                    return True
            rung, room = self._wait(timeout_s)
            if room:
                self._set_full(False)
            if rung:
                self._receive()
                return True
            if not room:
                # What it has done without ringing, before the row that is at work.
                self._receive()
                return False
        return True

    def answers(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the answers that are complete."""
        start, data = 0, self._incoming
        try:
            while len(data) >= start + far.HEADER.size:
                kind, size = far.HEADER.unpack_from(data, start)
                end = start + far.HEADER.size + size
                if len(data) < end:
                    return
                answer = bytes(data[start + far.HEADER.size : end])
                start = end
                yield kind, answer
        finally:
            del data[:start]

    def close(self) -> None:
        """Lets go of it; it ends when it has done the row at work."""
        for end in (self._link, self._bell):
            self._watch.remove(end)
            end.close()

    def _wait(self, timeout_s: float | None) -> tuple[bool, bool]:
        """Returns whether it has rung, and whether there is room for rows; neither if that takes too long, whatever is
        printed meanwhile."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            ready = self._watch.wait(left_s)
            rung, room = self._bell in ready, self._link in ready
            if rung or room or left_s == 0.0:
                return rung, room

    def _send(self) -> None:
        try:
            self.outgoing.send(self._link)
            self._set_full(self.outgoing.size > 0)
        except BlockingIOError:
            self._set_full(True)
        except OSError:
            # Whoever does not read any more may have answered before. Its end is seen after that.
            self.outgoing.clear()

    def _set_full(self, full: bool) -> None:
        if full != self._full:
            self._full = full
            if full:
                self._watch.add(self._link, selectors.EVENT_WRITE)
            else:
                self._watch.remove(self._link)

    def _receive(self) -> None:
        """Takes all that is there."""
        # Before the answers: one that comes later rings again.
        with suppress(OSError):
            self._bell.recv(_CHUNK)
        while not self.gone:
            try:
                size = self._link.recv_into(self._buffer)
            except BlockingIOError:
                return
            except OSError:
                size = 0
            self.gone = not size
            self._incoming += self._buffer[:size]


class _Printed:
    """What comes through a pipe, printed here."""

    def __init__(self, pipe: IO[bytes], name: str) -> None:
        self._number = pipe.fileno()
        self._name = name
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def forward(self) -> bool:
        """Prints what has come; returns whether more may come."""
        data = os.read(self._number, _CHUNK)
        # By its name each time: whoever listens puts something else there.
        stream = getattr(sys, self._name)
        if stream is not None and (text := self._decoder.decode(data, final=not data)):
            stream.write(text)
        return bool(data)
