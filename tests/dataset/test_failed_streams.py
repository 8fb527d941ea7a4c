"""What a consumer is told of rows that cannot be had from a worker."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import curate
from curate.errors import StreamFailed
from tests.job.inline import write_parquet
from tests.streaming.streaming import Unsendable


def refuse(batch: pa.Table) -> pa.Table:
    """Raises what cannot be sent to the consumer."""
    del batch
    raise Unsendable


def end(batch: pa.Table) -> pa.Table:
    """Ends the worker."""
    os.kill(os.getpid(), signal.SIGKILL)
    return batch


def told(rows: Any, step: Any) -> str:
    """Returns the first line of the error."""
    with pytest.raises(StreamFailed) as failed:
        rows.map_batches(step).using(backend="local").take_all()
    return str(failed.value).partition("\n")[0]


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("rows", "label"),
    [
        (curate.range(3), "range 0-3"),
        (curate.from_items([{"id": 1}]), "from_items table 0"),
        (curate.range(3).sort("id", descending=True), "output 0 of sort(id descending)"),
        (curate.range(3).repartition(1), "output 0 of repartition(1)"),
    ],
    ids=["range", "items", "sort", "repartition"],
)
def test_what_was_read_is_named_as_in_other_errors(rows: Any, label: str) -> None:
    """By its label, for each kind of source: no value of the program is shown."""
    assert told(rows, refuse) == f"{label} failed: Unsendable: a lock"


@pytest.mark.slow
def test_a_file_is_named_and_the_end_of_a_worker_told_once(tmp_path: Path) -> None:
    """By its path, and nothing else that the program knows of it."""
    write_parquet(tmp_path / "a.parquet", pa.table({"id": [1]}))
    assert told(curate.read_parquet(tmp_path), refuse) == f"{tmp_path}/a.parquet failed: Unsendable: a lock"
    assert told(curate.read_parquet(tmp_path), end) == (
        f"{tmp_path}/a.parquet failed 3 times: crashed: the worker died: killed by SIGKILL"
    )
