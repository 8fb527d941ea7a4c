"""One run of a stage: prepare, dispatch, count, conclude. The composition root of everything below.

`run_stage` runs one stage and knows no other: its inputs exist already (see `curate.graph`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from curate.backends.choose import Chosen
from curate.clock import Clock, SystemClock
from curate.dataclass import dataclass, replace
from curate.driver.finish import (
    final_check,
    late_outputs,
    publish_shard_index,
    publish_summary,
    refuse_lost_rows,
    standing,
    what_stands,
)
from curate.driver.helping import Helping, held_back
from curate.driver.rivals import refuse_rivals, refuse_rivals_in_stages
from curate.driver.run_recorder import RunRecorder
from curate.driver.signals import Signals
from curate.driver.stage_progress import StageHandle
from curate.errors import CannotBeMet, ConfigError, ObjectNotFound, StorageError
from curate.ledger import layout
from curate.ledger.run_log import new_run_id
from curate.ledger.side_outputs import companion, companion_name, side_name
from curate.ledger.stages import remove_empty
from curate.ledger.summary import RunState, Summary, together
from curate.observe import registry
from curate.pipeline.classify import ended_by
from curate.resume.commit import LostRaceError, commit, renew
from curate.resume.options import RunOptions
from curate.resume.prepare import prepare
from curate.resume.removal import remove_job
from curate.resume.schemas import Schemas, output_schemas
from curate.resume.state import OutputSnapshot, Prepared, WorkLeftError
from curate.runtime.protocol import Backend
from curate.stage.messages import TaskInput
from curate.stage.program import StageProgram
from curate.stage.publishing import in_flight
from curate.stage.stage import MEMORY_BUDGET, Stage, TaskSettings
from curate.storage.uris import is_local
from curate.stores.local import remove_scratch, sweep_scratch, sync_directories
from curate.tasks.dispatcher import Dispatcher
from curate.tasks.events import Launch
from curate.tasks.policy import LEAST_WINDOW, Policy, max_failed_shards
from curate.tasks.scheduler import Scheduler
from curate.tasks.setup import SetupWatch
from curate.tasks.shard import Shard

LEFTOVER_S = 86_400.0
"""Temporaries that nobody touched for a day are swept; a zombie may still be writing to younger ones."""
MOST_ROUNDS = 3
"""How often a run that has done everything does again what others removed or replaced meanwhile."""
LATE_BLOCK = 256
"""Shards that were given up and are looked at once more, between two looks at whether the run is to end now."""


class RunStoppedError(StorageError):
    """The store failed the driver for good after tasks had begun; what is done stays done, and the ledger says so."""


class _DisturbedError(Exception):
    """What was done is gone at the last look, or another job's. Its arguments are the summary, and whether all of the
    job was done, and not of this run's scope alone."""


def run_stage(
    stage: Stage,
    options: RunOptions,
    clock: Clock,
    chosen: Chosen,
    signals: Signals,
    *,
    ahead: Callable[[], None] = lambda: None,
    seen: OutputSnapshot | None = None,
    at: StageHandle | None = None,
) -> Summary:
    """Runs one stage: what it reads is there.

    `ahead` is called once there is likely something to run. `at` is where it is in a run of several stages. With
    `seen`, which says that nothing is left to do, raises WorkLeftError if there is.
    """
    started_s, started = clock.monotonic(), clock.now()
    named = at and at.run_id
    run_id = named or new_run_id(started)
    rounds: list[Summary] = []
    while True:
        prepared = prepare(stage, options, run_id, clock, seen, ahead)
        if seen is not None and len(prepared.todo):
            raise WorkLeftError
        # Only now the runs are known that it comes behind.
        named = run_id = prepared.run_id = named or new_run_id(started, prepared.run_ids)
        if prepared.has_work and not rounds:
            refuse_rivals(
                prepared.ledger,
                prepared.run_ids,
                clock,
                allow_concurrent=options.allow_concurrent,
                overwrite=prepared.uncommitted.remove is not None,
                part=options.part,
            )
            if prepared.uncommitted.remove is not None:
                stages = prepared.uncommitted.stages
                prepared.run_ids |= refuse_rivals_in_stages(prepared.output, stages, prepared.stores.of, clock)
        account = RunRecorder(prepared, options, _scheduler(prepared, options), clock, started_s, started, at)
        prepared.forget_inputs()
        last = len(rounds) == MOST_ROUNDS
        try:
            rounds.append(_Run(prepared, options, account, clock, signals, last).execute(chosen))
            if last or not prepared.unsaid:
                return together(rounds)
        except LostRaceError:
            account.log.info("another driver wrote to the ledger first; planning again")
            # What this run had to remove is gone. What is there now, the other driver made.
            options = replace(options, overwrite=False)
        except _DisturbedError as disturbed:
            ended, whole = disturbed.args
            rounds.append(ended)
            options = replace(options, overwrite=False)
            if whole:
                # Whatever is not done now is what is to be done again.
                options = replace(options, retry_failed=False, limit=None, sample=None)
        seen = None  # what was seen before is no more


