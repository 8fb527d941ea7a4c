"""The protocols of a stage's input and of a source of rows: its schema, its pieces, and the rows of a piece."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow.unknown import empty
from curate.dataclass import dataclass, field, replace
from curate.formats.encoding import Encoding
from curate.pipeline.shard_books import ShardBooks
from curate.sources.listing import SCHEMA, Inputs
from curate.sources.patterns import InputPattern
from curate.sources.split import SHARD_BYTES
from curate.sources.upstream import Hole
from curate.storage.protocol import Object, Store
from curate.storage.uris import MEMORY
from curate.tasks.shard import Shard

StoreOf = Callable[[str], Store]
"""Returns the store that a URI lives in."""

LISTED = pa.schema([SCHEMA.field(name) for name in ("uri", "size", "generation")])


def in_memory(listing: pa.Table) -> Sequence[str]:
    """Returns the URIs in a listing of files that are in the memory of this process."""
    uris = listing["uri"]
    found: list[str] = uris.filter(pc.starts_with(uris, MEMORY)).to_pylist()
    return found


class RowSource(ABC):
    """What a stage reads, as shards. What is said here is so of shards that are fixed, and not slices of files."""

    grows = False
    """Whether it is the files that a run names, after which outputs are named: the next run may name more, and replaced
    ones are read as they are then. Else what it consists of is decided once, before the stage is planned."""

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        """The schemas of its rows, by the names under which a job's ledger holds them; those that are not nullable, a
        null in which makes a bad row, are so here."""
        return {}

    @property
    def row_schemas(self) -> Sequence[pa.Schema]:
        """The schemas that its rows have."""
        return list(self.schemas.values())

    def blank(self) -> pa.Table | None:
        """Returns a table as of its rows, without any; None where nothing is known of their columns."""
        return next((empty(schema) for schema in self.schemas.values() if len(schema)), None)

    @abstractmethod
    def inputs(self, patterns: Sequence[InputPattern], store_of: StoreOf) -> Inputs:
        """Returns what its shards are made of, as a listing of files: the files that match, or what it has of itself.

        Raises ConfigError naming a pattern that matches nothing.
        """

    def sampled(
        self, inputs: Inputs, undone: Iterable[str], store_of: StoreOf, stored: Callable[[str], pa.Schema | None]
    ) -> RowSource:
        """Returns it with the schemas of what is to be read, the URIs `undone`: as they are `stored` by name, else as
        the first inputs tell. Raises ConfigError for a column that is missing."""
        del inputs, undone, store_of, stored
        return self

    def holding(self, schemas: Mapping[str, pa.Schema]) -> RowSource:
        """Returns it with these `schemas`."""
        del schemas
        return self

    def encoding(self, uri: str) -> Encoding | None:
        """Returns how an input is read, which says how it is split; None: it is one shard, however large, and gives the
        whole of its name to the output. Raises ConfigError for a file of which nobody knows how to read it."""
        del uri
        return None

    def holder(self, shard: str, rank: int) -> str:
        """Returns the shard that the one called so is read for, or the part of that number among all parts; empty if
        there is none."""
        del shard, rank
        return ""

    def manifest(self) -> Any:
        """Returns what is read, as JSON values; None if the identity of the stage says that."""
        return None

    def listing(self) -> pa.Table:
        """Returns the files that it consists of, as a table of uri, size and generation."""
        return LISTED.empty_table()

    def paths(self) -> Sequence[str]:
        """Returns what it reads by itself, as that was named: files, folders or globs."""
        return ()

    def refuse_keys(self, what: str, columns: Sequence[str]) -> None:
        """Raises ConfigError if one of these columns, which rows are put in order by, is not of one type in all files
        that it consists of; warns of those that cannot be read. Looks at some of them."""
        del what, columns

    def warn_of_misfits(self, listing: Any) -> None:
        """Warns of inputs that cannot be read, as far as some of a listing show, which has `uri`, `size` and
        `generation`: their shards will fail."""
        del listing

    def given(self, uri: str) -> Any:
        """Returns what a task is given of a shard beside itself: nothing of the others travels with it."""
        del uri

    def read_whole(self, shard: Shard, given: Any) -> Iterable[Object]:
        """Returns the objects all of which `parts` reads, whatever becomes of the rows, in its order."""
        del shard, given
        return ()

    def parts(
        self, shard: Shard, rank: int, given: Any, batch_rows: int, tally: ShardBooks, store_of: StoreOf
    ) -> Iterator[tuple[str, int, Iterator[Any]]]:
        """Yields what a shard, `rank` in the plan, is read from, one after the other: its id, its number among those of
        all shards, and its rows in tables of `batch_rows` rows at most, none empty, which are booked as read as they
        are taken."""
        raise NotImplementedError(f"{type(self).__name__} is planned, and not read")


@dataclass(frozen=True, slots=True)
class Piece:
    """What a source reads as a unit; no batch has rows of two."""

    id: str
    """That of its output where it is written."""
    label: str
    """What it is called in errors."""
    size: int
    """Bytes: stored ones of a file, in memory of what is there."""
    data: Any = field(repr=False)
    """What its source reads it by."""


class Source(Protocol):
    """Where rows come from. By default a task reads one piece, whose id says it all."""

    __slots__ = ()
    if TYPE_CHECKING:
        # Where these are fields of a dataclass, properties here would be their defaults.
        @property
        def name(self) -> str:
            """What it is called in plans."""

        @property
        def found(self) -> pa.Schema:
            """The schema of its rows."""

        @property
        def num_cpus(self) -> float | None:
            """CPUs that tasks hold that read it; None: as many as what follows asks for."""

    def pieces(self) -> Iterator[Piece]:
        """Yields its pieces, in the order of the rows."""

    def bundles(self) -> Iterator[tuple[Piece, ...]]:
        """Yields the pieces that one task reads, one after the other."""
        for one in self.pieces():
            yield (one,)

    def bare(self) -> Self:
        """Returns it without what only `pieces` needs: as tasks are given it."""

    def generation(self, data: Any) -> str:
        """Returns what changes whenever the rows of a piece do; empty where its id or the source says it all."""
        del data
        return ""

    def identity(self) -> Any:
        """Returns what decides the rows, as JSON values; of files, how they are read."""

    def read(
        self, data: Any, view: Projection, batch_rows: int, tally: ShardBooks, store_of: StoreOf
    ) -> Iterator[pa.Table]:
        """Yields the rows of a piece, given its `data`, in batches of at most `batch_rows` rows, none empty; books them
        as read as they are taken, and those that are bad. `store_of` gives the stores of files."""

    def count(self) -> int | None:
        """Returns how many rows there are; None if only reading them tells."""
        return None


@dataclass(frozen=True, slots=True)
class Projection:
    """What of a source is asked for."""

    columns: tuple[str, ...] | None = None
    """Only these; None: all. Pushed into Parquet only."""
    filters: tuple[tuple[Any, str], ...] = ()
    """Expressions, each with a reason: a row for which one is not true may be left out, and is booked as dropped for
    the first such reason. Nothing before them drops rows. Pushed into Parquet only."""
    named: bool = False
    """Whether columns were chosen by name, be they read or not: what files have beside them is left out on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileListing:
    """A source of files."""

    listing: pa.Table = field(repr=False)
    """The files, as `list_inputs` gives them."""
    shard_bytes: int = SHARD_BYTES
    """Stored bytes of a piece, at most, where a file can be split."""

    holes: tuple[Hole, ...] = ()
    """What was missing of the files when they were listed, which may be incomplete."""
    paths: tuple[str, ...] = ()
    """As they were named; none where a run names them."""
    pinned: bool = False
    """Whether it is cut into the same pieces whatever reads it: rows are told apart by piece and number."""
    segments: tuple[tuple[int, int], ...] = ()
    """The files that were there when the job began, and those that each run added, as numbers of the first one and of
    the one behind the last. One alone: what is read of the listing; all pieces are numbered, whatever is read."""

    @property
    def segment(self) -> tuple[int, int] | None:
        """The files that are read, where not all are."""
        return self.segments[0] if len(self.segments) == 1 else None

    def in_pieces(self, shard_bytes: int) -> Self:
        """Returns it with pieces of at most as many stored bytes."""
        return replace(self, shard_bytes=shard_bytes)
