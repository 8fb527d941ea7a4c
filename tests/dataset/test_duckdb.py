"""Exchanges give what DuckDB gives, over the data that they are measured with."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate

ROOT = Path(__file__).parents[2]
ROWS = 60_000
FILES = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from benches.rows import exchange_rows
    finally:
        sys.path.pop(0)
    made = tmp_path_factory.mktemp("duckdb")
    each = ROWS // FILES
    for number in range(FILES):
        pq.write_table(exchange_rows(number * each, each), made / f"{number}.parquet", row_group_size=2000)
    return made


@pytest.fixture
def rows(folder: Path) -> curate.Dataset:
    return curate.read_parquet(folder).using(backend="inline")


def asked(folder: Path, query: str) -> list[dict[str, Any]]:
    """Returns the rows of a query over `rows`."""
    with duckdb.connect() as connection:
        connection.execute(f"create view rows as select * from read_parquet('{folder}/*.parquet')")
        found: list[dict[str, Any]] = connection.sql(query).to_arrow_table().to_pylist()
        return found


def same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert list(one.values()) == pytest.approx(list(other.values()), rel=1e-9)


def test_sort_by_several_keys(rows: curate.Dataset, folder: Path) -> None:
    made = rows.sort(["group", "key"], descending=[True, False])
    table = made.to_arrow()
    wanted = asked(folder, 'select * from rows order by "group" desc, key')
    assert table.equals(pa.Table.from_pylist(wanted, schema=table.schema))


def test_groups(rows: curate.Dataset, folder: Path) -> None:
    aggregates = [
        ("value", "sum"),
        ("value", "min"),
        ("key", "max"),
        ("score", "mean"),
        ("score", "std"),
        (None, "count"),
    ]
    made = rows.groupby("group").aggregate(aggregates).take_all()
    query = (
        'select "group", sum(value)::bigint, min(value), max(key), avg(score), stddev_samp(score), count(*) '
        'from rows group by "group" order by "group"'
    )
    same(made, asked(folder, query))


def test_quantiles_and_totals(rows: curate.Dataset, folder: Path) -> None:
    same(
        rows.groupby("group").quantile("score", 0.9).take_all(),
        asked(folder, 'select "group", quantile_cont(score, 0.9) from rows group by "group" order by "group"'),
    )
    (totals,) = asked(folder, "select sum(value)::bigint, avg(score), stddev_samp(score) from rows")
    assert [rows.sum("value"), rows.mean("score"), rows.std("score")] == pytest.approx(list(totals.values()), rel=1e-9)


def test_distinct(rows: curate.Dataset, folder: Path) -> None:
    made = rows.select_columns(["group", "value"]).distinct(["group", "value"]).take_all()
    assert made == asked(folder, 'select distinct "group", value from rows order by 1, 2')
    latest = rows.distinct("group", keep="first", order_by="key").select_columns(["group", "key", "id"]).take_all()
    query = 'select "group", min(key) as key, arg_min(id, key) as id from rows group by "group" order by "group"'
    assert latest == asked(folder, query)


@pytest.mark.ci(3)
@pytest.mark.quick(1)
@pytest.mark.parametrize("how", ["inner", "left", "right", "outer", "semi", "anti"])
def test_joins(how: str, rows: curate.Dataset, folder: Path) -> None:
    left = rows.select_columns(["group", "id"]).filter(lambda row: row["id"] % 40 == 0)
    right = rows.select_columns(["group", "key"]).filter(lambda row: row["group"] % 3 == 0 and row["key"] % 50 == 0)
    made = left.join(right, on="group", how=how)
    named = {"outer": "full outer"}.get(how, how)
    query = (
        f'select * from (select "group", id from rows where id % 40 = 0) l {named} join '
        '(select "group", key from rows where "group" % 3 = 0 and key % 50 = 0) r using ("group")'
    )

    def ordered(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return sorted(tuple(math.inf if value is None else value for value in row.values()) for row in found)

    found = made.take_all()
    assert found
    assert ordered(found) == ordered(asked(folder, query))
