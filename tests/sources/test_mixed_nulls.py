"""Files of which some have nulls where the first one has none: such rows are bad, and each is bad once."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate
from curate.dataset.dataset import Dataset
from curate.observe.browse import quarantined
from curate.observe.job import find_job

SHAPES: dict[str, tuple[Callable[[pa.Field], pa.DataType], Callable[[Any], Any]]] = {
    "list": (pa.list_, lambda value: [value]),
    "struct": (lambda field: pa.struct([field]), lambda value: {"element": value}),
    "list of structs": (lambda field: pa.list_(pa.struct([field])), lambda value: [{"element": 0}, {"element": value}]),
    "struct of a list": (lambda field: pa.struct([("a", pa.list_(field))]), lambda value: {"a": [value]}),
    "map": (lambda field: pa.map_(pa.string(), field), lambda value: [("a", value)]),
}
"""What a number lies in that may be null in some files: the type, and a value."""


def mixed(folder: Path, rows: int, bad: set[int], group: int, shape: str = "list") -> Dataset:
    """Row 0 in a file that has no nulls, all others in one that does."""
    folder.mkdir()
    type, value = SHAPES[shape]
    strict, loose = (
        pa.schema([("id", pa.int64()), ("in", type(pa.field("element", pa.int64(), nullable=nulls)))])
        for nulls in (False, True)
    )
    values = [value(None if number in bad else number) for number in range(rows)]
    pq.write_table(pa.table([[0], values[:1]], schema=strict), folder / "0.parquet")
    pq.write_table(pa.table([range(1, rows), values[1:]], schema=loose), folder / "1.parquet", row_group_size=group)
    return curate.read_parquet(folder)


def ids(ds: Dataset) -> list[int]:
    return [row["id"] for row in ds.iter_rows()]


@pytest.mark.parametrize(("seed", "shape"), list(enumerate(SHAPES)))
def test_each_row_of_a_repartition_is_there_once(seed: int, shape: str, tmp_path: Path) -> None:
    """Wherever outputs begin in a row group, and whichever rows of it are bad: these are quarantined by place."""
    numbers = random.Random(seed)
    bad = set(numbers.sample(range(1, 12), 3))
    ds = mixed(tmp_path / "in", 12, bad, numbers.choice([2, 3, 5]), shape).repartition(numbers.choice([3, 4]))
    kept = [number for number in range(12) if number not in bad]
    assert ids(ds) == kept
    summary = ds.write_parquet(tmp_path / "out", backend="inline")
    assert ids(curate.read_parquet(tmp_path / "out")) == kept
    assert (summary.books.rows_in, summary.books.rows_out, summary.books.quarantined) == (12, 9, 3)
    # By their numbers in the second file, whose first row is number 1 of all.
    places = [row.at for _, row in quarantined(find_job(str(tmp_path / "out")))]
    assert places == [f"row {number} of {tmp_path}/in/1.parquet" for number in sorted(bad)]


def test_rows_are_counted_as_they_are_read(tmp_path: Path) -> None:
    """And by the footers, where no row is bad, or nobody reads the column."""
    ds = mixed(tmp_path / "in", 6, {2, 4}, 2)
    for one, count in ((ds, 4), (ds.limit(5), 4), (ds.sort("id"), 4), (ds.union(ds), 8), (ds.select_columns("id"), 6)):
        assert one.count() == len(ids(one)) == count
    assert curate.read_parquet(tmp_path / "in" / "0.parquet").count() == 1
