"""Sources as the shards of a stage: what is read there, and what it is called.

Where outputs are named after files, a stage reads those itself. All others are made here: ranges, tables in memory,
what an exchange gives, and the map shards of an exchange, which are bundles of pieces: neighbours together, as many as
fit into a number of bytes, whatever the cluster is like.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curate.pipeline.shard_books import ShardBooks
from curate.sources.files import FileShards
from curate.sources.listing import SCHEMA
from curate.sources.protocol import FileListing, Projection, Source

LISTED = pa.schema([SCHEMA.field(name) for name in ("uri", "size", "generation")])


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of a source."""

    source: int
    rank: int
    """Its number among all pieces."""
    piece: Any
    name: str
    """What it is called: by its source, and by how many there were of that name before."""


@dataclass(frozen=True, slots=True)
class _Shard:
    """One shard, and the pieces that it reads."""

    name: str
    told: str
    size: int
    generation: str
    pieces: tuple[_Piece, ...]


class Names:
    """What pieces are called that random numbers go by, each by itself: by its source, and by how many there were of
    that name before: files of one name in two folders, or twice in a union."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def of(self, name: str) -> str:
        """Returns what the next piece is called that its source calls `name`."""
        self._seen[name] += 1
        return name if self._seen[name] == 1 else f"{name} {self._seen[name]}"


class SourceRows:
    """The pieces of some sources, one after the other: each a shard, or bundles of them."""

    def __init__(self, sources: Sequence[Source], views: Sequence[Projection], bundle_bytes: int | None = None) -> None:
        """`bundle_bytes`: bytes of the pieces that are a shard together; None: each is one, called by its own id."""
        self.sources = tuple(sources)
        self.views = tuple(views)
        self.bundle_bytes = bundle_bytes
        self._made: Sequence[_Shard] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks need no listing, and are given the pieces of their own shards: those of all are more than a process of a
        # worker has room for.
        return {**self.__dict__, "sources": tuple(one.bare() for one in self.sources), "_made": ()}

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows: the sources have one."""
        found, view = self.sources[0].found, self.views[0]
        return found if view.columns is None else pa.schema([found.field(name) for name in view.columns])

    @property
    def _shards(self) -> Sequence[_Shard]:
        if self._made is None:
            self._made = list(self._singles() if self.bundle_bytes is None else self._bundles(self.bundle_bytes))
        return self._made

    def inputs(self) -> pa.Table:
        """Returns the shards as a listing of files would be."""
        shards = self._shards
        uris = [f"{one.told} #{number}" for number, one in enumerate(shards)]
        names, sizes = [one.name for one in shards], [one.size for one in shards]
        return pa.table([uris, names, sizes, [one.generation for one in shards]], schema=SCHEMA)

    def refuse_keys(self, what: str, columns: Sequence[str]) -> None:
        """Raises ConfigError if one of these columns is not of one type in all Parquet files, of which it reads some
        footers."""
        for source, view in zip(self.sources, self.views, strict=True):
            if isinstance(source, FileShards):
                read = source.found.names if view.columns is None else view.columns
                source.refuse_keys(what, [name for name in columns if name in read])

    def given(self, uri: str) -> tuple[_Piece, ...]:
        """Returns the pieces of a shard."""
        return self._shards[int(uri.rpartition("#")[2])].pieces

    def parts(
        self, given: tuple[_Piece, ...], batch_rows: int, tally: ShardBooks
    ) -> Iterator[tuple[str, int, Iterator[pa.Table]]]:
        """Yields the pieces of a shard: id, rank and rows, which are booked as they are taken."""
        for one in given:
            yield one.name, one.rank, self._rows(one.source, one.piece, batch_rows, tally)

    def _rows(self, number: int, piece: Any, batch_rows: int, tally: ShardBooks) -> Iterator[pa.Table]:
        source = self.sources[number]
        try:
            yield from source.read(piece, self.views[number], batch_rows, tally)
        except Exception as error:
            error.add_note(f"while {source.label(piece)} was read")
            raise

    def holder(self, rank: int) -> str:
        """Returns the name of the shard that reads the piece of this rank; empty if there is none."""
        return next((one.name for one in self._shards if any(rank == piece.rank for piece in one.pieces)), "")

    def manifest(self) -> Any:
        """Returns what is read, as JSON values: what a stage is called after that depends on it."""
        return [[one.name, one.size, one.generation] for one in self._shards]

    def listing(self) -> pa.Table:
        """Returns the files that are read: uri, size and generation."""
        tables = [one.listing.select(LISTED.names) for one in self.sources if isinstance(one, FileListing)]
        return pa.concat_tables([LISTED.empty_table(), *tables])

    def _pieces(self) -> Iterator[_Piece]:
        names = Names()
        rank = 0
        for number, source in enumerate(self.sources):
            for piece in source.pieces():
                yield _Piece(number, rank, piece, names.of(source.shard(piece)))
                rank += 1

    def _singles(self) -> Iterator[_Shard]:
        pieces = list(self._pieces())
        for one in pieces:
            source = self.sources[one.source]
            # Of several sources, each counts its own pieces: here all are counted.
            name = source.shard(one.piece) if len(self.sources) == 1 else f"part-{one.rank:05d}-of-{len(pieces):05d}"
            yield _Shard(name, source.label(one.piece), source.size(one.piece), source.generation(one.piece), (one,))

    def _bundles(self, most_bytes: int) -> Iterator[_Shard]:
        held: list[_Piece] = []
        size = 0
        for one in self._pieces():
            more = self.sources[one.source].size(one.piece)
            if held and size + more > most_bytes:
                yield self._bundle(held, size)
                held, size = [], 0
            held.append(one)
            size += more
        if held:
            yield self._bundle(held, size)

    def _bundle(self, pieces: Sequence[_Piece], size: int) -> _Shard:
        ids = [(one.name, self.sources[one.source].generation(one.piece)) for one in pieces]
        first = self.sources[pieces[0].source].label(pieces[0].piece)
        told = first if len(pieces) == 1 else f"{first} and {len(pieces) - 1:,} more"
        # By what it reads and not by its number: the same shard is called the same beside others.
        name = hashlib.sha256(repr([one for one, _ in ids]).encode()).hexdigest()[:16]
        generation = hashlib.sha256(repr(ids).encode()).hexdigest()[:16]
        return _Shard(f"map-{name}", told, size, generation, tuple(pieces))
