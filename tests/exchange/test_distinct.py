"""One row of each key: the same as plain Python, whatever is dropped on the map side."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.errors import ConfigError
from curate.exchange.kinds.distinct import Distinct
from tests.exchange.local import exchanged, same, sort_key
from tests.support.examples import examples

NAN = float("nan")
TEXTS = st.sampled_from([None, "", "a", "é", "b"])
FLOATS = st.sampled_from([None, NAN, -0.0, 0.0, 1.5, -2.0])
SCHEMA = pa.schema([("a", pa.string()), ("b", pa.float64()), ("by", pa.float64()), ("n", pa.int64())])


def shards(rows: list[list[tuple[Any, ...]]]) -> list[pa.Table]:
    """Returns tables of rows, each with a number of its own."""
    found, number = [], 0
    for one in rows:
        numbered = [dict(zip(SCHEMA.names, (*row, number + at), strict=True)) for at, row in enumerate(one)]
        number += len(one)
        found.append(pa.Table.from_pylist(numbered, SCHEMA))
    return found


ROWS = st.lists(st.lists(st.tuples(TEXTS, FLOATS, FLOATS), max_size=25), min_size=1, max_size=4).map(shards)


def by_hand(tables: list[pa.Table], keys: tuple[str, ...], keep: str, by: str | None) -> list[dict[str, Any]]:
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in (row for table in tables for row in table.to_pylist()):
        groups.setdefault(tuple(sort_key(row[key]) for key in keys), []).append(row)
    found = []
    for key in sorted(groups):
        rows = groups[key]
        if by is not None:
            # Without a number only where there is none.
            best = min(sort_key(row[by])[0] for row in rows)
            rows = [row for row in rows if sort_key(row[by])[0] == best]
            wanted = (min if keep == "first" else max)(sort_key(row[by]) for row in rows)
            rows = [row for row in rows if sort_key(row[by]) == wanted]
        found.append(rows[0 if keep == "first" else -1])
    return found


@pytest.mark.ci(6)
@pytest.mark.quick(4)
@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("by", [None, "by"])
@pytest.mark.parametrize("keys", [("a",), ("b",), ("b", "a")])
@settings(max_examples=examples(30))
@given(tables=ROWS, seed=st.integers(0, 1000))
def test_one_row_of_each_key_is_kept_the_first_or_last_as_they_came_or_by_a_column(
    keys: tuple[str, ...], by: str | None, keep: str, tables: list[pa.Table], seed: int
) -> None:
    """In order of the keys; of equal values of the column, the first or the last row; nulls and NaN count last."""
    made = exchanged(Distinct("distinct", keys, keep, by), tables, seed=seed)
    wanted = by_hand(tables, keys, keep, by)
    assert same(made.rows(), wanted)
    rows = sum(table.num_rows for table in tables)
    assert made.folded + made.dropped.get("duplicate", 0) == rows - len(wanted)
    assert all(table.schema.equals(SCHEMA) for table in made.tables)


def test_duplicates_are_dropped_on_the_map_side() -> None:
    """What is written to a run file has a row a key of what was folded."""
    table = pa.table({"a": ["x", "y"] * 500, "n": range(1000)})
    how = Distinct("distinct", ("a",))
    assert how.fold(table).to_pylist() == [{"a": "x", "n": 0}, {"a": "y", "n": 1}]
    assert Distinct("distinct", ("a",), "last").fold(table)["n"].to_pylist() == [998, 999]
    assert Distinct("distinct", ("n",)).fold(table) is table


@pytest.mark.parametrize(
    "type",
    [pa.string_view(), pa.dictionary(pa.int8(), pa.string()), pa.float16(), pa.decimal32(9, 1), pa.large_binary()],
    ids=str,
)
def test_keys_of_types_that_arrow_does_not_number_are_told_apart_by_sorting(type: pa.DataType) -> None:
    values: Any = pa.array([1, 2, 1, None, None])
    if pa.types.is_dictionary(type):
        values = values.cast(pa.string()).dictionary_encode().cast(type)
    elif "decimal" in str(type) or "float" in str(type):
        values = pa.array([1, 2, 1, None, None], pa.int16()).cast(pa.decimal128(9, 1) if "dec" in str(type) else type)
        values = values.cast(type)
    else:
        values = values.cast(pa.string()).cast(pa.binary() if "binary" in str(type) else pa.string()).cast(type)
    table = pa.table({"k": values, "n": range(5)})
    for seed in range(5):
        made = exchanged(Distinct("distinct", ("k",)), [table], seed=seed, parts=1)
        assert made.table["n"].to_pylist() == [0, 1, 3]


def test_keys_without_an_order_are_refused() -> None:
    schema = pa.schema([("a", pa.list_(pa.int64())), ("b", pa.int64())])
    with pytest.raises(ConfigError, match=r"distinct\('a'\): column 'a' is nested"):
        Distinct("distinct('a')", ("a",)).schema([schema])
    with pytest.raises(ConfigError, match="column 'a' is nested"):
        Distinct("distinct('b')", ("b",), by="a").schema([schema])
