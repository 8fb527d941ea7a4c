"""Rewrites: from a logical plan to what runs. Pure; every rewrite gives the same rows.

Neighbouring operators become one generator behind their source. Columns that nothing needs, and row groups that no
filter can match, are not read from Parquet. A limit is cut off in every piece, and before operators that keep rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import pyarrow as pa

from curate.dataset.formats import Format
from curate.dataset.lazy.expressions import may_keep_nan
from curate.dataset.lazy.operators import (
    Drop,
    FilterExpression,
    FilterRows,
    MapIsolated,
    MapRows,
    Operator,
    Plain,
    Rename,
    Select,
    WithColumn,
)
from curate.dataset.lazy.ordering import Held, Limitable
from curate.dataset.lazy.plan import Apply, Checkpoint, Exchanged, Limit, Marked, Plan, Scan, Union, Zip
from curate.dataset.lazy.sampling import RandomSample
from curate.dataset.lazy.sources import Files, Source, View
from curate.dataset.lazy.unifying import Unify
from curate.dataset.lazy.zipping import Zipped
from curate.dataset.pipeline import Compute, task_cpus
from curate.units import format_bytes

BY_ROW = (FilterExpression, FilterRows, MapIsolated, MapRows, RandomSample)
"""Operators that may leave out rows, or make more of them, of each by itself."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """A source and the operators that run behind it, in one task a piece."""

    source: Source
    view: View
    operators: tuple[Operator, ...]
    give_most: int | None = None
    """Rows that a piece gives, at most."""
    read_step: int | None = None
    """Rows of a piece that are read first, and as many as there were so far after that: no more are made than will be
    given, if all are kept. None: batches as they come."""
    part: int = 0
    """The part of a union that it is of, where a write has a stage for each: pieces of one name in two parts are called
    alike, as they are in those stages."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """Pieces of these, one after another."""

    fusions: tuple[Fusion, ...]


@dataclass(frozen=True, slots=True)
class First:
    """The first rows; what makes more is stopped."""

    input: Physical
    rows: int


@dataclass(frozen=True, slots=True)
class Local:
    """Operators that run in the consumer's process: those that follow a limit or a zip."""

    input: Physical
    operators: tuple[Operator, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """One after another."""

    inputs: tuple[Physical, ...]


@dataclass(frozen=True, slots=True)
class ZipRows:
    """Side by side, put together in the consumer's process."""

    inputs: tuple[Physical, ...]
    plans: tuple[Plan, ...]
    """What the inputs were made of, which may tell how many rows they have."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a plan's rows become that are written below a path first, by a run of their own, and read from there."""

    plan: Plan
    path: str
    operators: tuple[Operator, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """What the rows of an exchange become: its inputs are written to run files first, and read from there."""

    plan: Exchanged
    operators: tuple[Operator, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """A plan whose marks are written to run files first, and what follows it."""

    plan: Marked
    operators: tuple[Operator, ...]


Physical = Tasks | First | Local | Joined | ZipRows | Kept | Spread | Told


def lower(plan: Plan, operators: tuple[Operator, ...] = ()) -> Physical:
    """Returns what runs for a plan followed by `operators`."""
    match plan:
        case Scan(source):
            return Tasks((fuse(source, operators),))
        case Apply(input, operator):
            return lower(input, (operator, *operators))
        case Limit() | Zip() if any(isinstance(one, RandomSample) for one in operators):
            return lower(placed(plan), operators)
        case Limit(input, rows):
            input = within(input, rows) or input
            first = First(_limited(lower(input), rows), rows)
            return Local(first, operators) if operators else first
        case Checkpoint(input, path):
            return Kept(input, path, operators)
        case Exchanged():
            return Spread(plan, operators)
        case Marked():
            return Told(plan, operators)
        case Zip(inputs):
            zipped = ZipRows(tuple(lower(one) for one in inputs), inputs)
            return Local(zipped, operators) if operators else zipped
        case Union(inputs):
            parts = [lower(one, operators) for one in inputs]
            # By the parts themselves: which columns are read of them goes by what follows.
            apart = not read_alike([lower(one) for one in inputs] if operators else parts)
            merged: list[Physical] = []
            for part in parts:
                if merged and isinstance(part, Tasks) and isinstance(before := merged[-1], Tasks):
                    following = before.fusions[-1].part + 1 if apart else 0
                    further = (replace(one, part=one.part + following) for one in part.fusions)
                    merged[-1] = Tasks((*before.fusions, *further))
                else:
                    merged.append(part)
            return merged[0] if len(merged) == 1 else Joined(tuple(merged))


def read_alike(parts: Sequence[Physical]) -> bool:
    """Returns whether all of these are read of files, or of rows in memory, and the same is done with all of it."""
    fusions = [one for part in parts if isinstance(part, Tasks) for one in part.fusions]
    return all(isinstance(part, Tasks) for part in parts) and all(are_alike(one, fusions[0]) for one in fusions)


def are_alike(one: Fusion, other: Fusion) -> bool:
    """Returns whether two are read and processed in the same way, so that one stage writes both."""
    if one is other:
        return True
    if one.source.found is None or other.source.found is None:
        return False
    kinds = [source.how.identity() if isinstance(source, Files) else None for source in (one.source, other.source)]
    asked = [[operator.identity() for operator in fusion.operators] for fusion in (one, other)]
    return kinds[0] == kinds[1] and one.source.found.equals(other.source.found) and asked[0] == asked[1]


def placed(plan: Limit | Zip) -> Plan:
    """Returns the first rows of a plan, or rows side by side, as what an exchange gives: there each row has a place, by
    which a sample goes, that is the same whether they are consumed or written."""
    match plan:
        case Limit(input, rows):
            return within(input, rows) or Exchanged((plan,), Held())
        case Zip(inputs):
            return Exchanged(inputs, Zipped(len(inputs)))


def within(plan: Plan, rows: int) -> Plan | None:
    """Returns the first rows of a plan as what an exchange gives that keeps no others; None if it ends in none."""
    match plan:
        case Exchanged(inputs, how) if isinstance(how, Limitable):
            return Exchanged(inputs, how.limited(rows))
        case Apply(input, operator) if operator.keeps_rows:
            found = within(input, rows)
            return None if found is None else Apply(found, operator)
    return None


def _limited(input: Physical, rows: int) -> Physical:
    match input:
        case Kept() | Spread() | Told():
            return input
        case Tasks(fusions):
            return Tasks(tuple(at_most(one, rows) for one in fusions))
        case First(below, most):
            return First(_limited(below, rows), min(most, rows))
        case Local(below, operators):
            keep = all(operator.keeps_rows for operator in operators)
            return Local(First(_limited(below, rows), rows), operators) if keep else input
        case Joined(inputs):
            return Joined(tuple(_limited(one, rows) for one in inputs))
        case ZipRows(inputs, plans):
            return ZipRows(tuple(_limited(one, rows) for one in inputs), plans)


def at_most(fusion: Fusion, rows: int) -> Fusion:
    """Returns what gives no more than the first rows of each bundle of pieces."""
    # Functions of batches see the same ones, however many rows are asked for.
    by_row = all(operator.keeps_rows or isinstance(operator, BY_ROW) for operator in fusion.operators)
    return replace(fusion, give_most=rows, read_step=rows if by_row else None)


def unpaced(physical: Physical) -> Physical:
    """Returns what runs with batches as they come, however few rows of them are asked for."""
    match physical:
        case Tasks(fusions):
            return Tasks(tuple(replace(one, read_step=None) for one in fusions))
        case First(input, rows):
            return First(unpaced(input), rows)
        case Local(input, operators):
            return Local(unpaced(input), operators)
        case Joined(inputs):
            return Joined(tuple(map(unpaced, inputs)))
        case ZipRows(inputs, plans):
            return ZipRows(tuple(map(unpaced, inputs)), plans)
    return physical


def fuse(source: Source, operators: tuple[Operator, ...]) -> Fusion:
    """Returns a source and its operators as one, with what can be pushed into the source."""
    if not isinstance(source, Files) or source.format is not Format.PARQUET or not len(source.schema):
        return Fusion(source, View(), operators)
    columns, left = _pruned(source.schema, operators)
    predicate = None
    for expression in _predicates(source.schema, operators):
        predicate = expression if predicate is None else predicate & expression
    chosen = len(columns) < len(source.schema) or _selects(source.schema, operators)
    return Fusion(source, View(columns if chosen else None, predicate), left)


def _selects(schema: pa.Schema, operators: Sequence[Operator]) -> bool:
    """Returns whether only columns that were named are asked for, be it all of them: a file that has others may."""
    found: pa.Schema | None = schema
    for operator in operators:
        if isinstance(operator, Select):
            return True
        if not isinstance(operator, FilterExpression | WithColumn | Rename | Drop):
            return False
        found = operator.schema(found)
        if found is None:
            return False
    return False


def _pruned(schema: pa.Schema, operators: Sequence[Operator]) -> tuple[tuple[str, ...], tuple[Operator, ...]]:
    """Returns the columns to read, in their order in the file, and the operators over those."""
    schemas: list[pa.Schema] = [schema]
    for operator in operators:
        after = operator.schema(schemas[-1])
        if after is None:
            break
        schemas.append(after)
    known = len(schemas) - 1
    needed = set(schemas[known].names)
    left: list[Operator] = []
    for operator, before in zip(reversed(operators[:known]), reversed(schemas[:known]), strict=True):
        needed, operator = _before(operator, before, needed)
        if not needed:
            # Rows of no column could not be counted: one that is there after it, too.
            gone = operator.columns if isinstance(operator, Drop) else ()
            needed = {next(name for name in before.names if name not in gone)}
        left.insert(0, operator)
    columns = tuple(name for name in schema.names if name in needed)
    return columns, (*_over(set(columns), left, schemas), *operators[known:])


def _before(operator: Operator, schema: pa.Schema, needed: set[str]) -> tuple[set[str], Operator]:
    """Returns the columns needed before an operator if `needed` are after it, and the operator over those."""
    match operator:
        case FilterRows():
            return set(schema.names), operator
        case FilterExpression():
            return needed | operator.reads(schema), operator
        case WithColumn(column):
            # A column that is replaced keeps its place, so that it is read though its values are not looked at.
            keeps = {column} if column in schema.names and column in needed else set[str]()
            return (needed - {column}) | keeps | operator.reads(schema), operator
        case Select(columns):
            kept = tuple(name for name in columns if name in needed) or columns[:1]
            return set(kept), Select(kept)
        case Unify(to):
            kept = pa.schema([field for field in to if field.name in needed]) if needed else pa.schema([to.field(0)])
            return set(kept.names) & set(schema.names), Unify(kept)
        case Rename(names):
            return {name for name in schema.names if names.get(name, name) in needed}, operator
        case Drop():
            return needed, operator
        case Plain():
            return operator.needs(schema, needed), operator
        case _:
            return set(schema.names), operator


def _over(columns: set[str], operators: Sequence[Operator], schemas: Sequence[pa.Schema]) -> Iterator[Operator]:
    """Yields operators without what they say of columns that are not read. `schemas` are those before each, and after
    the last one, were all columns read."""
    for operator, before, after in zip(operators, schemas[:-1], schemas[1:], strict=True):
        match operator:
            case Drop(dropped):
                there = tuple(name for name in dropped if name in columns)
                columns = columns - set(there)
                if there:
                    yield Drop(there)
                continue
            case Rename(names):
                renamed = {old: new for old, new in names.items() if old in columns}
                columns = {names.get(name, name) for name in columns}
                if renamed:
                    yield Rename(renamed)
                continue
            case Select(selected):
                columns = set(selected)
            case Unify(to):
                columns = set(to.names)
            case _:
                # Whatever it adds, a join of what a task has, say, it adds to those that are read.
                columns = (columns & set(after.names)) | (set(after.names) - set(before.names))
        yield operator


def _predicates(schema: pa.Schema, operators: Sequence[Operator]) -> Iterator[Any]:
    """Yields the filters that look at nothing but columns as they are in the file."""
    there = set(schema.names)
    known: pa.Schema = schema
    for operator in operators:
        match operator:
            case FilterExpression(expression):
                if operator.reads(known) <= there and not may_keep_nan(expression, known):
                    yield expression
            case WithColumn(column):
                there = there - {column}
            case Select() | Drop() | FilterRows():
                pass
            case Unify(to):
                same = (name for name in there if name in known.names and name in to.names)
                there = {name for name in same if to.field(name).type == known.field(name).type}
            case _:
                return
        known = operator.schema(known)


def explain_physical(physical: Physical, depth: int = 0, told: list[Plan] | None = None) -> Iterator[str]:
    """Yields what runs as text, what comes last first; `told` are the exchanges that the text has already."""
    indent = "  " * depth
    told = [] if told is None else told
    match physical:
        case First(input, rows):
            yield f"{indent}first {rows:,} rows, then stop"
            yield from explain_physical(input, depth + 1, told)
        case Kept(plan, path, operators):
            yield f"{indent}reads {path}{f', then: {_chain(operators)}' if operators else ''}"
            yield f"{indent}  which is written first, and kept"
            yield from explain_physical(lower(plan), depth + 2, told)
        case Told(marked, operators):
            yield f"{indent}{marked.step.name}{f', then: {_chain(operators)}' if operators else ''}"
            physical = lower(marked.marks)
            yield f"{indent}  by marks, which are written first, in order{_maps(physical)}"
            yield from explain_physical(physical, depth + 2, told)
            yield from explain_physical(lower(marked.input), depth + 1, told)
        case Spread(exchanged, operators):
            yield f"{indent}{exchanged.how.name}: reads run files{f', then: {_chain(operators)}' if operators else ''}"
            if any(one is exchanged for one in told):
                yield f"{indent}  which are those above: they are written once"
                return
            told.append(exchanged)
            for side, below in enumerate(exchanged.inputs):
                physical = lower(below, exchanged.how.prepare(side))
                yield f"{indent}  which are written first, in order{_maps(physical)}"
                yield from explain_physical(physical, depth + 2, told)
        case Local(input, operators):
            yield f"{indent}in this process: {_chain(operators)}"
            yield from explain_physical(input, depth + 1, told)
        case Joined(inputs):
            yield f"{indent}one after another"
            for one in inputs:
                yield from explain_physical(one, depth + 1, told)
        case ZipRows(inputs):
            yield f"{indent}side by side, in this process"
            for one in inputs:
                yield from explain_physical(one, depth + 1, told)
        case Tasks(fusions):
            yield f"{indent}tasks ({_amount(cpus_of(fusions), 'CPU')} each)"
            for fusion in fusions:
                yield from _told(fusion, f"{indent}  ")


def _maps(physical: Physical) -> str:
    """Returns how many map shards write run files, about, if that is known before anything runs."""
    # Which rewrites plans by this module.
    from curate.dataset.lazy.sinks import map_bytes, size_of

    if not isinstance(physical, Tasks):
        return ""
    total = sum(size_of(one.source) for one in physical.fusions)
    shards = max(1, -(-total // map_bytes(total)))
    return f"  [about {shards:,} map shard{'' if shards == 1 else 's'} of {format_bytes(total / shards)}]"


def _told(fusion: Fusion, indent: str) -> Iterator[str]:
    source = fusion.source
    estimate = f"  [{source.describe()}]" if isinstance(source, Files) else ""
    yield f"{indent}{source.name}{estimate}"
    if fusion.view.columns is not None:
        whole = len(source.found)
        yield f"{indent}  reads {len(fusion.view.columns)} of {whole} columns: {', '.join(fusion.view.columns)}"
    if fusion.view.predicate is not None and isinstance(source, Files):
        yield f"{indent}  leaves out row groups by: {fusion.view.predicate}  [{source.pruned(fusion.view)}]"
    if fusion.give_most is not None:
        paced = "" if fusion.read_step is None else "; reads as many first, and more only if those are not enough"
        yield f"{indent}  gives at most {fusion.give_most:,} rows of a piece{paced}"
    for pooled, neighbours in groupby(fusion.operators, lambda one: one.compute is not None):
        if not pooled:
            yield f"{indent}  fused: {_chain(tuple(neighbours))}"
            continue
        for operator in neighbours:
            assert operator.compute is not None
            yield f"{indent}  {_pool(operator.compute)}: {operator.name}"


def _pool(compute: Compute) -> str:
    """Returns what runs an operator apart from the tasks."""
    least, most, held = compute.pool.smallest, compute.pool.largest, compute.resources
    actors = f"{least:,} to {most:,} actors" if most is not None else f"{least:,} or more actors"
    if least == most:
        actors = f"{least:,} {'actor' if least == 1 else 'actors'}"
    amounts = [_amount(held.num_cpus, "CPU"), *([_amount(held.num_gpus, "GPU")] if held.num_gpus else [])]
    amounts += [format_bytes(held.memory)] if held.memory else []
    amounts += [f"{amount:g} {name}" for name, amount in held.custom.items()]
    return f"pool of {actors} ({', '.join(amounts)} each)"


def _amount(number: float, what: str) -> str:
    return f"{number:g} {what}{'' if number <= 1 else 's'}"


def cpus_of(fusions: Sequence[Fusion]) -> float:
    """Returns how many CPUs each task holds that runs these."""
    return max((task_cpus(one.operators, one.source.num_cpus) for one in fusions), default=1.0)


def _chain(operators: Sequence[Operator]) -> str:
    return " -> ".join(operator.name for operator in operators)
