"""What `sandbox` sends: rows in pieces, with large values where they are, so that few bytes are copied."""

from __future__ import annotations

import pickle
import socket
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any

from curate.pipeline import sandbox_process as far
from curate.units import KIB

_LARGE = 4 * KIB
"""Bytes from which on a value is sent as it is, not copied into what is sent around it."""
_PIECES = 64
"""What is sent at once at most; a system takes 16 at least, and Linux 1,024."""


class Outgoing:
    """Bytes that wait for a socket: large ones where they are, small ones gathered."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces = deque[memoryview]()
        self._small = bytearray()
        """What comes behind the pieces."""

    def add(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self.size += len(piece)
            if len(piece) < _LARGE:
                self._small += piece
            else:
                self._gather()
                self._pieces.append(memoryview(piece))

    def send(self, link: socket.socket) -> None:
        """Sends what a socket takes."""
        self._gather()
        sent = link.sendmsg(islice(self._pieces, _PIECES))
        self.size -= sent
        while sent:
            first = self._pieces.popleft()
            if sent < len(first):
                self._pieces.appendleft(first[sent:])
            sent -= min(sent, len(first))

    def clear(self) -> None:
        self.size = 0
        self._pieces.clear()
        self._small = bytearray()

    def _gather(self) -> None:
        if self._small:
            self._pieces.append(memoryview(self._small))
            self._small = bytearray()


def framed(row: Mapping[str, Any]) -> list[bytes]:
    """Returns what is sent for a row: its large values as they are, then the row."""
    pieces: list[bytes] = []
    apart: list[pickle.PickleBuffer] = []
    if type(row) is dict:
        for name, value in row.items():
            if type(value) is bytes and len(value) >= _LARGE:
                if not apart:
                    row = dict(row)
                apart.append(pickle.PickleBuffer(value))
                row[name] = apart[-1]
                pieces += far.HEADER.pack(far.PART, len(value)), value

    def within(buffer: pickle.PickleBuffer) -> bool:
        # Arrays have buffers too; apart from their row they could not be written to any more.
        return all(buffer is not one for one in apart)

    data = pickle.dumps(row, pickle.HIGHEST_PROTOCOL, buffer_callback=within)
    return [*pieces, far.HEADER.pack(far.ROW, len(data)) + data]
