"""What user code gives is as it was when it gave it: it may make the next rows in the same memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import curate
from curate import FileJob, Job
from curate.arrow.batches import kept
from curate.job.operator import tables_of
from curate.testing import run_local


def numbers(out: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"n": out}


def lists(out: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"n": pa.FixedSizeListArray.from_arrays(pa.array(out), 1)}


FORMS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "an array": numbers,
    "an array of several dimensions": lambda out: {"n": out.reshape(-1, 1)},
    "Arrow's of an array": lambda out: {"n": pa.array(out)},
    "a table": lambda out: pa.table({"n": out}),
    "a batch": lambda out: pa.RecordBatch.from_pydict({"n": pa.array(out)}),
    "lists": lists,
    "a frame": lambda out: pd.DataFrame({"n": out}, copy=False),
    "a frame of Arrow's": lambda out: pd.DataFrame({"n": pd.Series(pd.arrays.ArrowExtensionArray(pa.array(out)))}),
    "a struct": lambda out: {"n": pa.StructArray.from_arrays([pa.array(out)], ["x"])},
    "codes": lambda out: {"n": pa.DictionaryArray.from_arrays(pa.array(out), [f"{n}" for n in range(9)])},
    "a slice": lambda out: {"n": pa.array(np.concatenate([out, out]))[: len(out)]},
}


def flat(rows: list[dict[str, Any]]) -> list[int]:
    """Returns the only number of each row, however it lies there."""
    values = [row["n"] for row in rows]
    values = [next(iter(value.values())) if isinstance(value, dict) else value for value in values]
    return [int(value[0] if isinstance(value, list) else value) for value in values]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_generator", [False, True])
def test_batches_that_are_made_in_one_array(form: str, is_generator: bool, tmp_path: Path) -> None:
    """Between two batches, and two results of one batch; consumed, and written, where rows wait for others."""
    out = np.zeros(1, np.int64)

    def one(batch: pa.Table) -> Any:
        out[:] = batch["id"].to_numpy() + 1
        return FORMS[form](out)

    def several(batch: pa.Table) -> Iterator[Any]:
        for at in range(len(batch)):
            yield one(batch.slice(at, 1))

    ds = curate.range(6).map_batches(one, batch_size=1)
    if is_generator:
        ds = curate.range(6).map_batches(several)
    assert flat(ds.take_all()) == [1, 2, 3, 4, 5, 6]
    # Of another function: the array that it closes over has other values now.
    out[:] = 0
    ds.write_parquet(tmp_path / "out", backend="inline")
    assert flat(curate.read_parquet(tmp_path / "out").take_all()) == [1, 2, 3, 4, 5, 6]


def test_columns_and_groups_that_are_made_in_one_array() -> None:
    out = np.zeros(2, np.int64)

    def double(batch: dict[str, Any]) -> Any:
        return np.multiply(batch["id"], 2, out=out[: len(batch["id"])])

    def total(group: dict[str, Any]) -> Any:
        out[:1] = group["id"].sum()
        return {"total": out[:1]}

    halves = curate.range(4).map_batches(lambda batch: batch, batch_size=2)
    assert [row["m"] for row in halves.add_column("m", double, batch_format="numpy").take_all()] == [0, 2, 4, 6]
    assert curate.range(3).groupby("id").map_groups(total, batch_format="numpy").take_all() == [
        {"total": n} for n in range(3)
    ]


def changed(value: Any, number: int) -> Any:
    """Puts a number into what a row holds, at any depth."""
    if isinstance(value, dict):
        value["x"] = changed(value["x"], number) if "x" in value and value["x"] is not None else number
    elif isinstance(value, np.ndarray | list):
        value[0] = changed(value[0], number)
    elif isinstance(value, bytearray):
        value[0] = number
    elif isinstance(value, tuple):
        changed(value[0], number)
    elif isinstance(value, set):
        value.clear()
        value.add(number)
    else:
        return number
    return value


VALUES: dict[str, Callable[[], Any]] = {
    "a number": lambda: 0,
    "a list": lambda: [0, 1],
    "a list of lists": lambda: [None, [0]][1:],
    "a list in a tuple": lambda: ([0],),
    "an array": lambda: np.zeros(3),
    "an array of objects": lambda: np.array([[0], [1, 2]], object),
    "arrays": lambda: [np.zeros(2)],
    "a dictionary": lambda: {"x": 0},
    "a list in a dictionary": lambda: {"x": [0]},
    "bytes": lambda: bytearray(b"012"),
    "a set": lambda: {0},
}


@pytest.mark.parametrize("value", VALUES)
def test_rows_that_are_made_in_one_dictionary(value: str) -> None:
    """Those of a list comprehension over new dictionaries, and of a process beside the worker, which copies."""
    row = {"n": VALUES[value]()}

    def one(given: dict[str, Any]) -> dict[str, Any]:
        row["n"] = changed(row["n"], given["id"])
        return row

    def several(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for _ in range(2):
            yield one(given)

    expected = [{"n": changed(VALUES[value](), n)} for n in range(3)]
    table = curate.from_items(expected).to_arrow()
    assert curate.range(3).map(one).to_arrow().equals(table)
    assert curate.range(3).flat_map(several).to_arrow().equals(table.take([0, 0, 1, 1, 2, 2]))


class Reused(Job):
    """Makes each batch in one array."""

    version = "1"
    batch_size = 2

    def setup(self) -> None:
        self.out = np.zeros(2)

    def process(self, batch: pa.Table) -> Any:
        self.out[: len(batch)] = batch["n"].to_numpy() * 2
        return batch.append_column("twice", pa.array(self.out[: len(batch)]))


def test_a_job_that_makes_batches_in_one_array() -> None:
    assert run_local(Reused, [{"n": n} for n in range(6)]).table["twice"].to_pylist() == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("as_outputs", [False, True])
def test_what_a_job_was_given_is_not_copied(as_outputs: bool) -> None:
    given = pa.table({"n": np.arange(6)})
    out = np.arange(6.0)
    table = given.append_column("m", pa.array(out))
    made = pa.concat_tables(
        tables_of({"main": table} if as_outputs else [table], "process", sides=["x"] if as_outputs else (), given=given)
    )
    where = {name: made[name].chunk(0).buffers()[1].address for name in made.column_names}
    assert where["n"] == given["n"].chunk(0).buffers()[1].address
    out[:] = 0
    assert made["m"].to_pylist() == [0, 1, 2, 3, 4, 5]


class ReusedRows(FileJob):
    """Makes each row in one dictionary."""

    version = "1"

    def process_file(self, file: Any) -> Iterator[Any]:
        del file
        row: dict[str, Any] = {"at": [0]}
        for number in range(3):
            row["n"] = row["at"][0] = number
            yield row


def test_a_job_of_files_that_makes_rows_in_one_dictionary(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("x")
    ReusedRows().run(input=tmp_path / "in.txt", output=tmp_path / "out", backend="inline")
    rows = curate.read_parquet(tmp_path / "out").take_all()
    assert rows == [{"at": [number], "n": number} for number in range(3)]


class ReadIntoOneArray(curate.Datasource):
    """Reads all that it reads into one array."""

    def identity(self) -> Any:
        return "one array"

    def schema(self) -> pa.Schema:
        return pa.schema([("n", pa.int64())])

    def shards(self) -> list[curate.SourceShard]:
        return [curate.SourceShard("all", 24)]

    def read(self, shard: curate.SourceShard) -> Iterator[pa.Table]:
        del shard
        out = np.zeros(1, np.int64)
        for number in range(3):
            out[:] = number
            yield pa.table({"n": out})


def test_a_source_that_reads_into_one_array() -> None:
    assert curate.read_datasource(ReadIntoOneArray()).take_all() == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_only_what_may_change_is_copied() -> None:
    """Not what came with the batch, nor what nobody can write to; of what is copied, no more than its rows."""
    given = pa.table({"n": np.arange(1000), "t": ["x"] * 1000})
    frozen = np.arange(1000)
    frozen.flags.writeable = False
    made = given.append_column("frozen", pa.array(frozen))
    assert kept(made, given) is made
    assert (
        kept(made.slice(10), given).column("n").chunk(0).buffers()[1].address
        == given["n"].chunk(0).buffers()[1].address
    )
    assert kept(given.slice(10, 10))["n"].get_total_buffer_size() < 200


@pytest.mark.parametrize("method", ["map", "flat_map", "filter"])
def test_a_row_that_was_changed_before_a_service_was_busy_is_given_anew(method: str) -> None:
    calls = []

    def count(row: dict[str, Any]) -> Any:
        row["id"] += 100
        row["seen"] = row["id"]
        calls.append(row["id"])
        if len(calls) in (1, 2, 4):
            raise curate.RetryLater(0.001)
        return {"map": row, "flat_map": [row], "filter": row["id"] < 200}[method]

    rows = getattr(curate.range(3), method)(count).take_all()
    assert calls == [100, 100, 100, 101, 101, 102]
    assert [row["id"] % 100 for row in rows] == [0, 1, 2]
