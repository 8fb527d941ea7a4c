"""What the outputs of an exchange read: the segments that have rows between two cuts; and for who reads one of them,
its pages. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from curate.arrow.order import Order, take_rows
from curate.exchange.run_file import Segment
from curate.late_pandas import numbers
from curate.reduce.cuts import Cut, Cuts
from curate.reduce.even import SegmentRanges
from curate.reduce.index import Index, Ints

_PARTS = 64
"""Parts whose segments are looked for together."""


def reads_between(index: Index, plan: Cuts, order: Order, *, counted: bool = False) -> Iterator[SegmentRanges]:
    """Yields what every part reads: each segment that may have rows between its cuts, as far as the index tells. Where
    these are in the segment is left to who reads it.

    `counted`: whether rows before a part matter. Then it reads segments, too, of which it only counts the rows before.
    """
    keys = _ranks(index, plan.cuts, order)
    first, last = _spans(index, plan.cuts, keys)
    rows = index.sums(index.rows)
    ended = np.cumsum(np.bincount(last + 1, rows, len(plan.cuts) + 2)).astype(np.int64)
    for start in range(0, len(plan.cuts) + 1, _PARTS):
        stop = min(start + _PARTS, len(plan.cuts) + 1)
        near = np.flatnonzero((first < stop) & (last >= start)).astype(np.int32)
        for part in range(start, stop):
            own = near[(first[near] <= part) & (last[near] >= part)]
            if not counted and 0 < part < len(plan.cuts) and keys.cuts[part - 1] == keys.cuts[part]:
                # Rows of one key are in the order of their segments.
                low, high = plan.cuts[part - 1].segment, plan.cuts[part].segment
                own = own[(own >= low) & (own <= high)]
            yield SegmentRanges(own, before=int(ended[part]))


def rows_between(segment: Segment, number: int, order: Order, low: Cut | None, high: Cut | None) -> tuple[int, int]:
    """Returns which rows of a segment are read between two cuts: whole pages, from the one that the lower cut is in to
    the one that the upper cut is in. `number` is that of the segment in merge order."""
    ends = np.append(0, np.cumsum(segment.rows))

    def page_end(cut: Cut) -> int:
        """Returns the pages that are not right of a cut, the one that it is in among them."""
        named = cut.key.rename_columns([key.column for key in order.keys])
        return order.position(segment.keys, named, number < cut.segment)

    start, stop = 0, int(ends[-1])
    if low is not None:
        start = _known(low, number, stop, order)
        start = int(ends[max(0, page_end(low) - 1)]) if start < 0 else start
    if high is not None:
        at = _known(high, number, stop, order)
        stop = int(ends[page_end(high)]) if at < 0 else at
    return start, max(start, stop)


def _known(cut: Cut, number: int, rows: int, order: Order) -> int:
    """Returns the row that is right of a cut, where no key need be looked at; else -1."""
    if cut.segment == number and (cut.row or not order.keys):
        return cut.row
    if order.keys:
        return -1
    return rows if number < cut.segment else 0


class _Ranks(NamedTuple):
    """Numbers that are in the order of keys, of all cuts and of the first and last rows of segments."""

    cuts: Ints
    firsts: Ints
    lasts: Ints


def _ranks(index: Index, made: list[Cut], order: Order) -> _Ranks:
    count, segments = len(made), index.segments
    if not order.keys or not count or not segments:
        return _Ranks(*(np.zeros(one, np.int64) for one in (count, segments, segments)))
    firsts = take_rows(index.keys, pa.array(index.starts))
    names = firsts.column_names
    table = pa.concat_tables([*(cut.key.rename_columns(names) for cut in made), firsts, index.lasts]).combine_chunks()
    places = numbers(order.indices(table)).astype(np.int64)
    opens = np.zeros(len(places), np.int64)
    opens[order.starts(take_rows(table, pa.array(places)))] = 1
    ranks = np.empty_like(places)
    ranks[places] = np.cumsum(opens)
    return _Ranks(*np.split(ranks, [count, count + segments]))


def _spans(index: Index, made: list[Cut], keys: _Ranks) -> tuple[Ints, Ints]:
    """Returns the first and the last part that may have rows of each segment."""
    numbers = np.arange(index.segments)
    of = np.array([cut.segment for cut in made], dtype=np.int64)
    inside = np.array([cut.row > 0 for cut in made], dtype=np.int64)
    # By key, then by segment, then by row, as one number.
    width = max(index.segments, int(of.max(initial=0)) + 1)
    cuts = (keys.cuts * width + of) * 2 + inside
    first = np.searchsorted(cuts, (keys.firsts * width + numbers) * 2, side="right")
    last = np.searchsorted(cuts, (keys.lasts * width + numbers) * 2 + 1, side="right")
    return first, np.where(index.known | (not index.keys.num_columns), last, len(made))
