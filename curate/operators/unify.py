"""Casts the parts of a union to one schema, if all their schemas are known when the plan is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from curate.arrow.schema import conform_to_union, format_schema
from curate.dataclass import dataclass
from curate.operators.protocol import Operator
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition


@dataclass(frozen=True, slots=True)
class Unify(Operator):
    """Gives rows the columns and the types of a schema: missing ones are null, others are widened."""

    to: pa.Schema
    keeps_rows = True

    @property
    def name(self) -> str:
        return f"unify({format_schema(self.to)})"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        del found
        return self.to

    def identity(self) -> Any:
        return ["unify", [[field.name, str(field.type)] for field in self.to]]

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        del tally, place
        yield conform_to_union(table, self.to)
