"""What is lost of a ledger is told: no look shows fewer shards, failures or bad rows than there were without a word."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import curate
from curate.errors import ConfigError, CorruptInput
from curate.job.job import Job
from curate.ledger import layout
from curate.ledger.compression import compress
from curate.observe.browse import quarantined
from curate.observe.failures import read_failures
from curate.observe.job import find_job, read_status
from curate.observe.verify import OK, verify
from tests.job.inline import run_job, write_jsonl

NOW = 1.0e9


class Picky(Job):
    """Fails of one row."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        if "fail" in batch["id"].to_pylist():
            raise ValueError("no")
        return batch


def run(folder: Path) -> None:
    run_job(Picky(max_bad_rows=2), folder / "in", folder / "out")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a job whose plan has three parts, with a bad row, and a shard that failed."""
    write_jsonl(tmp_path / "in" / "a.jsonl", b'{"id": "a"}\n{broken\n')
    run(tmp_path)
    write_jsonl(tmp_path / "in" / "b.jsonl", [{"id": "b"}])
    run(tmp_path)
    write_jsonl(tmp_path / "in" / "c.jsonl", [{"id": "fail"}])
    run(tmp_path)
    assert read_failures(str(tmp_path / "out")).failed.sum() == 1
    return tmp_path


LOOKS: list[Callable[[str], object]] = [lambda out: read_status(out, NOW), read_failures, verify, find_job]


@pytest.mark.quick(1)
@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_part_of_the_plan_that_is_gone_is_told_by_every_look(folder: Path, part: int) -> None:
    """Also the last one, which no number of another part gives away. A run with all inputs plans its shards anew."""
    out = folder / "out"
    (out / layout.plan_part(part)).unlink()
    for look in LOOKS:
        with pytest.raises(
            ConfigError, match=r"names 2 shards, and the job had 3: a part of the plan is missing.* run"
        ):
            look(str(out))
    write_jsonl(folder / "in" / "c.jsonl", [{"id": "good"}])
    run(folder)
    status = read_status(str(out), NOW)
    assert (status.total, status.done, verify(str(out)).state) == (3, 3, OK)


def test_the_plan_of_a_complete_job_that_is_gone_is_told(folder: Path) -> None:
    """By its summary, without a heartbeat too; it is not shown as a job that is not planned yet."""
    out = folder / "out"
    write_jsonl(folder / "in" / "c.jsonl", [{"id": "good"}])
    run_job(Picky(max_bad_rows=2), folder / "in", out, redo_stale=True)
    for one in (*out.glob("_curate/plan/*"), *out.glob("_curate/runs/*/heartbeat.json")):
        one.unlink()
    with pytest.raises(ConfigError, match="names 0 shards, and the job had 3"):
        read_status(str(out), NOW)


@pytest.mark.parametrize("data", [b"", b"junk"])
def test_a_damaged_plan_is_overwritten_with_the_rest(folder: Path, data: bytes) -> None:
    """It is the remedy that the refusal names: the records of outputs say that they are the job's."""
    out = folder / "out"
    (out / layout.plan_part(0)).write_bytes(data)
    with pytest.raises(ConfigError, match="the ledger is damaged: choose another output, or start over with"):
        run(folder)
    (folder / "in" / "a.jsonl").unlink()
    write_jsonl(folder / "in" / "c.jsonl", [{"id": "good"}])
    run_job(Picky(max_bad_rows=2), folder / "in", out, overwrite=True, yes=True)
    assert [one.name.partition(".")[0] for one in sorted(out.glob("*.parquet"))] == ["b", "c"]
    assert verify(str(out)).state == OK


@pytest.mark.quick(1)
@pytest.mark.ci(4)
@pytest.mark.parametrize("data", [b"junk", b"[]", b'{"job": 1}', b"{}"])
@pytest.mark.parametrize("exchange", [False, True])
def test_a_damaged_job_is_overwritten_with_the_rest(folder: Path, data: bytes, exchange: bool) -> None:
    """It is the remedy that each refusal names: the plan says which outputs there are, and their records whose."""
    out = folder / "out"
    rows = curate.read_json(str(folder / "in" / "b.jsonl"))
    if exchange:
        out = folder / "sorted"
        rows.sort("id").write_parquet(out, backend="inline")
    (out / "notes.txt").write_text("mine")
    (out / layout.JOB).write_bytes(data)
    refusal = "the ledger is damaged: choose another output, or start over with overwrite=True"
    for look in (*LOOKS, lambda at: rows.write_parquet(at, backend="inline")):
        with pytest.raises(ConfigError, match=refusal):
            look(str(out))
    rows.filter(pc.field("id") == "good").write_parquet(out, backend="inline", overwrite=True, yes=True)
    assert [one.name for one in sorted(out.glob("*.*"))] == ["b.parquet", "notes.txt"]
    assert read_status(str(out), NOW).state == "complete"


