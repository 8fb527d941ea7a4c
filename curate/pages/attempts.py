"""Attempts at shards as columns, and the arithmetic over them: slots in use, throughput, all shards, the longest.

One pass over the events of a job makes the columns.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from curate.dataclass import dataclass, field
from curate.ledger.manifest import ShardPlan
from curate.objects.samples import DroppingShards
from curate.observe.failures import JobFailures
from curate.pages.model import LETTERS, LongShard, StageSpan, Strip, Timeline
from curate.tasks.events import Outcome
from curate.tasks.failure import FailureKind
from curate.tasks.times import MARKS, SUMS, InTurn, Times
from curate.units import ellipsize

SPANS = 160
"""Spans of a timeline."""
MOST_CELLS = 2_000
"""Shards up to which each one has its cell in the strip."""
BINS = 400
LONGEST = 20
SHOWN_NAME = 120
"""Characters of the name of a shard."""
LEAST_S = 1e-3
"""Seconds that a shard takes at least, for its rate."""
FAR = 2.0
"""How many times the median is said to be much."""

Columns = Mapping[str, Any]
"""Attempts as arrays of equal length, by name."""

_CODES = {outcome: code for code, outcome in enumerate(Outcome)}
_DONE, _FAILED = _CODES[Outcome.DONE], _CODES[Outcome.FAILED]


@dataclass
class Attempts:
    """Attempts that ended: one row each, in no order. Rows of books are those of shards that were done."""

    rank: Any = field(default_factory=lambda: array("q"))
    end_s: Any = field(default_factory=lambda: array("d"))
    seconds: Any = field(default_factory=lambda: array("d"))
    outcome: Any = field(default_factory=lambda: array("b"))
    lost: Any = field(default_factory=lambda: array("b"))
    rows_in: Any = field(default_factory=lambda: array("q"))
    quarantined: Any = field(default_factory=lambda: array("q"))
    dropping: DroppingShards = field(default_factory=DroppingShards)
    """Shards whose dropped rows are shown."""
    _told: set[tuple[int, float]] = field(default_factory=set)
    _in_turn: InTurn = field(default_factory=InTurn)

    def noting(self, outcomes: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yields outcomes as they are, and notes them. One that failures tell of as well is noted once."""
        for event in outcomes:
            code = _CODES.get(event["outcome"])
            if code is not None and not self._known(code, event):
                rows = event.get("rows") if code == _DONE else None
                self.rank.append(event["index"])
                seconds = max(0.0, event.get("seconds", 0.0))
                self.end_s.append(self._in_turn.ended(event.get("task", -1), event["time"], seconds))
                self.seconds.append(seconds)
                self.outcome.append(code)
                self.lost.append(event.get("kind") == FailureKind.LOST)
                self.rows_in.append(rows["in"] if rows else 0)
                self.quarantined.append(rows["quarantined"] if rows else 0)
                if rows:
                    self.dropping.note(event["index"], rows["dropped"])
            yield event

    def _known(self, code: int, event: Mapping[str, Any]) -> bool:
        if code == _DONE:
            return False
        key = event["index"], event["time"]
        if key in self._told:
            return True
        self._told.add(key)
        return False

    def of_shards(self, sizes: Any) -> Columns:
        """Returns the columns as arrays, without those of no shard; `sizes`: the input bytes of each shard."""
        columns = {name: np.asarray(getattr(self, name)) for name in _COLUMNS}
        known = columns["rank"] < len(sizes)
        found = {name: column[known] for name, column in columns.items()}
        return {**found, "bytes": sizes[found["rank"]]}


_COLUMNS = ("rank", "end_s", "seconds", "outcome", "lost", "rows_in", "quarantined")


class TimedFailures(JobFailures):
    """What failed of a job, and all attempts at its shards, both from one pass over its events."""

    @cached_property
    def attempts(self) -> Columns:
        """The attempts, as columns by name."""
        _ = self.failed
        return self._noted.of_shards(self.plan.sizes)

    @property
    def dropping(self) -> DroppingShards:
        """The shards whose dropped rows are shown."""
        _ = self.failed
        return self._noted.dropping

    @cached_property
    def _noted(self) -> Attempts:
        return Attempts()

    def outcomes(self) -> Iterator[Any]:
        """Yields how each attempt ended, and notes it."""
        return self._noted.noting(super().outcomes())


