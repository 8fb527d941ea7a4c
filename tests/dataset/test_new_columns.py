"""Columns are added and replaced by expressions and by functions, all rows are one group, and a dataset says what it
reads and how large it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import curate
from curate.arrow.order import Order
from curate.errors import BadRow, ConfigError, CurateError
from curate.exchange.run_file import Segment
from curate.reduce.cuts import cuts
from curate.reduce.index import Index

# By expressions


def test_expressions_see_the_columns_as_they_were() -> None:
    """So that two columns may change places; a new one is last, a replaced one stays where it is."""
    ds = curate.from_arrow(pa.table({"a": [1, 2], "b": [3, 4]}))
    swapped = ds.with_columns({"b": curate.col("a"), "c": curate.col("b") + 1, "a": curate.col("b")})
    assert swapped.take_all() == [{"a": 3, "b": 1, "c": 4}, {"a": 4, "b": 2, "c": 5}]
    assert swapped.schema() == pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())])


def test_one_of_several_is_as_one_by_itself(tmp_path: Path) -> None:
    """Consumed and written, of files of which only what is needed is read, and filters are pushed into the read."""
    pq.write_table(pa.table({"a": range(6), "b": range(6), "c": range(6)}), tmp_path / "in.parquet", row_group_size=2)
    ds = curate.read_parquet(tmp_path / "in.parquet")
    made = ds.with_columns({"d": curate.col("a") * 2}).filter(curate.col("b") > 3).select_columns(["d"])
    chained = ds.with_column("d", curate.col("a") * 2).filter(curate.col("b") > 3).select_columns(["d"])
    assert made.take_all() == chained.take_all() == [{"d": 8}, {"d": 10}]
    physical = made.explain().partition("physical\n")[2]
    assert "1 of 3 row groups" in physical
    assert "columns 'a', 'b'" in physical or "a, b" in physical
    made.write_parquet(tmp_path / "out", backend="inline")
    assert curate.read_parquet(tmp_path / "out").take_all() == made.take_all()


def test_a_filter_on_a_column_that_was_replaced_is_not_pushed(tmp_path: Path) -> None:
    """In the file it is another column."""
    pq.write_table(pa.table({"a": [1, 2], "b": [5, 0]}), tmp_path / "in.parquet", row_group_size=1)
    ds = curate.read_parquet(tmp_path / "in.parquet").with_columns({"a": curate.col("b")})
    assert ds.filter(curate.col("a") > 2).take_all() == [{"a": 5, "b": 5}]


@pytest.mark.parametrize(
    ("exprs", "told"),
    [
        ({}, "takes expressions by the names of their columns"),
        ([("a", 1)], "takes expressions by the names of their columns"),
        ({"a": 3}, r"with_columns\('a'\) takes a pyarrow.compute expression"),
        ({"a": pc.field("x")}, r"with_columns\('a'\): there is no column 'x'"),
    ],
)
def test_what_is_no_column_is_refused(exprs: Any, told: str) -> None:
    """Where it was said."""
    with pytest.raises(ConfigError, match=told):
        curate.range(2).with_columns(exprs)


# By functions


@pytest.mark.parametrize(
    ("batch_format", "fn"),
    [
        ("pyarrow", lambda batch: pc.multiply(batch["n"], 2)),
        ("pyarrow", lambda batch: pc.multiply(batch["n"], 2).to_pylist()),
        ("numpy", lambda batch: batch["n"] * 2),
        ("pandas", lambda batch: batch["n"] * 2),
    ],
)
def test_a_function_gives_a_column(tmp_path: Path, batch_format: str, fn: Any) -> None:
    """As an array, a series or a list, consumed and written, last or in place with the type that it had."""
    ds = curate.from_arrow(pa.table({"n": [1, None, 3], "t": ["a", "b", "c"]}))
    added = ds.add_column("m", fn, batch_format=batch_format)
    assert added.take_all() == [
        {"n": 1, "t": "a", "m": 2},
        {"n": None, "t": "b", "m": None},
        {"n": 3, "t": "c", "m": 6},
    ]
    replaced = ds.add_column("n", fn, batch_format=batch_format)
    assert replaced.schema() == ds.schema()
    assert replaced.take_all()[2] == {"n": 6, "t": "c"}
    replaced.write_parquet(tmp_path / "out", backend="inline")
    assert curate.read_parquet(tmp_path / "out").to_arrow() == replaced.to_arrow()


def test_a_function_is_given_what_it_is_annotated_with() -> None:
    """By both names of it."""

    def more(batch: dict[str, np.ndarray[Any, Any]]) -> Any:
        return batch["id"] + 1

    ds = curate.range(2)
    assert (
        ds.with_column("m", more).take_all()
        == ds.add_column("m", more).take_all()
        == [{"id": 0, "m": 1}, {"id": 1, "m": 2}]
    )


def test_no_option_is_named_that_there_is_not(tmp_path: Path) -> None:
    """A dataset's steps are recorded as parameters are, and nobody gives them."""
    ds = curate.range(3).map(lambda row: {"a": row["id"]}).dedup_exact("b")
    for run in (lambda: ds.take(1), lambda: ds.write_parquet(tmp_path / "out", backend="inline")):
        with pytest.raises(CurateError, match=r"there is no column 'b'; there are 'a'$"):
            run()


