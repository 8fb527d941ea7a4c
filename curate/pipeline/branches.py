"""Steps with several outputs: shared steps run once for each shard, then the steps of each output.

              ┌─▶ steps of the main output ─▶ <output>/<shard>
    shared ───┼─▶ steps of `rejected` ──────▶ <output>/_side/rejected/<shard>
              └─▶ ...

Each table of the shared steps goes through the steps of every output before the next one is made, so nothing is kept in
memory. Row counts describe the main output. So rows that an extra output's steps drop are not counted, counters count
in all steps, and only shared steps and those of the main output can quarantine rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from curate.dataclass import dataclass, replace
from curate.errors import ConfigError
from curate.objects.bad_line import RejectedRow
from curate.pipeline.meters import Meter
from curate.pipeline.pipeline import Pipeline, ShardContext
from curate.pipeline.retry_later import Busy
from curate.pipeline.shard_books import DetachedBooks, RowsBooked, ShardBooks
from curate.pipeline.step import SideTable
from curate.runtime.protocol import Pool, PoolSpec


@dataclass
class Branching:
    """Shared steps, those of the main output, and those of each extra one: the operator of a stage over rows.

    Only shared steps run in pools.
    """

    shared: Pipeline
    main: Pipeline
    sides: Mapping[str, Pipeline]
    """By name of the extra output."""

    @property
    def _pipelines(self) -> tuple[Pipeline, ...]:
        return (self.shared, self.main, *self.sides.values())

    @property
    def metered(self) -> tuple[tuple[str, bool], ...]:
        """The name of each step, and whether it runs in a pool."""
        return tuple(one for pipeline in self._pipelines for one in pipeline.metered)

    @property
    def pools(self) -> tuple[PoolSpec, ...]:
        """The pools that the shared steps run in."""
        return self.shared.pools

    def connect(self, pools: Sequence[Pool]) -> None:
        """Takes the pools."""
        self.shared.connect(pools)

    def setup(self) -> None:
        """Loads what the steps keep that run in this process."""
        for pipeline in self._pipelines:
            pipeline.setup()

    def stream(
        self, batches: Iterator[pa.Table], tally: ShardBooks, how: ShardContext, meters: Sequence[Meter] = ()
    ) -> Iterator[Any]:
        """Yields what the batches of one shard become: tables of the main output, and each `SideTable` among them."""
        left = list(meters) or [Meter() for _ in self.metered]
        shared, main, *others = [[left.pop(0) for _ in pipeline.steps] for pipeline in self._pipelines]
        begun = self.main.begin()
        sides = [
            (name, pipeline, _Aside(name), own, pipeline.begin())
            for (name, pipeline), own in zip(self.sides.items(), others, strict=True)
        ]
        # Behind a shared step that adds or drops rows, a row's number is no longer that of its line.
        behind = replace(how, as_read=how.as_read and self.shared.keeps_rows)
        # A row that makes a step of an extra output raise is in the main output all the same: it cannot be set aside.
        apart = replace(behind, errors=False)
        for table in self.shared.stream(batches, tally, how, shared):
            if isinstance(table, SideTable | Busy):
                yield table  # a shared step has an extra output of its own, or a call that is to be made again
                continue
            yield from self.main.stream(iter([table]), tally, behind, main, begun)
            for name, pipeline, aside, own, seen in sides:
                for made in pipeline.stream(iter([table]), aside, apart, own, seen):
                    yield made if isinstance(made, Busy) else SideTable(name, made)
        for _, _, aside, _, _ in sides:
            tally.merge(RowsBooked(counters=aside.books.counters, metrics=aside.books.metrics))

    def apply(self, batch: pa.Table, tally: ShardBooks) -> Iterator[Any]:
        """Yields what an empty table becomes."""
        for table in self.shared.apply(batch, tally):
            if isinstance(table, SideTable):
                yield table
                continue
            yield from self.main.apply(table, tally)
            for name, pipeline in self.sides.items():
                for made in pipeline.apply(table, _Aside(name)):
                    yield SideTable(name, made)

    def hide(self, text: str) -> str:
        """Returns text without what must not be written down."""
        for pipeline in self._pipelines:
            text = pipeline.hide(text)
        return text


class _Aside(DetachedBooks):
    """Takes down what is booked on the way to an extra output: counters."""

    def __init__(self, side: str) -> None:
        super().__init__()
        self._side = side

    def _set_aside(self, row: RejectedRow) -> NoReturn:
        """Raises ConfigError: the row is in the main output."""
        raise ConfigError(
            f"a step of the extra output {self._side!r} reported a bad row ({row.reason}), but the main output "
            "contains that row; report it in a step that both outputs share, or filter the row instead"
        )
