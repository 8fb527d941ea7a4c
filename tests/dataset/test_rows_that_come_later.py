"""Files that come behind files without a row: their rows are written as if they had been there from the start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate
from curate.dataset.dataset import Dataset
from curate.observe.verify import verify

SCHEMA = pa.schema([("s", pa.string()), ("f", pa.float64())])
ROWS = pa.table({"s": [f"{n}" for n in range(30)], "f": [n / 2 for n in range(30)]}, schema=SCHEMA)
"""More than the bad rows that are allowed."""


def jsonl(path: Path, rows: pa.Table) -> None:
    text = "".join(f'{{"s":"{row["s"]}","f":{row["f"]}}}\n' for row in rows.to_pylist())
    path.with_suffix(".jsonl").write_text(text)


def csv(path: Path, rows: pa.Table) -> None:
    text = "s,f\n" + "".join(f"{row['s']},{row['f']}\n" for row in rows.to_pylist())
    path.with_suffix(".csv").write_text(text)


def parquet(path: Path, rows: pa.Table) -> None:
    pq.write_table(rows, path.with_suffix(".parquet"))


WRITES: dict[str, Callable[[Path, pa.Table], None]] = {"jsonl": jsonl, "csv": csv, "parquet": parquet}
READS: dict[str, Any] = {"jsonl": curate.read_json, "csv": curate.read_csv, "parquet": curate.read_parquet}
STEPS: dict[str, Callable[[Dataset], Dataset]] = {
    "none": lambda found: found,
    "map": lambda found: found.map(lambda row: {"z": row["f"]}),
    "filter": lambda found: found.filter(lambda row: row["f"] is not None),
}


@pytest.mark.quick(11)
@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "sampled"])
@pytest.mark.parametrize("kind", WRITES)
def test_rows_that_come_later_are_written(kind: str, declared: bool, step: str, format: str, tmp_path: Path) -> None:
    """Consumed = written, nothing is quarantined, and nothing is said to be damaged."""
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()

    def found() -> Dataset:
        return STEPS[step](READS[kind](source, **({"schema": SCHEMA} if declared else {})))

    def write() -> Any:
        made = found()
        method = {"parquet": made.write_parquet, "jsonl": made.write_json, "csv": made.write_csv}[format]
        return method(out, backend="inline")

    def read() -> list[dict[str, Any]]:
        made: dict[str, Any] = {"parquet": curate.read_parquet, "jsonl": curate.read_json, "csv": curate.read_csv}
        return list(made[format](out).take_all())

    WRITES[kind](source / "a", ROWS.slice(0, 0))
    assert write().state == "complete"
    WRITES[kind](source / "b", ROWS)
    second = write()
    assert second.state == "complete", second.failures
    assert second.books.rows_out == 30
    assert [list(map(str, row.values())) for row in read()] == [
        list(map(str, row.values())) for row in found().take_all()
    ]
    assert not verify(str(out)).findings
    assert write().skipped == 2


def test_so_are_those_of_a_job(tmp_path: Path) -> None:
    """Which cannot declare what it reads."""

    class Copies(curate.Job):
        version = "1"
        output_schema = SCHEMA

        def process(self, batch: pa.Table) -> pa.Table:
            return batch

    source = tmp_path / "in"
    source.mkdir()
    jsonl(source / "a", ROWS.slice(0, 0))
    assert Copies().run(input=source, output=tmp_path / "out", backend="inline").state == "complete"
    jsonl(source / "b", ROWS)
    summary = Copies().run(input=source, output=tmp_path / "out", backend="inline")
    assert (summary.state, summary.books.rows_out, summary.books.quarantined) == ("complete", 30, 0)
