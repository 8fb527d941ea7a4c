"""Files that come behind files without a row: their rows are written as if they had been there from the start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

import curate
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.observe.verify import verify
from jobs.filter import Filter

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


@pytest.mark.ci(13)
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


def test_a_job_that_names_columns_takes_their_types_from_the_first_rows(tmp_path: Path) -> None:
    """And not from files without one, of which an id was a text for good: rows with numbers were bad."""

    class Named(curate.Job):
        version = "1"
        columns = ["id", "s"]  # noqa: RUF012

        def process(self, batch: pa.Table) -> pa.Table:
            return batch

    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for kind, empty in (("jsonl", ""), ("csv", "id,s\n")):
        (source / f"{kind}.{kind}").write_text(empty)
    assert Named().run(input=source, output=out, backend="inline").state == "complete"
    (source / "b.jsonl").write_text("".join(f'{{"id":{n},"s":"x"}}\n' for n in range(30)))
    (source / "c.csv").write_text("id,s\n" + "".join(f"{n},x\n" for n in range(30)))
    summary = Named().run(input=source, output=out, backend="inline")
    assert (summary.state, summary.books.rows_out, summary.books.quarantined) == ("complete", 60, 0)
    assert pq.read_schema(out / "b.parquet") == pq.read_schema(out / "c.parquet")
    assert not verify(str(out)).findings
    assert [row["id"] for row in curate.read_parquet(out).take_all()] == [*range(30), *range(30)]


@pytest.mark.parametrize("type", [pa.string(), pa.null()])
def test_a_parquet_file_without_rows_decides_no_type(type: pa.DataType, tmp_path: Path) -> None:
    """As pandas writes a table without rows: the rows of all other files were refused."""
    pq.write_table(pa.table({"id": pa.nulls(0, type), "more": pa.nulls(0, type)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "b.parquet")
    found = curate.read_parquet(tmp_path)
    assert found.schema() == pa.schema([("id", pa.int64())])
    assert found.take_all() == found.sort("id").take_all() == [{"id": 1}, {"id": 2}]
    assert curate.read_parquet(tmp_path / "a.parquet").schema() == pa.schema([("id", type), ("more", type)])


def test_a_parquet_file_without_rows_that_has_all_columns_holds(tmp_path: Path) -> None:
    """As the first part of many a table: the rows behind it have some of its columns, in narrower types."""
    schema = pa.schema([("id", pa.int64()), ("s", pa.string())])
    pq.write_table(schema.empty_table(), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": pa.array([1], pa.int8())}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"s": ["x"], "id": [2**40]}), tmp_path / "c.parquet")
    found = curate.read_parquet(tmp_path)
    assert found.schema() == schema
    assert found.take_all() == [{"id": 1, "s": None}, {"id": 2**40, "s": "x"}]


def test_a_csv_file_of_a_header_has_its_columns(tmp_path: Path) -> None:
    """There were none, so that whatever names one was refused."""
    (tmp_path / "a.csv").write_text("id,s\n")
    (tmp_path / "b.csv").write_text("id,s\n1,x\n")
    found, rows = curate.read_csv(tmp_path / "a.csv"), curate.read_csv(tmp_path / "b.csv")
    assert found.columns() == ["id", "s"]
    assert found.filter(curate.col("id") > 1).select_columns(["s"]).sort("s").count() == 0
    assert found.union(rows).take_all() == rows.union(found).take_all() == [{"id": 1, "s": "x"}]
    assert rows.join(found, on="id", how="left").take_all() == [{"id": 1, "s": "x", "s_right": None}]
    assert found.write_csv(tmp_path / "out", backend="inline").state == "complete"
    assert curate.read_csv(tmp_path / "out").columns() == ["id", "s"]
    job = Filter(where=["id == 5"])
    assert job.run(input=tmp_path / "a.csv", output=tmp_path / "filtered", backend="inline").state == "complete"
    with pytest.raises(ConfigError, match="no column 'nope'; there are 'id', 's'"):
        Filter(where=["nope == 5"]).run(input=tmp_path / "a.csv", output=tmp_path / "refused", backend="inline")


def test_a_column_of_nulls_that_is_read_as_text_is_told_once(tmp_path: Path) -> None:
    """When its type is chosen: later rows with numbers there are bad rows."""
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "a.jsonl").write_text('{"id": 1, "b": null}\n')
    with capture_logs() as logs:
        curate.read_json(source).write_parquet(out, backend="inline")
        (source / "b.jsonl").write_text('{"id": 2, "b": 5}\n')
        added = curate.read_json(source).write_parquet(out, backend="inline", max_bad_rows=1)
        assert added.books.quarantined == 1
    told = [one for one in logs if "nothing but nulls" in one["event"]]
    assert [(one["columns"], Path(one["first_file"]).name) for one in told] == [(["b"], "a.jsonl")]
    assert curate.read_json(source, schema=pa.schema([("b", pa.int64())])).take_all() == [{"b": None}, {"b": 5}]


def test_new_inputs_that_a_limit_leaves_out_are_told(tmp_path: Path) -> None:
    """Those before the last one that it took rows of: with them, it would have taken others."""
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for name in "bcd":
        (source / f"{name}.jsonl").write_text('{"id": 1}\n{"id": 2}\n')

    def told() -> list[int]:
        with capture_logs() as logs:
            assert curate.read_json(source).limit(3).write_parquet(out, backend="inline").books.rows_out == 3
        return [one["inputs"] for one in logs if "new inputs are not read" in one["event"]]

    assert told() == []
    (source / "e.jsonl").write_text('{"id": 1}\n')
    assert told() == []
    (source / "a.jsonl").write_text('{"id": 1}\n')
    assert told() == [1]
