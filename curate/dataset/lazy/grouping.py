"""Groups of rows with equal keys: aggregates of them, functions of them, and aggregates of all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from curate.dataset.exchange.aggregate import Aggregate, Listed, begun, make, output_name, value_type
from curate.dataset.exchange.groups import groups_of, groups_of_sorted, one_chunk
from curate.dataset.exchange.how import GROUPED, Part, Usual
from curate.dataset.exchange.offsets import packed, unpacked
from curate.dataset.exchange.order import Order, SortKey
from curate.dataset.lazy.base import Base
from curate.dataset.lazy.convert import check_format, formatted, to_table
from curate.dataset.lazy.declared import check_declared, identity_of
from curate.dataset.lazy.expressions import unknown_column
from curate.dataset.lazy.operators import (
    Called,
    Placement,
    Plain,
    Udf,
    check_function,
    placement,
)
from curate.dataset.lazy.plan import Apply, Exchanged, Plan
from curate.dataset.nulls import empty
from curate.dataset.patience import Busy, patiently
from curate.dataset.pipeline import READ_ROWS, ActorPool, Place
from curate.dataset.tally import Tally
from curate.errors import BadRow, ConfigError

D = TypeVar("D", bound=Base)
SLICE_ROWS = 262_144
"""Rows of groups, about, that are brought to results at a time."""
GROUP = "group"
"""The column that holds groups, as lists of rows, on their way to a function."""


class Regrouping(Usual):
    """An exchange that brings rows of equal keys together, and makes other rows of them."""

    __slots__ = ()
    aligned = True


def order_by(keys: Sequence[str]) -> Order:
    """Returns the order of groups: ascending, NaN and then null last."""
    return Order(tuple(SortKey(key) for key in keys))


def key_columns(method: str, key: Any) -> tuple[str, ...]:
    """Returns one column's name, or several, as a tuple. Raises ConfigError for none, and for one named twice."""
    keys = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Iterable) else ()
    if not keys or not all(isinstance(name, str) for name in keys):
        raise ConfigError(f"{method} takes the name of a column, or a list of names, found {key!r}")
    for name in keys:
        if keys.count(name) > 1:
            raise ConfigError(f"{method}: the column {name!r} is named {keys.count(name)} times; name it once")
    return keys


def slices(starts: np.ndarray[Any, np.dtype[np.int64]], table: pa.Table, rows: int) -> Iterator[pa.Table]:
    """Yields a sorted table, of groups that begin at `starts`, in parts of whole groups, of about `rows` rows."""
    at = 0
    while at < table.num_rows:
        next = int(np.searchsorted(starts, at + rows))
        stop = int(starts[next]) if next < len(starts) else table.num_rows
        yield table.slice(at, stop - at)
        at = stop


@dataclass(frozen=True, slots=True)
class Partials(Plain):
    """Replaces rows by their keys and the partial results of aggregates that they begin as."""

    name: str
    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    keeps_rows = True

    def state_names(self) -> Iterator[str]:
        """Yields names of columns for partial results, which no key has."""
        number = 0
        while True:
            if (name := f"partial_{number}") not in self.keys:
                yield name
            number += 1

    def check(self, found: pa.Schema) -> None:
        """Raises ConfigError for columns that are not there, or of types that cannot be compared or aggregated."""
        order_by(self.keys).check(self.name, found)
        for one in self.aggregates:
            if one.column is None:
                continue
            if one.column not in found.names:
                raise ConfigError(f"{self.name}: {unknown_column(one.column, found.names)}")
            one.states(found.field(one.column).type)

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        if found is None:
            return None
        self.check(found)
        types = [type for one in self.aggregates for type in one.states(type_of(one, found))]
        keys = [pa.field(key, value_type(found.field(key).type)) for key in self.keys]
        return pa.schema([*keys, *map(pa.field, self.state_names(), types)])

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        del schema, needed
        return {*self.keys, *(one.column for one in self.aggregates if one.column is not None)}

    def identity(self) -> Any:
        return ["partials", list(self.keys), [one.identity() for one in self.aggregates]]

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        del tally, place
        schema = self.schema(table.schema)
        assert schema is not None
        keys = [one_chunk(table.column(key)).cast(schema.field(key).type) for key in self.keys]
        yield pa.table([*keys, *begun(self.aggregates, table)], schema=schema)


