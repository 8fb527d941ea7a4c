"""Wherever `split_off` is in a pipeline, the rows of its parts are written, or the write is refused: none is lost."""

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
from tests.job.inline import outputs, refusing, run_job

Way = Callable[[Dataset, Path], Dataset]

WAYS: dict[str, Way] = {
    "nothing": lambda ds, _: ds,
    "function": lambda ds, _: ds.map(lambda row: row),
    "batches": lambda ds, _: ds.map_batches(lambda table: table, batch_size=7),
    "filter": lambda ds, _: ds.filter(curate.col("id") >= 0),
    "union": lambda ds, _: ds.union(ds),
    "union of others": lambda ds, _: ds.union(curate.range(5).map(lambda row: row)),
    "zip": lambda ds, _: ds.zip(ds),
    "limit": lambda ds, _: ds.limit(10),
    "limit of all": lambda ds, _: ds.limit(1000),
    "sort": lambda ds, _: ds.sort("id"),
    "first of a sort": lambda ds, _: ds.sort("id").limit(10),
    "repartition": lambda ds, _: ds.repartition(2),
    "groups": lambda ds, _: ds.groupby("id").count(),
    "distinct": lambda ds, _: ds.distinct("id"),
    "deduplication": lambda ds, _: ds.dedup_exact("id"),
    "join": lambda ds, _: ds.join(ds, on="id"),
    "sample": lambda ds, _: ds.random_sample(1.0, seed=1),
    "checkpoint": lambda ds, folder: ds.checkpoint(folder / "kept"),
    "checkpoint, sort": lambda ds, folder: ds.checkpoint(folder / "kept").sort("id"),
    "another split": lambda ds, _: ds.split_off({"other": 0.5}, column="id", seed=9),
}
EXCHANGES = {"union of others", "zip", "first of a sort", "sort", "repartition", "groups", "distinct", "join"}


def is_refused(before: str, after: str, memory: bool) -> bool:
    """Returns whether rows change shard behind the split: some steps need that only for rows of more than one source,
    or for those that a limit or an exchange gives."""
    if after == "union":
        return before != "nothing" or not memory
    return (
        after in EXCHANGES
        or (after == "deduplication" and before == "limit")
        or ("limit" in after and before != "nothing")
    )


