"""A plan as a stage over files: it is planned, run, resumed and looked at like any job.

What a stage reads, and which stages come before that, is the same whoever takes its rows: files, run files, or a
consumer, for whom nothing else of a stage is planned (`reader_of`). All of it is values: what only run files tell, once
they are there, is found out as the stages run (see `curate.graph.reads`).
"""

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
from curate.stage.job_record import JobRecord
from curate.stage.spec import ExchangeRead, StageSpec, TaskSettings, Upstream

NOT_RUN = "none"
"""The codec of run files, which are not compressed: they are mapped into memory."""


class Owner(Protocol):
    """Whose plan it is: says what holds in all of its stages, and what they are called."""

    def below(self, number: int) -> Owner:
        """Returns the owner of a stage that this one reads: the first, the second, ..."""
        ...

    def kept(self, path: str) -> Owner:
        """Returns the owner of the checkpoint at `path`, which is the same for all stages that read it."""
        ...

    def title(self, text: str) -> str:
        """Returns what a stage is called that does this."""
        ...

    def spec(
        self, asked: Sequence[Operator], operators: Sequence[Operator], cpus: float | None, identity: Mapping[str, Any]
    ) -> StageSpec:
        """Returns a stage of these operators, of which the plan decides all else.

        They are `asked` for as they are known by; `cpus` are those that reading asks for. `identity` is that of where
        the rows come from and how they are written.
        """
        ...


class DatasetStages:
    """The stages of a dataset: the identity of each is that of its operators."""

    def below(self, number: int) -> DatasetStages:
        del number
        return self

    def kept(self, path: str) -> DatasetStages:
        del path
        return self

    def title(self, text: str) -> str:
        return text

    def spec(
        self, asked: Sequence[Operator], operators: Sequence[Operator], cpus: float | None, identity: Mapping[str, Any]
    ) -> StageSpec:
        format = OutputFormat(identity["format"])
        name = f"write_{'json' if format is OutputFormat.JSONL else format.value}"
        record = JobRecord(
            name,
            {
                "job": name,
                "version": None,
                "operators": [operator.identity() for operator in asked],
                "batch_size": read_rows(asked),
                "shard_bytes": SHARD_BYTES,
                **identity,
            },
            format,
            identity["codec"],
            parameters={"operators": [operator.name for operator in asked]},
        )
        tasks = TaskSettings(read_rows(operators), SHARD_BYTES, Resources(task_cpus(operators, cpus)))
        return StageSpec(record, tasks, Pipeline(tuple(operators)))


DATASET = DatasetStages()


