"""A job run in three lines."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import math
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import curate
from curate.errors import BadRow, ConfigError
from curate.job.job import Job
from curate.job.params import param
from curate.job.shapes import FileJob
from curate.testing.clock import FakeClock
from curate.testing.local import run_local


class Longer(Job):
    """Keep texts of some length, note how long they are."""

    version = "1"
    least: int = param(3, help="characters")

    def process(self, batch: pa.Table) -> pa.Table:
        for row in batch.to_pylist():
            if row["text"] == "aside":
                self.quarantine(row, "asked for it")
        batch = batch.filter(pc.not_equal(batch["text"], "aside"))
        length = pc.utf8_length(batch["text"])
        kept = batch.append_column("length", length).filter(pc.greater_equal(length, self.least))
        self.drop(len(batch) - len(kept), "short")
        return kept


ROWS = [{"id": n, "text": text} for n, text in enumerate(["a", "abc", "aside", "abcdef"])]


def test_what_is_shown_of_a_result_has_no_bytes_of_its_outputs() -> None:
    """As in a notebook, or where an assertion of a test fails: all bytes of all files were printed."""
    ran = run_local(Longer, ROWS)
    assert ran.outputs
    assert not any(repr(one) in repr(ran) for one in ran.outputs.values())
    assert repr(ran.summary) in repr(ran)


def test_rows_in_rows_out() -> None:
    """With the books, the rows that were set aside, and the outputs as they were published."""
    ran = run_local(Longer, ROWS)
    assert ran.rows == [{"id": 1, "text": "abc", "length": 3}, {"id": 3, "text": "abcdef", "length": 6}]
    assert ran.table.schema.field("length").type == pa.int32()
    assert ran.summary.state == "complete"
    assert ran.summary.books.rows() | {"dropped": None} == {
        "in": 4,
        "created": 0,
        "out": 2,
        "dropped": None,
        "quarantined": 1,
    }
    assert ran.summary.books.dropped == {"short": 1}
    assert [(row["reason"], json.loads(row["row"])["id"]) for row in ran.quarantine] == [("asked for it", 2)]
    assert list(ran.outputs) == ["rows.parquet"]
    assert ran.outputs["rows.parquet"].startswith(b"PAR1")


def test_parameters_and_options() -> None:
    """An instance has its parameters; what `Job.run` takes goes here too."""
    assert run_local(Longer(least=6), pa.Table.from_pylist(ROWS)).table["text"].to_pylist() == ["abcdef"]
    files = {f"{n}.jsonl": b'{"text": "abcd"}\n' for n in range(3)}
    assert list(run_local(Longer(), files=files, limit=2).outputs) == ["0.parquet", "1.parquet"]


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_outputs_of_json_lines_are_a_table_too(codec: str) -> None:
    """Whatever their codec, shards without rows included."""
    lines = gzip.compress(b'{"text": "abcd", "id": 1}\nno json\n')
    ran = run_local(Longer(format="jsonl", codec=codec), files={"b/x.jsonl.gz": lines, "a.jsonl": b""})
    assert ran.rows == [{"text": "abcd", "id": 1, "length": 4}]
    assert len(ran.outputs) == 2
    assert len(ran.quarantine) == 1


VALUES = {
    "a long text": ["x" * 3_000_000, "y"],
    "date": [dt.date(2024, 1, 1), None],
    "time": [dt.time(1, 2, 3), None],
    "timestamp": pa.array([dt.datetime(2024, 1, 1), None], pa.timestamp("ms", "Europe/Berlin")),
    "duration": pa.array([1, None], pa.duration("ns")),
    "decimal": pa.array([1, None], pa.decimal128(5, 2)),
    "float": [math.inf, None],
    "bytes": [b"\xff\x00", b"text"],
    "dictionary": pa.array(["a", "b"]).dictionary_encode(),
    "small integers": pa.array([1, None], pa.uint8()),
    "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
    "list of dates": [[dt.date(2024, 1, 1)], []],
    "nested": [{"a": [b"\xff"], "b": None}, None],
}
NO_CSV = ("bytes", "map", "list of dates", "nested")


class Copy(Job):
    """Write rows as they are."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_rows_are_those_that_were_written(format: str) -> None:
    """Of each type, in each format that has it."""
    table = pa.table({kind: values for kind, values in VALUES.items() if format != "csv" or kind not in NO_CSV})
    ran = run_local(Copy(format=format), table)
    assert (ran.summary.state, ran.rows) == ("complete", table.to_pylist())


