"""Rewrites of logical plans: seeds are drawn, unions get one schema, marks are added or removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce

import pyarrow as pa

from curate.arrow.schema import unify_schemas
from curate.exchange.kinds.base import Limitable, Materialize
from curate.exchange.kinds.shuffle import Shuffled, buckets_for
from curate.operators.protocol import Operator
from curate.operators.unify import Unify
from curate.plan.nodes import (
    Apply,
    Checkpoint,
    Exchanged,
    Limit,
    Marked,
    Plan,
    Scan,
    schema_of,
    sources_of,
    transform,
    walk,
)
from curate.reduce.ranges import target_of
from curate.sources.datasource import UserSource
from curate.sources.memory import NUMBER_BYTES, Range, Tables
from curate.sources.protocol import FileListing, Source
from curate.units import GIB, MIB


def uncounted(plan: Plan) -> Plan:
    """Returns a plan of the same rows of which nothing has to be counted before it is written: no limit is left."""

    def held(node: Plan) -> Plan:
        if not isinstance(node, Limit):
            return node
        return within(node.input, node.rows) or Exchanged((node.input,), Materialize(first=node.rows))

    return transform(plan, held)


def within(plan: Plan, rows: int) -> Plan | None:
    """Returns the first rows of a plan as what an exchange gives that keeps no others; None if it ends in none."""
    steps: list[Operator] = []
    while isinstance(plan, Apply) and plan.operator.keeps_rows:
        steps.insert(0, plan.operator)
        plan = plan.input
    if isinstance(plan, Exchanged) and isinstance(plan.how, Limitable):
        return applied(Exchanged(plan.inputs, plan.how.limited(rows)), steps)
    return None


MAPS, LEAST_MAP_BYTES, MOST_MAP_BYTES = 32, 32 * MIB, 2 * GIB
"""A map shard reads one part in 32 of the input, within these bounds: stored bytes, and nothing else, decide."""


def size_of(source: Source) -> int:
    """Returns the bytes of a source: stored ones of files, in memory of what is there."""
    match source:
        case FileListing():
            start, stop = source.segment or (0, len(source.listing))
            return int(sum(source.listing["size"][start:stop].to_pylist()))
        case Tables():
            return sum(int(one.nbytes) for one in source.tables)
        case UserSource():
            return source.size_bytes
        case Range():
            return source.rows * NUMBER_BYTES
    return 0


def map_bytes(total: int) -> int:
    """Returns the bytes of a map shard of an input of `total` bytes.

    >>> map_bytes(1 << 20) >> 20, map_bytes(16 << 30) >> 20, map_bytes(100 << 40) >> 20
    (32, 512, 2048)
    """
    return min(max(total // MAPS, LEAST_MAP_BYTES), MOST_MAP_BYTES)


def chain_of(plan: Plan) -> tuple[Plan, list[Apply | Marked]]:
    """Returns what a chain of operators begins with, and the chain, in the order in which rows go through it."""
    nodes: list[Apply | Marked] = []
    while isinstance(plan, Apply | Marked):
        nodes.append(plan)
        plan = plan.input
    return plan, nodes[::-1]


def over(base: Plan, nodes: Sequence[Apply | Marked]) -> Plan:
    """Returns a chain of operators over what it is to begin with."""
    return reduce(lambda plan, node: replace(node, input=plan), nodes, base)


def applied(plan: Plan, operators: Sequence[Operator]) -> Plan:
    """Returns a plan followed by operators."""
    return reduce(Apply, operators, plan)


def operator_of(node: Apply | Marked) -> Operator:
    """Returns what a node of a chain does."""
    return node.operator if isinstance(node, Apply) else node.step


def steps_of(plan: Plan) -> tuple[Operator, ...]:
    """Returns the operators of the chain that a plan ends in, in the order in which rows go through them."""
    return tuple(map(operator_of, chain_of(plan)[1]))


def own_sides(steps: Sequence[Operator]) -> dict[str, None]:
    """Returns the names of the extra outputs that steps have of their own."""
    return {name: None for step in steps for name in getattr(step, "sides", ())}


def unmarked(plan: Plan) -> Plan:
    """Returns a plan as it is once its steps have their marks."""
    return transform(plan, lambda node: Apply(node.input, node.step) if isinstance(node, Marked) else node)


def lacks_seed(plan: Plan) -> bool:
    return any(isinstance(one.how, Shuffled) and one.how.seed is None for one in exchanges_of(plan))


def exchanges_of(plan: Plan) -> Iterator[Exchanged]:
    """Yields the exchanges of a plan, the last one first; not those before a checkpoint, which is a job of its own."""
    return (node for node in walk(plan, until=(Checkpoint,)) if isinstance(node, Exchanged))


def seeded(plan: Plan, seed: int) -> Plan:
    """Returns a plan whose shuffles have a seed: those that had none, this one."""

    def with_seed(node: Plan) -> Plan:
        if isinstance(node, Exchanged) and isinstance(node.how, Shuffled) and node.how.seed is None:
            return replace(node, how=replace(node.how, seed=seed))
        return node

    return transform(plan, with_seed, until=(Checkpoint,))


def shuffle_plan(input: Plan, seed: int | None, count: int | None) -> Plan:
    """Returns the rows of a plan in random order, thrown into as many buckets as suit the bytes that are read."""
    if count is not None:
        return Exchanged((input,), Shuffled(seed, buckets_for(count, counted=True), count))
    size = sum(map(size_of, sources_of(unmarked(input))))
    return Exchanged((input,), Shuffled(seed, buckets_for(max(1, size // target_of(size)), counted=False), None))


def unified(plans: Sequence[Plan], ask: Callable[[Plan], pa.Schema | None] = lambda _: None) -> tuple[Plan, ...]:
    """Returns plans whose rows have one schema: a column that some lack is null there, and types are widened.

    Those that only functions of the user know are asked for theirs. They are as they were if one of them has none to
    tell, or none has columns. Raises ConfigError, with the schemas, where a column has types that do not go together.
    """
    known = [schema_of(plan) for plan in plans]
    schemas = [ask(plan) if schema is None else schema for plan, schema in zip(plans, known, strict=True)]
    # One without rows may not know its columns.
    told = [schema for schema in schemas if schema is not None and len(schema)]
    if None in schemas or not told:
        return tuple(plans)
    to = unify_schemas("union", told)
    pairs = zip(plans, known, strict=True)
    return tuple(plan if one is not None and one.equals(to) else Apply(plan, Unify(to)) for plan, one in pairs)


def segmented(plan: Plan, segments: tuple[tuple[int, int], ...]) -> Plan:
    """Returns a plan whose files are in these segments: what is made of each for an exchange is made by itself."""

    def cut(node: Plan) -> Plan:
        if isinstance(node, Scan) and isinstance(node.source, FileListing):
            return Scan(replace(node.source, segments=segments))
        return node

    return transform(plan, cut)


def by_segment(plan: Plan) -> list[Plan]:
    """Returns a plan as one for each segment of its files. Where steps go by marks, all rows are read at once: marks
    are of all segments."""
    base, nodes = chain_of(plan)
    if not isinstance(base, Scan) or not isinstance(base.source, FileListing):
        return [plan]
    if len(base.source.segments) < 2 or any(isinstance(node, Marked) for node in nodes):
        return [plan]
    return [over(Scan(replace(base.source, segments=(one,))), nodes) for one in base.source.segments]


def pinned(plan: Plan) -> Plan:
    """Returns a plan whose files are cut into the same pieces whatever reads it."""

    def pin(node: Plan) -> Plan:
        if isinstance(node, Scan) and isinstance(node.source, FileListing):
            return Scan(replace(node.source, pinned=True))
        return node

    # What an exchange gives, or a checkpoint, is cut by what is there alone.
    return transform(plan, pin, until=(Exchanged, Checkpoint))
