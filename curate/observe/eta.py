"""Estimates the time left of a run as a range, from its overall and its recent rate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from operator import attrgetter

from curate.dataclass import dataclass, field

LEAST_PART = 0.05
"""Part of what a run has to do that is done before it says how long the rest takes."""
LEAST_SHARDS = 30
"""Shards that end in a time from which a rate is told: of fewer, chance decides."""
RECENT_S = 60.0
"""The shortest time that is looked at, in a run that is long enough."""
LEAST_SPAN_S = 1.0
_RESOLUTION = 16
"""How many times longer ago points are than they are apart, about."""


@dataclass(frozen=True, slots=True)
class _Point:
    """Totals at a time."""

    time_s: float
    shards: int
    size_bytes: int


@dataclass(slots=True)
class Pace:
    """What a run had done at times since it began. The longer ago the fewer points are kept: some hundreds in all."""

    _points: list[_Point] = field(default_factory=list)

    def add(self, now_s: float, shards: int, size_bytes: int) -> None:
        """Notes the totals at a time; at most one point a second is kept."""
        points, point = self._points, _Point(now_s, shards, size_bytes)
        if len(points) > 1 and now_s - points[-2].time_s < LEAST_SPAN_S:
            points[-1] = point
            return
        kept = points[:1]
        for one, after in itertools.pairwise([*points[1:], point]):
            if after.time_s - kept[-1].time_s > (now_s - after.time_s) / _RESOLUTION:
                kept.append(one)
        self._points = [*kept, point]

    def time_left(self, shards_left: int, bytes_left: int) -> tuple[float, float] | None:
        """Returns the seconds that what is left takes, at least and at most; None as long as there is no telling.

        That is until 5 % of what this run has to do is done: of the bytes or, where inputs are empty, of the shards.
        Then the whole run, its last half, quarter and so on, down to a minute, each say how fast it is. The range is
        from the fastest to the slowest of them, and no narrower than chance allows for the number of shards.
        """
        if not self._points:
            return None
        first, last = self._points[0], self._points[-1]
        by_bytes = bytes_left > 0 or last.size_bytes > first.size_bytes
        left = bytes_left if by_bytes else shards_left
        amount = attrgetter("size_bytes" if by_bytes else "shards")
        done, elapsed_s = amount(last) - amount(first), last.time_s - first.time_s
        if elapsed_s < LEAST_SPAN_S or done <= 0 or done < LEAST_PART * (done + left):
            return None
        overall = done / elapsed_s
        rates = [overall]
        for then in self._recent():
            if amount(last) > amount(then):
                rates.append((amount(last) - amount(then)) / (last.time_s - then.time_s))
        # A number of shards that end in a time is off by about its square root, so far and from now on; doubled, the
        # range holds for nineteen runs in twenty if their durations vary by as much as they are long.
        so_far = last.shards - first.shards
        chance = min(0.5, 2 * math.sqrt(1 / max(1, so_far) + 1 / max(1, shards_left)))
        fastest, slowest = max(*rates, overall * (1 + chance)), min(*rates, overall * (1 - chance))
        return round(left / fastest, 1), round(left / slowest, 1)

    def _recent(self) -> Iterator[_Point]:
        """Yields where the last half of the run began, the last quarter and so on, as far as enough ended since."""
        points, last = self._points, self._points[-1]
        elapsed_s = last.time_s - points[0].time_s
        span_s, least_s = elapsed_s / 2, max(LEAST_SPAN_S, min(RECENT_S, elapsed_s / 4))
        while span_s >= least_s:
            then = next(point for point in reversed(points) if last.time_s - point.time_s >= span_s)
            if last.shards - then.shards < LEAST_SHARDS:
                return
            yield then
            span_s /= 2


def middle(seconds: tuple[float, float] | None) -> float | None:
    """Returns the middle of a range; None if there is none.

    >>> middle((60.0, 90.5)), middle(None)
    (75.2, None)
    """
    return None if seconds is None else round(sum(seconds) / 2, 1)


def format_range(seconds: tuple[float, float] | None) -> str:
    """Returns a range of durations in one unit, rounded outwards; `unknown` if there is none.

    >>> format_range((731.0, 1022.5)), format_range((50.1, 50.2)), format_range((4000, 90000)), format_range(None)
    ('12-18 min', '50-51 s', '1-25 h', 'unknown')
    """
    if seconds is None:
        return "unknown"
    low, high = seconds
    # The largest unit of which there are two at least, so that rounding says little.
    size, name = next(((size, name) for size, name in _UNITS if high >= 2 * size), (1, "s"))
    at_least, at_most = math.floor(low / size), math.ceil(high / size)
    return f"{at_least}-{at_most} {name}" if at_least < at_most else f"{at_most} {name}"


_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))
