"""The input files of a run as the source of a stage: their rows, or the files themselves.

Outputs are named after them. A job that processes whole files gets each file as a batch, where others get tables. So
its operator is like any other, and only this file knows that there are no rows to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from curate.arrow.unknown import all_nullable, empty, is_of_no_rows, of_no_rows
from curate.dataclass import dataclass, field, replace
from curate.errors import CorruptInput, GenerationMismatch, ObjectNotFound
from curate.formats.encoding import Encoding, Format, ReadAs, detect
from curate.formats.file_columns import file_columns, with_file_columns
from curate.formats.rows import SAMPLED_FILES, known_schema
from curate.log import get_logger
from curate.objects.places import placed_schema
from curate.pipeline.shard_books import ShardBooks
from curate.sources.columns import first_schema, objects_in, some_of, warn_of_misfits
from curate.sources.listing import Inputs, list_inputs
from curate.sources.patterns import InputPattern
from curate.sources.protocol import RowSource, StoreOf
from curate.sources.slice_rows import Filters, slice_rows
from curate.sources.split import whole_object
from curate.storage.protocol import Object, Store
from curate.tasks.shard import Shard


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input object as `process_file` sees it."""

    uri: str
    size: int
    """Stored bytes."""
    generation: str
    id: str
    """What its output is called: no two inputs of a job are called the same, wherever they lie."""
    _store: Store = field(repr=False)

    def open(self) -> BinaryIO:
        """Returns a seekable, buffered stream over the stored bytes; nothing is read before it is asked for.

        Raises CorruptInput if the object is gone or was replaced after the plan was made.
        """
        try:
            return self._store.open(Object(self.uri, self.size, self.generation))
        except (ObjectNotFound, GenerationMismatch) as error:
            raise CorruptInput(str(error)) from error


class InputFiles(RowSource):
    """The files themselves, whatever is in them: each is one shard, and one batch, an `InputFile`."""

    grows = True

    def inputs(self, patterns: Sequence[InputPattern], store_of: StoreOf) -> Inputs:
        return list_inputs(patterns, store_of)

    def holder(self, shard: str, rank: int) -> str:
        del rank
        return shard

    def parts(
        self, shard: Shard, rank: int, given: Any, batch_rows: int, tally: ShardBooks, store_of: StoreOf
    ) -> Iterator[tuple[str, int, Iterator[Any]]]:
        del given, batch_rows, tally
        file = InputFile(shard.uri, shard.object_bytes, shard.generation, shard.id, store_of(shard.uri))
        yield shard.id, rank, iter([file])


