"""What writers of all formats have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from curate.arrow.schema import conform


class OutputWriter(ABC):
    """Writes the tables of one output. The same rows give the same bytes, whatever tables they come in."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = 0
        """Rows written so far."""
        self._schema = schema

    _held: Callable[[Any, Any], Any] = staticmethod(conform)

    def write(self, table: pa.Table) -> None:
        """Takes the rows of `table`. Raises SchemaMismatch if it cannot be held to the schema; ConfigError for values
        that the format has no place for."""
        table = self._held(table, self._schema)
        self._take(table)
        self.rows += table.num_rows

    @abstractmethod
    def _take(self, table: pa.Table) -> None:
        """Writes rows of the schema behind those before."""

    @abstractmethod
    def close(self, record: Mapping[str, Any]) -> None:
        """Writes what is pending and the record; the sink stays open."""


@runtime_checkable
class SeveralFiles(Protocol):
    """What a writer of an output of several files has, too."""

    def close_other(self, suffix: str, record: Mapping[str, Any]) -> None:
        """Writes what is pending of the other file with this suffix, and the record if it carries one, before `close`
        does so for the output."""
