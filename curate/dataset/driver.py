"""One run of a stage: prepare, dispatch, keep the books, say how it ended. The composition root of everything below."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from curate.clock import Clock, SystemClock
from curate.dataset.history import recover, summary_counts
from curate.dataset.prepare import LostRaceError, Prepared, commit, describe, prepare
from curate.dataset.spec import RunOptions, StageSpec
from curate.dataset.stage import Piece, Probe, Probed, StageProgram
from curate.errors import ConfigError
from curate.log import get_logger
from curate.runtime import make_backend
from curate.runtime.protocol import Backend, Ended, Message
from curate.storage import is_local
from curate.storage.local import remove_scratch, sweep_scratch, sync_directories
from curate.storage.protocol import Calls
from curate.tasks import layout, registry
from curate.tasks.books import Books
from curate.tasks.dispatcher import Dispatcher, Interrupts
from curate.tasks.progress import Progress
from curate.tasks.record import ShardRecord
from curate.tasks.runlog import RunLog, new_run_id
from curate.tasks.scheduler import Launch, Policy, Scheduler, max_failed_shards
from curate.tasks.status import RUNNING, RateWindow, eta_seconds
from curate.tasks.summary import FailureGroup, RunState, Summary

MOST_GROUPS = 100
"""Different errors that are kept apart; further ones are counted together."""
OTHER_ERRORS = "other errors"
PROBES = 32
"""Shards that are asked for their output's schema, in plan order, before the run goes on without."""
LEFTOVER_S = 86_400.0
"""Temporaries that nobody touched for a day are swept; a zombie may still be writing to younger ones."""
LEAVE_WITHIN_S = 1.8
"""After SIGTERM the process is gone by then, whatever still hangs: `ray job stop` kills after 3 s."""


def dry_run(spec: StageSpec, options: RunOptions) -> str:
    """Returns what a run would do. Writes nothing, starts nothing. Raises ConfigError for every reason not to run."""
    return describe(prepare(spec, options, new_run_id(SystemClock().now())))


def run(spec: StageSpec, options: RunOptions, *, clock: Clock | None = None, backend: Backend | None = None) -> Summary:
    """Runs a stage until every shard of its scope is done or has failed, and returns the summary.

    Idempotent: what has an output is skipped, whoever made it. Raises ConfigError before anything is dispatched if the
    job cannot run as asked.
    """
    clock = clock or SystemClock()
    started_s, started = clock.monotonic(), clock.now()
    run_id = new_run_id(started)
    while True:
        try:
            return _run(prepare(spec, options, run_id), options, clock, started_s, started, backend)
        except LostRaceError:
            get_logger(job=spec.name, run=run_id).info("another driver grew the plan first; planning again")


def _run(
    prepared: Prepared,
    options: RunOptions,
    clock: Clock,
    started_s: float,
    started: float,
    backend: Backend | None,
) -> Summary:
    spec = prepared.spec
    known = summary_counts(prepared.ledger, prepared.listing, prepared.plan, prepared.matched)
    if known is not None and prepared.finished:
        return _already_complete(prepared, known, clock.monotonic() - started_s)
    history = recover(spec, prepared.ledger, prepared.listing, prepared.plan, prepared.matched)
    prepared.matched.done[history.removed] = False
    return _Run(prepared, options, history.books, clock, started_s, started, backend).execute()


def _already_complete(prepared: Prepared, known: dict[str, Any], seconds: float) -> Summary:
    scope = len(prepared.scope)
    return Summary(
        prepared.spec.name,
        prepared.run_id,
        prepared.output,
        RunState.COMPLETE,
        scope,
        scope,
        scope,
        0,
        0,
        0,
        Books.parse(known["rows"], known["counters"]),
        known["bytes"]["in"],
        known["bytes"]["out"],
        seconds,
        prepared.stores.calls,
        stale=len(prepared.stale),
    )


@dataclass
class _Totals:
    """Running totals of a job and of this run."""

    books: Books
    bytes_in: int
    bytes_out: int
    done: int
    """Shards of the scope with an output."""
    job_done: int
    failed: int = 0
    rows_read: int = 0
    """Rows read in this run, for the rate."""
    bytes_read: int = 0
    shards_run: int = 0
    worker_calls: Calls = field(default_factory=Calls)
    groups: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    """One shard an error."""


