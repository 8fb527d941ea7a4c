"""One run of a stage: prepare, dispatch, keep the books, say how it ended. The composition root of everything below."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from curate.clock import Clock, SystemClock
from curate.dataset.account import Account
from curate.dataset.commit import LostRaceError, commit
from curate.dataset.conclude import publish_summary
from curate.dataset.prepare import Prepared, describe, prepare
from curate.dataset.probing import output_schema
from curate.dataset.signals import Signals
from curate.dataset.spec import RunOptions, StageSpec
from curate.dataset.stage import Piece, StageProgram
from curate.errors import ObjectNotFound
from curate.log import get_logger
from curate.runtime import make_backend
from curate.runtime.protocol import Backend
from curate.storage import is_local
from curate.storage.local import remove_scratch, sweep_scratch, sync_directories
from curate.tasks import layout, registry
from curate.tasks.dispatcher import Dispatcher
from curate.tasks.runlog import new_run_id
from curate.tasks.scheduler import Launch, Policy, Scheduler, max_failed_shards
from curate.tasks.summary import RunState, Summary

LEFTOVER_S = 86_400.0
"""Temporaries that nobody touched for a day are swept; a zombie may still be writing to younger ones."""


def dry_run(spec: StageSpec, options: RunOptions) -> str:
    """Returns what a run would do. Writes nothing, starts nothing. Raises ConfigError for every reason not to run."""
    return describe(prepare(spec, options, new_run_id(SystemClock().now())))


def run(spec: StageSpec, options: RunOptions, *, clock: Clock | None = None, backend: Backend | None = None) -> Summary:
    """Runs a stage until every shard of its scope is done or has failed, and returns the summary.

    Idempotent: what has an output is skipped, whoever made it. Raises ConfigError before anything is dispatched if the
    job cannot run as asked, KeyboardInterrupt if it was interrupted before.
    """
    clock = clock or SystemClock()
    started_s, started = clock.monotonic(), clock.now()
    run_id = new_run_id(started)
    log = get_logger(job=spec.name, run=run_id)
    with Signals(options.handle_signals, log) as signals:
        while True:
            prepared = prepare(spec, options, run_id)
            todo = prepared.todo
            scheduler = Scheduler(todo, prepared.plan.sizes[todo], _policy(spec, options, len(prepared.scope)))
            account = Account(prepared, options, scheduler, clock, started_s, started)
            try:
                return _Run(prepared, options, account, clock, signals).execute(backend)
            except LostRaceError:
                log.info("another driver wrote to the ledger first; planning again")
                # What this run had to remove is gone. What is there now, the other driver made.
                options = replace(options, overwrite=False)


def _policy(spec: StageSpec, options: RunOptions, scope: int) -> Policy:
    limits = [n for n in (options.max_in_flight, spec.max_tasks) if n is not None]
    most = options.max_failed_shards
    return Policy(
        target_task_s=options.target_task_s,
        max_in_flight=min(limits) if limits else None,
        task_timeout_s=spec.task_timeout_s,
        declared_memory=spec.resources.memory,
        max_failed=None if most is None else max_failed_shards(most, scope),
    )


class _Run:
    """One run, from what `prepare` found to its summary."""

    def __init__(
        self, prepared: Prepared, options: RunOptions, account: Account, clock: Clock, signals: Signals
    ) -> None:
        self.prepared = prepared
        self.options = options
        self.account = account
        self.clock = clock
        self.signals = signals

    def execute(self, backend: Backend | None) -> Summary:
        """Runs what is left to do and returns the summary."""
        if not self.account.scheduler.unfinished:
            return self._settle()
        backend = backend or make_backend(self.options.backend)
        try:
            self._start(backend)
            # What the cluster refuses is refused before the ledger is written.
            commit(self.prepared, self.options)
            with self.signals.in_order(backend):
                state = self._work(backend)
            self._tidy()
        except BaseException:
            # On a cluster that lives on, tasks would go on without a driver.
            with contextlib.suppress(Exception):
                backend.cancel()
            raise
        finally:
            if not self.signals.interrupts.terminated:
                # Ray's farewell may take longer than a terminated process has; its cluster ends with the process too.
                backend.close()
        return self.account.summary(state)

    def _settle(self) -> Summary:
        """Ends a run in which no shard is left to do. It writes only what the ledger does not say yet."""
        unsaid = self.account.job_summary() is not None and not self.prepared.history.summarised
        if self.prepared.uncommitted or self.account.stale or unsaid:
            commit(self.prepared, self.options)
            self._work(None)
            self._tidy()
        return self.account.summary(RunState.COMPLETE)

    def _start(self, backend: Backend) -> None:
        try:
            backend.start(self.prepared.spec.resources)
        except SystemExit as error:
            # Ray's handler of SIGTERM, while `ray.init` runs.
            raise KeyboardInterrupt from error
        finally:
            self.signals.install()

    def _work(self, backend: Backend | None) -> RunState:
        """Dispatches, if there is something to do, and writes down how that ended, whatever happens."""
        state = RunState.FAILED
        try:
            self._open()
            ended = RunState.COMPLETE if backend is None else self._dispatch(backend)
            self._conclude()
            state = ended
        except KeyboardInterrupt:
            state = RunState.INTERRUPTED
            raise
        finally:
            self.options.display.close(self.account.progress())
            self.account.close(state)
        return state

    def _open(self) -> None:
        prepared = self.prepared
        if prepared.listing.summary is not None and self.account.job_summary() is None:
            # It says "complete", which is untrue for a while.
            prepared.ledger.store.delete(prepared.ledger.uri(layout.SUMMARY))
        if is_local(prepared.output):
            sweep_scratch(prepared.ledger.uri(layout.TMP), prepared.stores.scratch, self.clock.now(), LEFTOVER_S)
        self.account.open()
        registry.remember(prepared.output, prepared.spec.name, prepared.run_id, self.account.started)

    def _tidy(self) -> None:
        if is_local(self.prepared.output):
            # A run's directories reach the disk before it says how it ended: a crash of the machine loses none.
            sync_directories(self.prepared.output)
            remove_scratch(self.prepared.stores.scratch)

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

    def _dispatch(self, backend: Backend) -> RunState:
        plan, account, interrupts = self.prepared.plan, self.account, self.signals.interrupts
        backend.load(self._program())
        schema = output_schema(self.prepared, backend, interrupts)

        def payload(launch: Launch) -> Piece:
            shards = tuple(zip(launch.shards, plan.shards(launch.shards), strict=True))
            return Piece(shards, launch.attempt, schema, launch.last)

        def size_of(rank: int) -> int:
            return int(plan.sizes[rank])

        def has_output(rank: int) -> bool:
            ledger = self.prepared.ledger
            try:
                ledger.store.stat(ledger.uri(plan.shard_id(rank) + self.prepared.spec.suffix))
            except ObjectNotFound:
                return False
            return True

        dispatcher = Dispatcher(
            account.scheduler, backend, payload, size_of, has_output, account, self.clock, interrupts
        )
        if dispatcher.run():
            return RunState.FAILED if account.totals.failed else RunState.COMPLETE
        return RunState.INTERRUPTED if interrupts.interrupts or interrupts.terminated else RunState.ABORTED

    def _conclude(self) -> None:
        """Publishes the job's summary if every shard of the job, not only of this run's scope, is done."""
        summary = self.account.job_summary()
        if summary is not None:
            publish_summary(self.prepared.ledger, self.prepared.listing, summary)