def type_of(aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:
    """Returns the type of the column that an aggregate is of; that of rows is null."""
    return pa.null() if aggregate.column is None else schema.field(aggregate.column).type


@dataclass(frozen=True, slots=True)
class Grouped(Regrouping):
    """Aggregates of groups of rows: one row a group, in order of the keys, which come first."""

    name: str
    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]

    def __post_init__(self) -> None:
        names = [*self.keys, *map(output_name, self.aggregates)]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"{self.name} would make {names.count(name)} columns called {name!r}; name each aggregate once, "
                    "and keys otherwise, with rename_columns"
                )

    @property
    def orders(self) -> tuple[Order, ...]:
        return (order_by(self.keys),)

    @property
    def _partials(self) -> Partials:
        return Partials(self.name, self.keys, self.aggregates)

    def identity(self) -> Any:
        return ["grouped", list(self.keys), [one.identity() for one in self.aggregates]]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        [rows] = found
        if rows is None:
            return None
        self._partials.check(rows)
        keys = [pa.field(key, value_type(rows.field(key).type)) for key in self.keys]
        return pa.schema(
            [*keys, *(pa.field(output_name(one), one.result(type_of(one, rows))) for one in self.aggregates)]
        )

    def made(self, prepared: Sequence[pa.Schema]) -> pa.Schema | None:
        return self.finished(empty(prepared[0])).schema

    def prepare(self, side: int) -> tuple[Partials, ...]:
        del side
        return (self._partials,)

    def folds(self, side: int) -> bool:
        del side
        return all(one.merges for one in self.aggregates)

    def fold(self, side: int, table: pa.Table) -> pa.Table:
        del side
        if not all(one.merges for one in self.aggregates):
            return table
        groups = groups_of(order_by(self.keys), table)
        if groups is None or groups.count == table.num_rows:
            return table
        found: list[pa.Array] = []
        for one, states in self._states(table):
            found += one.merge(groups, states)
        rows = pa.array(groups.lasts())
        keys = [one_chunk(table.column(key)).take(rows) for key in self.keys]
        return pa.table([*keys, *found], schema=table.schema)

    def combine(self, tables: Sequence[pa.Table], tally: Tally, part: Part) -> Iterator[pa.Table]:
        del part
        [table] = tables
        if not table.num_rows:
            return
        starts = order_by(self.keys).starts(table)
        tally.drop(table.num_rows - len(starts), GROUPED)
        for rows in slices(starts, table, SLICE_ROWS):
            yield self.finished(rows)

    def finished(self, table: pa.Table) -> pa.Table:
        """Returns a row for each group of sorted rows."""
        groups = groups_of_sorted(order_by(self.keys), table)
        firsts = pa.array(groups.firsts())
        columns = [one_chunk(table.column(key)).take(firsts) for key in self.keys]
        columns += [one.finish(groups, states) for one, states in self._states(table)]
        return pa.table(columns, names=[*self.keys, *map(output_name, self.aggregates)])

    def _states(self, table: pa.Table) -> Iterator[tuple[Aggregate, list[pa.Array]]]:
        """Yields each aggregate with the partial results in `table`, which follow the keys."""
        at = len(self.keys)
        for one in self.aggregates:
            # How many there are does not depend on the type, but for one that has none.
            width = len(one.states(pa.null()))
            yield one, [one_chunk(table.column(number)) for number in range(at, at + width)]
            at += width


