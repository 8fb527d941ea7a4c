"""Columns that a format has no place for: where they are known before any row is read, nothing is read or written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate
from curate.errors import ConfigError
from jobs.filter import Filter
from jobs.shuffle import Shuffle
from jobs.threads import Threads

Written = Callable[[Path, Path], Any]


def by_job(job: curate.Job) -> Written:
    return lambda source, out: job.run(input=str(source), output=str(out), backend="inline")


class Sided(curate.Job):
    """Has an extra output, whose columns it declares."""

    version = "1"
    columns = ("id",)
    sides = {"odd": pa.schema([("list", pa.list_(pa.int64()))])}  # noqa: RUF012

    def build(self, ds: curate.Dataset) -> dict[str, curate.Dataset]:
        ds = ds.sort("id")
        return {"main": ds, "odd": ds.map(lambda _: {"list": [1]})}


WAYS: dict[str, Written] = {
    "rows": lambda source, out: curate.read_parquet(source).write_csv(out, backend="inline"),
    "sorted rows": lambda source, out: curate.read_parquet(source).sort("id").write_csv(out, backend="inline"),
    "array": lambda source, out: curate.read_parquet(source).sort("id").write_numpy(out, column="id", backend="inline"),
    "job": by_job(Filter(where=["id == 'a'"], format="csv")),
    "job with an exchange": by_job(Shuffle(shards=1, format="csv")),
    "job that declares its schema": by_job(Threads(format="csv")),
    "job that declares that of an extra output": by_job(Sided(format="csv")),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_written_is_refused_before_anything_runs(way: str, tmp_path: Path) -> None:
    """An exchange was made of all rows first, and what was written of the job was in the way of another format."""
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    texts = ["id", "link_id", "parent_id", "subreddit", "author", "body"]
    columns: dict[str, Any] = {**{name: ["a"] for name in texts}, "created_utc": [1], "score": [1]}
    pq.write_table(pa.table({**columns, "list": [[1]]}), source / "a.parquet")
    with pytest.raises(ConfigError, match=r"^(the extra output 'odd' .*: )?column '(list|comments|id)' is "):
        WAYS[way](source, out)
    assert not out.exists()


EXTRA: dict[str, Callable[[curate.Dataset], curate.Dataset]] = {
    "a table of its own": lambda ds: ds.dedup_exact("n", id_column="id"),
    "rows": lambda ds: ds.split_off({"duplicates": 0.3}, column="id"),
}


@pytest.mark.parametrize("how", EXTRA)
@pytest.mark.parametrize("format", ["numpy", "tfrecords"])
def test_an_extra_output_that_cannot_be_written_is_named(how: str, format: str, tmp_path: Path) -> None:
    """With what helps: the main output, whose column was chosen, is not what is wrong. Done as it says, both are
    written."""
    rows = curate.from_items([{"id": n, "n": n % 3, "x": 0.5} for n in range(12)])

    def write(ds: curate.Dataset) -> Any:
        out = tmp_path / "out"
        if format == "numpy":
            return ds.write_numpy(out, column="n", backend="inline")
        return ds.select_columns(["n"]).write_tfrecords(out, backend="inline")

    told = (
        "^the extra output 'duplicates' is written as the output is: .*put a checkpoint behind the step that makes it"
    )
    with pytest.raises(ConfigError, match=told):
        write(EXTRA[how](rows))
    assert not list((tmp_path / "out").glob("*.*"))
    assert write(EXTRA[how](rows).checkpoint(tmp_path / "kept")).state == "complete"
    assert list((tmp_path / "kept/_side/duplicates").glob("*.parquet"))


EXCHANGES: dict[str, Callable[[curate.Dataset], curate.Dataset]] = {
    "sort": lambda ds: ds.sort("id"),
    "shuffle": lambda ds: ds.random_shuffle(seed=1),
    "groups": lambda ds: ds.groupby("id").map_groups(lambda group: group),
    "join": lambda ds: ds.join(curate.from_items([{"id": 1}]), on="id"),
    "zip": lambda ds: ds.zip(ds),
    "two of them": lambda ds: ds.select_columns("id").sort("id").map_batches(moved, output_schema=MADE).sort("id"),
}
VIEWS = pa.list_view(pa.int64())
MADE = pa.schema([("id", pa.int64()), ("made", VIEWS)])


def moved(batch: pa.Table) -> pa.Table:
    """Makes a column that no exchange moves."""
    return batch.select(["id"]).append_column("made", pa.nulls(batch.num_rows, VIEWS))


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_what_cannot_be_moved_is_refused_before_anything_runs(exchange: str, tmp_path: Path) -> None:
    """Each shard was tried for it, and those that an exchange before it had were paid for."""
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    pq.write_table(pa.table([[1], [[2]]], schema=pa.schema([("id", pa.int64()), ("v", VIEWS)])), source / "a.parquet")
    with pytest.raises(ConfigError, match=r"column '(v|made)' is list_view.*, which an exchange cannot move"):
        EXCHANGES[exchange](curate.read_parquet(source)).write_parquet(out, backend="inline")
    assert not out.exists()


def test_what_cannot_be_moved_is_refused_once_a_function_has_made_it(tmp_path: Path) -> None:
    out, calls = tmp_path / "out", []

    def made(batch: pa.Table) -> pa.Table:
        calls.append(batch.num_rows)
        return moved(batch)

    with pytest.raises(ConfigError, match=r"column 'made' is list_view.*, which an exchange cannot move"):
        curate.from_items([{"id": 1}]).map_batches(made).sort("id").write_parquet(out, backend="inline")
    assert len(calls) == 1
