"""Pushes operators into the read: only needed columns, and only rows that may pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from curate.dataclass import replace
from curate.formats.encoding import Format
from curate.formats.statistics import misled_by_statistics
from curate.operators.columns import Drop, FilterExpression, Rename, Select, WithColumn, WithColumns
from curate.operators.protocol import Operator
from curate.operators.sample import RandomSample
from curate.operators.unify import Unify
from curate.sources.files import Files
from curate.sources.protocol import FileListing, Projection, Source
from curate.stage.fusion import FusedScan


def fuse(source: Source, operators: tuple[Operator, ...]) -> FusedScan:
    """Returns a source and its operators as one, with what can be pushed into the source."""
    if isinstance(source, FileListing) and any(isinstance(one, RandomSample) for one in operators):
        # Which rows are in a sample goes by the pieces that they are in, and their numbers there.
        source = replace(source, pinned=True)
    if not isinstance(source, Files) or not len(source.schema):
        return FusedScan(source, Projection(), operators)
    if source.format is not Format.PARQUET:
        return FusedScan(source, Projection(named=_selects(source.found, operators)), operators)
    inside = source.inside.names
    columns, left = _pruned(source.found, operators, inside)
    # Where rows say where they lie, all are counted.
    filters = () if source.places else tuple(_filters(source.schema, operators, set(source.schema.names)))
    chosen = len(columns) < len(source.found) or _selects(source.found, operators)
    return FusedScan(source, Projection(columns if chosen else None, filters), left)


def _selects(schema: pa.Schema, operators: Sequence[Operator]) -> bool:
    """Returns whether only columns that were named are asked for, be it all of them: a file that has others may."""
    found: pa.Schema | None = schema
    # Unions in unions are asked of each part as often as there are unions around it, and few select.
    last = max((number for number, one in enumerate(operators) if isinstance(one, Select)), default=-1)
    for operator in operators[: last + 1]:
        if isinstance(operator, Select):
            return True
        if not isinstance(operator, FilterExpression | WithColumn | WithColumns | Rename | Drop):
            return False
        found = operator.schema(found)
        if found is None:
            return False
    return False


def _pruned(
    schema: pa.Schema, operators: Sequence[Operator], inside: Sequence[str]
) -> tuple[tuple[str, ...], tuple[Operator, ...]]:
    """Returns the columns to read, in their order, of which one at least is `inside` the files, for it tells how many
    rows there are; and the operators over those."""
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
            gone = frozenset(operator.columns if isinstance(operator, Drop) else ())
            needed = {next(name for name in before.names if name not in gone)}
        left.insert(0, operator)
    needed |= set() if needed & set(inside) else set(inside[:1])
    columns = tuple(name for name in schema.names if name in needed)
    return columns, (*_over(set(columns), left, schemas), *operators[known:])


def _before(operator: Operator, schema: pa.Schema, needed: set[str]) -> tuple[set[str], Operator]:
    """Returns the columns needed before an operator if `needed` are after it, and the operator over those."""
    match operator:
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
        case _:
            return operator.needs(schema, needed), operator


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
            case WithColumn(column):
                # It is there, too, where the one that it replaces is not read.
                columns = columns | {column}
            case _:
                # Whatever it adds, a join of what a task has, say, it adds to those that are read.
                columns = (columns & set(after.names)) | (set(after.names) - set(before.names))
        yield operator


def _filters(schema: pa.Schema, operators: Sequence[Operator], there: set[str]) -> Iterator[tuple[Any, str]]:
    """Yields the first filters that look at nothing but columns as they are read, those that are `there`, with their
    reasons. Behind another one, a row that is not read might have been dropped by that."""
    known: pa.Schema = schema
    for operator in operators:
        match operator:
            case FilterExpression(expression):
                if not operator.reads(known) <= there or misled_by_statistics(expression, known):
                    return
                yield expression, operator.reason
            case WithColumn(column):
                there = there - {column}
            case WithColumns(columns):
                there = there - {name for name, _ in columns}
            case Select() | Drop():
                pass
            case Unify(to):
                same = (name for name in there if name in known.names and name in to.names)
                there = {name for name in same if to.field(name).type == known.field(name).type}
            case _:
                return
        known = operator.schema(known)
