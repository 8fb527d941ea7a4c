"""Which rows are dropped, and for which: one pass over the edges in the order of rows.

A row is dropped if it is like a row that is kept: the first is kept, then each that is unlike all of those.
What becomes of a row depends on those before it alone. So the edges are read by their later row, a part at a time, and
of what was decided a bit is known for each row that was dropped. Within a part, rows that depend on others of it are
decided one after the other, in one loop over what is left of its edges: a chain of a million rows is no more work than
a million pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.order import Order, SortKey, take_rows
from curate.dataclass import dataclass
from curate.dedup.exact import KEPT, KEPT_ID
from curate.dedup.graph import RowBits
from curate.dedup.near import CLASS, KEPT_SOURCE, OTHER, OTHER_CLASS, OTHER_ID, OTHER_SOURCE, SIMILARITY, NearDedup
from curate.dedup.pairs import Ints, runs
from curate.exchange.protocol import InOneGo
from curate.exchange.row_ids import BY_ROW_ID, ROW_ID
from curate.late_pandas import numbers
from curate.pipeline.shard_books import ShardBooks
from curate.tasks.books import GROUPED


def dropped_schema(near: NearDedup, edges: pa.Schema) -> pa.Schema:
    """Returns the schema of marks of rows that are dropped, from that of edges: each with the one that is kept."""
    fields = [pa.field(ROW_ID, pa.int64()), pa.field(KEPT, pa.int64()), pa.field(SIMILARITY, pa.float64())]
    fields.append(pa.field(KEPT_ID, edges.field(OTHER_ID).type))
    return pa.schema(
        [*fields, *([pa.field(KEPT_SOURCE, edges.field(OTHER_SOURCE).type)] if near.source is not None else [])]
    )


@dataclass(frozen=True, slots=True)
class Choice(InOneGo):
    """The exchange that decides which rows are dropped, and marks them: each for the most similar one that is kept."""

    near: NearDedup
    name = "choice"

    @property
    def orders(self) -> tuple[Order, ...]:
        return (Order((SortKey(CLASS), SortKey(ROW_ID))) if self.near.ordered else BY_ROW_ID,)

    def identity(self) -> Any:
        return ["choice", self.near.identity()]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        return None if found[0] is None else dropped_schema(self.near, found[0])

    def scan(self, read: Callable[[], Iterator[pa.Table]], tally: ShardBooks) -> Iterator[pa.Table]:
        dropped = RowBits()
        names = [ROW_ID, OTHER, SIMILARITY, OTHER_ID, *([OTHER_SOURCE] if self.near.source is not None else [])]
        last: pa.Table | None = None
        for table in read():
            # A row whose edges lie in two parts goes on as the best of those of the first.
            table = pa.concat_tables([last, table]) if last is not None else table
            best, going_on = chosen(table, dropped)
            schema = dropped_schema(self.near, table.schema)
            last = take_rows(table, pa.array(best[going_on:]))
            made = take_rows(table.select(names), pa.array(best[:going_on]))
            tally.drop(table.num_rows - len(best), GROUPED)
            yield pa.table(made.columns, schema=schema)
        if last is not None:
            yield pa.table(last.select(names).columns, schema=dropped_schema(self.near, last.schema))


def chosen(table: pa.Table, dropped: RowBits) -> tuple[Ints, int]:
    """Decides the later rows of edges, which are sorted by these, and adds those that are dropped to `dropped`.

    Returns for each that is dropped the edge to the most similar row that is kept, of equal ones to the first of these;
    and how many of them there are before the last row of all, more edges of which may come.
    """
    later, earlier = (numbers(table[name]) for name in (ROW_ID, OTHER))
    starts, sizes = runs(later)
    rows, of = later[starts], np.repeat(np.arange(len(starts)), sizes)
    # The earlier rows that are among the later ones of this part, and are decided here; all others are decided.
    by_id = np.argsort(rows)
    at = np.minimum(np.searchsorted(rows[by_id], earlier), max(0, len(rows) - 1))
    number = by_id[at]
    inside = rows[number] == earlier
    kept = ~inside
    kept[kept] = ~dropped.has(earlier[kept])
    gone = np.zeros(len(rows), bool)
    gone[of[kept]] = True
    left = np.flatnonzero(inside & ~gone[of])
    left = left[~gone[number[left]]]
    # By their later row: an earlier one is decided before it is asked for.
    decided = bytearray(gone)
    for one, other in zip(number[left].tolist(), of[left].tolist(), strict=True):
        if not decided[one]:
            decided[other] = 1
    gone = np.frombuffer(decided, bool)
    dropped.add(rows[gone])
    kept[inside] = ~gone[number[inside]]
    edges = np.flatnonzero(kept)
    alike, classes = numbers(table[SIMILARITY])[edges], numbers(table[OTHER_CLASS])[edges]
    order = edges[np.lexsort((earlier[edges], classes, -alike, of[edges]))]
    best = order[runs(of[order])[0]]
    return best, len(best) - int(len(best) > 0 and of[best[-1]] == len(rows) - 1)
