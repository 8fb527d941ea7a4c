"""Functions of groups: each is given all rows of a key, in the order of the input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.errors import BadRow, ConfigError
from curate.exchange.kinds.group import GroupRows
from curate.exchange.kinds.map_groups import MapGroups
from curate.operators.udf import Udf
from curate.pipeline.bad_rows import applied
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import READ_ROWS, BatchPosition
from tests.exchange.local import exchanged, sort_key
from tests.support.examples import examples

KEY = st.sampled_from([None, float("nan"), 0.0, -0.0, 1.0, -1.0])


def tables(rows: list[list[Any]]) -> list[pa.Table]:
    found, number = [], 0
    for one in rows:
        found.append(
            pa.table({"k": pa.array(one, pa.float64()), "n": pa.array(range(number, number + len(one)), pa.int64())})
        )
        number += len(one)
    return found


class _Placed:
    """An operator at a place."""

    def __init__(self, step: Any) -> None:
        self.step = step

    def apply(self, batch: pa.Table, tally: ShardBooks) -> Iterator[pa.Table]:
        return iter(self.step.apply(batch, tally, BatchPosition("", 0)))

    def hide(self, text: str) -> str:
        return text


def mapped(shards: list[pa.Table], fn: Any, batch_format: str = "pyarrow", **how: Any) -> tuple[list[Any], ShardBooks]:
    """Returns the tables that a function of groups gives, and its books."""
    made = exchanged(GroupRows("groupby('k')", ("k",)), shards, **how)
    tally = ShardBooks(BadRowBudget("100%"))
    step = MapGroups(Udf(fn), batch_format).opened()
    return [table for group in made.tables for table in applied(_Placed(step), group, tally)], tally


@settings(max_examples=examples(50))
@given(rows=st.lists(st.lists(KEY, max_size=25), min_size=1, max_size=4).map(tables), seed=st.integers(0, 1000))
def test_a_function_is_given_all_rows_of_each_key_once_in_their_order(rows: list[pa.Table], seed: int) -> None:
    seen: list[list[int]] = []

    def take(group: pa.Table) -> pa.Table:
        assert group.column_names == ["k", "n"]
        seen.append(group["n"].to_pylist())
        return group

    given_back, _ = mapped(rows, take, seed=seed)
    wanted: dict[Any, list[int]] = {}
    for row in (row for table in rows for row in table.to_pylist()):
        wanted.setdefault(sort_key(row["k"]), []).append(row["n"])
    assert seen == [wanted[key] for key in sorted(wanted)]
    assert [n for table in given_back for n in table["n"].to_pylist()] == [n for group in seen for n in group]


def test_groups_become_rows_in_the_books() -> None:
    """A group is a row on its way to the function: those that became part of one are booked as grouped."""
    made = exchanged(GroupRows("groupby('k')", ("k",)), tables([[1.0, 2.0, 1.0], [1.0]]), parts=1)
    assert (made.rows_in, made.dropped, made.table.num_rows) == (4, {"grouped": 2}, 2)
    schema = GroupRows("groupby('k')", ("k",)).schema([tables([[]])[0].schema])
    assert made.table.schema.equals(schema)


def test_what_functions_return_for_small_groups_goes_on_in_large_tables() -> None:
    made, _ = mapped(tables([[float(n % 5000) for n in range(10_000)]]), lambda group: group, parts=1, batch_rows=9000)
    assert [table.num_rows for table in made] == [10_000]
    assert len(exchanged(GroupRows("", ("k",)), tables([[1.0] * 40_000]), parts=1, batch_rows=9000).tables) == 1
    several = exchanged(GroupRows("", ("k",)), tables([[float(n) for n in range(40_000)]]), parts=1, batch_rows=9000)
    assert [table.num_rows for table in several.tables] == [READ_ROWS, READ_ROWS, 40_000 - 2 * READ_ROWS]


@pytest.mark.parametrize("batch_format", ["pyarrow", "numpy", "pandas"])
def test_groups_come_in_the_format_that_is_asked_for(batch_format: str) -> None:
    if batch_format == "pandas":
        pytest.importorskip("pandas")
    kinds = {"pyarrow": pa.Table, "numpy": dict}

    def total(group: Any) -> dict[str, list[int]]:
        assert isinstance(group, kinds.get(batch_format, object))
        return {"total": [sum(int(n) for n in np.asarray(group["n"]))]}

    made, _ = mapped(tables([[2.0, 1.0, 2.0]]), total, batch_format)
    assert [n for table in made for n in table["total"].to_pylist()] == [1, 2]


def test_a_function_may_return_nothing_or_several_tables() -> None:
    def some(group: pa.Table) -> Iterator[pa.Table]:
        for _ in range(group.num_rows - 1):
            yield group.slice(0, 1)

    made, _ = mapped(tables([[2.0, 1.0, 2.0, 2.0]]), some)
    assert [n for table in made for n in table["n"].to_pylist()] == [0, 0]


def test_a_bad_row_sets_its_whole_group_aside_and_others_go_on() -> None:
    """Wherever in the group the function says that it is; groups are never cut to find out."""

    def picky(group: pa.Table) -> pa.Table:
        if 4 in group["n"].to_pylist():
            raise BadRow("four", 0)
        assert group.num_rows == 2
        return group

    made, tally = mapped(tables([[1.0, 2.0, 3.0, 1.0, 2.0, 3.0]]), picky, parts=1)
    assert [n for table in made for n in table["n"].to_pylist()] == [0, 3, 2, 5]
    assert tally.books.quarantined == 1
    assert tally.reasons() == {"four": 1}


def test_a_class_is_made_once_and_called_with_each_group() -> None:
    made_of: list[int] = []

    class Count:
        def __init__(self) -> None:
            made_of.append(1)

        def __call__(self, group: pa.Table) -> pa.Table:
            return pa.table({"rows": [group.num_rows]})

    made, _ = mapped(tables([[1.0, 2.0, 1.0]]), Count)
    assert [n for table in made for n in table["rows"].to_pylist()] == [2, 1]
    assert made_of == [1]


def test_nested_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match="column 'k' is nested"):
        GroupRows("groupby('k')", ("k",)).schema([pa.schema([("k", pa.list_(pa.int64()))])])
