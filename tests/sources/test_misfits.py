"""Parquet files that will not be read are told of before anything runs, as far as some of them show."""

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
from curate.job.job import Job
from curate.sources.columns import MORE_FILES
from tests.support.writes import failed_write

TOLD = "some inputs have other columns than the first one; their shards will fail"
ALL = {"text": ["a", "b"], "n": [1, 2]}


def written(folder: Path, last: dict[str, list[Any]], files: int = 3) -> str:
    """Writes files that are alike, and a last one; returns what names them all."""
    folder.mkdir()
    for number in range(files - 1):
        pq.write_table(pa.table(ALL), folder / f"{number:03}.parquet")
    pq.write_table(pa.table(last), folder / f"{files - 1:03}.parquet")
    return f"{folder}/*.parquet"


class Kept(Job):
    """All columns."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


class Sorted(Job):
    """The same, sorted."""

    version = "1"

    def build(self, ds: Dataset) -> Dataset:
        return ds.sort("text")


class Text(Kept):
    """One of them, by name."""

    columns = {"text": pa.string()}  # noqa: RUF012


def same(ds: Dataset) -> Dataset:
    return ds.map_batches(lambda batch: batch, batch_format="pyarrow")


WRITES: dict[str, Callable[[Dataset], Dataset]] = {
    "steps": same,
    "sorted": lambda ds: same(ds).sort("text"),
    "shuffled": lambda ds: ds.random_shuffle(seed=1),
}
LASTS: list[tuple[dict[str, list[Any]], str]] = [
    (ALL, ""),
    ({"n": [1], "text": ["a"]}, ""),
    ({**ALL, "more": [1, 2]}, "column 'more' is in this file only"),
    ({"text": ["a"], "n": ["x"]}, "column 'n' is string, expected int64"),
    ({"text": [], "n": pa.array([], pa.string())}, ""),
]


@pytest.mark.ci(7)
@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize(("last", "wrong"), LASTS, ids=["same", "order", "more", "type", "no rows"])
def test_a_dataset_is_told_of_what_its_shards_will_say(
    last: dict[str, list[Any]], wrong: str, how: str, tmp_path: Path
) -> None:
    ds = WRITES[how](curate.read_parquet(written(tmp_path / "in", last)))
    with capture_logs() as logs:
        if wrong:
            failed_write(lambda: ds.write_parquet(tmp_path / "out", backend="inline"))
        else:
            ds.write_parquet(tmp_path / "out", backend="inline")
    told = [one for one in logs if one["event"] == TOLD]
    assert [one["found"] for one in told] == (["1 of 2 that were looked at"] if wrong else [])
    assert all(f"002.parquet: {wrong}" in one["error"] for one in told)


@pytest.mark.quick(1)
@pytest.mark.parametrize("how", WRITES)
def test_columns_that_nobody_reads_are_no_matter(how: str, tmp_path: Path) -> None:
    ds = curate.read_parquet(written(tmp_path / "in", {"text": ["c"], "n": ["x"], "more": [1]}))
    with capture_logs() as logs:
        WRITES[how](ds.select_columns(["text"])).write_parquet(tmp_path / "out", backend="inline")
    assert not [one for one in logs if one["event"] == TOLD]


@pytest.mark.ci(7)
@pytest.mark.parametrize(("last", "wrong"), LASTS, ids=["same", "order", "more", "type", "no rows"])
@pytest.mark.parametrize("job", [Kept, Sorted, Text])
def test_a_job_is_told_of_what_its_shards_will_say(
    job: type[Job], last: dict[str, list[Any]], wrong: str, tmp_path: Path
) -> None:
    fails = bool(wrong) and job is not Text
    with capture_logs() as logs:
        ended = job().run(input=written(tmp_path / "in", last), output=str(tmp_path / "out"), backend="inline")
    assert (ended.failed == 1) == fails
    assert len([one for one in logs if one["event"] == TOLD]) == fails


def test_it_is_told_once_and_few_files_are_looked_at(tmp_path: Path) -> None:
    """The columns of a job that was begun are known, and no further file is looked into."""
    given = written(tmp_path / "in", {**ALL, "more": [1, 2]}, files=50)
    events = []
    for _ in range(2):
        with capture_logs() as logs:
            Kept().run(input=given, output=str(tmp_path / "out"), backend="inline")
        events += [one["found"] for one in logs if one["event"] == TOLD]
    assert events == [f"1 of {MORE_FILES} that were looked at"]