@dataclass(frozen=True)
class FileRows(InputFiles):
    """The rows of the files."""

    columns: Mapping[str, Any] | None = None
    """Names of the columns to read, with an Arrow type or None (inferred); None: all columns."""
    required: frozenset[str] = frozenset()
    """Columns in which a null makes a bad row."""
    how: ReadAs | None = None
    """How files are read; None: as their suffixes say."""
    filters: Filters = ()
    """What the first steps over the rows are, if they are filters: row groups of Parquet files of which no row passes
    are not read."""
    held: Mapping[str, pa.Schema] = field(default_factory=dict)
    """The schemas of what is to be read, by format, once they are known."""
    places: tuple[str, ...] = ()
    """Names of columns that say where a row lies, the last ones; then `filters` do not hold."""
    named: bool = False
    """Whether the first steps over the rows choose columns by name."""

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        return self.held

    @property
    def row_schemas(self) -> Sequence[pa.Schema]:
        return [placed_schema(all_nullable(one), self.places) for one in self.held.values()]

    @property
    def _declared(self) -> bool:
        """Whether somebody has said which columns there are: then others are left out on purpose."""
        return self.named or self.columns is not None or (self.how is not None and self.how.schema is not None)

    def blank(self) -> pa.Table | None:
        return empty(self.row_schemas[0])

    def holding(self, schemas: Mapping[str, pa.Schema]) -> FileRows:
        return replace(self, held=schemas)

    def encoding(self, uri: str) -> Encoding:
        return detect(uri, self.how)

    def sampled(
        self, inputs: Inputs, undone: Iterable[str], store_of: StoreOf, stored: Callable[[str], pa.Schema | None]
    ) -> FileRows:
        # A planned input may be gone, and be the last of its format: its shard has to fail for that and nothing else.
        by_format: dict[Format, list[int]] = {self.encoding(uri).format: [] for uri in undone}
        for row, (uri, size) in enumerate(_listed(inputs)):
            rows = by_format.get(self.encoding(uri).format)
            if rows is not None and size and len(rows) < SAMPLED_FILES:
                rows.append(row)
                if all(len(one) == SAMPLED_FILES for one in by_format.values()):
                    break
        schemas: dict[str, pa.Schema] = {}
        for format, rows in by_format.items():
            schema = stored(format.value)
            schemas[format.value] = self._sample(inputs, format, rows, store_of) if schema is None else schema
        return self.holding(schemas)

    def _sample(self, inputs: Inputs, format: Format, rows: Sequence[int], store_of: StoreOf) -> pa.Schema:
        """Returns the schema of the first of these inputs, all of a format, that has rows and can be read."""

        def others() -> list[Object]:
            return [one for one in some_of(inputs.table) if one.size and self.encoding(one.uri).format is format]

        files = objects_in(inputs.table.take(rows))
        schema, _, problem = first_schema(files, others, self.encoding, store_of, self.columns, self.required)
        if len(schema) and self.columns is None and self.how is not None and self.how.schema is None:
            # Behind the columns that only others have inside, too.
            own = file_columns(self.how).names
            inside = pa.schema([one for one in schema if one.name not in own])
            schema = with_file_columns(inside, self.how).with_metadata(schema.metadata)
        types = (self.columns or {"": None}).values()
        told = (len(schema) and not is_of_no_rows(schema)) or None not in types
        if not len(schema):
            if self.how is not None and (known := known_schema(self.how)) is not None:
                return pa.schema([known.field(name) for name in self.columns]) if self.columns is not None else known
            if problem is not None:
                get_logger().warning("the first inputs cannot be read", error=str(problem))
            schema = pa.schema([(name, type or pa.string()) for name, type in (self.columns or {}).items()])
        if not told and self.how is None and self.columns is not None:
            # What a job names is text for the most part.
            schema = pa.schema([one.with_type(pa.string()) if pa.types.is_null(one.type) else one for one in schema])
        made = pa.schema([one.with_nullable(one.name not in self.required) for one in schema])
        return made if told else of_no_rows(made)

    def warn_of_misfits(self, listing: Any) -> None:
        schema = self.held.get(Format.PARQUET.value, pa.schema([]))
        if len(schema) and not is_of_no_rows(schema):
            parquet = [one for one in some_of(listing) if self.encoding(one.uri).format is Format.PARQUET]
            warn_of_misfits(parquet, schema, self._reading)

    def _reading(self, uri: str) -> Encoding:
        """Returns how an input is read into the columns that are known."""
        typed = frozenset(name for name, type in (self.columns or {}).items() if type is not None)
        return replace(self.encoding(uri), typed=typed, job_reads_all=not self._declared)

    def read_whole(self, shard: Shard, given: Any) -> Iterable[Object]:
        del given
        return whole_object(shard)

    def parts(
        self, shard: Shard, rank: int, given: Any, batch_rows: int, tally: ShardBooks, store_of: StoreOf
    ) -> Iterator[tuple[str, int, Iterator[Any]]]:
        del given
        encoding, store = self._reading(shard.uri), store_of(shard.uri)
        schema = self.held[encoding.format.value]
        yield (
            shard.id,
            rank,
            slice_rows(
                *(store, shard, encoding, schema, batch_rows, tally),
                filters=self.filters,
                places=self.places,
                declared=self._declared,
            ),
        )


def _listed(inputs: Inputs) -> Iterator[tuple[str, int]]:
    """Yields URI and size of each input; of millions, only some thousand are there as Python's objects."""
    for block in inputs.table.batches("uri", "size"):
        yield from zip(block["uri"].to_pylist(), block["size"].to_pylist(), strict=True)
