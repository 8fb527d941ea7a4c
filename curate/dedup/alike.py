"""How alike the texts of a pair are: both are read again, and the n-grams of the first are sent to the second.

A pair that is alike is an edge, from the row that comes first in order (see `near`) to the other one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow.canonical import plain_column
from curate.arrow.order import Order, SortKey, take_rows
from curate.arrow.sizes import ranges_within
from curate.arrow.types import plain_type
from curate.dataclass import dataclass
from curate.dedup.buckets import PAIRS
from curate.dedup.near import CLASS, ID, OTHER, OTHER_CLASS, OTHER_ID, OTHER_SOURCE, SIMILARITY, SOURCE, NearDedup
from curate.dedup.pairs import Ints, distinct_pairs, similarities
from curate.dedup.shingles import Shingles, distinct, take_shingles
from curate.exchange.row_ids import ROW_ID, row_ids
from curate.late_pandas import numbers
from curate.operators.protocol import Replacing
from curate.operators.side_input import Marking, Marks
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition

COMPARED = "compared"
"""Why rows are dropped that were read to be compared."""

SET = "__set"

_SLICE_HASHES = 1 << 22
"""N-grams that are sent, or compared, at a time: 32 MiB."""


class _OfPairs(Marking, Replacing):
    """A step whose marks are pairs, of which each shard has those of its rows."""

    __slots__ = ()
    rule: NearDedup
    order = Order((SortKey(ROW_ID), SortKey(OTHER)))
    """What marks are sorted by."""

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        schema = self.schema(batch.schema)
        assert schema is not None
        tally.drop(batch.num_rows, COMPARED)
        marks = marks_of(self.marks, batch, place) if self.marks is not None else None
        if marks is None or not marks.num_rows:
            yield schema.empty_table()
            return
        marks = self.fold(marks)
        rows, which = np.unique(numbers(marks[ROW_ID]), return_inverse=True)
        chosen = take_rows(batch.select(self.rule.named), pa.array(rows - row_ids(place, 1)))
        yield from self._of(marks, chosen, which, schema)

    @abstractmethod
    def _of(self, marks: pa.Table, chosen: pa.Table, which: Ints, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yields what becomes of pairs: of the rows that are marked, and which of them each mark is of."""


@dataclass(frozen=True, slots=True)
class SendSets(_OfPairs):
    """Replaces rows by the n-grams of those that are first in a pair, at the places of the second: a row a pair."""

    rule: NearDedup
    marks: Marks | None = None
    """None where it is planned, not run."""
    folds = True

    @property
    def name(self) -> str:
        return f"candidates({self.rule.column!r})"

    def fold(self, marks: pa.Table) -> pa.Table:
        """Returns each pair once."""
        u, v = distinct_pairs(numbers(marks[ROW_ID]), numbers(marks[OTHER]))
        return pa.table([pa.array(u), pa.array(v)], schema=PAIRS)

    def made(self, found: pa.Schema) -> pa.Schema:
        fields = [(ROW_ID, pa.int64()), (OTHER, pa.int64()), (SET, pa.large_list(pa.uint64()))]
        return pa.schema([*map(pa.field, *zip(*fields, strict=True)), *_told(self.rule, found, others=True)])

    def identity(self) -> Any:
        return ["candidates", self.rule.identity()]

    def _of(self, marks: pa.Table, chosen: pa.Table, which: Ints, schema: pa.Schema) -> Iterator[pa.Table]:
        sets = distinct(self.rule.shingles(chosen[self.rule.column]))
        told = _told_of(self.rule, chosen)
        for first, last in ranges_within(sets.counts[which], _SLICE_HASHES):
            own = which[first:last]
            sent = take_shingles(sets, own)
            lists = pa.LargeListArray.from_arrays(pa.array(sent.offsets), pa.array(sent.hashes))
            others = marks.slice(first, last - first)
            columns = [one.take(pa.array(own)) for one in told]
            yield pa.table([others[OTHER], others[ROW_ID], lists, *columns], schema=schema)


