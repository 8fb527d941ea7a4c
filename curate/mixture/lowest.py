"""The rows of the lowest hashes, up to a number of units, of several groups at once: by a histogram, then exactly.

A histogram of the upper bits of hashes says in which bucket each group reaches its number; of that bucket alone, rows
are sorted. So memory is bounded, however many rows there are: they are looked at twice, in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from curate.arrow.hashing import Words
from curate.dataclass import dataclass
from curate.errors import CannotBeMet

Ints = npt.NDArray[np.int64]
CELLS = 1 << 22
"""Buckets of all groups: 64 MiB."""
MOST_SORTED = 1 << 25
"""Rows that are sorted of all buckets: about 1 GB."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Which rows of a group are taken: those before a hash and row, by these; and how much that is."""

    hash: int
    row: int
    units: int
    rows: int
    next: int
    """Units of the row at that hash and row, for which there was no room."""

    @property
    def with_next(self) -> Reached:
        """What is taken with that row."""
        return Reached(self.hash, self.row + 1, self.units + self.next, self.rows + 1, 0)


NOTHING = Reached(0, 0, 0, 0, 0)


def handed_on(rests: Sequence[int], reached: Sequence[Reached]) -> list[Reached]:
    """Returns what strata of one source take with what all of them have left: the one that has most left takes its next
    row, of equal ones that of the lowest hash, and so on until a row does not fit.

    >>> handed_on([5, 5], [Reached(7, 0, 0, 0, 9), Reached(3, 1, 0, 0, 9)])[1]
    Reached(hash=3, row=2, units=9, rows=1, next=0)
    """
    room = [rest - one.units for rest, one in zip(rests, reached, strict=True)]
    found, left = list(reached), sum(room)
    # None takes two, and none without room takes any: all have less left than the next rows of those with room need.
    with_room = [at for at, own in enumerate(room) if own]
    for at in sorted(with_room, key=lambda at: (-room[at], reached[at].hash, reached[at].row)):
        if reached[at].next > left:
            break
        found[at] = reached[at].with_next
        left -= reached[at].next
    return found


class Histogram:
    """Units and rows of groups by the upper bits of hashes."""

    def __init__(self, groups: int, cells: int = CELLS) -> None:
        self.bits = min(16, max(0, (cells // max(1, groups)).bit_length() - 1))
        self.units = np.zeros((groups, 1 << self.bits), np.int64)
        self.rows = np.zeros_like(self.units)

    def buckets(self, hashes: Words) -> Any:
        """Returns the bucket that each hash is in."""
        return (hashes >> np.uint64(64 - self.bits)).astype(np.int64) if self.bits else np.zeros(len(hashes), np.int64)

    def add(self, group: Ints, hashes: Words, sizes: Ints) -> None:
        """Adds rows."""
        at = group * self.units.shape[1] + self.buckets(hashes)
        np.add.at(self.units.reshape(-1), at, sizes)
        np.add.at(self.rows.reshape(-1), at, 1)

    def crossings(self, rests: Sequence[int]) -> Crossings:
        """Returns where groups reach these units, each less than it has in all; 0 is reached before the first row."""
        wanted = np.array(rests, np.int64)
        bucket, before, rows = (
            np.full(len(wanted), -1),
            np.zeros(len(wanted), np.int64),
            np.zeros(len(wanted), np.int64),
        )
        for group in np.flatnonzero(wanted).tolist():
            total = np.cumsum(self.units[group])
            # The first bucket with a row that is too much.
            at = int(np.searchsorted(total, wanted[group], side="right"))
            bucket[group] = at
            before[group] = total[at] - self.units[group, at]
            rows[group] = self.rows[group, :at].sum()
        held = int(self.rows[np.flatnonzero(wanted), bucket[wanted > 0]].sum())
        return Crossings(self, wanted, bucket, before, rows, held)


@dataclass
class Crossings:
    """The buckets in which groups reach their numbers, and the rows that are in them."""

    histogram: Histogram
    wanted: Ints
    bucket: Ints
    """-1 for a group of which nothing is taken."""
    before: Ints
    """Units of a group before its bucket."""
    rows: Ints
    """Rows of it there."""
    held: int
    """Rows of all buckets."""

    def __post_init__(self) -> None:
        self._found: list[tuple[Ints, Words, Ints, Ints]] = []
        if self.held > MOST_SORTED:
            raise CannotBeMet(
                f"mix: {self.held:,} rows have nearly the same hashes, at most {MOST_SORTED:,} fit in memory; name an "
                "id column that identifies rows, or fewer strata"
            )

    def add(self, group: Ints, hashes: Words, rows: Ints, sizes: Ints) -> None:
        """Looks at rows again."""
        inside = self.histogram.buckets(hashes) == self.bucket[group]
        if inside.any():
            self._found.append((group[inside], hashes[inside], rows[inside], sizes[inside]))

    def reached(self) -> list[Reached]:
        """Returns for each group which rows are taken: as many of the lowest as there is room for."""
        found = [NOTHING] * len(self.wanted)
        if not self._found:
            return found
        group, hashes, rows, sizes = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
        order = np.lexsort((rows, hashes, group))
        group, hashes, rows, sizes = group[order], hashes[order], rows[order], sizes[order]
        for one in np.flatnonzero(self.wanted).tolist():
            low, high = np.searchsorted(group, [one, one + 1])
            total = self.before[one] + np.cumsum(sizes[low:high])
            # There is one: the bucket has a row that is too much.
            taken = int(np.searchsorted(total, self.wanted[one], side="right"))
            units = int(total[taken - 1]) if taken else int(self.before[one])
            first = low + taken
            number = int(self.rows[one]) + taken
            found[one] = Reached(int(hashes[first]), int(rows[first]), units, number, int(sizes[first]))
        return found
