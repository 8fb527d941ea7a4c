"""Outputs of one key each: which rows of every segment they read. Pure.

Every key begins a page, so that the index tells where the rows of each key are, to the row. A key whose rows are more
than an output has is cut between its pages.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from curate.arrow.order import Order, take_rows
from curate.dataclass import dataclass
from curate.reduce.cuts import Ints, Pages, pages
from curate.reduce.even import SegmentRanges
from curate.reduce.index import Index


@dataclass(frozen=True, slots=True)
class KeyPart:
    """What one output reads: rows of one key."""

    key: int
    """The number of its key."""
    number: int
    """Its number among the outputs of the key."""
    of: int
    """How many outputs the key has."""
    reads: SegmentRanges
    bytes: int


def by_key(order: Order, index: Index, target_bytes: int) -> tuple[pa.Table, Iterator[KeyPart]]:
    """Returns all keys, in order, and what outputs of `target_bytes` at most, about, read of each."""
    all = pages(order, index)
    starts = all.groups(order) if len(all.places) else np.zeros(0, dtype=np.int64)
    keys = take_rows(all.keys, pa.array(all.places[starts])) if len(starts) else all.keys.slice(0, 0)
    stops = np.append(starts, len(all.places))[1:]

    def parts() -> Iterator[KeyPart]:
        for key, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            own = all.places[start:stop]
            ends = np.cumsum(all.bytes[own])
            count = min(len(own), max(1, -(-int(ends[-1]) // target_bytes)))
            # Where the pages begin that each output begins with: not before a page more than those before it.
            wanted = np.searchsorted(ends, ends[-1] * np.arange(1, count) // count, side="left") + 1
            edges = np.unique(np.concatenate([[0], np.minimum(wanted, len(own)), [len(own)]]))
            for number, (first, end) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
                of_part = own[first:end]
                yield KeyPart(key, number, len(edges) - 1, _reads(all, of_part), int(all.bytes[of_part].sum()))

    return keys, parts()


def _reads(all: Pages, own: Ints) -> SegmentRanges:
    """Returns the rows of some pages, which are neighbours in each of their segments."""
    segments, firsts, counts = np.unique(all.segment[own], return_index=True, return_counts=True)
    lasts = own[firsts + counts - 1]
    return SegmentRanges(segments, all.row[own[firsts]], all.row[lasts] + all.rows[lasts])
