"""Lowers a logical plan to a physical one, for output files, run files or a consumer.

There is one lowering, `lower`; its `end` says where the rows go. A stage reads files, rows in memory, or the output of
earlier stages, and processes all of it in the same way (`StagePlan`). A write has one last stage; anything else becomes
an exchange before it. A consumer's process can also take first rows, join streams one after another, and zip rows.

Writing, counting, consuming and explaining start from this value. Its upstream stages are logical plans, which are
lowered with the stage that reads them, to run files or to a checkpoint (see `curate.plan.stages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

from curate.dataclass import dataclass, replace
from curate.errors import ConfigError
from curate.exchange.kinds.base import Materialize
from curate.exchange.kinds.shuffle import Bucketed
from curate.exchange.kinds.zip import Zipped
from curate.formats.encoding import stem
from curate.operators.columns import FilterExpression
from curate.operators.protocol import Operator
from curate.operators.rows import FilterRows, MapIsolated, MapRows
from curate.operators.sample import RandomSample
from curate.operators.udf import told_once
from curate.pipeline.step import task_cpus
from curate.plan.nodes import Apply, Checkpoint, Exchanged, Limit, Marked, Plan, Scan, Union, Zip, schema_of, walk
from curate.plan.pushdown import fuse
from curate.plan.rewrites import applied, by_segment, chain_of, over, pinned, within
from curate.sources.files import Files
from curate.sources.protocol import Source
from curate.stage.fusion import FusedScan

BY_ROW = (FilterExpression, FilterRows, MapIsolated, MapRows, RandomSample)
"""Operators that may leave out rows, or make more of them, of each by itself."""

MOST_STEPS = 400
"""Steps that a task runs one after another: each is a generator that asks the one before, two calls of Python's, which
end at a depth of 1,000."""


class End(Enum):
    """Where the rows of a plan go."""

    FILES = auto()
    """To outputs, which are called after the files that are read, if files are."""
    RUNS = auto()
    """To run files, for an exchange."""
    BLOCKS = auto()
    """To a consumer."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What one stage reads, and what its tasks do with that."""

    read: tuple[FusedScan, ...] | Checkpoint | Exchanged
    """Pieces of sources, one after another; or what stages before wrote."""
    asked: tuple[Operator, ...]
    """What is done, as it was asked for: scans have it as it was pushed into reading. Identities go by this, for how a
    plan is rewritten changes no byte, and may change with the next version. Of several scans, that of the first."""
    marked: tuple[Marked, ...] = ()
    """The steps among those that go by marks, which stages before wrote, too."""
    first: int | None = None
    """Where rows are written: of scans, how many rows go on. They are counted when the job begins."""
    after: tuple[Operator, ...] = ()
    """What is done with those."""

    @property
    def scans(self) -> tuple[FusedScan, ...]:
        """The scans, if there are all rows of them, and no stage comes before."""
        return self.read if isinstance(self.read, tuple) and not self.marked and self.first is None else ()

    @property
    def upstream(self) -> tuple[Plan, ...]:
        """What stages before write, if there are any."""
        return (*(() if isinstance(self.read, tuple) else (self.read,)), *self.marked)


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


Physical = StagePlan | First | Local | Joined | ZipRows


class Seen:
    """What was found out while one plan is lowered, by ids, with what these are of: unions that lie within each other
    are asked for the same of their parts, each for all that are below it."""

    def __init__(self) -> None:
        self.fused: dict[tuple[int, ...], tuple[FusedScan, Scan, tuple[Operator, ...]]] = {}
        self.one_stage: dict[tuple[int, End], tuple[bool, Union]] = {}


def lower(plan: Plan, end: End) -> Physical:
    """Returns what runs for a plan whose rows go to `end`; `StagePlan` if they are written.

    Raises ConfigError for parts of a union without an identity, and for a plan of more than can be run at once.
    """
    try:
        with told_once():
            return _lower(plan, end, (), Seen())
    except RecursionError:
        raise ConfigError(
            "unions, zips or limits of this dataset lie within each other, too many to be planned, as where a loop "
            "adds one at a time; write first.union(*others), which takes any number at once, or save in between with "
            "checkpoint()"
        ) from None


