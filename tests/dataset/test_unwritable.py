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


WAYS: dict[str, Written] = {
    "rows": lambda source, out: curate.read_parquet(source).write_csv(out, backend="inline"),
    "sorted rows": lambda source, out: curate.read_parquet(source).sort("id").write_csv(out, backend="inline"),
    "array": lambda source, out: curate.read_parquet(source).sort("id").write_numpy(out, column="id", backend="inline"),
    "job": by_job(Filter(where=["id == 'a'"], format="csv")),
    "job with an exchange": by_job(Shuffle(shards=1, format="csv")),
    "job that declares its schema": by_job(Threads(format="csv")),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_written_is_refused_before_anything_runs(way: str, tmp_path: Path) -> None:
    """An exchange was made of all rows first, and what was written of the job was in the way of another format."""
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    texts = ["id", "link_id", "parent_id", "subreddit", "author", "body"]
    columns: dict[str, Any] = {**{name: ["a"] for name in texts}, "created_utc": [1], "score": [1]}
    pq.write_table(pa.table({**columns, "list": [[1]]}), source / "a.parquet")
    with pytest.raises(ConfigError, match=r"^column '(list|comments|id)' is "):
        WAYS[way](source, out)
    assert not out.exists()
