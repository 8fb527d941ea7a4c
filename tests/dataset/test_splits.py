"""A dataset is parted into others: each row is in one of them, in order, and the same ones each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import curate
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.objects.record import OutputFormat
from curate.stage.job_record import JobRecord


def ids(ds: Dataset) -> list[int]:
    return [row["id"] for row in ds.iter_rows()]


@given(st.integers(0, 20), st.lists(st.integers(0, 25), min_size=1, max_size=4).map(sorted))
def test_parts_are_slices_of_a_list(rows: int, indices: list[int]) -> None:
    """Cut at numbers of rows, as numpy cuts an array; beyond the last row there is nothing."""
    expected = [list(map(int, part)) for part in np.split(np.arange(rows), indices)]
    assert [ids(part) for part in curate.range(rows).split_at_indices(indices)] == expected


@pytest.mark.parametrize(
    ("proportions", "counts"),
    [([0.2, 0.5], [2, 5, 3]), ([0.7, 0.1], [7, 1, 2]), ([0.05, 0.05], [0, 1, 9]), ([0.99], [9, 1])],
)
def test_parts_are_of_these_proportions(proportions: list[float], counts: list[int]) -> None:
    """As they are written: 0.7 and 0.1 are 0.8, which is not so of floats. The last part is the rest."""
    assert [part.count() for part in curate.range(10).split_proportionately(proportions)] == counts


@pytest.mark.parametrize(("size", "train"), [(0.25, 6), (2, 6), (7, 1), (0.1, 7), (0.3, 5)])
def test_the_test_set_is_the_last_rows(size: float, train: int) -> None:
    """Of a number, or of a proportion, rounded up."""
    parts = curate.range(8).train_test_split(size)
    assert [ids(part) for part in parts] == [list(range(train)), list(range(train, 8))]


def test_a_shuffled_split_goes_by_its_seed() -> None:
    """Each row is in one of the two, the same ones for the same seed; and the function before it runs once."""
    ds = curate.range(50)
    train, test = ds.train_test_split(0.2, shuffle=True, seed=1)
    assert ids(train) + ids(test) == ids(ds.random_shuffle(seed=1))
    assert ids(test) == ids(ds.train_test_split(0.2, shuffle=True, seed=1)[1]) != list(range(40, 50))


@pytest.mark.parametrize("by", [{"seed": 3}, {"split_type": "hash", "hash_column": "id"}])
def test_two_lazy_sides_have_each_row_once(tmp_path: Path, by: dict[str, Any]) -> None:
    """In order, consumed and written; a write books the rows of the other side."""
    pq.write_table(pa.table({"id": range(500), "n": [0] * 500}), tmp_path / "in.parquet", row_group_size=100)
    ds = curate.read_parquet(tmp_path / "in.parquet")
    sides = ds.streaming_train_test_split(0.2, **by)
    assert ds.streaming_train_test_split(0.2, **by) == sides
    found = [ids(side) for side in sides]
    assert sorted(found[0] + found[1]) == list(range(500))
    assert [one == sorted(one) for one in found] == [True, True]
    assert 70 < len(found[1]) < 130
    for side, rows, name in zip(sides, found, ("train", "test"), strict=True):
        summary = side.write_parquet(tmp_path / name, backend="inline")
        assert summary.books.dropped == {"train_test_split": 500 - len(rows)}
        assert ids(curate.read_parquet(tmp_path / name)) == rows
        assert ids(side.select_columns("id")) == rows
        assert [row["n"] for row in side.select_columns("n").iter_rows()] == [0] * len(rows)


def test_sides_share_no_row_whichever_columns_each_is_asked_for(tmp_path: Path) -> None:
    """Also where rows are set aside for a column that one of them does not read."""
    strict = pa.list_(pa.field("element", pa.int64(), nullable=False))
    pq.write_table(pa.table({"id": [0], "v": pa.array([[1]], strict)}), tmp_path / "0.parquet")
    values = [[None] if row % 9 == 4 else [row] for row in range(1, 60)]
    pq.write_table(pa.table({"id": range(1, 60), "v": values}), tmp_path / "1.parquet")
    train, test = curate.read_parquet(tmp_path / "*.parquet").streaming_train_test_split(0.4, seed=1)
    train = train.select_columns(["id"])
    assert sorted(ids(train) + ids(test)) == [row for row in range(60) if row % 9 != 4]
    for name, side in (("train", train), ("test", test)):
        side.write_parquet(tmp_path / name, backend="inline")
        assert ids(curate.read_parquet(tmp_path / name)) == ids(side)


def test_sides_by_a_sample_are_a_sample_and_the_rest() -> None:
    """The test side is what `random_sample` takes by the same seed."""
    train, test = curate.range(300).streaming_train_test_split(0.3, seed=5)
    sampled = ids(curate.range(300).random_sample(0.3, seed=5))
    assert ids(test) == sampled
    assert ids(train) == [number for number in range(300) if number not in set(sampled)]


def test_sides_by_a_hash_keep_equal_values_together(tmp_path: Path) -> None:
    """Wherever their rows are: in other files, in other rows, null too."""
    authors = ["ann", "bob", None, "cid", "dan", "eve", "fay", "gil"]
    for name, turn in (("a", 1), ("b", -1)):
        pq.write_table(pa.table({"author": authors[::turn] * 3}), tmp_path / f"{name}.parquet")
    sides = curate.read_parquet(tmp_path).streaming_train_test_split(0.4, split_type="hash", hash_column="author")
    train, test = (side.unique("author") for side in sides)
    assert sorted([*train, *test], key=str) == sorted(authors, key=str)
    assert train
    assert test
    assert [side.count() for side in sides] == [6 * len(train), 6 * len(test)]


def test_a_split_behind_a_limit_is_written_as_it_is_consumed(tmp_path: Path) -> None:
    """As a sample is: by what an exchange gives."""
    _, test = curate.range(100).limit(60).streaming_train_test_split(0.5, seed=1)
    rows = ids(test)
    assert 10 < len(rows) < 50
    assert test.write_parquet(tmp_path / "out", backend="inline").state == "complete"
    assert ids(curate.read_parquet(tmp_path / "out")) == rows


def test_sides_behind_a_shuffle_share_no_row(tmp_path: Path) -> None:
    """Each side runs it: one whose order nobody has chosen is refused, unless values decide, or it was written."""
    rows = curate.range(200)
    for shuffled in (rows.random_shuffle(), rows.repartition(3, shuffle=True).random_shuffle(seed=1)):
        with pytest.raises(ConfigError, match=r"could be on both sides or on none; give random_shuffle"):
            shuffled.streaming_train_test_split(0.3, seed=1)
    for ds, by in (
        (rows.random_shuffle(seed=4), {}),
        (rows.random_shuffle(), {"split_type": "hash", "hash_column": "id"}),
        (rows.random_shuffle().checkpoint(tmp_path / "kept"), {}),
    ):
        train, test = ds.streaming_train_test_split(0.3, **by)
        assert sorted([*ids(train), *ids(test)]) == list(range(200))


@pytest.mark.parametrize(
    ("method", "given", "told"),
    [
        ("split_at_indices", {"indices": []}, "at least one"),
        ("split_at_indices", {"indices": [3, 2]}, "in ascending order"),
        ("limit", {"limit": 10**30}, "expected a whole number, at most 9,223,372,036,854,775,807"),
        ("map_batches", {"fn": len, "batch_size": 2**63}, "expected a whole number, at most 9,223,372,036,854,775,807"),
        ("repartition", {"num_shards": 10**30}, "expected a whole number, at most 10,000,000"),
        ("random_sample", {"fraction": 0.5, "seed": 2**64}, "a whole number, at most 18,446,744,073,709,551,615"),
        ("split_at_indices", {"indices": [-1]}, "an index is -1, expected a whole number, at least 0"),
        ("split_proportionately", {"proportions": []}, "sum is below 1"),
        ("split_proportionately", {"proportions": [0.5, 0.5]}, "sum is below 1"),
        ("split_proportionately", {"proportions": [0.0]}, "0.0 is not a fraction"),
        ("train_test_split", {"test_size": 1.0}, "1.0 is not a fraction"),
        ("train_test_split", {"test_size": 0}, "test_size is 0, expected a whole number, at least 1"),
        ("train_test_split", {"test_size": 4}, "there are 4 rows; take fewer"),
        ("train_test_split", {"test_size": 0.5, "seed": -1}, "seed is -1"),
        ("train_test_split", {"test_size": 0.5, "stratify": "id"}, "split each class separately"),
        ("streaming_train_test_split", {"test_size": 2}, "2 is not a fraction"),
        ("streaming_train_test_split", {"test_size": 0.5, "split_type": "hash"}, "the column with hash_column"),
        ("streaming_train_test_split", {"test_size": 0.5, "hash_column": "id"}, "the column with hash_column"),
        ("streaming_train_test_split", {"test_size": 0.5, "split_type": "by"}, "split_type='random', or"),
        (
            "streaming_train_test_split",
            {"test_size": 0.5, "split_type": "hash", "hash_column": "ids"},
            "no column 'ids'; did you mean 'id'",
        ),
    ],
)
def test_what_is_no_split_is_refused(method: str, given: dict[str, Any], told: str) -> None:
    """With what was expected."""
    with pytest.raises(ConfigError, match=told):
        getattr(curate.range(4), method)(**given)


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("split_off", {"parts": {"test": 0.1}, "column": "id", "cluster_column": ""}),
        ("dedup_exact", {"columns": ["id"], "id_column": ""}),
        ("dedup_exact", {"columns": ["id"], "priority": ""}),
        ("dedup_paragraphs", {"column": "id", "id_column": ""}),
        ("dedup_minhash", {"column": "id", "id_column": ""}),
    ],
)
def test_a_column_without_a_name_is_one_that_is_not_there(method: str, given: dict[str, Any]) -> None:
    """An empty option of a command is not one that was left out."""
    rows = curate.from_items([{"id": "a"}, {"id": "b"}])
    with pytest.raises(ConfigError, match=r"there is no column ''; there are 'id'"):
        getattr(rows, method)(**given)


def test_a_number_that_no_identity_can_have_is_refused() -> None:
    """Before anything is written."""
    with pytest.raises(ConfigError, match=f"{10**30} is too large; expected a number from"):
        JobRecord("numbered", {"parameters": {"n": 10**30}}, OutputFormat.PARQUET, "zstd")