@pytest.mark.parametrize("format", ["memmap", "megatron", "datatrove", "mds"])
def test_outputs_of_tokens_are_no_table(format: str) -> None:
    """They are there as they were published; what asks for rows is told so."""
    ran = run_local(Copy(format=format), pa.table({"tokens": pa.array([[1, 2]], pa.list_(pa.uint16()))}))
    assert ran.summary.state == "complete"
    assert ran.outputs
    with pytest.raises(ConfigError, match="no table, but tokens alone; look at `outputs`"):
        assert ran.rows


def test_files_for_jobs_that_read_files() -> None:
    """By name, whatever they hold."""

    class Lengths(FileJob):
        version = "1"
        output_schema = pa.schema([("name", pa.string()), ("size", pa.int64())])

        def process_file(self, file):  # type: ignore[no-untyped-def]
            with file.open() as stream:
                yield pa.table(
                    {"name": [file.uri.rpartition("/")[2]], "size": [len(stream.read())]}, schema=self.output_schema
                )

    ran = run_local(Lengths, files={"x.bin": b"123", "y/z.bin": b""})
    assert sorted(ran.table["size"].to_pylist()) == [0, 3]


def test_failures_do_not_raise_and_nobody_waits() -> None:
    """Retries take no time; the summary says what failed."""

    class Poisoned(Longer):
        def process(self, batch: pa.Table) -> pa.Table:
            if "poison" in batch["text"].to_pylist():
                raise ZeroDivisionError
            return super().process(batch)

    clock = FakeClock()
    files = {"bad.jsonl": b'{"text": "poison"}\n', "good.jsonl": b'{"text": "good"}\n'}
    ran = run_local(Poisoned, files=files, clock=clock)
    assert (ran.summary.state, ran.summary.failed) == ("failed", 1)
    assert ran.table["text"].to_pylist() == ["good"]
    assert sum(clock.sleeps) > 1


def test_a_job_that_makes_no_row() -> None:
    """Has a table all the same, and what was bad is told."""

    class Nothing(Job):
        version = "1"

        def process(self, batch: pa.Table) -> pa.Table:
            if len(batch):
                raise BadRow("none is good", 0)
            return batch

    ran = run_local(Nothing(max_bad_rows="100%"), ROWS[:1])
    assert (ran.summary.state, len(ran.table), ran.rows) == ("complete", 0, [])
    assert [row["reason"] for row in ran.quarantine] == ["none is good"]


def test_a_directory_stays_and_is_resumed(tmp_path: Path) -> None:
    """Without one, nothing stays; the user's list of jobs is never touched."""
    os.environ["CURATE_HOME"] = str(tmp_path / "home")
    first = run_local(Longer, ROWS, directory=tmp_path / "work")
    again = run_local(Longer, ROWS, directory=tmp_path / "work")
    assert (first.summary.attempts, again.summary.attempts, again.summary.skipped) == (1, 0, 1)
    assert again.outputs == first.outputs
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("rows", [[{"id": 1}, {"id": 2, "text": "a"}], [{"id": 1, "text": "a"}, {"id": 2}], [{}]])
def test_rows_are_taken_as_from_items_takes_them(rows: list[dict[str, Any]]) -> None:
    """Of other rows a column would go without a word, and the test would be one of other rows."""
    with pytest.raises(ConfigError) as theirs:
        curate.from_items(rows)
    with pytest.raises(ConfigError, match="key") as ours:
        run_local(Longer, rows)
    assert str(ours.value) == str(theirs.value).replace("from_items", "run_local")


def test_rows_that_are_none() -> None:
    with pytest.raises(ConfigError, match="takes rows as dictionaries, or a table; found str"):
        run_local(Longer, ["a"])  # type: ignore[list-item]


def test_one_kind_of_input() -> None:
    """Neither none nor both."""
    for given in ({}, {"rows": ROWS, "files": {"x.jsonl": b""}}):
        with pytest.raises(ConfigError, match="one of the two"):
            run_local(Longer, **given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no parameter 'lest'"):
        run_local(Longer(lest=3), ROWS)
