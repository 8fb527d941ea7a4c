"""Gathers rows into Arrow columns, a block at a time.

A listing of 100,000 objects takes about 50 MB as Python objects, and a fifth of that as columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

BLOCK_ROWS = 4096
"""Rows that are kept as Python objects before they become a block."""
POOL = pa.system_memory_pool()
"""Columns stay for the length of a run; Arrow's own pool, made for what comes and goes, takes twice the room."""


class RowBuffer:
    """Collects rows of one schema."""

    def __init__(self, schema: Any) -> None:
        self.broken: str | None = None
        """The first text that is no Unicode: a local file may have any bytes for a name. They are kept escaped."""
        self._schema = schema
        self._rows: list[tuple[Any, ...]] = []
        self._blocks: list[Any] = []

    def add(self, row: tuple[Any, ...]) -> None:
        """Adds one row."""
        self._rows.append(row)
        if len(self._rows) == BLOCK_ROWS:
            self._flush()

    def extend(self, rows: Iterator[tuple[Any, ...]]) -> None:
        """Adds rows: of very many, in half the time that it takes to add each."""
        while True:
            self._rows += islice(rows, BLOCK_ROWS - len(self._rows))
            if len(self._rows) < BLOCK_ROWS:
                return
            self._flush()

    def table(self) -> Any:
        """Returns all rows as a table; its columns have many chunks, for joining them would hold all of it twice."""
        self._flush()
        return pa.Table.from_batches(self._blocks, self._schema)

    def _flush(self) -> None:
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [self._array(values, type) for values, type in zip(columns, self._schema.types, strict=True)]
            self._blocks.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
            self._rows = []

    def _array(self, values: tuple[Any, ...], type: Any) -> Any:
        try:
            return pa.array(values, type, memory_pool=POOL)
        except UnicodeEncodeError as error:
            self.broken = self.broken or error.object
            return pa.array([value.encode("utf-8", "backslashreplace").decode() for value in values], type)
