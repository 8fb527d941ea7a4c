"""The schema of rows that only user functions know, as they are consumed: what a write would hold them to.

That of the first rows holds for all. Later ones are widened to it, or refused with the error that a write ends with.
Where no row is there to tell, an empty table is asked, as a write asks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any

import pyarrow as pa

from curate.dataset.formats.hold import hold
from curate.dataset.lazy.durable import alike
from curate.dataset.lazy.operators import Operator
from curate.dataset.lazy.plan import Apply, Checkpoint, Exchanged, Limit, Marked, Plan, Scan, Union, Zip, schema_of
from curate.dataset.lazy.rules import Fusion, Joined, Local, Physical, ZipRows
from curate.dataset.lazy.stats import Run
from curate.dataset.lazy.unifying import Unify, unify
from curate.dataset.lazy.zipping import zipped_schema
from curate.dataset.nulls import empty, filled, is_known
from curate.dataset.pipeline import Pipeline
from curate.dataset.probing import TYPE_PROBES
from curate.dataset.tally import BadRowBudget, Tally
from curate.errors import ConfigError, SchemaMismatch

PIECE = b"curate.piece"
"""Under which a block says what its first rows were read from."""
HELD_BYTES = 64 << 20
"""Bytes of blocks that are held back, at most, until the type is known of a column that was null in all rows so far."""


def told_by(fusion: Fusion) -> pa.Schema | None:
    """Returns the schema of what a source and its operators give; None if only running user code tells."""
    found, columns = fusion.source.found, fusion.view.columns
    schema = found if found is None or columns is None else pa.schema([found.field(name) for name in columns])
    if schema is not None and not len(schema):
        # No rows came out of an exchange, nor their columns.
        return None
    for operator in fusion.operators:
        schema = operator.schema(schema)
    return schema


def named(table: pa.Table, piece: str) -> pa.Table:
    """Returns a table that says what it was read from."""
    return table.replace_schema_metadata({PIECE: piece.encode(errors="replace")})


def settled(blocks: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yields blocks of one schema: that of the first one, columns of nothing but nulls typed as in those that follow it
    soon. Raises SchemaMismatch, which notes what was read, for one that it does not hold."""
    schema: pa.Schema | None = None
    pending: list[pa.Table] = []
    pieces: set[bytes] = set()
    size = 0
    for block in blocks:
        if schema is not None:
            yield _held(block, schema)
            continue
        pending.append(block)
        pieces.add((block.schema.metadata or {}).get(PIECE, b""))
        size += block.nbytes
        found = _typed(pending)
        if len(pieces) > TYPE_PROBES or size >= HELD_BYTES or all(is_known(field.type) for field in found):
            schema = found
            yield from (_held(one, schema) for one in pending)
            pending.clear()
    if pending:
        schema = _typed(pending)
        yield from (_held(one, schema) for one in pending)


