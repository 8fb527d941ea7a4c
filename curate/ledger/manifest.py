"""The plan: every shard of a job, as a table. Values in, values out; the ledger reads and writes it.

A row's number never changes: parts are only appended, and a later row with the id of an earlier one takes that one's
place. A row of the kind `removed` takes the shard out of the job, for its input was removed; a later one with that id,
of an input that came back, or was replaced before it was done, makes it part of the job again. What a worker that was
paused publishes then may be made of the old input: an output of such a shard counts only by an event that names the new
one. Events name shards by number; their ranks are those among the shards that are part of the job, which is the same
thing as long as none was taken out. Kept packed, a shard costs some 25 to 60 bytes of the driver's memory; `Shard`
objects are made for what is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.dataclass import dataclass
from curate.late_pandas import numbers, text
from curate.ledger.packed import PackedTable, RowBuffer, between, firsts, positions
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


COMPARED = 1 << 18
"""Shards whose generations are compared at a time: inputs may be in another order, and then all are unpacked."""
REMOVED = "removed"
"""The kind of a row that takes a shard out of the job."""


LEAST_AHEAD = 1 << 16
"""Shards that are unpacked together before they are launched, at least."""
PARTS_AHEAD = 32
"""Parts of a large plan that are unpacked so: for each, all of the plan is read."""
MADE_TOGETHER = 1024
"""Shards of these that become objects at once, at least."""


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


def shards_table(shards: Sequence[Shard]) -> PackedTable:
    """Returns shards as a table of `SCHEMA`."""
    rows = RowBuffer(SCHEMA)
    for shard in shards:
        rows.add(shard_row(shard))
    return rows.table()


def removal(rows: PackedTable) -> PackedTable:
    """Returns the part of a plan that takes these shards, rows of it, out of the job."""
    return rows.with_text("kind", REMOVED)


def with_suffix(table: PackedTable, suffix: str, folder: str = "") -> Iterator[pa.Array]:
    """Yields what the outputs of shards are called, relative to the output, or below a folder of that name."""
    for block in table.batches("id"):
        yield between(folder, block[0], suffix)


@dataclass(frozen=True)
class ShardPlan:
    """All shards of a job, in the order of the plan."""

    table: PackedTable
    """Columns of `SCHEMA`, with unique ids."""
    written: PackedTable | None = None
    """The same with the shards that were taken out, where they were; None: none was."""
    once_out: Any = None
    """One boolean for each shard that was ever planned: it was taken out once. None: none was."""
    planned_anew: bool = False
    """Whether a shard was planned more than once: its input is another one now, or was taken out."""

    @classmethod
    def of(cls, parts: Sequence[PackedTable], once_out: Any = None, planned_anew: bool = False) -> ShardPlan:
        """Returns the plan that these parts, in order, make; `once_out` and `planned_anew` are of the first ones."""
        table = PackedTable.of(SCHEMA.empty_table()).plus(*parts)
        out = taken_out = table.where("kind", lambda kinds: pc.equal(kinds, text(REMOVED)))
        if once_out is not None:
            out = out.copy()
            out[: len(once_out)] |= once_out
        first = firsts(table, "id")
        anew = planned_anew or first is not None
        if first is not None:
            # The place of the first row of an id and the value of the last: exactly the rule.
            last = np.arange(len(table))
            last[first] = np.arange(len(table))
            places = first == np.arange(len(table))
            table, taken_out = table.reordered(last[places]), taken_out[last[places]]
            out[first[out]] = True
            out = out[places]
        if not out.any():
            return cls(table, planned_anew=anew)
        if taken_out.any():
            return cls(table.filter(~taken_out), table, out, anew)
        return cls(table, None, out, anew)

    def plus(self, part: PackedTable) -> ShardPlan:
        """Returns the plan with one more part."""
        return ShardPlan.of(
            [self.table if self.written is None else self.written, part], self.once_out, self.planned_anew
        )

    @cached_property
    def came_back(self) -> Any:
        """One boolean a shard: it was taken out once, and what is there of it may be made of another input."""
        if self.once_out is None:
            return np.zeros(len(self), dtype=bool)
        return self.once_out if self.written is None else self.once_out[self._in_job]

    def input_of(self, rank: int) -> dict[str, str]:
        """Returns what the event of an output says of its input: nothing, unless there may be one of another input."""
        return {"input": self.shard(rank).generation} if self.once_out is not None and self.came_back[rank] else {}

    def of_its_input(self, rank: int, event: Mapping[str, Any]) -> bool:
        """Returns whether an output of which an event tells may be made of what the plan says."""
        return all(event.get(name) == value for name, value in self.input_of(rank).items())

    @property
    def removed(self) -> Any:
        """Ids of the shards that were taken out and have not come back, a chunked array of strings."""
        if self.written is None:
            return pa.chunked_array([], pa.string())
        return self.written.take(np.flatnonzero(~self._in_job), "id")["id"]

    @cached_property
    def _in_job(self) -> Any:
        """One boolean for each shard that was ever planned."""
        assert self.written is not None
        return self.written.where("kind", lambda kinds: pc.not_equal(kinds, text(REMOVED)))

    @cached_property
    def _numbers(self) -> Any:
        """The number of each shard."""
        return np.flatnonzero(self._in_job)

    @cached_property
    def _ranks(self) -> Any:
        """The rank of each shard that was ever planned, by its number; -1 of one that was taken out."""
        ranks = np.full(len(self._in_job), -1, dtype=np.int64)
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
    def ids(self) -> pa.ChunkedArray:
        """Ids of the shards."""
        return self.table["id"]

    @cached_property
    def sizes(self) -> Any:
        """Stored bytes of the shards, a NumPy array."""
        return self.table.numbers("size_bytes")

    @cached_property
    def total_bytes(self) -> int:
        """Stored bytes of all shards."""
        return int(self.sizes.sum())

    def rank(self, shard_id: str) -> int:
        """Returns the rank of the shard of that id; -1 if there is none."""
        return self.table.find("id", shard_id)

    def ranks(self, ids: pa.Array) -> Any:
        """Returns the rank of each of these ids; -1 for one that no shard has."""
        return positions([ids], self.table, "id")

    def shard(self, rank: int) -> Shard:
        """Returns one shard."""
        id, uri, kind, *rest = self.table.row(rank)
        return Shard(id, uri, SliceKind(kind), *rest)

    def shards(self, ranks: Sequence[int]) -> list[Shard]:
        """Returns the shards of these ranks, in their order."""
        return shards_of_rows(self.table.take(ranks))

    def blocks(self, ranks: Any, *names: str) -> Iterator[pa.RecordBatch]:
        """Yields these columns of the shards of these ranks, in the order of the plan, some thousand rows at a time."""
        chosen = np.zeros(len(self), dtype=bool)
        chosen[ranks] = True
        for start, block in self.table.located(*names):
            yield block.filter(pa.array(chosen[start : start + len(block)]))

    def shard_id(self, rank: int) -> str:
        """Returns the id of one shard."""
        return str(self.table.row(rank, "id")[0])


def shards_of_rows(rows: pa.Table) -> list[Shard]:
    """Returns rows of a plan as shards."""
    ids, uris, kinds, *rest = (column.to_pylist() for column in rows.columns)
    return [Shard(*values) for values in zip(ids, uris, map(SliceKind, kinds), *rest, strict=True)]


class ShardsAhead:
    """The shards of a plan in the order in which they are launched, unpacked some thousand at a time.

    Largest first, those that follow each other lie anywhere in the plan, and each alone would cost a block. They are
    put in the order of their launch, of which a slice becomes objects at once: to take the rows of each task cost a
    third of all that the driver does for one. The ids of shards that run are kept, because each event names its shard.
    """

    def __init__(self, plan: ShardPlan, from_here: Callable[[int, int], Any]) -> None:
        """`from_here` returns the ranks of as many shards as it is given, or fewer, in the order of their launch, from
        one on; none if that is launched out of order."""
        self._plan = plan
        self._from_here = from_here
        self._most = max(LEAST_AHEAD, len(plan) // PARTS_AHEAD)
        self._order: Any = np.zeros(0, dtype=np.int64)
        """Ranks of shards in the order of their launch."""
        self._sorted: Any = self._order
        """Places in that order, so that their ranks ascend."""
        self._rows = SCHEMA.empty_table()
        """The shards in that order."""
        self._next = 0
        """The place behind what was launched last."""
        self._made: list[Shard] = []
        self._made_from = 0
        """Shards as objects, and the place of the first of them."""
        self._ids: dict[int, str] = {}

    def launched(self, ranks: Sequence[int]) -> list[Shard]:
        """Returns the shards of these ranks, in their order."""
        places = self._places(ranks)
        if places is None:
            ahead = self._from_here(ranks[0], self._most)
            if not len(ahead):
                # Some run once more, or were taken off a task: those that are next stay at hand.
                return self._named(ranks, self._plan.shards(ranks))
            more = np.setdiff1d(np.asarray(ranks, dtype=np.int64), ahead)
            self._order = np.concatenate([ahead, more])
            self._sorted = np.argsort(self._order, kind="stable")
            self._rows = self._plan.table.take(self._order).combine_chunks()
            self._made, self._made_from, self._next = [], 0, 0
            places = self._places(ranks)
            assert places is not None
        self._next = places[-1] + 1
        return self._named(ranks, self._at(places))

    def _places(self, ranks: Sequence[int]) -> Sequence[int] | None:
        """Returns the places of these ranks in the order of launches; None if some are not in what is unpacked."""
        behind = self._next + len(ranks)
        if self._order[self._next : behind].tolist() == list(ranks):
            found: Sequence[int] = range(self._next, behind)
        else:
            near = np.searchsorted(self._order, ranks, sorter=self._sorted)
            if not len(self._order) or near.max() == len(self._order):
                return None
            found = self._sorted[near].tolist()
            if self._order[found].tolist() != list(ranks):
                return None
        return found

    def _at(self, places: Sequence[int]) -> list[Shard]:
        """Returns the shards at these places."""
        first, behind = min(places), max(places) + 1
        if first < self._made_from or behind > self._made_from + len(self._made):
            if not self._made_from <= first <= self._made_from + len(self._made):
                # Again, or out of order: those that are made are soon asked for.
                return shards_of_rows(self._rows.take(pa.array(places, pa.int64())))
            self._made_from = first
            self._made = shards_of_rows(self._rows.slice(first, max(MADE_TOGETHER, behind - first)))
        return [self._made[place - self._made_from] for place in places]

    def id(self, rank: int) -> str:
        """Returns the id of a shard."""
        return self._ids.get(rank) or self._plan.shard_id(rank)

    def over(self, rank: int) -> None:
        """Forgets the id of a shard that has ended."""
        self._ids.pop(rank, None)

    def _named(self, ranks: Sequence[int], shards: list[Shard]) -> list[Shard]:
        self._ids.update(zip(ranks, (one.id for one in shards), strict=True))
        return shards


@dataclass(frozen=True)
class InputDiff:
    """How the inputs that are there now differ from those the plan knows."""

    new: Any
    """One boolean an input of the listing: the plan does not know it."""
    changed: Any
    """One boolean a shard of the plan: its input has another generation now."""
    missing: Any
    """One boolean a shard of the plan: its input is not in the listing."""
    position: Any
    """Rank in the listing for each shard of the plan; -1 where it is missing."""


def diff_inputs(plan: ShardPlan, inputs: PackedTable) -> InputDiff:
    """Returns the difference between a plan and a listing (a table with `uri` and `generation`)."""
    position = positions((block[0] for block in plan.table.batches("uri")), inputs, "uri").astype(np.int32)
    new = np.ones(len(inputs), dtype=bool)
    new[position[position >= 0]] = False
    if new.any():
        # A listing may name a file twice: the shards of one that is cut, as the inputs of a job that is only looked at.
        left = np.flatnonzero(new)
        new[left] = positions(inputs.take(left, "uri")["uri"].chunks, plan.table, "uri") < 0
    changed = np.zeros(len(plan), dtype=bool)
    for start in range(0, len(plan), COMPARED):
        there = start + np.flatnonzero(position[start : start + COMPARED] >= 0)
        then = plan.table.take(there, "generation")["generation"]
        changed[there] = numbers(pc.not_equal(inputs.take(position[there], "generation")["generation"], then))
    return InputDiff(new, changed, position < 0, position)
