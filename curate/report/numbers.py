"""How numbers are spread: count, least, greatest, exact sum, and a histogram from which quantiles are read.

A number's bin is its sign, its power of two and the upper six bits of its mantissa (DDSketch, Masson et al. 2019, with
bins that are linear within a power of two). So a quantile is off by at most 1/128 of its value. Bins are found without
a logarithm, whose last bit depends on the machine; sums are exact: a sketch has the same bytes everywhere.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from curate.dataclass import dataclass, field

BINS = 64
"""Bins within a power of two."""
OFFSET = 1100
"""More than the greatest power of two of a double, and than that of the least one below 1: bins of numbers above zero
are positive."""
UNIT = 1000
"""Bins between 0 and 1, for scores."""

Doubles = npt.NDArray[np.float64]


@dataclass(slots=True)
class Numbers:
    """A sketch of numbers; those that are not finite are only counted.

    >>> one = Numbers()
    >>> one.add(np.array([1.0, 2.0, 4.0, float("nan")]))
    >>> one.count, one.not_finite, one.mean, round(one.quantile(0.5), 1)
    (3, 1, 2.3333333333333335, 2.0)
    """

    count: int = 0
    not_finite: int = 0
    least: float | int | None = None
    greatest: float | int | None = None
    sum: Fraction = Fraction(0)
    bins: Counter[int] = field(default_factory=Counter)
    """Count of each bin that has numbers; that of zero is 0."""
    unit: Counter[int] = field(default_factory=Counter)
    """Count of each thousandth between 0 and 1; of 1 itself the last. Only of numbers that are not whole by type."""

    def add(self, values: npt.NDArray[Any]) -> None:
        """Takes in numbers: integers of 64 bits, or doubles."""
        if not len(values):
            return
        whole = values.dtype.kind in "iu"
        if whole:
            low, high = values & values.dtype.type(0xFFFFFFFF), values >> values.dtype.type(32)
            self.sum += int(np.sum(low, dtype=np.uint64)) + (int(np.sum(high, dtype=np.int64)) << 32)
            finite: Doubles = values.astype(np.float64)
        else:
            finite = values[np.isfinite(values)]
            self.not_finite += len(values) - len(finite)
            if not len(finite):
                return
            self.sum += _exact_sum(finite)
            inside = finite[(finite >= 0) & (finite <= 1)]
            _count(self.unit, np.minimum((inside * UNIT).astype(np.int64), UNIT - 1))
        self.count += len(finite)
        own = values if whole else finite
        # Without the sign of a zero, which would depend on the order of the batches.
        least, greatest = own.min().item() + 0, own.max().item() + 0
        self.least = least if self.least is None else min(self.least, least)
        self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)
        _count(self.bins, bins_of(finite))

    def merge(self, other: Self) -> None:
        """Takes in what another sketch has seen."""
        self.count += other.count
        self.not_finite += other.not_finite
        self.sum += other.sum
        ends = [one for one in (self.least, other.least) if one is not None]
        self.least = min(ends, default=None)
        ends = [one for one in (self.greatest, other.greatest) if one is not None]
        self.greatest = max(ends, default=None)
        self.bins.update(other.bins)
        self.unit.update(other.unit)

    @property
    def mean(self) -> float | None:
        """The mean, rounded once; None of no numbers."""
        return float(self.sum / self.count) if self.count else None

    def quantile(self, share: float) -> float | int:
        """Returns a number that `share` of all are not above, within 1/128 of the true one."""
        wanted, seen = max(1, math.ceil(share * self.count)), 0
        for bin, count in sorted(self.bins.items()):
            seen += count
            if seen >= wanted:
                return self._within(*edges(bin))
        raise ValueError("a sketch of no numbers has no quantile")

    def _within(self, low: float, high: float) -> float | int:
        """Returns a number between two edges, and between the ends: a whole one if all are."""
        assert self.least is not None
        assert self.greatest is not None
        middle: float | int = (low + high) / 2
        if math.isinf(middle):
            # Of the greatest doubles the sum alone is beyond them.
            middle = low / 2 + high / 2
        if isinstance(self.least, int) and math.isfinite(middle):
            middle = math.floor(middle) if low >= 0 else math.ceil(middle)
        return min(max(middle, self.least), self.greatest)

    def as_dict(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {
            "count": self.count,
            "not_finite": self.not_finite,
            "least": self.least,
            "greatest": self.greatest,
            "sum": [str(self.sum.numerator), str(self.sum.denominator)],
            "bins": _pairs(self.bins),
            "unit": _pairs(self.unit),
        }

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        """Returns what `as_dict` told of."""
        numerator, denominator = map(int, value["sum"])
        return cls(
            value["count"],
            value["not_finite"],
            value["least"],
            value["greatest"],
            Fraction(numerator, denominator),
            Counter(dict(value["bins"])),
            Counter(dict(value["unit"])),
        )


def bins_of(values: Doubles) -> npt.NDArray[np.int64]:
    """Returns the bin of each finite number.

    >>> bins_of(np.array([0.0, 1.0, -1.0])).tolist()
    [0, 70464, -70464]
    """
    mantissa, exponent = np.frexp(np.abs(values))
    within = ((mantissa - 0.5) * (2 * BINS)).astype(np.int64)
    found = (exponent.astype(np.int64) + OFFSET) * BINS + within
    return np.where(values == 0, 0, np.where(values < 0, -found, found))


def edges(bin: int) -> tuple[float, float]:
    """Returns the lowest number of a bin, and the end of it: the lowest one of the next.

    >>> edges(70464)
    (1.0, 1.015625)
    """
    if bin == 0:
        return 0.0, 0.0
    exponent, within = divmod(abs(bin), BINS)
    low, high = (_scaled(0.5 + (within + more) / (2 * BINS), exponent - OFFSET) for more in (0, 1))
    return (low, high) if bin > 0 else (-high, -low)


def _scaled(mantissa: float, exponent: int) -> float:
    """Returns a double; infinity beyond the greatest."""
    try:
        return math.ldexp(mantissa, exponent)
    except OverflowError:
        return math.inf


def _exact_sum(values: Doubles) -> Fraction:
    """Returns the sum of doubles without an error: that of their mantissas, for each power of two."""
    mantissa, exponent = np.frexp(values)
    whole = (mantissa * (1 << 53)).astype(np.int64)
    powers, places = np.unique(exponent, return_inverse=True)
    high = np.bincount(places, weights=(whole >> 26).astype(np.float64), minlength=len(powers))
    low = np.bincount(places, weights=(whole & ((1 << 26) - 1)).astype(np.float64), minlength=len(powers))
    total = Fraction(0)
    for power, upper, lower in zip(powers.tolist(), high.tolist(), low.tolist(), strict=True):
        total += Fraction((int(upper) << 26) + int(lower)) * Fraction(2) ** (power - 53)
    return total


def _count(counter: Counter[int], values: npt.NDArray[np.int64]) -> None:
    found, counts = np.unique(values, return_counts=True)
    for one, count in zip(found.tolist(), counts.tolist(), strict=True):
        counter[one] += count


def _pairs(counter: Counter[int]) -> list[list[int]]:
    return [[key, count] for key, count in sorted(counter.items())]
