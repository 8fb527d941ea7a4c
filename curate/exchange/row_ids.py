"""Row ids, one number for each row; and marks: facts about rows, by id, for when they are read again.

    row id   the rank of the row's shard in the upper bits, its number in what the step got of the shard in the lower 36

So rows are in input order by id, and the marks of a shard are a range.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.arrow.order import Order, SortKey
from curate.errors import ConfigError
from curate.late_pandas import numbers
from curate.pipeline.step import BatchPosition

ROW_ID = "__place"
"""The column of marks that says which row they are about; or, its lower bits zero, which shard."""

ROW_BITS = 36
_MOST_SHARDS = 1 << (63 - ROW_BITS)


RowIds = npt.NDArray[np.int64]


BY_ROW_ID = Order((SortKey(ROW_ID),))
"""What all marks are sorted by first."""


class TableMarks:
    """Marks that are in memory, as one table."""

    def __init__(self, table: pa.Table, order: Order) -> None:
        self._table = order.sort(table).combine_chunks()
        self._row_ids = numbers(self._table[ROW_ID])

    def of(self, start: int, stop: int) -> pa.Table:
        """Returns the marks of these rows, sorted."""
        first, last = np.searchsorted(self._row_ids, [start, stop])
        return self._table.slice(first, last - first)


def first_row_id(rank: int) -> int:
    """Returns the id of a shard's first row.

    >>> first_row_id(2) >> ROW_BITS
    2
    """
    return rank << ROW_BITS


def row_ids(place: BatchPosition, rows: int) -> RowIds:
    """Returns the ids of the rows of a batch. Raises ConfigError beyond what an id can say.

    >>> (row_ids(BatchPosition("a", 5, rank=1), 2) - first_row_id(1)).tolist()
    [5, 6]
    """
    if place.rank >= _MOST_SHARDS or place.row + rows > 1 << ROW_BITS:
        raise ConfigError(
            f"shard {place.rank:,}, row {place.row + rows:,}: rows can be numbered up to shard {_MOST_SHARDS:,} and "
            "row "
            f"{1 << ROW_BITS:,} of each; write the input as fewer or smaller files"
        )
    return first_row_id(place.rank) + place.row + np.arange(rows, dtype=np.int64)


def ranks(found: RowIds) -> RowIds:
    """Returns the ranks of the shards that rows are in."""
    return found >> ROW_BITS
