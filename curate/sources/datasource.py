"""Rows from a user's class, for anything that curate has no reader for."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Self

import pyarrow as pa

from curate.arrow.batches import kept, rechunk
from curate.arrow.schema import conform
from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError
from curate.pipeline.shard_books import ShardBooks, counted
from curate.sources.protocol import Piece, Projection, Source, StoreOf
from curate.sources.split import bundled
from curate.units import require_json


@dataclass(frozen=True, slots=True)
class SourceShard:
    """A part of a `Datasource`, which becomes one output.

    >>> curate.SourceShard("2024/01", size_bytes=1 << 20, data={"month": 1}).id
    '2024/01'
    """

    id: str
    """The name of its output, without the suffix: unique in the source, and the same in every run. It may have folders:
    `2024/01`."""
    size_bytes: int
    """About how many bytes are read: small shards share a task."""
    data: Any = field(default=None, repr=False)
    """What `Datasource.read` finds the rows by. Any value that can be pickled."""
    version: str = ""
    """Text that changes whenever the rows do, such as an ETag; empty if they never do."""


class Datasource(ABC):
    """Rows that curate has no reader for, for `curate.read_datasource`. Write a subclass with these four methods.

    The object is pickled to every worker: open files and connections in `read`.

    >>> class Squares(curate.Datasource):
    ...     def identity(self):
    ...         return "squares"
    ...     def schema(self):
    ...         return pa.schema([("square", pa.int64())])
    ...     def shards(self):
    ...         return [curate.SourceShard(f"from-{start}", 16, start) for start in (0, 2)]
    ...     def read(self, shard):
    ...         yield pa.table({"square": [n * n for n in (shard.data, shard.data + 1)]})
    >>> curate.read_datasource(Squares()).count()
    4
    """

    @abstractmethod
    def identity(self) -> Any:
        """Returns what decides the rows, beside shards and versions, as JSON values: a table's name, a query. A write
        is refused if its output was made with another one."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Returns the schema of the rows."""

    @abstractmethod
    def shards(self) -> Iterable[SourceShard]:
        """Returns all shards, in the order of the rows. Called once, by `read_datasource`."""

    @abstractmethod
    def read(self, shard: SourceShard) -> Iterable[pa.Table]:
        """Yields the rows of a shard, as tables of any size: the same rows in the same order, whenever it is called.

        May raise `CorruptInput` for a shard that cannot be read, which is not tried again, and `RetryLater` for a
        service that is busy, which costs the shard no attempt; after any other error it is tried again.
        """


@dataclass(frozen=True, slots=True)
class UserSource(Source):
    """A `Datasource` whose shards are listed."""

    source: Datasource = field(repr=False)
    shards: tuple[SourceShard, ...] = field(repr=False)
    schema: pa.Schema
    said: Any = field(repr=False)
    """What decides the rows, as JSON values."""
    num_cpus: float | None = None

    @property
    def name(self) -> str:
        return f"read_datasource({type(self.source).__name__})"

    @property
    def found(self) -> pa.Schema:
        return self.schema

    @property
    def size_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(one.size_bytes for one in self.shards)

    def pieces(self) -> Iterator[Piece]:
        for one in self.shards:
            yield Piece(one.id, f"shard {one.id} of {type(self.source).__name__}", one.size_bytes, one)

    def bundles(self) -> Iterator[tuple[Piece, ...]]:
        return bundled(self.pieces(), lambda piece: piece.size)

    def bare(self) -> Self:
        return replace(self, shards=())

    def generation(self, data: SourceShard) -> str:
        return data.version

    def identity(self) -> Any:
        return self.said

    def read(
        self, data: SourceShard, view: Projection, batch_rows: int, tally: ShardBooks, store_of: StoreOf
    ) -> Iterator[pa.Table]:
        del store_of
        del view
        what = f"{type(self.source).__name__}.read({data.id!r})"
        given = (table.replace_schema_metadata(None) for table in self.source.read(data))
        tables = (kept(conform(table, self.schema, what)) for table in given)
        return counted(rechunk(tables, batch_rows), tally)


def user_source(source: Datasource, num_cpus: float | None = None) -> UserSource:
    """Returns a source whose shards are listed. Raises ConfigError for one that does not say what it has to."""
    if not isinstance(source, Datasource):
        raise ConfigError(
            f"read_datasource takes a curate.Datasource, found {type(source).__name__}; write a subclass of "
            "curate.Datasource with identity, schema, shards and read"
        )
    name = type(source).__name__
    shards = tuple(source.shards())
    for one in shards:
        if not isinstance(one, SourceShard) or not one.id:
            raise ConfigError(f"{name}.shards() returned {one!r:.60}; expected curate.SourceShard(id, size_bytes)")
    [(first, count)] = Counter(one.id for one in shards).most_common(1) or [("", 0)]
    if count > 1:
        raise ConfigError(f"{name}.shards() has {count} shards called {first!r}; give each an id of its own")
    schema = source.schema()
    if not isinstance(schema, pa.Schema) or len(set(schema.names)) != len(schema) or not len(schema):
        raise ConfigError(f"{name}.schema() is {schema!r:.60}; expected a pyarrow.Schema of columns, each named once")
    own = source.identity()
    require_json(f"{name}.identity()", own)
    listed = hashlib.sha256(repr([(one.id, one.version) for one in shards]).encode()).hexdigest()[:32]
    columns = [[one.name, str(one.type)] for one in schema]
    return UserSource(
        source, shards, schema.remove_metadata(), ["datasource", name, own, columns, len(shards), listed], num_cpus
    )
