"""The plan: every shard of a job, as a table. Values in, values out; the ledger reads and writes it.

A row's rank never changes: parts are only appended, and a later row with the id of an earlier one (its input was
replaced before it was done) takes that one's place. Events name shards by rank. Kept as Arrow columns, a shard costs
some 200 bytes of the driver's memory; `Shard` objects are made for what is launched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curate.tasks.shard import Shard, SliceKind

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("uri", pa.string()),
        ("kind", pa.string()),
        ("start", pa.int64()),
        ("stop", pa.int64()),
        ("size_bytes", pa.int64()),
        ("object_bytes", pa.int64()),
        ("generation", pa.string()),
    ]
)


def shards_table(shards: Sequence[Shard]) -> Any:
    """Returns shards as a table of `SCHEMA`."""
    columns = [
        pa.array([getattr(shard, name) for shard in shards], type)
        for name, type in zip(SCHEMA.names, SCHEMA.types, strict=True)
    ]
    return pa.table(columns, schema=SCHEMA)


@dataclass(frozen=True)
class Plan:
    """All shards of a job, in the order of the plan."""

    table: Any
    """A table of `SCHEMA` with unique ids."""

    @classmethod
    def of(cls, parts: Sequence[Any]) -> Plan:
        """Returns the plan that these parts, in order, make."""
        table = pa.concat_tables([SCHEMA.empty_table(), *parts]).combine_chunks()
        if pc.count_distinct(table["id"]).as_py() < len(table):
            last = {shard_id: rank for rank, shard_id in enumerate(table["id"].to_pylist())}
            # A dict keeps the place of the first row and the value of the last: exactly the rule.
            table = table.take(pa.array(list(last.values())))
        return cls(table)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def ids(self) -> Any:
        """Ids of the shards, a chunked array of strings."""
        return self.table["id"]

    @cached_property
    def sizes(self) -> Any:
        """Stored bytes of the shards, a NumPy array."""
        return self.table["size_bytes"].to_numpy()

    @cached_property
    def total_bytes(self) -> int:
        """Stored bytes of all shards."""
        return int(self.sizes.sum())

    def shard(self, rank: int) -> Shard:
        """Returns one shard."""
        row = {name: self.table[name][rank].as_py() for name in SCHEMA.names}
        return Shard(**{**row, "kind": SliceKind(row["kind"])})

    def shard_id(self, rank: int) -> str:
        """Returns the id of one shard."""
        return str(self.table["id"][rank].as_py())


@dataclass(frozen=True)
class Growth:
    """How the inputs that are there now differ from those the plan knows."""

    new: list[int]
    """Ranks in the listing of inputs that the plan does not know."""
    changed: Any
    """One boolean a shard of the plan: its input has another generation now."""
    missing: Any
    """One boolean a shard of the plan: its input is not in the listing."""
    position: Any
    """Rank in the listing for each shard of the plan; null where it is missing."""


def compare(plan: Plan, inputs: Any) -> Growth:
    """Returns the difference between a plan and a listing (a table with `uri` and `generation`)."""
    known = pc.index_in(inputs["uri"], value_set=pc.unique(plan.table["uri"]))
    position = pc.index_in(plan.table["uri"], value_set=inputs["uri"])
    generation = pc.take(inputs["generation"], position)
    changed = pc.fill_null(pc.not_equal(generation, plan.table["generation"]), False)
    new = pc.indices_nonzero(pc.is_null(known)).to_pylist()
    return Growth(
        new,
        changed.to_numpy(zero_copy_only=False) if isinstance(changed, pa.Array) else changed.to_numpy(),
        pc.is_null(position).to_numpy(),
        position,
    )
