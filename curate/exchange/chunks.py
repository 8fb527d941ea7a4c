"""Gathers rows until they are sorted, and divides sorted rows into pages. All in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.canonical import zero_nulls
from curate.arrow.order import take_rows
from curate.arrow.unknown import empty

PAGE_ROWS = 65_536
"""Rows of a page at most, where rows take next to no bytes."""

UNUSED, UNUSED_BYTES = 4, 32 << 10
"""Times the bytes of pending rows, and bytes beside, that the tables may have that they are slices of."""

PLACE_BYTES = 16
"""What the sort takes for a row: its place, and its size."""
_Int64 = np.ndarray[Any, np.dtype[np.int64]]


class Chunk:
    """Rows that were gathered."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = 0
        self.bytes = 0
        self._schema = schema
        self._tables: list[pa.Table] = []
        self._sizes: list[_Int64] = []
        self._held = self._last = 0
        """Bytes of what the tables are slices of, and the address of the last of these."""

    def add(self, table: pa.Table, sizes: _Int64) -> None:
        """Takes a table whose rows are of these sizes."""
        self.rows += table.num_rows
        self.bytes += int(sizes.sum()) + PLACE_BYTES * table.num_rows
        self._sizes.append(sizes)
        self._tables.append(table)
        # Neighbours are slices of one table, mostly.
        if (address := _address(table)) != self._last:
            self._held += table.get_total_buffer_size()
            self._last = address
        if self._held > UNUSED * self.bytes + UNUSED_BYTES:
            # A few rows of large tables would keep all of these while they are pending.
            self._tables = [take_rows(self.combined(), pa.array(np.arange(self.rows)))]
            self._held, self._last = self.bytes, 0

    def sizes(self) -> _Int64:
        """Returns the bytes of each row."""
        return np.concatenate(self._sizes)

    def combined(self) -> pa.Table:
        """Returns the rows, in the order in which they came, in one batch, which is all that is held of them then.

        For as long as that takes there are two of them. To take pages from several batches needs no second one, and
        takes twice as long.
        """
        tables, self._tables = self._tables, []
        return pa.concat_tables(tables).combine_chunks() if tables else empty(self._schema)


def _address(table: pa.Table) -> int:
    """Returns where the first values of a table lie."""
    for column in table.columns[:1]:
        for chunk in column.chunks[:1]:
            return int(next((one.address for one in reversed(chunk.buffers()) if one is not None), 0))
    return 0


def page_ends(
    sizes: _Int64, places: _Int64, page_bytes: int, starts: _Int64 | None, first_bytes: int
) -> Iterator[tuple[int, int]]:
    """Yields where pages of sorted rows begin and end: `sizes` has the bytes of rows as they came, `places` how they
    are sorted. Sorted rows in `starts` begin a page. The first page has `first_bytes`.
    """
    at, guess, wanted = 0, 64, first_bytes
    while at < len(places):
        end = len(places)
        if starts is not None:
            following = np.searchsorted(starts, at, side="right")
            end = int(starts[following]) if following < len(starts) else end
        most = min(PAGE_ROWS, end - at)
        ahead = places[at : at + min(guess, most)]
        rows = int(np.searchsorted(np.cumsum(sizes[ahead]), wanted, side="right"))
        if rows == len(ahead) < most:
            guess *= 2
            continue
        rows = max(1, rows)
        yield at, at + rows
        at, guess, wanted = at + rows, max(64, 2 * rows), page_bytes


def gather(rows: pa.RecordBatch, places: _Int64, schema: pa.Schema) -> pa.RecordBatch:
    """Returns these rows of a batch, in this order, in a batch of its own."""
    return zero_nulls(rows.take(pa.array(places)), schema)
