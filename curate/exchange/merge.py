"""The merge level of an exchange: where outputs would read very small ranges of very many run files, these are merged
first, in parts.

    run files    | | | | | | | | | | | |       each is cut into a few coarse parts
    merged       |part 0|part 0|part 1|part 1|...   a task reads one part of some neighbours, and writes a run file

An output reads then only of the files of its part. It costs to write all rows once more, and is for what no disk or
bucket serves otherwise: at 100 TB, 50,000 run files and 25,000 outputs, ranges are 80 KiB, and 12 MiB with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from curate.arrow.order import Order
from curate.exchange.between import reads_between
from curate.exchange.cuts import Cut, cuts
from curate.exchange.even import SegmentRanges
from curate.exchange.protocol import OneInput
from curate.exchange.ranges import OutputRange, Ranges, weights_of
from curate.exchange.run_file import RunFile, Segment
from curate.storage.protocol import Object
from curate.units import GIB

MERGED_BYTES = 2 * GIB
"""Bytes in memory that one task merges."""


@dataclass(frozen=True, slots=True)
class Merged(OneInput):
    """Rows of run files in order, in other run files."""

    order: Order

    @property
    def name(self) -> str:
        return "merge"

    @property
    def orders(self) -> tuple[Order, ...]:
        return (self.order,)

    def identity(self) -> Any:
        return ["merge", self.order.identity()]


def merge_source(order: Order, files: tuple[Object, ...], runs: Sequence[RunFile], parts: int) -> Ranges:
    """Returns what the tasks of a merge read: each one part of some segments that follow each other."""
    segments = [(0, number, own) for number, file in enumerate(runs) for own in range(len(file.segments))]
    indexes = [index for file in runs for index in file.segments]
    made = cuts(order, indexes, target_bytes=None, count=parts, aligned=False)
    pieces = tuple(_pieces(order, indexes, made))
    return Ranges(Merged(order), runs[0].schema, files, (0,) * len(files), tuple(segments), pieces, len(pieces))


def _pieces(order: Order, indexes: Sequence[Segment], made: Sequence[Cut]) -> Iterator[OutputRange]:
    number, weights = 0, weights_of(indexes)
    for part, reads in enumerate(reads_between(indexes, made, order)):
        low, high = made[part - 1] if part else None, made[part] if part < len(made) else None
        sizes = ((reads.stops - reads.starts) * weights[reads.segments]).astype(np.int64)
        first = 0
        while first < len(sizes):
            last = max(first + 1, int(np.searchsorted(np.cumsum(sizes[first:]), MERGED_BYTES, side="right")) + first)
            own = slice(first, last)
            some = SegmentRanges(reads.segments[own], reads.starts[own], reads.stops[own])
            yield OutputRange(number, some, int(sizes[own].sum()), low=low, high=high)
            first, number = last, number + 1
