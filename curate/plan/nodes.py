"""The logical plan: the requested operations, as a tree of frozen values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from curate.dataclass import dataclass, replace
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


def name_of(plan: Plan) -> str:
    """Returns what a node is called, as people are told."""
    match plan:
        case Scan(source):
            return source.name
        case Apply(_, operator):
            return operator.name
        case Marked(_, step, _):
            return step.name
        case Exchanged(_, how):
            return how.name
        case Checkpoint(_, path):
            return f"checkpoint({path!r})"
        case Limit(_, rows):
            return f"limit({rows})"
        case Union() | Zip():
            return type(plan).__name__.lower()


def children(plan: Plan) -> tuple[Plan, ...]:
    """Returns the plans that a node is made of, in order; of one that goes by marks, these last."""
    match plan:
        case Scan():
            return ()
        case Marked(input, _, marks):
            return (input, marks)
        case Union(inputs) | Zip(inputs) | Exchanged(inputs):
            return inputs
        case Apply(input) | Limit(input) | Checkpoint(input):
            return (input,)


def with_children(plan: Plan, below: Sequence[Plan]) -> Plan:
    """Returns a node made of other plans, as many; the very node, if they are its own."""
    if all(one is other for one, other in zip(below, children(plan), strict=True)):
        return plan
    match plan:
        case Scan():
            return plan
        case Marked():
            input, marks = below
            return replace(plan, input=input, marks=marks)
        case Union() | Zip() | Exchanged():
            return replace(plan, inputs=tuple(below))
        case Apply() | Limit() | Checkpoint():
            return replace(plan, input=below[0])


def walk(plan: Plan, until: tuple[type, ...] = ()) -> Iterator[Plan]:
    """Yields the nodes of a plan, the last one first; of nodes `until`, not what they are made of."""
    yield plan
    if not isinstance(plan, until):
        for one in children(plan):
            yield from walk(one, until)


def transform(plan: Plan, change: Callable[[Plan], Plan], until: tuple[type, ...] = ()) -> Plan:
    """Returns a plan of which each node is what `change` makes of it, which is given the first ones first; what nodes
    `until` are made of stays as it is."""
    if not isinstance(plan, until):
        plan = with_children(plan, [transform(one, change, until) for one in children(plan)])
    return change(plan)


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
    return (node.source for node in walk(plan) if isinstance(node, Scan))


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
