"""The cuts between the outputs of an exchange, planned from the indexes of all run files. Pure.

    segment 0   |--page--|--page--|--page--|          pages begin at keys that the index knows, and each
    segment 1      |--page--|--page--|                may be a cut: rows before it, in the order of (key,
    segment 2   |----page----|--page--|--page--|      segment, row), go to the left, all others to the right
                         ^ a cut

How many bytes lie before a cut is told from the index alone: half of a page is taken to lie at its own key, and half at
the key of the next page of its segment. That is wrong by half a page of each segment at most, so that parts differ by
a page of each segment at most, and by far less as these errors cancel out. Of very many pages every k-th is known, and
a page here is k of those that are read: see `curate.reduce.index`. Where one key is heavier than a part, it is
split between its pages; aligned cuts leave it whole, and share out anew what comes after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.order import Order, take_rows
from curate.dataclass import dataclass
from curate.late_pandas import numbers
from curate.reduce.index import Index

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Cut:
    """The first row on the right of a cut."""

    key: pa.Table
    """Its key: one row of the key columns."""

    segment: int
    """The number of its segment, in merge order. 0 in an aligned cut, which lies before all rows of its key."""

    row: int
    """Its number in that segment. 0 in an aligned cut."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of all segments, one segment after the other, and their order."""

    keys: pa.Table
    """The key of the first row of each."""

    places: Ints
    """Which page comes first, second and so on: by the key of its first row, then by segment and row."""

    segment: Ints
    """The number of its segment."""

    row: Ints
    """The number of its first row in its segment."""

    rows: Ints
    bytes: Ints

    last: np.ndarray[Any, np.dtype[np.bool_]]
    """Whether it is the last of its segment."""

    ends: Ints | None = None
    """How many pages begin before each segment ends, in their order; None where that is not known of all, or all pages
    are known: the last one of a segment is short as a rule."""

    def groups(self, order: Order) -> Ints:
        """Returns the place at which each group of pages that begin with equal keys starts."""
        return order.starts(take_rows(self.keys, pa.array(self.places)))


def pages(order: Order, index: Index) -> Pages:
    """Returns the pages, or steps of several, of an index in merge order."""
    rows, starts = index.rows, index.starts
    before = np.cumsum(rows) - rows
    last = np.zeros(len(rows), dtype=bool)
    last[starts + index.counts - 1] = True
    table, places, ends = pa.table({}), np.arange(len(rows)), None
    if order.keys and index.keys.num_columns:
        table = index.keys.combine_chunks()
        if index.every > 1 and index.known.all():
            # Of steps of several pages the last one is half as long as others, and lies behind where it begins.
            mixed = numbers(order.indices(pa.concat_tables([table, index.lasts]).combine_chunks())).astype(np.int64)
            step = mixed < len(rows)
            places, ends = mixed[step], np.empty(index.segments, np.int64)
            ends[mixed[~step] - len(rows)] = np.cumsum(step)[~step]
        else:
            places = numbers(order.indices(table)).astype(np.int64)
    return Pages(
        keys=table,
        places=places,
        segment=index.number,
        row=before - np.repeat(before[starts], index.counts),
        rows=rows,
        bytes=index.bytes,
        last=last,
        ends=ends,
    )


@dataclass(frozen=True, slots=True)
class Cuts:
    """Cuts, in order."""

    cuts: list[Cut]
    bytes: Ints
    """Bytes of each part, about."""

    def between(self, part: int) -> tuple[Cut | None, Cut | None]:
        """Returns the cuts that a part is between; None at the ends."""
        return (self.cuts[part - 1] if part else None), (self.cuts[part] if part < len(self.cuts) else None)


@dataclass(frozen=True, slots=True)
class Planned(Cuts):
    """Cuts at the starts of pages, and the pages that they are among."""

    pages: Pages
    places: Ints
    """The place of the page that each cut is at the start of."""
    aligned: bool

    def least_rows(self) -> Ints:
        """Returns how many rows lie before each cut at least: those of pages that end before it."""
        all, count = self.pages, len(self.pages.places)
        rank = np.empty_like(all.places)
        rank[all.places] = np.arange(count)
        ended = np.zeros(count + 1, np.int64)
        ended[rank[1:][~all.last[:-1]]] = all.rows[:-1][~all.last[:-1]]
        # Of a page that ends where an aligned cut is, rows may be of its key.
        return np.cumsum(ended)[np.maximum(self.places - 1, 0) if self.aligned else self.places]


