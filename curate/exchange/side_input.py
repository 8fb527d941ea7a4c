"""Marks in run files, sorted by row id: read in ranges beside the rows that they describe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from curate.arrow.order import Order
from curate.errors import DamagedRun
from curate.exchange.row_ids import BY_ROW_ID, ROW_BITS, ROW_ID, TableMarks, first_row_id
from curate.exchange.run_file import opened, remove_damaged
from curate.storage.protocol import Object
from curate.units import MIB

WHOLE_BYTES = 64 * MIB
"""Marks of a shard up to which they are read at once, and kept until the next shard comes; of more, as they are asked
for: a batch at a time."""


class FileMarks:
    """Marks in run files, at least one, each sorted by `order`, which is by places first.

    What is read of a shard is held in memory: WHOLE_BYTES, or the marks of a batch; or all, once all are asked for.
    Raises DamagedRun from `of`.
    """

    def __init__(self, files: tuple[Object, ...], order: Order) -> None:
        self.files = files
        self.order = order
        self._rank: int | None = None
        self._whole: TableMarks | None = None
        self._ranges: list[_Range] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "order": self.order}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["files"], state["order"])  # type: ignore[misc]

    def of(self, start: int, stop: int) -> pa.Table:
        """Returns the marks of places from `start` to before `stop`, which are of one shard, sorted, in one chunk."""
        try:
            return self._of(start, stop)
        except DamagedRun as error:
            remove_damaged(next(file for file in self.files if file.uri == error.uri), error)
            raise

    def _of(self, start: int, stop: int) -> pa.Table:
        rank = start >> ROW_BITS
        if rank != self._rank:
            self._enter(rank)
        if not self._ranges:
            # Without columns, even, where no rows told what these are.
            return self._empty()
        if self._whole is not None:
            return self._whole.of(start, stop)
        tables = [one.read(start, stop) for one in self._ranges]
        marks = pa.concat_tables([self._empty(), *tables])
        if start > first_row_id(rank) or stop < first_row_id(rank + 1):
            return self.order.sort(marks).combine_chunks()
        # Who asks for all marks of a shard has room for them, and asks for them with each batch.
        self._whole = TableMarks(marks, self.order)
        return self._whole.of(start, stop)

    def _enter(self, rank: int) -> None:
        start, stop = first_row_id(rank), first_row_id(rank + 1)
        found = [_Range(file, segment) for file in self.files for segment in range(len(opened(file).segments))]
        self._ranges = [one for one in found if one.begin(start, stop)]
        self._rank, self._whole = rank, None
        if self._ranges and sum(one.bytes for one in self._ranges) <= WHOLE_BYTES:
            tables = [one.read(start, stop) for one in self._ranges]
            self._whole = TableMarks(pa.concat_tables([self._empty(), *tables]), self.order)

    def _empty(self) -> pa.Table:
        return (
            opened(self.files[0]).schema.empty_table() if self.files else pa.table({ROW_ID: pa.array([], pa.int64())})
        )


class _Range:
    """Rows of a segment, of one shard."""

    def __init__(self, file: Object, segment: int) -> None:
        self.file = file
        self.segment = segment
        self.bytes = 0

    def begin(self, start: int, stop: int) -> bool:
        """Finds how large the range of a shard is; returns whether there is any."""
        first, last = self._rows(start, stop)
        index = opened(self.file).segments[self.segment]
        self.bytes = int((last - first) * (index.bytes.sum() / max(1, index.rows.sum())))
        return last > first

    def read(self, start: int, stop: int) -> pa.Table:
        first, last = self._rows(start, stop)
        return opened(self.file).read(self.segment, first, last)

    def _rows(self, start: int, stop: int) -> Iterator[int]:
        file = opened(self.file)
        keys = (pa.table({ROW_ID: pa.array([at], pa.int64())}) for at in (start, stop))
        return (file.position(BY_ROW_ID, self.segment, key, False) for key in keys)
