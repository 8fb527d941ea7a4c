"""What a plan knows of the run files of one side of an exchange: their pages, or of very many pages every k-th.

    segment 0   |--page--|--page--|--page--|--page--|--page--|       every page is a step, as long as there are few
    segment 1   |--------step-------|--------step-------|--page--|   k = 2: a step is two pages, and some segments begin
    segment 2   |--page--|--------step-------|--------step-------|   with a shorter one, so that steps do not lie alike

Steps begin at pages, so cuts do; only fewer places are known at which a cut may be. Where exactly the rows of an output
begin and end in a segment, the task finds that reads them: it opens the run file anyway.

`k` is the lowest power of two with which there are at most STEPS steps: a page until 8 TB, 16 pages at 100 TB. So the
plan of any number of bytes takes as much memory as one of 4 million pages, and 2 KiB a run file.

Calls and bytes, of a sort of random keys, as `scripts/bench plan` counts them. An index of 1,024 pages is one call of
64 KiB, in the driver as in each task that reads of the file, which has to know where pages are, and their checksums:

    input    run files   the driver reads           steps     tasks are sent            with their ranges
    10 GB           32   32 calls, 2 MB             32,768    0.03 MB of 8,192 ranges       0.2 MB
    1 TB           466   466 calls, 30 MB          477,184    1.7 MB of 434,000              10 MB
    100 TB      46,566   46,566 calls, 3.1 GB       3.0 M     120 MB of a merge's 30 M      711 MB
      merged    74,629   74,629 calls, 4.9 GB       2.4 M     50 MB of 12.4 M               298 MB

Nothing costs a call that there was not before. Tasks that merge indexes would be one more stage, with a start and end
of its own, to save a minute of the driver. 4 bytes of each range travel with the cuts in what a task is sent: to write
them to the store and read them there would be two calls for each task, to save 170 MB of all that the driver sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.order import Order, take_rows
from curate.arrow.schema import conform_to_union
from curate.dataclass import dataclass, field
from curate.errors import ConfigError
from curate.exchange.run_file import RunFile, Segment, open_all
from curate.storage.protocol import Object

Ints = np.ndarray[Any, np.dtype[np.int64]]

STEPS = 1 << 22
"""Steps that a plan knows of, of each side, at most: of more pages, several are a step."""
BLOCK_FILES = 64
"""Run files whose pages become steps together."""
_OFFSETS = 1 << 20
_GOLDEN = 0.6180339887498949
"""Multiples of it, without what is before the point, are spread evenly however many there are."""


@dataclass(frozen=True)
class Index:
    """Steps of segments, one segment after the other; one item each in the first four."""

    keys: pa.Table
    """The key of each step's first row."""
    rows: Ints
    bytes: Ints
    """In memory."""
    at: Ints
    """The number of its first page in its segment."""

    counts: Ints
    """Steps of each segment, at least one."""
    pages: Ints
    """Pages of each segment."""
    lasts: pa.Table
    """The key of each segment's last row; any where that is not known."""
    known: np.ndarray[Any, np.dtype[np.bool_]]
    """Where it is."""

    every: int = 1
    """How many pages a step has."""

    heavy: pa.Table | None = None
    """Keys of which whole pages are, sorted, once each: beside it `heavy_rows` and `heavy_bytes` of these pages. None
    where nobody asked."""
    heavy_rows: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    heavy_bytes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(cls, order: Order, segments: Sequence[Segment], *, most: int | None = None) -> Index:
        """Returns an index of `segments`, of which no last key is known; keys are called as those of `order`."""
        building = Building(order, heavy=True, most=most)
        names = [key.column for key in order.keys]
        for one in segments:
            if len(one.rows):
                building.add(one.keys.rename_columns(names), one.rows, one.bytes, np.array([0, len(one.rows)]), None)
        return building.made(segments[0].keys.schema if segments else pa.schema([]))

    @property
    def segments(self) -> int:
        """How many segments there are."""
        return len(self.counts)

    @property
    def starts(self) -> Ints:
        """The first step of each segment."""
        return np.cumsum(self.counts) - self.counts

    @property
    def number(self) -> Ints:
        """The segment of each step."""
        return np.repeat(np.arange(self.segments), self.counts)

    def sums(self, values: Ints) -> Ints:
        """Returns the sums of the steps of each segment."""
        return np.add.reduceat(values, self.starts) if self.segments else np.zeros(0, np.int64)

    @property
    def total_rows(self) -> int:
        return int(self.rows.sum())

    @property
    def total_bytes(self) -> int:
        return int(self.bytes.sum())

    def each(self) -> Iterator[Segment]:
        """Yields the segments, each by itself."""
        for start, count in zip(self.starts.tolist(), self.counts.tolist(), strict=True):
            own = slice(start, start + count)
            yield Segment(self.keys.slice(start, count), self.rows[own], self.bytes[own])


