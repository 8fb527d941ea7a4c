"""The result of `Dataset.groupby`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

import pyarrow as pa

from curate.arrow.declared import check_declared
from curate.dataclass import dataclass
from curate.dataset.base import Base
from curate.exchange.kinds.aggregates import Aggregate, make
from curate.exchange.kinds.base import key_columns
from curate.exchange.kinds.group import Grouped, GroupRows, aggregates_of_pairs
from curate.exchange.kinds.map_groups import MapGroups
from curate.keywords import shows_keywords
from curate.operators.arguments import answer_methods
from curate.operators.foreign import no_attribute
from curate.operators.udf import UdfOptions, format_of, udf_of
from curate.plan.explain import chain_text
from curate.plan.nodes import Apply, Exchanged

D = TypeVar("D", bound=Base)


@answer_methods
@dataclass(frozen=True, slots=True, repr=False)
class GroupedData(Generic[D]):
    """Rows grouped by keys; the methods return one row per group, or the result of a function for each group.

    Rows are in ascending order of the keys; NaN is a group after the numbers, null the last group. The two zeros are
    one key. Null values are ignored, as in Arrow: the sum of nulls only is null.

    >>> curate.from_items([{"k": "b", "n": 1}, {"k": "a", "n": 2}]).groupby("k").max("n").take_all()
    [{'k': 'a', 'n_max': 2}, {'k': 'b', 'n_max': 1}]
    """

    _dataset: D
    _keys: tuple[str, ...]

    def __repr__(self) -> str:
        return f"GroupedData({chain_text(self._dataset._plan)}.{self._name})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("GroupedData", self, name)

    def count(self) -> D:
        """Returns how many rows each group has, in a column `count`.

        >>> curate.from_items([{"k": "b"}, {"k": "a"}, {"k": "b"}]).groupby("k").count().take_all()
        [{'k': 'a', 'count': 1}, {'k': 'b', 'count': 2}]
        """
        return self._then("count()", [make("count", None)])

    def sum(self, on: str | Sequence[str]) -> D:
        """Returns the sum of columns in each group: of `score` in `score_sum`.

        Sums of integers are int64 (uint64 for unsigned ones and booleans), of decimals have 38 digits, of floats are
        double, added in input order. A sum that does not fit, of a group or of its rows in one shard, fails that shard
        with SumOverflow, which names column and key. Raises ConfigError for a column without a sum.

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
        """Returns the mean of columns in each group, a double: of `score` in `score_mean`. Values of more than 53
        bits are rounded to doubles first.

        >>> ds = curate.from_items([{"k": 1, "n": 5}, {"k": 0, "n": 1}, {"k": 1, "n": 2}])
        >>> ds.groupby("k").mean("n").take_all()
        [{'k': 0, 'n_mean': 1.0}, {'k': 1, 'n_mean': 3.5}]
        """
        return self._each("mean", on)

    def std(self, on: str | Sequence[str], ddof: int = 1) -> D:
        """Returns the standard deviation of columns in each group, a double: of `score` in `score_std`.

        It divides by the number of values less `ddof`, and is null where that is not above 0. It is accurate for small
        deviations of large values: partial results are merged by their means. Values of more than 53 bits are rounded
        to doubles first: where these are near each other, subtract one of them before.

        >>> ds = curate.from_items([{"k": 1, "n": 5}, {"k": 0, "n": 1}, {"k": 1, "n": 2}])
        >>> ds.groupby("k").std("n", ddof=0).take_all()
        [{'k': 0, 'n_std': 0.0}, {'k': 1, 'n_std': 1.5}]
        """
        return self._each("std", on, ddof=ddof)

    def quantile(self, on: str | Sequence[str], q: float = 0.5) -> D:
        """Returns the quantile `q` (0 to 1) of columns in each group: of `score` in `score_quantile`.

        It is exact, a double, with linear interpolation: values of more than 53 bits are rounded to doubles first.
        NaN is ignored. All values of a group must fit into the memory of one task.

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
        """Returns several aggregates of each group: pairs of a column and an aggregate.

        Aggregates are count, sum, min, max, mean, std, quantile, first and list; `("score", "mean")` becomes the column
        `score_mean`, and `(None, "count")`, the number of rows, `count`. Raises ConfigError for others.

        >>> ds = curate.from_items([{"k": "a", "n": 1}, {"k": "a", "n": 2}])
        >>> ds.groupby("k").aggregate([("n", "mean"), ("n", "max"), (None, "count")]).take_all()
        [{'k': 'a', 'n_mean': 1.5, 'n_max': 2, 'count': 2}]
        """
        return self._then("aggregate()", aggregates_of_pairs(aggregates))

    @shows_keywords(UdfOptions)
    def map_groups(
        self,
        fn: Callable[..., Any],
        *,
        batch_format: str | None = None,
        output_schema: pa.Schema | None = None,
        **options: Unpack[UdfOptions],
    ) -> D:
        """Replaces every group by the result of `fn(group, *fn_args, **fn_kwargs)`.

        A group is a batch of all its rows, in input order; formats, results, `output_schema`, errors and where `fn`
        runs are as for `map_batches`. A group must fit into the memory of one task. BadRow sets the whole group aside.

        >>> ds = curate.from_items([{"k": 1, "n": 5}, {"k": 0, "n": 1}, {"k": 1, "n": 2}])
        >>> ds.groupby("k").map_groups(lambda group: {"n": [group["n"].to_pylist()]}).take_all()
        [{'n': [1]}, {'n': [5, 2]}]
        """
        udf, where = udf_of("map_groups", fn, options)
        declared = check_declared("map_groups", output_schema)
        function = MapGroups(udf, format_of(fn, batch_format), placement=where, output_schema=declared)
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
