"""What `Dataset.groupby` gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Unpack

import pyarrow as pa

from curate.arrow.declared import check_declared
from curate.dataset.base import Base
from curate.exchange.kinds.aggregates import Aggregate, make
from curate.exchange.kinds.base import key_columns
from curate.exchange.kinds.group import Grouped, GroupRows, aggregates_of_pairs
from curate.exchange.kinds.map_groups import MapGroups
from curate.keywords import shows_keywords
from curate.operators.convert import check_format
from curate.operators.udf import UdfOptions, udf_of
from curate.plan.explain import chain_text
from curate.plan.nodes import Apply, Exchanged

D = TypeVar("D", bound=Base)


@dataclass(frozen=True, slots=True, repr=False)
class GroupedData(Generic[D]):
    """Rows that are grouped by keys, of which the methods make a row a group, or what a function makes of it.

    Rows come in order of the keys, ascending; NaN makes a group, after the numbers, and null makes the last one. The
    two zeros are one key. Nulls among values are left out, as Arrow does it: the sum of nothing else is null.

    >>> curate.from_items([{"k": "b", "n": 1}, {"k": "a", "n": 2}]).groupby("k").max("n").take_all()
    [{'k': 'a', 'n_max': 2}, {'k': 'b', 'n_max': 1}]
    """

    _dataset: D
    _keys: tuple[str, ...]

    def __repr__(self) -> str:
        return f"GroupedData({chain_text(self._dataset._plan)}.{self._name})"

    def count(self) -> D:
        """Returns how many rows each group has, in a column `count`.

        >>> curate.from_items([{"k": "b"}, {"k": "a"}, {"k": "b"}]).groupby("k").count().take_all()
        [{'k': 'a', 'count': 1}, {'k': 'b', 'count': 2}]
        """
        return self._then("count()", [make("count", None)])

    def sum(self, on: str | Sequence[str]) -> D:
        """Returns the sum of columns in each group: of `score` in `score_sum`.

        Sums of whole numbers are int64 (uint64 of unsigned ones and booleans), those of decimals have 38 digits, those
        of floats are double, added in the order of the input. One that does not fit ends its shard with SumOverflow,
        which names column and key. Raises ConfigError for a column without a sum.

        >>> ds = curate.from_items([{"k": 1, "n": 5}, {"k": 0, "n": 1}, {"k": 1, "n": 2}])
        >>> ds.groupby("k").sum("n").take_all()
        [{'k': 0, 'n_sum': 1}, {'k': 1, 'n_sum': 7}]
        """
        return self._each("sum", on)

    def min(self, on: str | Sequence[str]) -> D:
        """Returns the smallest value of columns in each group: of `score` in `score_min`; NaN only if all are.

        >>> ds = curate.from_items([{"k": 1, "n": 5}, {"k": 0, "n": 1}, {"k": 1, "n": 2}])
        >>> ds.groupby("k").min("n").take_all()
        [{'k': 0, 'n_min': 1}, {'k': 1, 'n_min': 2}]
        """
        return self._each("min", on)

    def max(self, on: str | Sequence[str]) -> D:
        """Returns the largest value of columns in each group: of `score` in `score_max`; NaN only if all are.

        >>> ds = curate.from_items([{"k": 1, "n": 5}, {"k": 0, "n": 1}, {"k": 1, "n": 2}])
        >>> ds.groupby("k").max("n").take_all()
        [{'k': 0, 'n_max': 1}, {'k': 1, 'n_max': 5}]
        """
        return self._each("max", on)

    def mean(self, on: str | Sequence[str]) -> D:
        """Returns the mean of columns in each group, a double: of `score` in `score_mean`.

        >>> ds = curate.from_items([{"k": 1, "n": 5}, {"k": 0, "n": 1}, {"k": 1, "n": 2}])
        >>> ds.groupby("k").mean("n").take_all()
        [{'k': 0, 'n_mean': 1.0}, {'k': 1, 'n_mean': 3.5}]
        """
        return self._each("mean", on)

    def std(self, on: str | Sequence[str], ddof: int = 1) -> D:
        """Returns the standard deviation of columns in each group, a double: of `score` in `score_std`.

        It divides by the number of values less `ddof`, and is null where that is not above 0. Small deviations of large
        values are not lost: partial results are merged by their means.

        >>> ds = curate.from_items([{"k": 1, "n": 5}, {"k": 0, "n": 1}, {"k": 1, "n": 2}])
        >>> ds.groupby("k").std("n", ddof=0).take_all()
        [{'k': 0, 'n_std': 0.0}, {'k': 1, 'n_std': 1.5}]
        """
        return self._each("std", on, ddof=ddof)

    def quantile(self, on: str | Sequence[str], q: float = 0.5) -> D:
        """Returns the value below which the part `q` (0 to 1) of a column is: of `score` in `score_quantile`.

        It is exact, a double, between two values by a straight line. NaN is left out. All values of a group have to fit
        into the memory of one task.

        >>> ds = curate.from_items([{"k": 1, "n": 5}, {"k": 0, "n": 1}, {"k": 1, "n": 2}])
        >>> ds.groupby("k").quantile("n", q=0.25).take_all()
        [{'k': 0, 'n_quantile': 1.0}, {'k': 1, 'n_quantile': 2.75}]
        """
        return self._each("quantile", on, q=q)

    def first(self, on: str | Sequence[str]) -> D:
        """Returns the first value, in the order of the input, that is not null: of `score` in `score_first`.

        >>> ds = curate.from_items([{"k": 1, "n": 5}, {"k": 0, "n": 1}, {"k": 1, "n": 2}])
        >>> ds.groupby("k").first("n").take_all()
        [{'k': 0, 'n_first': 1}, {'k': 1, 'n_first': 5}]
        """
        return self._each("first", on)

    def list(self, on: str | Sequence[str]) -> D:
        """Returns all values, nulls too, in the order of the input: of `score` in `score_list`.

        All of them have to fit into the memory of one task.

        >>> ds = curate.from_items([{"k": 1, "n": 5}, {"k": 0, "n": 1}, {"k": 1, "n": 2}])
        >>> ds.groupby("k").list("n").take_all()
        [{'k': 0, 'n_list': [1]}, {'k': 1, 'n_list': [5, 2]}]
        """
        return self._each("list", on)

    def aggregate(self, aggregates: Sequence[tuple[str | None, str]]) -> D:
        """Returns several aggregates of each group: pairs of a column and what is made of it.

        There are count, sum, min, max, mean, std, quantile, first and list; the column of `("score", "mean")` is called
        `score_mean`, and that of `(None, "count")`, the number of rows, `count`. Raises ConfigError for others.

        >>> ds = curate.from_items([{"k": "a", "n": 1}, {"k": "a", "n": 2}])
        >>> ds.groupby("k").aggregate([("n", "mean"), ("n", "max"), (None, "count")]).take_all()
        [{'k': 'a', 'n_mean': 1.5, 'n_max': 2, 'count': 2}]
        """
        return self._then("aggregate()", aggregates_of_pairs("aggregate", aggregates))

    @shows_keywords(UdfOptions)
    def map_groups(
        self,
        fn: Callable[..., Any],
        *,
        batch_format: str = "pyarrow",
        output_schema: pa.Schema | None = None,
        **options: Unpack[UdfOptions],
    ) -> D:
        """Replaces every group by what `fn(group, *fn_args, **fn_kwargs)` returns for it.

        A group is a batch of all its rows, in the order of the input; formats, what `fn` returns, its `output_schema`,
        where it runs, and what is refused are as for `map_batches`. A group has to fit into the memory of one task.
        BadRow sets the whole group aside.

        >>> ds = curate.from_items([{"k": 1, "n": 5}, {"k": 0, "n": 1}, {"k": 1, "n": 2}])
        >>> ds.groupby("k").map_groups(lambda group: {"n": [group["n"].to_pylist()]}).take_all()
        [{'n': [1]}, {'n': [5, 2]}]
        """
        udf, where = udf_of("map_groups", fn, options)
        check_format(batch_format)
        function = MapGroups(udf, batch_format, where, check_declared("map_groups", output_schema))
        grouped = Exchanged((self._dataset._plan,), GroupRows(self._name, self._keys))
        return self._dataset._then(Apply(grouped, function))

    @property
    def _name(self) -> str:
        return f"groupby({', '.join(map(repr, self._keys)) or None})"

    def _each(self, function: str, on: str | Sequence[str], **how: Any) -> D:
        columns = key_columns(function, on)
        called = f"{function}({', '.join(map(repr, columns))})"
        return self._then(called, [make(function, column, **how) for column in columns])

    def _then(self, called: str, aggregates: Sequence[Aggregate]) -> D:
        how = Grouped(f"{self._name}.{called}", self._keys, tuple(aggregates))
        return self._dataset._then(Exchanged((self._dataset._plan,), how))
