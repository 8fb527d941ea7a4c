"""Joins rows with their marks, which an earlier stage wrote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, Self, runtime_checkable

import pyarrow as pa

from curate.arrow.order import Order
from curate.operators.protocol import OperatorDefaults


class Marks(Protocol):
    """What is known of rows, by their places."""

    def of(self, start: int, stop: int) -> pa.Table:
        """Returns the marks with places from `start` to before `stop`, sorted as who uses them says, in one chunk;
        without rows if there are none.
        """


@runtime_checkable
class Marking(Protocol):
    """A step over rows that are read again, with marks: an operator of the plan, once it has them."""

    @property
    def order(self) -> Order:
        """What its marks are sorted by: their places first."""

    @property
    def folds(self) -> bool:
        """Whether `fold` makes fewer marks."""

    def fold(self, marks: pa.Table) -> pa.Table:
        """Returns fewer marks that stand for these; or these."""

    def marked(self, marks: Marks) -> Any:
        """Returns the step with its marks. What it is given of a shard are the rows that the places were taken of."""


class MarkingDefaults(OperatorDefaults):
    """The usual answers of a step with marks: it has a field for them, and takes them as they are."""

    __slots__ = ()
    marks: Marks | None
    """None where it is planned, not run."""
    folds = False

    def fold(self, marks: pa.Table) -> pa.Table:
        """Returns the marks."""
        return marks

    def marked(self, marks: Marks) -> Self:
        """Returns the step with its marks."""
        return replace(self, marks=marks)  # type: ignore[type-var]
