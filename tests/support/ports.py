"""Ports for servers that are started by number, and listen seconds later."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

FIRST, COUNT = 20_000, 12_000
"""Below those that Linux gives to whoever asks for any (from 32,768 on), above those of Ray's workers. One that anybody
may get belongs to another process, at times, before the server that it was looked up for listens."""
LAST = Path(f"/tmp/curate-test-port-{os.getuid()}")
"""Holds the port that was given last, of all processes of all runs."""


def free_port() -> int:
    """Returns a port that nobody listens at, and that no other test gets before all others had their turn."""
    with LAST.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        port = int(file.read() or FIRST)
        for _ in range(COUNT):
            port = FIRST + (port + 1 - FIRST) % COUNT
            with socket.socket() as found:
                try:
                    found.bind(("", port))
                except OSError:
                    continue
            file.truncate(0)
            file.write(str(port))
            return port
    raise AssertionError(f"no port from {FIRST} on is free")
