"""The arithmetic of a mixture: quotas from weights, and whole epochs from quotas. Exact, on whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from curate.dataclass import dataclass


def largest_remainder(total: int, weights: Sequence[Fraction | int]) -> list[int]:
    """Returns whole numbers in proportion to weights, whose sum is `total`: each is rounded down, then the largest
    remainders are rounded up, of equal ones the first. Weights are not below 0; one, at least, is above.

    >>> largest_remainder(10, [1, 1, 1])
    [4, 3, 3]
    """
    whole = sum(weights)
    exact = [Fraction(total) * weight / whole for weight in weights]
    found = [int(one) for one in exact]
    left = total - sum(found)
    by_remainder = sorted(range(len(exact)), key=lambda at: (found[at] - exact[at], at))
    for at in by_remainder[:left]:
        found[at] += 1
    return found


@dataclass(frozen=True, slots=True)
class Quota:
    """How often rows are there: all of them `epochs` times, and those of the lowest hashes once more, up to `rest`."""

    wanted: int
    """In units, as all numbers here."""
    had: int
    epochs: int
    rest: int
    """Less than `available`."""

    @property
    def missing(self) -> int:
        """What cannot be given, however the rest is met."""
        return self.wanted - self.epochs * self.had - self.rest


def quota(wanted: int, had: int, max_epochs: int) -> Quota:
    """Returns how what is wanted is taken of what there is: whole epochs first, at most as many as that.

    >>> quota(23, 10, 4), quota(50, 10, 4).missing
    (Quota(wanted=23, had=10, epochs=2, rest=3), 10)
    """
    if wanted > had * max_epochs:
        return Quota(wanted, had, max_epochs if had else 0, 0)
    # What is wanted of nothing is nothing.
    return Quota(wanted, had, *divmod(wanted, had)) if had else Quota(wanted, 0, 0, 0)


def strata(wanted: int, had: Sequence[int], max_epochs: int) -> list[Quota]:
    """Returns what is taken of each stratum of a source: in proportion to what it has, in all as of the source.

    >>> [one.wanted for one in strata(5, [60, 30, 10], 1)]
    [3, 2, 0]
    """
    if not sum(had):
        return [Quota(wanted if at == 0 else 0, 0, 0, 0) for at in range(len(had))]
    return [quota(one, of, max_epochs) for one, of in zip(largest_remainder(wanted, had), had, strict=True)]
