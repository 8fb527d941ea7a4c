"""Defers Ctrl-C during work that must not be interrupted halfway."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def uninterrupted(says: str = "") -> Iterator[None]:
    """Raises the KeyboardInterrupt of a Ctrl-C only when its block has ended; until then `says` so on standard error.

    In the main thread, and where nobody else handles SIGINT: a program that does knows what to do. An error of the
    block goes before the interrupt, which is lost then.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: Any) -> None:
        came.append(number)
        if says:
            # Not by `sys.stderr`, which may be in the middle of a write.
            with contextlib.suppress(OSError):
                os.write(2, f"{says}\n".encode())

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        # Unless the block has given it to someone else.
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
