"""A worker's part of a stream: it reads pieces, applies operators and returns blocks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from curate.arrow.batches import first_rows, paced, sized
from curate.clock import SystemClock
from curate.errors import SetupFailed, add_note
from curate.log import get_logger
from curate.objects.ahead import InputsAhead
from curate.pipeline.meters import MeterReport, Meters
from curate.pipeline.pipeline import Pipeline, ShardContext
from curate.pipeline.retry_later import wait_between
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import SideTable, read_rows
from curate.requests.reached import REACHED
from curate.runtime.protocol import Pool, PoolSpec
from curate.sources.protocol import StoreOf
from curate.sources.shards import NumberedPiece, numbered, objects_of
from curate.stage.fusion import FusedScan
from curate.stage.operator import meters_of, stage_tables
from curate.stores.open import open_store
from curate.streaming.settling import EmptyTables, declared_schema, with_piece
from curate.tasks.failure import ShardWaits
from curate.tasks.setup import ENDED

WORD_S = 0.1
"""How often a worker says what it has measured of a piece that has not ended."""


RELEASED_BYTES = 8 << 20
"""Bytes of a block after which memory is given back: for less it is not worth its time."""


class StreamProgram:
    """The program of a stream: reads a piece, and runs the operators that are fused to it."""

    def __init__(self, fusions: tuple[FusedScan, ...], block_bytes: int, max_bad_rows: str | None = None) -> None:
        # Of its own each time: workers of a cluster that lives on keep a program by its key.
        self.key = f"dataset-{uuid.uuid4().hex}"
        # Tasks need no listing, nor tables that their pieces bring along.
        self._fusions = tuple(replace(one, source=one.source.bare()) for one in fusions)
        self._pipelines = [Pipeline(one.operators) for one in fusions]
        self._names = [one.source.name for one in fusions]
        self._told = [declared_schema(one) is not None for one in fusions]
        """Whether the plan knows what is given: else the first rows tell, and blocks say what they were read from."""
        self._block_bytes = block_bytes
        self._max_bad_rows = max_bad_rows
        self.budget_bytes: int | None = None
        """Bytes of batches that a task may have sent to a pool and not heard of."""
        self._told_s = float("-inf")
        """When this process last said what it has measured."""
        self._ready: set[int] = set()
        self._reached = REACHED
        """Stores that the driver has reached: workers wait out their outages."""

    @property
    def pools(self) -> tuple[PoolSpec, ...]:
        """The pools of all its operators."""
        return tuple(pool for one in self._pipelines for pool in one.pools)

    def connect(self, pools: Sequence[Pool]) -> None:
        """Takes those pools."""
        left = iter(pools)
        for one in self._pipelines:
            one.connect([next(left) for _ in one.pools])

    def chains(self) -> list[tuple[str, Pipeline]]:
        """Returns the name of each source, and what follows it."""
        return list(zip(self._names, self._pipelines, strict=True))

    def run(self, payload: tuple[NumberedPiece, ...]) -> Iterator[pa.Table | MeterReport]:
        """Yields the blocks of a bundle of pieces of one source, and word of what was measured: now and then, and at
        the end."""
        number = payload[0].source
        if number not in self._ready:
            try:
                self._pipelines[number].setup()
            except SystemExit as error:
                raise SetupFailed(f"{ENDED}: SystemExit: {error}") from error
            self._ready.add(number)
        fusion, pipeline = self._fusions[number], self._pipelines[number]
        meters = meters_of(pipeline)
        tables = self._tables(fusion, pipeline, payload, meters, self._told[number])
        vacant = EmptyTables()
        blocks = sized(first_rows(vacant.seen(tables), fusion.give_most), self._block_bytes)
        for block in blocks if self._told[number] else vacant.after(blocks):
            # Before the block: who wants no more than that hears no more.
            if time.monotonic() - self._told_s >= WORD_S:
                self._told_s = time.monotonic()
                yield MeterReport(number, meters.packed(write=False))
            yield block
            large = block.nbytes >= RELEASED_BYTES
            del block
            if large:
                # What Arrow keeps for the next one would be memory that no budget knows of.
                pa.default_memory_pool().release_unused()
        yield MeterReport(number, meters.packed(write=False))

    def _tables(
        self, fusion: FusedScan, pipeline: Pipeline, bundle: Sequence[NumberedPiece], meters: Meters, told: bool
    ) -> Iterator[pa.Table]:
        given = 0
        # Where some rows are enough, nobody knows how many files it takes.
        with InputsAhead(objects_of(bundle) if fusion.read_step is None else (), open_store) as inputs:
            for one in bundle:
                step = None if fusion.read_step is None else max(1, fusion.read_step - given)
                for table in self._of_piece(fusion, pipeline, one, step, meters, inputs.store_of):
                    # Extra outputs are for who writes.
                    if not isinstance(table, SideTable | ShardWaits):
                        given += table.num_rows
                        yield table if told else with_piece(table, one.piece.label)

    def _of_piece(
        self,
        fusion: FusedScan,
        pipeline: Pipeline,
        one: NumberedPiece,
        step: int | None,
        meters: Meters,
        store_of: StoreOf,
    ) -> Iterator[Any]:
        tally, label = ShardBooks(BadRowBudget(self._max_bad_rows)), one.piece.label
        how = ShardContext(one.name, one.rank, budget_bytes=self.budget_bytes, ahead=step is None)
        batches = fusion.source.read(one.piece.data, fusion.view, read_rows(fusion.operators), tally, store_of)
        try:
            made = stage_tables(pipeline, [(how, paced(batches, step))], tally, meters)
            yield from wait_between(made, tally, SystemClock())
            tally.close()
        except Exception as error:
            add_note(error, f"while {label} was read")
            raise
        if tally.quarantine is not None:
            get_logger().warning(
                "bad rows are left out",
                input=label,
                rows=tally.books.quarantined,
                reasons=tally.reasons(),
                next="a job, or write_parquet, keeps them in its quarantine",
            )


def ranked_pieces(fusions: Sequence[FusedScan]) -> Iterator[tuple[NumberedPiece, ...]]:
    """Yields the pieces of what is read, in bundles that one task reads."""
    return numbered([one.source for one in fusions], [one.part for one in fusions])
