"""Steps between a union and an exchange see the columns and types of all parts, as they do without the exchange."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
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