@dataclass(frozen=True, slots=True)
class Work:
    """What was at work from when until when, as columns; what it read is spread over that time."""

    name: str
    """The stage that it is of; empty in a job that has one."""
    begins: Any
    ends: Any
    slots: Any
    """How many were at work at once."""
    bytes: Any
    rows: Any
    marks: Mapping[str, Any]
    """How many attempts ended as the marks of a timeline say, at the ends."""

    def since(self, start_s: float) -> Work:
        """Returns what ended at `start_s` or later."""
        kept = self.ends >= start_s
        marks = {name: counts[kept] for name, counts in self.marks.items()}
        begins, ends, slots = self.begins[kept], self.ends[kept], self.slots[kept]
        return Work(self.name, begins, ends, slots, self.bytes[kept], self.rows[kept], marks)


def work_of(attempts: Columns, name: str = "") -> Work:
    """Returns attempts as what was at work: one slot each."""
    ends, seconds, outcome = attempts["end_s"], attempts["seconds"], attempts["outcome"]
    done, lost = outcome == _DONE, attempts["lost"].astype(bool)
    failed = (outcome == _FAILED) & ~lost
    marks = {"retried": ~(done | failed | lost), "failed": failed, "lost": lost}
    counted = {name: counts.astype(np.int64) for name, counts in marks.items()}
    read = done * attempts["bytes"], done * attempts["rows_in"]
    return Work(name, ends - seconds, ends, np.ones(len(ends)), *read, counted)


def work_of_times(times: Times, name: str, until_s: float) -> Work:
    """Returns what a heartbeat of `until_s` says of a stage as what was at work, span by span."""
    amounts = {name: np.array(found) for name, found in times.amounts.items()}
    used = sum(amounts.values()) > 0
    begins = times.start + times.span_s * np.flatnonzero(used)
    ends = np.minimum(begins + times.span_s, np.maximum(until_s, begins + LEAST_S))
    slots, size, rows = (amounts[name][used] for name in SUMS)
    marks = {name: amounts[name][used].astype(np.int64) for name in MARKS}
    return Work(name, begins, ends, slots / (ends - begins), size, rows, marks)


def timeline(works: Sequence[Work], runs: Mapping[str, tuple[float, float]]) -> Timeline | None:
    """Returns how the newest run went, with the runs that overlap it; None if no attempt has ended.

    `works` are those of its stages, `runs` start and end of each run.
    """
    start_s, end_s, names = _newest(runs)
    shown = [work.since(start_s) for work in works]
    if not any(len(work.ends) for work in shown):
        start_s, names, shown = -np.inf, (), list(works)
    shown = [work for work in shown if len(work.ends)]
    if not shown:
        return None
    start_s = start_s if names else min(float(work.begins.min()) for work in shown)
    end_s = max(end_s if names else 0.0, start_s + 1.0, *(float(work.ends.max()) for work in shown))
    edges = np.linspace(start_s, end_s, SPANS + 1)

    def slots() -> Any:
        return sum(_in_spans(edges, work.begins, work.ends, work.slots) for work in shown)

    def rate(amounts: Callable[[Work], Any]) -> tuple[float, ...]:
        total = np.zeros(SPANS)
        for work in shown:
            # What a shard read is spread over the time that it took: a few large ones are no peaks.
            took_s = np.maximum(work.ends - work.begins, LEAST_S)
            total += _in_spans(edges, work.ends - took_s, work.ends, amounts(work) / took_s)
        return tuple(np.round(total, 1).tolist())

    def marks(name: str) -> tuple[int, ...]:
        ends = np.concatenate([work.ends for work in shown])
        weights = np.concatenate([work.marks[name] for work in shown])
        return tuple(np.histogram(ends, edges, weights=weights)[0].astype(int).tolist())

    return Timeline(
        *(start_s, (end_s - start_s) / SPANS, names, tuple(np.round(slots(), 2).tolist())),
        *(rate(lambda work: work.bytes.astype(float)), rate(lambda work: work.rows.astype(float))),
        *(marks("retried"), marks("failed"), marks("lost")),
        tuple(
            StageSpan(work.name, max(start_s, float(work.begins.min())), min(end_s, float(work.ends.max())))
            for work in shown
            if work.name
        ),
    )


