"""Tables of very many columns: what is done to each does not grow with the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from curate.arrow.canonical import restore_types
from curate.arrow.order import Order, SortKey
from curate.arrow.schema import conform, conform_to_union
from curate.exchange.kinds.aggregates import Sum
from curate.exchange.kinds.group import Partials


def wide(count: int, type: pa.DataType) -> pa.Table:
    return pa.schema([(f"column{number}", type) for number in range(count)]).empty_table()


def _order(count: int) -> None:
    rows = wide(count, pa.int64())
    Order(tuple(map(SortKey, rows.column_names[: count // 2]))).check("here", rows.schema)


def _groups(count: int) -> None:
    rows = wide(count, pa.int64())
    Partials("here", ("column0",), tuple(map(Sum, rows.column_names[1:]))).check(rows.schema)


DONE: dict[str, Callable[[int], Any]] = {
    "held to a schema": lambda count: conform(
        wide(count, pa.int64()), pa.schema([*wide(count, pa.int64()).schema][::-1])
    ),
    "a part of a union": lambda count: conform_to_union(wide(count, pa.int64()), wide(count, pa.int64()).schema),
    "types restored": lambda count: restore_types(wide(count, pa.int64()), wide(count, pa.int64()).schema),
    "keys checked": _order,
    "groups checked": _groups,
}


@pytest.mark.parametrize("what", DONE)
def test_four_times_the_columns_are_no_sixteen_times_the_work(what: str) -> None:
    def taken_s(count: int) -> float:
        found = []
        for _ in range(4):
            began = time.process_time()
            DONE[what](count)
            found.append(time.process_time() - began)
        return min(found)

    assert taken_s(1600) < 9 * taken_s(400) + 0.005