def cuts(order: Order, index: Index, *, target_bytes: int | None, count: int | None, aligned: bool) -> Planned:
    """Returns the cuts between parts of about equal bytes, in order; the same for the same index.

    With `count` there are count - 1 cuts, whatever there is: no two are the same where there are as many pages
    (aligned: pages of different keys), else some are, and what lies between those is empty. Without, parts are of
    `target_bytes` at most on average, no two cuts are the same, and no part is empty. Bytes are those in memory.

    `index` is of all that the exchange reads, in merge order: of one input after the other, of file after file. Takes
    about 1 us and 150 bytes a page, beside a copy of its key.
    """
    if (count if count is not None else target_bytes or 0) < 1:
        raise ValueError(f"count={count} and target_bytes={target_bytes}: one is needed, at least 1")
    all = pages(order, index)
    total = 2 * index.total_bytes
    if not len(all.places):
        # No rows: where the cuts are is all the same, but there are as many parts as were asked for.
        schema = index.keys.schema
        nothing = pa.table([pa.nulls(1, field.type) for field in schema], names=schema.names)
        none = (count or 1) - 1
        return Planned([Cut(nothing, 0, 0)] * none, np.zeros(none + 1, int), all, np.zeros(none, int), aligned)
    # Place 0 is no candidate: nothing lies before it.
    candidates = all.groups(order)[1:] if aligned else np.arange(1, len(all.places))
    wanted = count - 1 if count is not None else None
    before = _before(all)
    if wanted is not None and wanted >= len(candidates):
        chosen = candidates[np.arange(wanted) * len(candidates) // wanted] if len(candidates) else np.zeros(wanted, int)
    else:
        chosen = candidates[_even(before[candidates], total, wanted, 2 * (target_bytes or 0))]
    found = all.places[chosen]
    keys = take_rows(all.keys, pa.array(found))
    segments, rows = (np.zeros_like(found) if aligned else one[found] for one in (all.segment, all.row))
    edges = np.concatenate([[0], before[chosen], [total]])
    return Planned(_made(keys, segments, rows), np.diff(edges) // 2, all, chosen.astype(np.int64), aligned)


def cuts_at(keys: pa.Table, index: Index) -> Cuts:
    """Returns aligned cuts at keys that are given, in order, between parts of which nothing is known but that they are
    about as large."""
    none = np.zeros(keys.num_rows, np.int64)
    edges = np.arange(keys.num_rows + 2) * index.total_bytes // (keys.num_rows + 1)
    return Cuts(_made(keys, none, none), np.diff(edges))


def _made(keys: pa.Table, segments: Ints, rows: Ints) -> list[Cut]:
    # Each of a memory of its own: what is pickled of a slice is all that it is a slice of.
    own = [take_rows(keys, pa.array([number])) for number in range(len(segments))]
    return [Cut(*one) for one in zip(own, segments.tolist(), rows.tolist(), strict=True)]


def place(cut: Cut, segment: int, position: Callable[[pa.Table, bool], int]) -> int:
    """Returns the first row on the right of `cut` in the segment of that number; `position(key, after)` is as in
    `Order.position`, of that segment.
    """
    if segment != cut.segment:
        return position(cut.key, segment < cut.segment)
    # Row 0 of a cut that is not aligned has its key: no row of the segment is before that.
    return cut.row or position(cut.key, False)


def _before(all: Pages) -> Ints:
    """Returns how many bytes, doubled, lie before each place."""
    rank = np.empty_like(all.places)
    rank[all.places] = np.arange(len(rank))
    if all.ends is not None:
        return _spread(all, rank, all.ends)
    weight = np.append(0, all.bytes[all.places])
    weight[rank[1:][~all.last[:-1]]] += all.bytes[:-1][~all.last[:-1]]
    # The index does not tell where a segment ends; its last page is short as a rule.
    weight[rank[all.last] + 1] += all.bytes[all.last]
    return np.cumsum(weight)[:-1]


def _spread(all: Pages, rank: Ints, ends: Ints) -> Ints:
    """Returns how many bytes, doubled, lie before each place, where a page stands for several that are not known.

    The bytes of one are taken to lie evenly from where it begins to where it ends, as measured by how many others begin
    in between: segments of rows in random order are alike, and theirs begin evenly. The first ones of segments begin
    where these do and say nothing.
    """
    stops = np.empty_like(rank)
    stops[:-1] = rank[1:]
    stops[all.last] = ends
    measure = np.append(np.cumsum((all.row > 0)[all.places]), 0)
    measure[-1] = measure[-2]
    far = measure[stops] - measure[rank]
    some = far > 0
    slope = all.bytes[some] / far[some]
    # What is begun and not ended, as a line over the measure: its rise, and what it would be at nought.
    rise, nought, done = np.zeros((3, len(rank) + 1))
    for values, into in ((slope, rise), (slope * measure[rank[some]], nought)):
        np.add.at(into, rank[some], values)
        np.subtract.at(into, stops[some], values)
    np.add.at(done, stops[some], all.bytes[some])
    for at in (rank[~some] + 1, stops[~some]):
        np.add.at(done, np.minimum(at, len(rank)), all.bytes[~some] / 2)
    found = np.cumsum(rise) * measure - np.cumsum(nought) + np.cumsum(done)
    return np.maximum.accumulate(np.rint(2 * found).astype(np.int64))[:-1]


def _even(before: Ints, total: int, wanted: int | None, target: int) -> list[int]:
    """Returns which of the candidates, at `before` bytes each of `total`, are cuts of parts as even as may be: `wanted`
    many, of which there are more; or as many as make parts of `target` bytes.
    """
    most = wanted + 1 if wanted is not None else -(-total // target)
    chosen: list[int] = []
    base, shares, share = 0, most, 1
    while share < shares:
        # The nearest to where it would be; beyond the last one; and, where they are counted, with enough left after it.
        ideal = base + (total - base) * share // shares
        at = int(np.searchsorted(before, ideal))
        if at == len(before) or (at > 0 and ideal - before[at - 1] <= before[at] - ideal):
            at -= 1
        if wanted is not None:
            at = min(at, len(before) - wanted + len(chosen))
        at = max(at, chosen[-1] + 1 if chosen else 0)
        if at == len(before):
            break
        chosen.append(at)
        share += 1
        if before[at] >= base + (total - base) * share // shares:
            # Something heavy took the place of the next cut too: what is left is shared out anew.
            base, left = int(before[at]), most - len(chosen)
            shares, share = left if wanted is not None else min(left, -(-(total - base) // target)), 1
    return chosen
