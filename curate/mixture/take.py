"""Writes the rows of a mixture, each as often as it was decided, and how much each source contributed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.order import Order, SortKey, take_rows
from curate.dataclass import dataclass
from curate.exchange.row_ids import ROW_ID, first_row_id, row_ids
from curate.late_pandas import numbers
from curate.mixture.choice import (
    AVAILABLE,
    AVAILABLE_ROWS,
    EPOCHS,
    FIRST,
    HASH,
    LAST,
    SOURCE,
    STRATUM,
    WANTED,
    WRITTEN,
    WRITTEN_ROWS,
)
from curate.mixture.lowest import Ints
from curate.mixture.mixture import DOCUMENTS
from curate.mixture.rows import Mixing
from curate.operators.protocol import ByRule
from curate.operators.side_input import Marking, Marks
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import READ_ROWS, BatchPosition, SideTable

UNLISTED = "source not in the mixture"
NOT_DRAWN = "not drawn"
"""Why rows are dropped."""
SOURCES = "sources"
"""The extra output that has the books of each source."""
MOST_COUNTED = 40
"""Sources up to which these are in the summary, too."""
BOOKS = pa.schema(
    [
        ("source", pa.string()),
        ("weight", pa.float64()),
        ("unit", pa.string()),
        ("wanted", pa.int64()),
        ("available", pa.int64()),
        ("written", pa.int64()),
        ("missing", pa.int64()),
        ("epochs", pa.float64()),
        ("max_epochs", pa.int64()),
        ("available_rows", pa.int64()),
        ("written_rows", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Take(Marking, ByRule):
    """Drops rows, and repeats others, each one behind itself."""

    rule: Mixing
    marks: Marks | None = None
    """None where it is planned, not run."""
    order = Order((SortKey(ROW_ID), SortKey(SOURCE), SortKey(STRATUM)))
    """What is told of sources is sorted by."""
    sides = (SOURCES,)
    """The extra outputs that it has."""

    def made(self, found: pa.Schema) -> pa.Schema:
        column = self.rule.epoch_column
        return found if column is None else found.append(pa.field(column, pa.int32()))

    def identity(self) -> Any:
        return ["take", self.rule.identity()]

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table | SideTable]:
        if not batch.num_rows or self.marks is None:
            # Nothing but schemas is asked for.
            yield self._repeated(batch, np.zeros(0, np.int64), np.zeros(0, np.int64))
            yield SideTable(SOURCES, BOOKS.empty_table())
            return
        # The same for all shards.
        drawn = self.marks.of(first_row_id(0), first_row_id(1))
        ids, source = row_ids(place, batch.num_rows), self.rule.sources(batch)
        sizes, listed = self.rule.sizes(batch), source >= 0
        copies = self._copies(batch, ids, np.where(sizes > 0, source, -1), drawn)
        tally.drop_rows(batch, ~listed, UNLISTED)
        tally.drop_rows(batch, listed & (sizes == 0), f"no {self.rule.mixture.unit}")
        tally.drop_rows(batch, listed & (sizes > 0) & (copies == 0), NOT_DRAWN)
        self._count(source, copies, sizes, tally)
        yield from self._pieces(batch, copies)
        first = drawn[FIRST][0].as_py()
        if ids[0] <= first <= ids[-1]:
            yield self._told(drawn, tally)
        else:
            yield SideTable(SOURCES, BOOKS.empty_table())

    def without_rows(self, place: BatchPosition, tally: ShardBooks) -> Iterator[SideTable]:
        """Yields the books of the sources where no shard has a row: the first shard has them, in place of a row."""
        drawn = None if place.rank or self.marks is None else self.marks.of(first_row_id(0), first_row_id(1))
        if drawn is not None and drawn.num_rows and drawn[FIRST][0].as_py() < 0:
            yield self._told(drawn, tally)

    def _told(self, drawn: pa.Table, tally: ShardBooks) -> SideTable:
        """Returns the books of the sources, and counts what they say, where there are not too many."""
        books = self._books(drawn)
        if books.num_rows <= MOST_COUNTED:
            for one in books.to_pylist():
                for what in ("wanted", "available", *(["missing"] if one["missing"] else [])):
                    tally.count(f"{one['source']}: {what} {one['unit']}", one[what])
        return SideTable(SOURCES, books)

    def _copies(self, batch: pa.Table, ids: Ints, source: Ints, drawn: pa.Table) -> Ints:
        """Returns how often each row is there; never, if it is of no source."""
        of, strata = numbers(drawn[SOURCE]), numbers(drawn[STRATUM])
        hashes, stratum = self.rule.hashes(batch), self.rule.strata(batch)
        copies = np.zeros(batch.num_rows, np.int64)
        for one in np.unique(source[source >= 0]).tolist():
            low, high = np.searchsorted(of, [one, one + 1])
            rows = np.flatnonzero(source == one)
            at = low + np.searchsorted(strata[low:high], stratum[rows])
            last, row = numbers(drawn[HASH])[at], numbers(drawn[LAST])[at]
            once_more = (hashes[rows] < last) | ((hashes[rows] == last) & (ids[rows] < row))
            copies[rows] = numbers(drawn[EPOCHS])[at] + once_more
        return copies

    def _pieces(self, batch: pa.Table, copies: Ints) -> Iterator[pa.Table]:
        """Yields the rows as often as they are there, as many at a time as there are in a batch."""
        rows = np.repeat(np.arange(batch.num_rows), copies)
        epochs = np.arange(len(rows)) - np.repeat(np.cumsum(copies) - copies, copies)
        for at in range(0, max(1, len(rows)), READ_ROWS):
            yield self._repeated(batch, rows[at : at + READ_ROWS], epochs[at : at + READ_ROWS])

    def _repeated(self, batch: pa.Table, rows: Ints, epochs: Ints) -> pa.Table:
        made = take_rows(batch, pa.array(rows, pa.int64()))
        column = self.rule.epoch_column
        return made if column is None else made.append_column(column, pa.array(epochs, pa.int32()))

    def _count(self, source: Ints, copies: Ints, sizes: Ints, tally: ShardBooks) -> None:
        names, unit = self.rule.mixture.names, self.rule.mixture.unit
        if len(names) > MOST_COUNTED:
            return
        # Of documents, both are the same.
        counted = {DOCUMENTS: copies, unit: copies * sizes}
        for one in np.unique(source[source >= 0]).tolist():
            for what, number in counted.items():
                tally.count(f"{names[one]}: written {what}", int(number[source == one].sum()))

    def _books(self, drawn: pa.Table) -> pa.Table:
        """Returns what is wanted, available and written of each source: the sums of its strata."""
        mixture = self.rule.mixture
        of = numbers(drawn[SOURCE])
        sums = {}
        for name in (WANTED, AVAILABLE, WRITTEN, AVAILABLE_ROWS, WRITTEN_ROWS):
            sums[name] = [int(numbers(drawn[name])[of == at].sum()) for at in range(len(mixture.sources))]
        return pa.table(
            {
                "source": mixture.names,
                "weight": [float(one.weight) for one in mixture.sources],
                "unit": [mixture.unit] * len(mixture.sources),
                "wanted": sums[WANTED],
                "available": sums[AVAILABLE],
                "written": sums[WRITTEN],
                "missing": [wanted - gave for wanted, gave in zip(sums[WANTED], sums[WRITTEN], strict=True)],
                "epochs": [
                    gave / had if had else 0.0 for gave, had in zip(sums[WRITTEN], sums[AVAILABLE], strict=True)
                ],
                "max_epochs": [one.max_epochs for one in mixture.sources],
                "available_rows": sums[AVAILABLE_ROWS],
                "written_rows": sums[WRITTEN_ROWS],
            },
            schema=BOOKS,
        )
