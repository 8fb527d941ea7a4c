"""Run files: what a map shard becomes, its rows sorted, in pages, with an index of the pages at the end.

    pages     Arrow IPC messages, one record batch each, uncompressed, one behind the other, padded to 64 bytes: what is
              memory-mapped is used as it lies
    index     an Arrow IPC stream, one row a page: segment, offset, length, rows, bytes in memory, XXH3 checksum of the
              `length` bytes at `offset`, and the key of its first row; its metadata has the key of each segment's last
    schema    an Arrow IPC message
    record    canonical JSON, with its own checksum
    tail      bytes of index, schema and record, version, checksum of all since the index, mark

Rows are gathered into chunks; each is sorted and written as a *segment* of the file, which merges as if it were a file
of its own. The bytes are a matter of the rows and the order alone, not of the tables that rows come in: chunks, folds
and pages end where rows say so, measured row by row.

Memory, while rows are gathered: a chunk and 32 MiB. While it is sorted: the chunk, what the sort of its keys takes, 16
bytes a row, and two pages. While it is folded: the chunk twice, and what `fold` takes.

Long because the writer, the index and the reader are the two ends of one file format.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from curate.arrow.canonical import conform_plain, plain_schema, with_given_schema
from curate.arrow.offsets import one_array
from curate.arrow.order import Order, take_rows
from curate.arrow.sizes import row_bytes
from curate.arrow.unknown import empty
from curate.dataclass import dataclass
from curate.errors import DamagedRun, GenerationMismatch, ObjectNotFound, SchemaMismatch
from curate.exchange.chunks import PLACE_BYTES, Chunk, gather, page_ends
from curate.late_pandas import numbers
from curate.log import get_logger
from curate.objects.compress import Sink
from curate.objects.record import RUN_TAIL, check_run_end, run_end, run_record, run_sizes
from curate.prefetch import Threads
from curate.storage.protocol import Object, Store
from curate.storage.uris import is_local
from curate.stores.open import open_store
from curate.tasks.books import GROUPED
from curate.writers.output import OutputWriter

READERS = 32
"""Indexes of run files that are read at once, each of which is a call of the store."""
AT_ONCE = 256
"""Run files that are open at once where the indexes of all are read."""
KEPT_OPEN = 4096
"""Run files that stay open in a process, of which a plan or an output reads."""


@lru_cache(maxsize=KEPT_OPEN)
def opened(file: Object) -> RunFile:
    """Returns a run file, which stays open in this process: every output reads of every file."""
    return RunFile.open(open_store(file.uri), file)


def remove_damaged(file: Object, error: DamagedRun) -> None:
    """Removes a run file that was found damaged, if nobody has replaced it since: who looks for it next finds that its
    map shard is not done. Others who read it fail, and run again after that too.
    """
    try:
        removed = open_store(file.uri).delete(file.uri, file.generation)
    except GenerationMismatch:
        removed = False
    get_logger().warning(
        "a run file is damaged and was removed; the map shard that wrote it runs again"
        if removed
        else "a run file was removed or replaced; the shards that read it run again",
        file=file.uri,
        problem=error.problem,
    )


def open_all(files: Sequence[Object]) -> Iterator[RunFile]:
    """Yields the run files, opened, one after the other; those of a few stay open. Raises DamagedRun once all were
    looked at and all that cannot be opened are removed.
    """
    damaged: list[DamagedRun] = []
    with Threads(READERS) as pool:
        for some in (files[at : at + AT_ONCE] for at in range(0, len(files), AT_ONCE)):
            open = opened if len(files) <= KEPT_OPEN else opened.__wrapped__
            for file, coming in zip(some, [pool.submit(open, file) for file in some], strict=True):
                try:
                    found = coming.result()
                except DamagedRun as error:
                    remove_damaged(file, error)
                    damaged.append(error)
                else:
                    if not damaged:
                        yield found
    if damaged:
        raise damaged[0]


CHUNK_BYTES = 64 << 20
"""Bytes of rows that are sorted at once, in memory, with 16 a row for their places."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How the rows of a shard are put in order for an exchange."""

    order: Order
    fold: Callable[[Any], Any] | None = None
    """Makes fewer rows of some that stand for them."""
    reason: str = GROUPED
    """Why those are dropped."""
    keys_begin_pages: bool = False
    """Whether the index is to tell how many rows there are of each key."""
    chunk_bytes: int = CHUNK_BYTES
    """Bytes of rows that are sorted at once."""

    def check(self, name: str, schema: pa.Schema) -> None:
        """Raises ConfigError for rows that cannot be put in order (see `Order.check`), or moved (`plain_schema`)."""
        self.order.check(name, schema)
        plain_schema(schema)


