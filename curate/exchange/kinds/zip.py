"""Zip: the names of the columns, and the exchange that brings rows side by side for a write.

A consumer zips datasets as their rows arrive. A write uses an exchange: run files record the number and place of their
rows, so each output reads the same rows of both sides and no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from curate.arrow.order import Order
from curate.dataclass import dataclass
from curate.exchange.protocol import Exchange, ReducePart
from curate.pipeline.shard_books import ShardBooks

ZIPPED = "zipped"
"""Why rows are dropped that became part of a row of the first dataset."""


def zipped_names(names: Sequence[Sequence[str]]) -> list[str]:
    """Returns what columns side by side are called: one whose name is taken gets the first free of _1, _2, …

    >>> zipped_names([["a", "b"], ["a"], ["a", "c"]])
    ['a', 'b', 'a_1', 'a_2', 'c']
    """
    found: list[str] = []
    for name in (name for one in names for name in one):
        free = (f"{name}_{number}" for number in count(1))
        found.append(next(one for one in free if one not in found) if name in found else name)
    return found


def zipped_schema(found: Sequence[pa.Schema | None]) -> pa.Schema | None:
    """Returns the schema of rows side by side; None if that of some of them is not known."""
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    names = zipped_names([one.names for one in known])
    fields = [field for one in known for field in one]
    return pa.schema([field.with_name(name) for name, field in zip(names, fields, strict=True)])


@dataclass(frozen=True, slots=True)
class Zipped(Exchange):
    """Rows of several inputs side by side, in their order."""

    sides: int
    beside = True
    keeps_rows = True
    name = "zip"

    @property
    def orders(self) -> tuple[Order, ...]:
        return (Order(),) * self.sides

    def identity(self) -> Any:
        return ["zip", self.sides]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        return zipped_schema(found)

    def combine(self, tables: Sequence[pa.Table], tally: ShardBooks, part: ReducePart) -> Iterator[pa.Table]:
        del part
        tally.drop(sum(table.num_rows for table in tables[1:]), ZIPPED)
        names = zipped_names([table.column_names for table in tables])
        yield pa.table([column for table in tables for column in table.columns], names=names)
