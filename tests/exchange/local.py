"""An exchange in this process, in memory: what every run of one must give, whatever is folded when and cut where."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.order import Order
from curate.exchange.protocol import ReducePart
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import BatchPosition

Shards = Sequence[pa.Table]


@dataclass(frozen=True)
class Made:
    """What an exchange gave, and its books."""

    table: pa.Table
    tables: list[pa.Table]
    """As they came."""
    rows_in: int
    """Rows that were read by all outputs: those that are left of what was folded."""
    folded: int
    dropped: dict[str, int]

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows as dictionaries."""
        found: list[dict[str, Any]] = self.table.to_pylist()
        return found


def exchanged(how: Any, *sides: Shards, seed: int = 0, parts: int | None = None, batch_rows: int = 5) -> Made:
    """Returns what an exchange makes of its inputs, each given as shards: batches, folds and cuts are drawn by `seed`.

    The cuts part no equal keys.
    """
    random_ = random.Random(seed)
    segments: list[list[pa.Table]] = []
    folded = 0
    for side, (shards, order) in enumerate(zip(sides, how.orders, strict=True)):
        segments.append([])
        for rank, shard in enumerate(shards):
            pieces = list(_prepared(how.prepare(side), shard, rank, random_, batch_rows))
            before = sum(piece.num_rows for piece in pieces)
            for chunk in _chunks(pieces, random_):
                pending = chunk[0]
                for piece in chunk[1:]:
                    if random_.random() < 0.4:
                        pending = how.fold(pending)
                    pending = pa.concat_tables([pending, piece])
                if random_.random() < 0.7:
                    pending = how.fold(pending)
                segments[side].append(order.sort(pending))
            folded += before
    folded -= sum(one.num_rows for side in segments for one in side)
    parts = random_.randrange(1, 5) if parts is None else parts
    cuts = [] if how.serial else _cuts(how.orders, segments, random_, parts)
    tally = ShardBooks(BadRowBudget("100%"))
    tables = []
    rows_in = 0
    if how.serial:
        # Rows of a key may be parted, as by pages.
        whole = how.orders[0].sort(pa.concat_tables(segments[0]))
        ends = sorted(random_.randint(0, whole.num_rows) for _ in range(parts - 1))
        parts_of = [whole.slice(a, b - a) for a, b in zip([0, *ends], [*ends, whole.num_rows], strict=True)]
        rows_in = whole.num_rows
        tables += how.scan(lambda: iter([one for one in parts_of if one.num_rows] or [whole]), tally)
    for number in range(0 if how.serial else len(cuts) + 1):
        inputs = [
            _between(order, found, cuts[number - 1] if number else None, cuts[number] if number < len(cuts) else None)
            for order, found in zip(how.orders, segments, strict=True)
        ]
        rows_in += sum(one.num_rows for one in inputs)
        tables += how.combine(inputs, tally, ReducePart(number, len(cuts) + 1))
    whole = pa.concat_tables(tables) if tables else pa.table({})
    tally.books.rows_in, tally.books.rows_out = rows_in, whole.num_rows
    assert tally.books.created >= 0
    tally.books.settle()
    assert "unspecified" not in tally.books.dropped, tally.books.rows()
    return Made(whole, tables, rows_in, folded, dict(tally.books.dropped))


def _prepared(steps: Any, shard: pa.Table, rank: int, random_: random.Random, most: int) -> Any:
    at = 0
    while at < shard.num_rows or (at == 0 and shard.num_rows == 0):
        rows = random_.randint(1, most)
        batch = shard.slice(at, rows)
        tables = [batch]
        for step in steps:
            place = BatchPosition(f"shard-{rank}", at, rank)
            tables = [made for one in tables for made in step.apply(one, ShardBooks(BadRowBudget("100%")), place)]
        yield from tables
        at += rows


def _chunks(pieces: list[pa.Table], random_: random.Random) -> Any:
    while pieces:
        n = random_.randint(1, len(pieces))
        yield pieces[:n]
        pieces = pieces[n:]


def _cuts(orders: Sequence[Order], segments: list[list[pa.Table]], random_: random.Random, parts: int) -> list[Any]:
    """Returns keys at which outputs begin, ascending: as tables of one row, by the names of the first side's keys."""
    names = [key.column for key in orders[0].keys]
    keys = [
        order.keys_of(one).rename_columns(names)
        for order, side in zip(orders, segments, strict=True)
        for one in side
        if one.num_rows
    ]
    if not keys or not names:
        return []
    found = orders[0].sort(pa.concat_tables(keys))
    starts = orders[0].starts(found)
    chosen = sorted(random_.sample(starts.tolist(), min(parts - 1, len(starts))))
    return [found.slice(row, 1) for row in chosen]


def _between(order: Order, segments: list[pa.Table], first: Any, last: Any) -> pa.Table:
    names = [key.column for key in order.keys]
    pieces = []
    for one in segments:
        start = 0 if first is None else order.position(one, first.rename_columns(names), False)
        stop = one.num_rows if last is None else order.position(one, last.rename_columns(names), False)
        pieces.append(one.slice(start, stop - start))
    return order.sort(pa.concat_tables(pieces))


def same(one: Any, other: Any) -> bool:
    """Returns whether values are the same: NaN is, and so are floats that differ by rounding."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=1e-9, atol=1e-9, equal_nan=True))
    return type(one) is type(other) and bool(one == other)


def sort_key(value: Any) -> Any:
    """Returns what Python sorts a value by as exchanges do: numbers, then NaN, then null."""
    if value is None:
        return (2, 0)
    if isinstance(value, float) and value != value:
        return (1, 0)
    return (0, value.encode() if isinstance(value, str) else value)
