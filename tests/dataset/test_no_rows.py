"""Functions of the user that leave no row: nobody knows then which columns there would have been, and all goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import curate
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError

ROWS = [{"n": 1, "k": "a"}, {"n": 2, "k": "b"}]


def nothing(row: dict[str, Any]) -> list[dict[str, Any]]:
    del row
    return []


def some() -> Dataset:
    return curate.from_items(ROWS)


def none() -> Dataset:
    return some().flat_map(nothing)


SHAPES: dict[str, tuple[Callable[[], Dataset], list[dict[str, Any]]]] = {
    "sort": (lambda: none().sort("n"), []),
    "sort, twice": (lambda: none().sort("n").sort("k"), []),
    "sort, then operators": (lambda: none().sort("n").filter(lambda _: True).with_column("m", pc.field("n")), []),
    "limit": (lambda: none().limit(3), []),
    "sort and limit": (lambda: none().sort("n").limit(3), []),
    "random_shuffle": (lambda: none().random_shuffle(seed=1), []),
    "repartition": (lambda: none().repartition(2), []),
    "distinct": (lambda: none().distinct("n"), []),
    "sum of groups": (lambda: none().groupby("k").sum("n"), []),
    "count of groups": (lambda: none().groupby("k").count(), []),
    "map_groups": (lambda: none().groupby("k").map_groups(lambda group: group), []),
    "dedup_exact": (lambda: none().dedup_exact("n"), []),
    "dedup_minhash": (lambda: none().dedup_minhash("k", id_column="n"), []),
    "zip": (lambda: none().zip(none()), []),
    "union": (lambda: some().union(none()), ROWS),
    "sort of a union": (lambda: none().union(some()).sort("n"), ROWS),
    "join of both": (lambda: none().join(none(), on="n"), []),
    "inner join": (lambda: some().join(none(), on="n"), []),
    "left join": (lambda: some().join(none(), on="n", how="left"), ROWS),
    "right join": (lambda: none().join(some(), on="n", how="right"), ROWS),
    "outer join": (lambda: none().join(some(), on="n", how="outer"), ROWS),
    "semi join": (lambda: some().join(none(), on="n", how="semi"), []),
    "anti join": (lambda: some().join(none(), on="n", how="anti"), ROWS),
    "broadcast inner join": (lambda: some().join(none(), on="n", broadcast=True), []),
    "broadcast left join": (lambda: some().join(none(), on="n", how="left", broadcast=True), ROWS),
    "broadcast anti join": (lambda: some().join(none(), on="n", how="anti", broadcast=True), ROWS),
}


@pytest.mark.ci(13)
@pytest.mark.quick(6)
@pytest.mark.parametrize("shape", SHAPES)
def test_as_of_an_empty_list(shape: str, tmp_path: Path) -> None:
    """Consumed and written; the books balance, and a rerun has nothing to do."""
    made, expected = SHAPES[shape]
    assert made().take_all() == expected
    assert made().count() == len(expected)
    ended = made().write_parquet(tmp_path / "out", backend="inline")
    assert (ended.state, ended.books.balanced(), ended.books.rows_out) == ("complete", True, len(expected))
    assert made().write_parquet(tmp_path / "out", backend="inline").dispatched == 0
    if expected:
        assert curate.read_parquet(tmp_path / "out").take_all() == expected


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    """Joined, and kept."""
    empty = curate.from_arrow(pa.schema([("n", pa.int64()), ("m", pa.string())]).empty_table())
    for ds in (
        some().join(empty, on="n", how="left"),
        empty.join(some(), on="n", how="right").select_columns(["n", "m"]),
    ):
        assert ds.sort("n").take(1)[0]["m"] is None
        assert ds.with_column("has", pc.is_valid(pc.field("m"))).take(1)[0]["has"] is False
    assert empty.checkpoint(tmp_path / "kept").take_all() == []
    assert empty.checkpoint(tmp_path / "kept").schema().names == ["n", "m"]


def test_no_column_is_refused() -> None:
    """Rows of none could not be told apart, nor counted in a file."""
    with pytest.raises(ConfigError, match="would leave no column"):
        some().drop_columns(["n", "k"])
    with pytest.raises(ConfigError, match="would leave no column"):
        some().select_columns([])
    with pytest.raises(ConfigError, match="would leave no column"):
        some().map(lambda row: row).drop_columns(["n", "k"]).take_all()


@pytest.mark.parametrize("name", ["sum", "min", "max", "mean", "std", "quantile"])
def test_aggregates(name: str) -> None:
    """Of nothing there is none."""
    assert getattr(none(), name)("n") is None


def test_a_wrong_name_is_still_told() -> None:
    """Where there are rows."""
    with pytest.raises(curate.CurateError, match="there is no column 'm'"):
        some().flat_map(lambda row: [row]).sort("m").take_all()


@pytest.mark.parametrize(
    ("shape", "columns"),
    [
        (lambda one, other: one.zip(other), ["x", "y"]),
        (lambda one, other: one.zip(other, one), ["x", "y", "x_1"]),
        (lambda one, other: one.union(other), ["x", "y"]),
        (lambda one, other: one.union(other).with_column("z", pc.field("x")), ["x", "y", "z"]),
        (lambda one, other: one.zip(other).rename_columns({"x": "z"}), ["z", "y"]),
        (lambda one, other: one.union(other).limit(2), ["x", "y"]),
        (lambda one, other: one.zip(other).limit(2).drop_columns("x"), ["y"]),
        (lambda one, other: one.union(other).zip(other), ["x", "y", "y_1"]),
        (lambda _, __: some().map(lambda row: {"x": row["n"]}).limit(0), ["x"]),
        (lambda _, __: some().limit(0).map(lambda row: {"x": row["n"]}).union(some()).limit(0), ["n", "k"]),
    ],
    ids=[
        *("zip", "of three", "union", "and a column", "zip, renamed", "union, limit", "zip, limit", "union, zip"),
        *("limit 0", "before, and of a union"),
    ],
)
def test_parts_without_a_row_have_the_columns_that_a_write_has(
    shape: Callable[[Dataset, Dataset], Dataset], columns: list[str], tmp_path: Path
) -> None:
    """Those of each part, which its function tells of rows that are left out then."""
    one = some().map(lambda row: {"x": row["n"]}).filter(lambda _: False)
    other = some().map(lambda row: {"y": row["k"]}).filter(lambda _: False)
    found = shape(one, other)
    assert found.write_parquet(tmp_path / "out", backend="inline").state == "complete"
    assert found.schema() == found.to_arrow().schema == curate.read_parquet(tmp_path / "out").schema()
    assert found.schema().names == columns
