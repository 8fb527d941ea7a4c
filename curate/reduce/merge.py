"""The merge level of an exchange: where outputs would read very small ranges of very many run files, these are merged
first, in parts.

    run files    | | | | | | | | | | | |       each is cut into a few coarse parts
    merged       |part 0|part 0|part 1|part 1|...   a task reads one part of some neighbours, and writes a run file

An output reads then only of the files of its part. It costs to write all rows once more, and is for what no disk or
bucket serves otherwise: at 100 TB, 186,000 segments and 23,000 outputs, ranges are 23 KB, and 3.5 and 8 MB with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from curate.arrow.order import Order
from curate.arrow.sizes import ranges_within
from curate.dataclass import dataclass, replace
from curate.exchange.protocol import OneInput
from curate.reduce.cuts import Planned, cuts
from curate.reduce.even import SegmentRanges
from curate.reduce.index import Index, Side
from curate.reduce.ranges import OutputRange, Ranges, pieces_between, places_of
from curate.storage.protocol import Object
from curate.units import GIB

MERGED_BYTES = 2 * GIB
"""Bytes in memory that one task merges."""


@dataclass(frozen=True, slots=True)
class Merged(OneInput):
    """Rows of run files in order, in other run files."""

    order: Order
    name = "merge"

    @property
    def orders(self) -> tuple[Order, ...]:
        return (self.order,)

    def identity(self) -> Any:
        return ["merge", self.order.identity()]


def merge_source(order: Order, files: tuple[Object, ...], side: Side, parts: int) -> Ranges:
    """Returns what the tasks of a merge read: each one part of some segments that follow each other."""
    index = side.index()
    plan = cuts(order, index, target_bytes=None, count=parts, aligned=False)
    pieces = tuple(_pieces(order, index, plan))
    return Ranges(Merged(order), side.schemas[0], files, (0,) * len(files), places_of([side]), pieces, len(pieces))


def _pieces(order: Order, index: Index, plan: Planned) -> Iterator[OutputRange]:
    numbers, page = itertools.count(), index.sums(index.bytes) / index.pages
    edges = [0, *plan.places.tolist(), len(plan.pages.places)]
    for part, piece in enumerate(pieces_between(index, plan, order)):
        own = piece.reads.segments
        steps = plan.pages.places[edges[part] : edges[part + 1]]
        bytes = np.bincount(plan.pages.segment[steps], plan.pages.bytes[steps], index.segments)
        ends = (piece.low is not None) + (piece.high is not None)
        sizes = (bytes[own] + page[own] * ends / 2).astype(np.int64)
        for first, last in ranges_within(sizes, MERGED_BYTES):
            some = SegmentRanges(own[first:last])
            yield replace(piece, number=next(numbers), reads=some, size=int(sizes[first:last].sum()))
