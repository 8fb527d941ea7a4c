"""Of a column that has only nulls in the first file, the files behind it tell the type: their rows are no bad ones."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate
from curate.job.job import Job
from curate.sources.inputs import TYPE_FILES

VALUES: list[tuple[Any, Any, pa.DataType]] = [
    (None, 1, pa.int64()),
    (None, 1.5, pa.float64()),
    (None, True, pa.bool_()),
    (None, "a", pa.string()),
    (None, [1], pa.list_(pa.int64())),
    (None, {"x": 1}, pa.struct([("x", pa.int64())])),
    ([], [1], pa.list_(pa.int64())),
    ([None], [{"x": 1.5}], pa.list_(pa.struct([("x", pa.float64())]))),
    ({"x": None, "y": 1}, {"y": 2, "x": True}, pa.struct([("x", pa.bool_()), ("y", pa.int64())])),
]


def written(folder: Path, *files: list[Any]) -> str:
    """Writes JSON lines with values of one column, a file each; returns what names them all."""
    for number, values in enumerate(files):
        lines = [json.dumps({"id": f"{number}-{at}", "v": value}) for at, value in enumerate(values)]
        (folder / f"{number:03d}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return f"{folder}/*.jsonl"


def complete(value: Any, like: Any) -> Any:
    """Returns a value with the fields in the order of a type."""
    return {name: value.get(name) for name in like} if isinstance(value, dict) else value


@pytest.mark.parametrize(("first", "then", "type"), VALUES, ids=lambda one: str(one).replace(" ", ""))
@pytest.mark.parametrize("before", [1, TYPE_FILES])
def test_json_lines(first: Any, then: Any, type: pa.DataType, before: int, tmp_path: Path) -> None:
    """All rows are there as they were written, and none is left out."""
    found = curate.read_json(written(tmp_path, *([[first]] * before), [then]))
    assert found.schema().field("v").type == type
    assert [row["v"] for row in found.take_all()] == [first] * before + [complete(then, first or then)]


def test_parquet(tmp_path: Path) -> None:
    """Files of pandas have the type null for a column without values."""
    for number, column in enumerate([pa.nulls(2), pa.array([None, 1.5]), pa.nulls(1)]):
        pq.write_table(pa.table({"v": column}), tmp_path / f"{number}.parquet")
    found = curate.read_parquet(f"{tmp_path}/*.parquet")
    assert found.schema() == pa.schema([("v", pa.float64())])
    assert [row["v"] for row in found.take_all()] == [None, None, None, 1.5, None]


def test_if_none_tells_json_lines_are_texts_and_parquet_is_what_it_was(tmp_path: Path) -> None:
    """As deep as it is."""
    found = curate.read_json(written(tmp_path, [None, {"a": []}], [{"a": None}]))
    assert found.schema().field("v").type == pa.struct([("a", pa.list_(pa.string()))])
    pq.write_table(pa.table({"v": pa.nulls(1)}), tmp_path / "a.parquet")
    assert curate.read_parquet(str(tmp_path / "a.parquet")).schema() == pa.schema([("v", pa.null())])


def test_values_of_several_types_in_a_file_behind_are_json(tmp_path: Path) -> None:
    """As they are where the first file has them."""
    found = curate.read_json(written(tmp_path, [None], [1, "a", 2]))
    assert [row["v"] for row in found.take_all()] == [None, "1", '"a"', "2"]


def test_what_the_first_file_tells_holds(tmp_path: Path) -> None:
    """Others fill in only what it does not tell."""
    found = curate.read_json(written(tmp_path, [{"x": 1, "y": None}], [{"x": 1.5, "y": 2, "z": 3}]))
    assert found.schema().field("v").type == pa.struct([("x", pa.int64()), ("y", pa.int64())])


class Kept(Job):
    """Keeps rows as they are."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


class Named(Kept):
    """The same of one column, whose type is not declared."""

    columns = ("v",)


@pytest.mark.parametrize("job", [Kept, Named])
def test_jobs(job: type[Job], tmp_path: Path) -> None:
    """Also of a column that they name and a file behind does not have, which its shard alone has to say."""
    (tmp_path / "in").mkdir()
    inputs = written(tmp_path / "in", [None], [None], [2.5])
    (tmp_path / "in" / "001.jsonl").write_text('{"id": "1-0"}\n')
    ended = job().run(input=inputs, output=str(tmp_path / "out"), backend="inline")
    assert (ended.books.quarantined, ended.books.rows_out) == (0, 3)
    tables = [pq.read_table(one) for one in sorted((tmp_path / "out").glob("*.parquet"))]
    assert {table.schema.field("v").type for table in tables} == {pa.float64()}
    assert list(itertools.chain(*(table["v"].to_pylist() for table in tables))) == [None, None, 2.5]
