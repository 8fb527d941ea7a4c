"""Rows that user code sets aside are recorded with their line, or row, in the file, as rows that cannot be read are."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
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


def crashing_at_nine(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] % 10 == 9:
        raise curate.BadRow("nine")
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


@pytest.mark.quick(1)
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


def places(out: Path, reason: str) -> list[tuple[str, int, str]]:
    """Shard, line and place in words of the rows that were set aside for a reason."""
    found = quarantined(find_job(str(out)))
    return [(shard, row.line, row.at) for shard, row in found if row.reason == reason]


@pytest.mark.parametrize("size", [None, 1])
def test_after_a_step_that_drops_rows(tmp_path: Path, size: int | None) -> None:
    """The line is not known: the row has the number that it had for the step, in an actor as well."""
    (tmp_path / "a.jsonl").write_bytes(mixed())
    compute = curate.ActorPool(size=size) if size else None
    ds = curate.read_json(tmp_path / "a.jsonl").filter(curate.col("n") > 3).map(raising, compute=compute)
    ds.write_parquet(tmp_path / "out", backend="inline", max_bad_rows="100%")
    wanted = [("a", 0, f"row {n - 3} of the shard, as given to map(raising)") for n in range(7, 100, 10)]
    assert places(tmp_path / "out", "seven") == wanted


class Parted(curate.RowsJob):
    """Rows from `least`, those of which a seven is the end set aside; of the same rows, an extra output."""

    version = "1"
    sides = ("low",)
    max_bad_rows = "100%"
    least: int = 0

    def build(self, ds: curate.Dataset) -> Any:
        shared = ds.filter(curate.col("n") >= self.least) if self.least else ds.with_column("m", curate.col("n") * 2)
        return {"main": shared.map(raising), "low": shared.filter(curate.col("n") < 50)}


def test_behind_steps_that_an_extra_output_shares(tmp_path: Path) -> None:
    """As in one pipeline: its line if these keep all rows, else its number among those that the step is given."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(mixed())
    assert run_job(Parted(), tmp_path / "in", tmp_path / "all").state == "complete"
    assert places(tmp_path / "all", "seven") == [("a", line, "") for line in lines_of(tmp_path / "in" / "a.jsonl")]
    assert run_job(Parted(least=4), tmp_path / "in", tmp_path / "some").state == "complete"
    wanted = [("a", 0, f"row {n - 3} of the shard, as given to map(raising)") for n in range(7, 100, 10)]
    assert places(tmp_path / "some", "seven") == wanted


def test_after_an_exchange(tmp_path: Path) -> None:
    """The row has its number in the shard that it is in now."""
    (tmp_path / "a.jsonl").write_bytes(mixed())
    sorted_ = curate.read_json(tmp_path / "a.jsonl").sort("n", descending=True).map(raising)
    sorted_.write_parquet(tmp_path / "out", backend="inline", max_bad_rows="100%")
    wanted = [("part-00000-of-00001", 0, f"row {100 - n} of the shard") for n in range(97, 0, -10)]
    assert places(tmp_path / "out", "seven") == wanted


@pytest.mark.slow
def test_before_an_exchange(tmp_path: Path) -> None:
    """A shard has several files there: the line is that of the file, which is named."""
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(mixed())
    ds = curate.read_json([tmp_path / "a.jsonl", tmp_path / "b.jsonl"]).map(raising).filter(curate.col("n") > 3)
    ds = ds.map(crashing_at_nine, isolate=True).sort("n")
    ds.write_parquet(tmp_path / "out", backend="inline", max_bad_rows="100%", keep_stages=True)
    (stage,) = (one for one in (tmp_path / "out" / "_curate" / "stages").iterdir() if one.is_dir())
    lines = lines_of(tmp_path / "a.jsonl")
    wanted = [(line, f"line {line} of {tmp_path / name}.jsonl") for name in "ab" for line in lines]
    assert [found[1:] for found in places(stage, "seven")] == wanted
    step = "as given to map(crashing_at_nine, isolate=True)"
    assert places(stage, "nine")[0][1:] == (0, f"row 5 of {tmp_path}/a.jsonl, {step}")
    malformed = [row.at for _, row in quarantined(find_job(str(stage))) if "malformed" in row.reason]
    assert malformed[0] == f"line 15 of {tmp_path}/a.jsonl"
    assert malformed[-1].endswith(f" of {tmp_path}/b.jsonl")


class Quarantining(curate.Job):
    version = "1"
    batch_size = 10
    max_bad_rows = "100%"
    known: bool = True

    def process(self, batch: pa.Table) -> pa.Table:
        for at, row in enumerate(batch.to_pylist()):
            if row["n"] % 10 == 3:
                raise curate.BadRow("three", at)
            if row["n"] % 10 == 7:
                self.quarantine(row, "seven", at if self.known else None)
        return batch.filter(pc.not_equal(pc.bit_wise_and(batch["n"], 0), 1))


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_a_job_that_quarantines_rows(tmp_path: Path, known: bool) -> None:
    """By their positions in the batch, rows that were taken out of it counted too; else the lines of the batch."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(mixed())
    assert run_job(Quarantining(known=known), tmp_path / "in", tmp_path / "out").books.quarantined == 20 + 11
    lines = lines_of(tmp_path / "in" / "a.jsonl")
    found = places(tmp_path / "out", "seven")
    if known:
        assert found == [("a", line, "") for line in lines]
    else:
        assert found[:2] == [("a", 0, "lines 2 to 16 of the shard"), ("a", 0, "lines 17 to 31 of the shard")]


class Records(curate.FileJob):
    version = "1"

    def process_file(self, file: Any) -> Any:
        for at, line in enumerate(file.open().read().splitlines()):
            if line == b"bad":
                self.quarantine({"line": line.decode()}, "bad", at)
            else:
                yield {"line": line.decode()}


def test_a_job_of_files(tmp_path: Path) -> None:
    """The position is that in the file."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.dat").write_bytes(b"one\nbad\nthree\nbad\n")
    run_job(Records(), tmp_path / "in", tmp_path / "out")
    assert places(tmp_path / "out", "bad") == [("a.dat", 2, ""), ("a.dat", 4, "")]


def test_a_position_that_there_is_not(tmp_path: Path) -> None:
    """It is a defect of the job, and says which positions there are."""

    class Wrong(curate.Job):
        version = "1"

        def process(self, batch: pa.Table) -> pa.Table:
            self.quarantine({}, "wrong", len(batch))
            return batch

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"n": 1}\n')
    ended = run_job(Wrong(), tmp_path / "in", tmp_path / "out")
    (failure,) = ended.failures
    assert "position=1: expected the position of a row in the batch, 0 to 0" in str(failure)


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
