"""Joins rows with their marks, which an earlier stage wrote."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, Self

import pyarrow as pa

from curate.arrow.order import Order
from curate.operators.protocol import Operator


class Marks(Protocol):
    """What is known of rows, by their places."""

    def of(self, start: int, stop: int) -> pa.Table:
        """Returns the marks with places from `start` to before `stop`, sorted as who uses them says, in one chunk;
        without rows if there are none.
        """


class Marking(Operator):
    """A step over rows that are read again, with marks: an operator of the plan, once it has them. By default it takes
    them as they are."""

    __slots__ = ()
    marks: Marks | None
    """None where it is planned, not run."""
    order: Order
    """What its marks are sorted by: their places first."""
    folds = False
    """Whether `fold` makes fewer marks."""

    def fold(self, marks: pa.Table) -> pa.Table:
        """Returns fewer marks that stand for these; or these."""
        return marks

    def marked(self, marks: Marks) -> Self:
        """Returns the step with its marks. What it is given of a shard are the rows that the places were taken of."""
        return replace(self, marks=marks)  # type: ignore[type-var]
