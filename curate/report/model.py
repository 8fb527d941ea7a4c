"""What a report tells, as JSON values: pure arithmetic over a sketch of the corpus and the books of its job."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from curate.dataclass import dataclass, field
from curate.report.column import Column
from curate.report.corpus import Corpus, Source
from curate.report.numbers import UNIT, Numbers, edges

VERSION = 1
"""Of `report.json`."""
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
BARS = 40
"""Bars of a histogram, at most."""
LOST_SHARE = 0.9
"""Of a source's rows: where more than this went, it is marked."""
_EPOCH = dt.date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a curate job's ledger says of the corpus that it made."""

    job: str
    state: str
    identity: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, Any] = field(default_factory=dict)
    """Its books: in, created, out, dropped by reason, quarantined."""
    inputs: Mapping[str | None, Source] = field(default_factory=dict)
    """What each source had in the job's inputs; empty where that was not counted."""
    inputs_unknown: str = ""
    """Why that was not counted, though it was asked for."""
    reasons: Sequence[Mapping[str, Any]] = ()
    """Of each reason of quarantine: rows, chosen by hash."""
    quarantine_read: int = 0
    """Quarantined rows that were looked at for these."""
    dropped: Sequence[Mapping[str, Any]] = ()
    """Of each stage and reason for which it dropped rows: rows, chosen by hash."""
    duplicates: Mapping[str, Any] | None = None
    """What a deduplication removed; None if there was none."""


def report_of(corpus: Corpus, path: str, origin: Origin | None = None) -> dict[str, Any]:
    """Returns `report.json`: what is in a corpus at `path`, and what the job that made it says."""
    bounds = {} if origin is None else score_bounds(corpus, origin.identity)
    return {
        "version": VERSION,
        "corpus": path,
        "rows": corpus.rows,
        "bytes": corpus.bytes,
        "characters": sum(int(one.numbers.sum) for one in corpus.columns if one.kind == "text"),
        "columns": [column_of(one, bounds.get(one.name)) for one in corpus.columns],
        "by": corpus.by,
        "sources": sources_of(corpus, {} if origin is None else origin.inputs),
        "other_sources": {"rows": corpus.others.rows, "characters": corpus.others.characters},
        "job": None
        if origin is None
        else {
            "name": origin.job,
            "state": origin.state,
            "identity": dict(origin.identity),
            "rows": dict(origin.rows),
            "inputs_unknown": origin.inputs_unknown,
            "quarantine": [dict(one) for one in origin.reasons],
            "quarantine_read": origin.quarantine_read,
            "dropped": [dict(one) for one in origin.dropped],
            "duplicates": None if origin.duplicates is None else dict(origin.duplicates),
        },
    }


def column_of(column: Column, bound: float | None = None) -> dict[str, Any]:
    """Returns what is told of a column; `bound` is the threshold that the job compared it with."""
    told: dict[str, Any] = {
        "name": column.name,
        "type": column.type,
        "kind": column.kind,
        "rows": column.rows,
        "nulls": column.nulls,
        "distinct": None if column.distinct is None else _distinct(column),
        "of": {"text": "characters", "bytes": "bytes", "list": "elements"}.get(column.kind, "values"),
    }
    if column.kind in ("text", "bytes"):
        told["bytes"] = column.bytes
    if column.kind in ("date", "time") and column.days.counts:
        told |= _of_days(column)
    elif column.numbers.count:
        told |= _of_numbers(column)
    if column.numbers.not_finite:
        told["not_finite"] = column.numbers.not_finite
    told["frequent"] = _frequent(column)
    told["frequent_missed"] = column.frequent.missed
    if column.kind == "number" and column.numbers.unit and _is_score(column):
        told["kept_from"] = kept_from(column)
        told["threshold"] = bound
    return told


def _distinct(column: Column) -> int:
    """Returns how many different values there are: counted where all of them are known, else estimated."""
    assert column.distinct is not None
    if not column.frequent.missed:
        return len(column.frequent.keys)
    return min(column.distinct.estimate(), column.rows - column.nulls)


def _of_numbers(column: Column) -> dict[str, Any]:
    numbers = column.numbers
    return {
        "least": numbers.least,
        "mean": numbers.mean,
        "greatest": numbers.greatest,
        "quantiles": {str(share): numbers.quantile(share) for share in QUANTILES},
        "histogram": _unit_bars(numbers.unit) if _is_score(column) else _within(numbers),
    }


def _within(numbers: Numbers) -> list[list[float]]:
    """Returns the bars of a histogram, cut to what there is."""
    least, greatest = numbers.least or 0, numbers.greatest or 0
    return [[max(low, least), min(high, greatest), count] for low, high, count in bars_of(numbers.bins)]


