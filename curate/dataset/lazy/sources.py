"""Where rows come from, in pieces: each is read by one task, and gives the same batches whenever it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from curate.dataset.formats import BadRow, Format, OnBadRow, detect, read, rechunk, sample_schema
from curate.dataset.formats.hold import plain, widens
from curate.dataset.inputs import list_inputs, understand
from curate.errors import ConfigError, CorruptInput
from curate.storage import open_store
from curate.storage.protocol import Object, Store
from curate.tasks.shard import SliceKind
from curate.units import format_bytes

SAMPLED = 8
"""Files that are looked into for the schema, until one has rows."""
READERS = 8
"""Footers that are read at once."""
RANGE_ROWS = 1 << 20
"""Rows of a range in one piece."""


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

    def pieces(self) -> Iterator[Any]:
        """Yields what `read` takes, in the order of the rows."""
        ...

    def label(self, piece: Any) -> str:
        """Returns what a piece is called in errors."""
        ...

    def read(self, piece: Any, view: View, batch_rows: int, on_bad_row: OnBadRow) -> Iterator[pa.Table]:
        """Yields the piece's rows in batches of at most `batch_rows` rows, none empty."""
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


@dataclass(frozen=True, slots=True)
class Files:
    """The rows of files of one format."""

    method: str
    paths: tuple[str, ...]
    """As they were given."""
    format: Format
    objects: tuple[Object, ...]
    schema: pa.Schema
    wanted: tuple[str, ...] | None = None
    """The columns that rows of this format have here, where not all."""

    @property
    def name(self) -> str:
        return f"{self.method}({', '.join(map(repr, self.paths))})"

    @property
    def found(self) -> pa.Schema:
        return self.schema

    def pieces(self) -> Iterator[Object]:
        yield from self.objects

    def label(self, piece: Object) -> str:
        return piece.uri

    def read(self, piece: Object, view: View, batch_rows: int, on_bad_row: OnBadRow) -> Iterator[pa.Table]:
        store = open_store(piece.uri)
        encoding = detect(piece.uri)
        schema = self.schema if view.columns is None else pa.schema([self.schema.field(one) for one in view.columns])
        rest = (schema, batch_rows, on_bad_row)
        if view.predicate is None:
            yield from read(store, piece, encoding, SliceKind.WHOLE, 0, 0, *rest)
            return
        for start, stop in _ranges(_matching_row_groups(store, piece, view.predicate, self.schema)):
            yield from read(store, piece, encoding, SliceKind.ROW_GROUPS, start, stop, *rest)

    def count(self) -> int | None:
        if self.format is not Format.PARQUET:
            return None
        with ThreadPoolExecutor(READERS) as pool:
            return sum(pool.map(_rows_in_footer, self.objects))

    def describe(self) -> str:
        """Returns how much there is to read."""
        return f"{len(self.objects):,} files, {format_bytes(sum(one.size for one in self.objects))}"


@dataclass(frozen=True, slots=True)
class Tables:
    """Rows that are in memory, a piece a table."""

    method: str
    tables: tuple[pa.Table, ...]
    schema: pa.Schema

    @property
    def name(self) -> str:
        return f"{self.method}({sum(map(len, self.tables)):,} rows)"

    @property
    def found(self) -> pa.Schema:
        return self.schema

    def pieces(self) -> Iterator[tuple[int, pa.Table]]:
        yield from enumerate(self.tables)

    def label(self, piece: tuple[int, pa.Table]) -> str:
        return f"{self.method} table {piece[0]}"

    def read(
        self, piece: tuple[int, pa.Table], view: View, batch_rows: int, on_bad_row: OnBadRow
    ) -> Iterator[pa.Table]:
        del view, on_bad_row
        yield from rechunk(iter([piece[1]]), batch_rows)

    def count(self) -> int | None:
        return sum(map(len, self.tables))


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from 0 on, as the column `id`."""

    rows: int

    @property
    def name(self) -> str:
        return f"range({self.rows:,})"

    @property
    def found(self) -> pa.Schema:
        return pa.schema([("id", pa.int64())])

    def pieces(self) -> Iterator[tuple[int, int]]:
        for start in range(0, self.rows, RANGE_ROWS):
            yield start, min(start + RANGE_ROWS, self.rows)

    def label(self, piece: tuple[int, int]) -> str:
        return f"range {piece[0]}-{piece[1]}"

    def read(self, piece: tuple[int, int], view: View, batch_rows: int, on_bad_row: OnBadRow) -> Iterator[pa.Table]:
        del view, on_bad_row
        for start in range(*piece, batch_rows):
            stop = min(start + batch_rows, piece[1])
            yield pa.table({"id": pa.array(range(start, stop), pa.int64())})

    def count(self) -> int | None:
        return self.rows


def files(method: str, format: Format, paths: Sequence[str], wanted: tuple[str, ...] | None = None) -> Files:
    """Lists files and samples the schema from the first that has rows.

    Raises ConfigError for a path that matches nothing, or a file of another format; CorruptInput if the files that are
    looked at cannot be read.
    """
    if not paths:
        raise ConfigError(f"{method} was given no path")
    table = list_inputs([understand(path) for path in paths], open_store).table
    columns = (table[name].to_pylist() for name in ("uri", "size", "generation"))
    objects = tuple(map(Object, *columns))
    for one in objects:
        if detect(one.uri).format is not format:
            raise ConfigError(
                f"{method} was given {one.uri!r}, which is {detect(one.uri).format.value}; name only files of "
                f"{format.value}, with a glob such as 'data/*.{format.value}'"
            )
    return Files(method, tuple(paths), format, objects, _sampled(objects, wanted), wanted)


def _sampled(objects: Sequence[Object], wanted: tuple[str, ...] | None) -> pa.Schema:
    declared = None if wanted is None else dict.fromkeys(wanted)
    problem: CorruptInput | None = None
    schema = pa.schema([])
    for one in objects[:SAMPLED]:
        try:
            schema = sample_schema(open_store(one.uri), one, detect(one.uri), declared)
        except CorruptInput as error:
            problem = problem or error
            continue
        if len(schema):
            return schema.remove_metadata()
    if problem is not None:
        raise problem
    return schema


def _rows_in_footer(object: Object) -> int:
    with open_store(object.uri).open(object) as stream:
        try:
            return int(pq.read_metadata(pa.PythonFile(stream, mode="r")).num_rows)
        except pa.ArrowInvalid as error:
            raise CorruptInput(f"{object.uri}: not a whole Parquet file: {error}") from error


def _matching_row_groups(store: Store, object: Object, predicate: Any, schema: pa.Schema) -> list[int]:
    """Returns the row groups of which the statistics leave open that rows match."""
    with store.open(object) as stream:
        try:
            fragment = pads.ParquetFileFormat().make_fragment(pa.PythonFile(stream, mode="r"))
            there, groups = fragment.physical_schema, fragment.metadata.num_row_groups
        except pa.ArrowInvalid as error:
            raise CorruptInput(f"{object.uri}: not a whole Parquet file: {error}") from error
        for field in schema:
            if there.names.count(field.name) != 1 or not widens(plain(there.field(field.name).type), field.type):
                # Reading it says what is wrong; a file that is left out would say nothing.
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


__all__ = ["BadRow", "Files", "Range", "Source", "Tables", "View", "files"]
