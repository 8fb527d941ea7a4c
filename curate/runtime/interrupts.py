"""Defers Ctrl-C during work that must not be interrupted halfway, and ends the process at once where that is asked."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

from curate.around import contextmanager

AGAIN_S = 0.02
"""After which a signal is sent again that could raise nothing where it arrived."""
LEFT = b"left at once, without waiting for what ran; what is done is kept: run it again to resume\n"


def send_again(number: int) -> None:
    """Sends a signal to this process in a moment, from a thread of its own."""
    again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


@contextmanager
def obeyed_everywhere() -> Iterator[None]:
    """Has a Ctrl-C end its block also where it arrives in a finaliser or a callback of the interpreter, as imports have
    many: it can raise nothing there, so Python would tell of it and go on. It is sent again then. Behind the block, the
    last thing that a program does, nothing is told of one: all is said, and what it ends is a farewell."""
    before = sys.unraisablehook

    def heed(ignored: Any) -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            send_again(signal.SIGINT)
        else:
            before(ignored)

    sys.unraisablehook = heed
    try:
        yield
    finally:
        # What somebody else has put there is theirs.
        sys.unraisablehook = _leave if before is sys.__unraisablehook__ else before


def _leave(ignored: Any) -> None:
    """Tells of what cannot be raised as Python does, but for a Ctrl-C."""
    if not issubclass(ignored.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(ignored)


@contextmanager
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


def leave_at_once(code: int) -> NoReturn:
    """Ends the process with a line that says how to go on: whatever else would have been said may be unsaid."""
    with contextlib.suppress(OSError, ValueError):
        # Not by `sys.stderr`, which may be in the middle of a write; and only where it need not wait for a reader.
        if select.select([], [2], [], 0)[1]:
            os.write(2, LEFT)
    os._exit(code)


def end_process(code: int) -> NoReturn:
    """Ends the process without a farewell, but for what its streams have not written yet."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
