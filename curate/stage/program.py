"""One shard from its input to its output: read side, operator, write side, as one generator in one task.

This runs in workers. Nothing of it talks to the driver but the records it yields, and nothing it reads or writes passes
through Ray's object store.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

from curate import log
from curate.clock import Clock, SystemClock
from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError, SchemaMismatch, SetupFailed
from curate.exchange.run_file import CHUNK_BYTES, PAGE_BYTES, PAGES, RunWriter
from curate.ledger.fencing import FencedStore
from curate.ledger.side_outputs import MAIN, side_name
from curate.objects.ahead import InputsAhead
from curate.pipeline.classify import ForeignOutputError
from curate.pipeline.meters import Meters, Timed, record_input
from curate.pipeline.pipeline import ShardContext
from curate.pipeline.remote_error import CapturedError
from curate.pipeline.retry_later import WORD_S, wait_between
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import SideTable
from curate.requests.reached import REACHED, ReachedPlaces
from curate.runtime.held_memory import HeldMemory
from curate.runtime.process_guard import ProcessGuard, ProcessSpoiltError, SavedProcess, leave_if_copy, spoilt
from curate.runtime.protocol import Pool, PoolSpec
from curate.sources.protocol import StoreOf
from curate.stage.existing import ExistingOutputs
from curate.stage.messages import Probe, TaskInput
from curate.stage.operator import meters_of, stage_tables
from curate.stage.outputs import NameConflict, Outputs
from curate.stage.probe import answer_to
from curate.stage.publishing import Aside, Beside, ShardAttempt, WholeShard, aside_of, may_overlap
from curate.stage.stage import Stage
from curate.stage.worker_log import WorkerLog
from curate.storage.protocol import Calls, Outcome, Published
from curate.stores.open import Stores, open_store
from curate.tasks.failure import ShardProgress, ShardRecord, ShardWaits
from curate.tasks.setup import ENDED, SetUp
from curate.tasks.shard import Shard
from curate.writers.output import OutputWriter

PROGRESS_S = 2.0
"""How often a shard that takes long says how far it is: a message of some bytes, and no call of a store."""
MOST_RUNS = 3
"""Times that a shard is run in one attempt: twice, where extra outputs are in the way; more where others make more."""


@dataclass
class StageProgram:
    """The program of a stage: picklable, shipped once to every worker."""

    stage: Stage
    """The stage; what it reads has its schemas."""
    key: str
    """That of the run."""
    output: str
    scratch: str
    budget_bytes: int | None = None
    """Bytes of batches that a task may have sent to a pool and not heard of."""
    clock: Clock = field(default_factory=SystemClock)
    """What a shard waits by."""
    samples: bool = False
    """Whether some of the rows that a shard drops are published, to be looked at."""
    reached: ReachedPlaces = REACHED
    """Stores that the driver has reached: workers wait out their outages."""
    beside: bool = False
    """Whether this is a worker, which is replaced once user code has spoilt it, and not the driver's own process: then
    short shards may be published while the next ones are computed."""
    fence: FencedStore | None = None
    """The driver's, by which no output is published to another run's job; None: that is not looked at."""

    def __post_init__(self) -> None:
        self._said: WorkerLog | None = None
        self._ready = False
        self._refused = ""
        """Why the operator cannot be set up, if it said that it never can."""
        self._setup_s = 0.0
        self._stores = Stores(self.scratch)
        self._unsaid: Exception | None = None
        """What the operator's `setup` raised, for the shard that comes next."""
        self._kept: SavedProcess | None = None
        """The process as it was when the operator was set up."""
        self._guard = ProcessGuard()
        """What is around the shard at hand."""
        self._held: HeldMemory | None = None
        """What this process holds, once that was asked for."""
        self._told = Calls()
        """Calls up to the last record."""

    def __getstate__(self) -> dict[str, Any]:
        own = {"_said", "_ready", "_refused", "_setup_s", "_stores", "_unsaid", "_kept", "_guard", "_held", "_told"}
        shipped = {name: value for name, value in self.__dict__.items() if name not in own}
        return {**shipped, "stage": self.stage.in_worker()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    @property
    def pools(self) -> tuple[PoolSpec, ...]:
        """The pools of actors that the operator calls."""
        return self.stage.operator.pools

    def connect(self, pools: Sequence[Pool]) -> None:
        """Takes those pools."""
        self.stage.operator.connect(pools)

    @property
    def _word_s(self) -> float:
        """How often a shard that waits says so: well within its time limit."""
        return WORD_S if self.stage.tasks.task_timeout_s is None else min(WORD_S, self.stage.tasks.task_timeout_s / 4)

    def run(self, payload: TaskInput | Probe) -> Iterator[Any]:
        """Yields a `ShardRecord` for each shard, a `ShardWaits` now and then while one waits, a `ShardProgress` if one
        takes long; or a `Probed`; before all that `SetUp`, if it was asked for."""
        try:
            if payload.says_ready:
                yield self._said_ready(payload)
            if isinstance(payload, Probe):
                with self._guarded(""), self._log().shard(payload.shard.id if payload.shard else "", 0):
                    answer = answer_to(payload, partial(self._probed_tables, payload))
                yield answer
                return
            yield from self._run_shards(payload)
        finally:
            self._log().flush()

    def _said_ready(self, payload: TaskInput | Probe) -> SetUp:
        shard, attempt = (payload.shard, 0) if isinstance(payload, Probe) else (payload.shards[0][1], payload.attempt)
        name = "" if shard is None else shard.id
        try:
            with log.bound(run=self.key, shard=name, attempt=attempt), self._log().shard(name, attempt):
                self._setup()
        except SetupFailed as error:
            return SetUp(str(error))
        except Exception as error:  # noqa: BLE001 - the shards that need it say so, the first one without a second try
            self._unsaid = error
        return SetUp()

    # Shards

    def _run_shards(self, task: TaskInput) -> Iterator[ShardWaits | ShardProgress | ShardRecord]:
        self._told = self._stores.calls
        fence = self.fence and self.fence.in_worker(self._stores.of(self.output), self.clock, task.sure)
        allowed = self.beside and may_overlap(task.attempt, self.stage.tasks.task_timeout_s)
        shards = list(zip_longest(task.shards, task.given))
        read = (one for (_, shard), given in shards for one in self.stage.rows.read_whole(shard, given))
        with (
            InputsAhead(read if allowed else (), self._stores.of) as inputs,
            Beside(self.key, allowed=allowed) as beside,
        ):
            for number, ((index, shard), given) in enumerate(shards):
                if number and self.beside and (why := spoilt()):
                    yield from self._records(beside.done(0))
                    raise ProcessSpoiltError(why)
                attempt = ShardAttempt(index, shard, given, task, inputs.store_of, fence)
                running = self._accounted(attempt, self._run_shard(attempt, beside=beside.may))
                while True:
                    try:
                        said = next(running)
                    except StopIteration as ended:
                        beside.add(ended.value)
                        break
                    except BaseException:
                        # Such as SystemExit. Whoever looks for what the task died of finds the outputs of those before.
                        yield from self._records(beside.done(0))
                        raise
                    yield from self._records(beside.done(), midway=True)
                    yield said
                if self._guard.changed:
                    # What a thread makes would get the umask that user code sets meanwhile.
                    beside.forbid()
                yield from self._records(beside.done())
            yield from self._records(beside.done(0))

    def _records(
        self, made: Iterable[ShardRecord | WholeShard], *, midway: bool = False
    ) -> Iterator[ShardWaits | ShardProgress | ShardRecord]:
        """Yields the records of shards that were added; waits for those that are being published.

        `midway`: another shard is half way through. One whose name others have taken has to wait until that has ended:
        it is run once more, and what is around a shard is there for one at a time.
        """
        for one in made:
            if not isinstance(one, WholeShard):
                yield replace(one, calls=self._calls_untold())
            elif (told := one.told(self._calls_untold)) is not None:
                yield told
            elif midway:
                return
            else:
                ended = yield from self._accounted(one.attempt, self._run_shard(one.attempt, one), one.seconds)
                assert isinstance(ended, ShardRecord)
                yield replace(ended, calls=self._calls_untold())

    def _accounted(
        self,
        attempt: ShardAttempt,
        running: Generator[ShardWaits | ShardProgress, None, ShardRecord | WholeShard],
        before_s: float = 0.0,
    ) -> Generator[ShardWaits | ShardProgress, None, ShardRecord | WholeShard]:
        """Runs a shard, which took `before_s` before, with the process guarded; what it raises becomes its record."""
        task, name = attempt.task, attempt.shard.id
        if task.weighs and self._held is None:
            # What the process held for the stage before says nothing of this one.
            self._held = HeldMemory()
            self._held.begin()
        started, setup_s = time.perf_counter(), self._setup_s
        made: ShardRecord | WholeShard
        try:
            with (
                self._guarded(name),
                log.bound(run=self.key, shard=name, attempt=task.attempt),
                self._log().shard(name, task.attempt, self.stage.tasks.task_timeout_s),
            ):
                made = yield from running
        except Exception as error:  # noqa: BLE001 - whatever user code raises becomes a failure of this shard alone
            made = ShardRecord(attempt.index, 0.0, CapturedError.of(error).failure)
        # Without what is loaded once: bundles are sized from how long shards take.
        seconds = before_s + time.perf_counter() - started - (self._setup_s - setup_s)
        held_bytes = self._held.look() if self._held is not None else 0
        if isinstance(made, ShardRecord):
            return replace(made, seconds=seconds, held_bytes=held_bytes)
        made.seconds, made.held_bytes = seconds, held_bytes
        return made

    def _run_shard(
        self, attempt: ShardAttempt, whole: WholeShard | None = None, *, beside: bool = False
    ) -> Generator[ShardWaits | ShardProgress, None, ShardRecord | WholeShard]:
        """Runs a shard and publishes it, that is `whole` if it was computed before. Returns the whole shard if it may
        be published `beside` others, and is short."""
        index, shard, task, job = attempt.index, attempt.shard, attempt.task, self.stage.record
        uri = f"{self.output}/{shard.id}{job.suffix}"
        next_part = task.next_part if shard.id in task.anew else ""
        store = self._stores.of(self.output)
        there = ExistingOutputs(store, self.output, job, dict(task.over), next_part, attempt.fence)
        if whole is None:
            if (task.shared or task.attempt > 1) and (done := there.record(index, uri)) is not None:
                return done
            self._setup()
        replaced: dict[str, str] = {}
        started = time.perf_counter()
        for _ in range(MOST_RUNS):
            if whole is None:
                whole = yield from self._write(attempt, there, uri, replaced)
                if beside and whole.may_wait(time.perf_counter() - started):
                    return whole
            with whole:
                published = whole.publish()
            if isinstance(published, Published) and published.outcome is not Outcome.DIFFERENT:
                return whole.record(published)
            if (done := there.in_the_way(index, uri, published, replaced)) is not None:
                return done
            whole = None
        raise ForeignOutputError(
            f"extra outputs of {shard.id!r} were replaced by others {MOST_RUNS} times in a row; the shard runs again"
        )

    def _write(
        self, attempt: ShardAttempt, there: ExistingOutputs, uri: str, replaced: Mapping[str, str]
    ) -> Generator[ShardWaits | ShardProgress, None, WholeShard]:
        """Returns the shard when all its outputs are written. Publishing them puts them in place of the extra ones in
        `replaced`: generations by URI."""
        index, shard, task = attempt.index, attempt.shard, attempt.task
        tally = ShardBooks(BadRowBudget(self.stage.tasks.max_bad_rows), sampled=self.samples)
        meters = meters_of(self.stage.operator)
        isolate = task.last and self.stage.tasks.quarantine_errors
        how = ShardContext(shard.id, index, errors=isolate, budget_bytes=self.budget_bytes, sampled=self.samples)
        tables = self._tables(shard, attempt.given, tally, how, meters, attempt.store_of, asks=task.asks)
        if task.schema is None:
            yield from (one for one in tables if isinstance(one, ShardWaits))
            raise SchemaMismatch(
                "no output schema could be derived: the first shards of the plan have no rows or failed; fix them, or "
                "declare output_schema in the job"
            )
        name = uri[len(self.output) + 1 :]
        uris = {MAIN: uri} | {side: f"{self.output}/{side_name(side, name)}" for side in task.sides}
        schemas = {MAIN: task.schema, **task.sides}
        # What an exchange reads is checked then, and made again where it is not what it was.
        suffix, durable = self.stage.record.suffix, self.stage.runs is None
        outputs = Outputs(there.store, uris, schemas, self._writer, suffix=suffix, durable=durable)
        try:
            said_s = self.clock.monotonic()
            for table in tables:
                if isinstance(table, ShardWaits):
                    yield table
                    continue
                leave_if_copy()
                if (now_s := self.clock.monotonic()) - said_s >= PROGRESS_S:
                    said_s = now_s
                    yield ShardProgress(index, max(tally.books.rows_in, tally.books.rows_out))
                record_input(meters.write, table)
                with Timed(meters.write):
                    tally.books.rows_out += outputs.write(table)
            with Timed(meters.write):
                folded = tally.books.rows_out - outputs.settle(tally.books.rows_out)
                tally.books.rows_out -= folded
                if self.stage.runs is not None:
                    # What is put together may become more: a bucket of a thousand rows is two thousand pairs.
                    tally.drop(max(0, folded), self.stage.runs.reason)
                tally.close()
                outputs.count(tally.books)
                self._guard.check()
                replaces = shard.id in task.sampled
                aside = aside_of(self.output, shard.id, tally, self.stage.operator.hide, replaces=replaces)
                record = self._record(shard, tally, aside)
                outputs.finish(record)
        except BaseException:
            outputs.close()
            raise

        def publish() -> Published | NameConflict:
            began = there.fence and there.fence.moment()
            aside.publish(there.store)
            published = outputs.publish(replaced, there.over)
            ours = isinstance(published, Published) and published.outcome is not Outcome.DIFFERENT
            if ours and there.fence and began and there.fence.was_paused_since(began):
                # Nobody had named the rows: another driver, which took this run for gone, may have removed them.
                aside.set_aside(there.store)
            return published

        return WholeShard(attempt, outputs, tally.books, meters, publish, record["quarantine"] or "")

    def _writer(self, sink: Any, schema: Any, *beside: Any) -> OutputWriter:
        if self.stage.runs is not None:
            runs, sizes = self.stage.runs, {}
            if runs.chunk_bytes > CHUNK_BYTES:
                sizes = {"chunk_bytes": runs.chunk_bytes, "page_bytes": max(PAGE_BYTES, runs.chunk_bytes // PAGES)}
            return RunWriter(sink, schema, runs.order, runs.fold, keys_begin_pages=runs.keys_begin_pages, **sizes)
        return self.stage.record.make_writer(sink, schema, *beside)

    def _tables(
        self,
        shard: Shard,
        given: Any,
        tally: ShardBooks,
        how: ShardContext,
        meters: Meters,
        store_of: StoreOf,
        numbers: Iterator[int] | None = None,
        **waiting: bool,
    ) -> Iterator[Any]:
        """Yields what a shard becomes, and `ShardWaits` while it waits for what is not there now. `numbers` has one for
        each batch that may be read; None: all may. `waiting` is as for `wait_between`."""

        def parts() -> Iterator[tuple[ShardContext, Iterator[Any]]]:
            read = self.stage.rows.parts(shard, how.rank, given, self.stage.tasks.batch_rows, tally, store_of)
            for name, rank, batches in read:
                if numbers is not None:
                    # The number first: what is not asked for any more is not read.
                    batches = (one for _, one in zip(numbers, batches, strict=False))
                yield how if (how.shard, how.rank) == (name, rank) else replace(how, shard=name, rank=rank), batches

        made = stage_tables(self.stage.operator, parts(), tally, meters)
        made = wait_between(made, tally, self.clock, how.rank, word_s=self._word_s, **waiting)
        # Extra outputs are those of the stage that ends the job.
        return made if self.stage.runs is None else (one for one in made if not isinstance(one, SideTable))

    def _probed_tables(self, probe: Probe, tally: ShardBooks, numbers: Iterator[int]) -> Iterator[Any] | None:
        """Yields what becomes of the first batches of a shard, or of an empty table; None if there is none, such as
        after a stage out of which neither rows came nor their columns."""
        self._setup()
        if probe.shard is None:
            blank = self.stage.rows.blank()
            return None if blank is None else self.stage.operator.apply(blank, tally)
        how = ShardContext("", errors=self.stage.tasks.quarantine_errors, hold=False, budget_bytes=self.budget_bytes)
        return self._tables(
            probe.shard, probe.given, tally, how, meters_of(self.stage.operator), self._stores.of, numbers, stays=False
        )

    def _record(self, shard: Shard, tally: ShardBooks, aside: Aside) -> dict[str, Any]:
        """Returns the record of a shard: deterministic fields only."""
        return {
            "job": self.stage.record.name,
            "shard": shard.id,
            **self.stage.record.mark,
            "rows": tally.books.rows(),
            "counters": tally.books.sorted_counters(),
            "quarantine": aside.quarantine and aside.quarantine[len(self.output) + 1 :],
        }

    # What a worker process keeps

    def _setup(self) -> None:
        if self._refused:
            raise ConfigError(self._refused)
        if (error := self._unsaid) is not None:
            self._unsaid = None
            raise error
        if not self._ready:
            started = time.perf_counter()
            try:
                self.stage.operator.setup()
            except ConfigError as error:
                # The next shard would load the same model to learn the same.
                self._refused = str(error)
                raise
            except SystemExit as error:
                # As such it would end the worker without a word of why.
                raise SetupFailed(f"{ENDED}: SystemExit: {error}") from error
            finally:
                self._setup_s += time.perf_counter() - started
            self._ready = True
        # What it changed is to stay.
        self._guard.kept = self._kept = self._kept or SavedProcess()

    def _guarded(self, shard: str) -> ProcessGuard:
        """Runs a shard in its block, and gives the process back as it was: what a shard changes fails no other."""
        self._guard = ProcessGuard(self._kept, partial(_say_changed, shard))
        return self._guard

    def _log(self) -> WorkerLog:
        if self._said is None:
            # A store of its own: whose shard's calls it made, nobody could say.
            self._said = WorkerLog(
                lambda: open_store(self.output, scratch=self.scratch),
                self.output,
                self.key,
                SystemClock(),
                self.stage.operator.hide,
            )
        return self._said

    def _calls_untold(self) -> Calls:
        """Returns the calls that are in no record yet: those of shards that are published meanwhile, too."""
        before, self._told = self._told, self._stores.calls
        return self._told.since(before)


def _say_changed(shard: str, changed: list[str]) -> None:
    log.get_logger().warning(
        "user code changed its process; curate undid that, because other shards use the same process",
        shard=shard,
        changed=changed,
    )
