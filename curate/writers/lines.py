"""What outputs of lines of text have in common: rows become lines, some at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from curate.arrow.schema import conform
from curate.objects.compress import Envelope, Sink

_LINES_BYTES = 8 << 20
"""About the bytes of rows that are made lines at a time."""


class LinesWriter(ABC):
    """Writes tables of one schema as lines of text, or other bytes of a few rows at a time; `close` adds the
    record behind them."""

    rows_at_once = 4096
    """Rows that are made lines at a time, at most."""

    def __init__(self, sink: Sink, schema: pa.Schema, codec: str) -> None:
        self.rows = 0
        self._schema = schema
        self._envelope = Envelope(sink, codec)

    def write(self, table: pa.Table) -> None:
        """Takes the rows of `table`. Raises SchemaMismatch if it cannot be held to the schema; ConfigError for values
        that the format has no place for."""
        table = conform(table, self._schema)
        self.rows += table.num_rows
        step = max(1, min(self.rows_at_once, _LINES_BYTES * table.num_rows // max(1, table.nbytes)))
        for at in range(0, table.num_rows, step):
            self._envelope.write(self._lines(table.slice(at, step)))

    @abstractmethod
    def _lines(self, table: pa.Table) -> bytes:
        """Returns rows as lines."""

    def close(self, record: Mapping[str, Any]) -> None:
        """Writes what is pending, then the record."""
        self._envelope.close(record)