@dataclass(frozen=True, slots=True)
class GroupRows(Regrouping):
    """Whole groups of rows, in order of the keys: each a row with a list of its rows, as they came."""

    name: str
    keys: tuple[str, ...]

    @property
    def orders(self) -> tuple[Order, ...]:
        return (order_by(self.keys),)

    def identity(self) -> Any:
        return ["group_rows", list(self.keys)]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        [rows] = found
        if rows is None:
            return None
        order_by(self.keys).check(self.name, rows)
        return pa.schema([(GROUP, pa.large_list(pa.struct(list(rows))))])

    def combine(self, tables: Sequence[pa.Table], tally: Tally, part: Part) -> Iterator[pa.Table]:
        del part
        [table] = tables
        if not table.num_rows:
            return
        order = order_by(self.keys)
        order.check(self.name, table.schema)
        starts = order.starts(table)
        tally.drop(table.num_rows - len(starts), GROUPED)
        for rows in slices(starts, table, READ_ROWS):
            offsets = np.append(order.starts(rows), rows.num_rows)
            yield pa.table({GROUP: pa.LargeListArray.from_arrays(pa.array(offsets), packed(rows))})


@dataclass(frozen=True, slots=True)
class MapGroups(Called):
    """A function of groups, each of which it is given as a batch of rows."""

    fn: Udf
    batch_format: str
    placement: Placement = field(default_factory=Placement)
    output_schema: pa.Schema | None = None
    keeps_rows = False

    @property
    def name(self) -> str:
        return f"map_groups({self.fn.label})"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        del found
        return self.output_schema

    def identity(self) -> Any:
        return ["map_groups", *self.fn.identity(self.name), self.batch_format, *identity_of(self.output_schema)]

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        del tally
        groups = one_chunk(table.column(GROUP))
        rows = groups.flatten()
        ends = np.cumsum(groups.value_lengths().to_numpy())
        pending: list[pa.Table] = []
        pending_rows = 0
        start = 0
        for position, end in enumerate(ends.tolist()):
            group = unpacked(rows.slice(start, end - start))
            tables: list[pa.Table] = []
            for answer in patiently(
                partial(self._of, group, position, place), kept=position > 0, tries=0 if position else place.tries
            ):
                if isinstance(answer, Busy):
                    yield answer
                else:
                    tables = answer.value
            for made in tables:
                # Tables of their own if they differ: whoever takes them says how.
                if pending and (pending_rows >= READ_ROWS or not made.schema.equals(pending[0].schema)):
                    yield pa.concat_tables(pending)
                    pending, pending_rows = [], 0
                pending.append(made)
                pending_rows += made.num_rows
            start = end
        if pending:
            yield pa.concat_tables(pending)

    def _of(self, group: pa.Table, position: int, place: Place) -> list[pa.Table]:
        """Returns what a group becomes. A BadRow is about the whole of it."""
        at = replace(place, row=place.row + position)
        try:
            result = self.fn(formatted(group, self.batch_format))
            tables = [to_table(self.name, one, group) for one in (result if isinstance(result, Iterator) else [result])]
            return [self.declared(one, group, at) for one in tables]
        except BadRow as error:
            raise BadRow(error.reason, position) from error


