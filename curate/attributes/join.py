"""The operator that gives rows the attributes of their places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from curate.attributes.found import Found
from curate.attributes.lookup import Lookup
from curate.dataclass import dataclass, replace
from curate.errors import ConfigError
from curate.objects.places import PLACE_TYPE
from curate.operators.protocol import Operator
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition


@dataclass(frozen=True, slots=True)
class WithAttributes(Operator):
    """Adds columns, the last ones, that a job has written for the rows at the same places."""

    found: Found
    by: str
    """The column that says where a row lies."""
    drops: bool = False
    """Whether that column goes then."""
    lookup: Lookup | None = None
    keeps_rows = True

    @property
    def name(self) -> str:
        return f"with_attributes({self.found.root!r})"

    def opened(self) -> WithAttributes:
        return replace(self, lookup=Lookup(self.found))

    def made(self, found: pa.Schema) -> pa.Schema:
        if self.by not in found.names or not found.field(self.by).type.equals(PLACE_TYPE):
            raise ConfigError(
                f"{self.name}: the rows do not say where they lie: their column {self.by!r} is not there; call it "
                "before what leaves that out, right behind read_..., or keep it with select_columns"
            )
        for name in self.found.schema.names:
            if name in found.names:
                raise ConfigError(
                    f"{self.name}: the rows have a column {name!r} already; name the attributes with columns=, or "
                    "rename that column before"
                )
        return pa.schema([*(one for one in found if not (self.drops and one.name == self.by)), *self.found.schema])

    def identity(self) -> Any:
        return ["with_attributes", self.found.fingerprint, self.found.schema.names, self.by]

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        return (needed & set(schema.names)) | {self.by}

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        del tally, place
        self.schema(table.schema)
        # Where it is called without having been opened, for a schema, nothing is kept.
        attributes = (self.lookup or Lookup(self.found)).of(table[self.by])
        kept = table.drop_columns([self.by]) if self.drops else table
        for field in attributes.schema:
            kept = kept.append_column(field, attributes[field.name])
        yield kept
