"""Aggregates of groups: the first partial result of a row, how partial results are merged, and the final result.

Every row begins as a partial result of its own. Partial results of one group are merged, on the map side over and
over, to a partial result; the last one is finished. Those of `list` and `quantile` are the values themselves, and are
not merged before all are there. Merging goes in the order of the rows, so that the same rows in the same order give the
same bits.

Nulls are ignored, as in Arrow: the sum of only nulls is null. NaN makes a sum, a mean and a deviation NaN; `min`, `max`
and `quantile` ignore it if there are other values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.canonical import plain_schema
from curate.arrow.groups import Groups, one_chunk
from curate.arrow.types import value_type
from curate.dataclass import dataclass
from curate.errors import ConfigError, did_you_mean
from curate.late_pandas import numbers
from curate.units import whole


class Aggregate(ABC):
    """One value for each group. By default a partial result is one value, and the last one is what they come to."""

    __slots__ = ()
    function: str
    """What it is called."""
    column: str | None
    """The column that it is of; None: it is of rows."""
    merges = True
    """Whether partial results of a group can be merged before all are there."""

    def identity(self) -> Any:
        """Returns what decides its values, as JSON values."""
        return [self.function, self.column]

    @abstractmethod
    def states(self, type: pa.DataType) -> list[pa.DataType]:
        """Returns the types of a partial result over a column of `type`. Raises ConfigError if it has none."""

    def begin(self, values: pa.Array) -> list[pa.Array]:
        """Returns the partial results of rows."""
        return [_cast(values, self.states(values.type)[0])]

    def merge(self, groups: Groups, states: list[pa.Array]) -> list[pa.Array]:
        """Returns the partial results of groups."""
        raise NotImplementedError(f"{self.function} cannot merge values before it has all of them")

    def result(self, type: pa.DataType) -> pa.DataType:
        """Returns the type of its values."""
        return self.states(type)[0]

    def finish(self, groups: Groups, states: list[pa.Array]) -> pa.Array:
        """Returns the values of groups, whose rows follow one another, from partial results."""
        return self.merge(groups, states)[0]


def output_name(aggregate: Aggregate) -> str:
    """Returns what the column of its values is called.

    >>> output_name(Sum("score")), output_name(CountRows())
    ('score_sum', 'count')
    """
    return aggregate.function if aggregate.column is None else f"{aggregate.column}_{aggregate.function}"


class _Counting(Aggregate):
    __slots__ = ()
    function = "count"

    def states(self, type: pa.DataType) -> list[pa.DataType]:
        del type
        return [pa.int64()]

    def merge(self, groups: Groups, states: list[pa.Array]) -> list[pa.Array]:
        return [pa.array(groups.total(numbers(states[0])))]


@dataclass(frozen=True, slots=True)
class CountRows(_Counting):
    """How many rows there are."""

    column: str | None = None

    def identity(self) -> Any:
        return ["count"]

    def begin(self, values: pa.Array) -> list[pa.Array]:
        return [pa.array(np.ones(len(values), np.int64))]


@dataclass(frozen=True, slots=True)
class Count(_Counting):
    """How many values are not null."""

    column: str

    def begin(self, values: pa.Array) -> list[pa.Array]:
        return [values.is_valid().cast(pa.int64())]


@dataclass(frozen=True, slots=True)
class Sum(Aggregate):
    """The sum: of signed numbers int64, of unsigned ones and booleans uint64, of floats double, of decimals one of 38
    digits, of durations one. Exact but for floats: SumOverflow is raised where it does not fit, or a partial result.
    """

    column: str
    function = "sum"

    def states(self, type: pa.DataType) -> list[pa.DataType]:
        type = value_type(type)
        if pt.is_duration(type):
            return [type]
        if pt.is_signed_integer(type) or pt.is_null(type):
            return [pa.int64()]
        if pt.is_unsigned_integer(type) or pt.is_boolean(type):
            return [pa.uint64()]
        if pt.is_floating(type):
            return [pa.float64()]
        if pt.is_decimal(type) and not pt.is_decimal256(type):
            return [pa.decimal256(76, type.scale)]
        raise _no_such(self, type, "numbers, decimals of up to 38 digits, or durations")

    def merge(self, groups: Groups, states: list[pa.Array]) -> list[pa.Array]:
        type = states[0].type
        numbers = states[0].cast(pa.int64()) if pt.is_duration(type) else states[0]
        return [groups.sums(numbers, self.column).cast(type)]

    def result(self, type: pa.DataType) -> pa.DataType:
        state = self.states(type)[0]
        return pa.decimal128(38, state.scale) if pt.is_decimal(state) else state

    def finish(self, groups: Groups, states: list[pa.Array]) -> pa.Array:
        [sums] = self.merge(groups, states)
        if not pt.is_decimal(sums.type):
            return sums
        wanted = pa.decimal128(38, sums.type.scale)
        try:
            return sums.cast(wanted)
        except pa.ArrowInvalid:
            most = 10 ** (38 - wanted.scale)
            values = sums.to_pylist()
            group = next(group for group, value in enumerate(values) if value is not None and abs(value) >= most)
            raise groups.overflow(group, self.column, values[group], str(wanted)) from None


@dataclass(frozen=True, slots=True)
class Extreme(Aggregate):
    """The smallest (`min`) or largest (`max`) value."""

    column: str
    function: str

    def states(self, type: pa.DataType) -> list[pa.DataType]:
        type = value_type(type)
        if pt.is_nested(type) or pt.is_interval(type) or isinstance(type, pa.BaseExtensionType):
            raise _no_such(self, type, "values that have an order")
        return [type]

    def merge(self, groups: Groups, states: list[pa.Array]) -> list[pa.Array]:
        type = compared = states[0].type
        # Those that Arrow compares in groups in another type only.
        if pt.is_float16(type):
            compared = pa.float32()
        elif pt.is_duration(type):
            compared = pa.int64()
        elif pt.is_decimal32(type) or pt.is_decimal64(type):
            compared = pa.decimal128(type.precision, type.scale)
        return [groups.extremes(states[0].cast(compared), self.function).cast(type)]


@dataclass(frozen=True, slots=True)
class Mean(Aggregate):
    """The mean, as a double: the sum of the values as doubles, by their number."""

    column: str
    function = "mean"

    def states(self, type: pa.DataType) -> list[pa.DataType]:
        _check_numbers(self, type)
        return [pa.float64(), pa.int64()]

    def begin(self, values: pa.Array) -> list[pa.Array]:
        _check_numbers(self, values.type)
        return [_doubles(values), values.is_valid().cast(pa.int64())]

    def merge(self, groups: Groups, states: list[pa.Array]) -> list[pa.Array]:
        sums, counts = (groups.total(numbers(one)) for one in states)
        return [pa.array(sums), pa.array(counts)]

    def finish(self, groups: Groups, states: list[pa.Array]) -> pa.Array:
        sums, counts = (numbers(one) for one in self.merge(groups, states))
        return pa.array(sums / np.maximum(counts, 1), mask=counts == 0)


@dataclass(frozen=True, slots=True)
class Std(Aggregate):
    """The standard deviation, as a double; null where there are not more values than `ddof`.

    A partial result is the number of values, their mean, and the sum of squares of what they differ by from it. They
    are merged as Chan, Golub and LeVeque do it (1979), any number at a time; squares of the values, in which small
    deviations of large values are lost, are not made. Values are doubles: of more than 53 bits they are rounded.
    """

    column: str
    ddof: int = 1
    function = "std"

    def identity(self) -> Any:
        return ["std", self.column, self.ddof]

    def states(self, type: pa.DataType) -> list[pa.DataType]:
        _check_numbers(self, type)
        return [pa.int64(), pa.float64(), pa.float64()]

    def begin(self, values: pa.Array) -> list[pa.Array]:
        _check_numbers(self, values.type)
        doubles = _doubles(values)
        return [values.is_valid().cast(pa.int64()), doubles, pa.array(np.zeros(len(values)))]

    def merge(self, groups: Groups, states: list[pa.Array]) -> list[pa.Array]:
        counts, means, squares = (numbers(one) for one in states)
        count = groups.total(counts)
        with np.errstate(invalid="ignore", over="ignore"):
            mean = groups.total(counts * means) / np.maximum(count, 1)
            # What adding large values has rounded off the mean is what they differ by from it, in the mean.
            mean += groups.total(counts * (means - mean[groups.ids])) / np.maximum(count, 1)
            deviations = means - mean[groups.ids]
            square = groups.total(squares + counts * deviations * deviations)
        return [pa.array(count), pa.array(mean), pa.array(square)]

    def result(self, type: pa.DataType) -> pa.DataType:
        _check_numbers(self, type)
        return pa.float64()

    def finish(self, groups: Groups, states: list[pa.Array]) -> pa.Array:
        count, _, square = (numbers(one) for one in self.merge(groups, states))
        free = count - self.ddof
        return pa.array(np.sqrt(np.maximum(square, 0) / np.maximum(free, 1)), mask=free <= 0)


@dataclass(frozen=True, slots=True)
class First(Aggregate):
    """The first value, in the order of the rows, that is not null."""

    column: str
    function = "first"

    def states(self, type: pa.DataType) -> list[pa.DataType]:
        return _moved(self, type)

    def merge(self, groups: Groups, states: list[pa.Array]) -> list[pa.Array]:
        return [groups.first_values(states[0])]


@dataclass(frozen=True, slots=True)
class CollectList(Aggregate):
    """All values, nulls too, as a list in the order of the rows."""

    column: str
    function = "list"
    merges = False

    def states(self, type: pa.DataType) -> list[pa.DataType]:
        return _moved(self, type)

    def result(self, type: pa.DataType) -> pa.DataType:
        return pa.list_(value_type(type))

    def finish(self, groups: Groups, states: list[pa.Array]) -> pa.Array:
        ends = np.cumsum(np.bincount(groups.ids, minlength=groups.count))
        return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], ends]), pa.int32()), states[0])


@dataclass(frozen=True, slots=True)
class Quantile(Aggregate):
    """The value below which a part `q` of the values is, between two of them by a straight line, as a double; exact."""

    column: str
    q: float = 0.5
    function = "quantile"
    merges = False

    def identity(self) -> Any:
        return ["quantile", self.column, self.q.hex()]

    def states(self, type: pa.DataType) -> list[pa.DataType]:
        _check_numbers(self, type)
        return [pa.float64()]

    def finish(self, groups: Groups, states: list[pa.Array]) -> pa.Array:
        there = pc.and_kleene(states[0].is_valid(), pc.invert(pc.is_nan(states[0]))).fill_null(False)
        chosen = numbers(there)
        values, ids = numbers(states[0].filter(there)), groups.ids[chosen]
        values = values[np.lexsort((values, ids))]
        counts = np.bincount(ids, minlength=groups.count)
        starts = np.cumsum(counts) - counts
        rank = self.q * np.maximum(counts - 1, 0)
        below = np.floor(rank).astype(np.int64)
        part = rank - below
        found = np.zeros(groups.count)
        some = counts > 0
        low = values[(starts + below)[some]]
        high = values[np.minimum(starts + below + 1, starts + counts - 1)[some]]
        with np.errstate(invalid="ignore"):
            # Not beyond what is there: infinity times nothing is no number.
            between = low * (1 - part[some]) + high * part[some]
            # Nor is it beyond the two by what was rounded: of equal values it is these.
            found[some] = np.where(part[some] == 0, low, np.clip(between, low, high))
        return pa.array(found, mask=~some)


FUNCTIONS = ("count", "sum", "min", "max", "mean", "std", "quantile", "first", "list")
"""What rows of a group are brought to one value with."""


def make(function: str, column: str | None, *, ddof: int = 1, q: float = 0.5) -> Aggregate:
    """Returns the aggregate `function` of a column. Raises ConfigError if there is none, and for bad numbers."""
    if column is None and function != "count":
        raise ConfigError(f"{function} needs a column; only count works without one")
    match function:
        case "count":
            return CountRows() if column is None else Count(column)
        case "sum":
            return Sum(str(column))
        case "min" | "max":
            return Extreme(str(column), function)
        case "mean":
            return Mean(str(column))
        case "std":
            return Std(str(column), whole("std: ddof", ddof, 0))
        case "quantile":
            if isinstance(q, bool) or not isinstance(q, int | float) or not 0 <= q <= 1:
                raise ConfigError(f"quantile: q is {q!r}, expected a number from 0 to 1")
            return Quantile(str(column), float(q))
        case "first":
            return First(str(column))
        case "list":
            return CollectList(str(column))
    raise ConfigError(
        f"no function {function!r}{did_you_mean(str(function), FUNCTIONS)}; there are {', '.join(FUNCTIONS)}"
    )


def begun(aggregates: Sequence[Aggregate], table: pa.Table) -> list[pa.Array]:
    """Returns the partial results of the rows of a table, one after the other."""
    found: list[pa.Array] = []
    for one in aggregates:
        found += one.begin(one_chunk(table.column(0 if one.column is None else one.column)))
    return found


def _cast(values: pa.Array, type: pa.DataType) -> pa.Array:
    if pt.is_run_end_encoded(values.type):
        values = pc.run_end_decode(values)
    if pt.is_boolean(values.type) and not pt.is_boolean(type):
        values = values.cast(pa.uint8())
    # Whole numbers beyond 2**53 become the nearest double.
    return values if values.type == type else values.cast(type, safe=False)


def _doubles(values: pa.Array) -> pa.Array:
    """Returns numbers as doubles; 0 for null, which is counted as nothing."""
    return _cast(values, pa.float64()).fill_null(0.0)


def _moved(aggregate: Aggregate, type: pa.DataType) -> list[pa.DataType]:
    try:
        plain_schema(pa.schema([("", type)]))
    except ConfigError as error:
        raise _no_such(aggregate, type, "values that can be moved") from error
    return [value_type(type)]


def _check_numbers(aggregate: Aggregate, type: pa.DataType) -> None:
    type = value_type(type)
    numbers = (pt.is_integer, pt.is_floating, pt.is_decimal, pt.is_boolean, pt.is_null)
    if not any(is_one(type) for is_one in numbers):
        raise _no_such(aggregate, type, "numbers")


def _no_such(aggregate: Aggregate, type: pa.DataType, expected: str) -> ConfigError:
    return ConfigError(
        f"cannot compute {aggregate.function} of column {aggregate.column!r} of type {type}; expected {expected}: cast "
        "it first, with with_column() or map_batches()"
    )
