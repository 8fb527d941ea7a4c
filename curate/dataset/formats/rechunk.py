"""Tables of an exact number of rows, whatever the sizes they come in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from curate.dataset.formats.parquet_output import row_bytes

MOST_BYTES = 256 << 20
"""Bytes of a table above which it has fewer rows: as many as a row of text may have."""


def rechunk(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yields the same rows in tables of `rows` rows, the last one smaller, none empty, each in one chunk. Rows that are
    larger than `MOST_BYTES` together are several tables, each of as many as fit, and of one at least.

    One chunk, so that user code cannot come to depend on how a file was read.
    """
    if rows < 1:
        raise ValueError(f"expected at least one row a batch, found {rows}")
    pending: list[pa.Table] = []
    pending_bytes = 0
    left = rows
    for table in tables:
        at = 0
        while at < table.num_rows:
            part = table.slice(at, left) if at or table.num_rows > left else table
            at += part.num_rows
            left -= part.num_rows
            pending.append(part)
            # Of a small table it takes longer to measure what its rows refer to than all that is done with it here.
            bound = part.get_total_buffer_size()
            pending_bytes += bound if bound <= MOST_BYTES else part.nbytes
            if pending_bytes > MOST_BYTES:
                *large, rest = _cut(_joined(pending))
                yield from large
                pending, pending_bytes = [rest], rest.nbytes
            if not left:
                yield _joined(pending)
                pending, pending_bytes, left = [], 0, rows
    if pending:
        yield _joined(pending)


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    """Yields as many rows as fit, again and again; the last table may grow."""
    ends = np.cumsum(row_bytes(table))
    at = 0
    while True:
        before = ends[at - 1] if at else 0
        stop = max(at + 1, int(np.searchsorted(ends, before + MOST_BYTES, side="right")))
        if stop >= table.num_rows:
            yield table.slice(at).combine_chunks()
            return
        yield table.slice(at, stop - at).combine_chunks()
        at = stop


def _joined(tables: list[pa.Table]) -> pa.Table:
    table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
    return table.combine_chunks() if any(column.num_chunks > 1 for column in table.columns) else table