def _scheduler(prepared: Prepared, options: RunOptions) -> Scheduler:
    todo, stage = prepared.todo, prepared.stage
    policy = _policy(stage.tasks, options, len(prepared.scope), pooled=bool(stage.operator.pools))
    return Scheduler(todo, prepared.plan.sizes[todo], policy, held_back(options.part, prepared))


def _policy(tasks: TaskSettings, options: RunOptions, scope: int, *, pooled: bool) -> Policy:
    limits = [n for n in (options.max_in_flight, tasks.max_tasks) if n is not None]
    most = options.max_failed_shards
    return Policy(
        target_task_s=options.target_task_s,
        max_in_flight=min(limits) if limits else None,
        task_timeout_s=tasks.task_timeout_s,
        declared_memory=tasks.resources.memory,
        # What waits for an actor lets others run in its place: as many again, and not sixteen on two CPUs.
        least_window=1 if pooled else LEAST_WINDOW,
        max_failed=None if most is None else max_failed_shards(most, scope),
    )


@dataclass
class _Run:
    """One run, from what `prepare` found to its summary."""

    prepared: Prepared
    options: RunOptions
    account: RunRecorder
    clock: Clock
    signals: Signals
    last: bool
    """Whether what is disturbed now is left to the next run."""

    def execute(self, chosen: Chosen) -> Summary:
        """Runs what is left to do and returns the summary."""
        if not self.account.scheduler.unfinished:
            return self._settle()
        backend = chosen.backend()
        try:
            with self.signals.starting(backend):
                resources, pools = self.prepared.stage.tasks.resources, self.prepared.stage.operator.pools
                self.account.start_s = backend.start(resources, pools)
            # What the cluster refuses is refused before the ledger is written.
            commit(self.prepared, self.options)
            with self.signals.in_order(backend):
                state = self._work(backend)
            self._tidy()
        except BaseException as raised:
            with contextlib.suppress(Exception):
                backend.cancel()  # on a cluster that lives on, tasks would go on without a driver
                self._tidy()
            if isinstance(raised, CannotBeMet):
                self._take_back()
            raise
        finally:
            if not self.signals.interrupts.terminated:
                # Ray's farewell may take longer than a terminated process has; its cluster ends with the process too.
                backend.close()
        return self.account.summary(state)

    def _take_back(self) -> None:
        """Removes a job that this run began, and of which no row can be written, unless another driver has come."""
        prepared, how = self.prepared, replace(self.options, confirm=lambda _: True)
        if prepared.uncommitted.job is not None:
            self._tidy()
            with contextlib.suppress(ConfigError, StorageError):
                remove_job(prepared.ledger, prepared.record.name, {prepared.run_id}, [], how)
                remove_empty(prepared.output)
                if self.account.of_job:
                    registry.forget(prepared.output)

    def _settle(self) -> Summary:
        """Ends a run in which no shard is left to do. It writes only what the ledger does not say yet."""
        unsaid = self.account.job_summary() is not None and not self.prepared.history.summarised
        state = RunState.COMPLETE
        if self.prepared.uncommitted or self.account.stale or any(self.account.missing) or unsaid:
            commit(self.prepared, self.options)
            state = self._work(None)
            self._tidy()
        return self.account.summary(state)

    def _work(self, backend: Backend | None) -> RunState:
        """Dispatches, if there is something to do, and writes down how that ended, whatever happens."""
        state, error = RunState.FAILED, ""
        try:
            with self.prepared.owned.explaining():
                with self.signals.getting_ready():
                    self._open()
                ended = RunState.COMPLETE if backend is None else self._dispatch(backend)
                state = ended if self._conclude() else RunState.FAILED
        except Exception as raised:
            error = ended_by(raised)
            if not isinstance(raised, StorageError):
                raise
            totals = self.account.totals
            raise RunStoppedError(
                f"the store failed this run when {totals.done:,} of its {len(self.prepared.scope):,} shards were done "
                f"({type(raised).__name__}: {raised}); finished shards are kept: run it again to resume"
            ) from raised
        except KeyboardInterrupt:
            state = RunState.INTERRUPTED
            raise
        finally:
            self.options.display.close(self.account.progress())
            self.account.close(state, error or self.account.scheduler.futile)
        return state

    def _open(self) -> None:
        prepared = self.prepared
        if is_local(prepared.output):
            tmp = prepared.ledger.uri(layout.TMP).rstrip("/")
            sweep_scratch(tmp, prepared.stores.scratch, self.clock.now(), LEFTOVER_S, layout.is_scratch)
        self.account.open()
        if prepared.uncommitted.job is not None:
            prepared.owned.confirm()  # who began to overwrite it before that knew of no run
        if self.account.of_job:
            registry.register(prepared.output, prepared.record.name, prepared.run_id, self.account.started)

    def _tidy(self) -> None:
        if is_local(self.prepared.output):
            # A run's directories reach the disk before it says how it ended: a crash of the machine loses none of them.
            if self.prepared.stage.runs is None:
                sync_directories(self.prepared.output, [f"{layout.RUNS}{one}" for one in self.prepared.run_ids])
            remove_scratch(self.prepared.stores.scratch)

    def _dispatch(self, backend: Backend) -> RunState:
        """Runs the shards that are left, and looks at what stands at the end. Returns how the run ended."""
        prepared = self.prepared
        with self.signals.while_tasks_run():
            helping, ended = self._run_tasks(backend)
        if helping and ended and len(gone := helping.gather()):
            self._disturbed(gone)
        self._look_for_late_outputs()
        renew(prepared, lambda rank: bool(self.account.generations[rank]))
        self._look_at_what_stands()
        return self._state(ended=ended)

    def _run_tasks(self, backend: Backend) -> tuple[Helping | None, bool]:
        """Runs them until none is left, or this run is to end. Returns who helps other drivers, and whether all that is
        to be run has ended."""
        prepared, account, part = self.prepared, self.account, self.options.part
        self._load(backend)
        setup = SetupWatch(self.clock, prepared.stage.tasks.task_timeout_s)
        schemas = self._schemas(backend, setup)
        dispatcher = Dispatcher(
            account.scheduler,
            backend,
            lambda launch: self._payload(launch, schemas, backend, says_ready=not setup.done),
            lambda rank: int(prepared.plan.sizes[rank]),
            self._has_output,
            account,
            self.clock,
            self.signals.interrupts,
            setup,
            lambda launch, number: in_flight(number, launch.attempt, prepared.stage.tasks.task_timeout_s),
        )
        helping = Helping(part, prepared, account.scheduler, account, self.clock) if part else None
        if helping:
            dispatcher.others = helping.look
        account.begin(backend)
        return helping, dispatcher.run()

    def _load(self, backend: Backend) -> None:
        """Sends the program of the stage to the workers, and starts its pools."""
        prepared, account, interrupts = self.prepared, self.account, self.signals.interrupts
        tasks, inline = prepared.stage.tasks, backend.name == "inline"
        if inline and tasks.task_timeout_s is not None:
            account.log.warning(
                "task_timeout_s has no effect: the inline backend runs in this process and cannot cancel itself",
                next="to see the progress of a long shard: curate logs",
            )
        # Elsewhere the clock is that of the worker.
        clock = self.clock if inline else SystemClock()
        budget_bytes = (tasks.memory_budget or MEMORY_BUDGET) // max(1, backend.slots())
        program = StageProgram(
            prepared.stage,
            prepared.run_id,
            prepared.output,
            prepared.stores.scratch,
            budget_bytes,
            clock,
            samples=not self.options.no_samples,
            # In this process threads would meet whatever else it does.
            beside=not inline,
            fence=prepared.owned,
        )

        def stopped() -> bool:
            account.wait(backend)
            return bool(interrupts.interrupts or interrupts.terminated)

        backend.load(program, program.pools, stopped=stopped)

    def _schemas(self, backend: Backend, setup: SetupWatch) -> Schemas:
        """Returns the schemas of the outputs. Raises CannotBeMet if rows of these cannot be sorted or written."""
        prepared, account, interrupts = self.prepared, self.account, self.signals.interrupts
        schemas = output_schemas(prepared, backend, interrupts, self.clock, lambda: account.wait(backend), setup)
        try:
            if (runs := prepared.stage.runs) is None:
                for side, schema in ((None, schemas.main), *schemas.sides.items()):
                    prepared.record.check_writable(schema, side)
            elif schemas.main is not None and len(schemas.main):
                # What user functions give is known only now; not if they gave no row.
                runs.check(prepared.record.name, schemas.main)
        except ConfigError as error:
            raise CannotBeMet(str(error)) from error
        return schemas

    def _payload(self, launch: Launch, schemas: Schemas, backend: Backend, *, says_ready: bool) -> TaskInput:
        """Returns what the program gets for a launch."""
        prepared = self.prepared
        shards = tuple(zip(launch.shards, self.account.ahead.launched(launch.shards), strict=True))
        return TaskInput(
            shards,
            launch.attempt,
            schemas.main,
            launch.last,
            schemas.sides,
            tuple(prepared.stage.rows.given(shard.uri) for _, shard in shards),
            asks=launch.asks,
            over=self._replaced_by(shards, schemas.sides) if prepared.over else {},
            sampled=frozenset(shard.id for rank, shard in shards if rank in prepared.sampled),
            says_ready=says_ready,
            shared=self.options.part is not None,
            weighs=backend.slot_memory() is not None,
            sure=prepared.owned.sure_at,
            anew=frozenset(shard.id for rank, shard in shards if prepared.plan.came_back[rank]),
            next_part=prepared.ledger.uri(prepared.ledger.next_part(prepared.listing)),
        )

    def _has_output(self, rank: int) -> bool:
        """Returns whether a shard's output exists now; not one whose place it is to take, or may be to."""
        prepared = self.prepared
        uri = prepared.ledger.uri(self.account.ahead.id(rank) + prepared.record.suffix)
        try:
            found = prepared.ledger.store.stat(uri)
            return found.generation != prepared.over.get(uri) and not prepared.plan.came_back[rank]
        except ObjectNotFound:
            return False

    def _state(self, *, ended: bool) -> RunState:
        """Returns how the run ended; `ended` is whether nothing was left to run."""
        account, interrupts = self.account, self.signals.interrupts
        if ended:
            return RunState.FAILED if account.totals.failed else RunState.COMPLETE
        if interrupts.interrupts or interrupts.terminated:
            return RunState.INTERRUPTED
        return RunState.FAILED if account.scheduler.futile else RunState.ABORTED

    def _replaced_by(self, shards: Sequence[tuple[int, Shard]], sides: Iterable[str]) -> dict[str, str]:
        """Returns the generations of the outputs that those of some shards take the places of, by URI."""
        prepared = self.prepared
        names = [shard.id + prepared.record.suffix for _, shard in shards]
        suffix = prepared.record.suffix
        beside = [companion_name(name, suffix, other) for other in companion(suffix) for name in names]
        names += [side_name(side, name) for side in sides for name in names] + beside
        return {uri: prepared.over[uri] for uri in map(prepared.ledger.uri, names) if uri in prepared.over}

    def _look_for_late_outputs(self) -> None:
        """Books what was given up, and has been published since, as done; unless somebody wants the run to end."""
        interrupts, given_up = self.signals.interrupts, self.account.totals.given_up
        try:
            for start in range(0, len(given_up), LATE_BLOCK):
                if interrupts.interrupts or interrupts.terminated:
                    return
                for record in late_outputs(self.prepared, given_up[start : start + LATE_BLOCK]):
                    self.account.done_after_all(record)
        except StorageError as error:
            self.account.log.warning("cannot check whether failed shards have an output now", error=str(error))

    def _look_at_what_stands(self) -> None:
        """Books the outputs that are out of date and were not replaced."""
        account = self.account
        try:
            for rank, books in standing(self.prepared, lambda rank: bool(account.generations[rank])):
                account.stands(rank, books)
        except StorageError as error:
            account.log.warning("row counts lack outputs that could not be made again", error=str(error))

    def _disturbed(self, ranks: Any) -> None:
        """Books shards that were done as failed. Raises _DisturbedError, unless that is left to the next run."""
        whole = self.account.job_summary() is not None
        # Of those that had failed, nobody could tell which these were: they have been done since.
        again = not self.last and (whole or not self.options.retry_failed)
        failed = [*ranks.tolist(), *self.account.totals.given_up.tolist()]
        self.account.disturbed(ranks, None if again else what_stands(self.prepared, failed))
        if again:
            raise _DisturbedError(self.account.summary(RunState.FAILED), whole)

    def _conclude(self) -> bool:
        """Publishes the job's summary if every shard of the job, not only of this run's scope, is done.

        A run that did something looks once more at what is there. What others removed or replaced meanwhile is to be
        done again: raises _DisturbedError, or returns False if that is left to the next run.
        """
        value, owned = self.account.job_summary(), self.prepared.owned
        if value is None:
            return True
        # Rows set aside that no output named when this run began may be named by now, by what another one replaced.
        sweeps = self.prepared.listing.quarantine and not self.prepared.history.summarised
        looks = sweeps or self.account.scheduler.launched
        known, ranks = (self.prepared, self.account.generations, self.clock), ()
        if looks or owned.was_paused_since((self.account.started, self.account.started_s)):
            ranks = final_check(*known)
        if not len(ranks):
            refuse_lost_rows(self.account.exchanges())
            ranks = publish_shard_index(*known)
        if len(ranks):
            self._disturbed(ranks)
            return False
        looked = owned.moment()
        publish_summary(self.prepared, value)
        # Paused since, it may have written that over what an overwrite has begun to remove.
        return self._conclude() if owned.was_paused_since(looked) else True
