"""A job of which no row can be written is taken back, but for the stages that it has with another format, too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import curate
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.observe import registry
from tests.job.inline import write_jsonl


def tokens(row: dict[str, Any]) -> dict[str, Any]:
    """Nobody knows what it returns before it has run; memmap takes no text."""
    told = os.environ.get("TOKENS_OF_TEST")
    if told == "none" or (told == "some" and row["body"][0] == "b"):
        raise ValueError("none today")
    return {"tokens": row["body"]}


class Mapped(curate.Job):
    version = "1"

    def build(self, ds: Dataset) -> Dataset:
        return ds.map(tokens)


class Sorted(curate.Job):
    version = "1"

    def build(self, ds: Dataset) -> Dataset:
        return ds.sort("body").map(tokens)


def left(output: Path) -> set[str]:
    return {str(path.relative_to(output)) for path in output.rglob("*")}


@pytest.mark.parametrize("job", [Mapped, Sorted])
def test_a_job_whose_first_rows_cannot_be_written_leaves_only_stages(job: type[curate.Job], tmp_path: Path) -> None:
    """Whichever stage finds that: no folder is left, the list of jobs has it no more, and it is not in the way."""
    write_jsonl(tmp_path / "in" / "a.jsonl", b'{"body":"b"}\n{"body":"a"}\n')
    told = {"input": tmp_path / "in", "output": tmp_path / "out", "backend": "inline"}
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"memmap has one column 'tokens' of .*, found tokens: string;"):
            job(format="memmap").run(**told)
        there = left(tmp_path / "out")
        assert job is Sorted or not there
        assert {one for one in there if not one.startswith("_curate/stages/")} <= {"_curate", "_curate/stages"}
        assert not registry.list_jobs()
    assert job(format="jsonl").run(**told).state == "complete"


@pytest.mark.slow
@pytest.mark.usefixtures("no_backoff")
def test_a_job_that_an_earlier_run_has_planned_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What that run has told is not this one's to remove: why its shards failed."""
    write_jsonl(tmp_path / "in" / "a.jsonl", b'{"body":"b"}\n{"body":"a"}\n')
    told = {"input": tmp_path / "in", "output": tmp_path / "out", "backend": "inline"}
    monkeypatch.setenv("TOKENS_OF_TEST", "none")
    assert Sorted(format="memmap").run(**told).state == "failed"
    before = left(tmp_path / "out")
    monkeypatch.delenv("TOKENS_OF_TEST")
    with pytest.raises(ConfigError, match="memmap has one column"):
        Sorted(format="memmap").run(**told)
    assert before <= left(tmp_path / "out")
    assert [one["job"] for one in registry.list_jobs()] == ["sorted"]


class Once(curate.Job):
    """Reads its inputs again at last: what it keeps, a stage before has told."""

    version = "1"

    def build(self, ds: Dataset) -> Dataset:
        return ds.map(tokens).dedup_exact("tokens")


@pytest.mark.usefixtures("no_backoff")
def test_bytes_of_a_job_that_came_to_a_stage_before_are_those_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {}
    for name in "ab":
        path = write_jsonl(tmp_path / "in" / f"{name}.jsonl", b'{"body":"' + name.encode() * 90 + b'"}\n')
        sizes[name] = path.stat().st_size
    monkeypatch.setenv("TOKENS_OF_TEST", "some")
    ended = Once().run(input=tmp_path / "in", output=tmp_path / "out", backend="inline")
    assert (ended.state, ended.stages[-1].done, ended.bytes_in) == ("failed", 0, ended.stages[0].bytes_in)
    monkeypatch.delenv("TOKENS_OF_TEST")
    ended = Once().run(input=tmp_path / "in", output=tmp_path / "out", backend="inline")
    assert (ended.state, ended.bytes_in) == ("complete", sum(sizes.values()))
