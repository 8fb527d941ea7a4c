"""One operator of a pipeline in a worker: where it runs, in how many instances, and its extra outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import pyarrow as pa

from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.pipeline.shard_books import ShardBooks
from curate.runtime.protocol import Resources
from curate.units import keep_whole


@dataclass(frozen=True, slots=True)
class SideTable:
    """A table on its way to an extra output, among those on their way to the main one."""

    side: str
    """Name of the extra output."""
    table: pa.Table

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return int(self.table.num_rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return int(self.table.nbytes)

    @property
    def schema(self) -> pa.Schema:
        """Schema of the table."""
        return self.table.schema


READ_ROWS = 16_384
"""Rows of a batch as it is read, about."""


@dataclass(frozen=True, slots=True)
class BatchPosition:
    """Where a batch is in what a step gets of a shard."""

    shard: str
    """The shard's id: the same whenever and wherever its rows are read."""
    row: int
    """Number of the batch's first row."""
    rank: int = 0
    """Number of the shard among those that are read; the same as long as there are the same inputs."""
    tries: int = 0
    """How often the first call about the batch was made before, where what it needs was not there."""


@dataclass(frozen=True, slots=True)
class ActorPool:
    """Runs a step in actors: processes that live as long as the run, each with its own instance.

    `size` actors; or between `min_size` (default 1) and `max_size` (None: all that fit beside one task), by load.
    Raises ConfigError for sizes below 1, `min_size` above `max_size`, and `size` together with one of the others.

    >>> class Add:
    ...     def __init__(self, n):
    ...         self.n = n  # a model, for example, which takes long to load
    ...     def __call__(self, batch):
    ...         return batch.set_column(0, "id", [[x + self.n for x in batch["id"].to_pylist()]])
    >>> curate.range(2).map_batches(Add, fn_constructor_args=[5], compute=curate.ActorPool(size=1)).take_all()
    [{'id': 5}, {'id': 6}]
    """

    size: int | None = None
    """How many actors there are, always."""
    min_size: int | None = None
    """How many there are at least."""
    max_size: int | None = None
    """How many there are at most."""
    max_in_flight: int = 4
    """Batches that an actor is sent at a time, about: the one that it works on, and those that wait."""

    def __post_init__(self) -> None:
        given = [name for name in ("size", "min_size", "max_size") if getattr(self, name) is not None]
        keep_whole(self, "ActorPool: ", dict.fromkeys([*given, "max_in_flight"], 1))
        if self.size is not None and (self.min_size is not None or self.max_size is not None):
            raise ConfigError(f"ActorPool(size={self.size}) is a fixed size; pass size, or min_size and max_size")
        if self.max_size is not None and (self.min_size or 1) > self.max_size:
            raise ConfigError(f"ActorPool: min_size {self.min_size} is above max_size {self.max_size}")

    @property
    def smallest(self) -> int:
        """Returns the minimum number of actors."""
        return self.size or self.min_size or 1

    @property
    def largest(self) -> int | None:
        """Returns the maximum number of actors; None: as many as fit."""
        return self.size or self.max_size


@dataclass(frozen=True, slots=True)
class Compute:
    """Where a step runs, if not in the task that reads the shard."""

    pool: ActorPool
    resources: Resources
    """What one actor holds."""


class Step(Protocol):
    """One thing that happens to rows. A batch never holds rows of two shards.

    A step may have a method `without_rows(place, tally)`: it yields the tables of extra outputs for a shard that has no
    row when it reaches the step. Such a step runs in the task, before outputs part.
    """

    @property
    def name(self) -> str:
        """What it is called in plans and errors."""

    @property
    def batch_rows(self) -> int | None:
        """How many rows it is given at a time, at most; None: as they come."""

    @property
    def compute(self) -> Compute | None:
        """Where it runs; None: in the task that reads the shard."""

    @property
    def num_cpus(self) -> float | None:
        """CPUs that tasks hold for it that it runs in; None: as many as without it."""

    @property
    def one_schema(self) -> bool:
        """Whether all tables that it gives of a shard must fit one schema; else it is the writer that says so."""

    def opened(self) -> Step:
        """Returns the step with what it keeps for the life of the process that it runs in: a model that is loaded."""

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterable[Any]:
        """Yields the tables that a batch, never empty, becomes; books what it drops."""

    def hide(self, text: str) -> str:
        """Returns text without what must not be written down."""


class ShardRows(Protocol):
    """What a step makes of the rows of one shard, where it has to know when they end: `step.of_shard(tally)` returns
    one, in place of calls of `apply`. Such a step runs in the task, before outputs part."""

    def take(self, table: pa.Table) -> Iterator[pa.Table]:
        """Yields what is made of the next rows, once no earlier step can take them back."""

    def end(self) -> Iterator[pa.Table]:
        """Yields what is left."""


def task_cpus(steps: Iterable[Step], least: float | None = None) -> float:
    """Returns how many CPUs a task holds that reads and runs steps: the most that one of them asks for, else 1."""
    asked = [least, *(step.num_cpus for step in steps if step.compute is None)]
    return max((one for one in asked if one is not None), default=1.0)


def read_rows(steps: Iterable[Step]) -> int:
    """Returns how many rows to read at a time: about READ_ROWS, and whole batches of the first step that has a size."""
    for step in steps:
        if step.batch_rows is not None:
            return step.batch_rows * max(1, READ_ROWS // step.batch_rows)
    return READ_ROWS