PAGE_BYTES = 256 << 10
"""Bytes of rows that are read at once, in memory; a row that is larger is a page of its own."""
PAGES = 256
"""Pages of a chunk, where chunks are large: what plans hold of a page is what it costs to have many."""
FOLD_ROWS = 262_144
"""Rows that come between two folds."""
_STEP_ROWS = 65_536
"""Rows that are measured at a time."""
_ALIGNMENT = 64
_TAIL_BYTES = 64 << 10
"""Bytes of the first read of a file's end: the index of some 500 pages, 128 MiB."""
_KEY = "key "
"""Begins the names of key columns in the index, as no other name there does."""
_LAST = b"last"
"""The metadata of the index that has the key of each segment's last row: an Arrow IPC stream, one row a segment."""


_Int64 = np.ndarray[Any, np.dtype[np.int64]]


class RunWriter(OutputWriter):
    """Writes tables of one schema as a run file: sorted by `order`, equal keys as they came.

    `fold` returns fewer rows that stand for those of a table. It is called with all rows of the chunk when 262,144 came
    since the last time, and before a chunk is written. If it leaves more than half of them, the chunk is not folded
    again until it is full. A full chunk that a fold leaves half empty is gathered on.

    With `keys_begin_pages`, every key begins a page, so that the index tells how many rows there are of each: for
    orders of few keys.

    Raises ConfigError for a column of a type that cannot be put in another order.
    """

    def __init__(
        self,
        sink: Sink,
        schema: pa.Schema,
        order: Order,
        fold: Callable[[pa.Table], pa.Table] | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        page_bytes: int = PAGE_BYTES,
        fold_rows: int = FOLD_ROWS,
        *,
        keys_begin_pages: bool = False,
    ) -> None:
        super().__init__(plain_schema(schema))
        self._sink = sink
        self._noted = with_given_schema(self._schema, schema)
        self._order = order
        self._fold = fold
        self._chunk_bytes = chunk_bytes
        self._page_bytes = page_bytes
        self._fold_rows = fold_rows
        self._keys_begin_pages = keys_begin_pages
        self._chunk = Chunk(self._schema)
        self._since_fold = 0
        self._folding = fold is not None
        self._finished = False
        self._offset = 0
        self._segments = 0
        self._index: list[pa.Table] = []
        self._lasts: list[pa.Table] = []

    _held = staticmethod(conform_plain)

    def _take(self, table: pa.Table) -> None:
        if table.num_rows and not len(self._schema):
            raise SchemaMismatch(f"{table.num_rows} rows have no column; an exchange needs at least one")
        at = 0
        while at < table.num_rows:
            at += self._take_some(table.slice(at, _STEP_ROWS))

    def finish(self) -> None:
        """Writes what is pending. Then `rows` is the number of rows in the file: those that folds saved are not."""
        if not self._finished:
            self._write_chunk()
            self._finished = True

    def close(self, record: Mapping[str, Any]) -> None:
        self.finish()
        index = pa.concat_tables(self._index) if self._index else _index_schema(self._schema, self._order).empty_table()
        schema = index.schema
        if self._lasts and schema.names[-1].startswith(_KEY):
            schema = schema.with_metadata({_LAST: _stream(pa.concat_tables(self._lasts), self._lasts[0].schema)})
        self._sink.write(run_end(_stream(index, schema), self._noted.serialize().to_pybytes(), record))

    def _take_some(self, table: pa.Table) -> int:
        """Takes rows from the start of `table`, up to where something is to be done; returns how many."""
        if self._folding:
            table = table.slice(0, self._fold_rows - self._since_fold)
        sizes = row_bytes(table)
        ends = np.cumsum(sizes + PLACE_BYTES)
        left = self._chunk_bytes - self._chunk.bytes
        rows = int(np.searchsorted(ends, left, side="right"))
        if not rows and not self._chunk.rows:
            rows = 1
        if rows:
            self._chunk.add(table.slice(0, rows), sizes[:rows])
            self._since_fold += rows
        if rows < table.num_rows:
            self._make_room()
        elif self._folding and self._since_fold == self._fold_rows:
            self._fold_chunk()
        return rows

    def _make_room(self) -> None:
        if self._fold is not None and self._since_fold:
            self._fold_chunk()
            if self._chunk.bytes <= self._chunk_bytes // 2:
                self._folding = True
                return
        self._write_chunk()

    def _fold_chunk(self) -> None:
        assert self._fold is not None
        before = self._chunk.rows
        # In one piece: a sum of floats over several goes by how they are cut.
        folded = conform_plain(self._fold(self._chunk.combined()), self._schema)
        self.rows += folded.num_rows - before
        self._chunk = Chunk(self._schema)
        for at in range(0, folded.num_rows, _STEP_ROWS):
            part = folded.slice(at, _STEP_ROWS)
            self._chunk.add(part, row_bytes(part))
        self._since_fold = 0
        self._folding = folded.num_rows < before / 2

    def _write_chunk(self) -> None:
        if self._fold is not None and self._since_fold:
            self._fold_chunk()
        chunk, self._chunk = self._chunk, Chunk(self._schema)
        self._folding = self._fold is not None
        self._since_fold = 0
        if not chunk.rows:
            return
        table = chunk.combined()
        (rows,) = table.to_batches()
        places = numbers(self._order.indices(table)).astype(np.int64)
        firsts, index = [], _PageIndex(self._segments)
        starts = (
            self._order.starts(take_rows(self._order.keys_of(table), pa.array(places)))
            if self._keys_begin_pages
            else None
        )
        for start, stop in page_ends(chunk.sizes(), places, self._page_bytes, starts, self._first_bytes(rows, places)):
            page = gather(rows, places[start:stop], self._schema)
            index.add(self._offset, *self._write_page(page))
            self._offset += index.length[-1]
            firsts.append(start)
        keys = self._order.keys_of(table)
        self._index.append(index.table(keys, places[firsts]))
        self._lasts.append(take_rows(keys, pa.array(places[-1:])).replace_schema_metadata(None))
        self._segments += 1

    def _first_bytes(self, rows: pa.RecordBatch, places: _Int64) -> int:
        """Returns how many bytes the first page of a segment has: what share of a page, its first row decides.

        Segments of rows in random order are alike. Were their pages, too, all would begin at the same few keys, between
        which no output could be cut.
        """
        drawn = xxhash.xxh3_64_intdigest(gather(rows, places[:1], self._schema).serialize())
        return self._page_bytes * (1 + (drawn >> 54)) >> 10

    def _write_page(self, page: pa.RecordBatch) -> tuple[pa.RecordBatch, int, int]:
        """Returns the page as it will be read, its length in the file, and its checksum."""
        message = page.serialize()
        padding = bytes(-len(message) % _ALIGNMENT)
        self._sink.write(memoryview(message))
        if padding:
            self._sink.write(padding)
        checksum = xxhash.xxh3_64(message)
        checksum.update(padding)
        # Its bytes in memory are a matter of what is stored; those of `page`, of the arrays that rows came in, too.
        return pa.ipc.read_record_batch(message, self._schema), len(message) + len(padding), checksum.intdigest()


