"""The work of a stage on the rows of a shard: the protocol, and the one generator of its results.

The callers write a shard, stream or count a piece, or derive a schema. Each gives the batches, the way to process them
and how long to wait (`wait_between`), and decides where the tables go. Replay runs the program that writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from curate.pipeline.meters import Meter, Meters, reading
from curate.pipeline.pipeline import ShardContext
from curate.pipeline.shard_books import ShardBooks
from curate.runtime.protocol import Pool, PoolSpec


class StageOperator(Protocol):
    """What happens to a shard between reading and writing."""

    @property
    def metered(self) -> tuple[tuple[str, bool], ...]:
        """The name of each of its steps, which have a meter each, and whether it runs in a pool."""

    @property
    def pools(self) -> tuple[PoolSpec, ...]:
        """The pools of actors that it calls."""

    def connect(self, pools: Sequence[Pool]) -> None:
        """Takes those pools; without, what would run there runs in this process."""

    def setup(self) -> None:
        """Loads what is kept for the life of the worker process."""

    def hide(self, text: str) -> str:
        """Returns text without what must not be written down."""

    def stream(
        self, batches: Iterator[Any], tally: ShardBooks, how: ShardContext, meters: Sequence[Meter] = ()
    ) -> Iterator[Any]:
        """Yields the tables that the batches of a shard become, in order; each of an extra output as a `SideTable`. The
        batches are what the stage reads: tables, or files."""

    def apply(self, batch: Any, tally: ShardBooks) -> Iterator[Any]:
        """Yields the tables that an empty table becomes."""


def stage_tables(
    operator: StageOperator, parts: Iterable[tuple[ShardContext, Iterator[Any]]], tally: ShardBooks, meters: Meters
) -> Iterator[Any]:
    """Yields what the batches of the parts of a shard become, one part after the other; the operator is set up."""
    for how, batches in parts:
        yield from operator.stream(reading(batches, meters.read), tally, how, meters.steps)
        tally.numbers = None


def meters_of(operator: StageOperator) -> Meters:
    """Returns new meters for a shard."""
    return Meters([pooled for _, pooled in operator.metered])