def _lower(plan: Plan, end: End, operators: tuple[Operator, ...], seen: Seen) -> Physical:
    """Returns what runs for a plan followed by `operators`."""
    chain = list[Operator]()
    while isinstance(plan, Apply):
        chain.append(plan.operator)
        plan = plan.input
    operators = (*reversed(chain), *operators)
    if len(operators) > MOST_STEPS:
        raise ConfigError(
            f"{len(operators):,} steps follow each other in this dataset, and a task runs {MOST_STEPS} at most; put "
            "several into one function or one with_columns(...), or save in between with checkpoint()"
        )
    drawn = _drawn(operators)
    while isinstance(plan, Limit) and isinstance(plan.input, Limit):
        plan = Limit(plan.input.input, min(plan.rows, plan.input.rows))
    match plan:
        case Scan():
            return StagePlan((_fused(plan, operators, seen),), operators)
        case Checkpoint() | Exchanged():
            return StagePlan(plan, operators)
        case Marked(input, step, _):
            # Told apart by their places, and by no name of a file: see `curate.plan.dedup`.
            below = _lower_stage(input, End.RUNS, (step, *operators), seen)
            assert below.first is None
            return replace(below, marked=(*below.marked, plan))
        case Union():
            return _union(plan, end, operators, seen)
        case Zip(inputs):
            if drawn or end is not End.BLOCKS:
                return StagePlan(Exchanged(inputs, Zipped(len(inputs))), operators)
            return _then(ZipRows(tuple(_lower(one, end, (), seen) for one in inputs), inputs), operators)
        case Limit(input, rows):
            if (kept := within(input, rows)) is not None:
                return _lower(kept, end, operators, seen)
            if drawn:
                # There each row has a place, by which a sample goes, that is the same whoever takes the rows.
                return StagePlan(Exchanged((plan,), Materialize()), operators)
            return _limit(input, rows, end, operators, seen)


def lower_stage(plan: Plan, end: End) -> StagePlan:
    """Returns what the stage does that writes the rows of a plan to `end`."""
    lowered = lower(plan, end)
    assert isinstance(lowered, StagePlan)
    return lowered


def _lower_stage(plan: Plan, end: End, operators: tuple[Operator, ...], seen: Seen) -> StagePlan:
    lowered = _lower(plan, end, operators, seen)
    assert isinstance(lowered, StagePlan)
    return lowered


def _limit(input: Plan, rows: int, end: End, operators: tuple[Operator, ...], seen: Seen) -> Physical:
    if end is End.BLOCKS:
        return _then(First(_limited(_lower(input, end, (), seen), rows), rows), operators)
    below = _lower_stage(input, end, (), seen)
    if below.scans:
        # How far a limit reaches is told by files, or else by pieces, which then have to be the same ones.
        below = _lower_stage(pinned(input), end, (), seen) if end is End.RUNS else below
        return replace(below, first=rows, after=operators)
    if isinstance(input, Union):
        # Each by itself, so that no more is made of it than could be asked for.
        input = Union(tuple(Limit(one, rows) for one in input.inputs))
    return StagePlan(Exchanged((input,), Materialize(first=rows)), operators)


def _union(plan: Union, end: End, operators: tuple[Operator, ...], seen: Seen) -> Physical:
    one_stage = _is_one_stage(plan, end, seen)
    if end is not End.BLOCKS and not one_stage:
        # A sample is drawn of each part where it is read: there a row's place is the one that it is consumed from.
        drawn = _drawn(operators)
        held = Exchanged((applied(plan, operators[:drawn]),), Materialize(called="union"))
        return StagePlan(held, operators[drawn:])
    merged: list[Physical] = []
    # A comprehension takes a place on the stack of its own, and unions that a loop made are hundreds deep.
    for one in plan.inputs:
        part = _lower(one, end, operators, seen)
        before = merged[-1] if merged else None
        if isinstance(part, StagePlan) and part.scans and isinstance(before, StagePlan) and before.scans:
            following = 0 if one_stage else before.scans[-1].part + 1
            further = (replace(one, part=one.part + following) for one in part.scans)
            merged[-1] = StagePlan((*before.scans, *further), before.asked)
        else:
            merged.append(part)
    return merged[0] if len(merged) == 1 else Joined(tuple(merged))


def _is_one_stage(plan: Union, end: End, seen: Seen) -> bool:
    """Returns whether one stage does all of a union: by the parts themselves, for which columns are read of them goes
    by what follows. Where rows are written, it does all of the unions in it, and can call its outputs after files."""
    key = id(plan), end
    if key not in seen.one_stage:
        one_stage = True
        for one in plan.inputs if end is not End.BLOCKS else ():
            base, _ = chain_of(one)
            one_stage = one_stage and (not isinstance(base, Union) or _is_one_stage(base, end, seen))
        leaves = _leaves(plan) if one_stage else []
        first = _fused(*leaves[0], seen) if leaves else None
        # Most loops add a step with each part, so that the third has other ones: no more are looked at.
        one_stage = first is not None and all(are_alike(_fused(*leaf, seen), first) for leaf in leaves)
        if one_stage and end is End.FILES:
            one_stage = _have_names([scan.source for scan, _ in leaves])
        seen.one_stage[key] = one_stage, plan
    return seen.one_stage[key][0]


def _leaves(plan: Union) -> list[tuple[Scan, tuple[Operator, ...]]]:
    """Returns the scans below a union and the unions in it, each with what is done with its rows before they are in the
    union; none if anything else is below it."""
    found: list[tuple[Scan, tuple[Operator, ...]]] = []
    ahead: list[tuple[Plan, tuple[Operator, ...]]] = [(plan, ())]
    while ahead:
        node, operators = ahead.pop()
        chain = list[Operator]()
        while isinstance(node, Apply):
            chain.append(node.operator)
            node = node.input
        operators = (*reversed(chain), *operators) if chain else operators
        if isinstance(node, Union):
            ahead += [(one, operators) for one in reversed(node.inputs)]
        elif isinstance(node, Scan):
            found.append((node, operators))
        else:
            return []
    return found


