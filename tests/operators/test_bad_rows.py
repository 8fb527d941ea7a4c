"""Functions of rows that raise BadRow: each row is asked about once, whatever the others are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curate.errors import BadRow, TooManyBadRows
from curate.ledger.compression import decompress
from curate.operators.rows import FilterRows, MapRows
from curate.operators.udf import Udf
from curate.pipeline.bad_rows import applied
from curate.pipeline.shard_books import MOST_SEARCHED, BadRowBudget, ShardBooks
from curate.pipeline.step import BatchPosition

Row = dict[str, Any]
KINDS: dict[str, Callable[[Callable[[Row], Any]], Any]] = {
    "map": lambda fn: MapRows(Udf(fn), flat=False),
    "flat_map": lambda fn: MapRows(Udf(lambda row: [fn(row)]), flat=True),
    "filter": lambda fn: FilterRows(Udf(lambda row: fn(row)["n"] % 3), "third"),
}


class Placed:
    """An operator, for a batch that begins its shard."""

    def __init__(self, operator: Any) -> None:
        self.operator = operator

    def apply(self, batch: pa.Table, tally: ShardBooks) -> Iterable[Any]:
        return self.operator.apply(batch, tally, BatchPosition("shard", 0))

    def hide(self, text: str) -> str:
        return text


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
@example((4, {0, 1, 2, 3}))
@example((9, {8}))
def test_it_is_called_once_for_each_row_however_many_are_bad(kind: str, case: tuple[int, set[int]]) -> None:
    """Each bad row began its batch anew: 4,000 of them took 15 s."""
    n, bad = case
    asked: list[int] = []

    def fn(row: Row) -> Row:
        asked.append(row["n"])
        if row["n"] in bad:
            raise BadRow(f"it is {row['n']}")
        return row

    tally = ShardBooks(BadRowBudget("100%"))
    tally.books.rows_in += n
    tables = list(applied(Placed(KINDS[kind](fn)), pa.table({"n": range(n)}), tally))
    assert asked == list(range(n))
    good = [one for one in range(n) if one not in bad]
    kept = [one for one in good if kind != "filter" or one % 3]
    assert [one for table in tables for one in table["n"].to_pylist()] == kept
    lines = [] if tally.quarantine is None else decompress(tally.quarantine.finish()[1]).splitlines()
    told = [(line["reason"], orjson.loads(line["row"]), line["at"]) for line in map(orjson.loads, lines)]
    assert told == [(f"it is {one}", {"n": one}, f"row {one + 1} of the shard") for one in sorted(bad)]
    assert tally.books.dropped == ({"third": len(good) - len(kept)} if len(good) > len(kept) else {})
    assert tally.books.quarantined == len(bad)


def test_a_shard_of_bad_rows_ends_as_soon_as_their_search_would() -> None:
    """And rows of a batch that is given up are not counted among these."""
    asked: list[int] = []

    def fn(row: Row) -> Row:
        asked.append(row["n"])
        if row["n"] == -1:
            raise BadRow("named", MOST_SEARCHED - 2)
        raise BadRow("all")

    n = MOST_SEARCHED + 500
    tally = ShardBooks(BadRowBudget("1%"))
    tally.books.rows_in += n
    with pytest.raises(TooManyBadRows, match=f"{MOST_SEARCHED} bad rows of the first {n}, the budget is 1% of the"):
        list(applied(Placed(MapRows(Udf(fn), flat=False)), pa.table({"n": range(n)}), tally))
    assert len(asked) == MOST_SEARCHED
    asked.clear()
    tally = ShardBooks(BadRowBudget("1%"))
    tally.books.rows_in += n
    # All but one of what is too many, and then a row that begins the batch anew.
    rows = [*range(MOST_SEARCHED - 2), -1]
    list(applied(Placed(MapRows(Udf(fn), flat=False)), pa.table({"n": rows}), tally))
    assert tally.books.quarantined == len(rows)
