"""What jobs of several stages are tried with: limits that a few rows reach, and inputs in memory."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.exchange.run_file import RunWriter
from curate.plan import rewrites
from curate.reduce import ranges
from curate.stage import program
from curate.storage.memory import MemoryStore
from tests.e2e.jobs.seams import SMALL_BYTES, rows


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a module that imports it: a few rows are several maps, ranges and pages."""
    monkeypatch.setattr(rewrites, "LEAST_MAP_BYTES", SMALL_BYTES)
    monkeypatch.setattr(ranges, "LEAST_BYTES", SMALL_BYTES)
    monkeypatch.setattr(program, "RunWriter", partial(RunWriter, page_bytes=150))


def put_inputs(root: str, count: int) -> None:
    """Publishes so many inputs in memory."""
    for number in range(count):
        sink = pa.BufferOutputStream()
        pq.write_table(rows(number), sink, compression="none")
        MemoryStore().publish(f"{root}/in/{number}.parquet", sink.getvalue().to_pybytes())
