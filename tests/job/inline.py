"""Runs jobs in this process, without Ray and without waiting; writes their inputs and reads what they leave."""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.clock import Clock
from curate.errors import ConfigError
from curate.graph.entry import run
from curate.job.job import Job
from curate.ledger import layout
from curate.ledger.compression import decompress
from curate.ledger.summary import Summary
from tests.support.fakes import FakeClock

Rows = Sequence[Mapping[str, Any]]


def run_job(job: Job, source: Any, output: Any, *, clock: Clock | None = None, **options: Any) -> Summary:
    """Runs a job inline. Backoff takes no time."""
    checked = job.options(input=source, output=output, backend="inline", **options)
    return run(job.spec(), checked, clock=clock or FakeClock())


def write_jsonl(path: Path, rows: Rows | bytes) -> Path:
    """Writes rows, or bytes as they are, compressed if the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = rows if isinstance(rows, bytes) else b"".join(orjson.dumps(row) + b"\n" for row in rows)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def write_parquet(path: Path, rows: Rows | pa.Table, **options: Any) -> Path:
    """Writes rows, or a table, as Parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows)), path, **options)
    return path


def outputs(root: Path) -> dict[str, pa.Table]:
    """Returns the Parquet outputs by name, relative to the prefix; the ledger left out."""
    found = sorted(path for path in root.rglob("*.parquet") if layout.LEDGER not in path.parts)
    return {str(path.relative_to(root)): pq.read_table(path) for path in found}


def output_rows(root: Path) -> list[dict[str, Any]]:
    """Returns the rows of all outputs, in the order of their names."""
    return [row for table in outputs(root).values() for row in table.to_pylist()]


def quarantined(root: Path) -> list[dict[str, Any]]:
    """Returns the rows in quarantine, by file, then in order."""
    files = sorted((root / layout.QUARANTINE).glob("*.zst"))
    return [orjson.loads(line) for file in files for line in decompress(file.read_bytes()).splitlines()]


def everything(root: Path) -> dict[str, bytes]:
    """Returns every file below a directory, by relative name."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def failures(root: Path) -> list[dict[str, Any]]:
    """Returns the failed tries in the ledger, in order."""
    segments = sorted((root / layout.RUNS).glob("*/failures/*.jsonl.zst"))
    return [orjson.loads(line) for segment in segments for line in decompress(segment.read_bytes()).splitlines()]


def numbered(start: int, stop: int) -> list[dict[str, Any]]:
    """Returns rows with an id and a text."""
    return [{"id": f"r{k}", "text": f"text {k}", "n": k} for k in range(start, stop)]


def refusing(message: str) -> Any:
    """Expects a ConfigError whose message contains exactly this text."""
    return pytest.raises(ConfigError, match=re.escape(message))


def bytes_of(output: Path) -> dict[str, bytes]:
    """Returns the outputs, and what the ledger says that the job is."""
    return {one.name: one.read_bytes() for one in [*output.glob("*.parquet"), output / "_curate" / "job.json"]}
