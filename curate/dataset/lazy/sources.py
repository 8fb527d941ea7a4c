"""Where rows come from, in pieces: each is read by one task, and gives the same batches whenever it is read.

A piece is a shard: what a write makes one output of, with the same id. Small ones are bundled: one task reads several,
one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.dataset.formats import (
    SAMPLED_FILES,
    BadRow,
    Encoding,
    Format,
    OnBadRow,
    ReadAs,
    check_declared,
    detect,
    known_schema,
    read,
    rechunk,
    row_groups,
    sample_schema,
    stored_as_array,
)
from curate.dataset.formats.hold import plain, unify, widens
from curate.dataset.inputs import SCHEMA, list_inputs, understand
from curate.dataset.lazy.footers import refuse_other_types
from curate.dataset.nulls import empty
from curate.dataset.split import SHARD_BYTES, bundled, shards_of
from curate.dataset.tally import Tally, counted
from curate.dataset.upstream import Hole, holes_in, refuse_holes, warn_of_holes
from curate.errors import ConfigError, CorruptInput, SchemaMismatch
from curate.prefetch import ahead
from curate.storage import open_store
from curate.storage.protocol import Object, Store
from curate.tasks.columns import BLOCK_ROWS
from curate.tasks.shard import Shard, SliceKind
from curate.units import MIB, format_bytes

READERS = 8
"""Footers that are read at once."""
RANGE_ROWS = 1 << 20
"""Rows of a range in one piece."""
NUMBER_BYTES = 8
"""Bytes of a number of a range."""
TABLE_BYTES = 64 * MIB
"""Bytes of a table in memory above which it becomes several pieces."""


class Source(Protocol):
    """Where rows come from."""

    @property
    def name(self) -> str:
        """What it is called in plans."""
        ...

    @property
    def found(self) -> pa.Schema:
        """The schema of its rows."""
        ...

    @property
    def num_cpus(self) -> float | None:
        """CPUs that tasks hold that read it; None: as many as what follows asks for."""
        ...

    def pieces(self) -> Iterator[Any]:
        """Yields what `read` takes, in the order of the rows: shards, and no batch has rows of two of them."""
        ...

    def bundles(self) -> Iterator[tuple[Any, ...]]:
        """Yields the pieces that one task reads, one after the other."""
        ...

    def bare(self) -> Self:
        """Returns it without what only `pieces` needs: as tasks are given it."""
        ...

    def shard(self, piece: Any) -> str:
        """Returns a piece's id, which is that of its output where it is written."""
        ...

    def label(self, piece: Any) -> str:
        """Returns what a piece is called in errors."""
        ...

    def size(self, piece: Any) -> int:
        """Returns the bytes of a piece: stored ones of a file, in memory of what is there."""
        ...

    def generation(self, piece: Any) -> str:
        """Returns what changes whenever the rows of a piece do; empty where its id or the source says it all."""
        ...

    def identity(self) -> Any:
        """Returns what decides the rows, as JSON values; of files, how they are read."""
        ...

    def read(self, piece: Any, view: View, batch_rows: int, tally: Tally) -> Iterator[pa.Table]:
        """Yields the piece's rows in batches of at most `batch_rows` rows, none empty; books them as read as they are
        taken, and those that are bad."""
        ...

    def count(self) -> int | None:
        """Returns how many rows there are; None if only reading them tells."""
        ...