def typed_as(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Returns a schema, types that it does not tell taken from another one."""
    types = {field.name: field.type for field in other}
    return pa.schema([one.with_type(filled(one.type, types.get(one.name, one.type))) for one in schema])


def _typed(blocks: Sequence[pa.Table]) -> pa.Schema:
    """Returns the schema of the first block, types that it does not tell taken from the others."""
    return reduce(typed_as, (block.schema for block in blocks[1:]), blocks[0].schema.remove_metadata())


def _held(block: pa.Table, schema: pa.Schema) -> pa.Table:
    piece = (block.schema.metadata or {}).get(PIECE, b"").decode(errors="replace")
    try:
        return hold(block.replace_schema_metadata(None), schema)
    except SchemaMismatch as error:
        if piece:
            error.add_note(f"while {piece} was read")
        raise


def unnamed(blocks: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yields blocks that do not say any more what they were read from."""
    for block in blocks:
        metadata = block.schema.metadata
        yield block.replace_schema_metadata(None) if metadata and PIECE in metadata else block


# Unions


def unions_settled(plan: Plan, ask: Callable[[Plan], pa.Schema]) -> Plan:
    """Returns a plan whose unions come to one schema before anything follows, as they do where they are written: parts
    that only functions know are asked for theirs. Raises ConfigError for columns of types that do not go together."""
    match plan:
        case Apply(input, operator):
            return Apply(unions_settled(input, ask), operator)
        case Limit(input, rows):
            return Limit(unions_settled(input, ask), rows)
        case Zip(inputs):
            return Zip(tuple(unions_settled(one, ask) for one in inputs))
        case Union(inputs) if schema_of(plan) is None and not _is_one_stage(plan):
            parts = [unions_settled(one, ask) for one in inputs]
            known = [schema_of(one) for one in parts]
            schemas = [ask(one) if schema is None else schema for one, schema in zip(parts, known, strict=True)]
            # One without rows may not know its columns.
            if not any(map(len, schemas)):
                return Union(tuple(parts))
            to = unify("union", [schema for schema in schemas if len(schema)])
            pairs = zip(parts, known, strict=True)
            return Union(
                tuple(one if told is not None and told.equals(to) else Apply(one, Unify(to)) for one, told in pairs)
            )
    return plan


def _is_one_stage(plan: Plan) -> bool:
    """Returns whether one stage writes all parts, which then have one schema, or nothing can write them."""
    try:
        return alike(plan)
    except ConfigError:
        return True


# Where there is no row


class Vacant:
    """Tables without rows among those that pieces give: they tell a schema where there is no row at all."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._rows = False

    def seen(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Yields tables, and looks at them."""
        for table in tables:
            if table.num_rows:
                self._rows = True
            elif not self._rows:
                schema = table.schema.remove_metadata()
                self._schema = schema if self._schema is None else typed_as(self._schema, schema)
            yield table

    def after(self, blocks: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Yields blocks; after none, one without rows, if tables without rows were seen."""
        yield from blocks
        if not self._rows and self._schema is not None:
            yield empty(self._schema)


def blank_of(plan: Plan, physical: Physical, run: Run | None) -> pa.Table:
    """Returns a table without rows, of the columns that rows of a plan would have, of which a run gave none: as tables
    without rows tell it that tasks gave, or else an empty table."""
    if (known := schema_of(plan)) is not None:
        return empty(known)
    with suppress(Exception):  # what user code makes of an empty table says nothing about what it makes of others
        if run is None or not run.fusions or isinstance(physical, Local | Joined | ZipRows):
            return _blank(plan)
        if run.vacant is not None:
            return empty(run.vacant)
        # What was written before is there by now, and knows its columns.
        fusion: Fusion = run.fusions[0]
        found, columns = fusion.source.found, fusion.view.columns
        return _asked(found if columns is None else pa.schema([found.field(one) for one in columns]), fusion.operators)
    return pa.table({})


def _asked(schema: pa.Schema, steps: Sequence[Operator]) -> pa.Table:
    """Returns what steps make of a table without rows."""
    if not len(schema):
        return pa.table({})
    pipeline = Pipeline(tuple(steps))
    pipeline.setup()
    made = next(iter(pipeline.apply(empty(schema), Tally(BadRowBudget()))), pa.table({}))
    return made.slice(0, 0).replace_schema_metadata(None)


def _blank(plan: Plan) -> pa.Table:
    known = schema_of(plan)
    if known is not None:
        return empty(known)
    match plan:
        case Apply() | Marked():
            base, steps = _chain(plan)
            return _asked(_blank(base).schema, steps)
        case Limit(input, _) | Checkpoint(input, _):
            return _blank(input)
        case Union(inputs):
            return empty(unify("union", [_blank(one).schema for one in inputs]))
        case Zip(inputs):
            zipped = zipped_schema([_blank(one).schema for one in inputs])
            return pa.table({}) if zipped is None else empty(zipped)
        case Exchanged(inputs, how):
            made = how.schema([_blank(one).schema for one in inputs])
            return pa.table({}) if made is None else empty(made)
        case Scan():
            return pa.table({})


def _chain(plan: Plan) -> tuple[Plan, list[Operator]]:
    steps: list[Any] = []
    while isinstance(plan, Apply | Marked):
        steps.insert(0, plan.operator if isinstance(plan, Apply) else plan.step)
        plan = plan.input
    return plan, steps
