"""A pipeline: the steps between reading and writing the rows of a shard, as one generator.

This is the one execution path of jobs and datasets: a job's `process` is a pipeline of one step. A step runs in the
task that reads the shard, or in the actors of a pool that this task calls. In both cases the task reads, sends batches
to the pools in order, takes the answers in order, and writes. So order needs no barrier, the batches in flight are
bounded by the task's share of each pool, no block goes through the driver, and a shard with pools is retried, cancelled
and resumed as one without.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from curate import log
from curate.arrow.batches import rechunk
from curate.arrow.schema import agreed
from curate.arrow.unknown import empty
from curate.clock import Clock, SystemClock
from curate.dataclass import dataclass, field, replace
from curate.errors import CurateError, SchemaMismatch, add_note
from curate.pipeline.bad_rows import applied
from curate.pipeline.meters import Meter, peak_memory, record_input, record_output
from curate.pipeline.remote_error import CapturedError, RemoteError
from curate.pipeline.retry_later import Busy, RetryBatch, wait_in_place
from curate.pipeline.shard_books import DetachedBooks, RowsBooked, ShardBooks
from curate.pipeline.step import BatchPosition, ShardRows, SideTable, Step
from curate.requests.reached import REACHED, ReachedPlaces
from curate.runtime.process_guard import ProcessGuard, SavedProcess, leave_if_copy
from curate.runtime.protocol import Call, Pool, PoolSpec


@dataclass(frozen=True, slots=True)
class ShardContext:
    """How the batches of a shard are processed."""

    shard: str
    """The shard's id."""
    rank: int = 0
    """Number of the shard among those that are read."""
    errors: bool = False
    """Whether a row that alone makes a step raise is set aside."""
    hold: bool = True
    """Whether a table goes on only when the whole batch did well."""
    budget_bytes: int | None = None
    """Bytes of batches that a task may have sent to a pool and not heard of, but for one; None: as the pool says."""
    ahead: bool = True
    """Whether a task sends a pool batches before it has heard of those that it has sent."""
    tries: int = 0
    """How often a batch was sent to a pool before, where what it needs was not there."""
    sampled: bool = False
    """Whether some of the rows that are dropped are kept, to be looked at."""
    as_read: bool = True
    """Whether a step is given the rows that were read, one for one."""


@dataclass(slots=True)
class StepState:
    """What a step was given and gave so far, of one shard."""

    rows: int = 0
    schema: pa.Schema | None = None