@pytest.mark.quick(1)
@pytest.mark.parametrize("exchange", [False, True])
def test_a_damaged_summary_costs_no_output(folder: Path, exchange: bool) -> None:
    """It says what outputs say: each refusal has it removed, and not all of them made anew; that mends it."""
    out, rows = folder / "copied", curate.read_json(str(folder / "in" / "b.jsonl"))
    write = partial((rows.sort("id") if exchange else rows).write_parquet, out, backend="inline")
    write()
    before = {one.name: one.read_bytes() for one in out.glob("*.parquet")}
    (out / layout.SUMMARY).write_bytes((out / layout.SUMMARY).read_bytes()[:50])
    for look in (lambda at: read_status(at, NOW), lambda _: write()):
        with pytest.raises(ConfigError, match="remove this file and run the job again, which makes no output anew"):
            look(str(out))
    (out / layout.SUMMARY).unlink()
    ended = write()
    assert (ended.state, ended.attempts, read_status(str(out), NOW).state) == ("complete", 0, "complete")
    assert {one.name: one.read_bytes() for one in out.glob("*.parquet")} == before


def test_files_of_others_and_shards_that_were_taken_out_are_no_damage(folder: Path) -> None:
    """A plan of which shards were taken out has no fewer than it ever had; a run that was asked for less tells less."""
    out = folder / "out"
    (folder / "in" / "a.jsonl").unlink()
    (folder / "in" / "c.jsonl").unlink()
    run_job(Picky(max_bad_rows=2), folder / "in", out, drop_removed=True)
    (out / "notes.txt").write_text("mine")
    assert read_status(str(out), NOW).total == 1


@pytest.mark.parametrize("complete", [False, True])
def test_a_file_of_bad_rows_that_is_gone_is_told(
    folder: Path, complete: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where it was the only one."""
    if complete:
        write_jsonl(folder / "in" / "c.jsonl", [{"id": "good"}])
        run_job(Picky(max_bad_rows=2), folder / "in", folder / "out", redo_stale=True)
    [file] = (folder / "out" / layout.QUARANTINE).iterdir()
    file.unlink()
    assert list(quarantined(find_job(str(folder / "out")))) == []
    said = "".join(capsys.readouterr())
    assert "a file of quarantined rows is missing" in said
    assert file.name in said


@pytest.mark.parametrize("data", [b"", compress(b"")])
def test_a_file_of_bad_rows_without_any_is_told(folder: Path, data: bytes) -> None:
    """One is written only of rows that there are."""
    [file] = (folder / "out" / layout.QUARANTINE).iterdir()
    file.write_bytes(data)
    with pytest.raises(CorruptInput, match="it has none, and at least one was set aside"):
        list(quarantined(find_job(str(folder / "out"))))


@pytest.mark.quick(1)
@pytest.mark.parametrize("cut", [0, 100])
def test_a_damaged_list_of_inputs_is_refused(folder: Path, cut: int) -> None:
    """By a run, with its name and the next step; it was an error of Arrow's. Starting over writes it anew."""
    out = folder / "sorted"
    rows = curate.read_json(str(folder / "in" / "b.jsonl")).sort("id")
    rows.write_parquet(out, backend="inline")
    [file] = (out / layout.INPUTS).iterdir()
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ConfigError, match=f"{file.name} is not a list of inputs .*damaged: .* start over"):
        rows.write_parquet(out, backend="inline")
    rows.write_parquet(out, backend="inline", overwrite=True, yes=True)
    assert verify(str(out)).state == OK


def test_the_plan_of_a_job_with_an_exchange_that_is_gone_is_told(folder: Path) -> None:
    """Its runs count the shards of the stage that they are at; those of the last one are beside them."""
    out = folder / "sorted"
    rows = curate.read_json(str(folder / "in" / "b.jsonl")).sort("id")
    rows.write_parquet(out, backend="inline")
    (out / layout.SUMMARY).unlink()
    (out / layout.plan_part(0)).unlink()
    with pytest.raises(ConfigError, match="names 0 shards, and the job had 1"):
        read_status(str(out), NOW)
    rows.write_parquet(out, backend="inline")
    assert verify(str(out)).state == OK


def test_a_damaged_heartbeat_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What its run failed of is counted from the ledger's other files."""
    beats = list((folder / "out").glob("_curate/runs/*/heartbeat.json"))
    for one in beats:
        one.write_bytes(one.read_bytes()[:50])
    assert read_status(str(folder / "out"), NOW).failed == 1
    said = "".join(capsys.readouterr())
    assert said.count("cannot read the last state of a run") == len(beats) == 3
