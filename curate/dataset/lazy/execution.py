"""A rewritten plan as a stream of blocks, in the order of the input."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any, cast

import pyarrow as pa

from curate.clock import SystemClock
from curate.dataset.formats import Format, OutputFormat
from curate.dataset.lazy.plan import Plan, may_be_incomplete, rows_of
from curate.dataset.lazy.relay import Stopped, never
from curate.dataset.lazy.rules import (
    First,
    Fusion,
    Joined,
    Kept,
    Local,
    Physical,
    Spread,
    Tasks,
    Told,
    ZipRows,
    are_alike,
    cpus_of,
    fuse,
)
from curate.dataset.lazy.settling import Vacant, named, settled, told_by, typed_as, unnamed
from curate.dataset.lazy.shards import Names, SourceRows
from curate.dataset.lazy.sinks import stage_of
from curate.dataset.lazy.sources import View, files
from curate.dataset.lazy.stats import Ran, Run
from curate.dataset.lazy.zipping import unequal, zipped_names
from curate.dataset.metering import Meters, reading
from curate.dataset.patience import waited
from curate.dataset.pipeline import Applying, Pipeline, in_order, read_rows
from curate.dataset.places import scratch_root
from curate.dataset.sides import SideTable
from curate.dataset.spec import MEMORY_BUDGET, RunOptions, StageSpec
from curate.dataset.staged import run_before
from curate.dataset.streaming import STREAM_POLICY, stream_blocks
from curate.dataset.tally import BadRowBudget, Tally
from curate.errors import CheckpointFailed, ConfigError, ExchangeFailed, SetupFailed
from curate.log import get_logger
from curate.runtime import BACKENDS, make_backend
from curate.runtime.protocol import Pool, PoolSpec, Resources
from curate.tasks.meters import Word
from curate.tasks.progress import NoDisplay
from curate.tasks.record import ShardWaits
from curate.tasks.setup import ENDED
from curate.tasks.summary import RunState, Summary
from curate.units import format_bytes

WORD_S = 0.1
"""How often a worker says what it has measured of a piece that has not ended."""
FIRST_BLOCK_BYTES = 1 << 20
"""Bytes at which what a piece gives first becomes a block."""


@dataclass(frozen=True, slots=True)
class Options:
    """The few things of a dataset that are tuned; none changes a row, or a byte that is written.

    Raises ConfigError for a backend that there is not, and sizes below 1.
    """

    backend: str | None = None
    """Where rows are made: `inline`, in this process, or as tasks on `ray`. None: those that are consumed in this
    process, those that are written on Ray."""
    block_bytes: int = 128 << 20
    """Bytes at which rows on their way to the consumer become a block; the first ones are smaller."""
    memory_budget: int | None = None
    """Bytes of blocks that are made and not consumed, at most, beside one block a task; and of batches that a task has
    on their way to and from the actors of a pool. None: 512 MiB."""

    def __post_init__(self) -> None:
        if self.backend is not None and self.backend not in BACKENDS:
            raise ConfigError(f"no backend {self.backend!r}; there are: {', '.join(BACKENDS)}")
        for name in ("block_bytes", "memory_budget"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name} is {value!r}, expected a whole number of bytes, at least 1")


RELEASED_BYTES = 8 << 20
"""Bytes of a block after which memory is given back: for less it is not worth its time."""


class Reading:
    """The program of a stream: reads a piece, and runs the operators that are fused to it."""

    def __init__(self, fusions: tuple[Fusion, ...], block_bytes: int) -> None:
        # Of its own each time: workers of a cluster that lives on keep a program by its key.
        self.key = f"dataset-{uuid.uuid4().hex}"
        # Tasks need no listing, nor tables that their pieces bring along.
        self._fusions = tuple(replace(one, source=one.source.bare()) for one in fusions)
        self._pipelines = [Pipeline(one.operators) for one in fusions]
        self._names = [one.source.name for one in fusions]
        self._told = [told_by(one) is not None for one in fusions]
        """Whether the plan knows what is given: else the first rows tell, and blocks say what they were read from."""
        self._block_bytes = block_bytes
        self.budget_bytes: int | None = None
        """Bytes of batches that a task may have sent to a pool and not heard of."""
        self._told_s = float("-inf")
        """When this process last said what it has measured."""
        self._ready: set[int] = set()

    @property
    def pools(self) -> tuple[PoolSpec, ...]:
        """The pools of all its operators."""
        return tuple(pool for one in self._pipelines for pool in one.pools)

    def connect(self, pools: Sequence[Pool]) -> None:
        """Takes those pools."""
        left = iter(pools)
        for one in self._pipelines:
            one.connect([next(left) for _ in one.pools])

    def chains(self) -> list[tuple[str, Pipeline]]:
        """Returns the name of each source, and what follows it."""
        return list(zip(self._names, self._pipelines, strict=True))

    def run(self, payload: tuple[int, int, tuple[Any, ...], tuple[str, ...]]) -> Iterator[pa.Table | Word]:
        """Yields the blocks of a bundle of pieces, and word of what was measured: now and then, and at the end.

        The payload is the number of their source, that of the first piece among those of all sources, the bundle, and
        what its pieces are called.
        """
        number, rank, bundle, names = payload
        if number not in self._ready:
            try:
                self._pipelines[number].setup()
            except SystemExit as error:
                raise SetupFailed(f"{ENDED}: SystemExit: {error}") from error
            self._ready.add(number)
        fusion, pipeline = self._fusions[number], self._pipelines[number]
        meters = Meters([pooled for _, pooled in pipeline.metered])
        tables = self._tables(fusion, pipeline, rank, zip(bundle, names, strict=True), meters, self._told[number])
        vacant = Vacant()
        blocks = sized(first_rows(vacant.seen(tables), fusion.give_most), self._block_bytes)
        for block in blocks if self._told[number] else vacant.after(blocks):
            # Before the block: who wants no more than that hears no more.
            if time.monotonic() - self._told_s >= WORD_S:
                self._told_s = time.monotonic()
                yield Word(number, meters.packed(write=False))
            yield block
            large = block.nbytes >= RELEASED_BYTES
            del block
            if large:
                # What Arrow keeps for the next one would be memory that no budget knows of.
                pa.default_memory_pool().release_unused()
        yield Word(number, meters.packed(write=False))

    def _tables(
        self, fusion: Fusion, pipeline: Pipeline, rank: int, each: Iterable[tuple[Any, str]], meters: Meters, told: bool
    ) -> Iterator[pa.Table]:
        given = 0
        for number, (piece, name) in enumerate(each):
            step = None if fusion.read_step is None else max(1, fusion.read_step - given)
            applying = Applying(name, rank + number, budget_bytes=self.budget_bytes, ahead=step is None)
            for table in self._of_piece(fusion, pipeline, piece, applying, step, meters):
                # Extra outputs are for who writes.
                if not isinstance(table, SideTable):
                    given += table.num_rows
                    yield table if told else named(table, fusion.source.label(piece))

    def _of_piece(
        self, fusion: Fusion, pipeline: Pipeline, piece: Any, how: Applying, step: int | None, meters: Meters
    ) -> Iterator[Any]:
        source, tally = fusion.source, Tally(BadRowBudget())
        batches = source.read(piece, fusion.view, read_rows(fusion.operators), tally)
        try:
            read = reading(paced(batches, step), meters.read)
            made = waited(pipeline.stream(read, tally, how, meters.steps), tally, SystemClock())
            yield from (one for one in made if not isinstance(one, ShardWaits))
            tally.close()
        except Exception as error:
            error.add_note(f"while {source.label(piece)} was read")
            raise
        if tally.quarantine is not None:
            get_logger().warning(
                "bad rows are left out",
                input=source.label(piece),
                rows=tally.books.quarantined,
                reasons=tally.reasons(),
                next="a job, or write_parquet, keeps them in its quarantine",
            )


def sized(tables: Iterator[pa.Table], block_bytes: int) -> Iterator[pa.Table]:
    """Yields the rows in blocks that reach a size: `FIRST_BLOCK_BYTES` for the first, twice that for the next, and so
    on to `block_bytes`.

    So the first rows are there soon, and most blocks are large. Which rows a block has depends on nothing else but
    their schema, which all of them have.
    """
    gathered: list[pa.Table] = []
    size, enough = 0, min(FIRST_BLOCK_BYTES, block_bytes)
    for table in _sliced(tables, block_bytes):
        if gathered and not table.schema.equals(gathered[0].schema):
            yield joined(gathered)
            gathered, size = [], 0
        gathered.append(table)
        size += table.nbytes
        if size >= enough:
            yield joined(gathered)
            gathered, size, enough = [], 0, min(2 * enough, block_bytes)
    if gathered:
        yield joined(gathered)


def _sliced(tables: Iterator[pa.Table], most_bytes: int) -> Iterator[pa.Table]:
    """Yields the rows in tables of about `most_bytes` bytes at most, by what their rows have on average; of one row at
    least. Says once that there is a row that is larger."""
    warned = False
    for table in tables:
        size = table.nbytes
        rows = max(1, table.num_rows * most_bytes // size) if size > most_bytes else table.num_rows
        if size > most_bytes and rows == 1 and not warned:
            warned = True
            get_logger().warning(
                "a row is larger than block_bytes, and is a block of its own",
                row_bytes=format_bytes(size // table.num_rows),
                block_bytes=format_bytes(most_bytes),
            )
        yield from (table.slice(at, rows) for at in range(0, table.num_rows, rows))


def blocks(
    physical: Physical, how: Options, stopped: Stopped = never, share: int = 1, run: Run | None = None
) -> Iterator[pa.Table]:
    """Yields the blocks of a plan, none empty. Nothing runs before the first is asked for. `run` is told how it goes.

    Closing it ends all; so does `stopped`, which is asked while it waits. It is one of `share` streams that are
    consumed at once, and takes no more than its share of CPUs and memory.
    """
    run = run or Run()
    match physical:
        case Tasks(fusions):
            backend = make_backend(how.backend or "inline")
            run.fusions = fusions
            try:
                program = Reading(fusions, how.block_bytes)
                cpus = cpus_of(fusions)
                # Tasks that stand still keep their CPUs: those of one stream must leave some to the others, always.
                run.started(backend.start(Resources(cpus / share), program.pools))
                slots = max(1, backend.slots())
                most = max(1, slots // share) if share > 1 else None
                budget = max(1, (how.memory_budget or MEMORY_BUDGET) // share)
                program.budget_bytes = max(1, budget // slots)
                stream = stream_blocks(
                    program,
                    ranked(fusions),
                    backend,
                    budget_bytes=budget,
                    policy=replace(STREAM_POLICY, max_in_flight=most),
                    stopped=stopped,
                    gauges=run.stream(program.chains(), inline=backend.name == "inline"),
                )
                with closing(cast(Generator[pa.Table], stream)):
                    there = map(in_one_order(), with_rows(stream, run))
                    yield from settled(there) if _settles(fusions) else unnamed(there)
            finally:
                backend.close()
        case First(input, most_rows):
            yield from first_rows(blocks(input, how, stopped, share, run), most_rows)
        case Local(input, operators):
            pipeline = Pipeline(operators)
            pipeline.setup()
            # What follows a limit is one shard: there are few rows, and they come in order.
            meters = run.local(pipeline)
            below = blocks(input, how, stopped, share, run)
            tally = Tally(BadRowBudget())
            made = pipeline.stream(below, tally, Applying("limited"), meters.steps)
            made = waited(made, tally, SystemClock(), stays=True)
            yield from (table for table in made if not isinstance(table, ShardWaits) and table.num_rows)
        case Joined(inputs):
            for one in inputs:
                if not stopped():
                    yield from blocks(one, how, stopped, share, run)
        case Kept(plan, path, operators):
            keep(plan, path, how, run)
            source = files("read_parquet", Format.PARQUET, [path])
            yield from blocks(Tasks((fuse(source, operators),)), how, stopped, share, run)
        case Spread(exchanged, operators):
            with connection(how, run), TemporaryDirectory(prefix="curate-", dir=scratch_root()) as root:
                rows, _ = stages_run(exchanged, root, how, run)
                yield from blocks(Tasks((fuse(rows.sources[0], operators),)), how, stopped, share, run)
        case Told(marked, operators):
            with connection(how, run), TemporaryDirectory(prefix="curate-", dir=scratch_root()) as root:
                rows, steps = stages_run(marked, root, how, run)
                pairs = zip(rows.sources, rows.views, strict=True)
                fused = tuple(Fusion(source, view, (*steps, *operators)) for source, view in pairs)
                yield from blocks(Tasks(fused), how, stopped, share, run)
        case ZipRows(inputs, plans):
            streams = [blocks(one, how, stopped, share * len(inputs), run) for one in inputs]
            with connection(how, run), ExitStack() as stack:
                for stream in streams:
                    stack.callback(stream.close)  # type: ignore[attr-defined]
                yield from side_by_side(streams, lambda number: rows_of(plans[number]))


def with_rows(blocks: Iterator[pa.Table], run: Run) -> Iterator[pa.Table]:
    """Yields blocks that have rows; the run keeps what the first others would have been."""
    for block in blocks:
        if block.num_rows:
            yield block
        else:
            run.vacant = block.schema.remove_metadata() if run.vacant is None else typed_as(run.vacant, block.schema)


def _settles(fusions: Sequence[Fusion]) -> bool:
    """Returns whether the first rows of these tell what all of them are, as they do where one stage writes them.

    Rows of a limit are made a few at a time: what a function gives for one of them says nothing about the next.
    """
    if any(one.read_step is not None for one in fusions) or all(told_by(one) is not None for one in fusions):
        return False
    return len(fusions) == 1 or all(are_alike(one, fusions[0]) for one in fusions)


@contextmanager
def connection(how: Options, run: Run | Ran) -> Iterator[None]:
    """Stays connected to where tasks run: all streams within it use the same."""
    backend = make_backend(how.backend or "inline")
    try:
        run.started(backend.start(Resources(num_cpus=0.0)))
        yield
    finally:
        backend.close()


def keep(plan: Plan, path: str, how: Options, run: Run) -> None:
    """Writes a plan's rows below `path`, what is not there yet. Raises CheckpointFailed if shards fail."""
    from curate.dataset import driver

    spec, inputs = stage_of(plan, OutputFormat.PARQUET, None)
    display = run.write(NoDisplay())
    options = RunOptions(
        inputs=tuple(inputs),
        output=path,
        backend=how.backend or "inline",
        allow_incomplete_input=may_be_incomplete(plan),
        display=display,
    )
    ended = driver.run(spec, options)
    if ended.state is not RunState.COMPLETE:
        raise CheckpointFailed(
            f"the checkpoint {path} is {ended.state.value}: {ended.failed:,} of {ended.total:,} shards failed; see: "
            f"curate failures {path}"
        )


