"""A logical plan lowered: what of it runs in one task, in the consumer's process, or behind stages that write first.

That is where its rows are consumed. Where they are written, no process is there to take first rows or to put rows side
by side: `durable` has exchanges do that, and what is left is read by one stage (see `curate.plan.stages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from curate.exchange.kinds.base import Materialize
from curate.exchange.kinds.zip import Zipped
from curate.formats.encoding import stem
from curate.operators.columns import FilterExpression
from curate.operators.protocol import Operator
from curate.operators.rows import FilterRows, MapIsolated, MapRows
from curate.operators.sample import RandomSample
from curate.pipeline.step import task_cpus
from curate.plan.nodes import Apply, Checkpoint, Exchanged, Limit, Marked, Plan, Scan, Union, Zip
from curate.plan.pushdown import fuse
from curate.plan.rewrites import chain_of, first_of, within
from curate.sources.files import Files
from curate.stage.fusion import FusedScan


def durable(plan: Plan, *, named: bool, sampled: bool = False) -> Plan:
    """Returns a plan of the same rows, in the same order, that a stage writes: its chain of operators begins with what
    one reads. With `named`, its outputs are called after the files that it reads, if it reads files. `sampled`: a
    random sample is drawn of it.

    Inputs of exchanges are left as they are, which stages of their own write.
    """
    match plan:
        case Apply(input, operator):
            drawn = isinstance(operator, RandomSample)
            if drawn and isinstance(base := chain_of(input)[0], Union) and not _one_stage(base, named):
                # Of each part where it is read: there a row's place is the one that it is consumed from.
                return Exchanged((plan,), Materialize(called="union"))
            return Apply(durable(input, named=named, sampled=sampled or drawn), operator)
        case Zip():
            return placed(plan)
        case Limit() if sampled:
            return placed(plan)
        case Union() if not _one_stage(plan, named):
            return Exchanged((plan,), Materialize(called="union"))
        case Limit(Limit(input, most), rows):
            return durable(Limit(input, min(most, rows)), named=named)
        case Limit(Union(inputs) as union, rows) if not _one_stage(union, named):
            # Each by itself, so that no more is made of it than could be asked for.
            return Exchanged((Union(tuple(Limit(one, rows) for one in inputs)),), Materialize(first=rows))
        case Limit(input, rows) if not _one_stage(input, named):
            return first_of(input, rows)
    return plan


def through_files(plan: Plan) -> Plan | None:
    """Returns how a plan is written, if that is through an exchange and its rows are consumed without one; else None.
    Raises ConfigError for parts of a union without an identity."""
    written = durable(plan, named=True)
    base, _ = chain_of(written)
    return written if isinstance(base, Exchanged) and isinstance(base.how, Materialize | Zipped) else None


def alike(plan: Plan) -> bool:
    """Returns whether a plan is read of files, or of rows in memory, and the same is done with all of it."""
    return fusions(plan) is not None


def _one_stage(plan: Plan, named: bool) -> bool:
    """Returns whether one stage reads a plan; with `named`, of files that outputs can be called after."""
    found = fusions(plan)
    if found is None:
        return False
    read = [one.source.listing for one in found if named and isinstance(one.source, Files)]
    return len(read) < 2 or (_all_differ(_uris(read)) and _all_differ(_names(read)))


def _names(listings: Sequence[Any]) -> list[str]:
    return [stem(name) for one in listings for name in one["name"].to_pylist()]


def _uris(listings: Sequence[Any]) -> list[str]:
    return [uri for one in listings for uri in one["uri"].to_pylist()]


def _all_differ(values: Sequence[str]) -> bool:
    return len(values) == len(set(values))


def fusions(plan: Plan) -> tuple[FusedScan, ...] | None:
    """Returns what reads the rows of a plan that is `alike`, several where it is a union; None of another one."""
    physical = lower(plan)
    return physical.fusions if isinstance(physical, Tasks) and read_alike([physical]) else None


BY_ROW = (FilterExpression, FilterRows, MapIsolated, MapRows, RandomSample)
"""Operators that may leave out rows, or make more of them, of each by itself."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """Pieces of these, one after another."""

    fusions: tuple[FusedScan, ...]


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
class FromStages:
    """Operators behind what stages of their own write first: a checkpoint, run files of an exchange, or marks."""

    plan: Checkpoint | Exchanged | Marked
    operators: tuple[Operator, ...]


Physical = Tasks | First | Local | Joined | ZipRows | FromStages


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
        case Checkpoint() | Exchanged() | Marked():
            return FromStages(plan, operators)
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


def are_alike(one: FusedScan, other: FusedScan) -> bool:
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
            return within(input, rows) or Exchanged((plan,), Materialize())
        case Zip(inputs):
            return Exchanged(inputs, Zipped(len(inputs)))


def _limited(input: Physical, rows: int) -> Physical:
    match input:
        case FromStages():
            return input
        case Tasks(fusions):
            return Tasks(tuple(at_most(one, rows) for one in fusions))
        case First(below, most):
            return First(_limited(below, rows), min(most, rows))
        case Local(below, operators):
            keep = all(operator.keeps_rows for operator in operators)
            return Local(First(_limited(below, rows), rows), operators) if keep else input
        case Joined() | ZipRows():
            return replace(input, inputs=tuple(_limited(one, rows) for one in input.inputs))


def at_most(fusion: FusedScan, rows: int) -> FusedScan:
    """Returns what gives no more than the first rows of each bundle of pieces."""
    # Functions of batches see the same ones, however many rows are asked for.
    by_row = all(operator.keeps_rows or isinstance(operator, BY_ROW) for operator in fusion.operators)
    return replace(fusion, give_most=rows, read_step=rows if by_row else None)


def unpaced(physical: Physical) -> Physical:
    """Returns what runs with batches as they come, however few rows of them are asked for."""
    match physical:
        case Tasks(fusions):
            return Tasks(tuple(replace(one, read_step=None) for one in fusions))
        case First() | Local():
            return replace(physical, input=unpaced(physical.input))
        case Joined() | ZipRows():
            return replace(physical, inputs=tuple(map(unpaced, physical.inputs)))
        case FromStages():
            return physical


def cpus_of(fusions: Sequence[FusedScan]) -> float:
    """Returns how many CPUs each task holds that runs these."""
    return max((task_cpus(one.operators, one.source.num_cpus) for one in fusions), default=1.0)
