"""What a source of rows is asked: its schema, its pieces, and the rows of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import pyarrow as pa

from curate.pipeline.shard_books import ShardBooks
from curate.sources.split import SHARD_BYTES
from curate.sources.upstream import Hole


class RowSource(Protocol):
    """Rows of shards that are not slices of files: made, or several files together."""

    @property
    def schema(self) -> Any:
        """The schema of its rows."""
        ...

    def inputs(self) -> Any:
        """Returns its shards as a listing of files would: a table of uri, name, size and generation."""
        ...

    def holder(self, rank: int) -> str:
        """Returns the shard that a part is read for, by its number among all parts; empty if there is none."""
        ...

    def manifest(self) -> Any:
        """Returns what is read, as JSON values; None if the identity of the stage says that."""
        ...

    def listing(self) -> Any:
        """Returns the files that are read, as a table of uri, size and generation."""
        ...

    def refuse_keys(self, what: str, columns: Sequence[str]) -> None:
        """Raises ConfigError if one of these columns, which rows are put in order by, is not of one type in all files;
        looks at some of them."""
        ...

    def given(self, uri: str) -> Any:
        """Returns what a task is given of one of them: nothing of the others travels with it."""
        ...

    def parts(self, given: Any, batch_rows: int, tally: ShardBooks) -> Iterator[tuple[str, int, Iterator[Any]]]:
        """Yields what one of them is read from, one after the other: its id, its number among those of all shards, and
        its rows in tables of `batch_rows` rows at most, none empty, which are booked as read as they are taken."""
        ...


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

    def read(self, piece: Any, view: Projection, batch_rows: int, tally: ShardBooks) -> Iterator[pa.Table]:
        """Yields the piece's rows in batches of at most `batch_rows` rows, none empty; books them as read as they are
        taken, and those that are bad."""
        ...

    def count(self) -> int | None:
        """Returns how many rows there are; None if only reading them tells."""
        ...


@dataclass(frozen=True, slots=True)
class Projection:
    """What of a source is asked for."""

    columns: tuple[str, ...] | None = None
    """Only these; None: all. Pushed into Parquet only."""
    predicate: Any = None
    """Rows for which this is not true may be left out. Pushed into Parquet only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileListing:
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
