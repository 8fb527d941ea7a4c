"""Dictionaries of many values: each frame, batch or chunk has its own, numbered in as few bytes as that one needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import curate
from curate.dataset.dataset import Dataset

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