@dataclass(frozen=True, slots=True)
class GroupedData(Generic[D]):
    """Rows that are grouped by keys, of which the methods make a row a group, or what a function makes of it.

    Rows come in order of the keys, ascending; NaN makes a group, after the numbers, and null makes the last one. The
    two zeros are one key. Nulls among values are left out, as Arrow does it: the sum of nothing else is null.
    """

    _dataset: D
    _keys: tuple[str, ...]

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
        return self._then("aggregate()", pairs("aggregate", aggregates))

    def map_groups(
        self,
        fn: Callable[..., Any],
        *,
        compute: ActorPool | None = None,
        batch_format: str = "pyarrow",
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | None = None,
        resources: Mapping[str, float] | None = None,
        output_schema: pa.Schema | None = None,
    ) -> D:
        """Replaces every group by what `fn(group, *fn_args, **fn_kwargs)` returns for it.

        A group is a batch of all its rows, in the order of the input; formats, what `fn` returns, its `output_schema`,
        where it runs, and what is refused are as for `map_batches`. A group has to fit into the memory of one task.
        BadRow sets the whole group aside.

        >>> ds = curate.from_items([{"k": 1, "n": 5}, {"k": 0, "n": 1}, {"k": 1, "n": 2}])
        >>> ds.groupby("k").map_groups(lambda group: {"n": [group["n"].to_pylist()]}).take_all()
        [{'n': [1]}, {'n': [5, 2]}]
        """
        given = tuple(fn_args or ()), dict(fn_kwargs or {})
        udf = Udf(fn, *given, tuple(fn_constructor_args or ()), dict(fn_constructor_kwargs or {}))
        check_function("map_groups", udf)
        check_format(batch_format)
        where = placement("map_groups", udf, compute, num_cpus, num_gpus, memory, resources)
        function = MapGroups(udf, batch_format, where, check_declared("map_groups", output_schema))
        grouped = Exchanged((self._dataset._plan,), GroupRows(self._name, self._keys))
        return self._dataset._then(Apply(grouped, function))

    @property
    def _name(self) -> str:
        return f"groupby({', '.join(map(repr, self._keys))})"

    def _each(self, function: str, on: str | Sequence[str], **how: Any) -> D:
        columns = key_columns(function, on)
        called = f"{function}({', '.join(map(repr, columns))})"
        return self._then(called, [make(function, column, **how) for column in columns])

    def _then(self, called: str, aggregates: Sequence[Aggregate]) -> D:
        how = Grouped(f"{self._name}.{called}", self._keys, tuple(aggregates))
        return self._dataset._then(Exchanged((self._dataset._plan,), how))


def pairs(method: str, aggregates: Any) -> list[Aggregate]:
    """Returns the aggregates of pairs of a column and a function. Raises ConfigError."""
    given = list(aggregates) if isinstance(aggregates, Iterable) and not isinstance(aggregates, str | Mapping) else []
    if not given or not all(isinstance(one, tuple | list) and len(one) == 2 for one in given):
        raise ConfigError(f"{method} takes pairs such as [('score', 'mean'), ('id', 'max')], found {aggregates!r}")
    return [make(function, column) for column, function in given]


# All rows


@dataclass(frozen=True, slots=True)
class Totals(Plain):
    """Replaces a batch by the partial results of aggregates of all its rows: one row, where they can be merged."""

    grouped: Grouped
    keeps_rows = False

    @property
    def name(self) -> str:
        return self.grouped.name

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        return self.grouped.prepare(0)[0].schema(found)

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        return self.grouped.prepare(0)[0].needs(schema, needed)

    def identity(self) -> Any:
        return self.grouped.identity()

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        for partials in self.grouped.prepare(0)[0].apply(table, tally, place):
            yield self.grouped.fold(0, partials)


def totals(
    plan: Plan, method: str, aggregates: Sequence[Aggregate], run: Callable[[Plan], Iterable[pa.Table]]
) -> dict[str, Any]:
    """Has a plan run, and returns aggregates of all its rows as Python values, by the names of their columns.

    Partial results are made where the rows are, and merged here in the order of the rows. Of no rows, counts are 0,
    lists empty, and all else is None. Raises ConfigError.
    """
    grouped = Grouped(f"{method}()", (), tuple(aggregates))
    pending: list[pa.Table] = []
    pending_rows = 0
    for block in run(Apply(plan, Totals(grouped))):
        pending.append(block)
        pending_rows += block.num_rows
        if pending_rows >= SLICE_ROWS and all(one.merges for one in grouped.aggregates):
            pending = [grouped.fold(0, pa.concat_tables(pending))]
            pending_rows = pending[0].num_rows
    if pending_rows:
        return grouped.finished(pa.concat_tables(pending)).to_pylist()[0]  # type: ignore[no-any-return]
    return {
        output_name(one): 0 if one.function == "count" else [] if isinstance(one, Listed) else None
        for one in grouped.aggregates
    }


def total(
    plan: Plan, function: str, on: str | Sequence[str], run: Callable[[Plan], Iterable[pa.Table]], **how: Any
) -> Any:
    """Returns an aggregate of a column, or a dictionary of those of several, over all rows of a plan."""
    found = totals(plan, function, [make(function, one, **how) for one in key_columns(function, on)], run)
    return next(iter(found.values())) if isinstance(on, str) else found
