"""The logical plan: what was asked for, as a tree of frozen values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from curate.exchange.kinds.zip import zipped_schema
from curate.exchange.protocol import Exchange
from curate.operators.protocol import Operator
from curate.operators.side_input import Marking
from curate.sources.protocol import Source


@dataclass(frozen=True, slots=True)
class Scan:
    """All rows of a source."""

    source: Source


@dataclass(frozen=True, slots=True)
class Apply:
    """The rows of a plan through an operator."""

    input: Plan
    operator: Operator


@dataclass(frozen=True, slots=True)
class Limit:
    """The first rows of a plan."""

    input: Plan
    rows: int


@dataclass(frozen=True, slots=True)
class Union:
    """The rows of one plan after those of another."""

    inputs: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class Zip:
    """The rows of plans side by side, of which there must be as many in each."""

    inputs: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The rows of a plan, written below `path` first, and read from there."""

    input: Plan
    path: str


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The rows of plans in other shards: sorted, grouped, joined, shuffled."""

    inputs: tuple[Plan, ...]
    how: Exchange


class MarkingOperator(Operator, Marking, Protocol):
    """An operator that goes by marks."""


@dataclass(frozen=True, slots=True)
class Marked:
    """The rows of a plan through a step that is given marks: what another plan tells of rows, by their places."""

    input: Plan
    step: MarkingOperator
    marks: Plan


Plan = Scan | Apply | Limit | Union | Zip | Checkpoint | Exchanged | Marked


def schema_of(plan: Plan) -> pa.Schema | None:
    """Returns the schema of a plan's rows; None if only running user code tells. Raises ConfigError."""
    match plan:
        case Scan(source):
            return source.found
        case Apply(input, operator):
            return operator.schema(schema_of(input))
        case Marked(input, step, _):
            return step.schema(schema_of(input))
        case Limit(input, _) | Checkpoint(input, _):
            return schema_of(input)
        case Union(inputs):
            schemas = [schema_of(one) for one in inputs]
            return schemas[0] if all(one is not None and one.equals(schemas[0]) for one in schemas) else None
        case Exchanged(inputs, how):
            return how.schema([schema_of(one) for one in inputs])
        case Zip(inputs):
            return zipped_schema(list(map(schema_of, inputs)))


def sources_of(plan: Plan) -> Iterator[Source]:
    """Yields where the rows of a plan come from, in order."""
    match plan:
        case Scan(source):
            yield source
        case Apply(input, _) | Limit(input, _) | Checkpoint(input, _):
            yield from sources_of(input)
        case Marked(input, _, marks):
            yield from sources_of(input)
            yield from sources_of(marks)
        case Union(inputs) | Zip(inputs) | Exchanged(inputs, _):
            for one in inputs:
                yield from sources_of(one)


def may_be_incomplete(plan: Plan) -> bool:
    """Returns whether a plan may read the output of a job that is not all there, as one of its `read_...` was told."""
    return any(getattr(source, "allow_incomplete_input", False) for source in sources_of(plan))


def known_row_count(plan: Plan) -> int | None:
    """Returns how many rows a plan gives where its sources know; None where rows have to be looked at."""
    match plan:
        case Scan(source):
            return source.count()
        case Apply(input, operator):
            return known_row_count(input) if operator.keeps_rows else None
        case Marked():
            return None
        case Checkpoint(input, _):
            return known_row_count(input)
        case Limit(input, most):
            found = known_row_count(input)
            return None if found is None else min(most, found)
        case Union(inputs):
            counts = [known_row_count(one) for one in inputs]
            return None if None in counts else sum(one for one in counts if one is not None)
        case Exchanged(inputs, how):
            found = known_row_count(inputs[0]) if how.keeps_rows else None
            return found if found is None or how.first is None else min(found, how.first)
        case Zip(inputs):
            lengths = {known_row_count(one) for one in inputs}
            return lengths.pop() if len(lengths) == 1 else None
