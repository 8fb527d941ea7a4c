"""The shards of a report: one output for each shard of the corpus, which holds the sketch of its rows."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson
import pyarrow as pa

from curate.dataclass import dataclass
from curate.report.corpus import VERSION, Sketcher
from curate.stage.datasink import Datasink, SinkFile

BATCH_ROWS = 1 << 16
BATCH_BYTES = 64 << 20
"""Rows and bytes that are sketched at once: each table costs some numpy calls a column, whatever its size."""


@dataclass(frozen=True, slots=True)
class Sketches(Datasink):
    """Writes the sketch of a shard's rows, as JSON."""

    suffix: ClassVar[str] = ".sketch.json"
    job_name: ClassVar[str] = "report"
    by: str = ""

    def identity(self) -> Any:
        """Returns what decides the bytes of a sketch."""
        return {"version": VERSION, "by": self.by}

    def open(self, file: SinkFile, schema: pa.Schema) -> _SketchWriter:
        """Returns what writes the sketch of a shard. Raises ConfigError if there is no column `by`."""
        return _SketchWriter(file, schema, self.by)


class _SketchWriter:
    def __init__(self, file: SinkFile, schema: pa.Schema, by: str) -> None:
        self._file, self._sketcher = file, Sketcher(schema, by)
        self._tables: list[pa.Table] = []
        self._rows = self._bytes = 0

    def write(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._rows += table.num_rows
        self._bytes += table.nbytes
        if self._rows >= BATCH_ROWS or self._bytes >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._tables:
            self._sketcher.add(pa.concat_tables(self._tables))
            self._tables, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        self._flush()
        self._file.write(orjson.dumps(self._sketcher.corpus.as_dict()))
