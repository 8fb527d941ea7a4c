"""A plan as a stage over files: it is planned, run, resumed and looked at like any job."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt
from typing import Any, Protocol, cast

from curate.arrow.unknown import is_known
from curate.exchange.kinds.base import Repartitioned
from curate.exchange.kinds.shuffle import Bucketed
from curate.exchange.merge import merge_source
from curate.exchange.protocol import Exchange
from curate.exchange.ranges import COPIES, LEAST_BYTES, MOST_BYTES, ranges_of, target_of
from curate.exchange.run_file import CHUNK_BYTES, RunSettings, open_all
from curate.exchange.side_input import FileMarks
from curate.formats.encoding import Format
from curate.formats.record import OutputFormat
from curate.formats.write.writer import DEFAULT_CODEC, suffix
from curate.operators.protocol import Operator
from curate.operators.sample import RandomSample
from curate.pipeline.pipeline import Pipeline
from curate.pipeline.step import read_rows, task_cpus
from curate.plan.nodes import Apply, Checkpoint, Exchanged, Limit, Marked, Plan, Union, schema_of, sources_of
from curate.plan.physical import Tasks, alike, durable, fusions, lower
from curate.plan.rewrites import (
    base_of,
    lacks_seed,
    map_bytes,
    marked_in,
    operators_in,
    pinned,
    seeded,
    size_of,
    unmarked,
)
from curate.runtime.protocol import Resources
from curate.sources.files import Files
from curate.sources.inputs import FileRows
from curate.sources.protocol import FileListing, Projection, Source
from curate.sources.shards import SourceRows
from curate.sources.slices import sliced
from curate.sources.split import SHARD_BYTES
from curate.stage.fusion import FirstRows, FusedScan
from curate.stage.spec import StageSpec, Upstream
from curate.storage.protocol import Object
from curate.units import KIB

RANGE_BYTES = 512 * KIB
"""Bytes of a range, on average, below which run files are merged first: a request costs as much as these take."""

FEWEST_SEGMENTS = 256
"""Segments that an output reads of, up to which small ranges are no matter."""


def merge_stage(spec: StageSpec, how: Exchange, side: int, files: Sequence[Object]) -> StageSpec | None:
    """Returns the stage that merges the run files of one side of an exchange; None where that is not needed.

    Bytes alone decide, and how many segments there are. `spec` is the stage that reads the exchange.
    """
    order = how.orders[side]
    runs = open_all(files)
    if any(not one.schema.equals(runs[0].schema) for one in runs):
        return None  # parts of a union, which are brought to one schema as they are read
    sizes = [int(index.bytes.sum()) for file in runs for index in file.segments]
    outputs = how.count or max(1, -(-sum(sizes) // target_of(sum(sizes))))
    if not order.keys or len(sizes) <= FEWEST_SEGMENTS or sum(sizes) / (len(sizes) * outputs) >= RANGE_BYTES:
        return None
    source = merge_source(order, tuple(files), runs, isqrt(outputs - 1) + 1)
    # By what they are called and not by their generation: those that are made again are the same.
    told = hashlib.sha256(repr([(item.uri.rpartition("/")[2], item.size) for item in files]).encode()).hexdigest()[:16]
    return replace(
        spec,
        name=f"{how.name}: merge",
        identity={"job": "merge", "version": None, "order": order.identity(), "of": told},
        operator=Pipeline(()),
        output_schema=runs[0].schema,
        format=OutputFormat.RUN,
        codec="none",
        rows=SourceRows([source], [Projection()]),
        sides={},
        runs=RunSettings(order, None, how.reason, how.even),
        before=(),
        bind=None,
        seeded=None,
        from_inputs=None,
    )


NOT_RUN = "none"
"""The codec of run files, which are not compressed: they are mapped into memory."""

MOST_MEMORY = COPIES * MOST_BYTES
"""Bytes that a task may need for the rows of one key, where no memory_budget says more, or less."""


class Owner(Protocol):
    """The job whose plan it is, which says what holds in all of its stages, and what they are called."""

    def below(self, number: int) -> Owner:
        """Returns the owner of a stage that this one reads: the first, the second, ..."""
        ...

    def kept(self, path: str) -> Owner:
        """Returns the owner of the checkpoint at `path`, which is the same for all stages that read it."""
        ...

    def spec(self, operators: Sequence[Operator], identity: Mapping[str, Any]) -> StageSpec:
        """Returns a stage of these operators, of which the plan decides all else; `identity` is that of where its rows
        come from and how they are written."""
        ...


def stage_of(
    plan: Plan, format: OutputFormat, codec: str | None, owner: Owner | None = None
) -> tuple[StageSpec, Sequence[str]]:
    """Returns the stage that writes a plan's rows, and the paths that it reads; those of its checkpoint, if it has one.

    Without an owner the identity of the stage is that of its operators.

    Raises ConfigError for a plan whose outputs cannot be named after what it reads, and for one without an identity.
    """
    codec = codec or DEFAULT_CODEC
    suffix(format, codec)
    plan = durable(plan, named=format is not OutputFormat.RUN)
    # As they were asked for: how they are rewritten changes no byte, and may change with the next version of curate.
    asked = tuple(operators_in(plan))
    base = base_of(plan)
    marked = marked_in(plan)
    if isinstance(base, Limit):
        return _limited(base, asked, format, codec)
    read = _Read(operators=asked)
    identity: dict[str, Any] = {}
    if isinstance(base, Checkpoint):
        above = None if owner is None else owner.kept(base.path)
        upstream, read.paths = stage_of(base.input, OutputFormat.PARQUET, None, above)
        read.before = (Upstream(upstream, base.path, tuple(read.paths)),)
        identity["checkpoint"] = upstream.fingerprint
    elif isinstance(base, Exchanged) and (there := _sliceable(base)) is not None:
        read.operators = (*there.operators, *asked)
        read.rows = SourceRows([sliced(cast(Files, there.source), cast(int, base.how.count))], [there.view])
        told_below = [operator.identity() for operator in operators_in(base.inputs[0])]
        identity["exchange"] = [base.how.identity(), there.source.identity(), told_below]
    elif isinstance(base, Exchanged):
        # Keys that are not there are refused before anything runs, wherever it is known what there is.
        schema_of(base)
        read.exchange = base
        sides = map_stages(base, owner)
        read.before = tuple(Upstream(spec) for spec, _ in sides)
        read.sides = tuple(side for _, side in sides)
        of = [spec.fingerprint if len(base.inputs) == 1 else [side, spec.fingerprint] for spec, side in sides]
        identity["exchange"] = [base.how.identity(), of]
    else:
        read = _reading(unmarked(plan), runs=format is OutputFormat.RUN, named=not marked)
        how = read.rows.how if isinstance(read.rows, FileRows) else None
        identity |= {"read": how.identity()} if how else {"rows": [one.identity() for one in read.sources]}
    if marked:
        told = [_marks_stages(one, owner, len(read.before)) for one in marked]
        read.marks = tuple(len(specs) for specs in told)
        read.before += tuple(Upstream(spec, feeds=False) for specs in told for spec in specs)
        identity["marks"] = [[spec.fingerprint for spec in specs] for specs in told]
    identity |= {"format": format.value, "codec": codec}
    spec = replace(
        _written(asked, read, format, codec, identity) if owner is None else owner.spec(read.operators, identity),
        operator=Pipeline(read.operators),
        format=format,
        codec=codec,
        rows=read.rows or FileRows(),
        before=read.before,
        bind=partial(_bound, read.exchange, read.sides, read.marks) if isinstance(base, Exchanged) or marked else None,
        seeded=partial(_seeded, plan, format, codec, owner) if lacks_seed(plan) else None,
        holes=tuple(one.as_dict() for source in sources_of(plan) for one in getattr(source, "holes", ())),
    )
    found = {name: None for step in read.operators for name in getattr(step, "sides", ())}
    if format is not OutputFormat.RUN and found:
        spec = replace(spec, sides={**spec.sides, **found})
    return spec, read.paths


def _written(
    asked: Sequence[Operator], read: _Read, format: OutputFormat, codec: str, identity: Mapping[str, Any]
) -> StageSpec:
    """Returns a stage of a dataset: its identity is that of its operators."""
    return StageSpec(
        name=f"write_{'json' if format is OutputFormat.JSONL else format.value}",
        identity={
            "job": f"write_{'json' if format is OutputFormat.JSONL else format.value}",
            "version": None,
            "operators": [operator.identity() for operator in asked],
            "batch_size": read_rows(asked),
            "shard_bytes": SHARD_BYTES,
            **identity,
        },
        code_digest="",
        parameters={"operators": [operator.name for operator in asked]},
        operator=Pipeline(read.operators),
        output_schema=None,
        batch_rows=read_rows(read.operators),
        shard_bytes=SHARD_BYTES,
        format=format,
        codec=codec,
        resources=Resources(task_cpus(read.operators, read.num_cpus)),
    )


@dataclass
class _Read:
    """Where the rows of a stage come from."""

    operators: tuple[Operator, ...]
    paths: Sequence[str] = ()
    rows: SourceRows | FileRows | None = None
    sources: Sequence[Source] = ()
    num_cpus: float | None = None
    before: tuple[Upstream, ...] = ()
    exchange: Exchanged | None = None
    sides: tuple[int, ...] = ()
    """The side of the exchange that each stage before is of."""
    marks: tuple[int, ...] = ()
    """How many stages make the marks of each step that has some; they come after those of the exchange."""


def _reading(plan: Plan, *, runs: bool, named: bool) -> _Read:
    """Returns how files, or rows in memory, are read: for an exchange in bundles; else file by file, as inputs that
    outputs are `named` after, or that are the same however often they are read."""
    of = fusions(plan)
    assert of is not None
    sources: list[Any] = [one.source for one in of]
    asked = [one.num_cpus for one in sources if one.num_cpus is not None]
    read = _Read(of[0].operators, sources=sources, num_cpus=max(asked, default=None))
    if runs:
        size = map_bytes(sum(map(size_of, sources)))
        # Which rows are in a sample goes by the pieces that they are in.
        sampled = any(isinstance(step, RandomSample) for step in read.operators)
        cut: list[Any] = [
            one.in_pieces(min(size, one.shard_bytes))
            if isinstance(one, FileListing) and not (one.pinned or sampled)
            else one
            for one in sources
        ]
        read.rows = SourceRows(cut, [one.view for one in of], size)
    elif named and all(isinstance(source, Files) for source in sources):
        first, read.paths = cast(Files, sources[0]), [path for one in sources for path in one.paths]
        view = of[0].view
        read.rows = FileRows(None if view.columns is None else dict.fromkeys(view.columns), how=first.reading(view))
    else:
        read.rows = SourceRows(sources, [one.view for one in of])
    return read


# Exchanges


def map_stages(plan: Exchanged, owner: Owner | None = None) -> list[tuple[StageSpec, int]]:
    """Returns the stages that write the run files of an exchange, in merge order, each with the side that it is of."""
    how = plan.how
    found: list[tuple[StageSpec, int]] = []
    for side, below in enumerate(plan.inputs):
        for operator in how.prepare(side):
            below = Apply(below, operator)
        for number, branch in enumerate(_branches(below)):
            branch = _apart(branch, number)
            spec, _ = stage_of(branch, OutputFormat.RUN, NOT_RUN, None if owner is None else owner.below(len(found)))
            order = how.orders[side]
            fold = partial(how.fold, side) if how.folds(side) else None
            spec = replace(
                spec,
                name=f"{how.name}: map" if owner is None else f"{spec.name}: {how.name}: map",
                # What becomes of its rows afterwards is nothing to it, but for how they are put in order and together.
                identity={
                    **spec.identity,
                    "job": "map",
                    "order": order.identity(),
                    "fold": how.identity() if how.folds(side) else None,
                },
                output_schema=_known_schema(branch),
                runs=RunSettings(order, fold, how.reason, how.even, chunk_bytes(spec)),
            )
            found.append((with_memory(spec), side))
    return found


def _marks_stages(plan: Marked, owner: Owner | None, number: int) -> list[StageSpec]:
    """Returns the stages that write the marks of a step, in the order that it wants them."""
    step = plan.step
    found: list[StageSpec] = []
    for branch in _branches(plan.marks):
        above = None if owner is None else owner.below(number + len(found))
        spec, _ = stage_of(branch, OutputFormat.RUN, NOT_RUN, above)
        order = step.order.identity()
        told = {**spec.identity, "job": "marks", "order": order, "fold": step.identity() if step.folds else None}
        runs = RunSettings(step.order, step.fold if step.folds else None, chunk_bytes=chunk_bytes(spec))
        name = f"{step.name}: marks" if owner is None else f"{spec.name}: {step.name}: marks"
        found.append(replace(spec, name=name, identity=told, output_schema=_known_schema(branch), runs=runs))
    return found


def chunk_bytes(spec: StageSpec) -> int:
    """Returns the bytes of rows that a map shard sorts at once: a quarter of a large one, so that few parts of it have
    to be put together again."""
    bundle = spec.rows.bundle_bytes if isinstance(spec.rows, SourceRows) else None
    return max(CHUNK_BYTES, (bundle or 0) // 4)


def with_memory(spec: StageSpec) -> StageSpec:
    """Returns a map stage whose tasks ask for what a chunk takes that is larger than usual."""
    if spec.runs is None or spec.runs.chunk_bytes == CHUNK_BYTES:
        return spec
    needed = max(COPIES * spec.runs.chunk_bytes, spec.resources.memory or 0)
    return replace(spec, resources=replace(spec.resources, memory=needed))


def _branches(plan: Plan) -> list[Plan]:
    """Returns a plan as parts that are stages, in order: those of a union whose parts are read or done differently."""
    base = base_of(plan)
    if not isinstance(base, Union) or alike(base):
        return [plan]
    return [found for one in base.inputs for found in _branches(_rebased(plan, one))]


def _apart(plan: Plan, number: int) -> Plan:
    """Returns a part of a union whose rows are told apart from those of the others, if they get random keys."""
    if isinstance(plan, Apply) and isinstance(plan.operator, Bucketed):
        return Apply(plan.input, replace(plan.operator, part=number))
    return plan


def _rebased(plan: Plan, base: Plan) -> Plan:
    """Returns the operators of a plan over another base."""
    match plan:
        case Apply(input, operator):
            return Apply(_rebased(input, base), operator)
        case Marked(input, step, marks):
            return Marked(_rebased(input, base), step, marks)
    return base


def _sliceable(plan: Exchanged) -> FusedScan | None:
    """Returns what reads the input of an exchange that moves no row, if it is known where every row is; else None."""
    if not isinstance(plan.how, Repartitioned):
        return None
    physical = lower(plan.inputs[0])
    if not isinstance(physical, Tasks) or len(physical.fusions) != 1:
        return None
    (fusion,) = physical.fusions
    known = isinstance(fusion.source, Files) and fusion.source.format is Format.PARQUET
    return fusion if known and all(one.keeps_rows for one in fusion.operators) else None


def _bound(
    exchange: Exchanged | None,
    sides: Sequence[int],
    marks: Sequence[int],
    spec: StageSpec,
    stages: Sequence[Sequence[Object]],
) -> StageSpec:
    """Returns the stage that reads an exchange, or marks, once the run files of its stages before are there."""
    if exchange is not None:
        of: list[list[Object]] = [[] for _ in exchange.how.orders]
        for side, objects in zip(sides, stages, strict=False):
            of[side] += objects
        merges = [merge_stage(spec, exchange.how, side, objects) for side, objects in enumerate(of)]
        if any(merges):
            before = tuple(Upstream(one) for one in merges if one is not None)
            then = partial(_merged, exchange, [one is not None for one in merges], of, marks, stages[len(sides) :])
            return replace(spec, before=before, bind=then)
        spec = _ranging(exchange, of, spec)
    if marks:
        left = iter(stages[len(sides) :])
        files = [[item for _ in range(count) for item in next(left)] for count in marks]
        spec = replace(spec, operator=Pipeline(with_marks(cast(Pipeline, spec.operator).steps, files)))
    return spec


def _merged(
    exchange: Exchanged,
    merged: Sequence[bool],
    of: Sequence[Sequence[Object]],
    marks: Sequence[int],
    others: Sequence[Sequence[Object]],
    spec: StageSpec,
    stages: Sequence[Sequence[Object]],
) -> StageSpec:
    """Returns the stage that reads an exchange of whose sides some were merged."""
    left = iter(stages)
    spec = _ranging(exchange, [next(left) if yes else files for yes, files in zip(merged, of, strict=True)], spec)
    return _bound(None, (), marks, spec, others)


def _ranging(exchange: Exchanged, of: Sequence[Sequence[Object]], spec: StageSpec) -> StageSpec:
    """Returns the stage that reads its ranges of the run files of each side."""
    source = ranges_of(exchange.how, schema_of(exchange), of, spec.memory_budget or MOST_MEMORY)
    most = max((piece.size for piece in source.made), default=0)
    needed = COPIES * most if most > LEAST_BYTES else 0
    memory = max(spec.resources.memory or 0, needed) or None
    return replace(spec, rows=SourceRows([source], [Projection()]), resources=replace(spec.resources, memory=memory))


def with_marks(steps: Sequence[Any], files: Sequence[Sequence[Object]]) -> tuple[Any, ...]:
    """Returns steps of which those that go by marks have them: the run files of each, in their order."""
    left = iter(files)
    return tuple(
        one.marked(FileMarks(tuple(next(left)), one.order)) if hasattr(one, "marked") else one for one in steps
    )


def _known_schema(plan: Plan) -> Any:
    """Returns the schema of a plan's rows if it says the type of every column; then no rows have to be asked for it."""
    found = schema_of(plan)
    return found if found is not None and all(is_known(field.type) for field in found) else None


