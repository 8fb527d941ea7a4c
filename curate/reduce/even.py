"""Outputs with equal numbers of rows: the rows that each reads of every segment, and the rows that it keeps. Pure.

With a key, rows of equal keys have no order before they are together: an output reads all rows of the keys that some of
its rows have, and of the first and the last of them leaves those to its neighbours that are theirs. So that the index
tells how many rows there are of a key, every key begins a page. Without a key rows are where they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from curate.arrow.order import Order
from curate.dataclass import dataclass
from curate.exchange.run_file import Segment
from curate.late_pandas import numbers
from curate.reduce.index import Index

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class SegmentRanges:
    """What a part reads of these segments, in merge order: rows from `starts` to before `stops`, never none; or those
    between its cuts, which who reads them finds."""

    segments: np.ndarray[Any, Any]
    """Their numbers."""
    starts: Ints | None = None
    stops: Ints | None = None
    before: int = 0
    """Rows that lie before it in the segments of which it reads nothing."""


@dataclass(frozen=True, slots=True)
class EvenPart:
    """What one output reads, and which rows of that are its own."""

    reads: SegmentRanges
    bytes: int
    skip: int
    take: int


def by_part(count: int, segments: Iterable[tuple[Ints, Ints]]) -> Iterator[SegmentRanges]:
    """Yields what each of `count` parts reads, from what is read of each segment: where every part starts and stops.

    Takes 32 bytes for each segment and part of which there are rows, and no more: most parts have none of most
    segments, where there are very many.
    """
    found: list[tuple[Ints, Ints, Ints, Ints]] = []
    before = np.zeros(count, dtype=np.int64)
    for number, (starts, stops) in enumerate(segments):
        some = stops > starts
        before += np.where(some, 0, starts)
        parts = np.flatnonzero(some)
        found.append((parts, np.full(len(parts), number), starts[parts], stops[parts]))
    nothing = np.zeros(0, dtype=np.int64)
    columns = zip(*found, strict=True) if found else iter([()] * 4)
    parts, numbers, starts, stops = (np.concatenate([nothing, *one]) for one in columns)
    order = np.argsort(parts, kind="stable")
    ends = np.searchsorted(parts[order], np.arange(count + 1))
    for part in range(count):
        own = order[ends[part] : ends[part + 1]]
        yield SegmentRanges(numbers[own], starts[own], stops[own], int(before[part]))


def evenly(order: Order, index: Index, count: int, first: int | None = None) -> list[EvenPart]:
    """Returns `count` parts of all rows, or of the `first` of them, equal to one row. `order` has one key at most."""
    if len(order.keys) > 1:
        raise ValueError(f"rows can be counted by one key at most, not by {len(order.keys)}")
    total = index.total_rows if first is None else min(first, index.total_rows)
    edges = np.array([total * number // count for number in range(count + 1)], dtype=np.int64)
    if order.keys:
        skips, read = _by_key(order.keys[0].column, list(index.each()), edges)
        parts = by_part(count, read)
    else:
        skips, parts = np.zeros(count, dtype=np.int64), _as_they_are(index.sums(index.rows), edges)
    weight = index.total_bytes / max(1, index.total_rows)
    return [
        EvenPart(reads, int(_rows(reads) * weight), skip, take)
        for reads, skip, take in zip(parts, skips.tolist(), np.diff(edges).tolist(), strict=True)
    ]


def _rows(reads: SegmentRanges) -> int:
    assert reads.starts is not None
    assert reads.stops is not None
    return int((reads.stops - reads.starts).sum())


def _as_they_are(rows: Ints, edges: Ints) -> Iterator[SegmentRanges]:
    """Yields what every part reads where rows are where they are: of segments of so many rows."""
    ends = np.cumsum(rows)
    for low, high in itertools.pairwise(edges.tolist()):
        first, last = np.searchsorted(ends, [low, high - 1], side="right").tolist()
        own = np.arange(first, last + 1 if high > low else first)
        starts, stops = (np.clip(edge - (ends - rows)[own], 0, rows[own]) for edge in (low, high))
        yield SegmentRanges(own, starts, stops, int(ends[first - 1]) if first else 0)


def _by_key(column: str, segments: Sequence[Segment], edges: Ints) -> tuple[Ints, Iterator[tuple[Ints, Ints]]]:
    keys = [numbers(one.keys[column]) for one in segments]
    known, rows = _rows_of_keys(keys, [one.rows for one in segments])
    # How many rows are before each key, and in all.
    before = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
    first = np.maximum(np.searchsorted(before, edges[:-1], side="right") - 1, 0)
    last = np.searchsorted(before, edges[1:], side="left")
    last[edges[1:] == edges[:-1]] = first[edges[1:] == edges[:-1]]

    def read() -> Iterator[tuple[Ints, Ints]]:
        for own, one in zip(keys, segments, strict=True):
            at = np.concatenate([np.searchsorted(own, known), [len(own)]])
            ends = np.concatenate([[0], np.cumsum(one.rows)]).astype(np.int64)
            yield ends[at[first]], ends[at[last]]

    return edges[:-1] - before[first], read()


def _rows_of_keys(keys: Sequence[Any], rows: Sequence[Any]) -> tuple[Any, Any]:
    """Returns all keys, in order, and how many rows there are of each."""
    nothing = np.zeros(0, dtype=np.int64)
    known, which = np.unique(np.concatenate(keys) if keys else nothing, return_inverse=True)
    return known, np.bincount(which, np.concatenate([nothing, *rows]), len(known)).astype(np.int64)
