"""What outputs of lines of text have in common: rows become lines, some at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa

from curate.arrow.types import contains, is_text
from curate.errors import ConfigError
from curate.objects.compress import Envelope, Sink
from curate.writers.output import OutputWriter

SHOWN_BYTES = 60
_LINES_BYTES = 8 << 20
"""About the bytes of rows that are made lines at a time."""


def refuse_broken_texts(table: pa.Table, format: str, before: int = 0) -> None:
    """Raises ConfigError for a text that is not UTF-8, at any depth, which a Parquet file may have and a format of text
    has no place for; `before` is how many rows were written before."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not contains(column.type, is_text):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            # Whatever else is off, and entries of a dictionary that no row has, are no matter here.
            for row, value in enumerate(column):
                if (broken := _broken(value)) is not None:
                    raise ConfigError(
                        f"column {name!r} is {column.type} and has a text that is not UTF-8 in row {before + row} of "
                        f"an output ({broken!r}), which {format} cannot store; drop such rows, or write parquet"
                    ) from None


def _broken(value: pa.Scalar) -> bytes | None:
    """Returns bytes of a value, or below it, that are meant to be text and are none, the first ones of many."""
    try:
        value.as_py()
    except UnicodeDecodeError as error:
        return error.object[:SHOWN_BYTES]
    except (ValueError, OverflowError, KeyError):
        return None  # times that Python has no value for
    return None


class LinesWriter(OutputWriter):
    """Writes tables of one schema as lines, or other bytes of a few rows; `close` adds the record behind them."""

    format: ClassVar[str]
    """What it is called in messages."""
    rows_at_once = 4096
    """Rows that are made lines at a time, at most."""

    def __init__(self, sink: Sink, schema: pa.Schema, codec: str) -> None:
        super().__init__(schema)
        self._envelope = Envelope(sink, codec)

    def _take(self, table: pa.Table) -> None:
        refuse_broken_texts(table, self.format, self.rows)
        step = max(1, min(self.rows_at_once, _LINES_BYTES * table.num_rows // max(1, table.nbytes)))
        for at in range(0, table.num_rows, step):
            self._envelope.write(self._lines(table.slice(at, step)))

    @abstractmethod
    def _lines(self, table: pa.Table) -> bytes:
        """Returns rows as lines."""

    def close(self, record: Mapping[str, Any]) -> None:
        self._envelope.close(record)
