"""Drops the rows that are nearly copies of others, and says which these were, and for which row each was dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.canonical import plain_column
from curate.arrow.order import rows_where
from curate.dataclass import dataclass
from curate.dedup.alike import marks_of
from curate.dedup.exact import DUPLICATE, DUPLICATES, KEPT, KEPT_ID
from curate.dedup.near import KEPT_SOURCE, SIMILARITY, NearDedup
from curate.exchange.row_ids import BY_ROW_ID, ROW_ID, row_ids
from curate.late_pandas import numbers
from curate.operators.protocol import ByRule
from curate.operators.side_input import Marking, Marks
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition, SideTable
from curate.texts.pieces import NOT_UTF8, readable


@dataclass(frozen=True, slots=True)
class DropNear(Marking, ByRule):
    """Drops the rows that are marked, and lists them in an extra output."""

    rule: NearDedup
    marks: Marks | None = None
    """None where it is planned, not run."""
    order = BY_ROW_ID
    """What marks are sorted by."""
    sides = (DUPLICATES,)
    """The extra outputs that it has."""

    def identity(self) -> Any:
        return ["drop near copies", self.rule.identity()]

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table | SideTable]:
        marks = None if self.marks is None else marks_of(self.marks, batch, place)
        for name, number in self.rule.counted(batch).items() if self.marks is not None else ():
            tally.count(name, number)
        if self.marks is not None and (unread := readable(batch[self.rule.column])[1]):
            tally.count(NOT_UTF8, unread)
        if marks is None or not marks.num_rows:
            # Also without rows: it tells the columns of the extra output.
            yield batch
            yield self._told(batch.slice(0, 0), None)
            return
        rows = numbers(marks[ROW_ID]) - row_ids(place, 1)
        keep = np.ones(batch.num_rows, bool)
        keep[rows] = False
        tally.drop_rows(batch, ~keep, DUPLICATE)
        yield rows_where(batch, keep)
        yield self._told(rows_where(batch, ~keep), marks)

    def _told(self, rows: pa.Table, marks: pa.Table | None) -> SideTable:
        """Returns what is listed of rows that are dropped, whose marks are in the same order."""
        ids = plain_column(rows[self.rule.id_column])
        kept = [] if marks is None else [f"{one:016x}" for one in marks[KEPT].to_pylist()]
        columns = {
            "id": ids,
            "cluster": pa.array(kept, pa.string()),
            "kept_id": ids if marks is None else marks[KEPT_ID],
            "similarity": pa.array([], pa.float64()) if marks is None else marks[SIMILARITY],
        }
        if self.rule.source is not None:
            source = plain_column(rows[self.rule.source])
            columns |= {"source": source, "kept_source": source if marks is None else marks[KEPT_SOURCE]}
        return SideTable(DUPLICATES, pa.table(columns))


def id_column_of(steps: Iterable[Any]) -> str | None:
    """Returns the column that duplicates are listed by, of the identities of a job's steps; None if none lists any.

    >>> from curate.dedup.exact import DropCopies, ExactDedup
    >>> id_column_of([["rows"], DropCopies(ExactDedup(("text",), id_column="url")).identity()])
    'url'
    >>> id_column_of([DropNear(NearDedup("text", "doc")).identity()])
    'doc'
    """
    for step in steps:
        match step:
            case ["drop near copies", [_, str(found), *_]] | ["drop copies", [_, _, _, _, str(found), _]]:
                return found
    return None
