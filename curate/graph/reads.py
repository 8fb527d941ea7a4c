"""The inputs of a stage from the stages before it, once those are complete: ranges of run files, and marks.

Requests for very small ranges of very many run files cost more than the data. Then one more stage merges the run files
of that side first. Only the sizes of the run files show that, so it is not planned earlier.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from math import isqrt
from typing import cast

from curate.exchange.protocol import Exchange
from curate.exchange.run_file import CHUNK_BYTES, RunSettings
from curate.exchange.side_input import FileMarks
from curate.objects.record import OutputFormat
from curate.operators.side_input import Marking
from curate.pipeline.branches import Branching
from curate.pipeline.pipeline import Pipeline
from curate.reduce.merge import merge_source
from curate.reduce.ranges import COPIES, LEAST_BYTES, MOST_BYTES, part_bytes, ranges_of, read
from curate.sources.protocol import Projection
from curate.sources.shards import SourceRows
from curate.stage.operator import StageOperator
from curate.stage.stage import Stage, TaskSettings, Upstream
from curate.storage.protocol import Object
from curate.units import KIB

RANGE_BYTES = 512 * KIB
"""Bytes of a range, on average, below which run files are merged first: a request costs as much as these take."""
FEWEST_SEGMENTS = 256
"""Segments that an output reads of, up to which small ranges are no matter."""

MOST_MEMORY = COPIES * MOST_BYTES
"""Bytes that a task may need for the rows of one key, where no memory_budget says more, or less."""

Outputs = Sequence[tuple[Upstream, Sequence[Object]]]
"""Stages, each with the files that it wrote."""


def merges(stage: Stage, outputs: Outputs) -> list[Upstream]:
    """Returns the stages that merge run files before `stage` reads them, one for each side of which that is needed."""
    if stage.exchange is None or not stage.rows.grows:
        return []
    how = stage.exchange.how
    found = [merge_stage(stage, how, side, _of_side(outputs, side)) for side in range(len(how.orders))]
    return [Upstream(one, side=side) for side, one in enumerate(found) if one is not None]


def merge_stage(stage: Stage, how: Exchange, side: int, files: Sequence[Object]) -> Stage | None:
    """Returns the stage that merges the run files of one side of an exchange; None where that is not needed.

    Bytes alone decide, and how many segments there are. `stage` is the stage that reads the exchange.
    """
    order = how.orders[side]
    found = read(how, side, tuple(files))
    if any(not one.equals(found.schemas[0]) for one in {id(one): one for one in found.schemas}.values()):
        return None  # parts of a union, which are brought to one schema as they are read
    segments, bytes = len(found.places), found.total_bytes
    outputs = how.count or max(1, -(-bytes // part_bytes(how, bytes)))
    if not order.keys or segments <= FEWEST_SEGMENTS or bytes / (segments * outputs) >= RANGE_BYTES:
        return None
    source = merge_source(order, tuple(files), found, isqrt(outputs - 1) + 1)
    # By what they are called and not by their generation: those that are made again are the same.
    told = hashlib.sha256(repr([(item.uri.rpartition("/")[2], item.size) for item in files]).encode()).hexdigest()[:16]
    identity = {"job": "merge", "version": None, "order": order.identity(), "of": told}
    record = stage.record.of_stage(identity, OutputFormat.RUN, "none")
    record = replace(record, name=f"{how.name}: merge", output_schema=found.schemas[0])
    most = max(piece.size for piece in source.made)
    # In chunks as large as those of large map shards: an output reads of each.
    runs = RunSettings(order, None, how.reason, how.keys_begin_pages, max(CHUNK_BYTES, most // 4))
    return Stage(
        record, _needing(stage, most), Pipeline(()), SourceRows([source], [Projection()]), runs, holes=stage.holes
    )


def _needing(stage: Stage, most_bytes: int) -> TaskSettings:
    """Returns how tasks run that read so many bytes of rows at most."""
    return stage.tasks.needing(COPIES * most_bytes if most_bytes > LEAST_BYTES else 0)


def opened(stage: Stage, outputs: Outputs) -> Stage:
    """Returns a stage that reads what the stages before it wrote; there are none before it any more."""
    if stage.exchange is not None and stage.rows.grows:
        how = stage.exchange.how
        files = [_of_side(outputs, side) for side in range(len(how.orders))]
        source = ranges_of(how, stage.exchange.schema, files, stage.tasks.memory_budget or MOST_MEMORY)
        most = max((piece.size for piece in source.made), default=0)
        stage = replace(stage, rows=SourceRows([source], [Projection()]), tasks=_needing(stage, most))
    return replace(stage, operator=_with_marks(stage.operator, outputs), before=(), exchange=None)


def _of_side(outputs: Outputs, side: int) -> list[Object]:
    return [item for before, files in outputs if before.marks is None and before.side == side for item in files]


def _with_marks(operator: StageOperator, outputs: Outputs) -> StageOperator:
    """Returns an operator of which the steps that go by marks have them."""
    of: dict[int, list[Object]] = {}
    for before, files in outputs:
        if before.marks is not None:
            of.setdefault(before.marks, []).extend(files)
    if not of:
        return operator
    if isinstance(operator, Branching):
        return replace(operator, shared=cast(Pipeline, _with_marks(operator.shared, outputs)))
    steps = list(cast(Pipeline, operator).steps)
    going_by_marks = [(number, step) for number, step in enumerate(steps) if isinstance(step, Marking)]
    for which, files in of.items():
        at, step = going_by_marks[which]
        steps[at] = step.marked(FileMarks(tuple(files), step.order))
    return Pipeline(tuple(steps))
