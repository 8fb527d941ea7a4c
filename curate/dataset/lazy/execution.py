"""A rewritten plan as a stream of blocks, in the order of the input."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curate.dataset.lazy.fused import Fused, Seen, read_rows
from curate.dataset.lazy.rules import First, Fusion, Joined, Local, Physical, Tasks
from curate.dataset.streaming import stream_blocks
from curate.dataset.tally import BadRowBudget, Tally
from curate.log import get_logger
from curate.runtime import make_backend
from curate.runtime.protocol import Resources

BLOCK_BYTES = 4 << 20
"""Bytes at which what a piece gives becomes a block."""


@dataclass(frozen=True, slots=True)
class How:
    """Where tasks run, and within which memory."""

    backend: str | None = None
    """None: rows that are consumed are made in this process, those that are written on Ray."""
    budget_bytes: int = 512 << 20


@dataclass
class Reading:
    """The program of a stream: reads a piece, and runs the operators that are fused to it."""

    key: str
    fusions: tuple[Fusion, ...]

    def run(self, payload: tuple[int, Any]) -> Iterator[pa.Table]:
        """Yields the blocks of a piece."""
        number, piece = payload
        fusion = self.fusions[number]
        gathered: list[pa.Table] = []
        size = 0
        for table in _first(self._tables(fusion, piece), fusion.give_most):
            gathered.append(table)
            size += table.nbytes
            if size >= BLOCK_BYTES:
                yield joined(gathered)
                gathered, size = [], 0
        if gathered:
            yield joined(gathered)

    def _tables(self, fusion: Fusion, piece: Any) -> Iterator[pa.Table]:
        source, fused = fusion.source, Fused(fusion.operators)
        tally = Tally(BadRowBudget())
        seen = [Seen() for _ in fusion.operators]
        batches = source.read(piece, fusion.view, read_rows(fusion.operators), tally.bad_row)
        try:
            for batch in _first(batches, fusion.read_most):
                tally.books.rows_in += batch.num_rows
                yield from fused.run(batch, tally, seen)
            tally.close()
        except Exception as error:
            error.add_note(f"while {source.label(piece)} was read")
            raise
        if tally.quarantine is not None:
            get_logger().warning(
                "rows that could not be read are left out",
                input=source.label(piece),
                rows=tally.books.quarantined,
                reasons=tally.reasons(),
                next="a job, or write_parquet, keeps them in its quarantine",
            )


def blocks(physical: Physical, how: How) -> Iterator[pa.Table]:
    """Yields the blocks of a plan, none empty. Nothing runs before the first is asked for; closing it ends all."""
    match physical:
        case Tasks(fusions):
            backend = make_backend(how.backend or "inline")
            try:
                backend.start(Resources())
                pieces = ((number, piece) for number, one in enumerate(fusions) for piece in one.source.pieces())
                # Of its own each time: workers of a cluster that lives on keep a program by its key.
                program = Reading(f"dataset-{uuid.uuid4().hex}", fusions)
                yield from stream_blocks(program, pieces, backend, budget_bytes=how.budget_bytes)
            finally:
                backend.close()
        case First(input, rows):
            yield from _first(blocks(input, how), rows)
        case Local(input, operators):
            fused, seen, tally = Fused(operators), [Seen() for _ in operators], Tally(BadRowBudget())
            for block in blocks(input, how):
                for table in fused.run(block, tally, seen):
                    if table.num_rows:
                        yield table
        case Joined(inputs):
            for one in inputs:
                yield from blocks(one, how)


def _first(tables: Iterator[pa.Table], rows: int | None) -> Iterator[pa.Table]:
    """Yields the first rows, and asks for no table beyond; all of them if `rows` is None. No table is empty."""
    left = rows
    if left == 0:
        return
    for table in tables:
        if not table.num_rows:
            continue
        if left is not None and table.num_rows >= left:
            yield table.slice(0, left)
            return
        if left is not None:
            left -= table.num_rows
        yield table


def joined(tables: list[pa.Table]) -> pa.Table:
    """Returns tables as one, types of nulls filled in and numbers widened."""
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
