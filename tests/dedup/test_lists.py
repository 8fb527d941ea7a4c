"""Wherever a deduplication is in a pipeline, its list of dropped rows is written, or the write says that it is not, and
a checkpoint keeps it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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
