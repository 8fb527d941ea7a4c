"""A program whose payload is what to do, and things to do that end a worker or keep it busy. Workers import it."""

from __future__ import annotations

import ctypes
import decimal
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curate.local import machine


@dataclass
class Calling:
    """Calls each piece of the payload with what follows it; the result is the message."""

    key: str = "calling"

    def run(self, payload: list[tuple[Any, ...]]) -> Iterator[Any]:
        for call, *arguments in payload:
            yield call(*arguments)


def spoil(folder: str) -> int:
    """Changes the process in many ways, none of which the next program is to find; returns which process it is."""
    os.chdir(folder)
    os.umask(0o777)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    sys.setrecursionlimit(4321)
    decimal.getcontext().prec = 3
    os.close(1)
    return os.getpid()


def found() -> list[Any]:
    """Returns the process, and what of it `spoil` changes."""
    mask = os.umask(0)
    os.umask(mask)
    limits, third = resource.getrlimit(resource.RLIMIT_NOFILE), str(decimal.Decimal(1) / 3)
    return [os.getpid(), os.getcwd(), mask, limits, sys.getrecursionlimit(), third, os.fstat(1).st_ino]  # noqa: PTH109


def die(how: str, path: str = "") -> None:
    """Ends the process, or the piece, in one of many ways; once a file is gone, if one is named."""
    while path and os.path.exists(path):  # noqa: PTH110
        time.sleep(0.01)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "_exit":
        os._exit(3)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "exit":
        sys.exit(3)
    if how == "interrupt":
        raise KeyboardInterrupt
    raise ValueError(how)


def process_while(path: str) -> int:
    """Returns the process once the file is gone; says that it has begun in a file beside."""
    with open(f"{path}.{os.getpid()}", "w"):
        pass
    while os.path.exists(path):  # noqa: PTH110
        time.sleep(0.01)
    return os.getpid()


def keep_interpreter(path: str) -> None:
    """Says in a file beside `path` that it has begun, and keeps the interpreter's lock for ever, as extensions may."""
    with open(f"{path}.{os.getpid()}", "w"):
        pass
    ctypes.PyDLL(None).sleep(100_000)


def parent_and_child(path: str) -> None:
    """Starts a process that goes on, writes both into a file, with the fork server, and goes on too."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    with open(f"{path}.part", "w") as file:
        file.write(f"{os.getpid()} {child.pid} {os.getppid()}")
    os.rename(f"{path}.part", path)  # noqa: PTH104
    time.sleep(1000)


def use_arrow(size: int) -> int:
    """Touches so much memory of Arrow, and lets go of it; returns the process."""
    kept: list[pa.Buffer] = []
    for _ in range(0, size, 16 << 20):
        kept.append(pa.allocate_buffer(16 << 20))
        ctypes.memset(kept[-1].address, 1, 16 << 20)
    return os.getpid()


def holds() -> int:
    """Returns the memory of this process."""
    return machine.most_bytes(os.getpid())


def take_memory(most_bytes: int) -> None:
    """Takes memory until somebody minds."""
    kept = []
    while len(kept) << 24 < most_bytes:
        kept.append(b"x" * (1 << 24))
        time.sleep(0.02)
    raise RuntimeError(f"{most_bytes} bytes were taken, and nobody minded")