def _seeded(plan: Plan, format: OutputFormat, codec: str, owner: Owner | None, seed: int) -> StageSpec:
    spec, _ = stage_of(plan, format, codec, owner)
    with_seed, _ = stage_of(seeded(plan, seed), format, codec, owner)
    # Who asked for no seed asks for none the next time, and it is the same job.
    return replace(with_seed, identity=spec.identity)


# Limits, and what reads files


def _limited(
    base: Limit, after: tuple[Operator, ...], format: OutputFormat, codec: str
) -> tuple[StageSpec, Sequence[str]]:
    """Returns the stage that writes what `after` makes of the first rows."""
    runs = format is OutputFormat.RUN
    # How far a limit reaches is told by pieces, which then have to be the same ones.
    below = pinned(base.input) if runs else base.input
    inner, paths = stage_of(below, format, codec)
    of = fusions(below)
    assert of is not None
    told = [operator.identity() for operator in after]
    spec = replace(
        inner,
        identity={**inner.identity, "limit": base.rows, "after": told},
        parameters={**inner.parameters, "limit": base.rows, "after": [operator.name for operator in after]},
        resources=Resources(task_cpus((*of[0].operators, *after))),
        # With a limit that is not decided yet: what pools there are is known from it.
        operator=Pipeline((*of[0].operators, *after)),
        limit=FirstRows(base.rows, of, after, by_rank=not inner.rows.grows),
    )
    return spec, paths
