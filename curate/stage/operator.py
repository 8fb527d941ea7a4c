"""What a stage does to the rows of a shard: the protocols."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from curate.errors import CorruptInput, GenerationMismatch, ObjectNotFound
from curate.pipeline.meters import Meter
from curate.pipeline.pipeline import ShardContext
from curate.pipeline.shard_books import ShardBooks
from curate.runtime.protocol import Pool, PoolSpec
from curate.storage.protocol import Object, Store


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input object as `process_file` sees it."""

    uri: str
    size: int
    """Stored bytes."""
    generation: str
    _store: Store = field(repr=False)

    def open(self) -> BinaryIO:
        """Returns a seekable, buffered stream over the stored bytes; nothing is read before it is asked for.

        Raises CorruptInput if the object is gone or was replaced after the plan was made.
        """
        try:
            return self._store.open(Object(self.uri, self.size, self.generation))
        except (ObjectNotFound, GenerationMismatch) as error:
            raise CorruptInput(str(error)) from error


class StageOperator(Protocol):
    """What happens to a shard between reading and writing."""

    reads_files: bool
    """Whether it is a `FileOperator`, which takes the file itself, or a `RowOperator`."""

    @property
    def metered(self) -> tuple[tuple[str, bool], ...]:
        """The name of each of its steps, which have a meter each, and whether it runs in a pool."""
        ...

    @property
    def pools(self) -> tuple[PoolSpec, ...]:
        """The pools of actors that it calls."""
        ...

    def connect(self, pools: Sequence[Pool]) -> None:
        """Takes those pools; without, what would run there runs in this process."""
        ...

    def setup(self) -> None:
        """Loads what is kept for the life of the worker process."""
        ...

    def hide(self, text: str) -> str:
        """Returns text without what must not be written down."""
        ...


class RowOperator(StageOperator, Protocol):
    """An operator over the rows of a shard."""

    def stream(
        self, batches: Iterator[Any], tally: ShardBooks, how: ShardContext, meters: Sequence[Meter] = ()
    ) -> Iterator[Any]:
        """Yields the tables that the batches of a shard become, in order; each of an extra output as a `SideTable`."""
        ...

    def apply(self, batch: Any, tally: ShardBooks) -> Iterator[Any]:
        """Yields the tables that an empty table becomes."""
        ...


class FileOperator(StageOperator, Protocol):
    """An operator over whole files."""

    def apply_file(self, file: InputFile, tally: ShardBooks) -> Iterable[Any]:
        """Yields the tables that a file becomes; it has no extra outputs."""
        ...
