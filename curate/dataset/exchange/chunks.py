"""Rows that are gathered until they are sorted, and how what is sorted is parted into pages. All in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from curate.dataset.exchange.settle import settled

PAGE_ROWS = 65_536
"""Rows of a page at most, where rows take next to no bytes."""
PLACE_BYTES = 16
"""What the sort takes for a row: its place, and its size."""
_PIECE_BYTES = 32 << 20
"""Bytes of rows that are gathered into one batch: each is a call for every page, and copies as much at once."""
_PIECE_TABLES = 1024

_Int64 = np.ndarray[Any, np.dtype[np.int64]]


class Chunk:
    """Rows that were gathered, in batches of some size that own their memory: what tables are slices of can go."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = 0
        self.bytes = 0
        self._schema = schema
        self._pieces: list[pa.RecordBatch] = []
        self._tables: list[pa.Table] = []
        self._sizes: list[_Int64] = []
        self._table_bytes = 0

    def add(self, table: pa.Table, sizes: _Int64) -> None:
        """Takes a table whose rows are of these sizes."""
        size = int(sizes.sum()) + PLACE_BYTES * table.num_rows
        self.rows += table.num_rows
        self.bytes += size
        self._sizes.append(sizes)
        self._tables.append(table)
        self._table_bytes += size
        if self._table_bytes >= _PIECE_BYTES or len(self._tables) >= _PIECE_TABLES:
            self._gather()

    def pieces(self) -> list[pa.RecordBatch]:
        """Returns the rows, in the order in which they came."""
        self._gather()
        return self._pieces

    def sizes(self) -> _Int64:
        """Returns the bytes of each row."""
        return np.concatenate(self._sizes)

    def combined(self) -> pa.Table:
        """Returns the rows in one batch, which is all that is held of them then."""
        pieces, self._pieces = self.pieces(), []
        table = pa.Table.from_batches(pieces, self._schema)
        return table if len(pieces) == 1 else table.combine_chunks()

    def _gather(self) -> None:
        if self._tables:
            self._pieces += pa.concat_tables(self._tables).combine_chunks().to_batches()
            self._tables, self._table_bytes = [], 0


def page_ends(sizes: _Int64, places: _Int64, page_bytes: int, starts: _Int64 | None) -> Iterator[tuple[int, int]]:
    """Yields where pages of sorted rows begin and end: `sizes` has the bytes of rows as they came, `places` how they
    are sorted. Sorted rows in `starts` begin a page.
    """
    at, guess = 0, 64
    while at < len(places):
        end = len(places)
        if starts is not None:
            following = np.searchsorted(starts, at, side="right")
            end = int(starts[following]) if following < len(starts) else end
        most = min(PAGE_ROWS, end - at)
        ahead = places[at : at + min(guess, most)]
        rows = int(np.searchsorted(np.cumsum(sizes[ahead]), page_bytes, side="right"))
        if rows == len(ahead) < most:
            guess *= 2
            continue
        rows = max(1, rows)
        yield at, at + rows
        at, guess = at + rows, max(64, 2 * rows)


def gather(pieces: list[pa.RecordBatch], places: _Int64, schema: pa.Schema) -> pa.RecordBatch:
    """Returns these rows of the pieces laid end to end, in this order, in a batch of its own."""
    if len(pieces) == 1:
        return settled(pieces[0].take(pa.array(places)), schema)
    # Arrow's own `take` from several chunks lays them end to end first: the whole chunk, for each page.
    starts = np.cumsum([0, *(piece.num_rows for piece in pieces)])
    piece_of = np.searchsorted(starts, places, side="right") - 1
    by_piece = np.argsort(piece_of.astype(np.min_scalar_type(len(pieces))), kind="stable")
    bounds = np.searchsorted(piece_of[by_piece], np.arange(len(pieces) + 1))
    parts = [
        piece.take(pa.array(places[by_piece[start:stop]] - first))
        for piece, first, start, stop in zip(pieces, starts, bounds, bounds[1:], strict=False)
        if start < stop
    ]
    back = np.empty_like(by_piece)
    back[by_piece] = np.arange(len(by_piece))
    return settled(pa.concat_batches(parts).take(pa.array(back)), schema)