def ranked(fusions: Sequence[Fusion]) -> Iterator[tuple[int, int, tuple[Any, ...], tuple[str, ...]]]:
    """Yields bundles of pieces, each with the number of its source, how many pieces there are before, and what they
    are called."""
    rank, names, part = 0, Names(), 0
    for number, one in enumerate(fusions):
        if one.part != part:
            names, part = Names(), one.part
        for bundle in one.source.bundles():
            yield number, rank, bundle, tuple(names.of(one.source.shard(piece)) for piece in bundle)
            rank += len(bundle)


def stages_run(plan: Plan, root: str, how: Options, run: Run) -> tuple[SourceRows, tuple[Any, ...]]:
    """Runs what comes before a plan's last stage, below `root`. Returns what that reads, and its steps.

    Raises ExchangeFailed.
    """
    from curate.dataset import driver

    spec, _ = stage_of(plan, OutputFormat.PARQUET, None)
    if spec.seeded is not None:
        spec = spec.seeded(secrets.randbits(63))
    spec = replace(spec, memory_budget=how.memory_budget)

    def write(stage: StageSpec, options: RunOptions) -> Summary | None:
        ended = driver.run_with_checkpoints(stage, replace(options, display=run.write(NoDisplay(), stage.name)))
        return None if ended.state is RunState.COMPLETE else ended

    options = RunOptions(
        inputs=(), output=root, backend=how.backend or "inline", allow_incomplete_input=may_be_incomplete(plan)
    )
    ready = run_before(spec, root, options, write)
    if not isinstance(ready, StageSpec):
        failed = "; ".join(group.error for group in ready.failures)
        raise ExchangeFailed(
            f"{ready.job} is {ready.state.value}: {ready.failed:,} of {ready.total:,} shards failed: {failed}"
        )
    assert isinstance(ready.operator, Pipeline)
    if paths := [before.path for before in ready.before if before.path is not None]:
        # The stages that make the marks have read the checkpoint, so that it is there.
        return SourceRows([files("read_parquet", Format.PARQUET, paths)], [View()]), ready.operator.steps
    assert isinstance(ready.rows, SourceRows)
    return ready.rows, ready.operator.steps


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