class Times:
    """Multiplies."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, batch: Any, plus: int = 0) -> Any:
        return pc.add(pc.multiply(batch["id"], self.factor), plus)


def test_it_runs_where_functions_of_batches_run() -> None:
    """With their arguments; a class in its pool."""
    given: dict[str, Any] = {"fn_constructor_args": [10], "fn_kwargs": {"plus": 1}, "concurrency": 1}
    ds = curate.range(2)
    expected = [{"id": 0, "n": 1}, {"id": 1, "n": 11}]
    assert ds.add_column("n", Times, **given).take_all() == ds.with_column("n", Times, **given).take_all() == expected


def test_a_bad_row_costs_itself() -> None:
    """As everywhere."""

    def refuse(batch: pa.Table) -> pa.Array:
        if 1 in batch["id"].to_pylist():
            raise BadRow("one", batch["id"].to_pylist().index(1))
        return batch["id"]

    assert curate.range(3).add_column("n", refuse).count() == 2


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        (lambda _: [1], r"add_column\('n', <lambda>\) returned 1 values for 3 rows; expected one value per row"),
        (lambda batch: batch, "returned Table, expected one column"),
        (lambda _: pd.DataFrame({"a": [1, 2, 3]}), "returned DataFrame, expected one column"),
        (lambda _: 3, "returned a column 'n' that is not a list of values"),
        (lambda _: "abc", "returned a column 'n' that is not a list of values"),
    ],
)
def test_what_is_no_column_of_these_rows_is_refused(fn: Any, told: str) -> None:
    """Naming operator and column."""
    with pytest.raises(Exception, match=told):
        curate.range(3).add_column("n", fn).take_all()


def test_a_column_has_a_name() -> None:
    """Which is some text."""
    with pytest.raises(ConfigError, match="a column name must be non-empty text"):
        curate.range(3).add_column("", len)


# All rows as one group


def test_all_rows_are_one_group(tmp_path: Path) -> None:
    """For aggregates and for functions, consumed and written; of no rows there is none."""
    ds = curate.range(10).union(curate.range(5))
    made = ds.groupby(None).aggregate([("id", "sum"), (None, "count"), ("id", "max")])
    assert made.take_all() == [{"id_sum": 55, "count": 15, "id_max": 9}]
    assert made.write_parquet(tmp_path / "out", backend="inline").books.rows_out == 1
    assert curate.read_parquet(tmp_path / "out").take_all() == made.take_all()
    groups = ds.groupby(None).map_groups(lambda group: {"rows": [group.num_rows], "last": [group["id"][-1].as_py()]})
    assert groups.take_all() == [{"rows": 15, "last": 4}]
    assert curate.range(0).groupby(None).count().take_all() == []
    assert made.explain().startswith("logical\n  groupby(None).aggregate()")


def test_one_group_is_never_cut() -> None:
    """However large: where pages of no key begin, there is no cut."""
    nothing = pa.table({})
    segments = [Segment(nothing, rows, rows * 100) for rows in (pa.array([5] * 9).to_numpy(), pa.array([7]).to_numpy())]
    index = Index.of(Order(), segments)
    assert cuts(Order(), index, target_bytes=1, count=None, aligned=True).cuts == []
    assert len(cuts(Order(), index, target_bytes=100, count=None, aligned=False).cuts) > 3


# What it reads, and how large it is


def test_it_says_what_it_reads(tmp_path: Path) -> None:
    """Files once each, in order, behind whatever follows; and as how many shards."""
    for name in "ba":
        (tmp_path / f"{name}.jsonl").write_text('{"n": 1}\n')
    ds = curate.read_json(tmp_path)
    files = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    other = curate.read_json(tmp_path / "b.jsonl").union(curate.range(2))
    assert ds.input_files() == ds.filter(curate.col("n") > 1).input_files() == files
    assert other.union(ds).sort("n").input_files() == files[::-1]
    assert curate.range(3).input_files() == []
    assert [ds.num_blocks(), ds.map(len).num_blocks(), other.num_blocks()] == [2, 2, 2]
    assert ds.sort("n").materialize().num_blocks() >= 1
    for behind, name in ((ds.limit(1), r"limit\(1\)"), (ds.sort("n"), r"sort\(n\)"), (ds.zip(ds), "zip")):
        with pytest.raises(ConfigError, match=f"how many shards {name} makes is known only after it has run"):
            behind.num_blocks()


def test_it_says_its_columns_and_its_bytes() -> None:
    """Those that only a function knows by running it, unless that is not wanted."""
    ds = curate.range(10)
    mapped = ds.map(lambda row: {"n": row["id"], "t": ""})
    assert [ds.columns(), mapped.columns(False), mapped.columns()] == [["id"], None, ["n", "t"]]
    assert ds.size_bytes() == 80
    assert ds.filter(curate.col("id") > 7).size_bytes() < 80
    assert ds.schema().names == ["id"]


@pytest.mark.slow
@pytest.mark.ray_lane
@pytest.mark.nightly
@pytest.mark.usefixtures("on_ray")
def test_the_same_on_ray(tmp_path: Path) -> None:
    """What was added runs in tasks and actors of Ray as it runs here, consumed and written."""
    for year in (2023, 2024):
        (tmp_path / "in" / f"year={year}").mkdir(parents=True)
        (tmp_path / "in" / f"year={year}" / "a.csv").write_text("".join(f"{n},t{n}\n" for n in range(40)))
    read = curate.read_csv(tmp_path / "in", column_names=["id", "text"], include_paths=True)
    columns = read.with_columns({"id": curate.col("id") + curate.col("year"), "old": curate.col("id")})
    made = columns.add_column("n", Times, fn_constructor_args=[2], concurrency=(1, 2)).filter(expr=curate.col("n") > 50)
    _, test = made.streaming_train_test_split(0.5, seed=1)
    on_ray, here = test.using(backend="ray"), test.using(backend="inline")
    assert on_ray.take_all() == here.take_all() != []
    assert test.write_parquet(tmp_path / "out").state == "complete"
    assert curate.read_parquet(tmp_path / "out").to_arrow() == here.to_arrow()
    assert on_ray.groupby(None).count().take_all() == [{"count": here.count()}]
    assert on_ray.size_bytes() > 0
    parts = on_ray.train_test_split(5, shuffle=True, seed=2)
    assert [part.take_all() for part in parts] == [
        part.take_all() for part in here.train_test_split(5, shuffle=True, seed=2)
    ]
