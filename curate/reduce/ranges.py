"""The reduce side of an exchange as a source: each piece is what one output reads of all run files.

Where the ranges begin is decided here, from the indexes of the run files alone, and nothing else: the same run files
give the same outputs on any cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Self

import numpy as np
import pyarrow as pa

from curate.arrow.batches import rechunk
from curate.arrow.canonical import given_schema, restore_types
from curate.arrow.order import Order, take_rows
from curate.arrow.schema import conform_to_union, unify_schemas
from curate.arrow.unknown import empty, is_blank
from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError, CurateError, DamagedRun
from curate.exchange.protocol import Exchange, ReducePart, unequal
from curate.exchange.run_file import RunFile, opened, remove_damaged
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.reduce.between import reads_between, rows_between
from curate.reduce.by_key import by_key
from curate.reduce.cuts import Cut, Cuts, cuts, cuts_at, place
from curate.reduce.even import EvenPart, SegmentRanges, evenly
from curate.reduce.index import STEPS, Index, Ints, Side, read_side, together
from curate.reduce.skew import heaviest, refusal
from curate.sources.protocol import Piece, Projection, Source, StoreOf
from curate.storage.protocol import Object
from curate.tasks.books import LIMIT
from curate.units import GIB, MIB

LEAST_BYTES, MOST_BYTES, PARTS = 32 * MIB, 4 * GIB, 64
"""An output reads a sixty-fourth of the rows, within these bounds: bytes as they are in memory, and nothing else,
decide how many there are."""

COPIES = 3
"""Times the bytes of the rows of an output that a task needs to make it: as they are read, in order, and written."""
SLICE_ROWS = 1 << 16
"""Rows that are put in order at a time."""


@dataclass(frozen=True, slots=True)
class OutputRange:
    """What one output reads."""

    number: int
    reads: SegmentRanges = field(repr=False)
    """Segments, and which rows of them, if that is told by more than the cuts."""
    size: int
    """Bytes in memory, about."""
    skip: int = 0
    take: int | None = None
    low: Cut | None = None
    """Where it begins, within the first pages; None: with the first row that is read."""
    high: Cut | None = None
    """Where the next one begins, within the last pages."""
    over: int = 0
    """Rows that no output gives: the last one says so in its books."""
    name: str = ""
    """What it is called; empty: by its number."""
    parts: tuple[OutputRange, ...] = field(default=(), repr=False)
    """What it reads one after the other, if its exchange is made in one go."""


@dataclass(frozen=True, slots=True)
class Ranges(Source):
    """The rows of an exchange whose run files are there."""

    how: Exchange
    schema: pa.Schema
    files: tuple[Object, ...] = field(repr=False)
    """Run files in merge order."""
    sides: tuple[int, ...] = field(repr=False)
    """The side that each of them is of."""
    segments: Ints = field(repr=False, compare=False)
    """Of each segment, in merge order: the side that it is of, its file, and its number there."""
    made: tuple[OutputRange, ...] = field(repr=False)
    """What the outputs read; tasks are given none but their own."""
    of: int
    """How many outputs there are."""
    held: tuple[pa.Schema | None, ...] = ()
    """What rows of each side are held to, where those of its run files differ, as parts of a union may."""
    given_schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """The types that columns came with, where `schema` has none: run files hold some in a plainer way."""
    num_cpus: float | None = None

    @property
    def name(self) -> str:
        return self.how.name

    @property
    def found(self) -> pa.Schema:
        return self.schema

    def pieces(self) -> Iterator[Piece]:
        for one in self.made:
            label = f"output {one.number} of {self.how.name}"
            yield Piece(one.name or _part_name(one.number, self.of), label, one.size, one)

    def bare(self) -> Self:
        return replace(self, made=())

    def identity(self) -> Any:
        return ["exchange", self.how.identity()]

    def read(
        self, data: OutputRange, view: Projection, batch_rows: int, tally: ShardBooks, store_of: StoreOf
    ) -> Iterator[pa.Table]:
        del view, store_of
        # Each by itself: rows that are lists of groups are many bytes together, and come in tables of what is meant.
        for table in self._rows(data, tally):
            for batch in rechunk([table.replace_schema_metadata(None)], batch_rows):
                yield restore_types(batch, self.schema if len(self.schema) else self.given_schema)

    def _rows(self, piece: OutputRange, tally: ShardBooks) -> Iterator[pa.Table]:
        if piece.parts:
            yield from self._in_turn(piece, tally)
            return
        sides = []
        for side in range(len(self.how.orders)):
            own = self._tables(piece, side)
            tables = [one for one in own.tables if one.num_rows]
            if not tables:
                sides.append(self._empty(side))
            elif self.how.plain:
                rows = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
                yield from self._plain(rows, len(tables), own.first, tally)
            else:
                sides.append(self._in_order(tables, side))
                tally.books.rows_in += sides[-1].num_rows
        if not self.how.plain and not all(map(is_blank, sides)):
            part = ReducePart(piece.number, self.of, piece.skip, piece.take)
            yield from self.how.combine(sides, tally, part)
        tally.books.rows_in += piece.over
        tally.drop(piece.over, LIMIT)

    def _in_order(self, tables: list[pa.Table], side: int) -> pa.Table:
        """Returns the rows of segments as `combine` is given them."""
        rows, order = tables[0] if len(tables) == 1 else pa.concat_tables(tables), self.how.orders[side]
        return order.sort(rows) if len(tables) > 1 and order.keys and not self.how.sorts else rows

    def _in_turn(self, piece: OutputRange, tally: ShardBooks) -> Iterator[pa.Table]:
        """Yields what becomes of the rows of all parts, of which one is in memory at a time."""
        passes = 0

        def read() -> Iterator[pa.Table]:
            nonlocal passes
            passes += 1
            first, none = passes == 1, True
            for one in piece.parts:
                tables = [table for table in self._tables(one, 0).tables if table.num_rows]
                if tables:
                    # However often they are read.
                    tally.books.rows_in += sum(table.num_rows for table in tables) if first else 0
                    yield self._in_order(tables, 0)
                    none = False
            if none:
                yield self._empty(0)

        if not is_blank(self._empty(0)):
            yield from self.how.scan(read, tally)

    def _plain(self, rows: pa.Table, runs: int, first: int, tally: ShardBooks) -> Iterator[pa.Table]:
        """Yields rows in order, of which `first` of all lie before: those that are within the limit."""
        (order,) = self.how.orders
        own = rows.num_rows if self.how.first is None else max(0, min(rows.num_rows, self.how.first - first))
        tally.books.rows_in += own
        # Those of one key are in order already.
        yield from _sorted(rows, order, 1 if self.how.by_key else runs, own)

    def _tables(self, piece: OutputRange, side: int) -> _Own:
        """Returns the rows of each segment that are this output's. Raises DamagedRun; all files in which they are
        damaged are removed then, so that they are made again at once."""
        tables: list[pa.Table] = []
        damaged: list[DamagedRun] = []
        first = piece.reads.before
        for at, number in enumerate(piece.reads.segments.tolist()):
            of, file, segment = self.segments[number].tolist()
            if of != side:
                continue
            try:
                start, found = self._read(piece, at, opened(self.files[file]), segment)
            except DamagedRun as error:
                remove_damaged(self.files[file], error)
                damaged.append(error)
            else:
                if not damaged:
                    if (to := self.held[side] if self.held else None) is not None:
                        found = conform_to_union(found, to)
                    low, high = self._between(found, piece, number, start)
                    first += start + low
                    tables.append(found.slice(low, high - low) if low or high < found.num_rows else found)
        if damaged:
            raise damaged[0]
        return _Own(tables, first)

    def _read(self, piece: OutputRange, at: int, file: RunFile, segment: int) -> tuple[int, pa.Table]:
        """Returns the pages of a segment that a piece reads, its `at`th, and the first row that is in them."""
        reads = piece.reads
        if reads.starts is not None and reads.stops is not None:
            start, stop = int(reads.starts[at]), int(reads.stops[at])
        else:
            number = int(reads.segments[at])
            side = int(self.segments[number][0])
            index = file.segments[segment]
            if (to := self.held[side] if self.held else None) is not None:
                keys = pa.schema([to.field(name) for name in index.keys.column_names])
                index = replace(index, keys=conform_to_union(index.keys, keys))
            start, stop = rows_between(index, number, self.how.orders[side], piece.low, piece.high)
        return start, file.read(segment, start, stop)

    def _between(self, table: pa.Table, piece: OutputRange, number: int, start: int) -> tuple[int, int]:
        """Returns which rows are between the cuts, of whole pages of a segment from row `start` on."""
        order = self.how.orders[int(self.segments[number][0])]

        def at(cut: Cut) -> int:
            if number == cut.segment and cut.row:
                return int(min(max(0, cut.row - start), table.num_rows))
            named = cut.key.rename_columns([key.column for key in order.keys])
            return int(place(cut, number, lambda _, after: order.position(table, named, after)))

        low = 0 if piece.low is None else at(piece.low)
        high = table.num_rows if piece.high is None else at(piece.high)
        return low, max(low, high)

    def _empty(self, side: int) -> pa.Table:
        if (to := self.held[side] if self.held else None) is not None:
            return empty(to)
        # Files without a row have no segment, and say which columns there are all the same, if that is known.
        own = (opened(file).schema for of, file in zip(self.sides, self.files, strict=True) if of == side)
        return empty(next((schema for schema in own if len(schema)), pa.schema([])))


@dataclass(frozen=True, slots=True)
class _Own:
    """The rows of an output, of one side."""

    tables: list[pa.Table]
    """Those of each segment."""
    first: int
    """How many rows of all lie before."""


def _sorted(rows: pa.Table, order: Any, runs: int, most: int) -> Iterator[pa.Table]:
    """Yields rows of some runs in order, the first `most` of them."""
    if runs == 1 or not order.keys:
        yield rows.slice(0, most)
        return
    # Arrow lays texts of several chunks end to end for each `take`.
    rows = rows.combine_chunks()
    indices = order.indices(rows).slice(0, most)
    for start in range(0, len(indices), SLICE_ROWS):
        yield take_rows(rows, indices.slice(start, SLICE_ROWS))


def ranges_of(how: Exchange, schema: pa.Schema | None, sides: Sequence[Sequence[Object]], budget_bytes: int) -> Ranges:
    """Returns the source over the run files of each side of an exchange, in merge order; reads their indexes.

    `schema` is that of the rows, if it is known; else it is what becomes of that of the first run file of each side.
    `budget_bytes` is what a task has for the rows of one output. Raises ConfigError if there is a key whose rows, which
    have to come to one, do not fit; DamagedRun, once what is damaged was removed.
    """
    files = tuple(item for objects in sides for item in objects)
    found = [read(how, side, tuple(objects)) for side, objects in enumerate(sides)]
    side_of = [side for side, objects in enumerate(sides) for _ in objects]
    held = _held(how, found)
    # Keys of all sides are compared with one another: what they are called says nothing.
    names = [key.column for key in how.orders[0].keys]
    indexes = [one.index(to, names) for one, to in zip(found, held, strict=True)]
    index = together(indexes)
    if how.aligned:
        heavy = heaviest(how.orders[0], index)
        if heavy is not None and heavy.bytes * COPIES > budget_bytes:
            raise ConfigError(refusal(how.name, heavy, budget_bytes, copies=COPIES))
    if how.beside:
        made = tuple(_pieces_beside(indexes))
    elif how.by_key:
        made = tuple(_pieces_by_key(how, index))
    elif how.serial:
        parts = tuple(_pieces_by_bytes(how, index))
        made = (OutputRange(0, parts[0].reads, max(one.size for one in parts), parts=parts),)
    elif how.even:
        made = tuple(_pieces_by_rows(how, index))
    else:
        made = tuple(_pieces_by_bytes(how, index))
    of = [to or _first_of(one) for one, to in zip(found, held, strict=True)]
    if schema is None:
        schema = _made_of(how, of)
    return Ranges(how, schema, files, tuple(side_of), places_of(found), made, len(made), held, _given_of(how, of))


def read(how: Exchange, side: int, files: tuple[Object, ...]) -> Side:
    """Returns the run files of one side, as far as the plan of an exchange needs to know them. Raises DamagedRun, once
    what is damaged was removed."""
    # Where every key begins a page, all pages are needed; without a key, how many rows each segment has.
    exact = how.keys_begin_pages and bool(how.orders[side].keys)
    return read_side(files, how.orders[side], how.aligned, None if exact else STEPS)


def places_of(sides: Sequence[Side]) -> Ints:
    """Returns of each segment of some sides the side, its file among those of all, and its number there."""
    before, found = 0, [np.zeros((0, 3), np.int32)]
    for number, side in enumerate(sides):
        own = side.places + np.array([before, 0])
        found.append(np.concatenate([np.full((len(own), 1), number), own], axis=1).astype(np.int32))
        before += len(side.schemas)
    return np.concatenate(found)


def _held(how: Exchange, sides: Sequence[Side]) -> tuple[pa.Schema | None, ...]:
    """Returns what the rows of each side are held to; None where all of its run files have one schema.

    Raises ConfigError where they have several, none of which holds all values.
    """
    found: list[pa.Schema | None] = []
    for side in sides:
        # Those without rows may not know their columns. Files of one schema have it in common.
        schemas = [one for one in {id(one): one for one in side.schemas}.values() if len(one)]
        to = unify_schemas(how.name, schemas) if schemas else None
        found.append(to if any(not one.equals(to) for one in schemas) else None)
    return tuple(found)


def _first_of(side: Side) -> pa.Schema | None:
    """Returns the schema of the first run file of a side that has columns."""
    return next((given_schema(schema) for schema in side.schemas if len(schema)), None)


def _made_of(how: Exchange, sides: Sequence[pa.Schema | None]) -> pa.Schema:
    """Returns the schema of what becomes of rows of these; without columns if those of one are not known: it has no
    rows, and what the others become has them."""
    tables = [pa.table({}) if side is None else empty(side) for side in sides]
    if how.plain:
        return tables[0].schema
    if any(map(is_blank, tables)):
        return pa.schema([])
    made = next(how.combine(tables, ShardBooks(BadRowBudget()), ReducePart(0, 1)), None)
    if made is not None:
        return made.schema
    with suppress(CurateError):
        return how.made([table.schema for table in tables]) or pa.schema([])
    return pa.schema([])


def _given_of(how: Exchange, sides: Sequence[pa.Schema | None]) -> pa.Schema:
    """Returns the types that columns of what becomes of rows of these had, as far as it is told without rows."""
    try:
        return how.schema(sides) or pa.schema([])
    except CurateError:  # groups were begun before
        return pa.schema([])


def _pieces_by_bytes(how: Exchange, index: Index) -> Iterator[OutputRange]:
    """Yields the pieces that give rows within the limit of an exchange, as far as the index tells; one at least."""
    target = None if how.count else part_bytes(how, index.total_bytes)
    given = None if target is None else how.given_cuts(max(1, -(-index.total_bytes // target)))
    if given is not None:
        yield from pieces_between(index, cuts_at(given, index), how.orders[0])
        return
    plan = cuts(how.orders[0], index, target_bytes=target, count=how.count, aligned=how.aligned)
    if how.first is None:
        yield from pieces_between(index, plan, how.orders[0])
        return
    # Of outputs that are counted there are as many as were asked for.
    least = np.append(0, plan.least_rows())
    count = len(least) if how.even else max(1, int(np.searchsorted(least, how.first)))
    pieces = pieces_between(index, plan, how.orders[0], counted=True)
    for piece in islice(pieces, count):
        over = max(0, index.total_rows - how.first) if piece.number == count - 1 else 0
        yield replace(piece, over=over)


def pieces_between(index: Index, plan: Cuts, order: Order, *, counted: bool = False) -> Iterator[OutputRange]:
    """Yields what is read between the cuts of a plan. The size of a piece is of the pages that its rows lie in, which
    are read whole: half a page at each end, about."""
    page = index.sums(index.bytes) / index.pages
    for number, reads in enumerate(reads_between(index, plan, order, counted=counted)):
        low, high = plan.between(number)
        ends = (low is not None) + (high is not None)
        size = int(plan.bytes[number]) + int(page[reads.segments].sum() * ends / 2)
        yield OutputRange(number, reads, size, low=low, high=high)


def part_bytes(how: Exchange, total_bytes: int) -> int:
    """Returns the bytes in memory, about, of what a task that makes an output reads at a time."""
    return LEAST_BYTES if how.serial else target_of(total_bytes)


def target_of(total_bytes: int) -> int:
    """Returns the bytes in memory of an output, about, where there are as many of rows in all."""
    return min(max(-(-total_bytes // PARTS), LEAST_BYTES), MOST_BYTES)


def _pieces_by_rows(how: Exchange, index: Index) -> Iterator[OutputRange]:
    rows = index.total_rows
    first = rows if how.first is None else min(how.first, rows)
    bytes = index.total_bytes * first // max(1, rows)
    parts: Sequence[EvenPart] = evenly(how.orders[0], index, how.count or max(1, -(-bytes // target_of(bytes))), first)
    for number, part in enumerate(parts):
        over = max(0, rows - first) if number == len(parts) - 1 else 0
        yield OutputRange(number, part.reads, part.bytes, part.skip, part.take, over=over)


def _pieces_by_key(how: Exchange, index: Index) -> Iterator[OutputRange]:
    keys, parts = by_key(how.orders[0], index, target_of(index.total_bytes))
    folders = how.folders(keys)
    for number, one in enumerate(parts):
        yield OutputRange(number, one.reads, one.bytes, name=f"{folders[one.key]}/{_part_name(one.number, one.of)}")
    if not folders:
        # Without rows there is no folder, and still an output that says which columns there are.
        nothing = np.zeros(0, dtype=np.int64)
        yield OutputRange(0, SegmentRanges(nothing, nothing, nothing), 0)


def _part_name(number: int, of: int) -> str:
    return f"part-{number:05d}-of-{of:05d}"


def _pieces_beside(sides: Sequence[Index]) -> Iterator[OutputRange]:
    """Yields pieces of as many rows of each side. Raises ConfigError if one has more rows than another."""
    lengths = [one.total_rows for one in sides]
    if len(set(lengths)) > 1:
        raise ConfigError(unequal([f"{length:,}" for length in lengths]))
    total = sum(one.total_bytes for one in sides)
    count = max(1, -(-total // target_of(total)))
    before = np.cumsum([0, *(one.segments for one in sides)])
    parts = [evenly(Order(), one, count) for one in sides]
    for number, beside in enumerate(zip(*parts, strict=True)):
        numbers = [part.reads.segments + start for part, start in zip(beside, before[:-1].tolist(), strict=True)]
        starts, stops = ([getattr(part.reads, name) for part in beside] for name in ("starts", "stops"))
        reads = SegmentRanges(np.concatenate(numbers), np.concatenate(starts), np.concatenate(stops))
        yield OutputRange(number, reads, sum(part.bytes for part in beside))
