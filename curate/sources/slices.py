"""Repartitions Parquet files without an exchange: their footers say where every row is.

Each output reads its rows from their row groups. Only row groups that two outputs share are read twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Self

import numpy as np
import pyarrow as pa

from curate.arrow.batches import rechunk
from curate.dataclass import dataclass, field, replace
from curate.formats.read.parquet_file import read_footer
from curate.objects.bad_line import RejectedRow, RowNumbers
from curate.pipeline.shard_books import BadRowBudget, ShardBooks, counted
from curate.sources.files import READERS, Files
from curate.sources.protocol import FileListing, Piece, Projection, Source, StoreOf
from curate.storage.protocol import Object
from curate.stores.open import open_store
from curate.tasks.shard import Shard, SliceKind


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of one file."""

    shard: Shard
    """The row groups that they are in."""
    before: int
    """Rows of the file before these row groups."""
    skip: int
    take: int


@dataclass(frozen=True, slots=True)
class OutputSlices:
    """The rows of one output."""

    number: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Sliced(FileListing, Source):
    """The rows of Parquet files as `count` pieces of as many rows each, to one."""

    files: Files
    count_: int
    num_cpus: float | None = None
    _made: list[OutputSlices] = field(default_factory=list, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.files.name

    @property
    def found(self) -> pa.Schema:
        return self.files.schema

    def pieces(self) -> Iterator[Piece]:
        if not self._made:
            self._made.extend(outputs(self.files, self.count_))
        for one in self._made:
            name, label = (
                f"part-{one.number:05d}-of-{self.count_:05d}",
                f"output {one.number} of repartition({self.count_})",
            )
            yield Piece(name, label, sum(part.shard.size_bytes for part in one.slices), one)

    def bare(self) -> Self:
        bare = self.files.bare()
        return replace(self, files=bare, listing=bare.listing, _made=[])

    def identity(self) -> Any:
        return ["slices", self.files.identity(), self.count_]

    def count(self) -> int | None:
        return self.files.count()

    def read(
        self, data: OutputSlices, view: Projection, batch_rows: int, tally: ShardBooks, store_of: StoreOf
    ) -> Iterator[pa.Table]:
        return counted(rechunk(self._rows(data, view, batch_rows, tally, store_of), batch_rows), tally)

    def _rows(
        self, output: OutputSlices, view: Projection, batch_rows: int, tally: ShardBooks, store_of: StoreOf
    ) -> Iterator[pa.Table]:
        # Rows that a filter would leave out have their place, too.
        whole = replace(view, filters=())
        for one in output.slices:
            read, own = 0, _OwnRows(one, tally)
            for table in self.files.read(one.shard, whole, batch_rows, own, store_of):
                # Of all rows, those that are bad among them: another output may begin to read behind these.
                numbers = RowNumbers() if own.numbers is None else own.numbers
                places = numbers.between(read, read + table.num_rows) - 1
                read += table.num_rows
                start, stop = np.searchsorted(places, [one.skip, one.skip + one.take]).tolist()
                if start < stop:
                    yield table.slice(start, stop - start)
                if table.num_rows and places[-1] >= one.skip + one.take - 1:
                    break


class _OwnRows(ShardBooks):
    """Hands on bad rows of a slice, and none of the row groups around it, which are of other outputs."""

    def __init__(self, of: Slice, tally: ShardBooks) -> None:
        super().__init__(BadRowBudget())
        self._of, self._tally = of, tally

    def bad_row(self, row: RejectedRow) -> None:
        if self.numbers is not None:
            self.numbers.add(row.line)
        if self._of.skip < row.line <= self._of.skip + self._of.take:
            at = f"row {self._of.before + row.line:,} of {self._of.shard.uri}"
            self._tally.bad_row(replace(row, at=at))


def sliced(files: Files, count: int) -> Sliced:
    """Returns the rows of Parquet files in `count` pieces."""
    return Sliced(files=files, count_=count, listing=files.listing, paths=files.paths)


def outputs(files: Files, count: int) -> list[OutputSlices]:
    """Returns what each output reads; reads the footers of all files. Raises CorruptInput."""
    columns = (files.listing[name].to_pylist() for name in ("uri", "size", "generation"))
    items = list(map(Object, *columns))
    with ThreadPoolExecutor(READERS) as pool:
        groups = list(pool.map(_groups, items))
    ends = np.cumsum([0, *(int(rows.sum()) for rows, _ in groups)])
    found = []
    for number, (start, stop) in enumerate(pairwise([int(ends[-1]) * one // count for one in range(count + 1)])):
        first = int(np.searchsorted(ends, start, side="right")) - 1
        last = int(np.searchsorted(ends, stop, side="left"))
        slices = []
        for one in range(first, last if stop > start else first):
            before, after = int(ends[one]), int(ends[one + 1])
            slices.append(_slice(items[one], *groups[one], max(start, before) - before, min(stop, after) - before))
        found.append(OutputSlices(number, tuple(one for one in slices if one.take)))
    return found


def _groups(item: Object) -> tuple[Any, Any]:
    """Returns the rows and the stored bytes of each row group."""
    metadata = read_footer(open_store(item.uri), item)
    all = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    rows = np.array([group.num_rows for group in all], dtype=np.int64)
    return rows, np.array([group.total_byte_size for group in all], dtype=np.int64)


def _slice(item: Object, rows: Any, sizes: Any, start: int, stop: int) -> Slice:
    """Returns rows `start` to `stop` of a file."""
    ends = np.cumsum(rows)
    first = int(np.searchsorted(ends, start, side="right"))
    last = int(np.searchsorted(ends, stop, side="left")) + 1 if stop > start else first
    before = int(ends[first - 1]) if first else 0
    size = int(sizes[first:last].sum() * (stop - start) / max(1, int(rows[first:last].sum())))
    shard = Shard("", item.uri, SliceKind.ROW_GROUPS, first, last, size, item.size, item.generation)
    return Slice(shard, before, start - before, stop - start)
