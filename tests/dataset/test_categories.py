"""Dictionaries of many values: each frame, batch or chunk has its own, numbered in as few bytes as that one needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import curate
from curate.dataset.dataset import Dataset
from tests.support.writes import failed_write

ROWS = 400
VALUES = [f"v{n}" for n in range(ROWS)]

USES: dict[str, Callable[[Dataset], list[Any]]] = {
    "rows": lambda ds: [row["c"] for row in ds.take_all()],
    "batches": lambda ds: [one for batch in ds.iter_batches(batch_size=350) for one in batch["c"].to_pylist()],
    "a table": lambda ds: ds.to_arrow()["c"].to_pylist(),
    "another function": lambda ds: [row["c"] for row in ds.map_batches(lambda batch: batch, batch_size=350).take_all()],
    "a sort": lambda ds: [row["c"] for row in ds.sort("n").take_all()],
}


def with_categories(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(c=pd.Categorical([VALUES[n] for n in frame["n"]]))


def frames(rows: int) -> list[pd.DataFrame]:
    return [with_categories(pd.DataFrame({"n": range(at, min(at + rows, ROWS))})) for at in range(0, ROWS, rows)]


def made_by_a_function(rows: int) -> Dataset:
    numbers = curate.from_pandas(pd.DataFrame({"n": range(ROWS)}))
    return numbers.map_batches(with_categories, batch_format="pandas", batch_size=rows)


def of_chunks(rows: int) -> Dataset:
    """Of 127 rows at most, so that all chunks are of one type."""
    return curate.from_arrow(
        pa.concat_tables(pa.table({"n": one["n"], "c": pa.array(one["c"])}) for one in frames(rows))
    )


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    "made",
    [
        lambda: curate.from_pandas(frames(100)),
        # Of the first frame the numbers take two bytes, of the last one byte.
        lambda: curate.from_pandas(frames(300)),
        lambda: made_by_a_function(100),
        lambda: made_by_a_function(300),
        lambda: of_chunks(100),
        lambda: of_chunks(50),
    ],
)
def test_all_of_them_are_there(made: Callable[[], Dataset], use: str) -> None:
    assert USES[use](made()) == VALUES


def test_dictionaries_that_fit_are_left_as_they_are() -> None:
    """Those that all chunks share, however large, and those whose values together are few."""
    type = pa.dictionary(pa.int8(), pa.string())
    shared = pa.chunked_array(
        [pa.DictionaryArray.from_arrays(pa.array([k], pa.int8()), VALUES[:127]) for k in (0, 126)]
    )
    few = pa.chunked_array([pa.array(VALUES[at : at + 60]).dictionary_encode().cast(type) for at in (0, 60)])
    for column in (shared, few):
        assert curate.from_arrow(pa.table({"c": column})).to_arrow().schema.field("c").type == type


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", None]),
        pa.array(["a", "a"]),
        pa.array([7, None]),
        pa.array([0.5, float("nan")]),
        pa.array([0.0, -0.0]),
        pa.array([0.5, None]),
    ],
    ids=str,
)
def test_what_pandas_takes_for_no_categories(values: pa.Array) -> None:
    """A dictionary of Arrow may have null, NaN, and a value twice."""
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), values)
    ds = curate.from_arrow(pa.table({"c": column, "n": range(3)}))
    expected = [str(one) for one in column.to_pylist()]
    kept = ds.map_batches(lambda batch: batch, batch_format="pandas").to_arrow()["c"]
    assert (kept.type, [str(one) for one in kept.to_pylist()]) == (column.type, expected)
    assert [str(row["c"]) for row in curate.from_pandas(ds.to_pandas()).take_all()] == expected


# Of functions of Arrow


NARROW = pa.dictionary(pa.int8(), pa.string())


def words(numbers: pa.Array) -> pa.Array:
    """A dictionary of its own, of at most 127 values."""
    return pa.array([VALUES[n] for n in numbers.to_pylist()], NARROW)


def in_lists(array: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(range(len(array) + 1), pa.int32()), array)


SHAPES: dict[str, Callable[[pa.Array], pa.Array]] = {
    "values": lambda array: array,
    "in lists": in_lists,
    "in structs of lists": lambda array: pa.StructArray.from_arrays([in_lists(array)], ["s"]),
    "in maps": lambda array: pa.MapArray.from_arrays(
        pa.array(range(len(array) + 1), pa.int32()), pa.array(["k"] * len(array)), array
    ),
}


def in_list_views(array: pa.Array) -> pa.Array:
    places = pa.array(range(len(array)), pa.int32())
    return pa.ListViewArray.from_arrays(places, pa.array([1] * len(array), pa.int32()), array)


def shaped(shape: Callable[[pa.Array], pa.Array]) -> Dataset:
    def with_words(batch: pa.Table) -> pa.Table:
        return batch.append_column("c", shape(words(batch["n"])))

    return curate.from_arrow(pa.table({"n": range(ROWS)})).map_batches(with_words, batch_size=100)


def shaped_by_groups(shape: Callable[[pa.Array], pa.Array]) -> Dataset:
    def with_words(group: pa.Table) -> dict[str, Any]:
        return {"n": group["n"], "c": shape(words(group["n"]))}

    return curate.from_arrow(pa.table({"n": range(ROWS)})).groupby("n").map_groups(with_words)


def shaped_chunks(shape: Callable[[pa.Array], pa.Array]) -> Dataset:
    numbers = pa.chunked_array([range(at, at + 100) for at in range(0, ROWS, 100)])
    return curate.from_arrow(pa.table({"n": numbers, "c": pa.chunked_array(map(shape, map(words, numbers.chunks)))}))


def written(ds: Dataset, folder: Path) -> pa.ChunkedArray:
    assert ds.write_parquet(folder, backend="inline").state == "complete"
    return curate.read_parquet(folder).sort("n").to_arrow()["c"]


TABLES: dict[str, Callable[[Dataset, Path], pa.ChunkedArray]] = {
    "a table": lambda ds, _: ds.to_arrow()["c"],
    "a batch": lambda ds, _: ds.take_batch(ROWS)["c"],
    "a buffer": lambda ds, _: next(iter(ds.iter_batches(batch_size=ROWS, local_shuffle_buffer_size=ROWS)))["c"],
    "another function": lambda ds, _: ds.map_batches(lambda batch: batch, batch_size=350).to_arrow()["c"],
    "a sort": lambda ds, _: ds.sort("n").to_arrow()["c"],
    "a file": written,
}


@pytest.mark.ci(7)
@pytest.mark.parametrize("use", TABLES)
@pytest.mark.parametrize("made", [shaped, shaped_by_groups, shaped_chunks])
@pytest.mark.parametrize("shape", SHAPES)
def test_dictionaries_within_others_have_room_too(
    shape: str, made: Callable[[Any], Dataset], use: str, tmp_path: Path
) -> None:
    found = TABLES[use](made(SHAPES[shape]), tmp_path / "out").to_pylist()
    expected = SHAPES[shape](pa.array(VALUES)).to_pylist()
    assert found == expected if use != "a buffer" else sorted(map(str, found)) == sorted(map(str, expected))


@pytest.mark.parametrize("other", [pa.string(), pa.dictionary(pa.int32(), pa.large_string())])
def test_shards_of_plain_values_go_with_shards_of_dictionaries(other: pa.DataType, tmp_path: Path) -> None:
    """Consumed as written."""

    def with_words(batch: pa.Table) -> pa.Table:
        found = words(batch["n"])
        return batch.append_column("c", found.cast(pa.string()).cast(other) if batch["n"][0].as_py() else found)

    ds = curate.from_arrow([pa.table({"n": range(at, at + 100)}) for at in range(0, ROWS, 100)]).map_batches(with_words)
    for use in ("a table", "a batch", "another function", "a sort", "a file"):
        assert TABLES[use](ds, tmp_path / "out").to_pylist() == VALUES


def test_what_has_no_room_is_refused_with_its_column(tmp_path: Path) -> None:
    """Consumed as written: of list views, which Arrow does not cast."""
    refused = "column 'c' is list_view.*: cast it first to plain values.* or to wider indexes"
    with pytest.raises(curate.CurateError, match=refused):
        TABLES["a buffer"](shaped(in_list_views), tmp_path)
    summary = failed_write(shaped(in_list_views).write_parquet, tmp_path / "out", backend="inline")
    [failure] = summary.failures
    assert re.search(refused, failure.error)


@pytest.mark.ci(1)
@pytest.mark.slow
@pytest.mark.parametrize("rows", [100, 350])
def test_a_job_may_return_dictionaries_of_narrow_indexes(rows: int, tmp_path: Path) -> None:
    class Words(curate.Job):
        """Gives each row a word."""

        batch_size = 100

        def process(self, batch: pa.Table) -> pa.Table:
            return batch.append_column("c", words(batch["n"]))

    curate.from_arrow(pa.table({"n": range(ROWS)})).repartition(-(-ROWS // rows)).write_parquet(tmp_path / "in")
    assert Words().run(input=tmp_path / "in", output=tmp_path / "out", backend="inline").state == "complete"
    assert curate.read_parquet(tmp_path / "out").sort("n").to_arrow()["c"].to_pylist() == VALUES