def _of_days(column: Column) -> dict[str, Any]:
    days = column.days
    ends = sorted(days.counts)
    first, last = ends[0], ends[-1]
    step = max(1, math.ceil((last - first + 1) / BARS))
    counted: Counter[int] = Counter()
    for one, count in days.counts.items():
        counted[(one - first) // step] += count
    bars = [
        [day(low := (first + at * step) * days.width), day(low + step * days.width), counted[at]]
        for at in range(max(counted) + 1)
    ]
    return {
        "least": day(first * days.width),
        "mean": None,
        "greatest": day((last + 1) * days.width - 1),
        "quantiles": {str(share): day(days.quantile(share)) for share in QUANTILES},
        "histogram": bars,
    }


def day(number: int) -> str:
    """Returns a day since 1970 as text; its number, where the calendar ends.

    >>> day(19_000), day(10**9)
    ('2022-01-08', 'day 1000000000')
    """
    try:
        return (_EPOCH + dt.timedelta(days=number)).isoformat()
    except OverflowError:
        return f"day {number}"


def _is_score(column: Column) -> bool:
    """Returns whether values are scores: numbers between 0 and 1 that are not whole by type."""
    numbers = column.numbers
    return bool(numbers.unit) and column.kind == "number" and numbers.unit.total() == numbers.count


def _unit_bars(unit: Mapping[int, int]) -> list[list[float]]:
    width = UNIT // BARS
    counted: Counter[int] = Counter()
    for one, count in unit.items():
        counted[one // width] += count
    return [[at * width / UNIT, (at + 1) * width / UNIT, counted[at]] for at in range(BARS)]


def bars_of(bins: Mapping[int, int]) -> list[list[float]]:
    """Returns bars of a histogram: begin, end and count; those without numbers are left out. As many bins are joined as
    give `BARS` bars at most; so a bar is the wider, the larger its numbers are."""
    found = sorted(bins)
    step = 1
    while len({one // step for one in found}) > BARS:
        step *= 2
    counted: Counter[int] = Counter()
    for one in found:
        counted[one // step] += bins[one]
    return [[edges(one * step)[0], edges((one + 1) * step - 1)[1], counted[one]] for one in sorted(counted)]


def kept_from(column: Column) -> list[list[float]]:
    """Returns how many rows have a score of at least so much: for each hundredth from 0 to 1."""
    counts = np.zeros(UNIT, np.int64)
    for one, count in column.numbers.unit.items():
        counts[one] = count
    above = np.cumsum(counts[::-1])[::-1]
    return [[at / 100, int(above[at * UNIT // 100])] for at in range(100)]


def tenths(column: Column) -> list[list[Any]]:
    """Returns how many numbers from 0 to 1 are in each tenth, 1 in the last; none where there are none."""
    above = [int(count) for _, count in kept_from(column)[::10]]
    counts = [one - other for one, other in zip(above, [*above[1:], 0], strict=True)]
    return [[f"{at / 10:.1f}", count] for at, count in enumerate(counts) if count]


def _frequent(column: Column) -> list[list[Any]]:
    """Returns the most frequent values, where any is there twice, with the rows that have it."""
    top = column.frequent.top()
    return [[value, count] for value, count in top] if top and top[0][1] > 1 else []


def sources_of(corpus: Corpus, inputs: Mapping[str | None, Source]) -> list[dict[str, Any]]:
    """Returns what each source has, most rows first; and the share of its rows that the job kept, where known."""
    found = []
    for key in corpus.sources.keys() | inputs.keys():
        now, before = corpus.sources.get(key, Source()), inputs.get(key)
        told: dict[str, Any] = {"source": key, "rows": now.rows, "characters": now.characters}
        if before is not None:
            kept = now.rows / before.rows if before.rows else 1.0
            told |= {"rows_in": before.rows, "kept": kept, "lost": 1 - kept > LOST_SHARE}
        found.append(told)
    return sorted(found, key=lambda one: (-one.get("rows_in", one["rows"]), -one["rows"], str(one["source"])))


def score_bounds(corpus: Corpus, identity: Mapping[str, Any]) -> dict[str, float]:
    """Returns the threshold that a job compared a column with: its parameter of that name, and the scores that another
    parameter names; if none does, and there is one column of scores, that one."""
    parameters = identity.get("parameters") or {}
    threshold = parameters.get("threshold")
    if isinstance(threshold, bool) or not isinstance(threshold, int | float):
        return {}
    scores = [one.name for one in corpus.columns if _is_score(one)]
    named = [name for name in scores if name in parameters.values()]
    return dict.fromkeys(named or (scores if len(scores) == 1 else []), float(threshold))
