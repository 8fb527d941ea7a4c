"""Expressions over rows of very many columns: those that are not read cost nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import curate
from curate.arrow import expressions
from curate.arrow.expressions import columns_of, type_of

EXPRESSIONS: dict[str, tuple[Any, set[str]]] = {
    "a sum": (pc.field("whole 7") + pc.field("name3"), {"whole 7", "name3"}),
    "a float beside a whole number": (pc.field("name3") / 3.0, {"name3"}),
    "a number beside hashes": (pc.field("hash") != 1, {"hash"}),
    "a name in others": (pc.field("name1") > 0.5, {"name1"}),
    "no column": (pc.scalar(1), set()),
}


@pytest.mark.parametrize("what", EXPRESSIONS)
def test_columns_that_are_not_read_change_nothing(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The type and the columns are those that there are without the others, and only these are looked at."""
    expression, read = EXPRESSIONS[what]
    names = ["hash", "whole 7", *(f"name{number}" for number in range(400))]
    wide = pa.schema([(name, pa.uint64() if name == "hash" else pa.int64()) for name in names])
    alone = pa.schema([field for field in wide if field.name in read])
    looked_at = []
    run = expressions._run

    def noted(table: pa.Table, node: Any) -> pa.Table:
        looked_at.append(table.num_columns)
        return run(table, node)

    monkeypatch.setattr(expressions, "_run", noted)
    assert type_of(expression, wide, "here") == type_of(expression, alone, "here")
    assert columns_of(expression, wide) == columns_of(expression, alone) == read
    assert max(looked_at) < 20


def test_all_of_many_columns_are_replaced() -> None:
    """By expressions that each see the rows as they were."""
    rows = pa.table({f"n{number}": np.arange(3) + number for number in range(300)})
    made = curate.from_arrow(rows).with_columns({name: curate.col(name) * 2 for name in rows.column_names}).to_arrow()
    assert made.to_pydict() == {name: [2 * one for one in column] for name, column in rows.to_pydict().items()}
