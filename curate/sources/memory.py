"""Rows in memory as sources: tables, items and ranges."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import pyarrow as pa

from curate.arrow.batches import combined, rechunk
from curate.arrow.unknown import empty
from curate.dataclass import dataclass, replace
from curate.pipeline.shard_books import ShardBooks, counted
from curate.sources.protocol import Piece, Projection, Source, StoreOf
from curate.sources.split import bundled
from curate.units import MIB

RANGE_ROWS = 1 << 20
"""Rows of a range in one piece."""
NUMBER_BYTES = 8
"""Bytes of a number of a range."""
TABLE_BYTES = 64 * MIB
"""Bytes of a table in memory above which it becomes several pieces."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Rows that are in memory."""

    method: str
    tables: tuple[pa.Table, ...]
    schema: pa.Schema
    num_cpus: float | None = None

    @property
    def name(self) -> str:
        return f"{self.method}({sum(map(len, self.tables)):,} rows)"

    @property
    def found(self) -> pa.Schema:
        return self.schema

    def pieces(self) -> Iterator[Piece]:
        """Yields tables, or parts of large ones."""
        some = [table for table in self.tables if len(table)]
        cuts = [(table, range(0, len(table), _piece_rows(table))) for table in some]
        if not cuts and len(self.schema):
            # A piece without rows says which columns there are.
            cuts = [(empty(self.schema), range(1))]
        total = sum(len(starts) for _, starts in cuts)
        number = 0
        for table, starts in cuts:
            for start in starts:
                # A slice would take all of its table to another process.
                part = table if len(starts) == 1 else _copied(table.slice(start, starts.step))
                label = f"{self.method} table {number}"
                yield Piece(f"part-{number:05d}-of-{total:05d}", label, int(part.nbytes), part)
                number += 1

    def bundles(self) -> Iterator[tuple[Piece, ...]]:
        return bundled(self.pieces(), lambda piece: piece.size)

    def bare(self) -> Self:
        return replace(self, tables=())

    def generation(self, data: pa.Table) -> str:
        return _digest(data)

    def identity(self) -> Any:
        return ["tables", [_digest(table) for table in self.tables]]

    def read(
        self, data: pa.Table, view: Projection, batch_rows: int, tally: ShardBooks, store_of: StoreOf
    ) -> Iterator[pa.Table]:
        del view, store_of
        return counted(rechunk(iter([data]), batch_rows), tally)

    def count(self) -> int | None:
        return sum(map(len, self.tables))


@dataclass(frozen=True, slots=True)
class Range(Source):
    """The numbers from 0 on, as the column `id`."""

    rows: int
    num_cpus: float | None = None

    @property
    def name(self) -> str:
        return f"range({self.rows:,})"

    @property
    def found(self) -> pa.Schema:
        return pa.schema([("id", pa.int64())])

    def pieces(self) -> Iterator[Piece]:
        starts = range(0, self.rows, RANGE_ROWS)
        for number, start in enumerate(starts):
            stop = min(start + RANGE_ROWS, self.rows)
            name = f"part-{number:05d}-of-{len(starts):05d}"
            yield Piece(name, f"range {start}-{stop}", (stop - start) * NUMBER_BYTES, (start, stop))

    def bare(self) -> Self:
        return self

    def identity(self) -> Any:
        return ["range", self.rows]

    def read(
        self, data: tuple[int, int], view: Projection, batch_rows: int, tally: ShardBooks, store_of: StoreOf
    ) -> Iterator[pa.Table]:
        del view, store_of
        return counted(self._read(*data, batch_rows), tally)

    def _read(self, first: int, end: int, batch_rows: int) -> Iterator[pa.Table]:
        for start in range(first, end, batch_rows):
            stop = min(start + batch_rows, end)
            yield pa.table({"id": np.arange(start, stop, dtype=np.int64)})

    def count(self) -> int | None:
        return self.rows


def _piece_rows(table: pa.Table) -> int:
    """Returns how many rows of a table are a piece: all of a small one."""
    parts = -(-table.nbytes // TABLE_BYTES)
    return int(max(1, -(-len(table) // max(1, parts))))


def _digest(table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    # In one chunk: how rows are cut in memory says nothing about them.
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(combined(table))
    return hashlib.sha256(sink.getvalue()).hexdigest()[:32]


def _copied(table: pa.Table) -> pa.Table:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()
