"""Joins rows with their marks, which an earlier stage wrote."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from curate.arrow.order import Order


class Marks(Protocol):
    """What is known of rows, by their places."""

    def of(self, start: int, stop: int) -> pa.Table:
        """Returns the marks with places from `start` to before `stop`, sorted as who uses them says, in one chunk;
        without rows if there are none.
        """
        ...


@runtime_checkable
class Marking(Protocol):
    """A step over rows that are read again, with marks: an operator of the plan, once it has them."""

    @property
    def order(self) -> Order:
        """What its marks are sorted by: their places first."""
        ...

    @property
    def folds(self) -> bool:
        """Whether `fold` makes fewer marks."""
        ...

    def fold(self, marks: pa.Table) -> pa.Table:
        """Returns fewer marks that stand for these; or these."""
        ...

    def marked(self, marks: Marks) -> Any:
        """Returns the step with its marks. What it is given of a shard are the rows that the places were taken of."""
        ...
