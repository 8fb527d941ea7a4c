"""A limit before a write: which shards give how many rows is decided once, in the order of the input, and stored.

All shards before the last one give all their rows, so what has to be known is the last one, and how many of its rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curate.dataset.exchange.how import LIMIT
from curate.dataset.lazy.execution import Reading, ranked
from curate.dataset.lazy.operators import Operator, Plain
from curate.dataset.lazy.rules import Fusion, at_most
from curate.dataset.pipeline import Pipeline, Place, task_cpus
from curate.dataset.spec import MEMORY_BUDGET
from curate.dataset.streaming import stream_blocks
from curate.dataset.tally import Tally
from curate.runtime import make_backend
from curate.runtime.protocol import Pool, PoolSpec, Resources

COUNTED_BYTES = 64 << 10
"""Bytes of the first blocks that are counted: little is made that is not asked for."""


@dataclass(frozen=True, slots=True)
class Quota(Plain):
    """Keeps all rows of shards but one, and of that the first `rows`."""

    shard: str
    rows: int
    rank: int | None = None
    """The number of that shard among all, those after which give nothing; None: it is told by its name, and no other is
    read after it."""
    keeps_rows = False

    @property
    def name(self) -> str:
        return "limit"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        return found

    def identity(self) -> Any:
        return ["limit"]

    def apply(self, batch: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        if place.rank < self.rank if self.rank is not None else place.shard != self.shard:
            yield batch
            return
        beyond = self.rank is not None and place.rank > self.rank
        kept = batch.slice(0, 0 if beyond else max(0, self.rows - place.row))
        tally.drop(batch.num_rows - kept.num_rows, LIMIT)
        yield kept


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first rows of what some sources give: how far into their shards they reach, and what follows."""

    rows: int
    fusions: tuple[Fusion, ...]
    after: tuple[Operator, ...]
    by_rank: bool = False
    """Whether shards are told apart by their numbers, and not by their names, as files are that may come to have others
    before them."""

    def operator(self, decided: Mapping[str, Any]) -> Pipeline:
        """Returns what happens to the rows of a shard, once it is `decided` how far they reach."""
        rank = decided["rank"] if self.by_rank else None
        return Pipeline((*self.fusions[0].operators, Quota(decided["shard"], decided["rows"], rank), *self.after))


def decide(limit: FirstRows, backend: str) -> Mapping[str, Any]:
    """Returns the last shard that gives rows, and how many: counts them, no further than needed, and writes nothing.

    It is the last shard of all if there are fewer rows.
    """
    left, last = limit.rows, {"shard": "", "rows": 0, "rank": -1}
    for rank, (shard, rows) in enumerate(_counted(limit, backend)):
        last = {"shard": shard, "rows": min(rows, left), "rank": rank}
        left -= min(rows, left)
        if not left:
            break
    return last


def _counted(limit: FirstRows, name: str) -> Iterator[tuple[str, int]]:
    """Yields shards in order with how many rows they give, of which no more are counted than the limit."""
    limited = tuple(at_most(one, limit.rows) for one in limit.fusions)
    program = _Counting(Reading(limited, COUNTED_BYTES), limit.fusions, limit.rows)
    backend = make_backend(name)
    try:
        backend.start(Resources(task_cpus(limit.fusions[0].operators)), program.pools)
        for table in stream_blocks(program, _pieces(limit.fusions), backend, budget_bytes=MEMORY_BUDGET):
            yield table["shard"][0].as_py(), table["rows"][0].as_py()
    finally:
        backend.close()


def _pieces(fusions: Sequence[Fusion]) -> Iterator[tuple[int, int, tuple[Any, ...], tuple[str, ...]]]:
    """Yields pieces as `Reading` takes them, each by itself."""
    for number, rank, bundle, names in ranked(fusions):
        for at, (piece, name) in enumerate(zip(bundle, names, strict=True)):
            yield number, rank + at, (piece,), (name,)


class _Counting:
    """Counts the rows that a shard gives, up to some number."""

    def __init__(self, reading: Reading, fusions: Sequence[Fusion], most: int) -> None:
        self.key = f"count-{uuid.uuid4().hex}"
        self._reading = reading
        self._sources = [one.source.bare() for one in fusions]
        self._most = most

    @property
    def pools(self) -> tuple[PoolSpec, ...]:
        return self._reading.pools

    def connect(self, pools: Sequence[Pool]) -> None:
        self._reading.connect(pools)

    def run(self, payload: tuple[int, int, tuple[Any, ...], tuple[str, ...]]) -> Iterator[pa.Table]:
        number, _, (piece,), _ = payload
        rows = 0
        for block in self._reading.run(payload):
            if isinstance(block, pa.Table):
                rows += block.num_rows
                if rows >= self._most:
                    break
        yield pa.table({"shard": [self._sources[number].shard(piece)], "rows": [rows]})
