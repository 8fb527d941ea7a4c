"""Has SIGTERM and SIGHUP end a script as Ctrl-C does: its blocks are left in order, with what they started and made.

By default either ends Python at once: processes in sessions of their own go on, temporary folders stay.
"""

from __future__ import annotations

import signal
from typing import Any, NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def in_order() -> None:
    """Has the first of these signals raise SystemExit in the main thread, with the exit code that shells give it."""
    for number in SIGNALS:
        # Who starts a script by `nohup` wants it to outlive its terminal.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _leave)


def _leave(number: int, _frame: Any) -> NoReturn:
    # Who closes a terminal, or shuts a machine down, sends several: what is left in order now is not left half.
    for one in SIGNALS:
        signal.signal(one, signal.SIG_IGN)
    raise SystemExit(128 + number)
