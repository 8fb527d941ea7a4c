"""Wherever a deduplication is in a pipeline, its list of dropped rows is written, or the write says that it is not, and
a checkpoint keeps it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

import curate
from curate.dataset.dataset import Dataset

TEXTS = ["a b c d e f g", "a b c d e f g", "x y z w q r s", "x y z w q r s", "k", "k l", "k l"]
KINDS: dict[str, Callable[[Dataset], Dataset]] = {
    "dedup_exact": lambda ds: ds.dedup_exact("body", id_column="id"),
    "dedup_minhash": lambda ds: ds.dedup_minhash("body", id_column="id"),
}
AFTER: dict[str, Callable[[Dataset], Dataset]] = {
    "nothing": lambda ds: ds,
    "filter": lambda ds: ds.filter(curate.col("id") >= 0),
    "function": lambda ds: ds.map(lambda row: row),
    "sort": lambda ds: ds.sort("id"),
    "shuffle": lambda ds: ds.random_shuffle(seed=1),
    "groups": lambda ds: ds.groupby("body").count(),
    "limit": lambda ds: ds.limit(100),
    "first of a sort": lambda ds: ds.sort("id").limit(2),
    "another": lambda ds: ds.dedup_exact("id"),
    "sort, another": lambda ds: ds.sort("id").dedup_exact("body", id_column="id"),
}


def listed(root: Path) -> set[int]:
    """Ids in the list of duplicates beside an output."""
    return {number for path in root.glob("_side/duplicates/*") for number in pq.read_table(path)["id"].to_pylist()}


@pytest.mark.slow
@pytest.mark.ci(5)
@pytest.mark.quick(6)
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("kind", KINDS)
def test_a_list_is_written_or_said_not_to_be(kind: str, after: str, tmp_path: Path) -> None:
    ds = curate.from_items([{"id": number, "body": text} for number, text in enumerate(TEXTS)])
    unique = KINDS[kind](ds)
    dropped = set(range(len(TEXTS))) - {row["id"] for row in unique.take_all()}
    assert dropped
    with capture_logs() as logged:
        assert AFTER[after](unique).write_parquet(tmp_path / "out", backend="inline").state == "complete"
    [said] = [one for one in logged if "is not written" in one["event"]] or [None]
    assert listed(tmp_path / "out") == (set() if said else dropped)
    if said:
        assert said["log_level"] == "warning"
        assert said["event"].startswith(f"{kind}('body'")
        assert "its extra output 'duplicates' is not written, because " in said["event"]
        with capture_logs() as logged:
            AFTER[after](unique.checkpoint(tmp_path / "kept")).write_parquet(tmp_path / "with", backend="inline")
        assert not [one for one in logged if f"{kind}(" in one["event"] and "is not written" in one["event"]]
        assert listed(tmp_path / "kept") == dropped


PAIRS: dict[str, tuple[str, Callable[[Dataset], Dataset], Callable[[Dataset], Dataset]]] = {
    "other columns": (
        "duplicates",
        lambda ds: ds.dedup_exact("body", id_column="id"),
        lambda ds: ds.dedup_minhash("body", id_column="id", source_column="name"),
    ),
    "ids of another type": (
        "duplicates",
        lambda ds: ds.dedup_exact("body", id_column="id"),
        lambda ds: ds.dedup_exact("name", id_column="name"),
    ),
    "wider ids": (
        "duplicates",
        lambda ds: ds.dedup_exact("body", id_column="id"),
        lambda ds: ds.dedup_exact("body", id_column="small"),
    ),
    "spans": (
        "removed",
        lambda ds: ds.dedup_paragraphs("body", id_column="id"),
        lambda ds: ds.dedup_paragraphs("body", id_column="name"),
    ),
    "a part of that name": (
        "duplicates",
        lambda ds: ds.dedup_exact("body", id_column="id"),
        lambda ds: ds.split_off({"duplicates": 0.5}, column="id"),
    ),
    "parts of other columns": (
        "part",
        lambda ds: ds.split_off({"part": 0.5}, column="id").drop_columns(["small"]),
        lambda ds: ds.split_off({"part": 0.5}, column="id", seed=1),
    ),
}


# Columns that are left out are left out of all parts behind that.
BOTH_WAYS = [(pair, turned) for pair in PAIRS for turned in (False, True) if not (turned and pair.startswith("parts"))]


@pytest.mark.ci(6)
@pytest.mark.quick(6)
@pytest.mark.parametrize(("pair", "turned"), BOTH_WAYS)
def test_extra_outputs_of_one_name_have_the_same_columns(pair: str, turned: bool, tmp_path: Path) -> None:
    """Else every shard would fail, behind all that comes before."""
    table = pa.table({"id": range(len(TEXTS)), "small": pa.array(range(len(TEXTS)), pa.int32()), "body": TEXTS})
    ds = curate.from_arrow(table.append_column("name", pa.array(map(str, range(len(TEXTS))))))
    side, one, other = PAIRS[pair]
    first, second = (other, one) if turned else (one, other)
    told = f"its extra output '{side}' has .* put a checkpoint between the two, which keeps them apart"
    with pytest.raises(curate.ConfigError, match=told):
        second(first(ds)).write_parquet(tmp_path / "out", backend="inline")
    assert not (tmp_path / "out").exists()
    kept = second(first(ds).checkpoint(tmp_path / "kept"))
    assert kept.write_parquet(tmp_path / "out", backend="inline").state == "complete"
    for root in ("out", "kept"):
        assert (tmp_path / root / f"_side/{side}").exists()


def test_ids_that_are_null_as_far_as_is_known_may_be_of_any_type(tmp_path: Path) -> None:
    ds = curate.from_items([{"id": number, "none": None, "body": text} for number, text in enumerate(TEXTS)])
    ds = ds.dedup_exact("body", id_column="id").dedup_exact("id", id_column="none")
    assert ds.write_parquet(tmp_path, backend="inline").state == "complete"
    assert listed(tmp_path)


def test_lists_with_the_same_columns_are_one(tmp_path: Path) -> None:
    rows = [{"id": number, "body": text, "day": number % 3} for number, text in enumerate(TEXTS)]
    ds = curate.from_items(rows).dedup_exact("body", id_column="id").dedup_exact("day", id_column="id")
    left = {row["id"] for row in ds.take_all()}
    assert ds.write_parquet(tmp_path, backend="inline").state == "complete"
    assert listed(tmp_path) == set(range(len(TEXTS))) - left
