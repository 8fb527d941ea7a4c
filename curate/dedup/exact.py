"""Exact duplicates: rows whose columns have the same values, or the same normalised text. What is compared may be less
than a row, too: the parts of a text (see `spans`).

    keys     every row, or part of one, becomes its digest and its place; of those of one shard that have a digest, one
             is kept on, with their number: the one that would be kept
    marks    those of one digest come together, and one is chosen. Every shard that has others of it is told: digest,
             and which one is kept
    drop     the rows are read again, in order; what has a digest that is marked is dropped, but the one that is kept

What is exchanged is 36 bytes a row at most, 44 a part, beside its priority and its id. However often it is there, it is
one for each shard: no digest is too heavy for a task.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.arrow import hashing
from curate.arrow.canonical import plain_column
from curate.arrow.expressions import refuse_unknown
from curate.arrow.hashing import Words, digest_rows
from curate.arrow.order import Order, SortKey, rows_where
from curate.arrow.recast import decoded
from curate.arrow.types import is_text, plain_type, value_type
from curate.arrow.unknown import empty
from curate.dataclass import dataclass
from curate.dedup import normalise
from curate.errors import ConfigError, refuse_other
from curate.exchange.protocol import Exchange, ReducePart
from curate.exchange.row_ids import ROW_ID, first_row_id, ranks, row_ids
from curate.late_pandas import numbers
from curate.operators.protocol import ByRule, Replacing, Rule
from curate.operators.side_input import Marking, Marks
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition, SideTable
from curate.tasks.books import GROUPED

DUPLICATE = "duplicate"
"""Why rows are dropped that are copies of others."""
DUPLICATES = "duplicates"
"""The extra output that tells which these were."""


DIGEST, CHECK = "__digest", "__check"

COUNT, PRIORITY, ID = "__count", "__priority", "__id"

START = "__start"
"""Where in its row a part begins."""

KEPT, KEPT_ID, KEPT_START = "__kept", "__kept_id", "__kept_start"


KEEP = ("first", "last")


Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Parts:
    """What is compared of the rows of a batch, in order: their digests, and where they are."""

    digest: Words
    check: Words
    row: Ints
    """The row of the batch that each is of."""
    start: Ints | None = None
    """Where in that row it begins; None: it is the row."""


class Compared(Rule):
    """What is compared, and which of equal ones is kept: the first, the last, or that with the largest priority."""

    __slots__ = ()
    method: str
    """What the exchange is called in identities."""
    of_parts: bool
    """Whether parts of rows are compared, and have starts."""
    keep: str
    priority: str | None
    id_column: str | None

    @abstractmethod
    def parts(self, batch: pa.Table) -> Parts:
        """Returns what is compared of a batch."""


@dataclass(frozen=True, slots=True)
class ExactDedup(Compared):
    """When rows are duplicates, and which of them is kept."""

    columns: tuple[str, ...]
    normalised: bool = False
    """Whether texts are compared as `normalise.normalised` has them."""
    keep: str = "first"
    """Which is kept in input order: `first` or `last`."""
    priority: str | None = None
    """The column whose largest value is kept; among equal ones, and without values, by `keep`."""
    id_column: str | None = None
    """The column that duplicates are told by; None: they are not told."""

    of_parts = False
    method = "dedup_exact"

    @property
    def name(self) -> str:
        return f"dedup_exact({', '.join(map(repr, self.columns))})"

    @property
    def keeps_earlier(self) -> bool:
        """Whether no row is dropped for one behind it: then rows behind all others change nothing of what is kept."""
        return self.keep == "first" and self.priority is None

    @property
    def named(self) -> tuple[str, ...]:
        return (*self.columns, *(one for one in (self.priority, self.id_column) if one is not None))

    def check(self, found: pa.Schema) -> None:
        refuse_other("dedup_exact: keep", self.keep, KEEP)
        if not self.columns:
            raise ConfigError("dedup_exact: no column to compare rows by; name at least one")
        refuse_unknown("dedup_exact", self.named, found.names)
        if self.priority is not None:
            Order((SortKey(self.priority),)).check("dedup_exact(priority=)", found)
        digest_rows(self._compared(empty(found)), self.columns)

    def digests(self, batch: pa.Table) -> tuple[Words, Words]:
        """Returns the digest of each row."""
        return digest_rows(self._compared(batch), self.columns)

    def parts(self, batch: pa.Table) -> Parts:
        """Returns the rows."""
        return Parts(*self.digests(batch), np.arange(batch.num_rows))

    def _compared(self, batch: pa.Table) -> pa.Table:
        if not self.normalised:
            return batch
        for at, name in enumerate(batch.column_names):
            if name in self.columns and is_text(value_type(batch[name].type)):
                batch = batch.set_column(at, name, normalise.normalised(decoded(batch[name])))
        return batch

    def identity(self) -> Any:
        versions = [hashing.VERSION, normalise.VERSION if self.normalised else None]
        return [list(self.columns), self.normalised, self.keep, self.priority, self.id_column, versions]


@dataclass(frozen=True, slots=True)
class Digests(Replacing):
    """Replaces rows, or their parts, by digests and places."""

    rule: Compared

    @property
    def keeps_rows(self) -> bool:
        """Whether each row becomes one."""
        return not self.rule.of_parts

    @property
    def name(self) -> str:
        return self.rule.name.replace(self.rule.method, "digests", 1)

    def made(self, found: pa.Schema) -> pa.Schema:
        fields = [(DIGEST, pa.uint64()), (CHECK, pa.uint64()), (ROW_ID, pa.int64()), (COUNT, pa.int64())]
        fields += [(START, pa.int64())] * self.rule.of_parts
        if self.rule.priority is not None:
            fields.append((PRIORITY, found.field(self.rule.priority).type))
        if self.rule.id_column is not None:
            fields.append((ID, plain_type(found.field(self.rule.id_column).type)))
        return pa.schema(fields)

    def identity(self) -> Any:
        return ["digests", self.rule.identity()]

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        schema = self.schema(batch.schema)
        found = self.rule.parts(batch)
        columns = [found.digest, found.check, row_ids(place, batch.num_rows)[found.row]]
        columns.append(np.ones(len(found.row), np.int64))
        own = [batch[self.rule.priority]] if self.rule.priority is not None else []
        own += [plain_column(batch[self.rule.id_column])] if self.rule.id_column is not None else []
        if found.start is not None:
            tally.drop(max(0, batch.num_rows - len(found.row)), GROUPED)
            columns.append(found.start)
            own = [values.take(pa.array(found.row)) for values in own]
        yield pa.table([*map(pa.array, columns), *own], schema=schema)


@dataclass(frozen=True, slots=True)
class Chosen(Exchange):
    """The exchange that brings what has one digest together and chooses which of it is kept."""

    same: Compared
    orders = (Order((SortKey(DIGEST),)),)
    aligned = True
    folds = True

    @property
    def name(self) -> str:
        return self.same.name

    def identity(self) -> Any:
        return [self.same.method, self.same.identity()]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        """Returns the schema of marks."""
        if (made := Digests(self.same).schema(found[0])) is None:
            return None
        fields = [(ROW_ID, pa.int64()), (DIGEST, pa.uint64()), (CHECK, pa.uint64()), (KEPT, pa.int64())]
        fields += [(KEPT_START, pa.int64())] * self.same.of_parts
        return pa.schema([*fields, *([(KEPT_ID, made.field(ID).type)] if self.same.id_column is not None else [])])

    def prepare(self, side: int) -> tuple[Any, ...]:
        del side
        return (Digests(self.same),)

    def fold(self, table: pa.Table) -> pa.Table:
        order, starts = self._grouped(table, by_shard=True)
        if len(starts) == table.num_rows:
            return table
        kept = table.take(pa.array(order[starts]))
        counts = np.add.reduceat(numbers(table[COUNT])[order], starts)
        return kept.set_column(kept.column_names.index(COUNT), COUNT, pa.array(counts))

    def combine(self, tables: Sequence[pa.Table], tally: ShardBooks, part: ReducePart) -> Iterator[pa.Table]:
        del part
        folded = self.fold(tables[0])
        order, starts = self._grouped(folded, by_shard=False)
        if not len(order):
            return
        sizes = np.diff(starts, append=len(order))
        kept = np.repeat(order[starts], sizes)
        counts = numbers(folded[COUNT])
        # A shard has nothing to drop that has one row of a digest, and that is the one that is kept.
        told = (order != kept) | (counts[order] > 1)
        order, kept = order[told], kept[told]
        found = numbers(folded[ROW_ID])
        columns: list[Any] = [first_places(found[order]), numbers(folded[DIGEST])[order]]
        columns += [numbers(folded[CHECK])[order], found[kept]]
        names = [ROW_ID, DIGEST, CHECK, KEPT]
        if self.same.of_parts:
            columns.append(numbers(folded[START])[kept])
            names.append(KEPT_START)
        if self.same.id_column is not None:
            columns.append(folded[ID].take(pa.array(kept)))
            names.append(KEPT_ID)
        made = pa.table(columns, names=names)
        tally.drop(tables[0].num_rows - made.num_rows, GROUPED)
        yield made

    def _grouped(self, table: pa.Table, *, by_shard: bool) -> tuple[Ints, Ints]:
        """Returns rows in an order in which those of one digest, or of one digest and shard, are beside each other, the
        one that is kept first; and where these groups start.
        """
        digest, check = numbers(table[DIGEST]), numbers(table[CHECK])
        found = numbers(table[ROW_ID])
        ways = [numbers(table[START]), found] if self.same.of_parts else [found]
        keys: list[Any] = ways if self.same.keep == "first" else [-one for one in ways]
        if self.same.priority is not None:
            keys.append(_falling(table[PRIORITY]))
        if by_shard:
            keys.append(ranks(found))
        order = np.lexsort((*keys, check, digest))
        new = np.ones(len(order), bool)
        for values in (digest, check, *([ranks(found)] if by_shard else [])):
            ordered = values[order]
            new[1:] &= ordered[1:] == ordered[:-1]
        new[1:] = ~new[1:]
        return order, np.flatnonzero(new)


def _falling(values: pa.ChunkedArray) -> Ints:
    """Returns numbers that grow as values fall, then for NaN, then for null; the same for equal ones."""
    order = Order((SortKey("value", descending=True),))
    table = pa.table({"value": values})
    rows = numbers(order.indices(table))
    table = order.sort(table)
    steps = np.zeros(len(rows), np.int64)
    steps[order.starts(table)[1:]] = 1
    found = np.empty(len(rows), np.int64)
    found[rows] = np.cumsum(steps)
    return found


def first_places(found: Ints) -> Ints:
    """Returns the first place of the shard that each place is in."""
    return (ranks(found).astype(np.int64)) * first_row_id(1)


class OfCopies(Marking, ByRule):
    """A step whose marks are copies, of which each shard has its own."""

    __slots__ = ()
    rule: Compared
    side: ClassVar[str]
    """The extra output that tells them, where rows have an id."""
    order = Order((SortKey(ROW_ID), SortKey(DIGEST)))
    """What marks are sorted by: the shard that they are for, and the digest."""

    @property
    def sides(self) -> tuple[str, ...]:
        """The extra outputs that it has."""
        return (self.side,) if self.rule.id_column is not None else ()


@dataclass(frozen=True, slots=True)
class DropCopies(OfCopies):
    """Drops the rows that are copies of others."""

    rule: ExactDedup
    marks: Marks | None = None
    """None where it is planned, not run."""
    side = DUPLICATES

    def identity(self) -> Any:
        return ["drop copies", self.rule.identity()]

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table | SideTable]:
        if not batch.num_rows or self.marks is None:
            # Nothing but schemas is asked for.
            yield batch
            yield from self._told(batch, None)
            return
        marks = self.marks.of(first_row_id(place.rank), first_row_id(place.rank + 1))
        if not marks.num_rows:
            yield batch
            yield from self._told(batch, None)
            return
        at = copies(self.rule.parts(batch), row_ids(place, batch.num_rows), marks)
        dropped = at >= 0
        tally.drop_rows(batch, dropped, DUPLICATE)
        yield rows_where(batch, ~dropped)
        # Also without rows: it tells the columns of the extra output.
        yield from self._told(rows_where(batch, dropped), marks.take(pa.array(at[dropped])))

    def _told(self, batch: pa.Table, marks: pa.Table | None) -> Iterator[SideTable]:
        if self.rule.id_column is None or self.rule.id_column not in batch.column_names:
            return
        ids = plain_column(batch[self.rule.id_column])
        marks = marks if marks is not None else pa.table({CHECK: pa.array([], pa.uint64()), KEPT_ID: ids[:0]})
        clusters = pa.array([f"{one:016x}" for one in marks[CHECK].to_pylist()], pa.string())
        alike = pa.array(np.ones(len(clusters)))
        yield duplicates(ids if len(clusters) else ids[:0], clusters, marks[KEPT_ID], alike)


def duplicates(ids: Any, clusters: Any, kept: Any, similarity: Any) -> SideTable:
    """Returns a table of duplicates: id, cluster, the id of the row that is kept, and how alike they are."""
    names = ["id", "cluster", "kept_id", "similarity"]
    return SideTable(DUPLICATES, pa.table([ids, clusters, kept, similarity], names=names))


def copies(found: Parts, own: Ints, marks: pa.Table) -> Ints:
    """Returns for each part the mark that it is a copy by; -1: it is none, or the one that is kept. `own` are the ids
    of the rows of the batch, `marks` those of its shard.
    """
    at = _found(found.digest, found.check, numbers(marks[DIGEST]), numbers(marks[CHECK]))
    some = np.flatnonzero(at >= 0)
    kept = numbers(marks[KEPT])[at[some]] == own[found.row[some]]
    if found.start is not None:
        kept &= numbers(marks[KEPT_START])[at[some]] == found.start[some]
    at[some[kept]] = -1
    return at


def _found(digest: Words, check: Words, digests: Words, checks: Words) -> Ints:
    """Returns where each digest is among those of marks, which are sorted, by their first words; -1: nowhere."""
    found = np.full(len(digest), -1)
    at = np.searchsorted(digests, digest)
    left = np.arange(len(digest))
    while len(left):
        left = left[at[left] < len(digests)]
        left = left[digests[at[left]] == digest[left]]
        same = checks[at[left]] == check[left]
        found[left[same]] = at[left[same]]
        # Of several marks with the same first word, which there are none of but by chance, the next one.
        left = left[~same]
        at[left] += 1
    return found