class _PageIndex:
    """The index of the pages of one segment."""

    def __init__(self, segment: int) -> None:
        self._segment = segment
        self.offset: list[int] = []
        self.length: list[int] = []
        self.rows: list[int] = []
        self.bytes: list[int] = []
        self.checksum: list[int] = []

    def add(self, offset: int, page: pa.RecordBatch, length: int, checksum: int) -> None:
        self.offset.append(offset)
        self.length.append(length)
        self.rows.append(page.num_rows)
        self.bytes.append(page.nbytes)
        self.checksum.append(checksum)

    def table(self, keys: pa.Table, firsts: _Int64) -> pa.Table:
        """Returns the index as it is stored. The key of each page is that row of `keys`."""
        columns = [
            pa.array([self._segment] * len(self.rows), pa.int64()),
            pa.array(self.offset, pa.int64()),
            pa.array(self.length, pa.int64()),
            pa.array(self.rows, pa.int64()),
            pa.array(self.bytes, pa.int64()),
            pa.array(self.checksum, pa.uint64()),
        ]
        found = [pc.take(one_array(column), pa.array(firsts)) for column in keys.columns]
        return pa.table([*columns, *found], schema=_indexed(keys.schema))


def _stream(table: pa.Table, schema: pa.Schema) -> bytes:
    """Returns a table as an Arrow IPC stream of one batch."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, schema) as writer:
        writer.write_table(table.replace_schema_metadata(schema.metadata).combine_chunks())
    return bytes(stream.getvalue())


def _indexed(keys: pa.Schema) -> pa.Schema:
    names = ["segment", "offset", "length", "rows", "bytes"]
    return pa.schema(
        [
            *(pa.field(name, pa.int64()) for name in names),
            pa.field("checksum", pa.uint64()),
            *(pa.field(_KEY + field.name, field.type) for field in keys),
        ]
    )


def _index_schema(schema: pa.Schema, order: Order) -> pa.Schema:
    # A shard without rows, of which only running a function would tell the columns, may have none.
    known = frozenset(schema.names)
    keys = [key.column for key in order.keys if key.column in known]
    return _indexed(pa.schema([schema.field(key) for key in keys]))


@dataclass(frozen=True)
class Segment:
    """The pages of a sorted part of a run file; one item each in all of these."""

    keys: pa.Table
    """The key of each page's first row."""
    rows: _Int64
    """Rows of each page."""
    bytes: _Int64
    """Bytes of each page in memory."""