def stage_of(plan: Plan, format: OutputFormat, codec: str | None, owner: Owner = DATASET) -> StageSpec:
    """Returns the stage that writes a plan's rows, with those before it.

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
        owner.spec(asked, read.operators, read.num_cpus, identity),
        operator=Pipeline(read.operators),
        rows=read.rows,
        inputs=tuple(read.paths),
        before=read.before,
        exchange=read.exchange,
        holes=tuple(one.as_dict() for source in sources_of(plan) for one in getattr(source, "holes", ())),
    )
    if lacks_seed(plan):
        spec = replace(spec, seeded=partial(_seeded, plan, owner, spec.record))
    found = {name: None for step in read.operators for name in getattr(step, "sides", ())}
    if not found or runs:
        return spec
    return replace(spec, record=replace(spec.record, sides={**spec.record.sides, **found}))


def reader_of(plan: Plan) -> StageSpec:
    """Returns the stage that reads a checkpoint, an exchange or rows with marks for who consumes them: no more is said
    of it than what it reads, and what it does with that. All shuffles have a seed."""
    read = _read(plan, DATASET, runs=False)
    spec = DATASET.spec((), read.operators, read.num_cpus, {"format": OutputFormat.RUN.value, "codec": NOT_RUN})
    return replace(spec, rows=read.rows, before=read.before, exchange=read.exchange)


def _read(plan: Plan, owner: Owner, *, runs: bool) -> _Read:
    """Returns where the rows of a plan come from, the stages before it among that, and what is done with them; with
    `runs`, whoever reads them writes run files."""
    base, nodes = chain_of(plan)
    marked = [node for node in nodes if isinstance(node, Marked)]
    read = _Read(operators_in(plan))
    if isinstance(base, Checkpoint):
        upstream = stage_of(base.input, OutputFormat.PARQUET, None, owner.kept(base.path))
        read.paths, read.before = upstream.inputs, (Upstream(upstream, base.path),)
        read.identity["checkpoint"] = upstream.record.fingerprint
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
        prints = [one.spec.record.fingerprint for one in read.before]
        of = prints if len(base.inputs) == 1 else [[one.side, one.spec.record.fingerprint] for one in read.before]
        read.identity["exchange"] = [base.how.identity(), of]
    else:
        _read_sources(read, unmarked(plan), runs=runs, named=not marked)
    if marked:
        told = []
        for number, node in enumerate(marked):
            made = _marks_stages(node, owner, number, len(read.before))
            read.before += tuple(made)
            told.append([one.spec.record.fingerprint for one in made])
        read.identity["marks"] = told
    return read


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


def map_stages(plan: Exchanged, owner: Owner = DATASET) -> list[Upstream]:
    """Returns the stages that write the run files of an exchange, in merge order."""
    how = plan.how
    found: list[Upstream] = []
    for side, below in enumerate(plan.inputs):
        for operator in how.prepare(side):
            below = Apply(below, operator)
        folds = how.folds(side)
        runs = RunSettings(how.orders[side], partial(how.fold, side) if folds else None, how.reason, how.even)
        told = how.identity() if folds else None
        for number, branch in enumerate(_branches(below)):
            spec = _run_files(_apart(branch, number), owner.below(len(found)), f"{how.name}: map", "map", runs, told)
            found.append(Upstream(with_memory(spec), side=side))
    return found


def _marks_stages(plan: Marked, owner: Owner, which: int, before: int) -> list[Upstream]:
    """Returns the stages that write the marks of a step, the `which`th that goes by some, in the order that it wants
    them. As many stages come `before` them."""
    step = plan.step
    runs, told = RunSettings(step.order, step.fold if step.folds else None), step.identity() if step.folds else None
    specs = [
        _run_files(branch, owner.below(before + number), f"{step.name}: marks", "marks", runs, told)
        for number, branch in enumerate(_branches(plan.marks))
    ]
    return [Upstream(spec, marks=which) for spec in specs]


def _run_files(plan: Plan, owner: Owner, text: str, job: str, runs: RunSettings, fold: Any) -> StageSpec:
    """Returns the stage that writes a plan's rows to run files. `fold` is the identity of what puts some together."""
    spec = stage_of(plan, OutputFormat.RUN, NOT_RUN, owner)
    record = replace(
        spec.record,
        name=owner.title(text),
        # What becomes of its rows afterwards is nothing to it, but for how they are put in order and together.
        identity={**spec.record.identity, "job": job, "order": runs.order.identity(), "fold": fold},
        output_schema=_known_schema(plan),
    )
    return replace(spec, record=record, runs=replace(runs, chunk_bytes=chunk_bytes(spec.rows)))


def chunk_bytes(rows: RowSource) -> int:
    """Returns the bytes of rows that a map shard sorts at once: a quarter of a large one, so that few parts of it have
    to be put together again."""
    bundle = rows.bundle_bytes if isinstance(rows, SourceRows) else None
    return max(CHUNK_BYTES, (bundle or 0) // 4)


def with_memory(spec: StageSpec) -> StageSpec:
    """Returns a map stage whose tasks ask for what a chunk takes that is larger than usual."""
    if spec.runs is None or spec.runs.chunk_bytes == CHUNK_BYTES:
        return spec
    return replace(spec, tasks=spec.tasks.needing(COPIES * spec.runs.chunk_bytes))


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


def _seeded(plan: Plan, owner: Owner, record: JobRecord, seed: int) -> StageSpec:
    """Returns the stage of a plan with a seed. Who asked for none asks for none the next time: its identity is the
    same, as is the job."""
    made = stage_of(seeded(plan, seed), record.format, record.codec, owner)
    return replace(made, record=replace(made.record, identity=record.identity))


# Limits, and what reads files


def _limited(base: Limit, after: tuple[Operator, ...], format: OutputFormat, codec: str) -> StageSpec:
    """Returns the stage that writes what `after` makes of the first rows."""
    runs = format is OutputFormat.RUN
    # How far a limit reaches is told by pieces, which then have to be the same ones.
    below = pinned(base.input) if runs else base.input
    inner = stage_of(below, format, codec)
    of = fusions(below)
    assert of is not None
    told = [operator.identity() for operator in after]
    record = replace(
        inner.record,
        identity={**inner.record.identity, "limit": base.rows, "after": told},
        parameters={**inner.record.parameters, "limit": base.rows, "after": [operator.name for operator in after]},
    )
    return replace(
        inner,
        record=record,
        tasks=replace(inner.tasks, resources=Resources(task_cpus((*of[0].operators, *after)))),
        # With a limit that is not decided yet: what pools there are is known from it.
        operator=Pipeline((*of[0].operators, *after)),
        limit=FirstRows(base.rows, of, after, by_rank=not inner.rows.grows),
    )
