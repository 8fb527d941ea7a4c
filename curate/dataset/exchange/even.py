"""Outputs of as many rows each: which rows of every segment they read, and which of what they make is theirs. Pure.

With a key, rows of equal keys have no order before they are together: an output reads all rows of the keys that some of
its rows have, and of the first and the last of them leaves those to its neighbours that are theirs. So that the index
tells how many rows there are of a key, every key begins a page. Without a key rows are where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from curate.dataset.exchange.order import Order
from curate.dataset.exchange.runs import Segment


@dataclass(frozen=True, slots=True)
class Even:
    """What one output reads of every segment, and which rows of that are its own."""

    starts: Any
    stops: Any
    bytes: int
    skip: int
    take: int


def evenly(order: Order, segments: Sequence[Segment], count: int) -> list[Even]:
    """Returns `count` parts that have as many rows each, to one; of several keys, none: there may be one."""
    if len(order.keys) > 1:
        raise ValueError(f"rows are counted by one key at most, not by {len(order.keys)}")
    total = sum(int(one.rows.sum()) for one in segments)
    edges = [total * number // count for number in range(count + 1)]
    made = _by_key(order, segments, edges) if order.keys else _as_they_are(segments, edges)
    weight = sum(int(one.bytes.sum()) for one in segments) / max(1, total)
    return [
        Even(starts, stops, int((stops - starts).sum() * weight), skip, stop - start)
        for (start, stop), (starts, stops, skip) in zip(pairwise(edges), made, strict=True)
    ]


def _as_they_are(segments: Sequence[Segment], edges: Sequence[int]) -> Iterator[tuple[Any, Any, int]]:
    lengths = np.array([int(one.rows.sum()) for one in segments], dtype=np.int64)
    before = np.cumsum(lengths) - lengths
    for start, stop in pairwise(edges):
        yield np.clip(start - before, 0, lengths), np.clip(stop - before, 0, lengths), 0


def _by_key(order: Order, segments: Sequence[Segment], edges: Sequence[int]) -> Iterator[tuple[Any, Any, int]]:
    name = order.keys[0].column
    keys = [one.keys[name].to_numpy() for one in segments]
    known = np.unique(np.concatenate(keys)) if keys else np.zeros(0, dtype=np.int64)
    # Rows of each segment before each key, and at the end.
    before = np.zeros((len(known) + 1, len(segments)), dtype=np.int64)
    for number, (one, own) in enumerate(zip(segments, keys, strict=True)):
        counts = np.zeros(len(known), dtype=np.int64)
        np.add.at(counts, np.searchsorted(known, own), one.rows)
        before[1:, number] = np.cumsum(counts)
    totals = before.sum(axis=1)
    for start, stop in pairwise(edges):
        first = max(0, int(np.searchsorted(totals, start, side="right")) - 1)
        last = int(np.searchsorted(totals, stop, side="left"))
        if start == stop:
            last = first
        yield before[first], before[last], int(start - totals[first]) if len(known) else 0