@dataclass(frozen=True)
class _Pages:
    """Where the pages of a segment are."""

    starts: _Int64
    """The first row of each page, and the number of all rows."""
    offset: _Int64
    length: _Int64
    checksum: np.ndarray[Any, np.dtype[np.uint64]]


class RunFile:
    """A run file that is read: its index, and ranges of its rows.

    Local ones are memory-mapped, and what `read` returns lies in the file; of others the byte ranges of the pages are
    fetched. Every page is held against its checksum, so that no other row is ever returned than was written.
    """

    def __init__(
        self,
        uri: str,
        fetch: Callable[[int, int], Any],
        schema: pa.Schema,
        record: dict[str, Any],
        index: pa.Table,
        lasts: pa.Table | None = None,
    ) -> None:
        """`index` has the pages; `rows`, `bytes` and `keys` are columns of it, and `bounds` say where each segment
        begins there, and the last one ends. `lasts` are the keys of the last rows of segments, where they are known."""
        self.uri = uri
        self.schema = schema
        self.record = record
        self.lasts = lasts
        self._fetch = fetch
        self._index = index
        segments = numbers(index["segment"])
        self.bounds = np.searchsorted(segments, np.arange(segments[-1] + 2 if len(segments) else 1))
        self.rows = numbers(index["rows"])
        self.bytes = numbers(index["bytes"])
        keys = index.select([name for name in index.column_names if name.startswith(_KEY)])
        self.keys = keys.rename_columns([name.removeprefix(_KEY) for name in keys.column_names])

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The index of each segment."""
        return tuple(
            Segment(self.keys.slice(start, stop - start), self.rows[start:stop], self.bytes[start:stop])
            for start, stop in itertools.pairwise(self.bounds.tolist())
        )

    @cached_property
    def _pages(self) -> list[_Pages]:
        offset, length, checksum = (numbers(self._index[name]) for name in ("offset", "length", "checksum"))
        return [
            _Pages(
                np.concatenate([[0], np.cumsum(self.rows[start:stop])]),
                offset[start:stop],
                length[start:stop],
                checksum[start:stop],
            )
            for start, stop in itertools.pairwise(self.bounds.tolist())
        ]

    @classmethod
    def open(cls, store: Store, object: Object) -> Self:
        """Opens a run file: one read, or two if the index is long; if it is local, a look at its generation.

        Elsewhere a file that was replaced by another whole one of the same size is noticed by its record alone.

        Raises DamagedRun if the file is gone, cut or changed, or none of curate.
        """
        uri, size = object.uri, object.size
        fetch = _mapped(store, object) if is_local(uri) else _ranges(store, uri)
        tail = fetch(max(0, size - _TAIL_BYTES), size)
        try:
            sizes = run_sizes(bytes(tail[-RUN_TAIL:]))
            if sizes is None:
                raise ValueError("it does not end like a run file: it is truncated, or another file")
            length = sum(sizes) + RUN_TAIL
            if length > size:
                raise ValueError(f"it says that its last {length} bytes are its index, but has {size}")
            end = bytes(tail[-length:] if length <= len(tail) else fetch(size - length, size))
            check_run_end(end)
            index_end, schema_end = sizes[0], sizes[0] + sizes[1]
            index = pa.ipc.open_stream(end[:index_end]).read_all()
            schema = pa.ipc.read_schema(pa.py_buffer(end[index_end:schema_end]))
            record = run_record(end[schema_end:])
            _check_index(index)
            lasts = _lasts(index)
            pages = numbers(index["offset"])[-1] + numbers(index["length"])[-1] if index.num_rows else 0
            if pages != size - length:
                raise ValueError(f"its pages are {size - length} bytes, expected {pages}")
        except (ValueError, OSError, pa.ArrowException) as error:
            raise DamagedRun(uri, f"its footer is damaged: {error}") from error
        return cls(uri, fetch, schema, record, index, lasts)

    def read(self, segment: int, start_row: int, stop_row: int) -> pa.Table:
        """Returns rows of a segment, from the pages that they lie in, which are one read.

        Raises DamagedRun, IndexError for rows that the segment does not have.
        """
        pages = self._pages[segment]
        if not 0 <= start_row <= stop_row <= pages.starts[-1]:
            raise IndexError(
                f"{self.uri}: segment {segment} has {pages.starts[-1]} rows, not {start_row} to {stop_row}"
            )
        if start_row == stop_row:
            return empty(self.schema)
        first = int(np.searchsorted(pages.starts, start_row, side="right")) - 1
        last = int(np.searchsorted(pages.starts, stop_row, side="left"))
        begin = int(pages.offset[first])
        data = self._fetch(begin, int(pages.offset[last - 1] + pages.length[last - 1]))
        batches = [self._page(segment, page, data, begin) for page in range(first, last)]
        table = pa.Table.from_batches(batches, self.schema)
        return table.slice(start_row - int(pages.starts[first]), stop_row - start_row)

    def _page(self, segment: int, page: int, data: Any, begin: int) -> pa.RecordBatch:
        pages = self._pages[segment]
        at = int(pages.offset[page]) - begin
        stored = data[at : at + int(pages.length[page])]
        found, expected = xxhash.xxh3_64_intdigest(stored), int(pages.checksum[page])
        if found != expected:
            raise DamagedRun(
                self.uri,
                f"page {page} of segment {segment}, {len(stored)} bytes at {at + begin}, has the checksum "
                f"{found:016x}, expected {expected:016x}",
            )
        return pa.ipc.read_record_batch(pa.py_buffer(stored), self.schema)

    def position(self, order: Order, segment: int, key: pa.Table, after: bool) -> int:
        """Returns how many rows of a segment are before `key`; with `after`, how many are not after it.

        Reads the one page in which that is. Raises DamagedRun.
        """
        page = order.position(self.segments[segment].keys, key, after) - 1
        if page < 0:
            return 0
        start, stop = (int(row) for row in self._pages[segment].starts[page : page + 2])
        return start + order.position(self.read(segment, start, stop), key, after)


_INDEX = _indexed(pa.schema([]))
"""Columns of every index; those of the keys come behind them."""


def _check_index(index: pa.Table) -> None:
    """Raises ValueError for a table that is not the index of the pages of a file, one behind the other."""
    for name in _INDEX.names:
        found = index.schema.get_all_field_indices(name)
        if len(found) != 1 or index.schema.field(found[0]).type != _INDEX.field(name).type:
            raise ValueError(f"its index has no column {name!r} of type {_INDEX.field(name).type}")
        if index[name].null_count:
            raise ValueError(f"its index has pages without {name!r}")
    segment, offset, length, rows, bytes = (numbers(index[name]) for name in _INDEX.names[:5])
    if not len(segment):
        return
    steps = np.diff(segment)
    if segment[0] or not ((steps == 0) | (steps == 1)).all() or offset[0] or (length <= 0).any():
        raise ValueError("its index has impossible segments or pages")
    if (rows <= 0).any() or (bytes < 0).any() or (np.diff(offset) != length[:-1]).any():
        raise ValueError("its index has pages that overlap, leave gaps or have no rows")


def _lasts(index: pa.Table) -> pa.Table | None:
    """Returns the keys of the last rows of segments; None where a file has none. Raises ValueError for others."""
    stored = (index.schema.metadata or {}).get(_LAST)
    if stored is None:
        return None
    found = pa.ipc.open_stream(stored).read_all()
    keys = [(field.name, field.type) for field in index.schema if field.name.startswith(_KEY)]
    if [(_KEY + field.name, field.type) for field in found.schema] != keys:
        raise ValueError("the last keys of its segments are of other columns than its index")
    segments = index["segment"][-1].as_py() + 1 if index.num_rows else 0
    if found.num_rows != segments:
        raise ValueError(f"it has {found.num_rows} last keys for {segments} segments")
    # As those of the index, they may be null: to Arrow, a column that may not is another one.
    return pa.table(found.columns, names=found.column_names)


def _mapped(store: Store, object: Object) -> Callable[[int, int], Any]:
    """Returns what gives bytes of a memory-mapped file."""
    if not os.path.isfile(object.uri):  # noqa: PTH113 - a FIFO in its place would be waited for
        raise DamagedRun(object.uri, "it is missing")
    try:
        # The file is mapped before it is looked at: what is looked at later is no older.
        with pa.memory_map(object.uri) as file:
            size = file.size()
            mapped = memoryview(file.read_buffer(size)) if size else memoryview(b"")
        found = store.stat(object.uri)
    except (FileNotFoundError, ObjectNotFound) as error:
        raise DamagedRun(object.uri, "it is missing") from error
    if found != object or size != object.size:
        raise DamagedRun(object.uri, f"it is at generation {found.generation}, expected {object.generation}")
    return lambda start, stop: mapped[start:stop]


def _ranges(store: Store, uri: str) -> Callable[[int, int], Any]:
    """Returns what fetches bytes of an object."""

    def fetch(start: int, stop: int) -> Any:
        try:
            return memoryview(store.read(uri, start, stop))
        except ObjectNotFound as error:
            raise DamagedRun(uri, "it is missing") from error

    return fetch
