"""Groups, distinct rows, joins and aggregates of a dataset, through files: the same as DuckDB, written or consumed."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import curate
from curate.arrow.canonical import conform_plain, plain_schema
from curate.errors import ConfigError, SchemaMismatch
from curate.exchange.kinds.aggregates import Sum
from curate.exchange.kinds.group import Grouped
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import BatchPosition
from tests.exchange.local import same, sort_key

NAN = float("nan")


@pytest.fixture
def comments(tmp_path: Path) -> Any:
    """Four files of rows, one of them empty, with nulls among keys and values."""
    rng = np.random.default_rng(11)
    for number, rows in enumerate([700, 0, 900, 400]):
        table = pa.table(
            {
                "user": pa.array(rng.choice(["ann", "bob", "cé", ""], rows), pa.string(), mask=rng.random(rows) < 0.1),
                "day": pa.array(rng.integers(0, 20, rows), pa.int32()),
                "score": pa.array(rng.integers(-50, 50, rows), mask=rng.random(rows) < 0.1),
                "weight": rng.normal(size=rows),
            }
        )
        pq.write_table(table, tmp_path / f"in-{number}.parquet")
    return curate.read_parquet(tmp_path / "*.parquet")


def by_duckdb(query: str, **tables: Any) -> list[dict[str, Any]]:
    """Returns the rows of a query over datasets, by what they are called in it."""
    connection = duckdb.connect()
    for name, dataset in tables.items():
        connection.register(name, dataset.to_arrow())
    found: list[dict[str, Any]] = connection.sql(query).to_arrow_table().to_pylist()
    return found


def test_aggregates_of_groups_are_those_of_duckdb(comments: Any) -> None:
    """In order of the keys, null last, with the names that Arrow gives."""
    wanted = by_duckdb(
        """select "user", day, count(*) as count, sum(score)::bigint as score_sum, min(score) as score_min,
           max(score) as score_max, avg(score) as score_mean, stddev_samp(score) as score_std,
           count(score) as score_count, sum(weight) as weight_sum
           from comments group by all order by "user" nulls last, day""",
        comments=comments,
    )
    functions = ("sum", "min", "max", "mean", "std", "count")
    wanted_pairs = [(None, "count"), *(("score", one) for one in functions), ("weight", "sum")]
    found = comments.groupby(["user", "day"]).aggregate(wanted_pairs)
    assert same(found.take_all(), wanted)
    assert comments.groupby("user").sum(["score", "weight"]).schema().names == ["user", "score_sum", "weight_sum"]


def test_groups_are_written_once_and_their_books_balance(comments: Any, tmp_path: Path) -> None:
    """Rows that became part of a group are dropped as grouped; what is there is not made again."""
    means = comments.groupby("day").mean("score")
    summary = means.write_parquet(tmp_path / "out", backend="inline")
    assert summary.books.balanced()
    assert summary.books.rows_out == 20
    assert curate.read_parquet(tmp_path / "out").take_all() == means.take_all()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")}
    means.write_parquet(tmp_path / "out", backend="inline")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")} == before


def test_a_function_of_groups_is_given_each_once(comments: Any) -> None:
    """Classes too, in a pool of actors; what follows is fused to it."""

    class Ranked:
        def __init__(self, by: str) -> None:
            self.by = by

        def __call__(self, group: Any) -> Any:
            return {"user": group["user"][:1], "best": [max(group[self.by])], "rows": [len(group[self.by])]}

    pool = curate.ActorPool(size=2)
    made = comments.groupby("user").map_groups(
        Ranked, fn_constructor_args=["weight"], batch_format="numpy", compute=pool
    )
    wanted = by_duckdb(
        'select "user", max(weight) as best, count(*) as rows from c group by all order by "user" nulls last',
        c=comments,
    )
    assert same(made.take_all(), wanted)
    assert [row["rows"] for row in made.filter(lambda row: row["user"] == "bob").take_all()] == [
        row["rows"] for row in wanted if row["user"] == "bob"
    ]


def test_one_row_of_each_key_is_kept(comments: Any) -> None:
    rows = comments.take_all()
    firsts: dict[Any, Any] = {}
    best: dict[Any, Any] = {}
    for row in rows:
        firsts.setdefault(row["day"], row)
        if row["day"] not in best or row["weight"] > best[row["day"]]["weight"]:
            best[row["day"]] = row
    assert comments.distinct("day").take_all() == [firsts[day] for day in sorted(firsts)]
    assert comments.distinct("day", keep="last", order_by="weight").take_all() == [best[day] for day in sorted(best)]
    assert comments.select_columns(["user", "day"]).distinct().count() == len(
        {(row["user"], row["day"]) for row in rows}
    )


@pytest.mark.quick(1)
@pytest.mark.ci(3)
@pytest.mark.parametrize("how", ["inner", "left", "right", "outer", "semi", "anti"])
def test_joins_are_those_of_duckdb(how: str, comments: Any) -> None:
    """The key once, whichever side has it, and rows in order of the key."""
    users = curate.from_items(
        [{"name": name, "age": age} for name, age in [("bob", 3), ("", 1), ("dan", 4), ("bob", 5)]]
    )
    few = comments.filter(pc.field("weight") > 1.5).select_columns(["user", "weight"])
    found = few.join(users, on="user", how=how, right_on="name")
    kind, columns = ("full" if how == "outer" else how), "one.user, weight"
    if how not in ("semi", "anti"):
        columns = 'coalesce(one."user", two.name) as "user", weight, age'
    wanted = by_duckdb(f'select {columns} from one {kind} join two on one."user" = two.name', one=few, two=users)
    assert found.schema().names == list(wanted[0])

    def placed(row: dict[str, Any]) -> list[Any]:
        return [sort_key(value) for value in row.values()]

    rows = found.take_all()
    assert [sort_key(row["user"]) for row in rows] == sorted(sort_key(row["user"]) for row in rows)
    assert sorted(rows, key=placed) == sorted(wanted, key=placed)
    if how in ("inner", "left", "semi", "anti"):
        broadcast = few.join(users, on="user", how=how, right_on="name", broadcast=True)
        assert sorted(broadcast.take_all(), key=placed) == sorted(rows, key=placed)


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer", "semi", "anti"])
def test_a_side_of_which_no_row_is_left_joins_as_none(how: str) -> None:
    one, none = curate.range(3), curate.range(3).filter(lambda row: row["id"] > 5)
    every = [{"id": 0}, {"id": 1}, {"id": 2}]
    assert one.join(none, on="id", how=how).take_all() == (every if how in ("left", "outer", "anti") else [])
    assert none.join(one, on="id", how=how).take_all() == (every if how in ("right", "outer") else [])


@pytest.mark.parametrize("how", ["inner", "outer", "anti"])
@pytest.mark.parametrize("other", [1.0, "a"])
def test_keys_of_other_types_are_refused_in_a_line(how: str, other: Any, tmp_path: Path) -> None:
    """Those that functions made too, which are known once they have run."""
    one = curate.from_items([{"k": 1, "a": 1}])
    two = curate.from_items([{"k": other, "z": 1}])
    with pytest.raises(ConfigError, match="keys must have one type"):
        one.join(two, on="k", how=how)
    made = one.map(lambda row: row).join(two, on="k", how=how)
    with pytest.raises(ConfigError, match="the key 'k' is int64 on one side and "):
        made.take_all()
    with pytest.raises(ConfigError, match="the key 'k' is int64 on one side and "):
        made.write_parquet(tmp_path / "out", backend="inline")


def times(type: pa.DataType, *seconds: int) -> pa.Array:
    """Returns days, or seconds, as a type stores them."""
    if pa.types.is_date(type):
        return pa.array(seconds, pa.int32()).view(pa.date32()).cast(type)
    each = 1000 ** ["s", "ms", "us", "ns"].index(type.unit)
    return pa.array([each * one for one in seconds], pa.int32() if type.bit_width == 32 else pa.int64()).view(type)


@pytest.mark.ci(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other"),
    [
        *itertools.combinations([pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")], 2),
        *itertools.combinations([pa.duration("s"), pa.duration("us"), pa.duration("ns")], 2),
        (pa.timestamp("s"), pa.timestamp("ns")),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")),
        (pa.date32(), pa.date64()),
    ],
    ids=str,
)
def test_times_of_two_units_are_put_together(one: pa.DataType, other: pa.DataType, tmp_path: Path) -> None:
    """In unions, joins and files, either way round: Parquet stores some of them as others, so that what was written
    was refused beside what it was made of."""
    for left, right in ((one, other), (other, one)):
        rows = curate.from_arrow(pa.table({"v": times(left, 1, 2, 3), "a": [1, 2, 3]}))
        others = curate.from_arrow(pa.table({"v": times(right, 4, 3, 2), "b": [4, 3, 2]}))
        both = rows.select_columns(["v"]).union(others.select_columns(["v"])).to_arrow()["v"].combine_chunks()
        assert both.equals(times(other, 1, 2, 3, 4, 3, 2))
        for broadcast in (False, True):
            joined = rows.join(others, on="v", broadcast=broadcast).to_arrow()
            assert joined["v"].combine_chunks().equals(times(other, 2, 3))
            assert joined["b"].to_pylist() == [2, 3]
        assert rows.join(others, on="v", how="outer").to_arrow()["a"].to_pylist() == [1, 2, 3, None]
        rows.write_parquet(tmp_path / str(left), backend="inline")
    read = curate.read_parquet(f"{tmp_path}/*/*", schema=pa.schema([("v", other), ("a", pa.int64())]))
    assert read.filter(curate.col("v") == times(other, 2)[0]).to_arrow()["a"].to_pylist() == [2, 2]


@pytest.mark.slow
@pytest.mark.usefixtures("no_backoff")
def test_a_key_that_a_finer_unit_has_no_room_for_fails_by_name() -> None:
    far, near = pa.array([2**40]).view(pa.timestamp("s")), pa.array([1]).view(pa.timestamp("ns"))
    rows, others = curate.from_arrow(pa.table({"v": far})), curate.from_arrow(pa.table({"v": near}))
    with pytest.raises(curate.CurateError, match=r"column 'v' is timestamp\[s\], expected timestamp\[ns\]"):
        rows.join(others, on="v").take_all()


def test_aggregates_of_all_rows_are_those_of_duckdb(comments: Any) -> None:
    """A value for a column, a dictionary for several; None of nothing."""
    [wanted] = by_duckdb(
        """select sum(score)::bigint as score_sum, min(score) as score_min, max(score) as score_max,
           avg(score) as score_mean, stddev_samp(score) as score_std, quantile_cont(score, 0.5) as score_quantile
           from comments""",
        comments=comments,
    )
    for name, value in wanted.items():
        assert getattr(comments, name.removeprefix("score_"))("score") == pytest.approx(value)
    assert comments.max(["score", "day"]) == {"score_max": wanted["score_max"], "day_max": 19}
    found = comments.aggregate([("score", "mean"), (None, "count")])
    assert found == {"score_mean": pytest.approx(wanted["score_mean"]), "count": 2000}
    nothing = comments.filter(pc.field("day") < 0)
    assert nothing.aggregate([("score", "sum"), (None, "count"), ("day", "list")]) == {
        "score_sum": None,
        "count": 0,
        "day_list": [],
    }


def test_the_values_of_a_column_come_once_in_order(comments: Any) -> None:
    assert comments.unique("user") == ["", "ann", "bob", "cé", None]
    assert comments.unique("day") == list(range(20))
    floats = curate.from_items([{"x": one} for one in (1.5, NAN, None, -0.0, NAN, 0.0)])
    assert same(floats.unique("x"), [-0.0, 1.5, NAN, None])


def test_what_cannot_be_is_refused_where_it_is_said(comments: Any) -> None:
    """With both types for keys of two sides, before anything runs."""
    with pytest.raises(ConfigError, match="there is no column 'usr'; did you mean 'user'"):
        comments.groupby("usr")
    with pytest.raises(ConfigError, match="cannot compute mean of column 'user' of type string; expected numbers"):
        comments.groupby("day").mean("user")
    with pytest.raises(ConfigError, match="the key 'user' is string on the left, 'id' is int64 on the right"):
        comments.join(curate.range(3), on="user", right_on="id")
    with pytest.raises(ConfigError, match="would make 2 columns called 'score_r'"):
        comments.rename_columns({"weight": "score_r"}).join(comments, on="day", right_suffix="_r")
    with pytest.raises(ConfigError, match="did you mean 'left'"):
        comments.join(comments, on="day", how="lef")
    with pytest.raises(ConfigError, match="leave broadcast out"):
        comments.join(comments, on="day", how="outer", broadcast=True)
    with pytest.raises(ConfigError, match="distinct: keep='frist'; did you mean 'first'"):
        comments.distinct("day", keep="frist")
    with pytest.raises(ConfigError, match="name the keys"):
        comments.map(lambda row: row).distinct()


def test_a_type_that_changes_is_told_of_the_column_that_has_it() -> None:
    """Rows are partial results by then, in columns that nobody gave a name."""

    def made(row: dict[str, Any]) -> dict[str, Any]:
        return {"m": 1, "n": row["n"] + 0.5 if row["n"] else 0}

    ds = curate.from_items([{"n": 0}, {"n": 1}]).map_batches(lambda batch: batch, batch_size=1).map(made)
    for function in ("sum", "min", "first", "list"):
        with pytest.raises(SchemaMismatch, match=f"the {function} of 'n' is double, expected int64"):
            ds.aggregate([("m", "mean"), ("n", function), (None, "count")])
    # Groups are held to a schema where they are put into run files.
    [partials] = Grouped("", ("k",), (Sum("n"),)).prepare(0)
    whole, other = (pa.table({"k": [1], "n": [one]}) for one in (1, 1.5))
    schema = plain_schema(partials.made(whole.schema))
    [rows] = partials.apply(other, ShardBooks(BadRowBudget("0")), BatchPosition("", 0))
    with pytest.raises(SchemaMismatch, match="the sum of 'n' is double, expected int64"):
        conform_plain(rows, schema)