@dataclass
class Pipeline:
    """Steps, one after the other: the operator of a stage over rows, and of a stream."""

    steps: tuple[Step, ...]
    _pools: Sequence[Pool] = ()
    _opened: tuple[Step, ...] = ()
    """The steps as they run in this process."""

    @property
    def metered(self) -> tuple[tuple[str, bool], ...]:
        """The name of each step, and whether it runs in a pool."""
        return tuple((step.name, step.compute is not None) for step in self.steps)

    @property
    def pools(self) -> tuple[PoolSpec, ...]:
        """The pools that its steps run in, in the order of the steps."""
        return tuple(
            PoolSpec(
                step.name,
                _Actor(step),
                step.compute.resources,
                step.compute.pool.smallest,
                step.compute.pool.largest,
                step.compute.pool.max_in_flight,
            )
            for step in self.steps
            if step.compute is not None
        )

    @property
    def keeps_rows(self) -> bool:
        """Whether each of its steps makes every row one row, at its place."""
        return all(getattr(step, "keeps_rows", False) for step in self.steps)

    def connect(self, pools: Sequence[Pool]) -> None:
        """Takes the pools, in the order of `pools`. Without them all steps run in this process."""
        self._pools = pools

    def setup(self) -> None:
        """Loads what the steps keep that run in this process."""
        self._opened = tuple(step if self._is_pooled(step) else step.opened() for step in self.steps)

    def _is_pooled(self, step: Step) -> bool:
        return step.compute is not None and bool(self._pools)

    def stream(
        self,
        batches: Iterator[pa.Table],
        tally: ShardBooks,
        how: ShardContext,
        meters: Sequence[Meter] = (),
        begun: Sequence[StepState] = (),
    ) -> Iterator[pa.Table]:
        """Yields what the batches of one shard become, in order, once `setup` was called.

        `meters`, one a step, are added to. `begun` is what `begin` gave, where the shard comes in several calls.
        """
        tables = batches
        pools = iter(self._pools)
        meters = meters or [Meter() for _ in self._opened]
        as_read = how.as_read
        for step, meter, seen in zip(self._opened, meters, begun or self.begin(), strict=True):
            if how.as_read and not as_read:
                how = replace(how, as_read=False)
            if self._is_pooled(step):
                tables = _in_pool(step, tables, tally, how, meter, next(pools), seen)
            elif (of_shard := getattr(step, "of_shard", None)) is not None:
                tables = _over_shard(step, of_shard(tally), tables, meter, seen)
            else:
                tables = _in_task(step, tables, tally, how, meter, seen)
            as_read = as_read and getattr(step, "keeps_rows", False)
        return tables

    def begin(self) -> list[StepState]:
        """Returns what its steps have seen of a shard so far, nothing; `stream` adds to it."""
        return [StepState() for _ in self.steps]

    def apply(self, batch: pa.Table, tally: ShardBooks) -> Iterator[pa.Table]:
        """Yields what an empty table becomes: what a schema is asked for with, where there are no rows."""
        tables: Iterator[pa.Table] = iter([batch])
        pools = iter(self._pools)
        for step in self._opened:
            tables = _asked(next(pools), tables) if self._is_pooled(step) else _empties(step, tables, tally)
        return tables

    def hide(self, text: str) -> str:
        """Returns text without what must not be written down."""
        for step in self.steps:
            text = step.hide(text)
        return text


def _empties(step: Step, tables: Iterator[pa.Table], tally: ShardBooks) -> Iterator[pa.Table]:
    for table in tables:
        made = list(step.apply(table, tally, BatchPosition("", 0)))
        # What gives no table where nothing matches may know all the same of which columns it would be.
        yield from made or _vacant(step, table)


def _vacant(step: Step, table: Any) -> list[pa.Table]:
    """Returns what a step would make of rows of a table without any, if it knows that without running."""
    tell: Callable[[pa.Schema], pa.Schema | None] | None = getattr(step, "schema", None)
    if tell is None or isinstance(table, SideTable) or not table.num_columns:
        return []
    try:
        known = tell(table.schema)
    except CurateError:
        # Rows will say so.
        return []
    return [] if known is None else [empty(known)]


