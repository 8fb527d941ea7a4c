"""The plan: every shard of a job, as a table. Values in, values out; the ledger reads and writes it.

A row's number never changes: parts are only appended, and a later row with the id of an earlier one (its input was
replaced before it was done) takes that one's place. A row of the kind `removed` takes the shard out of the job, for its
input was removed; a later one with that id, of an input that came back, makes it part of the job again. Events name
shards by number; their ranks are those among the shards that are part of the job, which is the same thing as long as
none was taken out. Kept as Arrow columns, a shard costs some 200 bytes of the driver's memory; `Shard` objects are made
for what is launched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.late_pandas import numbers, text
from curate.ledger.row_buffer import BLOCK_ROWS, RowBuffer
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


REMOVED = "removed"
"""The kind of a row that takes a shard out of the job."""


def shard_row(shard: Shard) -> tuple[Any, ...]:
    """Returns a shard as a row of `SCHEMA`."""
    return (
        shard.id,
        shard.uri,
        shard.kind,
        shard.start,
        shard.stop,
        shard.size_bytes,
        shard.object_bytes,
        shard.generation,
    )


def shards_table(shards: Sequence[Shard]) -> Any:
    """Returns shards as a table of `SCHEMA`."""
    rows = RowBuffer(SCHEMA)
    for shard in shards:
        rows.add(shard_row(shard))
    return rows.table()


def removal(rows: Any) -> Any:
    """Returns the part of a plan that takes these shards, rows of it, out of the job."""
    return rows.set_column(
        SCHEMA.get_field_index("kind"), SCHEMA.field("kind"), pa.array([REMOVED] * len(rows), pa.string())
    )


@dataclass(frozen=True)
class ShardPlan:
    """All shards of a job, in the order of the plan."""

    table: Any
    """A table of `SCHEMA` with unique ids."""
    written: Any = None
    """The same with the shards that were taken out, where they were; None: none was."""

    @classmethod
    def of(cls, parts: Sequence[Any]) -> ShardPlan:
        """Returns the plan that these parts, in order, make."""
        held = [part for part in parts if len(part)]
        table = held[0] if len(held) == 1 else pa.concat_tables([SCHEMA.empty_table(), *held]).combine_chunks()
        if not increasing(table["id"]) and pc.count_distinct(table["id"]).as_py() < len(table):
            last = {shard_id: rank for rank, shard_id in enumerate(table["id"].to_pylist())}
            # A dict keeps the place of the first row and the value of the last: exactly the rule.
            table = table.take(pa.array(list(last.values())))
        taken_out = pc.equal(table["kind"], text(REMOVED))
        return cls(table.filter(pc.invert(taken_out)), table) if pc.any(taken_out).as_py() else cls(table)

    def plus(self, part: Any) -> ShardPlan:
        """Returns the plan with one more part."""
        return ShardPlan.of([self.table if self.written is None else self.written, part])

    @property
    def removed(self) -> Any:
        """Ids of the shards that were taken out and have not come back, a chunked array of strings."""
        if self.written is None:
            return pa.chunked_array([], pa.string())
        return self.written["id"].filter(pc.equal(self.written["kind"], REMOVED))

    @cached_property
    def _numbers(self) -> Any:
        """The number of each shard."""
        return np.flatnonzero(numbers(pc.not_equal(self.written["kind"], text(REMOVED))))

    @cached_property
    def _ranks(self) -> Any:
        """The rank of each shard that was ever planned, by its number; -1 of one that was taken out."""
        ranks = np.full(len(self.written), -1, dtype=np.int64)
        ranks[self._numbers] = np.arange(len(self))
        return ranks

    def number(self, rank: int) -> int:
        """Returns the number of a shard, which is what events name it by."""
        return rank if self.written is None else int(self._numbers[rank])

    def ranked(self, events: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
        """Yields events about shards with their rank for their number, those left out that were taken out."""
        if self.written is None:
            yield from events
            return
        for event in events:
            number = event.get("index")
            if isinstance(number, int) and 0 <= number < len(self._ranks) and (rank := int(self._ranks[number])) >= 0:
                yield {**event, "index": rank}

    def __len__(self) -> int:
        return len(self.table)

    @property
    def ids(self) -> Any:
        """Ids of the shards, a chunked array of strings."""
        return self.table["id"]

    @cached_property
    def sizes(self) -> Any:
        """Stored bytes of the shards, a NumPy array."""
        return numbers(self.table["size_bytes"])

    @cached_property
    def total_bytes(self) -> int:
        """Stored bytes of all shards."""
        return int(self.sizes.sum())

    @cached_property
    def _columns(self) -> list[Any]:
        return list(self.table.columns)

    def shard(self, rank: int) -> Shard:
        """Returns one shard."""
        id, uri, kind, *rest = (column[rank].as_py() for column in self._columns)
        return Shard(id, uri, SliceKind(kind), *rest)

    def shards(self, ranks: Sequence[int]) -> list[Shard]:
        """Returns the shards of these ranks, in their order."""
        if len(ranks) == 1 or self._columns[0].num_chunks > 1:
            # Of a column in chunks, `take` has Arrow join all chunks first, for each bundle that is launched: with
            # 300,000 shards 14 ms, with ten million half a second. A value alone takes a microsecond.
            return [self.shard(rank) for rank in ranks]
        rows = self.table.take(pa.array(ranks, pa.int64()))
        ids, uris, kinds, *rest = (column.to_pylist() for column in rows.columns)
        return [Shard(*values) for values in zip(ids, uris, map(SliceKind, kinds), *rest, strict=True)]

    def blocks(self, ranks: Any, *names: str) -> Iterator[Any]:
        """Yields these columns of the shards of these ranks, in the order of the plan, some thousand rows at a time."""
        chosen = np.zeros(len(self), dtype=bool)
        chosen[ranks] = True
        at = 0
        for block in self.table.select(names).to_batches(max_chunksize=BLOCK_ROWS):
            yield block.filter(pa.array(chosen[at : at + len(block)]))
            at += len(block)

    def shard_id(self, rank: int) -> str:
        """Returns the id of one shard."""
        return str(self._columns[0][rank].as_py())


def increasing(ids: Any) -> bool:
    """Returns whether every id is greater than the one before it: then none is there twice. As most plans are."""
    return bool(pc.all(pc.less(ids[:-1], ids[1:])).as_py()) if len(ids) > 1 else True


@dataclass(frozen=True)
class InputDiff:
    """How the inputs that are there now differ from those the plan knows."""

    new: list[int]
    """Ranks in the listing of inputs that the plan does not know."""
    changed: Any
    """One boolean a shard of the plan: its input has another generation now."""
    missing: Any
    """One boolean a shard of the plan: its input is not in the listing."""
    position: Any
    """Rank in the listing for each shard of the plan; null where it is missing."""


def diff_inputs(plan: ShardPlan, inputs: Any) -> InputDiff:
    """Returns the difference between a plan and a listing (a table with `uri` and `generation`)."""
    uris, listed = plan.table["uri"], inputs["uri"]
    if not len(uris):
        # The first run of a job. The general case would make a hash table of the listing to look nothing up in it.
        none = np.zeros(0, dtype=bool)
        return InputDiff(list(range(len(listed))), none, none, pa.chunked_array([], pa.int32()))
    if listed.equals(uris):
        # Nothing came, went or was split, as in nearly all reruns: told without a hash table either.
        known = position = pa.chunked_array([np.arange(len(plan))], pa.int32())
        generation = inputs["generation"]
    else:
        known = pc.index_in(listed, value_set=pc.unique(uris))
        position = pc.index_in(uris, value_set=listed)
        generation = pc.take(inputs["generation"], position)
    changed = pc.fill_null(pc.not_equal(generation, plan.table["generation"]), False)
    new = pc.indices_nonzero(pc.is_null(known)).to_pylist()
    return InputDiff(
        new,
        numbers(changed),
        numbers(pc.is_null(position)),
        position,
    )
