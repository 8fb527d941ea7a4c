"""Which values are most frequent. Exact up to some thousand different ones; beyond, counts are at least so much."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from curate.arrow.hashing import Words
from curate.dataclass import dataclass, field

KEPT = 8192
"""Different values whose counts are kept within a shard."""
STORED = 1024
"""Those of a shard that are stored, with their values. Where there are more, those that are there once are not."""
SHOWN = 32
"""Values that are told of: the most frequent ones."""


@dataclass(slots=True)
class Frequent:
    """Counts of values, by hash; of the most frequent ones the value, too.

    What is forgotten, when there are more than `KEPT`, are the rarest (lossy counting, Manku and Motwani 2002).
    `missed` is the most that a count can lack for that.

    Of the `STORED` most frequent ones the value is known, in all of their batches and shards: who comes to be one of
    them does so with a count that is added, and what adds it has the value. So what is most frequent in all shards
    is shown, however far behind it is in each.
    """

    keys: Words = field(default_factory=lambda: np.zeros(0, np.uint64))
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    missed: int = 0
    values: dict[int, Any] = field(default_factory=dict)

    def add(self, hashes: Words, value: Callable[[int], Any]) -> None:
        """Takes in values by their hashes; `value` returns that at a place, as JSON."""
        self._take(*_counted(np.sort(hashes)))
        top = self.keys[self._top(STORED)]
        self._forget(top)
        new = np.array(sorted(set(top.tolist()) - self.values.keys()), np.uint64)
        if len(new):
            at = np.minimum(np.searchsorted(new, hashes), len(new) - 1)
            found = np.flatnonzero(new[at] == hashes)
            keys, first = np.unique(hashes[found], return_index=True)
            for key, place in zip(keys.tolist(), found[first].tolist(), strict=True):
                self.values[key] = value(place)

    def merge(self, other: Self) -> None:
        """Takes in what another sketch has seen."""
        self.missed += other.missed
        self._take(other.keys, other.counts)
        self.values = other.values | self.values
        self._forget(self.keys[self._top(STORED)])

    def top(self) -> list[tuple[Any, int]]:
        """Returns the most frequent values and how often they are there, the most frequent first."""
        return [(self.values[int(self.keys[at])], int(self.counts[at])) for at in self._top(SHOWN)]

    def _take(self, keys: Words, counts: npt.NDArray[np.int64]) -> None:
        both = np.concatenate([self.keys, keys])
        # Stable: of two sorted runs that is one pass.
        order = np.argsort(both, kind="stable")
        self.keys, self.counts = _counted(both[order], np.concatenate([self.counts, counts])[order])
        if len(self.keys) > KEPT:
            self._keep(self._order()[:KEPT])

    def _keep(self, places: npt.NDArray[np.int64]) -> None:
        lost = np.ones(len(self.keys), bool)
        lost[places] = False
        self.missed += int(self.counts[lost].max(initial=0))
        self.keys, self.counts = self.keys[~lost], self.counts[~lost]

    def _order(self) -> npt.NDArray[np.int64]:
        """The most frequent first, and of those that are as frequent the lowest hashes: the same on every machine."""
        return np.lexsort((self.keys, -self.counts))

    def _top(self, most: int) -> npt.NDArray[np.int64]:
        return self._order()[:most]

    def _forget(self, top: Words) -> None:
        kept = set(top.tolist())
        self.values = {key: value for key, value in self.values.items() if key in kept}

    def as_dict(self) -> dict[str, Any]:
        """Returns it as JSON values; forgets what is not stored."""
        if len(self.keys) > STORED:
            order = self._order()[:STORED]
            self._keep(order[self.counts[order] > 1])
            self._forget(self.keys)
        return {
            "keys": self.keys.tolist(),
            "counts": self.counts.tolist(),
            "missed": self.missed,
            "values": [[key, self.values[key]] for key in sorted(self.values)],
        }

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        """Returns what `as_dict` told of."""
        pairs: Sequence[tuple[int, Any]] = value["values"]
        keys, counts = np.array(value["keys"], np.uint64), np.array(value["counts"], np.int64)
        return cls(keys, counts, value["missed"], dict(pairs))


def _counted(ordered: Words, counts: npt.NDArray[np.int64] | None = None) -> tuple[Words, npt.NDArray[np.int64]]:
    """Returns the different ones of ordered hashes, and how often each is there: as often as it is, or as its `counts`
    say."""
    if not len(ordered):
        return ordered, np.zeros(0, np.int64)
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    if counts is None:
        return ordered[starts], np.diff(starts, append=len(ordered))
    return ordered[starts], np.add.reduceat(counts, starts)
