"""Rows that user code sets aside are recorded with their line, or row, in the file, as rows that cannot be read are."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate
from curate.objects.bad_line import RowNumbers
from curate.observe.browse import quarantined
from curate.observe.job import find_job
from tests.job.inline import run_job


def raising(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] % 10 == 7:
        raise curate.BadRow("seven")
    return row


def crashing(row: dict[str, Any]) -> dict[str, Any]:
    import os

    if row["n"] % 10 == 7:
        os._exit(1)
    return row


class Picky(curate.TextJob):
    version = "1"
    batch_size = 16
    max_bad_rows = "100%"

    def process(self, batch: pa.Table) -> pa.Table:
        for at, text in enumerate(batch[self.text_column].to_pylist()):
            if text.endswith("7"):
                raise curate.BadRow("seven", at)
        return batch


def positions(out: Path) -> list[tuple[int, str]]:
    """Line and reason of all rows that were set aside, in the order of the quarantine."""
    return [(row.line, row.reason) for _, row in quarantined(find_job(str(out)))]


def lines_of(path: Path) -> list[int]:
    """The lines of the file whose number ends in a seven, as an editor counts them."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [number for number, line in enumerate(data.splitlines(), 1) if line.rstrip().endswith((b"7}", b'7"}'))]


def mixed(value: Any = lambda n: n) -> bytes:
    """A hundred rows; blank lines and lines that are none among them, before and behind those that are bad."""
    import orjson

    made = []
    for n in range(100):
        made += (
            [orjson.dumps({"n": value(n)})]
            + ([b"", b"  "] if n % 6 == 0 else [])
            + ([b"nothing"] if n % 9 == 8 else [])
        )
    return b"\n".join([b"", *made])


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize("isolate", [False, True])
def test_lines_of_a_dataset(tmp_path: Path, name: str, isolate: bool) -> None:
    """Behind steps that keep rows; those of a read that failed stay where they were."""
    (tmp_path / "in").mkdir()
    data = mixed()
    (tmp_path / "in" / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    ds = curate.read_json(tmp_path / "in").with_column("m", curate.col("n") * 2)
    ds = ds.map(crashing, isolate=True) if isolate else ds.map(raising)
    ended = ds.write_parquet(tmp_path / "out", backend="inline", max_bad_rows="100%")
    assert (ended.state, ended.books.quarantined) == ("complete", 10 + 11)
    mine = [line for line, reason in positions(tmp_path / "out") if "malformed" not in reason]
    assert mine == lines_of(tmp_path / "in" / name)


def test_behind_a_step_that_drops_rows(tmp_path: Path) -> None:
    """It is not known, and nothing is made up."""
    (tmp_path / "a.jsonl").write_bytes(mixed())
    ds = curate.read_json(tmp_path / "a.jsonl").filter(curate.col("n") > 3).map(raising)
    ds.write_parquet(tmp_path / "out", backend="inline", max_bad_rows="100%")
    assert [line for line, reason in positions(tmp_path / "out") if reason == "seven"] == [0] * 10
    sorted_ = curate.read_json(tmp_path / "a.jsonl").sort("n").map(raising)
    sorted_.write_parquet(tmp_path / "sorted", backend="inline", max_bad_rows="100%")
    assert [line for line, reason in positions(tmp_path / "sorted") if reason == "seven"] == [0] * 10


def test_lines_of_a_job(tmp_path: Path) -> None:
    """Whose batches hold several bad rows: what is left of a batch is processed again, and the numbers stay."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(mixed(str))
    ended = run_job(Picky(text_column="n", id_column="n"), tmp_path / "in", tmp_path / "out")
    assert ended.books.quarantined == 10 + 11
    mine = [line for line, reason in positions(tmp_path / "out") if reason == "seven"]
    assert mine == lines_of(tmp_path / "in" / "a.jsonl")


def test_rows_of_other_formats(tmp_path: Path) -> None:
    """A row of a table counts from 1, a line of a text as well."""
    table = pa.table({"n": range(40)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=9)
    (tmp_path / "a.csv").write_text("n\n" + "".join(f"{n}\n" + ("1,2\n" if n % 10 == 5 else "") for n in range(40)))
    (tmp_path / "a.txt").write_bytes(b"".join(b"%d\n\n" % n + (b"\xff\n" if n % 10 == 5 else b"") for n in range(40)))
    for read, name, expected in (
        (curate.read_parquet, "a.parquet", [8, 18, 28, 38]),
        (curate.read_csv, "a.csv", [9, 20, 31, 42]),
        (curate.read_text, "a.txt", [16, 37, 58, 79]),
    ):
        ds = read(tmp_path / name)
        ds = ds.map(lambda row: {"n": raising({"n": int(row["text"])})["n"]}) if name == "a.txt" else ds.map(raising)
        ds.write_json(tmp_path / "out" / name, backend="inline", max_bad_rows="100%")
        assert [line for line, reason in positions(tmp_path / "out" / name) if reason == "seven"] == expected


def test_in_a_pool(tmp_path: Path) -> None:
    """What an actor sets aside has the same line."""
    (tmp_path / "a.jsonl").write_bytes(mixed())
    ds = curate.read_json(tmp_path / "a.jsonl").map(raising, compute=curate.ActorPool(size=2))
    ds.write_parquet(tmp_path / "out", backend="inline", max_bad_rows="100%")
    mine = [line for line, reason in positions(tmp_path / "out") if reason == "seven"]
    assert mine == lines_of(tmp_path / "a.jsonl")


def test_numbers_in_any_order() -> None:
    """As blank lines and bad rows of a block are told: one kind after the other."""
    numbers = RowNumbers()
    for other in (7, 2, 3, 9, 1):
        numbers.add(other)
    assert [numbers.number(index) for index in range(5)] == [4, 5, 6, 8, 10]
    assert (numbers.last, len(numbers)) == (9, 5)
