"""Limits the rows of a task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from curate.dataclass import dataclass
from curate.operators.protocol import Operator
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition
from curate.tasks.books import LIMIT


@dataclass(frozen=True, slots=True)
class LimitRows(Operator):
    """Keeps all rows of shards but one, and of that the first `rows`."""

    shard: str
    rows: int
    rank: int | None = None
    """The number of that shard among all, those after which give nothing; None: it is told by its name, and no other is
    read after it."""
    name = "limit"

    def identity(self) -> Any:
        return ["limit"]

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        if place.rank < self.rank if self.rank is not None else place.shard != self.shard:
            yield batch
            return
        beyond = self.rank is not None and place.rank > self.rank
        kept = batch.slice(0, 0 if beyond else max(0, self.rows - place.row))
        tally.drop(batch.num_rows - kept.num_rows, LIMIT)
        yield kept
