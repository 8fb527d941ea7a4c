"""A join whose right side is small: each task holds all of it, and no row is exchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from curate.arrow.order import rows_where
from curate.arrow.types import is_text
from curate.dataclass import dataclass, field
from curate.exchange.kinds.join import MATCHED, UNMATCHED, Keys
from curate.exchange.kinds.merge_join import has_null, output_rows, take_or_null
from curate.operators.protocol import Operator
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import READ_ROWS, BatchPosition

BROADCAST_HOWS = ("inner", "left", "semi", "anti")
"""Joins of which each left row tells by itself what comes of it."""


@dataclass(frozen=True, slots=True)
class BroadcastJoin(Operator):
    """Joins rows with those of a table in memory: the same rows as by an exchange, in the order of the left ones."""

    keys: Keys
    how: str
    right: pa.Table
    digest: str
    """Of the right rows, which are part of what decides the bytes that are made."""
    index: Any = field(default=None, repr=False, compare=False)
    """Where the rows of each key are, once it was made."""

    @property
    def name(self) -> str:
        return self.keys.name

    def made(self, found: pa.Schema) -> pa.Schema:
        right = self.keys.cast_schema(1, self.right.schema)
        return self.keys.joined(self.keys.cast_schema(0, found), right, self.how)

    def identity(self) -> Any:
        return ["broadcast_join", self.keys.identity(), self.how, self.digest]

    def opened(self) -> Self:
        """Returns the operator with an index of the right rows by key."""
        right = self.keys.cast(1, self.right)
        rows: dict[Any, list[int]] = {}
        for row, key in enumerate(_plain_keys(right.select(self.keys.right))):
            if key is not None:
                rows.setdefault(key, []).append(row)
        counts = np.array([len(one) for one in rows.values()], np.int64)
        numbers = {key: number for number, key in enumerate(rows)}
        order = np.array([row for one in rows.values() for row in one], np.int64)
        others = right.select([name for name in right.column_names if name not in self.keys.right])
        index = (numbers, counts, np.cumsum(counts) - counts, take_or_null(others, order))
        return type(self)(self.keys, self.how, right, self.digest, index)

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        del place
        numbers, counts, starts, others = (self.opened() if self.index is None else self).index
        left = self.keys.cast(0, table)
        schema = self.keys.joined(left.schema, self.keys.cast_schema(1, self.right.schema), self.how)
        keys = np.array([numbers.get(key, -1) for key in _plain_keys(left.select(self.keys.left))], np.int64)
        matched = keys >= 0
        if self.how in ("semi", "anti"):
            kept = matched if self.how == "semi" else ~matched
            tally.drop_rows(left, ~kept, UNMATCHED if self.how == "semi" else MATCHED)
            yield rows_where(left, kept)
            return
        width = np.where(matched, np.append(counts, 0)[keys], int(self.how == "left"))
        tally.drop_rows(left, width == 0, UNMATCHED)
        tally.books.created += int(np.maximum(width - 1, 0).sum())
        for row, place_in_key in output_rows(width, READ_ROWS):
            right_rows = np.where(matched[row], np.append(starts, 0)[keys[row]] + place_in_key, -1)
            columns = [*take_or_null(left, row).columns, *take_or_null(others, right_rows).columns]
            yield pa.table(columns, schema=schema)


def _plain_keys(table: pa.Table) -> Iterator[Any]:
    """Yields keys as values that Python compares as an order does; None for those with a null, which match nothing."""
    columns = []
    for column in table.columns:
        if pt.is_temporal(column.type):
            # As numbers: Python's times have no nanoseconds.
            column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
        elif is_text(column.type):
            # As bytes, which need not be UTF-8.
            column = column.cast(pa.large_binary())
        values = column.to_pylist()
        columns.append(
            [NAN if value != value else value for value in values] if pt.is_floating(column.type) else values
        )
    nulls = has_null(table).tolist()
    for key, null in zip(zip(*columns, strict=True), nulls, strict=True):
        yield None if null else key


NAN = "NaN"
"""Stands for what is no number, and equals itself."""
