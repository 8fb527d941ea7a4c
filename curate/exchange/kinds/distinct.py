"""Distinct rows by key, and the distinct values of a column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.groups import Groups, Numbers, groups_of, groups_of_sorted
from curate.arrow.order import Order, SortKey, take_rows
from curate.dataclass import dataclass
from curate.exchange.kinds.base import Regrouping, order_by, slices
from curate.exchange.protocol import ReducePart
from curate.late_pandas import numbers
from curate.operators.protocol import Operator
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import READ_ROWS, BatchPosition

DUPLICATE = "duplicate"
"""Why rows are dropped of whose key another one is kept."""
KEEPS = ("first", "last")


@dataclass(frozen=True, slots=True)
class Distinct(Regrouping):
    """One row of each key, in order of the keys: the first or last one as they came, or by a column."""

    name: str
    keys: tuple[str, ...]
    keep: str = "first"
    by: str | None = None
    reason = DUPLICATE

    def identity(self) -> Any:
        return ["distinct", list(self.keys), self.keep, self.by]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        [rows] = found
        if rows is not None:
            self._check(rows)
        return rows

    def _check(self, found: pa.Schema) -> None:
        order_by(self.keys).check(self.name, found)
        if self.by is not None:
            order_by([self.by]).check(self.name, found)

    def fold(self, table: pa.Table) -> pa.Table:
        kept = self.kept(table)
        return table if kept is None else take_rows(table, pa.array(kept))

    def kept(self, table: pa.Table) -> Numbers | None:
        """Returns the rows of a table that are kept of those that are alike; None: all."""
        self._check(table.schema)
        groups = groups_of(order_by(self.keys), table)
        if groups is None or groups.count == table.num_rows:
            return None
        # As they came: what is merged later is told apart by it.
        return np.sort(self._kept(groups, table))

    def combine(self, tables: Sequence[pa.Table], tally: ShardBooks, part: ReducePart) -> Iterator[pa.Table]:
        del part
        [table] = tables
        if not table.num_rows:
            return
        self._check(table.schema)
        order = order_by(self.keys)
        starts = order.starts(table)
        for rows in slices(starts, table, READ_ROWS):
            kept = self._kept(groups_of_sorted(order, rows), rows)
            tally.drop_rows(rows, others(kept, rows), DUPLICATE)
            yield take_rows(rows, pa.array(kept))

    def _kept(self, groups: Groups, table: pa.Table) -> Numbers:
        """Returns the row of each group that is kept."""
        if self.by is None:
            return groups.firsts() if self.keep == "first" else groups.lasts()
        # Nulls and NaN come last either way; of equal values it is the last row that is kept, where the last is.
        rows = np.arange(table.num_rows)
        order = Order((SortKey(self.by),))
        if self.keep == "last":
            rows = rows[::-1]
            order = Order((SortKey(self.by, descending=True),))
        column = take_rows(table.select([self.by]), pa.array(rows))
        rows = rows[numbers(order.indices(column))]
        return np.asarray(rows[Groups(groups.ids[rows], groups.count).firsts()])


def others(kept: Numbers, table: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns for each row of a table whether it is none of those that are kept."""
    found = np.ones(table.num_rows, bool)
    found[kept] = False
    return found


@dataclass(frozen=True, slots=True)
class DistinctBatch(Operator):
    """Leaves out rows of a batch that are like another one before them."""

    how: Distinct

    @property
    def name(self) -> str:
        return self.how.name

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        return self.how.schema([found])

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        del schema
        return {*needed, *self.how.keys}

    def identity(self) -> Any:
        return self.how.identity()

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        del place
        kept = self.how.kept(table)
        if kept is None:
            yield table
            return
        tally.drop_rows(table, others(kept, table), DUPLICATE)
        yield take_rows(table, pa.array(kept))
