"""Sources as the shards of a stage: their content and their names.

Outputs that are named after files are those of `curate.sources.inputs`. All others are made here: ranges, tables in
memory, what an exchange gives, and the map shards of an exchange, which are bundles of pieces: neighbours together, as
many as fit into a number of bytes, whatever the cluster is like.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any

import pyarrow as pa

from curate.dataclass import dataclass
from curate.errors import add_note
from curate.ledger.packed import PackedTable
from curate.pipeline.shard_books import ShardBooks
from curate.sources.files import FileShards
from curate.sources.listing import SCHEMA, Inputs
from curate.sources.patterns import InputPattern
from curate.sources.protocol import LISTED, FileListing, Piece, Projection, RowSource, Source, StoreOf
from curate.sources.split import whole_object
from curate.storage.protocol import Object
from curate.tasks.shard import Shard


@dataclass(frozen=True, slots=True)
class NumberedPiece:
    """A piece of one of several sources."""

    source: int
    rank: int
    """Its number among all pieces."""
    name: str
    """What random numbers go by, each piece's by itself: its id, and how many there were of that before, for there are
    files of one name in two folders, or twice in a union."""
    piece: Piece


@dataclass(frozen=True, slots=True)
class _Shard:
    """One shard, and the pieces that it reads."""

    name: str
    told: str
    size: int
    generation: str
    pieces: tuple[NumberedPiece, ...]


def numbered(sources: Sequence[Source], parts: Sequence[int] = ()) -> Iterator[tuple[NumberedPiece, ...]]:
    """Yields the pieces of some sources, one after the other, each with those that one task of a stream reads.

    `parts`: of each source, the part that it is of; names are counted in each part by themselves.
    """
    rank = 0
    seen: Counter[tuple[int, str]] = Counter()
    for number, (source, part) in enumerate(zip(sources, parts or [0] * len(sources), strict=True)):
        for bundle in source.bundles():
            found = []
            for piece in bundle:
                seen[part, piece.id] += 1
                times = seen[part, piece.id]
                found.append(NumberedPiece(number, rank, piece.id if times == 1 else f"{piece.id} {times}", piece))
                rank += 1
            yield tuple(found)


def label_of(pieces: Sequence[NumberedPiece]) -> str:
    """Returns what the pieces that one task reads are called in errors: the first of them, and how many more."""
    first = pieces[0].piece.label
    return first if len(pieces) == 1 else f"{first} and {len(pieces) - 1:,} more"


def objects_of(pieces: Sequence[NumberedPiece]) -> Iterator[Object]:
    """Yields the objects that pieces are all of, in their order."""
    for one in pieces:
        if isinstance(one.piece.data, Shard):
            yield from whole_object(one.piece.data)


def _of_files(pieces: Iterator[NumberedPiece], start: int, stop: int) -> Iterator[NumberedPiece]:
    """Yields the pieces of some of the files that pieces are of, by the numbers of these."""
    for number, (_, found) in enumerate(groupby(pieces, key=lambda one: one.piece.data.uri)):
        if number >= stop:
            return
        if number >= start:
            yield from found


class SourceRows(RowSource):
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
    def schemas(self) -> Mapping[str, pa.Schema]:
        # The sources have one.
        found, view = self.sources[0].found, self.views[0]
        return {"rows": found if view.columns is None else pa.schema([found.field(name) for name in view.columns])}

    @property
    def _shards(self) -> Sequence[_Shard]:
        if self._made is None:
            self._made = list(self._singles() if self.bundle_bytes is None else self._bundles(self.bundle_bytes))
        return self._made

    def inputs(self, patterns: Sequence[InputPattern], store_of: StoreOf) -> Inputs:
        del patterns, store_of
        shards = self._shards
        uris = [f"{one.told} #{number}" for number, one in enumerate(shards)]
        names, sizes = [one.name for one in shards], [one.size for one in shards]
        table = pa.table([uris, names, sizes, [one.generation for one in shards]], schema=SCHEMA)
        return Inputs(PackedTable.of(table))

    def refuse_keys(self, what: str, columns: Sequence[str]) -> None:
        for source, view in zip(self.sources, self.views, strict=True):
            if isinstance(source, FileShards):
                read = source.found.names if view.columns is None else view.columns
                source.refuse_keys(what, [name for name in columns if name in read])
                source.warn_of_misfits(view)

    def given(self, uri: str) -> tuple[NumberedPiece, ...]:
        """Returns the pieces of a shard."""
        return self._shards[int(uri.rpartition("#")[2])].pieces

    def read_whole(self, shard: Shard, given: tuple[NumberedPiece, ...]) -> Iterator[Object]:
        del shard
        return objects_of(given)

    def parts(
        self,
        shard: Shard,
        rank: int,
        given: tuple[NumberedPiece, ...],
        batch_rows: int,
        tally: ShardBooks,
        store_of: StoreOf,
    ) -> Iterator[tuple[str, int, Iterator[pa.Table]]]:
        del shard, rank
        for one in given:
            tally.piece = one.piece.label.rstrip(",") if self.bundle_bytes is not None else ""
            yield one.name, one.rank, self._rows(one, batch_rows, tally, store_of)

    def _rows(self, one: NumberedPiece, batch_rows: int, tally: ShardBooks, store_of: StoreOf) -> Iterator[pa.Table]:
        source, view = self.sources[one.source], self.views[one.source]
        try:
            yield from source.read(one.piece.data, view, batch_rows, tally, store_of)
        except Exception as error:
            add_note(error, f"while {one.piece.label} was read")
            raise

    def holder(self, shard: str, rank: int) -> str:
        del shard
        return next((one.name for one in self._shards if any(rank == piece.rank for piece in one.pieces)), "")

    def manifest(self) -> Any:
        # What a stage is called after that depends on it.
        shards = [[one.name, one.size, one.generation] for one in self._shards]
        # Rows are told apart by the numbers of pieces, which those of a later segment have of all before.
        return [self._shards[0].pieces[0].rank, *shards] if self._segment is not None and self._segment[0] else shards

    def listing(self) -> pa.Table:
        tables = [one.listing.select(LISTED.names) for one in self.sources if isinstance(one, FileListing)]
        return pa.concat_tables([LISTED.empty_table(), *tables])

    def paths(self) -> Sequence[str]:
        return [path for one in self.sources if isinstance(one, FileListing) for path in one.paths]

    def _pieces(self) -> Iterator[NumberedPiece]:
        pieces = chain.from_iterable(numbered(self.sources))
        return pieces if self._segment is None else _of_files(pieces, *self._segment)

    @property
    def _segment(self) -> tuple[int, int] | None:
        """The files that are read of the source, where not all are."""
        return self.sources[0].segment if isinstance(self.sources[0], FileListing) else None

    def _generation(self, one: NumberedPiece) -> str:
        return self.sources[one.source].generation(one.piece.data)

    def _singles(self) -> Iterator[_Shard]:
        pieces = list(self._pieces())
        for one in pieces:
            # Of several sources, each counts its own pieces: here all are counted.
            name = one.piece.id if len(self.sources) == 1 else f"part-{one.rank:05d}-of-{len(pieces):05d}"
            yield _Shard(name, one.piece.label, one.piece.size, self._generation(one), (one,))

    def _bundles(self, most_bytes: int) -> Iterator[_Shard]:
        held: list[NumberedPiece] = []
        size = 0
        for one in self._pieces():
            if held and size + one.piece.size > most_bytes:
                yield self._bundle(held, size)
                held, size = [], 0
            held.append(one)
            size += one.piece.size
        if held:
            yield self._bundle(held, size)

    def _bundle(self, pieces: Sequence[NumberedPiece], size: int) -> _Shard:
        ids = [(one.name, self._generation(one)) for one in pieces]
        # By what it reads and not by its number: the same shard is called the same beside others.
        name = hashlib.sha256(repr([one for one, _ in ids]).encode()).hexdigest()[:16]
        generation = hashlib.sha256(repr(ids).encode()).hexdigest()[:16]
        return _Shard(f"map-{name}", label_of(pieces), size, generation, tuple(pieces))
