"""A plan as a stage over files: it is planned, run, resumed and looked at like any job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, cast

from curate.arrow.unknown import is_known
from curate.exchange.kinds.base import Repartitioned
from curate.exchange.kinds.shuffle import Bucketed
from curate.exchange.ranges import COPIES
from curate.exchange.run_file import CHUNK_BYTES, RunSettings
from curate.formats.encoding import Format
from curate.formats.record import OutputFormat
from curate.formats.write.writer import DEFAULT_CODEC, suffix
from curate.operators.protocol import Operator
from curate.operators.sample import RandomSample
from curate.pipeline.pipeline import Pipeline
from curate.pipeline.step import read_rows, task_cpus
from curate.plan.nodes import Apply, Checkpoint, Exchanged, Limit, Marked, Plan, Union, schema_of, sources_of
from curate.plan.physical import Tasks, alike, durable, fusions, lower
from curate.plan.rewrites import chain_of, lacks_seed, map_bytes, operators_in, over, pinned, seeded, size_of, unmarked
from curate.runtime.protocol import Resources
from curate.sources.files import Files
from curate.sources.inputs import FileRows
from curate.sources.protocol import FileListing, RowSource
from curate.sources.shards import SourceRows
from curate.sources.slices import sliced
from curate.sources.split import SHARD_BYTES
from curate.stage.fusion import FirstRows, FusedScan
from curate.stage.spec import ExchangeRead, StageSpec, Upstream

NOT_RUN = "none"
"""The codec of run files, which are not compressed: they are mapped into memory."""


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
    runs = format is OutputFormat.RUN
    plan = durable(plan, named=not runs)
    # As they were asked for: how they are rewritten changes no byte, and may change with the next version of curate.
    asked = operators_in(plan)
    base, _ = chain_of(plan)
    if isinstance(base, Limit):
        return _limited(base, asked, format, codec)
    read = _read(plan, owner, runs=runs)
    identity = {**read.identity, "format": format.value, "codec": codec}
    spec = replace(
        _written(asked, read, format, codec, identity) if owner is None else owner.spec(read.operators, identity),
        operator=Pipeline(read.operators),
        format=format,
        codec=codec,
        rows=read.rows,
        before=read.before,
        exchange=read.exchange,
        holes=tuple(one.as_dict() for source in sources_of(plan) for one in getattr(source, "holes", ())),
    )
    if lacks_seed(plan):
        spec = replace(spec, seeded=partial(_seeded, plan, format, codec, owner, spec.identity))
    found = {name: None for step in read.operators for name in getattr(step, "sides", ())}
    if not runs and found:
        spec = replace(spec, sides={**spec.sides, **found})
    return spec, read.paths


def reader_of(plan: Plan) -> StageSpec:
    """Returns the stage that reads a checkpoint, an exchange or rows with marks for who consumes them: no more is said
    of it than what it reads, and what it does with that. All shuffles have a seed."""
    read = _read(plan, None, runs=False)
    spec = _written((), read, OutputFormat.RUN, NOT_RUN, {})
    return replace(spec, rows=read.rows, before=read.before, exchange=read.exchange)


def _read(plan: Plan, owner: Owner | None, *, runs: bool) -> _Read:
    """Returns where the rows of a plan come from, the stages before it among that, and what is done with them; with
    `runs`, whoever reads them writes run files."""
    base, nodes = chain_of(plan)
    marked = [node for node in nodes if isinstance(node, Marked)]
    read = _Read(operators_in(plan))
    if isinstance(base, Checkpoint):
        above = None if owner is None else owner.kept(base.path)
        upstream, read.paths = stage_of(base.input, OutputFormat.PARQUET, None, above)
        read.before = (Upstream(upstream, base.path, tuple(read.paths)),)
        read.identity["checkpoint"] = upstream.fingerprint
    elif isinstance(base, Exchanged) and (there := _sliceable(base)) is not None:
        read.operators = (*there.operators, *read.operators)
        read.rows = SourceRows([sliced(cast(Files, there.source), cast(int, base.how.count))], [there.view])
        told_below = [operator.identity() for operator in operators_in(base.inputs[0])]
        read.exchange = ExchangeRead(base.how, schema_of(base))
        read.identity["exchange"] = [base.how.identity(), there.source.identity(), told_below]
    elif isinstance(base, Exchanged):
        # Keys that are not there are refused before anything runs, wherever it is known what there is.
        read.exchange = ExchangeRead(base.how, schema_of(base))
        read.before = tuple(map_stages(base, owner))
        prints = [one.spec.fingerprint for one in read.before]
        of = prints if len(base.inputs) == 1 else [[one.side, one.spec.fingerprint] for one in read.before]
        read.identity["exchange"] = [base.how.identity(), of]
    else:
        _read_sources(read, unmarked(plan), runs=runs, named=not marked)
    if marked:
        told = []
        for number, node in enumerate(marked):
            made = _marks_stages(node, owner, number, len(read.before))
            read.before += tuple(made)
            told.append([one.spec.fingerprint for one in made])
        read.identity["marks"] = told
    return read


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
    identity: dict[str, Any] = field(default_factory=dict)
    paths: Sequence[str] = ()
    rows: RowSource = field(default_factory=FileRows)
    num_cpus: float | None = None
    before: tuple[Upstream, ...] = ()
    exchange: ExchangeRead | None = None


def _read_sources(read: _Read, plan: Plan, *, runs: bool, named: bool) -> None:
    """Says how files, or rows in memory, are read: for an exchange in bundles; else file by file, as inputs that
    outputs are `named` after, or that are the same however often they are read."""
    of = fusions(plan)
    assert of is not None
    sources: list[Any] = [one.source for one in of]
    read.operators = of[0].operators
    read.num_cpus = max((one.num_cpus for one in sources if one.num_cpus is not None), default=None)
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
        how = first.reading(view)
        read.rows = FileRows(None if view.columns is None else dict.fromkeys(view.columns), how=how)
        read.identity["read"] = how.identity()
        return
    else:
        read.rows = SourceRows(sources, [one.view for one in of])
    read.identity["rows"] = [one.identity() for one in sources]


# Exchanges


def map_stages(plan: Exchanged, owner: Owner | None = None) -> list[Upstream]:
    """Returns the stages that write the run files of an exchange, in merge order."""
    how = plan.how
    found: list[Upstream] = []
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
            found.append(Upstream(with_memory(spec), side=side))
    return found


def _marks_stages(plan: Marked, owner: Owner | None, which: int, before: int) -> list[Upstream]:
    """Returns the stages that write the marks of a step, the `which`th that goes by some, in the order that it wants
    them. As many stages come `before` them."""
    step = plan.step
    found: list[Upstream] = []
    for branch in _branches(plan.marks):
        above = None if owner is None else owner.below(before + len(found))
        spec, _ = stage_of(branch, OutputFormat.RUN, NOT_RUN, above)
        order = step.order.identity()
        told = {**spec.identity, "job": "marks", "order": order, "fold": step.identity() if step.folds else None}
        runs = RunSettings(step.order, step.fold if step.folds else None, chunk_bytes=chunk_bytes(spec))
        name = f"{step.name}: marks" if owner is None else f"{spec.name}: {step.name}: marks"
        spec = replace(spec, name=name, identity=told, output_schema=_known_schema(branch), runs=runs)
        found.append(Upstream(spec, marks=which))
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
    base, nodes = chain_of(plan)
    if not isinstance(base, Union) or alike(base):
        return [plan]
    return [found for one in base.inputs for found in _branches(over(one, nodes))]


def _apart(plan: Plan, number: int) -> Plan:
    """Returns a part of a union whose rows are told apart from those of the others, if they get random keys."""
    if isinstance(plan, Apply) and isinstance(plan.operator, Bucketed):
        return Apply(plan.input, replace(plan.operator, part=number))
    return plan


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


def _known_schema(plan: Plan) -> Any:
    """Returns the schema of a plan's rows if it says the type of every column; then no rows have to be asked for it."""
    found = schema_of(plan)
    return found if found is not None and all(is_known(field.type) for field in found) else None


def _seeded(
    plan: Plan, format: OutputFormat, codec: str, owner: Owner | None, identity: Mapping[str, Any], seed: int
) -> StageSpec:
    """Returns the stage of a plan with a seed. Who asked for none asks for none the next time: its `identity` is the
    same, as is the job."""
    with_seed, _ = stage_of(seeded(plan, seed), format, codec, owner)
    return replace(with_seed, identity=identity)


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
