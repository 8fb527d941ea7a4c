"""Turns a plan into a stage over files, which is planned, run, resumed and inspected like any job.

`curate.plan.physical` lowers the plan; this file gives a stage its name, its identity and the stages before it. Its
inputs are the same for files, run files and a consumer, who needs nothing else of a stage (`reader_of`). All of it is
values: what depends on finished run files is decided while the stages run (see `curate.graph.reads`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast

import pyarrow as pa

from curate.arrow.canonical import plain_schema
from curate.arrow.schema import format_schema, widens
from curate.arrow.unknown import empty, is_known, is_of_no_rows
from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError
from curate.exchange.kinds.base import Materialize, Repartitioned
from curate.exchange.run_file import CHUNK_BYTES, RunSettings
from curate.formats.encoding import Format
from curate.objects.record import OutputFormat
from curate.operators.parts import SplitOff
from curate.operators.protocol import Operator
from curate.operators.udf import told_once
from curate.pipeline.pipeline import Pipeline
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import BatchPosition, SideTable, read_rows, task_cpus
from curate.plan.nodes import Apply, Checkpoint, Exchanged, Marked, Plan, schema_of, sources_of, walk
from curate.plan.physical import End, StagePlan, apart, lower_stage, map_plans
from curate.plan.rewrites import lacks_seed, map_bytes, operator_of, own_sides, seeded, segmented, size_of
from curate.reduce.ranges import COPIES
from curate.runtime.protocol import Resources
from curate.sources.files import Files
from curate.sources.inputs import FileRows
from curate.sources.protocol import FileListing, RowSource
from curate.sources.shards import SourceRows
from curate.sources.slices import sliced
from curate.sources.split import SHARD_BYTES
from curate.stage.datasink import Datasink
from curate.stage.fusion import FirstRows, FusedScan
from curate.stage.job_record import JobRecord
from curate.stage.stage import ExchangeRead, Stage, TaskSettings, Upstream
from curate.writers.writer import default_codec, suffix

NOT_RUN = "none"
"""The codec of run files, which are not compressed: they are mapped into memory."""


class Owner(Protocol):
    """Whose plan it is: says what holds in all of its stages, and what they are called."""

    def below(self, number: int) -> Owner:
        """Returns the owner of a stage that this one reads: the first, the second, ..."""

    def kept(self, path: str) -> Owner:
        """Returns the owner of the checkpoint at `path`, which is the same for all stages that read it."""

    def title(self, text: str) -> str:
        """Returns what a stage is called that does this."""

    def spec(
        self, asked: Sequence[Operator], operators: Sequence[Operator], cpus: float | None, identity: Mapping[str, Any]
    ) -> Stage:
        """Returns a stage of these operators, of which the plan decides all else.

        They are `asked` for as they are known by; `cpus` are those that reading asks for. `identity` is that of where
        the rows come from and how they are written.
        """


@dataclass(frozen=True, slots=True)
class DatasetStages:
    """The stages of a dataset: the identity of each is that of its operators. Those that say how a stage runs hold for
    all of them, and a sink for the last one."""

    memory_budget: int | None = None
    max_bad_rows: str | None = None
    sink: Datasink | None = None
    sink_identity: Any = None

    def below(self, number: int) -> DatasetStages:
        del number
        return replace(self, sink=None)

    def kept(self, path: str) -> DatasetStages:
        del path
        return replace(self, sink=None)

    def title(self, text: str) -> str:
        return text

    def spec(
        self, asked: Sequence[Operator], operators: Sequence[Operator], cpus: float | None, identity: Mapping[str, Any]
    ) -> Stage:
        format = OutputFormat(identity["format"])
        name = _METHODS.get(format, f"write_{format.value}") if self.sink is None else self.sink.job_name
        record = JobRecord(
            name,
            {
                "job": name,
                "version": None,
                "operators": [operator.identity() for operator in asked],
                "batch_size": read_rows(asked),
                "shard_bytes": SHARD_BYTES,
                **identity,
                **({"sink": self.sink_identity} if self.sink is not None else {}),
            },
            format,
            identity["codec"],
            parameters={"operators": [operator.name for operator in asked]},
            sink=self.sink,
            sink_suffix="" if self.sink is None else self.sink.suffix,
        )
        tasks = TaskSettings(
            read_rows(operators),
            SHARD_BYTES,
            Resources(task_cpus(operators, cpus)),
            memory_budget=self.memory_budget,
            max_bad_rows=self.max_bad_rows,
        )
        return Stage(record, tasks, Pipeline(tuple(operators)))


DATASET = DatasetStages()
_METHODS = {OutputFormat.JSONL: "write_json", OutputFormat.SINK: "write_datasink"}


def stage_of(plan: Plan, format: OutputFormat, codec: str | None, owner: Owner = DATASET) -> Stage:
    """Returns the stage that writes a plan's rows, with those before it.

    Raises ConfigError for a plan whose outputs cannot be named after what it reads, and for one without an identity.
    """
    codec = default_codec(format) if codec is None else codec
    suffix(format, codec)
    end = End.RUNS if format is OutputFormat.RUN else End.FILES
    with told_once():
        lowered = lower_stage(plan, end)
        spec = _stage(lowered, owner, end, {"format": format.value, "codec": codec}, lowered.asked)
    spec = replace(
        spec, holes=tuple(one.as_dict() for source in sources_of(plan) for one in getattr(source, "holes", ()))
    )
    if spec.needs_all_inputs:
        from curate.plan.dedup import extensible

        if extensible(plan):
            spec = replace(spec, extended=partial(_changed, segmented, plan, owner, spec.record))
    if lacks_seed(plan):
        spec = replace(spec, seeded=partial(_changed, seeded, plan, owner, spec.record))
    if end is End.FILES:
        steps = (*lowered.asked, *lowered.after)
        _refuse_unlike_sides(lowered, steps)
        spec.record.refuse_unwritable(schema_of(plan))
        lost = _lost_lists(plan, lowered, steps)
        spec = replace(
            spec, record=replace(spec.record, sides={**spec.record.sides, **own_sides(steps)}), unwritten=lost
        )
    return spec if lowered.first is None else _limited(spec, lowered, lowered.first)


def _refuse_unlike_sides(lowered: StagePlan, steps: Sequence[Operator]) -> None:
    """Raises ConfigError where two of the steps of a stage have an extra output of one name, as far as their columns
    are known, and what they send to it has no schema in common."""
    read = lowered.read
    found = read[0].source.found if isinstance(read, tuple) else schema_of(read)
    times = Counter(name for step in steps for name in own_sides([step]))
    first: dict[str, tuple[str, pa.Schema]] = {}
    for step in steps:
        shared = any(times[name] > 1 for name in own_sides([step]))
        if shared and found is not None and not step.runs_code:
            made = step.apply(empty(found), ShardBooks(BadRowBudget("0")), BatchPosition("", 0))
            for name, rows in ((one.side, one.schema) for one in made if isinstance(one, SideTable)):
                other, before = first.setdefault(name, (step.name, rows))
                # A type that is not known yet may be any.
                types = [two for two in zip(rows.types, before.types, strict=False) if all(map(is_known, two))]
                if rows.names != before.names or not all(widens(*two) and widens(*two[::-1]) for two in types):
                    raise ConfigError(
                        f"{step.name}: its extra output {name!r} has ({format_schema(rows)}), and that of {other}, "
                        f"which is written with it, has ({format_schema(before)}); put a checkpoint between the two, "
                        "which keeps them apart, let both have the same columns, or give a part another name"
                    )
        found = step.schema(found)


def _lost_lists(plan: Plan, lowered: StagePlan, steps: Sequence[Operator]) -> tuple[str, ...]:
    """Returns a sentence about each extra output of a stage before the one of these steps: it is not written.

    Raises ConfigError if it has rows of the input, as parts have: they would be nowhere.
    """
    # The last ones first, as the plan is walked: the same step may be there before the exchange, too.
    written = [step.identity() for step in steps if own_sides([step])]
    met: set[int] = set()
    follows = lowered.read.how.name if isinstance(lowered.read, Exchanged) else "an exchange"
    if follows == Materialize().name:
        # Rows are kept for what reads them twice, or by their places; nobody wrote a step of that name.
        follows = "a limit or a deduplication"
    lost: dict[str, None] = {}
    for node in walk(plan, until=(Checkpoint,)):
        step = operator_of(node) if isinstance(node, Apply | Marked) else None
        if step is None or id(step) in met or not (names := own_sides([step])):
            continue
        met.add(id(step))
        if (known := step.identity()) in written:
            written.remove(known)
            continue
        if isinstance(step, SplitOff):
            raise ConfigError(
                f"{step.name}: {follows} follows it, and what goes to extra outputs before that is not "
                "written: the rows of its parts would be lost; put it behind that, or a checkpoint between the two, "
                "which keeps them"
            )
        told = ", ".join(map(repr, names))
        lost[f"{step.name}: its extra output {told} is not written, because {follows} follows it"] = None
    return tuple(lost)


def reader_of(lowered: StagePlan, owner: Owner = DATASET) -> Stage:
    """Returns the stage that reads what stages before it wrote for who consumes it: no more is said of it than what it
    reads, and what it does with that. All shuffles have a seed."""
    return _stage(lowered, owner, End.BLOCKS, {"format": OutputFormat.RUN.value, "codec": NOT_RUN}, ())


def _stage(
    lowered: StagePlan, owner: Owner, end: End, written: Mapping[str, str], asked: tuple[Operator, ...]
) -> Stage:
    """Returns a stage, which is known by what is `asked` for and `written`."""
    read = _read(lowered, owner, end)
    spec = owner.spec(asked, read.operators, read.num_cpus, {**read.identity, **written})
    return replace(
        spec,
        tasks=replace(spec.tasks, shard_bytes=read.shard_bytes or spec.tasks.shard_bytes),
        operator=Pipeline(read.operators),
        rows=read.rows,
        inputs=tuple(read.paths),
        before=read.before,
        exchange=read.exchange,
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
    shard_bytes: int | None = None
    """Stored bytes of a shard, where rows say where they lie; None: as many as ever."""


def _read(lowered: StagePlan, owner: Owner, end: End) -> _Read:
    """Returns where the rows of a stage come from, the stages before it among that, and what is done with them."""
    read = _Read(lowered.asked)
    match lowered.read:
        case Checkpoint(input, path):
            upstream = stage_of(input, OutputFormat.PARQUET, None, owner.kept(path))
            read.paths, read.before = upstream.inputs, (Upstream(upstream, path),)
            read.identity["checkpoint"] = upstream.record.fingerprint
        case Exchanged(inputs, how) as base:
            # Keys that are not there are refused before anything runs, wherever it is known what there is.
            read.exchange = ExchangeRead(how, schema_of(base))
            if (below := _sliceable(base)) is not None:
                [there] = below.scans
                read.operators = (*there.operators, *read.operators)
                read.rows = SourceRows([sliced(cast(Files, there.source), cast(int, how.count))], [there.view])
                told_below = [operator.identity() for operator in below.asked]
                read.identity["exchange"] = [how.identity(), there.source.identity(), told_below]
            else:
                read.before = tuple(map_stages(base, owner))
                prints = [one.stage.record.fingerprint for one in read.before]
                of = prints if len(inputs) == 1 else [[one.side, one.stage.record.fingerprint] for one in read.before]
                read.identity["exchange"] = [how.identity(), of]
        case scans:
            _read_sources(read, scans, end, named=not lowered.marked)
    told = []
    for number, node in enumerate(lowered.marked):
        made = _marks_stages(node, owner, number, len(read.before))
        read.before += tuple(made)
        told.append([one.stage.record.fingerprint for one in made])
    if told:
        read.identity["marks"] = told
    return read


def _read_sources(read: _Read, scans: Sequence[FusedScan], end: End, *, named: bool) -> None:
    """Says how files, or rows in memory, are read: for an exchange in bundles; else file by file, as inputs that
    outputs are `named` after, or that are the same however often they are read."""
    sources: list[Any] = [one.source for one in scans]
    read.operators = scans[0].operators
    read.num_cpus = max((one.num_cpus for one in sources if one.num_cpus is not None), default=None)
    if end is End.RUNS:
        size = map_bytes(sum(map(size_of, sources)))
        cut: list[Any] = [
            one.in_pieces(min(size, one.shard_bytes)) if isinstance(one, FileListing) and not one.pinned else one
            for one in sources
        ]
        read.rows = SourceRows(cut, [one.view for one in scans], size)
    elif named and all(isinstance(source, Files) for source in sources):
        first, read.paths = cast(Files, sources[0]), [path for one in sources for path in one.paths]
        view = scans[0].view
        how = first.reading(view)
        names = first.columns_in(view)
        read.rows = FileRows(
            None if names is None else dict.fromkeys(names),
            how=how,
            filters=view.filters,
            places=first.places_in(view),
            named=view.named,
        )
        read.identity["read"] = how.identity()
        if first.places:
            # By them rows are known: how files are cut decides what is written.
            read.identity |= {"places": list(first.places), "shard_bytes": first.shard_bytes}
            read.shard_bytes = first.shard_bytes
        return
    else:
        read.rows = SourceRows(sources, [one.view for one in scans])
    read.identity["rows"] = [one.identity() for one in sources]


# Exchanges


def map_stages(plan: Exchanged, owner: Owner = DATASET) -> list[Upstream]:
    """Returns the stages that write the run files of an exchange, in merge order."""
    how = plan.how
    found: list[Upstream] = []
    for side in range(len(plan.inputs)):
        runs = RunSettings(how.orders[side], how.fold if how.folds else None, how.reason, how.keys_begin_pages)
        told = how.identity() if how.folds else None
        for part in map_plans(plan, side):
            spec = _run_files(part, owner.below(len(found)), f"{how.name}: map", "map", runs, told)
            found.append(Upstream(with_memory(spec), side=side))
    return found


def _marks_stages(plan: Marked, owner: Owner, which: int, before: int) -> list[Upstream]:
    """Returns the stages that write the marks of a step, the `which`th that goes by some, in the order that it wants
    them. As many stages come `before` them."""
    step = plan.step
    runs, told = RunSettings(step.order, step.fold if step.folds else None), step.identity() if step.folds else None
    specs = [
        _run_files(part, owner.below(before + number), f"{step.name}: marks", "marks", runs, told)
        for number, part in enumerate(apart(plan.marks))
    ]
    return [Upstream(spec, marks=which) for spec in specs]


def _run_files(plan: Plan, owner: Owner, text: str, job: str, runs: RunSettings, fold: Any) -> Stage:
    """Returns the stage that writes a plan's rows to run files. `fold` is the identity of what puts some together.

    Raises ConfigError for a column that cannot be moved, where it is known."""
    spec = stage_of(plan, OutputFormat.RUN, NOT_RUN, owner)
    if (found := schema_of(plan)) is not None and not is_of_no_rows(found):
        plain_schema(found)  # raises for what cannot be moved, before any row is read
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


def with_memory(spec: Stage) -> Stage:
    """Returns a map stage whose tasks ask for what a chunk takes that is larger than usual."""
    if spec.runs is None or spec.runs.chunk_bytes == CHUNK_BYTES:
        return spec
    return replace(spec, tasks=spec.tasks.needing(COPIES * spec.runs.chunk_bytes))


def _sliceable(plan: Exchanged) -> StagePlan | None:
    """Returns what reads the input of an exchange that moves no row, if it is known where every row is; else None."""
    if not isinstance(plan.how, Repartitioned):
        return None
    lowered = lower_stage(plan.inputs[0], End.RUNS)
    if len(lowered.scans) != 1:
        return None
    [scan] = lowered.scans
    known = isinstance(scan.source, Files) and scan.source.format is Format.PARQUET
    return lowered if known and all(one.keeps_rows for one in scan.operators) else None


def _known_schema(plan: Plan) -> Any:
    """Returns the schema of a plan's rows if it says the type of every column; then no rows have to be asked for it."""
    found = schema_of(plan)
    return found if found is not None and all(is_known(field.type) for field in found) else None


def _changed(change: Callable[[Plan, Any], Plan], plan: Plan, owner: Owner, record: JobRecord, to: Any) -> Stage:
    """Returns the stage of a plan that has got a seed, or whose files are in segments; its identity is the same, as is
    the job: who asked for no seed asks for none the next time."""
    made = stage_of(change(plan, to), record.format, record.codec, owner)
    return replace(made, record=replace(made.record, identity=record.identity))


def _limited(spec: Stage, lowered: StagePlan, first: int) -> Stage:
    """Returns a stage that writes the first rows alone, and what follows on them."""
    scans, after = cast(tuple[FusedScan, ...], lowered.read), lowered.after
    operators = (*scans[0].operators, *after)
    told = [operator.identity() for operator in after]
    record = replace(
        spec.record,
        identity={**spec.record.identity, "limit": first, "after": told},
        parameters={**spec.record.parameters, "limit": first, "after": [operator.name for operator in after]},
    )
    return replace(
        spec,
        record=record,
        tasks=replace(spec.tasks, resources=Resources(task_cpus(operators))),
        # With a limit that is not decided yet: what pools there are is known from it.
        operator=Pipeline(operators),
        limit=FirstRows(first, scans, after, by_rank=not spec.rows.grows),
    )
