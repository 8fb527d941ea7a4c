"""Row accounting: in + created = out + dropped (by reason) + quarantined, per shard and per job.

Sums are associative and commutative, so that a job's books are the same whatever the order in which its shards end:
counters that are floats are therefore summed exactly, and rounded when they are shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from curate.dataclass import dataclass, field

GROUPED = "grouped"
"""The reason under which rows are booked that became part of a group."""
LIMIT = "limit"
"""The reason under which rows are booked that are over a limit."""
UNSPECIFIED = "unspecified"
"""The reason under which rows are booked that `process` did not return and said nothing about."""


LEAST, MOST = -(2**63), 2**64 - 1
"""Between these lie the whole numbers that JSON of ours has; sums beyond them are floats."""


@dataclass(slots=True)
class Books:
    """What happened to the rows of a shard, a run or a job, and the counters that user code kept."""

    rows_in: int = 0
    created: int = 0
    rows_out: int = 0
    quarantined: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int | float | Fraction] = field(default_factory=dict)
    metrics: dict[str, int | float | Fraction] = field(default_factory=dict)
    """Sums that are in no output's record: events, heartbeats and summaries alone have them."""

    def settle(self) -> None:
        """Books the difference: rows missing without a reason as `dropped: unspecified`, surplus rows as created."""
        gap = self.rows_in + self.created - self.rows_out - self.quarantined - sum(self.dropped.values())
        if gap > 0:
            self.dropped[UNSPECIFIED] = self.dropped.get(UNSPECIFIED, 0) + gap
        elif gap < 0:
            self.created -= gap

    def balanced(self) -> bool:
        """Returns whether in + created = out + dropped + quarantined."""
        return self.rows_in + self.created == self.rows_out + self.quarantined + sum(self.dropped.values())

    def add(self, other: Books) -> None:
        """Adds `other` to these books."""
        self.rows_in += other.rows_in
        self.created += other.created
        self.rows_out += other.rows_out
        self.quarantined += other.quarantined
        for reason, n in other.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + n
        for name, value in other.counters.items():
            self.counters[name] = _sum(self.counters.get(name, 0), value)
        for name, value in other.metrics.items():
            self.metrics[name] = _sum(self.metrics.get(name, 0), value)

    def after(self, earlier: Books) -> Books:
        """Returns the books of both, where these go on with the rows that came out there.

        >>> first, then = Books(10, rows_out=9, quarantined=1), Books(9, rows_out=6, dropped={"short": 3})
        >>> then.after(first).rows()
        {'in': 10, 'created': 0, 'out': 6, 'dropped': {'short': 3}, 'quarantined': 1}
        """
        both = Books()
        both.add(earlier)
        both.add(self)
        both.rows_in, both.rows_out = earlier.rows_in, self.rows_out
        return both

    def rows(self) -> dict[str, Any]:
        """Returns the rows as results and ledgers show them, with sorted reasons."""
        return {
            "in": self.rows_in,
            "created": self.created,
            "out": self.rows_out,
            "dropped": dict(sorted(self.dropped.items())),
            "quarantined": self.quarantined,
        }

    def sorted_counters(self) -> dict[str, int | float]:
        """Returns the counters, sorted by name."""
        return {name: _rounded(value) for name, value in sorted(self.counters.items())}

    def sorted_metrics(self) -> dict[str, dict[str, int | float]]:
        """Returns the metrics, sorted by name, as a field of events, heartbeats and summaries; nothing without any."""
        found = {name: _rounded(value) for name, value in sorted(self.metrics.items())}
        return {"metrics": found} if found else {}

    @classmethod
    def parse(
        cls, rows: Mapping[str, Any], counters: Mapping[str, Any], metrics: Mapping[str, Any] | None = None
    ) -> Books:
        """Returns the books that `rows()`, `sorted_counters()` and `sorted_metrics()` wrote."""
        return cls(
            rows["in"],
            rows["created"],
            rows["out"],
            rows["quarantined"],
            dict(rows["dropped"]),
            # JSON has no word for what is not a number, or infinite.
            {name: math.nan if value is None else value for name, value in counters.items()},
            {name: math.nan if value is None else value for name, value in (metrics or {}).items()},
        )


@dataclass(frozen=True, slots=True)
class UpstreamBooks:
    """What happened to the rows of a job in the stages before its last one."""

    books: Books
    quarantine: tuple[tuple[str, str], ...] = ()
    """Shards there that set rows aside, each with its file in the job's own ledger."""

    def as_dict(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {
            "rows": self.books.rows(),
            "counters": self.books.sorted_counters(),
            **self.books.sorted_metrics(),
            "quarantine": [list(one) for one in self.quarantine],
        }

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> UpstreamBooks | None:
        """Returns what `summary.json` says of it; None if there were no such stages."""
        found = summary.get("earlier")
        if found is None:
            return None
        quarantine = tuple((shard, name) for shard, name in found["quarantine"])
        return cls(Books.parse(found["rows"], found["counters"], found.get("metrics")), quarantine)


def _sum(*values: float | Fraction) -> float | Fraction:
    """Returns the exact sum; floats stay floats only where they are infinite or no number."""
    wild = [value for value in values if isinstance(value, float) and not math.isfinite(value)]
    return sum(wild) if wild else sum(Fraction(value) if isinstance(value, float) else value for value in values)


def _rounded(value: float | Fraction) -> int | float:
    """Returns a sum as JSON has it: what is no whole number of 64 bits is a float."""
    if isinstance(value, float) or (isinstance(value, int) and LEAST <= value <= MOST):
        return value + 0  # a sum has no negative zero
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
