"""A rewritten plan as a stream of blocks, in the order of the input."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from typing import Any, cast

import pyarrow as pa

from curate.around import contextmanager
from curate.arrow.batches import first_rows
from curate.arrow.unknown import fill_schema
from curate.backends.choose import Ask, Chosen, for_many
from curate.backends.make import check_backend, make_backend
from curate.clock import SystemClock
from curate.code.watch import watched
from curate.dataclass import dataclass, replace
from curate.dataset.stats import LastRun, RunStats
from curate.errors import CheckpointFailed, ConfigError, ExchangeFailed
from curate.exchange.kinds.zip import zipped_names
from curate.exchange.protocol import unequal
from curate.folders.temporary import temporary_folder
from curate.formats.encoding import Format
from curate.graph.upstream import checkpoint_options, ready_stages
from curate.keywords import BY_USING, by_using, of_checkpoint
from curate.ledger.stages import scratch_root
from curate.ledger.summary import RunState
from curate.observe.progress import Display
from curate.operators.protocol import Operator
from curate.operators.udf import Udf
from curate.pipeline.pipeline import Pipeline, ShardContext, in_order
from curate.pipeline.retry_later import wait_between
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import SideTable, task_cpus
from curate.plan.nodes import Apply, Checkpoint, Limit, Plan, Scan, known_row_count, may_be_incomplete, walk
from curate.plan.physical import First, Joined, Local, Physical, StagePlan, ZipRows, are_alike, cpus_of
from curate.plan.pushdown import fuse
from curate.plan.stages import DatasetStages, reader_of
from curate.resume.options import parse_run_options
from curate.runtime.protocol import Resources
from curate.sources.files import files
from curate.sources.protocol import FileListing, Projection, in_memory
from curate.sources.shards import SourceRows, label_of
from curate.stage.fusion import FusedScan
from curate.stage.stage import MEMORY_BUDGET
from curate.storage.uris import MEMORY
from curate.streaming.engine import STREAM_POLICY, stream_blocks
from curate.streaming.prefetch import Stopped, never_stopped
from curate.streaming.program import StreamProgram, ranked_pieces
from curate.streaming.settling import declared_schema, with_one_schema, without_piece
from curate.tasks.failure import ShardWaits
from curate.units import keep_whole, shell_word


@dataclass(frozen=True, slots=True)
class Options:
    """How a dataset runs, when it is consumed or written; none changes a row or a byte of an output that is complete.

    Raises ConfigError for an unknown backend, sizes below 1, and numbers that are none.

    >>> curate.range(3).using(curate.Options(block_bytes=1 << 20)).take(1)
    [{'id': 0}]
    """

    backend: str | None = None
    """Where rows are made: in this process (`inline`), or as tasks in worker processes of this machine (`local`) or on
    `ray`; `auto`: on `ray` if there is a cluster to join, or the rows need what only Ray can place, else on `local`.
    None: what is written on `$CURATE_BACKEND`, else `auto`, and so what is consumed if a pool asks for several actors;
    anything else that is consumed in this process."""
    block_bytes: int = 128 << 20
    """Bytes at which rows on their way to the consumer become a block; the first ones are smaller."""
    memory_budget: int | None = None
    """Bytes of blocks that are made and not consumed, at most, beside one block a task; and of batches that a task has
    on their way to and from the actors of a pool. None: 512 MiB."""
    max_bad_rows: str | int | None = None
    """Bad rows that are left out of a shard, `N`, or `P%` but at most 100,000, before it fails. None: 0.1 %, at least
    10, but not all of a file for the types of its columns."""
    max_failed_shards: str | int | None = None
    """Failed shards, `N` or `P%`, after which a write or a checkpoint stops. None: it tries all."""
    redo_stale: bool = False
    """Whether a write or a checkpoint makes outputs again whose input changed."""
    drop_removed: bool = False
    """Whether a write or a checkpoint removes outputs whose input was removed."""
    allow_concurrent: bool = False
    """Whether a write or a checkpoint runs beside another process that writes the same output."""

    def __post_init__(self) -> None:
        if self.backend is not None:
            check_backend(self.backend)
        given = [name for name in ("block_bytes", "memory_budget") if getattr(self, name) is not None]
        keep_whole(self, "", dict.fromkeys(given, 1))
        BadRowBudget(bad_rows_of(self))
        parse_run_options(input="none", output="none", **run_options_of(self))


def bad_rows_of(how: Options) -> str | None:
    """Returns `max_bad_rows` as text."""
    return None if how.max_bad_rows is None else str(how.max_bad_rows)


def stages_of(how: Options) -> DatasetStages:
    """Returns the owner of a dataset's stages, which run so."""
    return DatasetStages(how.memory_budget, bad_rows_of(how))


def run_options_of(how: Options) -> dict[str, Any]:
    """Returns the options that `Job.run` has as well: they are for writes and checkpoints."""
    return {name: getattr(how, name) for name in BY_USING}


