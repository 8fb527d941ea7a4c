"""Plans as text for people: the logical and the physical plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import groupby
from operator import and_

from curate.arrow.expressions import shown
from curate.operators.protocol import Operator
from curate.pipeline.step import Compute
from curate.plan.nodes import Checkpoint, Exchanged, Marked, Plan, Union, Zip, children, name_of
from curate.plan.physical import (
    End,
    First,
    Joined,
    Local,
    Physical,
    StagePlan,
    ZipRows,
    apart,
    cpus_of,
    lower_stage,
    map_plans,
)
from curate.plan.rewrites import map_bytes, size_of
from curate.sources.files import Files
from curate.stage.fusion import FusedScan
from curate.units import ellipsize, format_bytes, format_count

SHOWN_CHARS = 80
"""Characters of a node's name in one line of a whole plan."""
SHOWN_NODES = 12
"""Nodes of a chain there, at most: the first one, and the last ones."""


def chain_text(plan: Plan) -> str:
    """Returns a plan as one line, as it is written in code; of what is joined or marked, what it begins with."""
    names: list[str] = []
    node: Plan | None = plan
    while node is not None:
        name = ellipsize(name_of(node), SHOWN_CHARS)
        first, *others = children(node) or [None]
        if isinstance(node, Union | Zip):
            told = ", ".join(chain_text(one) for one in others if one is not None)
            name = f"{name}({ellipsize(told, 2 * SHOWN_CHARS)})"
        names.insert(0, name)
        node = first
    if len(names) > SHOWN_NODES:
        names[1 : 2 - SHOWN_NODES] = [f"({len(names) - SHOWN_NODES + 1:,} more)"]
    return ".".join(names)


def explain_physical(physical: Physical, depth: int = 0, told: list[Plan] | None = None) -> Iterator[str]:
    """Yields what runs as text, what comes last first; `told` are the exchanges that the text has already."""
    indent = "  " * depth
    told = [] if told is None else told
    match physical:
        case StagePlan():
            yield from _stage_lines(physical, depth, told)
        case First(input, rows):
            yield f"{indent}first {rows:,} rows, then stop"
            yield from explain_physical(input, depth + 1, told)
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


def _stage_lines(lowered: StagePlan, depth: int, told: list[Plan]) -> Iterator[str]:
    if lowered.first is not None:
        yield f"{'  ' * depth}first {lowered.first:,} rows, which are counted first{_then(lowered.after)}"
        depth += 1
    indent, then = "  " * depth, _then(lowered.asked)
    match lowered.read:
        case Checkpoint(input, path):
            yield f"{indent}reads {path}{then}"
            yield f"{indent}  which is written first, and kept"
            yield from _stage_lines(lower_stage(input, End.FILES), depth + 2, told)
        case Exchanged() as exchanged:
            yield f"{indent}{exchanged.how.name}: reads run files{then}"
            if any(one is exchanged for one in told):
                yield f"{indent}  which are those above: they are written once"
            else:
                told.append(exchanged)
                for side in range(len(exchanged.inputs)):
                    yield from _stages_lines("which", map_plans(exchanged, side), depth + 1, told)
        case scans:
            yield f"{indent}tasks ({_amount(cpus_of(scans), 'CPU')} each)"
            for scan in scans:
                yield from _scan_lines(scan, f"{indent}  ")
    for node in lowered.marked:
        yield from _stages_lines(f"side inputs of {node.step.name}, which", apart(node.marks), depth + 1, told)


def _stages_lines(what: str, plans: Sequence[Plan], depth: int, told: list[Plan]) -> Iterator[str]:
    """Yields stages that write run files, and about how many of them, if that is known before anything runs."""
    for plan in plans:
        lowered, about = lower_stage(plan, End.RUNS), ""
        if lowered.scans:
            total = sum(size_of(one.source) for one in lowered.scans)
            shards = max(1, -(-total // map_bytes(total)))
            about = f"  [about {format_count(shards, 'map shard')} of {format_bytes(total / shards)}]"
        yield f"{'  ' * depth}{what} are written first, in order{about}"
        yield from _stage_lines(lowered, depth + 1, told)


def _then(operators: Sequence[Operator]) -> str:
    return f", then: {_chain(operators)}" if operators else ""


def _scan_lines(fusion: FusedScan, indent: str) -> Iterator[str]:
    source = fusion.source
    estimate = f"  [{source.describe()}]" if isinstance(source, Files) else ""
    yield f"{indent}{source.name}{estimate}"
    if fusion.view.columns is not None:
        whole = len(source.found)
        yield f"{indent}  reads {len(fusion.view.columns)} of {whole} columns: {', '.join(fusion.view.columns)}"
    if fusion.view.filters and isinstance(source, Files):
        predicate = reduce(and_, (expression for expression, _ in fusion.view.filters))
        yield f"{indent}  leaves out row groups by: {shown(predicate)}  [{source.pruned(fusion.view)}]"
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
        actors = format_count(least, "actor")
    amounts = [_amount(held.num_cpus, "CPU"), *([_amount(held.num_gpus, "GPU")] if held.num_gpus else [])]
    amounts += [format_bytes(held.memory)] if held.memory else []
    amounts += [f"{amount:g} {name}" for name, amount in held.custom.items()]
    return f"pool of {actors} ({', '.join(amounts)} each)"


def _amount(number: float, what: str) -> str:
    return f"{number:g} {what}{'' if number <= 1 else 's'}"


def _chain(operators: Sequence[Operator]) -> str:
    return " -> ".join(operator.name for operator in operators)


def explain_logical(plan: Plan, depth: int = 0) -> Iterator[str]:
    """Yields the plan as text, the last operator first."""
    waiting: list[tuple[Plan | str, int]] = [(plan, depth)]
    while waiting:
        one, depth = waiting.pop()
        if isinstance(one, str):
            yield f"{'  ' * depth}{one}"
            continue
        yield f"{'  ' * depth}{name_of(one)}"
        if isinstance(one, Marked):
            waiting += (one.marks, depth + 2), ("  with a side input from", depth), (one.input, depth + 1)
        else:
            waiting += ((below, depth + 1) for below in reversed(children(one)))