class _Run:
    """One run with work to do. It observes its dispatcher."""

    def __init__(
        self,
        prepared: Prepared,
        options: RunOptions,
        books: Books,
        clock: Clock,
        started_s: float,
        started: float,
        backend: Backend | None,
    ) -> None:
        self.prepared = prepared
        self.options = options
        self.clock = clock
        self.started_s = started_s
        self.started = started
        self.log = get_logger(job=prepared.spec.name, run=prepared.run_id)
        matched, plan = prepared.matched, prepared.plan
        positions = matched.position[matched.done]
        sizes = prepared.listing.sizes.to_numpy() if len(positions) else np.zeros(0, dtype=np.int64)
        self.skipped = int(np.count_nonzero(matched.done[prepared.scope]))
        self.totals = _Totals(
            books,
            bytes_in=int(plan.sizes[matched.done].sum()),
            bytes_out=int(sizes[positions].sum()),
            done=self.skipped,
            job_done=int(np.count_nonzero(matched.done)),
        )
        todo = prepared.todo
        self.scheduler = Scheduler(todo, plan.sizes[todo], self._policy())
        self.bytes_left = int(plan.sizes[todo].sum())
        self.backend = backend
        self.schema: Any = None
        self.slots = 1
        self.state = RUNNING
        self.window = RateWindow()
        self.shown_s = 0.0
        # Totals change in the dispatching thread and are read by the one that writes heartbeats.
        self.lock = threading.Lock()
        self.runlog = RunLog(prepared.ledger, prepared.run_id, clock, self._heartbeat)

    def _policy(self) -> Policy:
        options, spec = self.options, self.prepared.spec
        limits = [n for n in (options.max_in_flight, spec.max_tasks) if n is not None]
        return Policy(
            target_task_s=options.target_task_s,
            max_in_flight=min(limits) if limits else None,
            max_failed=None
            if options.max_failed_shards is None
            else max_failed_shards(options.max_failed_shards, len(self.prepared.scope)),
        )

    # The run

    def execute(self) -> Summary:
        """Runs what is left to do and returns the summary."""
        if not self.scheduler.unfinished:
            self._publish_summary()
            return self._summary(RunState.COMPLETE)
        backend = self.backend or make_backend(self.options.backend)
        state = RunState.INTERRUPTED
        interrupts = Interrupts()
        # What the cluster refuses is refused before the ledger is written.
        backend.start(self.prepared.spec.resources)
        try:
            commit(self.prepared, self.options)
            self._open()
            backend.load(self._program())
            try:
                with _signals(interrupts, self.options.handle_signals, self.log):
                    finished = self._dispatch(backend, interrupts)
                state = self._state(finished, interrupts)
                self._publish_summary()
            finally:
                self.options.display.close()
                self.state = state.value
                self.runlog.close()
            if is_local(self.prepared.output):
                # A run's directories reach the disk before it says how it ended: a crash of the machine loses none.
                sync_directories(self.prepared.output)
                remove_scratch(self.prepared.stores.scratch)
            if interrupts.terminated:
                # Ray's own farewell may take longer than a terminated process has.
                threading.Timer(LEAVE_WITHIN_S, os._exit, (state.exit_code,)).start()
        finally:
            backend.close()
        return self._summary(state)

    def _open(self) -> None:
        prepared = self.prepared
        if prepared.listing.summary is not None:
            # It says "complete", which is about to be untrue for a while.
            prepared.ledger.store.delete(prepared.ledger.uri(layout.SUMMARY))
        if is_local(prepared.output):
            sweep_scratch(prepared.ledger.uri(layout.TMP), prepared.stores.scratch, self.clock.now(), LEFTOVER_S)
        self.runlog.open(self._about())
        registry.remember(prepared.output, prepared.spec.name, prepared.run_id, self.started)

    def _program(self) -> StageProgram:
        spec = self.prepared.spec
        return StageProgram(
            key=self.prepared.run_id,
            job=spec.name,
            operator=spec.operator,
            output=self.prepared.output,
            fingerprint=spec.fingerprint,
            format=spec.format,
            codec=spec.codec,
            batch_rows=spec.batch_rows,
            max_bad_rows=spec.max_bad_rows,
            input_schemas=self.prepared.schemas,
            scratch=self.prepared.stores.scratch,
        )

    def _dispatch(self, backend: Backend, interrupts: Interrupts) -> bool:
        schema = self.prepared.spec.output_schema
        self.schema = self._output_schema(backend, interrupts) if schema is None else schema
        dispatcher = Dispatcher(
            self.scheduler,
            backend,
            self._payload,
            lambda rank: int(self.prepared.plan.sizes[rank]),
            self,
            self.clock,
            interrupts,
        )
        return dispatcher.run()

    def _payload(self, launch: Launch) -> Piece:
        plan = self.prepared.plan
        return Piece(tuple((rank, plan.shard(rank)) for rank in launch.shards), launch.attempt, self.schema)

    def _output_schema(self, backend: Backend, interrupts: Interrupts) -> Any:
        """Returns the schema of all outputs: as stored, else of what the first rows become; None if no shard tells."""
        problem = ""

        def probe() -> Any:
            nonlocal problem
            # Always from the start of the plan, whatever the scope: the schema must not depend on --limit or --sample.
            for number, rank in enumerate([*range(min(PROBES, len(self.prepared.plan))), None]):
                if interrupts.interrupts or interrupts.terminated:
                    raise _NoSchemaError
                shard = None if rank is None else self.prepared.plan.shard(rank)
                answer = _ask(backend, -1 - number, Probe(shard), interrupts)
                if answer.schema is not None:
                    return answer.schema
                problem = answer.error or problem
            raise _NoSchemaError

        try:
            return self.prepared.ledger.create_schema("output", probe)
        except _NoSchemaError:
            self.log.warning("no output schema could be derived from the first shards", error=problem)
            return None

    # What the dispatcher tells

    def done(self, launch: Launch, record: ShardRecord) -> None:
        """Books a shard whose output exists."""
        size = int(self.prepared.plan.sizes[record.index])
        books = record.books or Books()
        with self.lock:
            totals = self.totals
            totals.books.add(books)
            totals.done += 1
            totals.job_done += 1
            totals.bytes_in += size
            totals.bytes_out += record.bytes_out
            totals.shards_run += 1
            totals.rows_read += max(books.rows_in, books.rows_out)
            totals.bytes_read += size
            totals.worker_calls = totals.worker_calls.plus(record.calls or Calls())
            self.bytes_left -= size
        if record.different:
            self.log.warning(
                "another attempt had published different bytes: the job's code is not deterministic",
                shard=self.prepared.plan.shard_id(record.index),
                attempt=launch.attempt,
            )
        self.runlog.add(
            {
                **self._event(launch, record, "done"),
                "rows": books.rows(),
                "counters": books.sorted_counters(),
                "bytes_out": record.bytes_out,
                "generation": record.generation,
                "existed": record.existed,
                "different": record.different,
            }
        )

    def failed(self, launch: Launch, record: ShardRecord, *, final: bool) -> None:
        """Books a failed try."""
        failure = record.failure
        assert failure is not None
        shard = self.prepared.plan.shard(record.index)
        with self.lock:
            self.totals.worker_calls = self.totals.worker_calls.plus(record.calls or Calls())
            if final:
                self.totals.failed += 1
                self.bytes_left -= shard.size_bytes
                known = failure.error in self.totals.groups or len(self.totals.groups) < MOST_GROUPS
                error = failure.error if known else OTHER_ERRORS
                self.totals.groups[error] += 1
                self.totals.examples.setdefault(error, shard.id)
        self.log.warning(
            "shard failed" if final else "shard failed, will be tried again",
            shard=shard.id,
            attempt=launch.attempt,
            kind=failure.kind.value,
            input=shard.uri,
            error=failure.error,
        )
        event = self._event(launch, record, "failed" if final else "retry")
        event |= {"input": shard.uri, "kind": failure.kind.value, "error": failure.error}
        self.runlog.add(event | {"traceback": failure.traceback})

    def tick(self, slots: int) -> None:
        """Updates rates and the display."""
        now_s = self.clock.monotonic()
        self.slots = slots
        with self.lock:
            self.window.add(now_s, self.totals.shards_run, self.totals.rows_read, self.totals.bytes_read)
        if now_s - self.shown_s >= self.options.display.interval_s:
            self.shown_s = now_s
            self.options.display.show(self._progress())

    def _event(self, launch: Launch, record: ShardRecord, outcome: str) -> dict[str, Any]:
        return {
            "time": round(self.clock.now(), 3),
            "outcome": outcome,
            "index": record.index,
            "shard": self.prepared.plan.shard_id(record.index),
            "attempt": launch.attempt,
            "task": launch.task,
            "seconds": round(record.seconds, 4),
        }

    # What others are told

    def _progress(self) -> Progress:
        with self.lock:
            rate = self.window.rates()
            totals = self.totals
            left = len(self.prepared.scope) - totals.done - totals.failed
            return Progress(
                self.prepared.spec.name,
                len(self.prepared.scope),
                totals.done,
                self._running(),
                totals.failed,
                totals.books.rows_in,
                rate,
                eta_seconds(self.bytes_left, left, rate),
            )

    def _running(self) -> int:
        """Shards that a slot works on now, as far as the driver knows: one a busy slot."""
        return min(self.scheduler.running_tasks, self.slots)

    def _heartbeat(self) -> dict[str, Any]:
        progress = self._progress()
        with self.lock:
            totals = self.totals
            return {
                "job": self.prepared.spec.name,
                "state": self.state,
                "started": self.started,
                "shards": {
                    "total": len(self.prepared.plan),
                    "scope": len(self.prepared.scope),
                    "done": totals.job_done,
                    "skipped": self.skipped,
                    "running": progress.running if self.state == RUNNING else 0,
                    "failed": totals.failed,
                    "stale": len(self.prepared.stale),
                },
                "tasks": {"dispatched": self.scheduler.launched, "attempts": self.scheduler.attempts},
                "rows": totals.books.rows(),
                "counters": totals.books.sorted_counters(),
                "bytes": {"in": totals.bytes_in, "out": totals.bytes_out},
                "rate": progress.rate,
                "eta_seconds": progress.eta_seconds,
                "failures": [
                    {"error": group.error, "count": group.count, "shard": group.shard} for group in self._failures()
                ],
                "storage_calls": self._calls().as_dict(),
            }

    def _calls(self) -> Calls:
        return self.prepared.stores.calls.plus(self.totals.worker_calls)

    def _failures(self) -> tuple[FailureGroup, ...]:
        return tuple(
            FailureGroup(error, count, self.totals.examples[error])
            for error, count in self.totals.groups.most_common(MOST_GROUPS)
        )

    def _about(self) -> dict[str, Any]:
        options = self.options
        return {
            "job": self.prepared.spec.name,
            "started": self.started,
            "inputs": list(options.inputs),
            "backend": options.backend,
            "limit": options.limit,
            "sample": options.sample,
            "shards": {"total": len(self.prepared.plan), "scope": len(self.prepared.scope), "skipped": self.skipped},
        }

    def _state(self, finished: bool, interrupts: Interrupts) -> RunState:
        if not finished:
            return RunState.INTERRUPTED if interrupts.interrupts or interrupts.terminated else RunState.ABORTED
        return RunState.FAILED if self.totals.failed else RunState.COMPLETE

    def _summary(self, state: RunState) -> Summary:
        totals = self.totals
        return Summary(
            self.prepared.spec.name,
            self.prepared.run_id,
            self.prepared.output,
            state,
            len(self.prepared.scope),
            totals.done,
            self.skipped,
            totals.failed,
            self.scheduler.launched,
            self.scheduler.attempts,
            totals.books,
            totals.bytes_in,
            totals.bytes_out,
            self.clock.monotonic() - self.started_s,
            self._calls(),
            self._failures(),
            len(self.prepared.stale),
        )

    def _publish_summary(self) -> None:
        """Publishes the job's summary if every shard of the job, not only of this run's scope, is done."""
        totals = self.totals
        if totals.job_done < len(self.prepared.plan):
            return
        value = {
            "job": self.prepared.spec.name,
            "fingerprint": self.prepared.spec.fingerprint,
            "run_id": self.prepared.run_id,
            "shards": {"total": len(self.prepared.plan), "done": totals.job_done},
            "rows": totals.books.rows(),
            "counters": totals.books.sorted_counters(),
            "bytes": {"in": totals.bytes_in, "out": totals.bytes_out},
        }
        self.prepared.ledger.create_json(layout.SUMMARY, value)


class _NoSchemaError(Exception):
    """No shard told the schema of its output."""


def _ask(backend: Backend, task: int, probe: Probe, interrupts: Interrupts) -> Probed:
    """Runs one probe as a task of its own and returns its answer."""
    backend.launch(task, probe, 1)
    answer = Probed(error="the worker died")
    while not (interrupts.interrupts or interrupts.terminated):
        for news in backend.poll(0.5):
            if isinstance(news, Message):
                answer = news.items[0]
            elif isinstance(news, Ended):
                return answer if not news.detail else Probed(error=news.detail)
    return answer


@contextlib.contextmanager
def _signals(interrupts: Interrupts, wanted: bool, log: Any) -> Iterator[None]:
    """Counts SIGINTs and SIGTERM in `interrupts` while the block runs."""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_interrupt(*_: Any) -> None:
        interrupts.interrupts += 1
        if interrupts.interrupts == 1:
            log.warning("interrupted: running tasks get 30 s to end; interrupt again to cancel them")

    def on_terminate(*_: Any) -> None:
        interrupts.terminated = True

    before = signal.signal(signal.SIGINT, on_interrupt), signal.signal(signal.SIGTERM, on_terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


__all__ = ["ConfigError", "dry_run", "run"]