def settled(plan: Plan, how: Options) -> tuple[Options, Chosen]:
    """Returns how the rows of a plan are consumed, with the backend that they are made on, and why on that one."""
    steps = [node.operator for node in walk(plan) if isinstance(node, Apply)]
    pools = [pool for one in steps for pool in Pipeline((one,)).pools]
    ask = Ask(Resources(max((task_cpus([one]) for one in steps), default=1.0)), tuple(pools))
    many = any(pool.min_size > 1 or (pool.max_size or 1) > 1 for pool in pools)
    name, here = how.backend or "inline", list(_in_memory(plan))
    chosen = for_many(ask, here) if many and how.backend is None else Chosen.of(name, [ask], here=here)
    return replace(how, backend=chosen.name), chosen


def watching(plan: Plan, backend: str | None) -> AbstractContextManager[None]:
    """Returns what is around a run of a plan: what its functions change in this process makes them no other ones."""
    if backend not in (None, "inline") and not any(isinstance(node, Limit) for node in walk(plan)):
        return nullcontext()
    steps = [getattr(node, "operator", getattr(node, "how", None)) for node in walk(plan)]
    called = [udf for step in steps if isinstance(udf := getattr(step, "fn", None), Udf)]
    return watched(one for udf in called for one in (udf.target, *udf.args, *udf.kwargs.values()))


def _in_memory(plan: Plan) -> Iterator[str]:
    """Yields the URIs in the memory of this process that a plan reads and writes."""
    for node in walk(plan):
        if isinstance(node, Checkpoint) and node.path.startswith(MEMORY):
            yield node.path
        if isinstance(node, Scan) and isinstance(node.source, FileListing):
            yield from in_memory(node.source.listing)


def blocks(
    physical: Physical, how: Options, stopped: Stopped = never_stopped, share: int = 1, run: RunStats | None = None
) -> Iterator[pa.Table]:
    """Yields the blocks of a plan, none empty. Nothing runs before the first is asked for. `run` is told how it goes.
    `how` is `settled`.

    Closing it ends all; so does `stopped`, which is asked while it waits. It is one of `share` streams that are
    consumed at once, and takes no more than its share of CPUs and memory.
    """
    run = run or RunStats()
    match physical:
        case StagePlan():
            with ExitStack() as held:
                scans = physical.scans
                if physical.upstream:
                    root = ""
                    if not isinstance(physical.read, Checkpoint) or physical.marked:
                        held.enter_context(connection(how, run))
                        root = held.enter_context(temporary_folder(scratch_root()))
                    scans = upstream_run(physical, root, how, run)
                yield from _streamed(scans, how, stopped, share, run)
        case First(input, most_rows):
            yield from first_rows(blocks(input, how, stopped, share, run), most_rows)
        case Local(input, operators):
            pipeline = Pipeline(operators)
            pipeline.setup()
            # What follows a limit is one shard: there are few rows, and they come in order.
            meters = run.local(pipeline)
            below = blocks(input, how, stopped, share, run)
            tally = ShardBooks(BadRowBudget(bad_rows_of(how)))
            made = pipeline.stream(below, tally, ShardContext("limited"), meters.steps)
            made = wait_between(made, tally, SystemClock(), stays=True)
            # Extra outputs are for who writes.
            yield from (table for table in made if not isinstance(table, SideTable | ShardWaits) and table.num_rows)
        case Joined(inputs):
            for one in inputs:
                if not stopped():
                    yield from blocks(one, how, stopped, share, run)
        case ZipRows(inputs, plans):
            streams = [blocks(one, how, stopped, share * len(inputs), run) for one in inputs]
            with connection(how, run), ExitStack() as stack:
                for stream in streams:
                    stack.callback(stream.close)  # type: ignore[attr-defined]
                yield from side_by_side(streams, lambda number: known_row_count(plans[number]))


