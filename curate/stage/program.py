"""One shard from its input to its output: read side, operator, write side, as one generator in one task.

This runs in workers. Nothing of it talks to the driver but the records it yields, and nothing it reads or writes passes
through Ray's object store.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count, zip_longest
from typing import Any, cast

from curate import log
from curate.arrow.unknown import empty
from curate.clock import Clock, SystemClock
from curate.errors import (
    BadRow,
    ConfigError,
    CorruptInput,
    GenerationMismatch,
    ObjectNotFound,
    SchemaMismatch,
    SetupFailed,
)
from curate.exchange.run_file import CHUNK_BYTES, PAGE_BYTES, PAGES, RunSettings, RunWriter
from curate.formats.encoding import Encoding, ReadAs, detect
from curate.formats.record import OutputFormat, read_record
from curate.formats.rows import read
from curate.formats.write.writer import OutputWriter, make_writer, suffix
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.side_outputs import MAIN, side_name
from curate.pipeline.classify import ForeignOutputError
from curate.pipeline.meters import Meters, reading, record_input, timed
from curate.pipeline.pipeline import ShardContext
from curate.pipeline.remote_error import CapturedError
from curate.pipeline.retry_later import WORD_S, wait_between
from curate.pipeline.shard_books import BadRowBudget, ShardBooks, counted
from curate.pipeline.step import SideTable
from curate.runtime.process_guard import ProcessGuard, ProcessSpoiltError, SavedProcess, leave_if_copy, spoilt
from curate.runtime.protocol import Pool, PoolSpec
from curate.sources.protocol import RowSource
from curate.stage.messages import Probe, Probed, TaskInput
from curate.stage.operator import FileOperator, InputFile, RowOperator, StageOperator
from curate.stage.outputs import NameConflict, Outputs, books_of
from curate.stage.worker_log import WorkerLog
from curate.storage.open import open_store
from curate.storage.protocol import Calls, Object, Outcome, Store
from curate.tasks.failure import FailureKind, ShardRecord, ShardWaits
from curate.tasks.setup import ENDED, SetUp
from curate.tasks.shard import Shard

PROBED_BATCHES = 16
"""Batches of a shard that are tried for a table: a job that drops most of its rows must not be run for its schema."""

PROBED_TABLES = 16
"""Tables of a shard, for each of its outputs, that are looked at for the types of columns, while some are null in all
before."""

MOST_RUNS = 3
"""Times that a shard is run in one attempt: twice, where extra outputs are in the way; more where others make more."""


@dataclass
class StageProgram:
    """The program of a stage: picklable, shipped once to every worker."""

    key: str
    job: str
    operator: StageOperator
    output: str
    fingerprint: str
    format: OutputFormat
    codec: str
    batch_rows: int
    max_bad_rows: str | None
    input_schemas: Mapping[str, Any]
    """Schema of the rows by input format; empty for operators that take files."""
    scratch: str
    quarantine_errors: bool = False
    """Whether, at a shard's last try, a row that alone makes the operator raise is quarantined."""
    task_timeout_s: float | None = None
    """Seconds after which a shard is cancelled: shortly before, its log says where it is."""
    how: ReadAs | None = None
    """How inputs are read, where their suffixes do not say it all."""
    rows: RowSource | None = None
    """Where rows come from, if not from the file that a shard is of."""
    runs: RunSettings | None = None
    """How outputs are sorted that are run files."""
    budget_bytes: int | None = None
    """Bytes of batches that a task may have sent to a pool and not heard of."""
    clock: Clock = field(default_factory=SystemClock)
    """What a shard waits by."""

    def __post_init__(self) -> None:
        self._said: WorkerLog | None = None
        self._ready = False
        self._refused = ""
        """Why the operator cannot be set up, if it said that it never can."""
        self._setup_s = 0.0
        self._stores: dict[str, Store] = {}
        self._unsaid: Exception | None = None
        """What the operator's `setup` raised, for the shard that comes next."""
        self._kept: SavedProcess | None = None
        """The process as it was when the operator was set up."""
        self._guard = ProcessGuard()
        """What is around the shard at hand."""

    def __getstate__(self) -> dict[str, Any]:
        own = {"_said", "_ready", "_refused", "_setup_s", "_stores", "_unsaid", "_kept", "_guard"}
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    @property
    def pools(self) -> tuple[PoolSpec, ...]:
        """The pools of actors that the operator calls."""
        return self.operator.pools

    def connect(self, pools: Sequence[Pool]) -> None:
        """Takes those pools."""
        self.operator.connect(pools)

    @property
    def _word_s(self) -> float:
        """How often a shard that waits says so: well within its time limit."""
        return WORD_S if self.task_timeout_s is None else min(WORD_S, self.task_timeout_s / 4)

    def run(self, payload: TaskInput | Probe) -> Iterator[Any]:
        """Yields a `ShardRecord` for each shard, and a `ShardWaits` now and then while one waits; or a `Probed`; before
        all that `SetUp`, if it was asked for."""
        try:
            if payload.says_ready:
                yield self._said_ready(payload)
            if isinstance(payload, Probe):
                with self._guarded(""), self._log().shard(payload.shard.id if payload.shard else "", 0):
                    answer = self._probe(payload)
                yield answer
                return
            for number, ((index, shard), given) in enumerate(zip_longest(payload.shards, payload.given)):
                if number and (why := spoilt()):
                    raise ProcessSpoiltError(why)
                yield (yield from self._attempt(index, shard, given, payload))
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

    # One shard

    def _attempt(
        self, index: int, shard: Shard, given: Any, piece: TaskInput
    ) -> Generator[ShardWaits, None, ShardRecord]:
        started, setup_s = time.perf_counter(), self._setup_s
        before = self._calls()
        try:
            with (
                self._guarded(shard.id),
                log.bound(run=self.key, shard=shard.id, attempt=piece.attempt),
                self._log().shard(shard.id, piece.attempt, self.task_timeout_s),
            ):
                record = yield from self._run_shard(index, shard, given, piece)
        except Exception as error:  # noqa: BLE001 - whatever user code raises becomes a failure of this shard alone
            record = ShardRecord(index, 0.0, CapturedError.of(error).failure)
        return replace(
            record,
            # Without what is loaded once: bundles are sized from how long shards take.
            seconds=time.perf_counter() - started - (self._setup_s - setup_s),
            calls=self._calls().since(before),
        )

    def _run_shard(
        self, index: int, shard: Shard, given: Any, piece: TaskInput
    ) -> Generator[ShardWaits, None, ShardRecord]:
        uri = f"{self.output}/{shard.id}{suffix(self.format, self.codec)}"
        out = self._store(self.output)
        if piece.attempt > 1 and (done := self._existing(index, out, uri, piece)) is not None:
            return done
        self._setup()
        replaced: dict[str, str] = {}
        for _ in range(MOST_RUNS):
            done = yield from self._write(index, shard, given, piece, out, uri, replaced)
            if done is not None:
                return done
        raise ForeignOutputError(
            f"extra outputs of {shard.id!r} were replaced by others {MOST_RUNS} times in a row; the shard runs again"
        )

    def _write(
        self, index: int, shard: Shard, given: Any, piece: TaskInput, out: Store, uri: str, replaced: dict[str, str]
    ) -> Generator[ShardWaits, None, ShardRecord | None]:
        """Runs a shard and publishes its outputs, in place of the extra ones in `replaced`: generations by URI.

        Returns None, without the main output, if others are to be replaced first, which are in `replaced` then.
        """
        tally = ShardBooks(BadRowBudget(self.max_bad_rows))
        meters = Meters([pooled for _, pooled in self.operator.metered])
        tables = self._tables(shard, given, tally, rank=index, errors=piece.last, meters=meters, asks=piece.asks)
        if piece.schema is None:
            yield from (one for one in tables if isinstance(one, ShardWaits))
            raise SchemaMismatch(
                "no output schema could be derived: the first shards of the plan gave no rows or failed; "
                "mend them, or declare output_schema in the job"
            )
        name = uri[len(self.output) + 1 :]
        uris = {MAIN: uri} | {side: f"{self.output}/{side_name(side, name)}" for side in piece.sides}
        schemas = {MAIN: piece.schema, **piece.sides}
        # What an exchange reads is checked then, and made again where it is not what it was.
        with Outputs(out, uris, schemas, self._writer, durable=self.runs is None) as outputs:
            for table in tables:
                if isinstance(table, ShardWaits):
                    yield table
                    continue
                leave_if_copy()
                record_input(meters.write, table)
                with timed(meters.write):
                    tally.books.rows_out += outputs.write(table)
            with timed(meters.write):
                folded = tally.books.rows_out - outputs.settle(tally.books.rows_out)
            tally.books.rows_out -= folded
            if self.runs is not None:
                tally.drop(folded, self.runs.reason)
            tally.close()
            outputs.count(tally.books)
            self._guard.check()
            with timed(meters.write):
                published = outputs.publish(self._record(shard, tally, out), replaced, piece.over)
            meters.write.bytes_out = outputs.bytes_out
        if isinstance(published, NameConflict):
            return self._in_the_way(index, out, uri, published, replaced, piece)
        if published.outcome is Outcome.DIFFERENT:
            return self._other(index, out, uri, piece)
        return ShardRecord(
            index,
            0.0,
            books=tally.books,
            generation=published.object.generation,
            bytes_out=published.object.size,
            meters=meters.packed(write=True),
            checksum=outputs.checksum,
        )

    def _writer(self, sink: Any, schema: Any) -> OutputWriter:
        if self.runs is not None:
            runs, sizes = self.runs, {}
            if runs.chunk_bytes > CHUNK_BYTES:
                sizes = {"chunk_bytes": runs.chunk_bytes, "page_bytes": max(PAGE_BYTES, runs.chunk_bytes // PAGES)}
            return RunWriter(sink, schema, runs.order, runs.fold, keys_begin_pages=runs.keys_begin_pages, **sizes)
        return make_writer(sink, schema, self.format, self.codec)

    def _tables(
        self,
        shard: Shard,
        given: Any,
        tally: ShardBooks,
        numbers: Iterator[int] | None = None,
        *,
        rank: int = 0,
        errors: bool,
        hold: bool = True,
        meters: Meters | None = None,
        stays: bool | None = None,
        asks: bool = False,
    ) -> Iterator[Any]:
        """Yields what a shard becomes, and `ShardWaits` while it waits for what is not there now."""
        meters = meters or Meters([pooled for _, pooled in self.operator.metered])
        if self.operator.reads_files:
            yield from reading(self._file_tables(shard, tally), meters.steps[0])
            return
        isolate = errors and self.quarantine_errors
        left = count() if numbers is None else numbers
        for name, number, tables in self._parts(shard, given, rank, tally):
            how = ShardContext(name, number, errors=isolate, hold=hold, budget_bytes=self.budget_bytes)
            # The number first: what is not asked for any more is not read.
            batches = reading((table for _, table in zip(left, tables, strict=False)), meters.read)
            made = cast(RowOperator, self.operator).stream(batches, tally, how, meters.steps)
            made = wait_between(made, tally, self.clock, rank, stays=stays, asks=asks, word_s=self._word_s)
            asks = False
            # Extra outputs are those of the stage that ends the job.
            yield from made if self.runs is None else (one for one in made if not isinstance(one, SideTable))

    def _file_tables(self, shard: Shard, tally: ShardBooks) -> Iterator[Any]:
        file = InputFile(shard.uri, shard.object_bytes, shard.generation, self._store(shard.uri))
        try:
            yield from cast(FileOperator, self.operator).apply_file(file, tally)
        except SchemaMismatch as error:
            error.returned = True
            raise
        except BadRow as error:
            raise ConfigError(
                f"BadRow({error.reason!r}) was raised about a file, which has no rows that curate could set aside; "
                "call self.quarantine(row, reason) and go on, or raise CorruptInput to give the file up"
            ) from error

    def _parts(
        self, shard: Shard, given: Any, rank: int, tally: ShardBooks
    ) -> Iterator[tuple[str, int, Iterator[Any]]]:
        """Yields what a shard is read from: id, rank and rows, booked as they are taken."""
        if self.rows is not None:
            return self.rows.parts(given, self.batch_rows, tally)
        return iter([(shard.id, rank, counted(self._batches(shard, tally), tally))])

    def _batches(self, shard: Shard, tally: ShardBooks) -> Iterator[Any]:
        encoding: Encoding = detect(shard.uri, self.how)
        return read(
            self._store(shard.uri),
            Object(shard.uri, shard.object_bytes, shard.generation),
            encoding,
            shard.kind,
            shard.start,
            shard.stop,
            schema=self.input_schemas[encoding.format],
            batch_rows=self.batch_rows,
            on_bad_row=tally.bad_row,
        )

    def _record(self, shard: Shard, tally: ShardBooks, out: Store) -> dict[str, Any]:
        """Publishes the quarantine, which the record names, and returns the record: deterministic fields only."""
        quarantine = None
        if tally.quarantine is not None:
            digest, data = tally.quarantine.finish()
            quarantine = f"{layout.QUARANTINE}{digest}.jsonl.zst"
            out.publish(f"{self.output}/{quarantine}", data.read())
        return {
            "job": self.job,
            "shard": shard.id,
            "fingerprint": self.fingerprint,
            "rows": tally.books.rows(),
            "counters": tally.books.sorted_counters(),
            "quarantine": quarantine,
        }

    def _existing(self, index: int, out: Store, uri: str, piece: TaskInput) -> ShardRecord | None:
        """Returns the record of the output if there is one; a foreign one is removed first, and there is none. One that
        is out of date is none."""
        try:
            found = out.stat(uri)
        except ObjectNotFound:
            return None
        if piece.over.get(uri) == found.generation:
            return None
        try:
            books = books_of(out, found, self.format, self.codec, self.fingerprint)
        except ForeignOutputError as error:
            self._remove_foreign(out, found, error)
            return None
        except CorruptInput as error:
            if isinstance(error.__cause__, ObjectNotFound):
                return None  # since it was looked at
            raise
        return ShardRecord(index, 0.0, books=books, generation=found.generation, bytes_out=found.size, existed=True)

    def _other(self, index: int, out: Store, uri: str, piece: TaskInput) -> ShardRecord:
        """Another attempt won with different bytes: its output counts, and the difference is reported."""
        done = self._existing(index, out, uri, piece)
        if done is None:
            raise ForeignOutputError(
                f"{uri} held other bytes when it was published and is free now: an output of another identity was "
                "removed; the shard runs again"
            )
        return ShardRecord(index, 0.0, None, done.books, done.generation, done.bytes_out, existed=True, different=True)

    def _in_the_way(
        self, index: int, out: Store, uri: str, taken: NameConflict, replaced: dict[str, str], piece: TaskInput
    ) -> ShardRecord | None:
        """Returns the record of the main output if there is one; else None, with the extra ones in `replaced`.

        Raises ConfigError if one was not written by curate, or the output is another job's now.
        """
        done = self._existing(index, out, uri, piece)
        if done is not None:
            return replace(done, different=True)
        # The same order tells here as below: whoever overwrote the job did so before it published anything.
        self._refuse_if_overwritten(out)
        for found in taken.objects:
            try:
                record = read_record(out, found, self.format, self.codec)
            except CorruptInput:
                record = None
            if record is None:
                raise ConfigError(
                    f"{found.uri} was not written by curate, but it has the name of an extra output; move it, or use "
                    "another --output"
                )
            replaced[found.uri] = found.generation
            log.get_logger().warning(
                "an extra output without its main one has other bytes; the shard runs again to replace it",
                output=found.uri,
            )
        return None

    def _remove_foreign(self, out: Store, found: Object, error: ForeignOutputError) -> None:
        """Removes what a zombie of a job that was overwritten had published, and nothing else.

        It might be the other way round: this worker may be the zombie. The order tells. A job takes a prefix over
        before it publishes outputs. So `job.json`, read after an output was seen, names a later job than this one if
        the output belongs to a later job. And what is removed is the generation that was seen.

        Raises ConfigError if the output is another job's now; ForeignOutputError if someone else was there first.
        """
        self._refuse_if_overwritten(out)
        try:
            out.delete(found.uri, found.generation)
        except GenerationMismatch:
            raise ForeignOutputError(
                f"{error}; it was replaced while it was looked at; the shard runs again"
            ) from error
        log.get_logger().warning("an output of another identity was removed", output=found.uri, error=str(error))

    def _refuse_if_overwritten(self, out: Store) -> None:
        """Raises ConfigError if the output is another job's now."""
        try:
            owner = Ledger(out, self.output).read_job()["fingerprint"]
        except ObjectNotFound:
            owner = "none: job.json is gone"
        if owner != self.fingerprint:
            raise ConfigError(
                f"{self.output} is the output of another job by now (identity {owner}, this worker's is "
                f"{self.fingerprint}): it was overwritten while this run went on; nothing was changed. Let the other "
                "run end, or use another --output"
            )

    # The schema of the output

    def _probe(self, probe: Probe) -> Probed:
        tally = ShardBooks(BadRowBudget("100%"))
        answer = vacant = Probed(sides=dict.fromkeys(probe.sides))
        ended = False
        try:
            self._setup()
            if probe.shard is not None:
                numbers: Iterator[int] = count() if probe.whole else iter(range(PROBED_BATCHES))
                most = math.inf if probe.whole else PROBED_TABLES * (1 + len(probe.sides))
                tables: Iterable[Any] = self._tables(
                    probe.shard, probe.given, tally, numbers, errors=True, hold=False, stays=False
                )
            elif self.operator.reads_files or (self.rows is not None and not len(self.rows.schema)):
                # No rows came out of the stage before, nor their columns: there is nothing to ask with.
                return answer
            else:
                numbers, most = iter(()), math.inf
                schema = next(iter(self.input_schemas.values()))
                tables = cast(RowOperator, self.operator).apply(empty(schema), tally)
            tables = (one for one in tables if not isinstance(one, ShardWaits))
            looked, known = 0, 0
            for table in tables:
                name, rows = (table.side, table.table) if isinstance(table, SideTable) else (MAIN, table)
                if name == MAIN or name in probe.sides:
                    schema = rows.schema.remove_metadata()
                    one = Probed(schema) if name == MAIN else Probed(sides={name: schema})
                    # What no row was seen of may be called anything: numpy takes an empty list for floats.
                    if rows.num_rows or probe.shard is None:
                        answer = answer.filled(one)
                    else:
                        vacant = vacant.filled(one)
                looked, known = looked + 1, known + answer.known
                if answer.typed or looked >= most or known >= PROBED_TABLES:
                    break
            else:
                ended = self.operator.reads_files or next(numbers, None) is not None
        except Exception as raised:  # noqa: BLE001 - a shard that fails here fails again, and is booked, when it runs
            failure = CapturedError.of(raised).failure
            passing = failure.kind in (FailureKind.RETRY_LATER, FailureKind.THROTTLED)
            again_s = failure.after_s if passing else None
            error = failure.error if passing or not answer.known else ""
            answer = replace(answer, error=error, again_s=again_s)
        told = vacant.schema is not None or any(one is not None for one in vacant.sides.values())
        return replace(answer, rows=tally.books.rows_in, ended=ended, vacant=vacant if told else None)

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
                self.operator.setup()
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

    @contextmanager
    def _guarded(self, shard: str) -> Iterator[None]:
        """Runs a shard in its block, and gives the process back as it was: what a shard changes fails no other."""
        with ProcessGuard(self._kept) as self._guard:
            yield
        if self._guard.changed:
            log.get_logger().warning(
                "user code changed the process that it runs in; that was set back, as other shards run there",
                shard=shard,
                changed=self._guard.changed,
            )

    def _log(self) -> WorkerLog:
        if self._said is None:
            # A store of its own: whose shard's calls it made, nobody could say.
            self._said = WorkerLog(
                lambda: open_store(self.output, scratch=self.scratch),
                self.output,
                self.key,
                SystemClock(),
                self.operator.hide,
            )
        return self._said

    def _store(self, uri: str) -> Store:
        scheme = uri.partition("://")[0] if "://" in uri else ""
        store = self._stores.get(scheme)
        if store is None:
            store = self._stores[scheme] = open_store(uri, scratch=self.scratch)
        return store

    def _calls(self) -> Calls:
        total = Calls()
        for store in self._stores.values():
            total = total.plus(store.calls)
        return total
