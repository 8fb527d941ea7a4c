"""A rule about a measure of a text: the bounds within which a text is kept, and the reason for which it is dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from curate.dataclass import dataclass
from curate.texts.pieces import Array

Measures = Mapping[str, Array]
"""By its name, what was measured of each text of a batch."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Drops a text for `reason` unless `least` <= its `measure` <= `most`; a bound that is None holds for all.

    >>> Rule("too few words", "words", least=3).fails({"words": np.array([2, 3])})
    array([ True, False])
    """

    reason: str
    measure: str
    least: float | None = None
    most: float | None = None

    def fails(self, measured: Measures) -> Array:
        """Returns for which texts it does not hold."""
        value = measured[self.measure]
        failed = np.zeros(len(value), dtype=bool)
        if self.least is not None:
            failed |= value < self.least
        if self.most is not None:
            failed |= value > self.most
        return failed


def first_failed(rules: Sequence[Rule], measured: Measures, texts: int) -> Array:
    """Returns for each text the number of the first rule that it fails, or -1."""
    found = np.full(texts, -1)
    for number, rule in enumerate(rules):
        found[rule.fails(measured) & (found < 0)] = number
    return found
