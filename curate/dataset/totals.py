"""Methods of a Dataset that return one value from all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from curate.dataset.base import Base
from curate.exchange.kinds import group
from curate.plan import distinct as distincts
from curate.plan import totals


class AllRows(Base):
    """Values of all rows: aggregates, and what values a column has."""

    __slots__ = ()

    def unique(self, column: str) -> list[Any]:
        """Returns the distinct values of a column, ascending, NaN and then None last. They must fit into memory. Raises
        ConfigError for an unknown column, or one whose values have no order.

        >>> curate.from_items([{"k": "b"}, {"k": None}, {"k": "a"}, {"k": "b"}]).unique("k")
        ['a', 'b', None]
        """
        return distincts.unique(self._plan, column, self._blocks_of)

    def sum(self, on: str | Sequence[str]) -> Any:
        """Returns the sum of a column, or a dictionary of sums for several; None without values. Nulls are left out.

        Tasks sum their own rows, and these sums are added in the order of the input. Whole numbers and decimals are
        exact, or raise SumOverflow beyond 64 bits or 38 digits, also where only the sum of some rows is. Raises
        ConfigError for a column without a sum. The same holds for `min`, `max`, `mean`, `std`, `quantile` and
        `aggregate`.

        >>> curate.range(4).sum("id"), curate.range(4).sum(["id"])
        (6, {'id_sum': 6})
        """
        return totals.total(self._plan, "sum", on, self._blocks_of)

    def min(self, on: str | Sequence[str]) -> Any:
        """Returns the smallest value of a column, or of several, as `sum` does; NaN only if there is nothing else.

        >>> curate.range(4).min("id")
        0
        """
        return totals.total(self._plan, "min", on, self._blocks_of)

    def max(self, on: str | Sequence[str]) -> Any:
        """Returns the largest value of a column, or of several, as `sum` does; NaN only if there is nothing else.

        >>> curate.range(4).max("id")
        3
        """
        return totals.total(self._plan, "max", on, self._blocks_of)

    def mean(self, on: str | Sequence[str]) -> Any:
        """Returns the mean of a column, or of several, as `sum` does; a float. Values of more than 53 bits are
        rounded to doubles first.

        >>> curate.range(4).mean("id")
        1.5
        """
        return totals.total(self._plan, "mean", on, self._blocks_of)

    def std(self, on: str | Sequence[str], ddof: int = 1) -> Any:
        """Returns the standard deviation of a column, or of several, as `sum` does: by the number of values less
        `ddof`; None if that is not above 0. Values of more than 53 bits are rounded to doubles first: where these are
        near each other, subtract one of them before.

        >>> curate.range(3).std("id")
        1.0
        """
        return totals.total(self._plan, "std", on, self._blocks_of, ddof=ddof)

    def quantile(self, on: str | Sequence[str], q: float = 0.5) -> Any:
        """Returns the quantile `q` (0 to 1) of a column, or of several, as `sum` does.

        It is exact, with linear interpolation, of values as doubles: those of more than 53 bits are rounded first. All
        values of the column must fit into this process's memory.

        >>> curate.range(4).quantile("id")
        1.5
        """
        return totals.total(self._plan, "quantile", on, self._blocks_of, q=q)

    def aggregate(self, aggregates: Sequence[tuple[str | None, str]]) -> dict[str, Any]:
        """Returns several aggregates of all rows, named as those of `groupby(...).aggregate`.

        >>> curate.range(4).aggregate([("id", "mean"), (None, "count")])
        {'id_mean': 1.5, 'count': 4}
        """
        return totals.totals(self._plan, "aggregate", group.aggregates_of_pairs(aggregates), self._blocks_of)