def split(ds: Dataset) -> Dataset:
    return ds.split_off({"part": 0.4}, column="id")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of forty rows, and one of none between them."""
    folder = tmp_path_factory.mktemp("in")
    for number, ids in enumerate([range(40), range(0), range(40, 80)]):
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), folder / f"{number}.parquet")
    return folder


def below(*roots: Path) -> dict[str, list[Any]]:
    """Returns the values of `id` in the objects of the main output of the first, and of the part in all of them."""
    found: dict[str, list[Any]] = {"main": [], "part": []}
    for root in roots:
        for name, table in (outputs(root) if root.exists() else {}).items():
            side = name.startswith("_side/part/")
            if side or ("/" not in name and root is roots[0]):
                found["part" if side else "main"] += table["id"].to_pylist()
    return found


@pytest.mark.ci(30)
@pytest.mark.quick(25)  # each of all three is in some of them
@pytest.mark.parametrize("memory", [True, False], ids=["memory", "files"])
@pytest.mark.parametrize("after", WAYS)
@pytest.mark.parametrize("before", ["nothing", "limit", "sort"])
def test_rows_are_written_or_the_write_is_refused(
    before: str, after: str, memory: bool, source: Path, tmp_path: Path
) -> None:
    """What is consumed is what is written; what is counted as in a part is in it; a rerun changes nothing."""
    read = curate.range(80) if memory else curate.read_parquet(source)
    ds = WAYS[after](split(WAYS[before](read, tmp_path / "before")), tmp_path)
    out = tmp_path / "out"
    if is_refused(before, after, memory):
        with refusing("the rows of its parts would be lost"):
            ds.write_parquet(out, backend="inline")
        assert not out.exists()
        assert ds.take(1)
        return
    summary = ds.write_parquet(out, backend="inline")
    assert (summary.state, summary.failed) == ("complete", 0)
    found = below(out, tmp_path / "kept")
    assert found["part"]
    if not after.startswith("checkpoint"):
        assert len(found["part"]) == summary.books.dropped["in part"] == summary.books.counters["side part"]
    assert [row["id"] for row in ds.take_all()] == found["main"]
    assert ds.count() == len(found["main"]) == summary.books.rows_out
    assert ds.write_parquet(out, backend="inline").state == "complete"
    assert below(out, tmp_path / "kept") == found
    if before == "nothing" and "limit" not in after and after not in ("union", "another split"):
        assert sorted(found["main"] + found["part"]) == list(range(80))


JOBS: dict[str, Callable[[Dataset, Path], Any]] = {
    "the end": lambda ds, _: split(ds),
    "before a checkpoint": lambda ds, folder: split(ds).checkpoint(folder / "kept").filter(curate.col("id") >= 0),
    "before a checkpoint and a sort": lambda ds, folder: split(ds).checkpoint(folder / "kept").sort("id"),
    "behind a sort": lambda ds, _: split(ds.sort("id")),
    "behind a limit": lambda ds, _: split(ds.sort("id").limit(50)),
    "before outputs part": lambda ds, _: (lambda rest: {"main": rest, "low": rest.filter(curate.col("id") < 9)})(
        split(ds)
    ),
    "main output": lambda ds, _: {"main": split(ds), "low": ds.filter(curate.col("id") < 9)},
    "main output behind a sort": lambda ds, _: (
        lambda rows: {"main": split(rows), "low": rows.filter(curate.col("id") < 9)}
    )(ds.sort("id")),
    "before a sort": lambda ds, _: split(ds).sort("id"),
    "before a limit": lambda ds, _: split(ds.sort("id")).limit(50),
    "extra output": lambda ds, _: {"main": ds.filter(curate.col("id") > 9), "low": split(ds)},
}
REFUSED_JOBS = {
    "before a sort": "sort(id) follows it",
    "before a limit": "limit(50) follows it",
    "extra output": "which has extra outputs of its own, is used by the output 'low' only",
}


def test_what_is_in_the_way_is_named_as_a_step(source: Path, tmp_path: Path) -> None:
    """A limit of which a sample is drawn keeps rows, which no step is called after."""
    ds = split(curate.read_parquet(source)).limit(50).random_sample(0.5, seed=1)
    with pytest.raises(curate.ConfigError, match="a limit or a deduplication follows it"):
        ds.write_parquet(tmp_path / "out", backend="inline")


@pytest.mark.parametrize("where", JOBS)
def test_the_same_in_a_job(where: str, source: Path, tmp_path: Path) -> None:
    class Parted(curate.Job):
        version = "1"

        def build(self, ds: Dataset) -> Any:
            return JOBS[where](ds, tmp_path)

    out = tmp_path / "out"
    if where in REFUSED_JOBS:
        with refusing(REFUSED_JOBS[where]):
            run_job(Parted(), source, out)
        assert not out.exists()
        return
    summary = run_job(Parted(), source, out)
    assert summary.state == "complete"
    found = below(out, tmp_path / "kept")
    assert found["part"]
    assert sorted(found["main"] + found["part"]) == list(range(50 if where == "behind a limit" else 80))


def test_process_and_a_step_before_it_have_no_extra_output_in_common(source: Path, tmp_path: Path) -> None:
    class Parted(curate.Job):
        version = "1"
        sides = ("part",)

        def build(self, ds: Dataset) -> Any:
            return super().build(split(ds))

        def process(self, batch: pa.Table) -> Any:
            return {"main": batch, "part": batch}

    with refusing(
        "the output 'part', but a step of 'main', or one before it, already has an extra output of that name"
    ):
        run_job(Parted(), source, tmp_path / "out")


def test_what_does_not_fit_says_which_extra_output_it_is_of(source: Path, tmp_path: Path) -> None:
    """Where columns are known only once it runs."""

    class Parted(curate.Job):
        version = "1"

        def build(self, ds: Dataset) -> Any:
            return split(ds).rename_columns({"id": "key"}).split_off({"part": 0.4}, column="key", seed=1)

    with capture_logs() as logged:
        assert run_job(Parted(), source, tmp_path / "out").state == "failed"
    told = "SchemaMismatch: the extra output 'part': the output does not match the schema of the output"
    assert any(one.get("error", "").startswith(told) for one in logged)


def test_the_same_split_behind_an_exchange_is_another_one(tmp_path: Path) -> None:
    """The first one has taken the rows out that the second one would have."""
    with pytest.raises(curate.ConfigError, match=r"split_off\(part=0.4, .*: sort\(id\) follows it"):
        split(split(curate.range(50)).sort("id")).write_parquet(tmp_path / "out", backend="inline")
    kept = split(split(curate.range(50)).checkpoint(tmp_path / "kept").sort("id"))
    assert kept.write_parquet(tmp_path / "out", backend="inline").state == "complete"
    rows = [curate.read_parquet(path).count() for path in (tmp_path / "out", tmp_path / "kept/_side/part")]
    assert sum(rows) == 50