def _asked(pool: Pool, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    for table in tables:
        found = pool.call((table, 0, ShardContext(""))).result()
        if isinstance(found, CapturedError | RetryBatch):
            raise RemoteError(found if isinstance(found, CapturedError) else found.raised)
        yield from found.tables


def _in_task(
    step: Step, tables: Iterator[pa.Table], tally: ShardBooks, how: ShardContext, meter: Meter, seen: StepState
) -> Iterator[pa.Table]:
    """Yields what a step makes of tables, in this process."""
    for batch in _batches(step, tables):
        if isinstance(batch, SideTable | Busy) or not batch.num_rows:
            yield batch
            continue
        record_input(meter, batch)
        made = _applied(step, batch, tally, how, seen.rows)
        while True:
            wall_s, cpu_s = time.perf_counter(), time.thread_time()
            try:
                table = next(made, None)
            finally:
                leave_if_copy()
                meter.wall_s += time.perf_counter() - wall_s
                meter.cpu_s += time.thread_time() - cpu_s
            if table is None:
                break
            if isinstance(table, Busy):
                yield table
                continue
            yield _given(step, table, seen, meter)
        seen.rows += batch.num_rows
    if not seen.rows and (without_rows := getattr(step, "without_rows", None)) is not None:
        yield from without_rows(BatchPosition(how.shard, 0, how.rank), tally)


def _over_shard(
    step: Step, rows: ShardRows, tables: Iterator[pa.Table], meter: Meter, seen: StepState
) -> Iterator[pa.Table]:
    """Yields what a step makes of tables that has to know when there are no more, in this process."""

    def given() -> Iterator[Iterator[pa.Table]]:
        for batch in _batches(step, tables):
            if isinstance(batch, SideTable | Busy) or not batch.num_rows:
                yield iter([batch])
                continue
            record_input(meter, batch)
            yield _metered(rows.take(batch), meter)
            seen.rows += batch.num_rows
        yield _metered(rows.end(), meter)

    for made in given():
        for table in made:
            yield table if isinstance(table, SideTable | Busy) else _given(step, table, seen, meter)


def _metered(tables: Iterator[pa.Table], meter: Meter) -> Iterator[pa.Table]:
    while True:
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        table = next(tables, None)
        meter.wall_s += time.perf_counter() - wall_s
        meter.cpu_s += time.thread_time() - cpu_s
        if table is None:
            return
        yield table


def _in_pool(
    step: Step,
    tables: Iterator[pa.Table],
    tally: ShardBooks,
    how: ShardContext,
    meter: Meter,
    pool: Pool,
    seen: StepState,
) -> Iterator[pa.Table]:
    """Yields what a step makes of tables, in the actors of its pool."""
    calls: deque[tuple[Call, int]] = deque()
    """Those that were not asked for, with the bytes that were sent."""
    rows_of_calls: deque[int] = deque()
    """The first row of each."""
    sent_bytes = 0

    def booked(found: _Answer | RetryBatch) -> None:
        meter.wall_s += found.wall_s
        meter.cpu_s += found.cpu_s
        tally.merge(found.booked)

    def answer() -> Iterator[pa.Table]:
        nonlocal sent_bytes
        waited_s = time.perf_counter()
        call, size = calls.popleft()
        sent_bytes -= size
        found = call.result()
        meter.wait_s += time.perf_counter() - waited_s
        while isinstance(found, RetryBatch):
            # It waits here, where that can be told, and the actor has its hands free.
            booked(found)
            refused = found.busy()
            row = rows_of_calls[0]
            yield refused
            waited_s = time.perf_counter()
            found = pool.call((found.batch, row, replace(how, tries=found.tries))).result()
            meter.wait_s += time.perf_counter() - waited_s
        rows_of_calls.popleft()
        if isinstance(found, CapturedError):
            raise RemoteError(found)
        booked(found)
        meter.peak_bytes = max(meter.peak_bytes, found.peak_bytes)
        for table in found.tables:
            yield _given(step, table, seen, meter)

    for batch in _batches(step, tables):
        if isinstance(batch, SideTable | Busy) or not batch.num_rows:
            yield batch
            continue
        size = batch.nbytes
        while calls and (
            len(calls) >= pool.room
            or calls[0][0].ready()
            or (how.budget_bytes is not None and sent_bytes + size > how.budget_bytes)
        ):
            yield from answer()
        record_input(meter, batch)
        calls.append((pool.call((batch, seen.rows, how)), size))
        rows_of_calls.append(seen.rows)
        sent_bytes += size
        seen.rows += batch.num_rows
        while calls and not how.ahead:
            yield from answer()
    while calls:
        yield from answer()


@dataclass(frozen=True, slots=True)
class _Answer:
    tables: list[Any]
    booked: RowsBooked
    wall_s: float
    cpu_s: float
    peak_bytes: int


@dataclass
class _Actor:
    """What an actor of a step's pool runs."""

    step: Step
    clock: Clock = field(default_factory=SystemClock)
    reached: ReachedPlaces = REACHED
    """Stores that the driver has reached: workers wait out their outages."""
    _opened: Step | None = None
    _kept: SavedProcess | None = None
    """The process as it was when the step was set up."""

    def setup(self) -> None:
        log.ensure_configured()
        self._opened = self.step.opened()

    def call(self, payload: tuple[pa.Table, int, ShardContext]) -> _Answer | CapturedError | RetryBatch:
        batch, row, how = payload
        assert self._opened is not None
        notes = DetachedBooks(sampled=how.sampled)
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        self._kept = self._kept or SavedProcess()
        again: Busy | None = None
        try:
            tables = []
            with ProcessGuard(self._kept) as guard:
                for item in _applied(self._opened, batch, notes, how, row):
                    if not isinstance(item, Busy):
                        tables.append(item)
                    elif item.short or item.kept:
                        wait_in_place(item, self.clock)
                    else:
                        again = item
                        break
                guard.check()
        except Exception as error:  # noqa: BLE001 - whatever user code raises is part of the answer
            return CapturedError.of(error)
        took_s, on_cpu_s = time.perf_counter() - wall_s, time.thread_time() - cpu_s
        if again is not None:
            # Rows and counts are booked when it is done; metrics say what happened.
            told = RowsBooked(metrics=notes.books.metrics)
            return RetryBatch(CapturedError.of(again.error), batch, again.tries, told, took_s, on_cpu_s)
        return _Answer(tables, notes.booked(), took_s, on_cpu_s, peak_memory())


@dataclass(frozen=True, slots=True)
class _Placed:
    """A step at a place, as those see it that search for bad rows."""

    step: Step
    place: BatchPosition

    def apply(self, batch: Any, tally: ShardBooks) -> Iterable[Any]:
        return self.step.apply(batch, tally, self.place)

    def hide(self, text: str) -> str:
        return self.step.hide(text)


def _applied(step: Step, batch: pa.Table, tally: ShardBooks, how: ShardContext, row: int) -> Iterator[Any]:
    """Yields what a step makes of a batch without its bad rows; what it raises says where."""
    placed = _Placed(step, BatchPosition(how.shard, row, how.rank, how.tries))
    step_of_rows = "" if how.as_read else step.name
    where = f"in {step.name}, in rows {row} to {row + batch.num_rows - 1} of its input"
    try:
        for item in applied(
            placed, batch, tally, errors=how.errors, hold=how.hold, tries=how.tries, first=row, step=step_of_rows
        ):
            if isinstance(item, Busy):
                add_note(item.error, where)
            yield item
    except Exception as error:
        if isinstance(error, SchemaMismatch):
            error.returned = True
        add_note(error, where)
        raise


def _batches(step: Step, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yields what a step is given at a time, never rows of two tables; and once, where a table has no rows, what the
    step would make of it, which is not given to it."""
    rows = step.batch_rows
    told = False
    for table in tables:
        if isinstance(table, SideTable | Busy):
            # An extra output's, or no table at all: no step that follows has to do with it.
            yield table
        elif table.num_rows:
            yield from [table] if rows is None or table.num_rows <= rows else rechunk(iter([table]), rows)
        elif not told:
            told = True
            yield from _vacant(step, table)


def _given(step: Step, table: pa.Table, seen: StepState, meter: Meter) -> pa.Table:
    if step.one_schema and not isinstance(table, SideTable):
        if seen.schema is not None:
            table = in_order(table, seen.schema.names)
        seen.schema = agreed(step.name, seen.schema, table.schema)
    record_output(meter, table)
    return table


def in_order(table: pa.Table, names: list[str]) -> pa.Table:
    """Returns a table with its columns in the order of `names`, if these are its columns: which one a function that
    returns dictionaries names first is no part of what it says."""
    if table.column_names == names or sorted(table.column_names) != sorted(names):
        return table
    return table.select(names)
