"""The logical plan: the requested operations, as a tree of frozen values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from curate.dataclass import dataclass, replace
from curate.exchange.kinds.zip import zipped_schema
from curate.exchange.protocol import Exchange
from curate.operators.protocol import Operator
from curate.operators.side_input import Marking
from curate.sources.protocol import Source


class Node:
    """What a node keeps beside its fields: the schema of its rows, once asked for, as each step that follows asks for
    it again. It is no part of what is compared, copied or sent."""

    __slots__ = ("_schema",)
    _schema: pa.Schema | None


@dataclass(frozen=True, slots=True)
class Scan(Node):
    """All rows of a source."""

    source: Source


@dataclass(frozen=True, slots=True)
class Apply(Node):
    """The rows of a plan through an operator."""

    input: Plan
    operator: Operator


@dataclass(frozen=True, slots=True)
class Limit(Node):
    """The first rows of a plan."""

    input: Plan
    rows: int


@dataclass(frozen=True, slots=True)
class Union(Node):
    """The rows of one plan after those of another."""

    inputs: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class Zip(Node):
    """The rows of plans side by side, of which there must be as many in each."""

    inputs: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint(Node):
    """The rows of a plan, written below `path` first, and read from there."""

    input: Plan
    path: str


@dataclass(frozen=True, slots=True)
class Exchanged(Node):
    """The rows of plans in other shards: sorted, grouped, joined, shuffled."""

    inputs: tuple[Plan, ...]
    how: Exchange


@dataclass(frozen=True, slots=True)
class Marked(Node):
    """The rows of a plan through a step that is given marks: what another plan tells of rows, by their places."""

    input: Plan
    step: Marking
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
    waiting = [plan]
    while waiting:
        yield (one := waiting.pop())
        if not isinstance(one, until):
            waiting += reversed(children(one))


def transform(plan: Plan, change: Callable[[Plan], Plan], until: tuple[type, ...] = ()) -> Plan:
    """Returns a plan of which each node is what `change` makes of it, which is given the first ones first; what nodes
    `until` are made of stays as it is."""
    # No recursion: a loop makes plans of thousands of nodes. Of a node whose children are done, as many were made last.
    waiting, made = [(plan, False)], list[Plan]()
    while waiting:
        node, below_is_done = waiting.pop()
        below = () if isinstance(node, until) else children(node)
        if below and not below_is_done:
            waiting.append((node, True))
            waiting += ((one, False) for one in reversed(below))
            continue
        if below:
            node = with_children(node, made[-len(below) :])
            del made[-len(below) :]
        made.append(change(node))
    (done,) = made
    return done


def schema_of(plan: Plan) -> pa.Schema | None:
    """Returns the schema of a plan's rows; None if only running user code tells. Raises ConfigError."""
    waiting = [plan]
    while waiting:
        node = waiting[-1]
        below = children(node)[:1] if isinstance(node, Marked) else children(node)
        if unknown := [] if hasattr(node, "_schema") else [one for one in below if not hasattr(one, "_schema")]:
            waiting += reversed(unknown)
            continue
        if not hasattr(node, "_schema"):
            object.__setattr__(node, "_schema", _schema_over(node, [one._schema for one in below]))
        waiting.pop()
    return plan._schema


def _schema_over(node: Plan, below: list[pa.Schema | None]) -> pa.Schema | None:
    """Returns the schema of a node's rows, by those of the plans that it is made of."""
    match node:
        case Scan(source):
            return source.found
        case Apply(_, operator):
            return operator.schema(below[0])
        case Marked(_, step, _):
            return step.schema(below[0])
        case Limit() | Checkpoint():
            return below[0]
        case Union():
            return below[0] if all(one is not None and one.equals(below[0]) for one in below) else None
        case Exchanged(_, how):
            return how.schema(below)
        case Zip():
            return zipped_schema(below)


def sources_of(plan: Plan) -> Iterator[Source]:
    """Yields where the rows of a plan come from, in order."""
    return (node.source for node in walk(plan) if isinstance(node, Scan))


def may_be_incomplete(plan: Plan) -> bool:
    """Returns whether a plan may read the output of a job that is not all there, as one of its `read_...` was told."""
    return any(getattr(source, "allow_incomplete_input", False) for source in sources_of(plan))


def known_row_count(plan: Plan) -> int | None:
    """Returns how many rows a plan gives where its sources know; None where rows have to be looked at."""
    most: list[int] = []
    while isinstance(plan, Apply | Limit | Checkpoint):
        if isinstance(plan, Apply) and not plan.operator.keeps_rows:
            return None
        most += [plan.rows] if isinstance(plan, Limit) else []
        plan = plan.input
    found = _known_row_count(plan)
    return None if found is None else min([*most, found])


def _known_row_count(plan: Plan) -> int | None:
    match plan:
        case Scan(source):
            return source.count()
        case Union(inputs):
            counts = [known_row_count(one) for one in inputs]
            return None if None in counts else sum(one for one in counts if one is not None)
        case Exchanged(inputs, how):
            found = known_row_count(inputs[0]) if how.keeps_rows else None
            return found if found is None or how.first is None else min(found, how.first)
        case Zip(inputs):
            lengths = {known_row_count(one) for one in inputs}
            return lengths.pop() if len(lengths) == 1 else None
    return None
