"""When attempts were at work: slots in use, bytes and rows over time, in a bounded number of spans. Pure: no clock.

A run of a job of several stages keeps this for each stage in its heartbeat: a stage's own events go with the stage, or
lie on the disk of another machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

from curate.dataclass import dataclass, field
from curate.tasks.failure import FailureKind, ShardRecord

SPANS = 64
LEAST_SPAN_S = 0.125
SUMS = ("slots", "bytes", "rows")
"""What is spread over the time of an attempt: seconds of slots; of one that was done, bytes and rows that it read."""
MARKS = ("retried", "failed", "lost")
"""Attempts that are counted where they end: tried again, given up, and those whose node was lost."""


TOGETHER_S = 0.1
"""Word of shards that a driver hears within so many seconds is word that a worker sent together."""


@dataclass(slots=True)
class InTurn:
    """Says when attempts ended of which a driver heard together: those of one task were at work one after the other.

    >>> turn = InTurn()
    >>> [turn.ended(7, 100.0, 2.0), turn.ended(7, 100.01, 1.0), turn.ended(8, 100.02, 1.0), turn.ended(7, 103.0, 1.0)]
    [100.0, 98.0, 100.02, 103.0]
    """

    _heard_s: float = -math.inf
    _begin_s: dict[int, float] = field(default_factory=dict)
    """Before when the attempts were at work that each task told of last."""

    def ended(self, task: int, heard_s: float, seconds: float) -> float:
        """Returns when an attempt ended of which was heard at `heard_s`, and which took `seconds`."""
        if abs(heard_s - self._heard_s) > TOGETHER_S:
            self._begin_s.clear()
        self._heard_s = heard_s
        end_s = min(heard_s, self._begin_s.get(task, heard_s))
        self._begin_s[task] = end_s - seconds
        return end_s


@dataclass(slots=True)
class Times:
    """Amounts by span of time; spans become twice as long when there are too many.

    >>> times = Times(100.0)
    >>> times.failed(101.0, 0, ShardRecord(0, seconds=0.5), final=True)
    >>> sum(times.amounts["slots"]), times.amounts["failed"][8]
    (0.5, 1.0)
    """

    start: float
    """Where the first span begins, in seconds since 1970."""
    span_s: float = LEAST_SPAN_S
    amounts: dict[str, list[float]] = field(default_factory=lambda: {name: [0.0] * SPANS for name in (*SUMS, *MARKS)})
    _in_turn: InTurn = field(default_factory=InTurn)

    def done(self, heard: float, task: int, record: ShardRecord, size: int) -> None:
        """Notes an attempt of a task that made its shard; `size`: the bytes of the shard's input."""
        end = self._in_turn.ended(task, heard, record.seconds)
        self._add(end, record.seconds, size, record.books.rows_in if record.books else 0)

    def failed(self, heard: float, task: int, record: ShardRecord, *, final: bool) -> None:
        """Notes an attempt of a task that made nothing; `final`: the last one of its shard."""
        end = self._in_turn.ended(task, heard, record.seconds)
        lost = record.failure is not None and record.failure.kind is FailureKind.LOST
        self._add(end, record.seconds, 0, 0)
        at = self._at(end)
        self.amounts["lost" if lost else "failed" if final else "retried"][at] += 1

    def _add(self, end: float, seconds: float, size: int, rows: int) -> None:
        last = self._at(end)
        begin, end = max(self.start, end - max(0.0, seconds)), max(self.start, end)
        first, took_s = self._at(begin), end - begin
        given = [
            (self.amounts[name], amount) for name, amount in zip(SUMS, (took_s, size, rows), strict=True) if amount
        ]
        # A span between the first and the last one has its whole length of it.
        inner = self.span_s / took_s if took_s > 0 else 1.0
        outer = {at: self._share(at, begin, end) for at in (first, last)}
        for amounts, amount in given:
            for at, share in outer.items():
                amounts[at] += share * amount
            part = inner * amount
            for at in range(first + 1, last):
                amounts[at] += part

    def _share(self, at: int, begin: float, end: float) -> float:
        """Returns which part of the time from `begin` to `end` is in a span; all of it if that is no time."""
        span = self.start + at * self.span_s
        return (min(end, span + self.span_s) - max(begin, span)) / (end - begin) if end > begin else 1.0

    def _at(self, moment: float) -> int:
        """Returns the span of a moment, which exists then; the first one for what was before."""
        while moment - self.start >= self.span_s * SPANS:
            self.span_s *= 2
            for name, found in self.amounts.items():
                self.amounts[name] = [found[at] + found[at + 1] for at in range(0, SPANS, 2)] + [0.0] * (SPANS // 2)
        return max(0, int((moment - self.start) / self.span_s))

    def as_dict(self) -> dict[str, Any]:
        """Returns it as JSON values, without amounts of which there are none."""
        told: dict[str, Any] = {"start": round(self.start, 3), "span_s": self.span_s}
        for name, found in self.amounts.items():
            used = max((at + 1 for at, one in enumerate(found) if one), default=0)
            if used:
                told[name] = [round(one, 3) for one in found[:used]]
        return told

    @classmethod
    def parse(cls, value: Any) -> Self | None:
        """Returns what `as_dict` told; None for what makes no sense."""
        if not isinstance(value, Mapping) or not all(map(_is_number, (value.get("start"), value.get("span_s")))):
            return None
        found = cls(value["start"], value["span_s"])
        if found.span_s <= 0:
            return None
        for name in found.amounts:
            told = value.get(name, [])
            if not isinstance(told, list) or len(told) > SPANS or not all(_is_number(one) and one >= 0 for one in told):
                return None
            found.amounts[name][: len(told)] = told
        return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e18