@dataclass(frozen=True, slots=True)
class View:
    """What of a source is asked for."""

    columns: tuple[str, ...] | None = None
    """Only these; None: all. Pushed into Parquet only."""
    predicate: Any = None
    """Rows for which this is not true may be left out. Pushed into Parquet only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A source of files."""

    listing: pa.Table = field(repr=False)
    """The files, as `list_inputs` gives them."""
    shard_bytes: int = SHARD_BYTES
    """Stored bytes of a piece, at most, where a file can be split."""

    holes: tuple[Hole, ...] = ()
    """What was missing of the files when they were listed, which may be incomplete."""
    pinned: bool = False
    """Whether it is cut into the same pieces whatever reads it: rows are told apart by piece and number."""

    def in_pieces(self, shard_bytes: int) -> Self:
        """Returns it with pieces of at most as many stored bytes."""
        return replace(self, shard_bytes=shard_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileShards(Listed):
    """Files, of which each shard is a piece."""

    fills: ClassVar[bool] = True
    """Whether a column that a file does not have is null there."""

    @property
    def found(self) -> pa.Schema:
        """The schema of the rows."""
        raise NotImplementedError

    def encoding(self, uri: str) -> Encoding:
        """Returns how a file is read."""
        raise NotImplementedError

    def pieces(self) -> Iterator[Shard]:
        """Yields the shards of the files, in order."""
        for _, shards in ahead(self._shards, self._named(), READERS, when=self._may_be_cut):
            yield from shards

    def bundles(self) -> Iterator[tuple[Shard, ...]]:
        """Yields shards that one task reads."""
        return bundled(self.pieces(), lambda shard: shard.size_bytes)

    def bare(self) -> Self:
        """Returns it without its listing."""
        return replace(self, listing=SCHEMA.empty_table())

    def shard(self, piece: Shard) -> str:
        """Returns a piece's id."""
        return piece.id

    def label(self, piece: Shard) -> str:
        """Returns what a piece is called in errors."""
        if piece.kind is SliceKind.WHOLE:
            return piece.uri
        return f"{piece.uri}, {piece.kind.value.replace('_', ' ')} {piece.start:,} to {piece.stop:,},"

    def size(self, piece: Shard) -> int:
        """Returns the stored bytes of a piece."""
        return piece.size_bytes

    def generation(self, piece: Shard) -> str:
        """Returns the generation of its file."""
        return piece.generation

    def refuse_keys(self, what: str, columns: Sequence[str]) -> None:
        """Raises ConfigError if one of these columns cannot be read, in some Parquet files, as the type that it has in
        the schema of the rows. Reads footers."""
        if not columns:
            return  # such as a shuffle's, which no file has: the listing is long
        files = [item for item, _ in self._named() if self.encoding(item.uri).format is Format.PARQUET]
        refuse_other_types(what, columns, self.found, files, nulls_for_missing=self.fills)

    def _named(self) -> Iterator[tuple[Object, str]]:
        # Block by block: as Python objects, a million of files would take a gigabyte.
        for block in self.listing.to_batches(max_chunksize=BLOCK_ROWS):
            uris, names, sizes, generations = (column.to_pylist() for column in block.columns)
            yield from zip(map(Object, uris, sizes, generations), names, strict=True)

    def _shards(self, named: tuple[Object, str]) -> list[Shard]:
        item, name = named
        return list(shards_of(item, name, self.encoding(item.uri), self.shard_bytes, _groups_of, _is_array))

    def _may_be_cut(self, named: tuple[Object, str]) -> bool:
        # The footers of large Parquet files are read for that, and the beginning of large ones of JSON.
        formats = (Format.PARQUET, Format.JSONL)
        return named[0].size > self.shard_bytes and self.encoding(named[0].uri).format in formats


@dataclass(frozen=True, slots=True)
class Files(FileShards):
    """The rows of files of one format."""

    method: str
    paths: tuple[str, ...]
    """As they were given."""
    how: ReadAs
    schema: pa.Schema
    num_cpus: float | None = None
    allow_incomplete_input: bool = False
    """Whether to read the output of a job that is not all there."""

    @property
    def name(self) -> str:
        return f"{self.method}({', '.join(map(repr, self.paths))})"

    @property
    def format(self) -> Format:
        """The format of all files."""
        return self.how.format

    @property
    def found(self) -> pa.Schema:
        return self.schema

    def encoding(self, uri: str) -> Encoding:
        return detect(uri, self.how)

    def identity(self) -> Any:
        return ["files", self.how.identity()]

    def read(self, piece: Shard, view: View, batch_rows: int, tally: Tally) -> Iterator[pa.Table]:
        return counted(self._read(piece, view, batch_rows, tally.bad_row), tally)

    def _read(self, piece: Shard, view: View, batch_rows: int, on_bad_row: OnBadRow) -> Iterator[pa.Table]:
        store = open_store(piece.uri)
        object = Object(piece.uri, piece.object_bytes, piece.generation)
        encoding = detect(piece.uri, self.reading(view))
        schema = self.schema if view.columns is None else pa.schema([self.schema.field(one) for one in view.columns])
        rest = (schema, batch_rows, on_bad_row)
        if view.predicate is None:
            yield from read(store, object, encoding, piece.kind, piece.start, piece.stop, *rest)
            return
        groups = _matching_row_groups(store, object, view.predicate, self.schema)
        if piece.kind is not SliceKind.WHOLE:
            groups = [group for group in groups if piece.start <= group < piece.stop]
        for start, stop in _ranges(groups):
            yield from read(store, object, encoding, SliceKind.ROW_GROUPS, start, stop, *rest)

    def reading(self, view: View) -> ReadAs:
        """Returns how the files are read for a view."""
        return self.how if view.columns is None else replace(self.how, whole=False)

    def count(self) -> int | None:
        if self.format is Format.BINARY:
            return int(self.listing.num_rows)
        if self.format is not Format.PARQUET:
            return None
        with ThreadPoolExecutor(READERS) as pool:
            return sum(pool.map(_rows_in_footer, (item for item, _ in self._named())))

    def describe(self) -> str:
        """Returns how much there is to read, as far as the listing tells: files, stored bytes, shards."""
        sizes = self.listing["size"].to_numpy()
        large = np.flatnonzero(sizes > self.shard_bytes)
        split = [int(one) for one in large if detect(self.listing["uri"][int(one)].as_py(), self.how).divisible]
        shards = len(sizes) + sum(-(-int(sizes[one]) // self.shard_bytes) - 1 for one in split)
        packed = len(sizes) and detect(self.listing["uri"][0].as_py(), self.how).codec is not None
        # Where a Parquet file can be cut, its row groups tell.
        about = "about " if split and self.format is Format.PARQUET else ""
        return (
            f"{_counted(len(sizes), 'file')}, {format_bytes(int(sizes.sum()))}{' compressed' if packed else ''}, "
            f"{about}{_counted(shards, 'shard')}"
        )

    def pruned(self, view: View) -> str:
        """Returns how many row groups a view leaves of the first files, whose footers it reads."""
        if view.predicate is None:
            return ""
        items = [item for item, _ in islice(self._named(), READERS)]

        def groups(item: Object) -> tuple[int, int]:
            left = _matching_row_groups(open_store(item.uri), item, view.predicate, self.schema)
            return len(left), len(_groups_of(item) or ())

        with ThreadPoolExecutor(READERS) as pool:
            left, there = map(sum, zip(*pool.map(groups, items), strict=True))
        where = "" if len(items) == len(self.listing) else f" in the first {_counted(len(items), 'file')}"
        return f"{left:,} of {_counted(there, 'row group')} left{where}"


@dataclass(frozen=True, slots=True)
class Tables:
    """Rows that are in memory."""

    method: str
    tables: tuple[pa.Table, ...]
    schema: pa.Schema
    num_cpus: float | None = None

    @property
    def name(self) -> str:
        return f"{self.method}({sum(map(len, self.tables)):,} rows)"

    @property
    def found(self) -> pa.Schema:
        return self.schema

    def pieces(self) -> Iterator[tuple[int, pa.Table, int]]:
        """Yields tables, or parts of large ones, with their number and how many there are."""
        some = [table for table in self.tables if len(table)]
        cuts = [(table, range(0, len(table), _piece_rows(table))) for table in some]
        if not cuts and len(self.schema):
            # A piece without rows says which columns there are.
            cuts = [(empty(self.schema), range(1))]
        total = sum(len(starts) for _, starts in cuts)
        number = 0
        for table, starts in cuts:
            for start in starts:
                # A slice would take all of its table to another process.
                piece = table if len(starts) == 1 else _copied(table.slice(start, starts.step))
                yield number, piece, total
                number += 1

    def bundles(self) -> Iterator[tuple[tuple[int, pa.Table, int], ...]]:
        return bundled(self.pieces(), lambda piece: int(piece[1].nbytes))

    def bare(self) -> Self:
        return replace(self, tables=())

    def shard(self, piece: tuple[int, pa.Table, int]) -> str:
        return f"part-{piece[0]:05d}-of-{piece[2]:05d}"

    def label(self, piece: tuple[int, pa.Table, int]) -> str:
        return f"{self.method} table {piece[0]}"

    def size(self, piece: tuple[int, pa.Table, int]) -> int:
        return int(piece[1].nbytes)

    def generation(self, piece: tuple[int, pa.Table, int]) -> str:
        return _digest(piece[1])

    def identity(self) -> Any:
        return ["tables", [_digest(table) for table in self.tables]]

    def read(self, piece: tuple[int, pa.Table, int], view: View, batch_rows: int, tally: Tally) -> Iterator[pa.Table]:
        del view
        return counted(rechunk(iter([piece[1]]), batch_rows), tally)

    def count(self) -> int | None:
        return sum(map(len, self.tables))


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from 0 on, as the column `id`."""

    rows: int
    num_cpus: float | None = None

    @property
    def name(self) -> str:
        return f"range({self.rows:,})"

    @property
    def found(self) -> pa.Schema:
        return pa.schema([("id", pa.int64())])

    def pieces(self) -> Iterator[tuple[int, int]]:
        for start in range(0, self.rows, RANGE_ROWS):
            yield start, min(start + RANGE_ROWS, self.rows)

    def bundles(self) -> Iterator[tuple[tuple[int, int], ...]]:
        for piece in self.pieces():
            yield (piece,)

    def bare(self) -> Self:
        return self

    def shard(self, piece: tuple[int, int]) -> str:
        return f"part-{piece[0] // RANGE_ROWS:05d}-of-{-(-self.rows // RANGE_ROWS):05d}"

    def label(self, piece: tuple[int, int]) -> str:
        return f"range {piece[0]}-{piece[1]}"

    def size(self, piece: tuple[int, int]) -> int:
        return (piece[1] - piece[0]) * NUMBER_BYTES

    def generation(self, piece: tuple[int, int]) -> str:
        del piece
        return ""

    def identity(self) -> Any:
        return ["range", self.rows]

    def read(self, piece: tuple[int, int], view: View, batch_rows: int, tally: Tally) -> Iterator[pa.Table]:
        del view
        return counted(self._read(piece, batch_rows), tally)

    def _read(self, piece: tuple[int, int], batch_rows: int) -> Iterator[pa.Table]:
        for start in range(*piece, batch_rows):
            stop = min(start + batch_rows, piece[1])
            yield pa.table({"id": np.arange(start, stop, dtype=np.int64)})

    def count(self) -> int | None:
        return self.rows


def files(
    method: str,
    format: Format,
    paths: Sequence[str],
    how: ReadAs | None = None,
    num_cpus: float | None = None,
    allow_incomplete_input: bool = False,
) -> Files:
    """Lists files and finds their schema: as it was declared, else that of the first that has rows.

    Raises ConfigError for a path that matches nothing, for the output of a job that is not complete, or not all there,
    unless that is allowed, for a file of another format, or a declared schema that the first
    Parquet file cannot be read as; CorruptInput if the files that are looked at cannot be read.
    """
    if not paths:
        raise ConfigError(f"{method} was given no path")
    if num_cpus is not None and (isinstance(num_cpus, bool) or not num_cpus > 0):
        raise ConfigError(f"{method}(num_cpus={num_cpus!r}): expected a number of CPUs above 0")
    how = how or ReadAs(format)
    if how.schema is not None:
        how = replace(how, schema=check_declared(method, format, how.schema))
    patterns = [understand(path) for path in paths]
    inputs = list_inputs(patterns, open_store)
    holes = holes_in(patterns, inputs, open_store)
    if allow_incomplete_input:
        warn_of_holes(holes, method)
    else:
        refuse_holes(holes, open_store, f"{method}(..., allow_incomplete_input=True)")
    listing = inputs.table
    for uri in listing["uri"].to_pylist():
        try:
            detect(uri, how)
        except ConfigError as error:
            raise ConfigError(f"{method} was given {uri!r}: {error}") from error
    found = Files(
        *(method, tuple(paths), how, pa.schema([]), num_cpus, allow_incomplete_input),
        listing=listing,
        holes=tuple(holes),
    )
    schema, first = _sampled(found)
    return replace(found, schema=schema, how=how if how.schema is not None else replace(how, first=first))


def _sampled(source: Files) -> tuple[pa.Schema, str]:
    """Returns the schema of all files, and the file that it is from."""
    how = source.how
    known = known_schema(how)
    if known is not None and how.format is not Format.PARQUET:
        return known, ""
    problem: CorruptInput | None = None
    schema, first = pa.schema([]), ""
    listing = source.listing
    filled = listing.filter(pc.greater(listing["size"], 0)).slice(0, SAMPLED_FILES)
    for block in (filled if len(filled) else listing.slice(0, 1)).to_pylist():
        one = Object(block["uri"], block["size"], block["generation"])
        try:
            schema = sample_schema(open_store(one.uri), one, detect(one.uri, replace(how, schema=None)))
        except CorruptInput as error:
            problem = problem or error
            continue
        first = one.uri
        if len(schema):
            break
    if known is not None:
        if first:
            try:
                unify(first, schema, known, how)
            except SchemaMismatch as error:
                raise ConfigError(f"{source.method}(schema=...): {error}") from error
        return known, ""
    if problem is not None and not len(schema):
        raise problem
    return schema.remove_metadata(), first


def _groups_of(item: Object) -> list[int] | None:
    try:
        return row_groups(open_store(item.uri), item)
    except CorruptInput:
        # Reading it as a whole says what is wrong.
        return None


def _is_array(item: Object) -> bool:
    return stored_as_array(open_store(item.uri), item)


def _rows_in_footer(object: Object) -> int:
    with open_store(object.uri).open(object) as stream:
        try:
            return int(pq.read_metadata(pa.PythonFile(stream, mode="r")).num_rows)
        except pa.ArrowInvalid as error:
            raise CorruptInput(f"{object.uri}: not a whole Parquet file: {error}") from error


def _matching_row_groups(store: Store, object: Object, predicate: Any, schema: pa.Schema) -> list[int]:
    """Returns the row groups of which the statistics leave open that rows match."""
    import pyarrow.dataset as pads

    with store.open(object) as stream:
        try:
            fragment = pads.ParquetFileFormat().make_fragment(pa.PythonFile(stream, mode="r"))
            there, groups = fragment.physical_schema, fragment.metadata.num_row_groups
        except pa.ArrowInvalid as error:
            raise CorruptInput(f"{object.uri}: not a whole Parquet file: {error}") from error
        for one in schema:
            if there.names.count(one.name) != 1 or not widens(plain(there.field(one.name).type), one.type):
                # Reading it says what is wrong, or fills a column that is missing; a file that is left out would say
                # nothing.
                return list(range(groups))
        return [group.id for group in fragment.subset(predicate, schema=schema).row_groups]


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields ranges of neighbours.

    >>> list(_ranges([0, 1, 4]))
    [(0, 2), (4, 5)]
    """

    def offset(pair: tuple[int, int]) -> int:
        return pair[1] - pair[0]

    for _, run in groupby(enumerate(numbers), offset):
        members = [number for _, number in run]
        yield members[0], members[-1] + 1


def _counted(number: int, what: str) -> str:
    """Returns a number of things.

    >>> _counted(1, "file"), _counted(2000, "file")
    ('1 file', '2,000 files')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _piece_rows(table: pa.Table) -> int:
    """Returns how many rows of a table are a piece: all of a small one."""
    parts = -(-table.nbytes // TABLE_BYTES)
    return int(max(1, -(-len(table) // max(1, parts))))


def _digest(table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    # In one chunk: how rows are cut in memory says nothing about them.
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return hashlib.sha256(sink.getvalue()).hexdigest()[:32]


def _copied(table: pa.Table) -> pa.Table:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


__all__ = ["BadRow", "Files", "Range", "Source", "Tables", "View", "files"]
