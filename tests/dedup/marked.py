"""Rows that are read again with marks, in this process."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from curate.exchange.row_ids import TableMarks
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import BatchPosition, SideTable


def read_again(
    step: Any, marks: pa.Table, shards: Sequence[pa.Table], seed: int = 0, most: int = 5
) -> tuple[list[pa.Table], pa.Table, dict[str, int]]:
    """Returns what a step with these marks makes of each shard, what it tells beside that, and what it dropped."""
    step = step.marked(TableMarks(marks, step.order)) if marks.num_columns else step
    random_ = random.Random(seed)
    tally = ShardBooks(BadRowBudget("100%"))
    made, told = [], []
    for rank, shard in enumerate(shards):
        tables, at = [], 0
        while at < shard.num_rows or (at == 0 and shard.num_rows == 0):
            batch = shard.slice(at, random_.randint(1, most))
            for one in step.apply(batch, tally, BatchPosition(f"shard-{rank}", at, rank)):
                (told if isinstance(one, SideTable) else tables).append(one)
            at += max(1, batch.num_rows)
        made.append(pa.concat_tables(tables))
    return made, pa.concat_tables([one.table for one in told]) if told else pa.table({}), dict(tally.books.dropped)
