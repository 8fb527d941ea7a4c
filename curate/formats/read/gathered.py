"""Rows that are read one by one, on their way into tables of about a MiB, and the bad ones among them, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from curate.arrow.unknown import all_nullable, find_nulls
from curate.objects.bad_line import NO_COLUMNS, OnBadRow, RejectedRow
from curate.objects.stream import BLOCK_BYTES

_BLOCK_ROWS = 4096

Build = Callable[[Sequence[Any], dict[int, str]], pa.Array]
"""Makes values an array. Positions that do not fit are null there, and added to those given, with the reason."""


class Gathered:
    """Takes rows, and yields them as tables of one schema."""

    def __init__(
        self,
        schema: pa.Schema,
        columns: Sequence[Build],
        on_bad_row: OnBadRow,
        on_rows: Callable[[Sequence[Sequence[Any]]], None] | None = None,
    ) -> None:
        """`columns` make the values of each field. `on_rows` is told the values of the rows of each table."""
        self._schema, self._columns, self._on_bad_row, self._on_rows = schema, columns, on_bad_row, on_rows
        self._nullable = all_nullable(schema)
        self._rows: list[tuple[int, bytes | str, Sequence[Any]]] = []
        self._bad: list[RejectedRow] = []
        self._bytes = 0

    def add(self, number: int, raw: bytes | str, values: Sequence[Any], size: int) -> Iterator[pa.Table]:
        """Takes the values of a row, which has so many bytes. `raw` is what it is called should it not fit."""
        if not self._columns:
            yield from self.reject(number, NO_COLUMNS, raw)
            return
        self._rows.append((number, raw, values))
        yield from self._full(size)

    def reject(self, number: int, reason: str, raw: bytes | str) -> Iterator[pa.Table]:
        """Takes a row that cannot be read. What is held of such rows is bounded, too, and their budget soon told."""
        self._bad.append(RejectedRow(number, reason, raw))
        yield from self._full(len(raw))

    def _full(self, size: int) -> Iterator[pa.Table]:
        """Yields what was taken if that is enough for a table, with these bytes more."""
        self._bytes += size
        if self._bytes >= BLOCK_BYTES or max(len(self._rows), len(self._bad)) >= _BLOCK_ROWS:
            yield from self.rest()

    def rest(self) -> Iterator[pa.Table]:
        """Yields what was taken; bad rows are handed on before."""
        rows, bad = self._rows, self._bad
        self._rows, self._bad, self._bytes = [], [], 0
        misfits: dict[int, str] = {}
        arrays: list[pa.Array] = []
        if rows:  # not every column can be built of no values
            cells = zip(*(values for _, _, values in rows), strict=True)
            arrays = [build(values, misfits) for build, values in zip(self._columns, cells, strict=True)]
            find_nulls(arrays, self._schema, misfits)
        bad += [RejectedRow(rows[at][0], reason, rows[at][1]) for at, reason in misfits.items()]
        for one in sorted(bad, key=lambda row: row.line):
            self._on_bad_row(one)
        if len(rows) > len(misfits):
            if self._on_rows is not None:
                self._on_rows([values for at, (_, _, values) in enumerate(rows) if at not in misfits])
            table = pa.Table.from_arrays(arrays, schema=self._nullable)
            kept = pa.array([at not in misfits for at in range(len(rows))])
            yield table.filter(kept) if misfits else table
