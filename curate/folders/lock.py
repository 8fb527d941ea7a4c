"""The lock of a folder, held for a moment by whoever removes or replaces a file in it.

Between the look at a generation and the unlink, a name can only come to mean another object by being removed and
published again; so it is enough that those who remove and replace exclude each other.

A process that is stopped while it holds the lock keeps all others waiting. Nobody may go on without it: that process
would remove, once it goes on, what has taken the file's place. So who waits long says for what.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator

from curate.around import contextmanager
from curate.log import get_logger, unheard

SAID_AFTER_S = 10.0
"""After which who waits for the lock says so, and how often."""


@contextmanager
def locked(folder: int, path: str) -> Iterator[None]:
    """Holds the lock of the folder with this descriptor while the block runs; `path` is the file that it is about.

    Where a network file system cannot lock a folder, nothing is held, and that race of two operators stays open.
    """
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with _saying(path):
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _saying(path: str) -> Iterator[None]:
    held = threading.Event()

    def say() -> None:
        while not held.wait(SAID_AFTER_S):
            with unheard():
                get_logger().warning(
                    "another process has locked a folder, and does not go on; waiting for it",
                    folder=os.path.dirname(path),  # noqa: PTH120
                    to_change=os.path.basename(path),  # noqa: PTH119
                    next="find the process that is stopped (curate status names those of runs), and continue it "
                    "(kill -CONT) or end it",
                )

    threading.Thread(target=say, name="curate-lock", daemon=True).start()
    try:
        yield
    finally:
        held.set()
