"""Clusters: what is connected by rows that are alike, of which the first row is kept.

    joined     the edges are read three times, a part at a time: which rows there are, what they connect, and then each
               row with the number of its cluster. Four bytes for each row that has an edge are held, and a bit
    marked     the rows come together by clusters, in order, and the first of each is kept; one is held at a time

Edges of rows that may not be dropped connect, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.order import Order, SortKey, take_rows
from curate.dataclass import dataclass
from curate.dedup.choice import dropped_schema
from curate.dedup.graph import Components, RowBits
from curate.dedup.near import CLASS, ID, OTHER, OTHER_CLASS, OTHER_ID, OTHER_SOURCE, SIMILARITY, SOURCE, NearDedup
from curate.exchange.protocol import InOneGo
from curate.exchange.row_ids import ROW_ID
from curate.late_pandas import numbers
from curate.pipeline.shard_books import ShardBooks
from curate.tasks.books import GROUPED

CLUSTER = "__cluster"


@dataclass(frozen=True, slots=True)
class Clusters(InOneGo):
    """The exchange that says of each row that has an edge which cluster it is in, once for each part of the edges."""

    near: NearDedup
    name = "clusters"

    def identity(self) -> Any:
        return ["clusters", self.near.identity()]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        if found[0] is None:
            return None
        return pa.schema([pa.field(CLUSTER, pa.int64()), *_ends(self.near, found[0].empty_table()).schema])

    def scan(self, read: Callable[[], Iterator[pa.Table]], tally: ShardBooks) -> Iterator[pa.Table]:
        rows = RowBits()
        for table in read():
            for name in (ROW_ID, OTHER):
                rows.add(numbers(table[name]))
        found = Components(len(rows))
        for table in read():
            found.join(*(rows.numbers(numbers(table[name])) for name in (ROW_ID, OTHER)))
        for table in read():
            both = _ends(self.near, table)
            at = numbers(both[ROW_ID])
            # Each row once, with its largest similarity.
            order = np.lexsort((-numbers(both[SIMILARITY]), at))
            once = order[np.append(True, at[order][1:] != at[order][:-1])[: len(order)]]
            made = take_rows(both, pa.array(once))
            tally.drop(max(0, table.num_rows - made.num_rows), GROUPED)
            yield made.add_column(0, CLUSTER, pa.array(found.least(rows.numbers(at[once]))))


@dataclass(frozen=True, slots=True)
class Members(InOneGo):
    """The exchange that marks all rows of each cluster but the first one, and those that may not be dropped."""

    near: NearDedup
    name = "first of each cluster"

    @property
    def orders(self) -> tuple[Order, ...]:
        keys = (CLUSTER, CLASS, ROW_ID) if self.near.ordered else (CLUSTER, ROW_ID)
        return (Order(tuple(map(SortKey, keys))),)

    def identity(self) -> Any:
        return ["members", self.near.identity()]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        return None if found[0] is None else _marks(self.near, found[0])

    def scan(self, read: Callable[[], Iterator[pa.Table]], tally: ShardBooks) -> Iterator[pa.Table]:
        last: pa.Table | None = None
        for table in read():
            # The first row of the last cluster goes on, and its last one, of which there may be more.
            table = pa.concat_tables([last, table]) if last is not None else table
            made, last = self._marked(table, whole=False)
            tally.drop(max(0, table.num_rows - made.num_rows - last.num_rows), GROUPED)
            yield made
        if last is not None:
            made, _ = self._marked(last, whole=True)
            tally.drop(last.num_rows - made.num_rows, GROUPED)
            yield made

    def _marked(self, table: pa.Table, *, whole: bool) -> tuple[pa.Table, pa.Table]:
        """Returns the marks of rows, and what goes on of them."""
        cluster, at = numbers(table[CLUSTER]), numbers(table[ROW_ID])
        # Of a row that is there several times the one of the largest similarity; all of them are beside each other.
        new = np.append(True, (cluster[1:] != cluster[:-1]) | (at[1:] != at[:-1]))[: len(at)]
        order = np.lexsort((-numbers(table[SIMILARITY]), np.cumsum(new)))
        once = order[np.flatnonzero(new)]
        begins = np.append(True, cluster[once][1:] != cluster[once][:-1])[: len(once)]
        first = once[np.maximum.accumulate(np.where(begins, np.arange(len(once)), 0))]
        going_on = np.unique([first[-1], once[-1]]) if len(once) else once
        told = (first != once) & (numbers(table[CLASS])[once] > 0)
        if not whole:
            told[-1:] = False
        rows, kept = take_rows(table, pa.array(once[told])), take_rows(table, pa.array(first[told]))
        names = [ID, *([SOURCE] if self.near.source is not None else [])]
        columns = [rows[ROW_ID], kept[ROW_ID], rows[SIMILARITY], *(kept[name] for name in names)]
        return pa.table(columns, schema=_marks(self.near, table.schema)), take_rows(table, pa.array(going_on))


def _ends(near: NearDedup, edges: pa.Table) -> pa.Table:
    """Returns the rows of both ends of edges."""
    names = [ROW_ID, CLASS, ID, *([SOURCE] if near.source is not None else []), SIMILARITY]
    others = [OTHER, OTHER_CLASS, OTHER_ID, *([OTHER_SOURCE] if near.source is not None else []), SIMILARITY]
    return pa.concat_tables([edges.select(names), edges.select(others).rename_columns(names)])


def _marks(near: NearDedup, members: pa.Schema) -> pa.Schema:
    names = {ID: OTHER_ID, SOURCE: OTHER_SOURCE}
    return dropped_schema(near, pa.schema([field.with_name(names.get(field.name, field.name)) for field in members]))