def _fused(scan: Scan, operators: tuple[Operator, ...], seen: Seen) -> FusedScan:
    key = (id(scan), *map(id, operators))
    if key not in seen.fused:
        seen.fused[key] = fuse(scan.source, operators), scan, operators
    return seen.fused[key][0]


def _then(input: Physical, operators: tuple[Operator, ...]) -> Physical:
    return Local(input, operators) if operators else input


def _drawn(operators: Sequence[Operator]) -> int:
    """Returns how many operators there are up to the last one that draws a sample."""
    return max((number for number, one in enumerate(operators, 1) if isinstance(one, RandomSample)), default=0)


def alike(plan: Plan) -> bool:
    """Returns whether a plan is read of files, or of rows in memory, and the same is done with all of it."""
    return bool(lower_stage(plan, End.RUNS).scans)


def are_alike(one: FusedScan, other: FusedScan) -> bool:
    """Returns whether two are read and processed in the same way, so that one stage writes both."""
    if one is other:
        return True
    if one.source.found is None or other.source.found is None:
        return False
    kinds = [_read_as(source) if isinstance(source, Files) else None for source in (one.source, other.source)]
    asked = [[operator.identity() for operator in fusion.operators] for fusion in (one, other)]
    return kinds[0] == kinds[1] and one.source.found.equals(other.source.found) and asked[0] == asked[1]


def _read_as(source: Files) -> Any:
    """Returns what decides how files are read, and cut where that is told apart."""
    return [source.how.identity(), source.places, source.shard_bytes if source.places else None]


def _have_names(sources: Sequence[Source]) -> bool:
    """Returns whether outputs can be called after the files that these read: no two of one name, and none twice."""
    listings = [one.listing for one in sources if isinstance(one, Files)]
    if len(listings) < 2:
        return True
    uris = [uri for one in listings for uri in one["uri"].to_pylist()]
    names = [stem(name) for one in listings for name in one["name"].to_pylist()]
    return len(uris) == len(set(uris)) and len(names) == len(set(names))


def map_plans(plan: Exchanged, side: int) -> list[Plan]:
    """Returns what the stages write that come before one side of an exchange, in merge order."""
    prepare = plan.how.prepare(side)
    parts = [one for part in apart(plan.inputs[side]) for one in by_segment(applied(part, prepare))]
    # Rows of parts are told apart, if they get random keys.
    return [
        Apply(part.input, replace(part.operator, part=number))
        if isinstance(part, Apply) and isinstance(part.operator, Bucketed)
        else part
        for number, part in enumerate(parts)
    ]


def apart(plan: Plan) -> list[Plan]:
    """Returns a plan as parts that a stage each writes to run files: those of a union that are not `alike`.

    Steps that follow a union see the columns and the types that all parts have together. Where only functions know
    these, the rows are put together first.
    """
    base, nodes = chain_of(plan)
    if not isinstance(base, Union) or alike(base):
        return [plan]
    if nodes and schema_of(base) is None:
        return [_put_together(base, nodes)]
    return [found for one in base.inputs for found in apart(over(one, nodes))]


def drawn_together(node: Plan) -> Plan:
    """Returns a sample, of a union of which only functions know the columns, as one of its rows in shards of their own:
    they have the places there that they are written by. Any other node is as it was."""
    if not (isinstance(node, Apply) and isinstance(node.operator, RandomSample) and node.operator.by_place):
        return node
    base, nodes = chain_of(node)
    if not isinstance(base, Union) or any(isinstance(one, Marked) for one in nodes) or schema_of(base) is not None:
        return node
    return _put_together(base, nodes) if _can_be_written(base) and not is_one_stage(base) else node


def is_one_stage(plan: Plan) -> bool:
    """Returns whether one stage writes all parts, which then have one schema, or nothing can write them."""
    try:
        return alike(plan)
    except ConfigError:
        return True


def _can_be_written(plan: Plan) -> bool:
    """Returns whether all steps of a plan have an identity."""
    try:
        for one in walk(plan):
            if isinstance(one, Apply):
                one.operator.identity()
    except ConfigError:
        return False
    return True


def _put_together(union: Union, nodes: Sequence[Apply | Marked]) -> Plan:
    return over(Exchanged((union,), Materialize(called="union")), nodes)


def _limited(input: Physical, rows: int) -> Physical:
    match input:
        case StagePlan():
            return replace(input, read=tuple(at_most(one, rows) for one in input.scans)) if input.scans else input
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
        case StagePlan():
            scans = tuple(replace(one, read_step=None) for one in physical.scans)
            return replace(physical, read=scans) if scans else physical
        case First() | Local():
            return replace(physical, input=unpaced(physical.input))
        case Joined() | ZipRows():
            return replace(physical, inputs=tuple(map(unpaced, physical.inputs)))


def cpus_of(fusions: Sequence[FusedScan]) -> float:
    """Returns how many CPUs each task holds that runs these."""
    return max((task_cpus(one.operators, one.source.num_cpus) for one in fusions), default=1.0)
