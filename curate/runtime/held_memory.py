"""Measures the most memory that this process held for itself between two looks: not files, nor what it shares.

Linux keeps the peak of a process, and forgets it when asked to; both take a few system calls, so it is looked at ten
times a second at most. Pages of files, such as weights that are mapped, are there once for all processes of a machine.
How many of them there were at the peak nobody knows: as many as there are now. (proc(5): status, clear_refs.)

A process that was forked shares what its parent had, such as a model that a module loads when it is imported, until one
of them writes to it. The system looks at each page to tell how much that is (smaps_rollup: 20 ms a GiB), and is asked
every ten seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection

LOOK_S = 0.1
"""Between two looks, at least: a look takes 50 µs."""
SHARED_S = 10.0
"""How long it is taken to share with other processes what it did."""
_STATUS = "/proc/self/status"
_ROLLUP = "/proc/self/smaps_rollup"
_FORGET = "/proc/self/clear_refs"
_PEAK_ONLY = b"5"


class HeldMemory:
    """What this process holds, from look to look."""

    def __init__(self) -> None:
        self._looked_s = self._counted_s = -math.inf
        self._shared_bytes = 0
        self._forgets = False
        """Whether the peak is that since the last look."""

    def begin(self) -> None:
        """Forgets what was before: the next look tells of what comes now."""
        self._forgets = _forget()
        self._looked_s = time.monotonic()

    def look(self) -> int:
        """Returns the most bytes held since the last look; 0 where that is not known, or where that look was just now:
        then the next one tells of both."""
        now_s = time.monotonic()
        if not self._forgets or now_s - self._looked_s < LOOK_S:
            return 0
        if now_s - self._counted_s >= SHARED_S:
            self._counted_s, self._shared_bytes = now_s, _shared_bytes()
        held = max(0, _held_bytes() - self._shared_bytes)
        self._forgets = _forget()
        self._looked_s = now_s
        return held


def _held_bytes() -> int:
    """Returns the peak without what is not of this process alone; 0 if the system does not tell."""
    kib = _kib(_STATUS, _NAMES)
    return max(0, kib[b"VmHWM"] - kib[b"RssFile"] - kib[b"RssShmem"]) << 10 if len(kib) == len(_NAMES) else 0


_NAMES = (b"VmHWM", b"RssFile", b"RssShmem")


def _shared_bytes() -> int:
    """Returns how much of the memory that is of no file is not counted to this process alone, as others have it too."""
    kib = _kib(_ROLLUP, _ROLLED)
    return max(0, kib[b"Anonymous"] - kib[b"Pss_Anon"]) << 10 if len(kib) == len(_ROLLED) else 0


_ROLLED = (b"Anonymous", b"Pss_Anon")


def _kib(path: str, names: Collection[bytes]) -> dict[bytes, int]:
    """Returns what a file of the kernel says of these names, as far as it does."""
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return {}
    return {name: int(text.split()[0]) for name, _, text in (line.partition(b":") for line in lines) if name in names}


def _forget() -> bool:
    """Has the system forget the peak; returns whether it did."""
    try:
        with open(_FORGET, "wb", buffering=0) as file:
            file.write(_PEAK_ONLY)
    except OSError:
        return False
    return True
