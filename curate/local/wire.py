"""What driver, workers and actors send each other: pickled values, each behind its length, over sockets of one user.

A table is sent as Arrow's own stream: only its rows, where a pickle of a slice has all that it is a slice of.
"""

from __future__ import annotations

import io
import pickle
import select
import socket
import struct
from typing import Any

from curate.imports import imported

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20


def packed(value: Any) -> bytes:
    """Returns a value as it is sent."""
    sink = io.BytesIO()
    sink.write(_LENGTH.pack(0))
    pickler = pickle.Pickler(sink, pickle.HIGHEST_PROTOCOL)
    # Who has not imported Arrow has no table.
    if (arrow := imported("pyarrow")) is not None:
        pickler.dispatch_table = {arrow.Table: _reduced}
    pickler.dump(value)
    with sink.getbuffer() as data:
        _LENGTH.pack_into(data, 0, len(data) - _LENGTH.size)
    return sink.getvalue()


def unpacked(data: bytes) -> Any:
    """Returns the value that was packed."""
    return pickle.loads(memoryview(data)[_LENGTH.size :])


def send(link: socket.socket, value: Any) -> None:
    """Sends a value; waits until there is room for it. Raises OSError if nobody can get it."""
    link.sendall(packed(value))


def receive(link: socket.socket) -> Any:
    """Returns the next value; waits for it. Raises EOFError if none will come."""
    (size,) = _LENGTH.unpack(_exactly(link, _LENGTH.size))
    return pickle.loads(_exactly(link, size))


def readable(file: int, timeout_s: float) -> bool:
    """Returns whether there is something to read, or nothing will come; waits for it.

    Not by `select`, which has room for files below 1024 only.
    """
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


class Inbox:
    """What has come through a socket, for whoever does not wait for the rest of it."""

    def __init__(self, link: socket.socket) -> None:
        self.ended = False
        """Whether nothing will come any more."""
        self._link = link
        self._data = bytearray()

    def values(self) -> list[Any]:
        """Returns the values that have come since the last call, without waiting."""
        while not self.ended:
            try:
                more = self._link.recv(_CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                more = b""
            self.ended = not more
            self._data += more
        found, start = [], 0
        while len(self._data) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._data, start)
            end = start + _LENGTH.size + size
            if len(self._data) < end:
                break
            found.append(unpacked(bytes(self._data[start:end])))
            start = end
        del self._data[:start]
        return found


def _exactly(link: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    with memoryview(data) as view:
        got = 0
        while got < size:
            try:
                more = link.recv_into(view[got:])
            except ConnectionError:
                more = 0
            if not more:
                raise EOFError(f"the other side ended after {got} of {size} bytes")
            got += more
    return data


def _reduced(table: Any) -> Any:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return _restored, (pickle.PickleBuffer(sink.getvalue()),)


def _restored(data: Any) -> Any:
    import pyarrow as pa

    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()
