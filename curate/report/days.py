"""How days are spread: counts of days, or of longer spans where there are very many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from curate.dataclass import dataclass, field

MOST = 20_000
"""Spans that are told apart: those of 55 years are days."""


@dataclass(slots=True)
class Days:
    """Counts by span of time.

    >>> one = Days()
    >>> one.add(np.array([1, 1, 19_000]))
    >>> one.counts, one.quantile(0.5)
    (Counter({1: 2, 19000: 1}), 1)
    """

    width: int = 1
    """Days of a span: a power of two."""
    counts: Counter[int] = field(default_factory=Counter)
    """By number of the span since 1970."""

    def add(self, days: npt.NDArray[Any]) -> None:
        """Takes in days since 1970."""
        found, counts = np.unique(days // self.width, return_counts=True)
        for one, count in zip(found.tolist(), counts.tolist(), strict=True):
            self.counts[one] += count
        self._widen(self.width)

    def merge(self, other: Self) -> None:
        """Takes in what another sketch has seen."""
        self._widen(max(self.width, other.width))
        for one, count in other.counts.items():
            self.counts[one * other.width // self.width] += count
        self._widen(self.width)

    def quantile(self, share: float) -> int:
        """Returns the day, since 1970, that begins the span which about `share` of all are not after."""
        wanted, seen = share * self.counts.total(), 0
        for one, count in sorted(self.counts.items()):
            seen += count
            if seen >= wanted:
                return one * self.width
        raise ValueError("a sketch of no days has no quantile")

    def _widen(self, width: int) -> None:
        while self.width < width or len(self.counts) > MOST:
            self.width *= 2
            wider: Counter[int] = Counter()
            for one, count in self.counts.items():
                wider[one // 2] += count
            self.counts = wider

    def as_dict(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {"width": self.width, "counts": [[one, count] for one, count in sorted(self.counts.items())]}

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        """Returns what `as_dict` told of."""
        return cls(value["width"], Counter(dict(value["counts"])))
