"""The clock as an argument: the real one here, a fake one in tests."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the edges of curate ask of time. Pure code takes `now` as a value instead."""

    def now(self) -> float:
        """Returns the wall-clock time in seconds since the epoch (UTC)."""

    def monotonic(self) -> float:
        """Returns seconds on a clock that never goes back; only differences mean anything."""

    def sleep(self, seconds: float) -> None:
        """Blocks for `seconds`."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
