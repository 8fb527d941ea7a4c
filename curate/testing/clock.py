"""A clock that does not wait."""

from __future__ import annotations

from curate.dataclass import dataclass, field


@dataclass
class FakeClock:
    """A clock that advances only by sleeping, and records each sleep. Wall clock and monotonic clock are equal.

    Works wherever curate takes a `Clock`.

    >>> clock = FakeClock(time_s=1000.0)
    >>> clock.sleep(60)
    >>> clock.advance(5)
    >>> clock.now(), clock.monotonic(), clock.sleeps
    (1065.0, 1065.0, [60])
    """

    time_s: float = 1_700_000_000.0
    """What both clocks show, in seconds."""
    sleeps: list[float] = field(default_factory=list)
    """The length of every sleep so far, in seconds."""

    def now(self) -> float:
        """Returns the time in seconds since the epoch."""
        return self.time_s

    def monotonic(self) -> float:
        """Returns the same."""
        return self.time_s

    def sleep(self, seconds: float) -> None:
        """Returns at once; `seconds` have passed."""
        self.sleeps.append(seconds)
        self.time_s += seconds

    def advance(self, seconds: float) -> None:
        """Lets time pass without anyone sleeping."""
        self.time_s += seconds