def _newest(runs: Mapping[str, tuple[float, float]]) -> tuple[float, float, tuple[str, ...]]:
    """Returns start and end of the newest run and all that overlap it, and their names."""
    start_s, end_s = math.inf, -math.inf
    names: list[str] = []
    for name, (began, ended) in sorted(runs.items(), key=lambda one: one[1], reverse=True):
        if not names or ended >= start_s:
            start_s, end_s = min(start_s, began), max(end_s, ended)
            names.append(name)
    return start_s, end_s, tuple(names)


def _in_spans(edges: Any, begins: Any, ends: Any, weights: Any) -> Any:
    """Returns the sum of the weights of the attempts that were at work, on average over each span."""
    until = np.zeros(len(edges))
    for sign, times in ((1.0, begins), (-1.0, ends)):
        order = np.argsort(times)
        before = np.searchsorted(times[order], edges)
        since_s, own = times[order] - edges[0], weights[order]
        total = np.concatenate(([0.0], np.cumsum(own)))[before]
        moments = np.concatenate(([0.0], np.cumsum(own * since_s)))[before]
        until += sign * (total * (edges - edges[0]) - moments)
    return np.maximum(0.0, np.diff(until) / np.diff(edges))


def strip(attempts: Columns, done: Any, failed: Any) -> Strip:
    """Returns the shards in the order of the plan, from which of them are done and failed."""
    total = len(done)
    again = np.bincount(attempts["rank"][attempts["outcome"] != _DONE], minlength=total)[:total] > 0
    states = np.full(total, 3, dtype=np.int8)
    states[done] = 0
    states[done & again] = 1
    states[failed] = 2
    counts = dict(zip(LETTERS, np.bincount(states, minlength=len(LETTERS)).tolist(), strict=True))
    if total <= MOST_CELLS:
        letters = list(LETTERS.values())
        return Strip(1, total, counts, tuple(letters[state] for state in states.tolist()), ())
    per_cell = -(-total // BINS)
    cell = np.arange(total) // per_cell
    binned = np.zeros((int(cell[-1]) + 1, len(LETTERS)), dtype=np.int64)
    np.add.at(binned, (cell, states), 1)
    return Strip(per_cell, total, counts, (), tuple(tuple(one) for one in binned.tolist()))


def longest(attempts: Columns, plan: ShardPlan, done: Any, failed: Any) -> tuple[LongShard, ...]:
    """Returns the shards that took the most time, all their tries together, and why."""
    ranks = attempts["rank"]
    if not len(ranks):
        return ()
    seconds = np.bincount(ranks, attempts["seconds"], minlength=len(plan))
    tries = np.bincount(ranks, minlength=len(plan))
    tried = tries > 0
    typical_s, typical_bytes = float(np.median(seconds[tried])), float(np.median(plan.sizes[tried]))
    most = np.argsort(-seconds, kind="stable")[:LONGEST]
    return tuple(
        LongShard(
            ellipsize(plan.shard_id(rank), SHOWN_NAME),
            round(float(seconds[rank]), 3),
            int(tries[rank]),
            int(plan.sizes[rank]),
            "done" if done[rank] else "failed" if failed[rank] else "not done",
            why(float(seconds[rank]), int(tries[rank]), int(plan.sizes[rank]), typical_s, typical_bytes),
        )
        for rank in most.tolist()
        if tried[rank]
    )


def why(seconds: float, tries: int, size_bytes: int, typical_s: float, typical_bytes: float) -> str:
    """Returns why a shard took long, beside the medians of all.

    >>> why(40.0, 1, 8_000, 10.0, 2_000.0), why(40.0, 3, 2_000, 10.0, 2_000.0)
    ('4.0 times the median input', '3 tries')
    >>> why(40.0, 1, 2_000, 10.0, 2_000.0), why(11.0, 1, 2_000, 10.0, 2_000.0)
    ('4.0 times the median time for an ordinary input', 'near the median')
    """
    reasons = []
    if tries > 1:
        reasons.append(f"{tries:,} tries")
    larger = size_bytes / typical_bytes if typical_bytes else 1.0
    slower = seconds / typical_s if typical_s else 1.0
    if larger >= FAR:
        reasons.append(f"{larger:.1f} times the median input")
    elif not reasons and slower >= FAR:
        reasons.append(f"{slower:.1f} times the median time for an ordinary input")
    return ", ".join(reasons) or "near the median"


def total_seconds(attempts: Columns) -> float:
    """Returns the seconds that all attempts took."""
    return float(np.sum(attempts["seconds"]))
