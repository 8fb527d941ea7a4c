"""Logical plans made of logical plans: seeds drawn, unions brought to one schema, marks put in or taken out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from curate.arrow.schema import unify_schemas
from curate.exchange.kinds.base import Limitable, Materialize
from curate.exchange.kinds.shuffle import Shuffled, buckets_for
from curate.exchange.ranges import LEAST_BYTES, PARTS
from curate.operators.protocol import Operator
from curate.operators.unify import Unify
from curate.plan.nodes import Apply, Checkpoint, Exchanged, Limit, Marked, Plan, Scan, Union, Zip, schema_of
from curate.sources.memory import NUMBER_BYTES, Range, Tables
from curate.sources.protocol import FileListing, Source
from curate.units import GIB, MIB


def uncounted(plan: Plan) -> Plan:
    """Returns a plan of the same rows of which nothing has to be counted before it is written: no limit is left."""
    match plan:
        case Apply(input, operator):
            return Apply(uncounted(input), operator)
        case Limit(input, rows):
            return first_of(uncounted(input), rows)
        case Checkpoint(input, path):
            return Checkpoint(uncounted(input), path)
        case Marked(input, step, marks):
            return Marked(uncounted(input), step, uncounted(marks))
        case Exchanged(inputs, how):
            return Exchanged(tuple(map(uncounted, inputs)), how)
        case Union(inputs):
            return Union(tuple(map(uncounted, inputs)))
        case Zip(inputs):
            return Zip(tuple(map(uncounted, inputs)))
    return plan


def first_of(plan: Plan, rows: int) -> Plan:
    """Returns the first rows of a plan as what an exchange gives."""
    return within(plan, rows) or Exchanged((plan,), Materialize(first=rows))


def within(plan: Plan, rows: int) -> Plan | None:
    """Returns the first rows of a plan as what an exchange gives that keeps no others; None if it ends in none."""
    match plan:
        case Exchanged(inputs, how) if isinstance(how, Limitable):
            return Exchanged(inputs, how.limited(rows))
        case Apply(input, operator) if operator.keeps_rows:
            found = within(input, rows)
            return None if found is None else Apply(found, operator)
    return None


MAPS, LEAST_MAP_BYTES, MOST_MAP_BYTES = 32, 32 * MIB, 2 * GIB
"""A map shard reads one part in 32 of the input, within these bounds: stored bytes, and nothing else, decide."""


def size_of(source: Source) -> int:
    """Returns the bytes of a source: stored ones of files, in memory of what is there."""
    match source:
        case FileListing():
            return int(sum(source.listing["size"].to_pylist()))
        case Tables():
            return sum(int(one.nbytes) for one in source.tables)
        case Range():
            return source.rows * NUMBER_BYTES
    return 0


def map_bytes(total: int) -> int:
    """Returns the bytes of a map shard of an input of `total` bytes.

    >>> map_bytes(1 << 20) >> 20, map_bytes(16 << 30) >> 20, map_bytes(100 << 40) >> 20
    (32, 512, 2048)
    """
    return min(max(total // MAPS, LEAST_MAP_BYTES), MOST_MAP_BYTES)


def marked_in(plan: Plan) -> list[Marked]:
    """Returns what of a chain has marks, in the order in which rows come to it."""
    if isinstance(plan, Marked):
        return [*marked_in(plan.input), plan]
    return marked_in(plan.input) if isinstance(plan, Apply) else []


def unmarked(plan: Plan) -> Plan:
    """Returns a chain as it is once its steps have their marks."""
    match plan:
        case Apply(input, operator):
            return Apply(unmarked(input), operator)
        case Marked(input, step, _):
            return Apply(unmarked(input), step)
    return plan


def lacks_seed(plan: Plan) -> bool:
    return any(isinstance(one.how, Shuffled) and one.how.seed is None for one in exchanges_of(plan))


def exchanges_of(plan: Plan) -> Iterator[Exchanged]:
    """Yields the exchanges of a plan, the last one first; not those before a checkpoint, which is a job of its own."""
    match plan:
        case Exchanged(inputs, _):
            yield plan
            for one in inputs:
                yield from exchanges_of(one)
        case Apply(input, _) | Limit(input, _):
            yield from exchanges_of(input)
        case Marked(input, _, marks):
            yield from exchanges_of(input)
            yield from exchanges_of(marks)
        case Union(inputs) | Zip(inputs):
            for one in inputs:
                yield from exchanges_of(one)


def seeded(plan: Plan, seed: int) -> Plan:
    """Returns a plan whose shuffles have a seed: those that had none, this one."""
    match plan:
        case Exchanged(inputs, how):
            inputs = tuple(seeded(one, seed) for one in inputs)
            if isinstance(how, Shuffled) and how.seed is None:
                how = replace(how, seed=seed)
            return Exchanged(inputs, how)
        case Apply(input, operator):
            return Apply(seeded(input, seed), operator)
        case Marked(input, step, marks):
            return Marked(seeded(input, seed), step, seeded(marks, seed))
        case Limit(input, rows):
            return Limit(seeded(input, seed), rows)
        case Union(inputs):
            return Union(tuple(seeded(one, seed) for one in inputs))
        case Zip(inputs):
            return Zip(tuple(seeded(one, seed) for one in inputs))
        case Scan() | Checkpoint():
            return plan


def shuffle_plan(input: Plan, seed: int | None, count: int | None) -> Plan:
    """Returns the rows of a plan in random order, thrown into as many buckets as suit the bytes that are read."""
    outputs = count or min(PARTS, max(1, sum(map(size_of, _sources(input))) // LEAST_BYTES))
    return Exchanged((input,), Shuffled(seed, buckets_for(outputs), count))


def _sources(plan: Plan) -> Iterator[Source]:
    match plan:
        case Scan(source):
            yield source
        case Apply(input, _) | Limit(input, _) | Checkpoint(input, _) | Marked(input, _, _):
            yield from _sources(input)
        case Union(inputs) | Zip(inputs) | Exchanged(inputs, _):
            for one in inputs:
                yield from _sources(one)


def base_of(plan: Plan) -> Plan:
    """Returns what a chain of operators begins with."""
    return base_of(plan.input) if isinstance(plan, Apply | Marked) else plan


def operators_in(plan: Plan) -> Iterator[Operator]:
    """Yields the operators of a plan, in the order in which rows go through them; of a union's parts, the first's."""
    if isinstance(plan, Apply):
        yield from operators_in(plan.input)
        yield plan.operator
    elif isinstance(plan, Marked):
        yield from operators_in(plan.input)
        yield plan.step
    elif isinstance(plan, Union):
        yield from operators_in(plan.inputs[0])


def unified(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Returns plans whose rows have one schema: a column that some lack is null there, and types are widened.

    They are as they were where that of one of them is known only to functions of the user. Raises ConfigError, with
    the schemas, where a column has types that do not go together.
    """
    schemas = [schema_of(plan) for plan in plans]
    known = [one for one in schemas if one is not None]
    if len(known) < len(schemas):
        return tuple(plans)
    to = unify_schemas("union", known)
    return tuple(plan if one.equals(to) else Apply(plan, Unify(to)) for plan, one in zip(plans, known, strict=True))


def pinned(plan: Plan) -> Plan:
    """Returns a plan whose files are cut into the same pieces whatever reads it."""
    match plan:
        case Scan(source):
            return Scan(replace(source, pinned=True)) if isinstance(source, FileListing) else plan
        case Apply(input, operator):
            return Apply(pinned(input), operator)
        case Marked(input, step, marks):
            return Marked(pinned(input), step, marks)
        case Limit(input, rows):
            return Limit(pinned(input), rows)
        case Union(inputs):
            return Union(tuple(map(pinned, inputs)))
        case Zip(inputs):
            return Zip(tuple(map(pinned, inputs)))
        case _:
            # What an exchange gives, or a checkpoint, is cut by what is there alone.
            return plan