@dataclass(frozen=True, slots=True)
class Edges(_OfPairs):
    """Replaces rows by the pairs that they are second in, and that are alike: the later row, then the earlier one."""

    rule: NearDedup
    marks: Marks | None = None
    """None where it is planned, not run."""

    @property
    def name(self) -> str:
        return f"alike({self.rule.column!r})"

    def made(self, found: pa.Schema) -> pa.Schema:
        return edges_schema(self.rule, found)

    def identity(self) -> Any:
        return ["alike", self.rule.identity()]

    def _of(self, marks: pa.Table, chosen: pa.Table, which: Ints, schema: pa.Schema) -> Iterator[pa.Table]:
        sets = distinct(self.rule.shingles(chosen[self.rule.column]))
        told = _told_of(self.rule, chosen)
        sent = marks[SET].combine_chunks()
        lengths = numbers(pc.list_value_length(sent))
        for first, last in ranges_within(sets.counts[which] + lengths, _SLICE_HASHES):
            theirs = sent.slice(first, last - first)
            offsets = numbers(theirs.offsets)
            left = Shingles(numbers(theirs.flatten()), offsets - offsets[0])
            alike = similarities(left, take_shingles(sets, which[first:last]))
            found = pa.array(np.flatnonzero(alike >= self.rule.threshold))
            pairs = marks.slice(first, last - first).take(found)
            own = pa.array(which[first:last]).take(found)
            ours = [pairs[ROW_ID], *(one.take(own) for one in told)]
            theirs = [pairs[OTHER], *(pairs[one.name] for one in _told(self.rule, chosen.schema, others=True))]
            yield _edges(self.rule, schema, ours, theirs, pa.array(alike).take(found))


def edges_schema(near: NearDedup, found: pa.Schema) -> pa.Schema:
    """Returns the schema of edges between rows of a schema."""
    fields = [pa.field(ROW_ID, pa.int64()), pa.field(OTHER, pa.int64()), pa.field(SIMILARITY, pa.float64())]
    own = _told(near, found, others=False)
    return pa.schema([*fields, *(own[:1] if near.verified else own), *_told(near, found, others=True)])


def _edges(near: NearDedup, schema: pa.Schema, ours: list[Any], theirs: list[Any], alike: pa.Array) -> pa.Table:
    """Returns edges from pairs, of which `ours` are behind `theirs` in the corpus, in the order of rows."""
    if near.ordered:
        one, other = (np.asarray(side[1]) for side in (ours, theirs))
        # Between rows that are both kept nobody asks; but they are one component.
        needed = np.flatnonzero((one > 0) | (other > 0)) if near.verified else np.arange(len(one))
        count, turned = len(one), (one < other)[needed]
        later, earlier = (pa.array(needed + count * way) for way in (turned, ~turned))
        ours, theirs = (
            [_end_to_end(*both).take(rows) for both in zip(ours, theirs, strict=True)] for rows in (later, earlier)
        )
        alike = alike.take(pa.array(needed))
    own = ours[1:2] if near.verified else ours[1:]
    return pa.table([ours[0], theirs[0], alike, *own, *theirs[1:]], schema=schema)


def _end_to_end(one: Any, other: Any) -> pa.ChunkedArray:
    sides = (side.chunks if isinstance(side, pa.ChunkedArray) else [side] for side in (one, other))
    return pa.chunked_array([chunk for side in sides for chunk in side], one.type)


def _told(near: NearDedup, found: pa.Schema, *, others: bool) -> list[pa.Field]:
    """Returns what is told of a row that is in a pair: class, id, and source."""
    names = (OTHER_CLASS, OTHER_ID, OTHER_SOURCE) if others else (CLASS, ID, SOURCE)
    told = [near.id_column, *([near.source] if near.source is not None else [])]
    types = [pa.int32(), *(plain_type(found.field(name).type) for name in told)]
    return [pa.field(name, type) for name, type in zip(names, types, strict=False)]


def _told_of(near: NearDedup, rows: pa.Table) -> list[Any]:
    told = [near.id_column, *([near.source] if near.source is not None else [])]
    return [pa.array(near.classes(rows)), *(plain_column(rows[name]) for name in told)]


def marks_of(marks: Marks, batch: pa.Table, place: BatchPosition) -> pa.Table:
    """Returns the marks of the rows of a batch."""
    start = int(row_ids(place, 1)[0])
    return marks.of(start, start + batch.num_rows)