def first_rows(tables: Iterator[pa.Table], rows: int | None) -> Iterator[pa.Table]:
    """Yields the first rows, and asks for no table beyond; all of them if `rows` is None. No table is empty."""
    left = rows
    if left == 0:
        return
    for table in tables:
        if not table.num_rows:
            continue
        if left is not None and table.num_rows >= left:
            yield table.slice(0, left)
            return
        if left is not None:
            left -= table.num_rows
        yield table


def paced(tables: Iterator[pa.Table], step: int | None) -> Iterator[pa.Table]:
    """Yields all rows: `step` of them first, and then as many as there were so far; tables as they are if it is None.

    >>> [table.num_rows for table in paced(iter([pa.table({"n": range(9)})]), 2)]
    [2, 2, 4, 1]
    """
    if not step:
        yield from tables
        return
    given = 0
    for table in tables:
        at = 0
        while at < table.num_rows:
            own = table.slice(at, given or step)
            given += own.num_rows
            at += own.num_rows
            yield own


def in_one_order() -> Callable[[pa.Table], pa.Table]:
    """Returns what puts the columns of tables in the order of the first one: pieces may have theirs in another."""
    names: list[str] = []

    def ordered(table: pa.Table) -> pa.Table:
        nonlocal names
        names = names or table.column_names
        return in_order(table, names)

    return ordered


def joined(tables: list[pa.Table]) -> pa.Table:
    """Returns tables as one, types of nulls filled in and numbers widened."""
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
