"""Writes: of datasets, those that fail, and their files; what a writer makes of tables."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.errors import WriteFailed
from curate.ledger.summary import Summary
from curate.objects.record import OutputFormat
from curate.writers.writer import make_writer


def failed_write(write: Callable[..., Summary], *args: Any, **options: Any) -> Summary:
    """Returns the summary of a write that must fail, by the method that writes."""
    with pytest.raises(WriteFailed) as caught:
        write(*args, **options)
    summary = caught.value.summary
    assert isinstance(summary, Summary)
    return summary


def files(out: Path) -> dict[str, bytes]:
    """Returns the outputs below a folder, by name."""
    return {path.name: path.read_bytes() for path in sorted(out.glob("*.*"))}


def file_of(
    tables: pa.Table | Iterable[pa.Table],
    format: OutputFormat,
    codec: str = "zstd",
    record: Mapping[str, Any] | None = None,
    schema: pa.Schema | None = None,
) -> bytes:
    """Returns what a writer makes of one table, or of several."""
    sink, some = io.BytesIO(), [tables] if isinstance(tables, pa.Table) else list(tables)
    writer = make_writer(sink, some[0].schema if schema is None else schema, format, codec)
    for table in some:
        writer.write(table)
    writer.close({"shard": "a"} if record is None else record)
    assert writer.rows == sum(table.num_rows for table in some)
    return sink.getvalue()


def slices(table: pa.Table, rows: int) -> list[pa.Table]:
    """Returns a table cut after each so many rows; at least one piece."""
    return [table.slice(at, rows) for at in range(0, max(1, len(table)), rows)]


def pieces(table: pa.Table, cuts: Sequence[int]) -> list[pa.Table]:
    """Returns a table cut at some rows, or at its end; some pieces may be empty."""
    edges = [0, *sorted(min(cut, table.num_rows) for cut in cuts), table.num_rows]
    return [table.slice(a, b - a) for a, b in itertools.pairwise(edges)]
