"""Tables of an exact number of rows, whatever the sizes they come in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


def rechunk(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yields the same rows in tables of `rows` rows, the last one smaller, none empty, each in one chunk.

    One chunk, so that user code cannot come to depend on how a file was read.
    """
    if rows < 1:
        raise ValueError(f"expected at least one row a batch, found {rows}")
    pending: list[pa.Table] = []
    pending_rows = 0
    for table in tables:
        at = 0
        while table.num_rows - at >= rows - pending_rows:
            take = rows - pending_rows
            pending.append(table.slice(at, take))
            yield _joined(pending)
            at, pending, pending_rows = at + take, [], 0
        if at < table.num_rows:
            pending.append(table.slice(at) if at else table)
            pending_rows += table.num_rows - at
    if pending:
        yield _joined(pending)


def _joined(tables: list[pa.Table]) -> pa.Table:
    table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
    return table.combine_chunks() if any(column.num_chunks > 1 for column in table.columns) else table
