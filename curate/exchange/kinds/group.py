"""Groups of rows with equal keys: aggregates of them, functions of them, and aggregates of all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.expressions import refuse_unknown
from curate.arrow.groups import groups_of, groups_of_sorted, one_chunk
from curate.arrow.offsets import pack_rows
from curate.arrow.recast import decoded
from curate.arrow.schema import calling
from curate.arrow.types import value_type
from curate.arrow.unknown import empty
from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.exchange.kinds.aggregates import Aggregate, begun, make, output_name
from curate.exchange.kinds.base import Regrouping, order_by, slices
from curate.exchange.protocol import ReducePart
from curate.operators.protocol import Operator
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import READ_ROWS, BatchPosition
from curate.tasks.books import GROUPED

SLICE_ROWS = 262_144
"""Rows of groups, about, that are brought to results at a time."""
GROUP = "group"
"""The column that holds groups, as lists of rows, on their way to a function."""


@dataclass(frozen=True, slots=True)
class Partials(Operator):
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
        asked = [(one, one.column) for one in self.aggregates if one.column is not None]
        refuse_unknown(self.name, [column for _, column in asked], found.names)
        for one, column in asked:
            one.states(found.field(column).type)

    def made(self, found: pa.Schema) -> pa.Schema:
        self.check(found)
        types = [type for one in self.aggregates for type in one.states(type_of(one, found))]
        keys = [pa.field(key, value_type(found.field(key).type)) for key in self.keys]
        return pa.schema([*keys, *map(pa.field, self.state_names(), types)])

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        del schema, needed
        return {*self.keys, *(one.column for one in self.aggregates if one.column is not None)}

    def identity(self) -> Any:
        return ["partials", list(self.keys), [one.identity() for one in self.aggregates]]

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        del tally, place
        schema = self.made(table.schema)
        keys = [one_chunk(decoded(table.column(key))).cast(schema.field(key).type) for key in self.keys]
        yield pa.table([*keys, *begun(self.aggregates, table)], schema=self._noted(schema))

    def _noted(self, schema: pa.Schema) -> pa.Schema:
        """Returns the schema of partial results that says what they are of, for who refuses a type of theirs."""
        of = [f"the {one.function} of {one.column!r}" for one in self.aggregates for _ in one.states(pa.null())]
        states = [calling(field, text) for field, text in zip(list(schema)[len(self.keys) :], of, strict=True)]
        return pa.schema([*list(schema)[: len(self.keys)], *states])


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
        for name, times in Counter(names).items():
            if times > 1:
                raise ConfigError(
                    f"{self.name} would make {times} columns called {name!r}; name each aggregate once, or "
                    "rename the keys with rename_columns"
                )

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

    @property
    def folds(self) -> bool:
        return all(one.merges for one in self.aggregates)

    def fold(self, table: pa.Table) -> pa.Table:
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

    def combine(self, tables: Sequence[pa.Table], tally: ShardBooks, part: ReducePart) -> Iterator[pa.Table]:
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

    def identity(self) -> Any:
        return ["group_rows", list(self.keys)]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        [rows] = found
        if rows is None:
            return None
        order_by(self.keys).check(self.name, rows)
        return pa.schema([(GROUP, pa.large_list(pa.struct(list(rows))))])

    def combine(self, tables: Sequence[pa.Table], tally: ShardBooks, part: ReducePart) -> Iterator[pa.Table]:
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
            yield pa.table({GROUP: pa.LargeListArray.from_arrays(pa.array(offsets), pack_rows(rows))})


def aggregates_of_pairs(aggregates: Any) -> list[Aggregate]:
    """Returns the aggregates of pairs of a column and a function. Raises ConfigError."""
    given = list(aggregates) if isinstance(aggregates, Iterable) and not isinstance(aggregates, str | Mapping) else []
    if not given or not all(isinstance(one, tuple | list) and len(one) == 2 for one in given):
        raise ConfigError(f"aggregate takes pairs like [('score', 'mean'), ('id', 'max')], found {aggregates!r}")
    return [make(function, column) for column, function in given]


# All rows


@dataclass(frozen=True, slots=True)
class Totals(Operator):
    """Replaces a batch by the partial results of aggregates of all its rows: one row, where they can be merged."""

    grouped: Grouped

    @property
    def name(self) -> str:
        return self.grouped.name

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        return self.grouped.prepare(0)[0].schema(found)

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        return self.grouped.prepare(0)[0].needs(schema, needed)

    def identity(self) -> Any:
        return self.grouped.identity()

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        for partials in self.grouped.prepare(0)[0].apply(table, tally, place):
            yield self.grouped.fold(partials)
