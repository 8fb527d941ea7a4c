"""Steps between a union and an exchange see the columns and types of all parts, as they do without the exchange."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate
from curate import col
from curate.dataset.dataset import Dataset


def keys_of(row: dict[str, Any]) -> dict[str, Any]:
    """What columns a function is given."""
    return {"n": row["n"], "keys": ",".join(sorted(row)), "type": type(row["x"]).__name__}


PARTS: dict[str, Callable[[], list[Dataset]]] = {
    "two types": lambda: [
        curate.from_items([{"n": 1, "x": 3}, {"n": 2, "x": 5}]).map(lambda row: row),
        curate.from_items([{"n": 3, "x": 1.5}]),
    ],
    "other columns": lambda: [
        curate.from_items([{"n": 1, "x": 3}, {"n": 2, "x": 5}]).map(lambda row: {**row, "m": 7}),
        curate.from_items([{"n": 3, "x": 4, "d": "a"}]),
    ],
    "both made by functions": lambda: [
        curate.from_items([{"n": 1, "x": 3}]).map(lambda row: {**row, "m": 7}),
        curate.from_items([{"n": 2, "x": 1.5}]).map(lambda row: {**row, "d": "a"}),
    ],
    "a union in a union": lambda: [
        curate.from_items([{"n": 1, "x": 3}]).map(lambda row: row).union(curate.from_items([{"n": 2, "x": 1.5}])),
        curate.from_items([{"n": 3, "x": 4, "d": "a"}]),
    ],
}
STEPS: dict[str, Callable[[Dataset], Dataset]] = {
    "a column": lambda found: found.with_column("half", col("x") / 2),
    "a map": lambda found: found.map(keys_of),
    "a filter": lambda found: found.filter(lambda row: len(row) > 2),
    "a filter and a map": lambda found: found.filter(col("x") > 1).map(keys_of),
    "a new name": lambda found: found.rename_columns({"x": "y"}),
}
EXCHANGES: dict[str, Callable[[Dataset], Dataset]] = {
    "repartition": lambda found: found.repartition(2),
    "sort": lambda found: found.sort("n"),
    "shuffle": lambda found: found.random_shuffle(seed=3),
    "zip": lambda found: found.zip(curate.range(found.count()).rename_columns({"id": "place"})).drop_columns("place"),
    "distinct": lambda found: found.distinct("n"),
}


def rows_of(found: Dataset) -> list[bytes]:
    """Rows in an order of their own, types and all: 1 is not 1.0 here."""
    return sorted(orjson.dumps(row, option=orjson.OPT_SORT_KEYS) for row in found.take_all())


@pytest.mark.ci(9)
@pytest.mark.quick(5)
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("parts", PARTS)
def test_rows_are_those_without_the_exchange(parts: str, step: str, exchange: str, tmp_path: Path) -> None:
    """Consumed and written."""
    first, *others = PARTS[parts]()
    found = STEPS[step](first.union(*others))
    exchanged = EXCHANGES[exchange](found)
    expected = rows_of(found)
    assert rows_of(exchanged) == expected
    exchanged.write_parquet(tmp_path / "out", backend="inline")
    assert rows_of(curate.read_parquet(tmp_path / "out")) == expected


def same(row: dict[str, Any]) -> dict[str, Any]:
    return row


SAMPLED: dict[str, Callable[[], list[Dataset]]] = {
    "ranges": lambda: [curate.range(40).map(same), curate.range(40).map(same)],
    "a sort": lambda: [curate.range(40).map(same), curate.range(40).map(same).sort("id")],
    "a sort first": lambda: [curate.range(40).map(same).sort("id"), curate.range(40).map(same)],
    "two exchanges": lambda: [curate.range(40).map(same).distinct("id"), curate.range(40).map(same).repartition(3)],
    "other columns": lambda: [
        curate.range(40).map(lambda row: {**row, "x": 1}),
        curate.range(40).map(lambda row: {**row, "x": 1.5, "y": "a"}),
    ],
    "known": lambda: [curate.range(40), curate.range(40).sort("id")],
    "a union in a union": lambda: [
        curate.range(40).map(same).union(curate.range(40).map(same).sort("id")),
        curate.range(40).map(lambda row: {**row, "y": "a"}),
    ],
    "a limit": lambda: [curate.range(40).map(same).limit(30), curate.range(40).map(same)],
}
BEFORE: dict[str, Callable[[Dataset], Dataset]] = {
    "nothing": lambda found: found,
    "a map": lambda found: found.map(same),
    "another sample": lambda found: found.random_sample(0.8, seed=5),
    "a limit": lambda found: found.limit(60),
}


@pytest.mark.ci(4)
@pytest.mark.quick(2)
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("parts", SAMPLED)
def test_a_sample_has_the_same_rows_consumed_and_written(parts: str, before: str, tmp_path: Path) -> None:
    """So that a side of a split that is consumed has no row of the other side that was written; together they are all
    rows."""
    first, *others = SAMPLED[parts]()
    found = BEFORE[before](first.union(*others))
    sampled = [found.random_sample(0.5, seed=2), *found.streaming_train_test_split(0.4, seed=2)]
    consumed = [one.take_all() for one in sampled]
    for number, (one, rows) in enumerate(zip(sampled, consumed, strict=True)):
        assert one.write_parquet(tmp_path / f"{number}", backend="inline").state == "complete"
        assert curate.read_parquet(tmp_path / f"{number}").take_all() == rows
    assert sorted(map(repr, found.take_all())) == sorted(map(repr, consumed[1] + consumed[2]))


def test_lists_of_nulls_beside_lists_of_values(tmp_path: Path) -> None:
    """In unions, files and batches: they failed, and from batch to batch the process ended."""
    none = pa.table({"l": pa.array([[None, None, None], [], [None, None], None], pa.list_(pa.null()))})
    some = pa.table({"l": [[1, 2], [3]]})
    every = none.to_pylist() + some.to_pylist()
    assert curate.from_arrow(none).union(curate.from_arrow(some)).take_all() == every
    pq.write_table(none, tmp_path / "a.parquet")
    pq.write_table(some, tmp_path / "b.parquet")
    files = curate.read_parquet(f"{tmp_path}/*.parquet")
    assert files.take_all() == every
    files.write_parquet(tmp_path / "out", backend="inline")
    assert curate.read_parquet(tmp_path / "out").take_all() == every

    def one(batch: pa.Table) -> pa.Table:
        at = batch["id"][0].as_py()
        return (none if at < 4 else some).slice(at % 4, 1)

    assert curate.range(6).map_batches(one, batch_size=1).to_arrow().to_pylist() == every