def _streamed(
    fusions: tuple[FusedScan, ...], how: Options, stopped: Stopped, share: int, run: RunStats
) -> Iterator[pa.Table]:
    """Yields the blocks of pieces of sources."""
    backend = make_backend(how.backend or "inline")
    run.fusions = fusions
    try:
        program = StreamProgram(fusions, how.block_bytes, bad_rows_of(how))
        cpus = cpus_of(fusions)
        # Tasks that stand still keep their CPUs: those of one stream must leave some to the others, always.
        run.started(backend.start(Resources(cpus / share), program.pools))
        slots = max(1, backend.slots())
        most = max(1, slots // share) if share > 1 else None
        budget = max(1, (how.memory_budget or MEMORY_BUDGET) // share)
        program.budget_bytes = max(1, budget // slots)
        stream = stream_blocks(
            program,
            ranked_pieces(fusions),
            backend,
            budget_bytes=budget,
            label=label_of,
            policy=replace(STREAM_POLICY, max_in_flight=most),
            stopped=stopped,
            gauges=run.stream(program.chains(), inline=backend.name == "inline"),
        )
        with closing(cast(Generator[pa.Table], stream)):
            there = map(in_one_order(), with_rows(stream, run))
            yield from with_one_schema(there) if _settles(fusions) else without_piece(there)
    finally:
        backend.close()


def with_rows(blocks: Iterator[pa.Table], run: RunStats) -> Iterator[pa.Table]:
    """Yields blocks that have rows; the run keeps what the first others would have been."""
    for block in blocks:
        if block.num_rows:
            yield block
        else:
            run.vacant = fill_schema(run.vacant, block.schema.remove_metadata())


def _settles(fusions: Sequence[FusedScan]) -> bool:
    """Returns whether the first rows of these tell what all of them are, as they do where one stage writes them.

    Rows of a limit are made a few at a time: what a function gives for one of them says nothing about the next.
    """
    if any(one.read_step is not None for one in fusions) or all(declared_schema(one) is not None for one in fusions):
        return False
    return len(fusions) == 1 or all(are_alike(one, fusions[0]) for one in fusions)


@contextmanager
def connection(how: Options, run: RunStats | LastRun) -> Iterator[None]:
    """Stays connected to where tasks run: all streams within it use the same."""
    backend = make_backend(how.backend or "inline")
    try:
        run.started(backend.start(Resources(num_cpus=0.0)))
        yield
    finally:
        backend.close()


def upstream_run(lowered: StagePlan, root: str, how: Options, run: RunStats) -> tuple[FusedScan, ...]:
    """Runs the stages before one, below `root` and at paths of checkpoints. Returns what reads what they wrote, with
    what is done with that. Raises CheckpointFailed and ExchangeFailed, ConfigError if that is what shards failed of.
    """
    from curate.graph import entry

    spec = reader_of(lowered, stages_of(how))
    incomplete = any(map(may_be_incomplete, lowered.upstream))
    options = parse_run_options(
        input="none",
        output=root,
        backend=how.backend or "inline",
        allow_incomplete_input=incomplete,
        **run_options_of(how),
    )
    options = replace(options, inputs=())
    for ready in ready_stages(spec, root, options):
        stage, own, path = ready.stage, ready.options, None
        if ready.checkpoint is not None:
            stage, path = ready.checkpoint.stage, ready.checkpoint.path
            own = checkpoint_options(own, ready.checkpoint)
        elif own.output == root:
            break
        with by_using(), of_checkpoint():
            ended = entry.run(stage, replace(own, display=run.write(Display(), "" if path else stage.record.name)))
        if ended.state is not RunState.COMPLETE:
            told = f"is not complete ({ended.state.value}): {ended.failed:,} of {ended.total:,} shards failed"
            if path is not None:
                raise CheckpointFailed(f"the checkpoint {path} {told}; see: curate failures {shell_word(path)}")
            causes = [group.error + group.at for group in ended.failures]
            wrong = f"{ConfigError.__name__}: "
            if causes and all(one.startswith(wrong) for one in causes):
                # Such as a column that is not among those which a function gives.
                raise ConfigError("; ".join(one.removeprefix(wrong) for one in causes))
            raise ExchangeFailed(f"{ended.job!r} {told}: {'; '.join(causes)}")
    assert isinstance(ready.stage.operator, Pipeline)
    operators = cast(tuple[Operator, ...], ready.stage.operator.steps)
    if ready.stage.rows.grows:
        source = files("read_parquet", Format.PARQUET, list(ready.options.inputs))
        # Marks tell of rows by their places, among all rows.
        return (FusedScan(source, Projection(), operators) if lowered.marked else fuse(source, operators),)
    assert isinstance(ready.stage.rows, SourceRows)
    pairs = zip(ready.stage.rows.sources, ready.stage.rows.views, strict=True)
    return tuple(FusedScan(source, view, operators) for source, view in pairs)


def side_by_side(streams: Sequence[Iterator[pa.Table]], rows: Callable[[int], int | None]) -> Iterator[pa.Table]:
    """Yields the rows of streams of tables as rows of one. `rows` may tell how many rows a stream has, by its number.

    Raises ConfigError where one ends before another.
    """
    tables: list[pa.Table | None] = [None] * len(streams)
    given = 0
    while True:
        for number, stream in enumerate(streams):
            if tables[number] is None:
                tables[number] = next(stream, None)
        there = [table for table in tables if table is not None]
        if not there:
            return
        if len(there) < len(tables):
            lengths = []
            for number, table in enumerate(tables):
                known = given if table is None else rows(number)
                lengths.append(f"{known:,}" if known is not None else f"at least {given + len(table or ()):,}")
            raise ConfigError(unequal(lengths))
        most = min(table.num_rows for table in there)
        columns = [column for table in there for column in table.slice(0, most).columns]
        names = zipped_names([table.column_names for table in there])
        tables = [table.slice(most) if table.num_rows > most else None for table in there]
        given += most
        there.clear()
        yield pa.table(columns, names=names)


def in_one_order() -> Callable[[pa.Table], pa.Table]:
    """Returns what puts the columns of tables in the order of the first one: pieces may have theirs in another."""
    names: list[str] = []

    def ordered(table: pa.Table) -> pa.Table:
        nonlocal names
        names = names or table.column_names
        return in_order(table, names)

    return ordered
