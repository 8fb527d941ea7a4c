"""The schema of consumed rows that user functions make: the same as in a write.

The first rows decide it. Later rows are widened to it, or refused with the error of a write. If there are no rows, the
functions process an empty table, as in a write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import pyarrow as pa

from curate.arrow.schema import unify_schemas
from curate.arrow.unknown import empty
from curate.dataset.stats import RunStats
from curate.exchange.kinds.zip import zipped_schema
from curate.operators.protocol import Operator
from curate.pipeline.pipeline import Pipeline
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.plan.nodes import Apply, Checkpoint, Exchanged, Limit, Marked, Plan, Scan, Union, Zip, schema_of, transform
from curate.plan.physical import Joined, Local, Physical, ZipRows, drawn_together, is_one_stage
from curate.plan.rewrites import chain_of, steps_of, unified
from curate.stage.fusion import FusedScan

# Unions


def unions_settled(plan: Plan, ask: Callable[[Plan], pa.Schema]) -> Plan:
    """Returns a plan whose unions come to one schema before anything follows, as they do where they are written: parts
    that only functions know are asked for theirs. Of these a sample is drawn where they are put together, as there: it
    goes by the places of rows. Raises ConfigError for columns of types that do not go together."""

    def settled(node: Plan) -> Plan:
        if isinstance(node, Union) and schema_of(node) is None and not is_one_stage(node):
            return Union(unified(node.inputs, ask))
        return node

    own = (Checkpoint, Exchanged, Marked)
    return transform(transform(plan, drawn_together, until=own), settled, until=own)


def blank_of(plan: Plan, physical: Physical, run: RunStats | None, ask: Callable[[Plan], pa.Schema]) -> pa.Table:
    """Returns a table without rows, of the columns that rows of a plan would have, of which a run gave none: as tables
    without rows tell it that tasks gave, or else an empty table. Parts of a union or a zip, and
    what a limit is of, are asked for theirs."""
    if (known := schema_of(plan)) is not None:
        return empty(known)
    with suppress(Exception):  # what user code makes of an empty table says nothing about what it makes of others
        if run is None or not run.fusions or isinstance(physical, Local | Joined | ZipRows):
            return _blank(plan, ask)
        if run.vacant is not None:
            return empty(run.vacant)
        if len(run.fusions) > 1:
            return _blank(plan, ask)
        # What was written before is there by now, and knows its columns.
        fusion: FusedScan = run.fusions[0]
        found, columns = fusion.source.found, fusion.view.columns
        return _asked(found if columns is None else pa.schema([found.field(one) for one in columns]), fusion.operators)
    return pa.table({})


def _asked(schema: pa.Schema, steps: Sequence[Operator]) -> pa.Table:
    """Returns what steps make of a table without rows."""
    if not len(schema):
        return pa.table({})
    pipeline = Pipeline(tuple(steps))
    pipeline.setup()
    made = next(iter(pipeline.apply(empty(schema), ShardBooks(BadRowBudget()))), pa.table({}))
    return made.slice(0, 0).replace_schema_metadata(None)


def _blank(plan: Plan, ask: Callable[[Plan], pa.Schema]) -> pa.Table:
    known = schema_of(plan)
    if known is not None:
        return empty(known)
    match plan:
        case Apply() | Marked():
            return _asked(_blank(chain_of(plan)[0], ask).schema, steps_of(plan))
        case Limit(input, _):
            return empty(ask(input))
        case Checkpoint(input, _):
            return _blank(input, ask)
        case Union(inputs):
            return empty(unify_schemas("union", list(map(ask, inputs))))
        case Zip(inputs):
            zipped = zipped_schema(list(map(ask, inputs)))
            return pa.table({}) if zipped is None else empty(zipped)
        case Exchanged(inputs, how):
            made = how.schema([_blank(one, ask).schema for one in inputs])
            return pa.table({}) if made is None else empty(made)
        case Scan():
            return pa.table({})
