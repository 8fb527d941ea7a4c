"""What a job returned wrongly is the job's fault, and is told and tried again as such; what its input has is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import curate
from curate.job.shapes import FileJob, TextJob
from curate.ledger.summary import RunState
from tests.job.inline import failures, numbered, run_job, write_jsonl, write_parquet
from tests.support.writes import failed_write

RETURN: list[Callable[[pa.Table], Any]] = []


class Returning(TextJob):
    """Returns what the test says."""

    version = "1"
    batch_size = 2

    def process(self, batch: pa.Table) -> Any:
        return RETURN[-1](batch)


class Rows(FileJob):
    """Yields rows of two kinds."""

    version = "1"

    def process_file(self, file: Any) -> Iterator[Any]:
        del file
        yield {"a": 1}
        yield {"b": 1}


def later(batch: pa.Table, then: Callable[[pa.Table], Any]) -> Any:
    return batch if batch["id"][0].as_py() == "r0" else then(batch)


@pytest.mark.parametrize(
    "returned",
    [
        lambda batch: batch.to_pylist(),
        lambda _: "text",
        lambda _: pa.table([[1], [2]], names=["a", "a"]),
        lambda batch: later(batch, lambda one: one.append_column("more", one["id"])),
        lambda batch: later(batch, lambda one: one.drop_columns("text")),
        lambda batch: later(batch, lambda one: one.rename_columns(["id", "txt"])),
        lambda batch: later(batch, lambda one: one.set_column(0, "id", pa.array([1] * len(one)))),
        lambda _: pa.table({"a": [1, 2], "b": [1]}),
    ],
    ids=["list", "str", "twice", "more", "fewer", "renamed", "type", "lengths"],
)
def test_what_process_returned_wrongly_is_a_user_error(tmp_path: Path, returned: Callable[[pa.Table], Any]) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 6))
    RETURN.append(returned)
    summary = run_job(Returning(), tmp_path / "in", tmp_path / "out")
    assert summary.state is RunState.FAILED
    assert {found["kind"] for found in failures(tmp_path / "out")} == {"user_error"}
    assert len(failures(tmp_path / "out")) == 4


@pytest.mark.parametrize(
    "returned",
    [
        lambda _: {"a": [1, 2], "b": [1]},
        lambda _: {"a": 1},
        lambda batch: {"a": [1]} if batch["n"][0].as_py() < 2 else {"b": [1]},
        lambda _: pa.table([[1], [2]], names=["a", "a"]),
        lambda _: 5,
    ],
    ids=["lengths", "scalar", "changes", "twice", "type"],
)
@pytest.mark.usefixtures("no_backoff")
def test_what_a_function_of_a_dataset_returned_wrongly_is_a_user_error(
    tmp_path: Path, returned: Callable[[pa.Table], Any]
) -> None:
    rows = curate.from_items([{"n": number} for number in range(6)])
    made = rows.map_batches(returned, batch_size=2)
    assert failed_write(made.write_parquet, tmp_path / "out", backend="inline").state is RunState.FAILED
    assert {found["kind"] for found in failures(tmp_path / "out")} == {"user_error"}


def test_what_a_file_job_yields_wrongly_is_a_user_error(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.bin", b"x")
    run_job(Rows(), tmp_path / "in", tmp_path / "out")
    assert {found["kind"] for found in failures(tmp_path / "out")} == {"user_error"}


def test_an_input_that_differs_is_no_error_of_the_job(tmp_path: Path) -> None:
    """It is not tried again: reading it once more would give the same."""
    RETURN.append(lambda batch: batch)
    write_parquet(tmp_path / "in" / "a.parquet", numbered(0, 2))
    write_parquet(tmp_path / "in" / "b.parquet", [{"id": "a", "body": "x"}])
    run_job(Returning(), tmp_path / "in", tmp_path / "out")
    assert [found["kind"] for found in failures(tmp_path / "out")] == ["corrupt_input"]
