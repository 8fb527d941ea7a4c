"""Near duplicates: rows whose texts are alike, or are tied to each other by a chain of texts that are.

    bands      every text becomes a row for each of its bands (see `minhash`)
    pairs      rows of one band come together, and become pairs to look at (see `pairs`)
    sets       the rows are read again: for each pair the n-grams of its first text are sent to the place of the second
    edges      the rows are read again: the n-grams of the second text are there, and pairs that are not alike go
    clusters   what is connected is a cluster, of which the first row in input order is kept; every other one is marked
    drop       the rows are read again, in order; those that are marked are dropped

No text travels, and of its n-grams only those of candidates, eight bytes each and once for each pair: to send n-grams
along with bands would move them as often as there are bands, of all texts. The price are two reads of the column, of
which only candidates are looked at. Similarities are those of the sets of n-grams, not estimates: a pair that is below
the threshold is never an edge.

Long because its steps are one algorithm, and each reads what the one before wrote.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow import hashing
from curate.arrow.expressions import unknown_column
from curate.arrow.hashing import check_seed, hash_words
from curate.arrow.order import Order, SortKey, rows_where, take_rows
from curate.arrow.types import is_text, value_type
from curate.dedup import minhash, shingles
from curate.dedup.components import Ints, components
from curate.dedup.exact import DUPLICATE, DUPLICATES, KEPT, KEPT_ID, duplicates
from curate.dedup.minhash import band_hashes, signatures, twin_hashes
from curate.dedup.pairs import SMALL, distinct_pairs, pairs_of_buckets, similarities
from curate.dedup.shingles import UNITS, Shingles, distinct, take_shingles
from curate.errors import ConfigError, did_you_mean
from curate.exchange.protocol import ExchangeDefaults, ReducePart
from curate.exchange.row_ids import BY_ROW_ID, ROW_ID, row_ids
from curate.operators.protocol import OperatorDefaults
from curate.operators.side_input import Marks
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition, SideTable
from curate.tasks.books import GROUPED

COMPARED = "compared"
"""Why rows are dropped that were read to be compared."""
NO_WORDS = "no words"
"""Why texts have no bands: there is nothing in them to be alike."""


BAND, TWIN, OTHER, OTHER_ID, SET = "__band", "__twin", "__other", "__other_id", "__set"

ID, SIMILARITY = "__id", "__similarity"


HEAVY = 1024
"""Rows of a bucket in one map shard above which it is not sent as it is."""
_NOBODY = -1
"""The other place of a row that is a member of its bucket, not a pair."""
_SLICE_ROWS = 1 << 20
"""Rows of buckets that become pairs at a time, about."""
_SLICE_HASHES = 1 << 22
"""N-grams that are sent, or compared, at a time: 32 MiB."""


@dataclass(frozen=True, slots=True)
class NearDedup:
    """When texts are near duplicates."""

    column: str
    id_column: str
    threshold: float = 0.8
    ngram: int = 5
    bands: int = 14
    rows: int = 8
    seed: int = 0
    unit: str = "word"

    def __post_init__(self) -> None:
        if not isinstance(self.threshold, int | float) or not 0 < self.threshold <= 1:
            raise ConfigError(f"dedup_minhash: threshold is {self.threshold!r}, expected more than 0, at most 1")
        for name, value in (("ngram", self.ngram), ("bands", self.bands), ("rows", self.rows)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"dedup_minhash: {name} is {value!r}, expected a whole number, at least 1")
        if self.unit not in UNITS:
            meant = did_you_mean(self.unit, UNITS)
            raise ConfigError(f"dedup_minhash: unit={self.unit!r}{meant}; there are {' and '.join(UNITS)}")
        check_seed(self.seed)

    @property
    def columns(self) -> list[str]:
        """The columns that are looked at."""
        return list(dict.fromkeys([self.column, self.id_column]))

    def check(self, found: pa.Schema) -> None:
        """Raises ConfigError for columns that are not there, and for texts that are none."""
        for name in self.columns:
            if name not in found.names:
                raise ConfigError(f"dedup_minhash: {unknown_column(name, found.names)}")
        type = found.field(self.column).type
        if not is_text(value_type(type)):
            told = f"dedup_minhash: column {self.column!r} is {type}, expected texts"
            raise ConfigError(f"{told}; use dedup_exact to find rows with equal values")

    def shingles(self, texts: pa.ChunkedArray) -> Shingles:
        """Returns the n-grams of texts."""
        return shingles.shingles(texts, self.ngram, self.unit)

    def identity(self) -> Any:
        """Returns what decides which rows are duplicates, as JSON values."""
        versions = [hashing.VERSION, shingles.VERSION, minhash.VERSION, VERSION]
        given = [self.threshold, self.ngram, self.bands, self.rows, self.seed, self.unit]
        return [self.column, self.id_column, *given, versions]


VERSION = 1
"""Of which pairs are looked at, and what becomes of them."""


class _OfRows(OperatorDefaults, ABC):
    """The usual answers of a step that makes something else of rows."""

    __slots__ = ()
    near: NearDedup
    keeps_rows = False

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        if found is None:
            return None
        self.near.check(found)
        return self.made(found)

    @abstractmethod
    def made(self, found: pa.Schema) -> pa.Schema:
        """Returns the schema of what it makes."""

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        del schema, needed
        return set(self.near.columns)


class _Together(ExchangeDefaults):
    """An exchange of deduplication."""

    __slots__ = ()
    aligned = True

    def folds(self, side: int) -> bool:
        del side
        return True


# Bands, and pairs of rows that share one


@dataclass(frozen=True, slots=True)
class Bands(_OfRows):
    """Replaces each row by its bands: hash, place, and twin (see `pairs`), which is of the next band."""

    near: NearDedup

    @property
    def name(self) -> str:
        return f"minhash({self.near.column!r})"

    def made(self, found: pa.Schema) -> pa.Schema:
        del found
        return _BANDS

    def identity(self) -> Any:
        return ["minhash", self.near.identity()]

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        near = self.near
        sets = near.shingles(batch[near.column])
        found = signatures(sets, near.bands * near.rows, near.seed)
        some = np.flatnonzero(sets.counts)
        tally.drop(batch.num_rows - len(some), NO_WORDS)
        hashes = band_hashes(found, near.bands)[:, some]
        twins = np.roll(twin_hashes(found, near.bands)[:, some], -1, axis=0)
        # Row by row, so that the bands of a row are in one run file.
        at = np.repeat(row_ids(place, batch.num_rows)[some], near.bands)
        columns = [hashes.T.ravel(), at, twins.T.ravel(), np.full(len(at), _NOBODY)]
        yield pa.table([pa.array(np.ascontiguousarray(one)) for one in columns], schema=_BANDS)


_BANDS = pa.schema([(BAND, pa.uint64()), (ROW_ID, pa.int64()), (TWIN, pa.uint32()), (OTHER, pa.int64())])
_PAIRS = pa.schema([(ROW_ID, pa.int64()), (OTHER, pa.int64())])


@dataclass(frozen=True, slots=True)
class Buckets(_Together):
    """The exchange that brings rows of one band together, and makes pairs of them: `ROW_ID` before `OTHER`.

    A bucket of over a thousand rows in one map shard becomes pairs there. Of its rows the first of 16 twins stay, those
    with the least hashes, so that other map shards have the same; and pairs go their own way, by a hash of their own.
    So no bucket is too heavy for a task.
    """

    near: NearDedup

    @property
    def name(self) -> str:
        return f"dedup_minhash({self.near.column!r})"

    @property
    def orders(self) -> tuple[Order, ...]:
        return (Order((SortKey(BAND),)),)

    def identity(self) -> Any:
        return ["pairs", self.near.identity()]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        if found[0] is not None:
            self.near.check(found[0])
        return _PAIRS

    def prepare(self, side: int) -> tuple[Any, ...]:
        del side
        return (Bands(self.near),)

    def fold(self, side: int, table: pa.Table) -> pa.Table:
        del side
        bands, at, twins, other = (table[name].to_numpy() for name in _BANDS.names)
        members = np.flatnonzero(other == _NOBODY)
        order = members[np.lexsort((at[members], twins[members], bands[members]))]
        _, sizes = _runs(bands[order])
        large = np.repeat(sizes > HEAVY, sizes)
        if not large.any():
            return table
        rows = order[large]
        u, v = pairs_of_buckets(bands[rows], at[rows], twins[rows])
        new = np.append(True, (bands[rows][1:] != bands[rows][:-1]) | (twins[rows][1:] != twins[rows][:-1]))
        heads = rows[new]
        first, many = _runs(bands[heads])
        stay = heads[np.arange(len(heads)) - np.repeat(first, many) < SMALL]
        kept = np.sort(np.concatenate([np.setdiff1d(np.arange(table.num_rows), rows), stay]))
        pairs = [hash_words(hash_words(u.view(np.uint64)) + v.view(np.uint64)), u, np.zeros(len(u), np.uint32), v]
        return pa.concat_tables([table.take(pa.array(kept)), pa.table(list(map(pa.array, pairs)), schema=_BANDS)])

    def combine(self, tables: Sequence[pa.Table], tally: ShardBooks, part: ReducePart) -> Iterator[pa.Table]:
        del part
        bands, at, twins, other = (tables[0][name].to_numpy() for name in _BANDS.names)
        starts, _ = _runs(bands)
        made = first = 0
        while first < len(bands):
            next = int(np.searchsorted(starts, first + _SLICE_ROWS))
            last = int(starts[next]) if next < len(starts) else len(bands)
            members = first + np.flatnonzero(other[first:last] == _NOBODY)
            pairs = first + np.flatnonzero(other[first:last] != _NOBODY)
            u, v = pairs_of_buckets(bands[members], at[members], twins[members])
            u, v = distinct_pairs(np.concatenate([u, at[pairs]]), np.concatenate([v, other[pairs]]))
            made += len(u)
            yield pa.table([pa.array(u), pa.array(v)], schema=_PAIRS)
            first = last
        tally.drop(max(0, len(bands) - made), GROUPED)


def _runs(values: Any) -> tuple[Ints, Ints]:
    """Returns where runs of equal values start, and how long they are."""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))[: len(values)]
    return starts, np.diff(starts, append=len(values))


# How alike the texts of a pair are


@dataclass(frozen=True, slots=True)
class SendSets(_OfRows):
    """Replaces rows by the n-grams of those that are first in a pair, at the places of the second: a row a pair."""

    near: NearDedup
    marks: Marks | None = None
    """None where it is planned, not run."""
    order = Order((SortKey(ROW_ID), SortKey(OTHER)))
    """What marks are sorted by."""
    folds = True

    @property
    def name(self) -> str:
        return f"candidates({self.near.column!r})"

    def fold(self, marks: pa.Table) -> pa.Table:
        """Returns each pair once."""
        u, v = distinct_pairs(marks[ROW_ID].to_numpy(), marks[OTHER].to_numpy())
        return pa.table([pa.array(u), pa.array(v)], schema=_PAIRS)

    def marked(self, marks: Marks) -> SendSets:
        """Returns the step with its marks."""
        return replace(self, marks=marks)

    def made(self, found: pa.Schema) -> pa.Schema:
        fields = [(ROW_ID, pa.int64()), (OTHER, pa.int64()), (SET, pa.large_list(pa.uint64()))]
        return pa.schema([*fields, (OTHER_ID, found.field(self.near.id_column).type)])

    def identity(self) -> Any:
        return ["candidates", self.near.identity()]

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        schema = self.schema(batch.schema)
        assert schema is not None
        tally.drop(batch.num_rows, COMPARED)
        marks = _marks_of(self.marks, batch, place) if self.marks is not None else None
        if marks is None or not marks.num_rows:
            yield schema.empty_table()
            return
        marks = self.fold(marks)
        rows, which = np.unique(marks[ROW_ID].to_numpy(), return_inverse=True)
        chosen = take_rows(batch.select(self.near.columns), pa.array(rows - row_ids(place, 1)))
        sets = distinct(self.near.shingles(chosen[self.near.column]))
        for first, last in _slices(sets.counts[which]):
            own = which[first:last]
            sent = take_shingles(sets, own)
            lists = pa.LargeListArray.from_arrays(pa.array(sent.offsets), pa.array(sent.hashes))
            others = marks.slice(first, last - first)
            ids = chosen[self.near.id_column].take(pa.array(own))
            yield pa.table([others[OTHER], others[ROW_ID], lists, ids], schema=schema)


@dataclass(frozen=True, slots=True)
class Edges(_OfRows):
    """Replaces rows by the pairs that they are second in, and that are alike."""

    near: NearDedup
    marks: Marks | None = None
    """None where it is planned, not run."""
    order = Order((SortKey(ROW_ID), SortKey(OTHER)))
    """What marks are sorted by."""
    folds = False

    @property
    def name(self) -> str:
        return f"alike({self.near.column!r})"

    def fold(self, marks: pa.Table) -> pa.Table:
        return marks

    def marked(self, marks: Marks) -> Edges:
        """Returns the step with its marks."""
        return replace(self, marks=marks)

    def made(self, found: pa.Schema) -> pa.Schema:
        return _edges(found.field(self.near.id_column).type)

    def identity(self) -> Any:
        return ["alike", self.near.identity()]

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        schema = self.schema(batch.schema)
        assert schema is not None
        tally.drop(batch.num_rows, COMPARED)
        marks = _marks_of(self.marks, batch, place) if self.marks is not None else None
        if marks is None or not marks.num_rows:
            yield schema.empty_table()
            return
        rows, which = np.unique(marks[ROW_ID].to_numpy(), return_inverse=True)
        chosen = take_rows(batch.select(self.near.columns), pa.array(rows - row_ids(place, 1)))
        sets = distinct(self.near.shingles(chosen[self.near.column]))
        sent = marks[SET].combine_chunks()
        lengths = pa.compute.list_value_length(sent).to_numpy()
        for first, last in _slices(sets.counts[which] + lengths):
            theirs = sent.slice(first, last - first)
            offsets = theirs.offsets.to_numpy()
            left = Shingles(theirs.flatten().to_numpy(), offsets - offsets[0])
            alike = similarities(left, take_shingles(sets, which[first:last]))
            found = pa.array(np.flatnonzero(alike >= self.near.threshold))
            pairs = marks.slice(first, last - first).take(found)
            ids = chosen[self.near.id_column].take(pa.array(which[first:last]).take(found))
            yield pa.table(
                [pairs[OTHER], pairs[ROW_ID], pairs[OTHER_ID], ids, pa.array(alike).take(found)], schema=schema
            )


def _edges(id: pa.DataType) -> pa.Schema:
    fields = [(ROW_ID, pa.int64()), (OTHER, pa.int64()), (ID, id), (OTHER_ID, id)]
    return pa.schema([*fields, (SIMILARITY, pa.float64())])


def _marks_of(marks: Marks, batch: pa.Table, place: BatchPosition) -> pa.Table:
    start = int(row_ids(place, 1)[0])
    return marks.of(start, start + batch.num_rows)


def _slices(weights: Ints) -> Iterator[tuple[int, int]]:
    """Yields ranges of at most _SLICE_HASHES together, or of one."""
    ends = np.cumsum(weights)
    first = 0
    while first < len(ends):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + _SLICE_HASHES, side="right")))
        yield first, last
        first = last


# Clusters


@dataclass(frozen=True, slots=True)
class Clusters(_Together):
    """The exchange that finds what is connected, in one task, and marks all of it but the first row of each cluster.

    Edges become a spanning forest of them as they come, in every map shard: there are fewer than rows that have one.
    """

    near: NearDedup
    aligned = False
    count: int | None = 1

    @property
    def name(self) -> str:
        return "clusters"

    @property
    def orders(self) -> tuple[Order, ...]:
        return (Order(),)

    def identity(self) -> Any:
        return ["clusters", self.near.identity()]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        return None if found[0] is None else _clusters(found[0].field(ID).type)

    def fold(self, side: int, table: pa.Table) -> pa.Table:
        del side
        found = components(table[ROW_ID].to_numpy(), table[OTHER].to_numpy(), table[SIMILARITY].to_numpy())
        return table if len(found.forest) == table.num_rows else table.take(pa.array(found.forest))

    def combine(self, tables: Sequence[pa.Table], tally: ShardBooks, part: ReducePart) -> Iterator[pa.Table]:
        del part
        (edges,) = tables
        u, v = edges[ROW_ID].to_numpy(), edges[OTHER].to_numpy()
        found = components(u, v, edges[SIMILARITY].to_numpy())
        # Of each row one edge, which has its id.
        _, one = np.unique(np.concatenate([u, v]), return_index=True)
        ids = pa.chunked_array([*edges[ID].chunks, *edges[OTHER_ID].chunks], edges[ID].type)
        marked = np.flatnonzero(found.nodes != found.labels)
        kept = found.labels[marked]
        kept_ids = ids.take(pa.array(one[np.searchsorted(found.nodes, kept)]))
        columns = [pa.array(found.nodes[marked]), pa.array(kept), kept_ids, pa.array(found.best[marked])]
        tally.drop(max(0, edges.num_rows - len(marked)), GROUPED)
        yield pa.table(columns, schema=_clusters(edges[ID].type))


def _clusters(id: pa.DataType) -> pa.Schema:
    return pa.schema([(ROW_ID, pa.int64()), (KEPT, pa.int64()), (KEPT_ID, id), (SIMILARITY, pa.float64())])


@dataclass(frozen=True, slots=True)
class DropNear(OperatorDefaults):
    """Drops the rows of each cluster but the first one, and tells which they were, as an extra output."""

    near: NearDedup
    marks: Marks | None = None
    """None where it is planned, not run."""
    order = BY_ROW_ID
    """What marks are sorted by."""
    folds = False
    keeps_rows = False
    sides = (DUPLICATES,)
    """The extra outputs that it has."""

    @property
    def name(self) -> str:
        return f"dedup_minhash({self.near.column!r})"

    def fold(self, marks: pa.Table) -> pa.Table:
        return marks

    def marked(self, marks: Marks) -> DropNear:
        """Returns the step with its marks."""
        return replace(self, marks=marks)

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        if found is not None:
            self.near.check(found)
        return found

    def identity(self) -> Any:
        return ["drop near copies", self.near.identity()]

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        del schema
        return needed | set(self.near.columns)

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table | SideTable]:
        ids = batch[self.near.id_column]
        if self.marks is None:
            # Nothing but schemas is asked for.
            yield batch
            yield duplicates(ids[:0], pa.array([], pa.string()), ids[:0], pa.array([], pa.float64()))
            return
        marks = _marks_of(self.marks, batch, place)
        if not marks.num_rows:
            yield batch
            yield duplicates(ids[:0], pa.array([], pa.string()), ids[:0], pa.array([], pa.float64()))
            return
        rows = marks[ROW_ID].to_numpy() - row_ids(place, 1)
        keep = np.ones(batch.num_rows, bool)
        keep[rows] = False
        tally.drop_rows(batch, ~keep, DUPLICATE)
        yield rows_where(batch, keep)
        # Also without rows: it tells the columns of the extra output.
        clusters = pa.array([f"{kept:016x}" for kept in marks[KEPT].to_pylist()], pa.string())
        yield duplicates(ids.take(pa.array(rows)), clusters, marks[KEPT_ID], marks[SIMILARITY])
