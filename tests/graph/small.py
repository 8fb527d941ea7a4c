"""What jobs of several stages are tried with: limits that a few rows reach, and inputs in memory."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from curate.exchange.run_file import RunWriter
from curate.plan import rewrites
from curate.reduce import ranges
from curate.stage import program
from curate.stores.memory import MemoryStore
from tests.e2e.jobs.seams import SMALL_BYTES, rows


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a module that imports it: a few rows are several maps, ranges and pages."""
    monkeypatch.setattr(rewrites, "LEAST_MAP_BYTES", SMALL_BYTES)
    monkeypatch.setattr(ranges, "LEAST_BYTES", SMALL_BYTES)
    monkeypatch.setattr(program, "RunWriter", partial(RunWriter, page_bytes=150))


def put_inputs(root: str, count: int, more: int = 0) -> None:
    """Writes so many inputs in memory, in the places of what is there, with so much added to one of their columns."""
    for number in range(count):
        sink, table = pa.BufferOutputStream(), rows(number)
        table = table.set_column(table.schema.get_field_index("k"), "k", pc.add(table["k"], more))
        pq.write_table(table, sink, compression="none")
        MemoryStore().replace(f"{root}/in/{number}.parquet", sink.getvalue().to_pybytes())