def together(sides: Sequence[Index]) -> Index:
    """Returns the index of several sides, one after the other, whose keys are called the same."""
    if len(sides) == 1:
        return sides[0]
    keyed = [one for one in sides if len(one.rows)] or sides[:1]
    _refuse_other_keys([one.keys.schema for one in keyed])
    heavy = [one.heavy for one in sides if one.heavy is not None and one.heavy.num_rows]
    arrays = ("rows", "bytes", "at", "counts", "pages", "heavy_rows", "heavy_bytes")
    return Index(
        keys=pa.concat_tables([one.keys for one in keyed]),
        lasts=pa.concat_tables([one.lasts for one in keyed]),
        known=np.concatenate([one.known for one in sides]),
        every=max(one.every for one in sides),
        heavy=pa.concat_tables(heavy) if heavy else None,
        **{name: _joined([getattr(one, name) for one in sides]) for name in arrays},
    )


def _refuse_other_keys(schemas: Sequence[pa.Schema]) -> None:
    """Raises ConfigError for keys that are not of one type in all sides, which only functions told that made them."""
    for key in schemas[0]:
        types = dict.fromkeys(str(one.field(key.name).type) for one in schemas)
        if len(types) > 1:
            raise ConfigError(
                f"the key {key.name!r} is {' on one side and '.join(types)} on another; make it one type on both "
                "sides: .with_column, or in the function that makes it"
            )


@dataclass(frozen=True)
class _Block:
    """Steps of some segments that follow each other, whose keys are of one schema."""

    keys: pa.Table
    rows: Ints
    bytes: Ints
    at: Ints
    offset: Ints
    """Of the segment of each step: see `_offsets`."""


class Building:
    """Makes an index of segments as they come. What is made depends on these alone."""

    def __init__(self, order: Order, *, heavy: bool, most: int | None) -> None:
        """`heavy`: whether whole pages of a key are counted. `most`: steps that are kept at most; None: all pages."""
        self._order = order
        self._most = most
        self._every = 1
        self._steps = 0
        self.blocks: list[_Block] = []
        self._pages: list[Ints] = []
        self._lasts: list[pa.Table] = []
        self._known: list[Any] = []
        self._segments = 0
        self._heavy: list[tuple[pa.Table, Ints, Ints]] | None = [] if heavy else None

    def add(self, keys: pa.Table, rows: Ints, bytes: Ints, bounds: Ints, lasts: pa.Table | None) -> None:
        """Adds segments, of the pages from each of `bounds` to the next; none is without pages."""
        pages = np.diff(bounds)
        if not len(pages):
            return
        starts = bounds[:-1]
        at = np.arange(len(rows)) - np.repeat(starts, pages)
        if self._heavy is not None and keys.num_columns:
            self._note_heavy(keys, rows, bytes, at)
        offset = np.repeat(_offsets(np.arange(self._segments, self._segments + len(pages))), pages)
        self._segments += len(pages)
        self._pages.append(pages)
        self._known.append(np.full(len(pages), lasts is not None))
        self._lasts.append(take_rows(keys, pa.array(starts)) if lasts is None else lasts)
        block = _fewer(_Block(keys, rows, bytes, at, offset), self._every)
        self.blocks.append(block)
        self._steps += len(block.rows)
        while self._most is not None and self._steps > self._most and self._every < _OFFSETS:
            self._every *= 2
            self.blocks = [_fewer(one, self._every) for one in self.blocks]
            self._steps = sum(len(one.rows) for one in self.blocks)

    def _note_heavy(self, keys: pa.Table, rows: Ints, bytes: Ints, at: Ints) -> None:
        """Notes pages that are of one key: that begins both it and the next page of its segment."""
        begins = np.zeros(len(rows) + 1, bool)
        begins[self._order.starts(keys)] = True
        begins[-1] = True
        begins[:-1] |= at == 0
        full = ~begins[1:]
        runs = np.flatnonzero(full & np.append(True, ~full[:-1]))
        if not len(runs):
            return
        # What lies between two runs weighs nothing.
        sums = (np.add.reduceat(np.where(full, one, 0), runs) for one in (rows, bytes))
        assert self._heavy is not None
        self._heavy.append((take_rows(keys, pa.array(runs)), *sums))

    def made(self, schema: pa.Schema, held: pa.Schema | None = None, names: Sequence[str] | None = None) -> Index:
        """Returns the index. `schema` is that of keys where there is none; `held`, what they are held to where they
        differ; `names` is what they are called there."""

        def keys_of(tables: Sequence[pa.Table]) -> pa.Table:
            found = list(tables)
            if held is not None:
                found = [conform_to_union(one, pa.schema(map(held.field, one.column_names))) for one in tables]
            keys = pa.concat_tables(found) if found else schema.empty_table()
            return keys if names is None or not keys.num_columns else keys.rename_columns(names)

        heavy = self._heavy
        blocks = self.blocks
        at = _joined([one.at for one in blocks])
        return Index(
            keys_of([one.keys for one in blocks]),
            _joined([one.rows for one in blocks]),
            _joined([one.bytes for one in blocks]),
            at,
            np.diff(np.flatnonzero(at == 0), append=len(at)),
            _joined(self._pages),
            keys_of(self._lasts),
            np.concatenate([np.zeros(0, bool), *self._known]),
            self._every,
            None if heavy is None else keys_of([keys for keys, _, _ in heavy]),
            _joined([rows for _, rows, _ in heavy or []]),
            _joined([bytes for _, _, bytes in heavy or []]),
        )


