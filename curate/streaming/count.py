"""Decides a limit before a write: the rows that each shard contributes, once, in the order of the input.

All shards before the last one contribute all their rows, so only the last one and its number of rows are stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from curate.backends.make import make_backend
from curate.pipeline.step import task_cpus
from curate.plan.physical import at_most
from curate.runtime.protocol import Resources
from curate.sources.shards import NumberedPiece, label_of
from curate.stage.fusion import FirstRows
from curate.stage.stage import MEMORY_BUDGET
from curate.streaming.engine import stream_blocks
from curate.streaming.program import StreamProgram, ranked_pieces

COUNTED_BYTES = 64 << 10
"""Bytes of the first blocks that are counted: little is made that is not asked for."""


def decide(limit: FirstRows, backend: str, max_bad_rows: str | None) -> Mapping[str, Any]:
    """Returns the last shard that gives rows, and how many: counts them, no further than needed, and writes nothing.

    It is the last shard of all if there are fewer rows.
    """
    left, last = limit.rows, {"shard": "", "rows": 0, "rank": -1}
    for rank, (shard, rows) in enumerate(_counted(limit, backend, max_bad_rows)):
        last = {"shard": shard, "rows": min(rows, left), "rank": rank}
        left -= min(rows, left)
        if not left:
            break
    return last


def _counted(limit: FirstRows, name: str, max_bad_rows: str | None) -> Iterator[tuple[str, int]]:
    """Yields shards in order with how many rows they give, of which no more are counted than the limit."""
    limited = tuple(at_most(one, limit.rows) for one in limit.fusions)
    program = _Counting(limited, COUNTED_BYTES, max_bad_rows)
    pieces = ((one,) for bundle in ranked_pieces(limit.fusions) for one in bundle)
    backend = make_backend(name)
    try:
        backend.start(Resources(task_cpus(limit.fusions[0].operators)), program.pools)
        for table in stream_blocks(program, pieces, backend, budget_bytes=MEMORY_BUDGET, label=label_of):
            yield table["shard"][0].as_py(), table["rows"][0].as_py()
    finally:
        backend.close()


class _Counting(StreamProgram):
    """Tells how many rows each piece gives."""

    def run(self, payload: tuple[NumberedPiece, ...]) -> Iterator[pa.Table]:
        rows = sum(block.num_rows for block in super().run(payload) if isinstance(block, pa.Table))
        yield pa.table({"shard": [payload[0].piece.id], "rows": [rows]})