@dataclass(frozen=True)
class Side:
    """The run files of one side of an exchange, as far as a plan needs to know them."""

    order: Order
    schemas: tuple[pa.Schema, ...]
    """The schema of each file; those that are the same are one."""
    places: Ints
    """Of each segment, in merge order: its file, and its number there."""
    building: Building

    @property
    def total_bytes(self) -> int:
        return sum(int(one.bytes.sum()) for one in self.building.blocks)

    def index(self, held: pa.Schema | None = None, names: Sequence[str] | None = None) -> Index:
        keys = [key.column for key in self.order.keys]
        known = next((one for one in self.schemas if set(keys) <= set(one.names)), None)
        schema = pa.schema([]) if known is None else pa.schema([known.field(name) for name in keys])
        return self.building.made(schema, held, names)


@lru_cache(maxsize=4)
def read_side(files: tuple[Object, ...], order: Order, heavy: bool, most: int | None) -> Side:
    """Reads the indexes of run files, in merge order. What was read last is kept, as who asks whether to merge them
    asks before who reads them. Raises DamagedRun, once all that cannot be opened are removed.
    """
    building = Building(order, heavy=heavy, most=most)
    schemas: list[pa.Schema] = []
    places: list[Ints] = []
    block: list[RunFile] = []
    for number, file in enumerate(open_all(files)):
        same = bool(schemas) and schemas[-1].equals(file.schema, check_metadata=True)
        schemas.append(schemas[-1] if same else file.schema)
        own = len(file.bounds) - 1
        places.append(np.stack([np.full(own, number), np.arange(own)], axis=1))
        if block and (len(block) == BLOCK_FILES or not _alike(block[-1], file)):
            _add(building, block)
            block = []
        block.append(file)
    _add(building, block)
    return Side(order, tuple(schemas), np.concatenate([np.zeros((0, 2), np.int64), *places]), building)


def _alike(one: RunFile, other: RunFile) -> bool:
    return bool(one.keys.schema.equals(other.keys.schema)) and (one.lasts is None) == (other.lasts is None)


def _add(building: Building, files: Sequence[RunFile]) -> None:
    """Adds the segments of files that are alike."""
    files = [one for one in files if len(one.rows)]
    if not files:
        return
    lengths = np.array([len(one.rows) for one in files])
    before = np.cumsum(lengths) - lengths
    bounds = [one.bounds[:-1] + start for one, start in zip(files, before.tolist(), strict=True)]
    lasts = [one.lasts for one in files if one.lasts is not None]
    building.add(
        pa.concat_tables([one.keys for one in files]).replace_schema_metadata(None),
        _joined([one.rows for one in files]),
        _joined([one.bytes for one in files]),
        np.append(np.concatenate(bounds), lengths.sum()),
        pa.concat_tables(lasts) if lasts else None,
    )


def _fewer(block: _Block, every: int) -> _Block:
    """Returns a block of which the steps are of `every` page: of the first of each segment, and of those from its own
    offset on."""
    kept = np.flatnonzero((block.at == 0) | ((block.at - block.offset) % every == 0))
    if len(kept) == len(block.at):
        return block
    return _Block(
        take_rows(block.keys, pa.array(kept)),
        np.add.reduceat(block.rows, kept),
        np.add.reduceat(block.bytes, kept),
        block.at[kept],
        block.offset[kept],
    )


def _offsets(segments: Ints) -> Ints:
    """Returns where the steps of segments begin, so that those of neighbours lie evenly side by side: segments of rows
    in random order have pages of the same keys, and where all cuts are known in the same places, there are few.

    The lowest bits count most, as they do for the fewest pages in a step.
    """
    high = np.floor(segments * _GOLDEN % 1 * _OFFSETS).astype(np.int64)
    found = np.zeros_like(high)
    for _ in range(_OFFSETS.bit_length() - 1):
        found, high = found << 1 | high & 1, high >> 1
    return np.asarray(found, np.int64)


def _joined(parts: Sequence[Any]) -> Ints:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.int64)
