"""Records and shows the totals of a run as shards end: events, heartbeat, display, summary."""

from __future__ import annotations

import socket
import threading
from typing import Any

import numpy as np

from curate.clock import Clock
from curate.driver.stage_progress import StageHandle, incomplete_as_dict, introduction, reports_of, summary_as_dict
from curate.ledger.failures import failure_event
from curate.ledger.heartbeat import RUNNING
from curate.ledger.listing import generation_hash
from curate.ledger.manifest import ShardsAhead
from curate.ledger.run_log import RunLog
from curate.ledger.stages import ExchangeReport, StageReport, exchanges, source_bytes
from curate.ledger.summary import RunState, Summary
from curate.log import get_logger
from curate.notify.standstill import Standstill
from curate.notify.waiting import Waiting
from curate.observe.eta import Pace, middle
from curate.observe.metrics import Gauge, Role
from curate.observe.progress import Progress
from curate.observe.retries import Retrying, TryLog
from curate.observe.run_totals import RunTotals
from curate.observe.status import RateWindow
from curate.pipeline.meters import add_packed
from curate.resume.identity import is_by_code
from curate.resume.options import RunOptions
from curate.resume.state import Prepared
from curate.runtime.protocol import Backend
from curate.storage.protocol import Calls
from curate.tasks.books import Books
from curate.tasks.events import Launch, Outcome
from curate.tasks.failure import FailureKind, ShardProgress, ShardRecord, ShardWaits
from curate.tasks.scheduler import Scheduler
from curate.tasks.times import Times

LOOK_S = 1.0
"""How often it is looked at what the run waits for: a look counts the shards of the plan."""
MOST_AT_HAND = 2_000
"""Running shards that a heartbeat names: 14 KB. Of more, drivers of other parts may do some again."""


class RunRecorder:
    """Keeps the totals of a run, from what its dispatcher tells, and writes its log."""

    def __init__(
        self,
        prepared: Prepared,
        options: RunOptions,
        scheduler: Scheduler,
        clock: Clock,
        started_s: float,
        started: float,
        at: StageHandle | None = None,
    ) -> None:
        """The run began at `started`, `started_s` by the monotonic clock. `at`: which stage it is, of several."""
        self.prepared, self.options = prepared, options
        self.scheduler, self.clock = scheduler, clock
        self.started_s, self.started = started_s, started
        self.log = get_logger(job=prepared.record.name, run=prepared.run_id)
        matched, plan = prepared.matched, prepared.plan
        held, positions = int(plan.sizes[scheduler.held()].sum()), matched.position[matched.done]
        self.ahead = ShardsAhead(plan, scheduler.from_here)
        """Gives the shards that are launched."""
        self._earlier = prepared.history.earlier if prepared.history.summarised else prepared.stage.earlier
        self.start_s = 0.0
        """Seconds that it took to start what runs tasks, as far as it was started for this run."""
        self._at = at
        self.skipped = int(np.count_nonzero(matched.done[prepared.scope]))
        self.stale, self.missing = len(prepared.stale), prepared.missing_inputs
        self.totals = RunTotals(
            plan,
            prepared.history.books,
            bytes_in=int(plan.sizes[matched.done].sum()),
            bytes_out=int(prepared.listing.objects.numbers("size")[positions].sum()),
            done=self.skipped,
            job_done=int(np.count_nonzero(matched.done)),
            bytes_left=int(plan.sizes[prepared.todo].sum()) - held,
            bytes_scope=int(plan.sizes[prepared.scope].sum()) - held,
        )
        self.generations = np.zeros(len(plan), dtype=np.int64)
        """A hash of the generation of each output that this run recorded, 0 where it recorded none."""
        self._state, self._slots = RUNNING, 1
        self._window, self._pace = RateWindow(), Pace()
        self._shown_s = self._looked_s = started_s
        self._tries = TryLog(self.log)
        self._retrying, self._times = Retrying(), Times(started)
        self._still = Standstill(clock, options.quiet_s, options.teller)
        steps = [(name, Role.STEP, pooled) for name, pooled in prepared.stage.operator.metered]
        operators = [("read", Role.READ, False), *steps, ("write", Role.WRITE, False)]
        self._gauge = Gauge(operators, started_s)
        self._helps, self._ended = False, dict[str, Any]()
        # Totals change in the dispatching thread and are read by the one that writes heartbeats.
        self._lock = threading.Lock()
        run, replaces = (prepared.ledger, prepared.run_id, clock, self._beat, options.part), bool(prepared.over)
        self._runlog = RunLog(*run, replaces=replaces)

    def open(self) -> None:
        """Writes down that the run has begun, and from now on how far it is."""
        if self._at is not None:
            self._at.watch(self.heartbeat)
        prepared, dropped, shared = self.prepared, self.prepared.uncommitted.dropped, self.options.concurrent
        if self.of_job:
            run = prepared.ledger, prepared.record.name, prepared.run_id
            self.options.teller.begins(*run, self._runlog.says, shared=shared)
        self._still.shard_ended()
        shards = {"total": len(prepared.plan), "scope": len(prepared.scope), "skipped": self.skipped}
        self._runlog.open(
            {
                **introduction(prepared.record, self.options, self.started, prepared.incomplete_input),
                "shards": shards,
                **({} if dropped is None else {"dropped": dropped["id"].to_pylist()}),
            }
        )
        self._show(self.clock.monotonic())

    @property
    def of_job(self) -> bool:
        """Whether what it writes is in the ledger of the job, and not in that of a stage before the last one."""
        return self._at is None or self._at.last

    def begin(self, backend: Backend) -> None:
        """Measures from now on what the operators have to work with."""
        self._gauge.begin(backend, self.clock.monotonic())
        self._still.host = socket.gethostname() if backend.alone() else ""

    def close(self, state: RunState, ended_by: str = "") -> None:
        """Writes down the rest, and how the run ended: where an error ended it, by which."""
        self._state, self._ended = state.value, {"ended_by": ended_by} if ended_by else {}
        self._runlog.close()

    # What the dispatcher tells

    def done(self, launch: Launch, record: ShardRecord) -> None:
        """Books a shard whose output exists."""
        self._done(launch.attempt, launch.task, record)

    def done_after_all(self, record: ShardRecord) -> None:
        """Books a shard as done that was given up: a task that was taken for dead has published its output."""
        with self._lock:
            self.totals.failed_no_more(record.index)
        self.log.info(
            "a shard that had failed for good has its output now", shard=self.prepared.plan.shard_id(record.index)
        )
        self._done(0, -1, record)

    def stands(self, rank: int, books: Books) -> None:
        """Books the output of a shard that was to be replaced, and was not: its rows are still there, out of date."""
        with self._lock:
            self.stale += 1
            self.prepared.history.add(rank, books)

    def _done(self, attempt: int, task: int, record: ShardRecord) -> None:
        """Books a shard, by an attempt of a task; by the 0th of task -1 if it was no task that told."""
        books, self.generations[record.index] = record.books or Books(), generation_hash(record.generation)
        with self._lock:
            self._still.shard_ended()
            self._retrying.over(record.index)
            self.prepared.history.add(record.index, books, record.quarantine)
            self.totals.shard_done(record)
            self._times.done(self.clock.now(), task, record, int(self.prepared.plan.sizes[record.index]))
            if record.meters:
                add_packed(self._gauge.meters, record.meters)
        if record.existed and self.prepared.over:
            self.prepared.uncommitted.made_elsewhere.add(record.index)
        if record.different:
            self.log.warning(
                "another attempt had published different bytes: the job's code is not deterministic",
                shard=self.prepared.plan.shard_id(record.index),
                attempt=attempt,
            )
        self._runlog.add(
            {
                **self._event(attempt, task, record, "done"),
                "rows": books.rows(),
                "counters": books.sorted_counters(),
                **books.sorted_metrics(),
                "bytes_out": record.bytes_out,
                "generation": record.generation,
                **self.prepared.record.mark | self.prepared.plan.input_of(record.index),
                **{name: text for name in ("checksum", "quarantine") if (text := getattr(record, name))},
                "existed": record.existed,
                "different": record.different,
            }
        )
        self.ahead.over(record.index)

    def failed(self, launch: Launch, record: ShardRecord, outcome: Outcome) -> None:
        """Books a failed try."""
        failure, final = record.failure, outcome is Outcome.FAILED
        assert failure is not None
        shard = self.prepared.plan.shard(record.index)
        with self._lock:
            self.totals.add_calls(record)
            self._times.failed(self.clock.now(), launch.task, record, final=final)
            if outcome is Outcome.RETRY:
                self._retrying.again(record.index, shard.id, failure, self.clock.monotonic())
            elif final:
                self._still.shard_ended()
                self._retrying.over(record.index)
                self.totals.shard_failed(record.index, shard.id, failure)
        limit = self.scheduler.policy.limit(failure.kind)
        self._tries.failed(failure, limit, final=final, shard=shard.id, attempt=launch.attempt, input=shard.uri)
        event = self._event(launch.attempt, launch.task, record, outcome.value)
        event |= {"input": shard.uri, "kind": failure.kind.value, "error": failure.error}
        if over := self.prepared.over.get(self.prepared.ledger.uri(shard.id + self.prepared.record.suffix)):
            event["over"] = over  # the output that it has, which stands
        whole = failure_event(self.prepared.run_id, event["time"], shard, launch, record, outcome.value)
        self._runlog.add_failure(whole | {name: event[name] for name in ("index", "over") if name in event})
        self._runlog.add(event)
        if final:
            self.ahead.over(record.index)

    def waits(self, launch: Launch, word: ShardWaits) -> None:
        """Notes that a shard waits within its task, or no longer does."""
        shard = self.ahead.id(word.index)
        with self._lock:
            news = self._retrying.waits(word, shard, self.clock.monotonic())
        if news and word.wait_s:
            limit = self.scheduler.policy.limit(FailureKind.RETRY_LATER)
            self._tries.waits(word, limit, shard=shard, attempt=launch.attempt)

    def moves(self, word: ShardProgress) -> None:
        """Notes how far a shard is that takes long."""
        with self._lock:
            self.totals.moves(word)

    def begun(self, launch: Launch, node: str, pid: int) -> None:
        """Notes where a task runs."""
        with self._lock:
            self._still.started(launch.task, node, pid)

    def helps(self, ranks: Any, waits: str) -> None:
        """Counts shards of other parts as this run's to do; `waits` says what it waits for, if there are none."""
        with self._lock:
            self.totals.helps(ranks)
        if waits and not self._still.others:
            self.log.info(waits)
        self._still.others, self._helps = waits, len(ranks) > 0

    def found_elsewhere(self, ranks: Any) -> None:
        """Counts shards that other drivers have done: their books are not known before `gathered`."""
        with self._lock:
            if len(ranks):
                self._still.shard_ended()
            self.totals.found_elsewhere(ranks)

    def gathered(self, record: ShardRecord) -> None:
        """Books one of those shards."""
        self.generations[record.index] = generation_hash(record.generation)
        with self._lock:
            if record.books is not None:
                self.prepared.history.add(record.index, record.books, record.quarantine)
            self.totals.gathered(record)

    def disturbed(self, ranks: Any, stands: tuple[Books, int, int] | None) -> None:
        """Books shards as failed that were done, and whose output is gone or another's now. `stands`: see
        `what_stands`; None: they run again at once."""
        self.log.warning(
            "outputs were removed or replaced by another process during this run; their shards run again",
            shards=len(ranks),
            example=self.prepared.plan.shard_id(int(ranks[0])),
        )
        with self._lock:
            self.totals.lost(ranks, stands)
            self.prepared.history.books = self.totals.books

    def tick(self, slots: int) -> None:
        """Updates rates and the display. Raises JobReplacedError if the job was found to be another run's by now."""
        self.prepared.owned.raise_if_lost()
        now_s, self._slots = self.clock.monotonic(), slots
        with self._lock:
            self._window.add(now_s, self.totals.shards_run, self.totals.rows_seen(), self.totals.bytes_read)
            self._pace.add(now_s, self.totals.shards_run, self.totals.bytes_read)
            self._still.no_place = self._gauge.look(now_s, slots)
            if now_s - self._looked_s >= LOOK_S:
                self._looked_s = now_s
                self._look()
        self._show(now_s)
        if self._helps:
            # By now these shards run: others that help leave them alone.
            self._helps = False
            self._runlog.beat()

    def wait(self, backend: Backend) -> None:
        """Tells what the cluster has no place for, before the first task runs."""
        with self._lock:
            self._still.no_place = backend.waits()
            waits = self._look()
        if waits:
            self._show(self.clock.monotonic())

    def _look(self) -> Waiting | None:
        """Sees what the run waits for."""
        totals = self.totals
        left = len(self.prepared.scope) - len(self.scheduler.held()) - totals.done - totals.elsewhere - totals.failed
        return self._still.look(self.scheduler, self.ahead.id, left, self._slots, self._retrying.waiting())

    def _show(self, now_s: float) -> None:
        if now_s - self._shown_s >= self.options.display.interval_s:
            self._shown_s = now_s
            self.options.display.show(self.progress())

    def _event(self, attempt: int, task: int, record: ShardRecord, outcome: str) -> dict[str, Any]:
        return {
            "time": round(self.clock.now(), 3),
            "outcome": outcome,
            "index": self.prepared.plan.number(record.index),
            "shard": self.ahead.id(record.index),
            "attempt": attempt,
            "task": task,
            "seconds": round(record.seconds, 4),
        }

    # What others are told

    def progress(self) -> Progress:
        """Returns how far the run is now, for a display."""
        with self._lock:
            rate = self._window.rates()
            totals = self.totals
            # Without the shards that other drivers begin with.
            total = len(self.prepared.scope) - len(self.scheduler.held())
            left = total - totals.done - totals.elsewhere - totals.failed
            # As far as the driver knows: one shard a busy slot.
            running = min(self.scheduler.running_tasks, self._slots)
            return Progress(
                self.prepared.record.name if self._at is None else self._at.job,
                total,
                totals.done + totals.elsewhere,
                running,
                totals.failed,
                totals.books.rows_in,
                rate,
                self._pace.time_left(left, totals.bytes_left),
                self._gauge.metrics(running, self.start_s),
                "" if self._at is None else self._at.text,
                self._still.text(),
                self._retrying.text(self.clock.monotonic()),
                self.totals.bytes_moved(),
                self.totals.bytes_scope,
                self.totals.rows_running,
            )

    def _beat(self) -> dict[str, Any]:
        own = self.heartbeat()
        whole = own if self._at is None else self._at.course.whole(own)
        if self._state == RUNNING:
            self._still.speak(self.prepared.run_id if self._at is None else self._at.course.run_id, whole)
        return own if self._at is None else self._at.whole(own)

    def heartbeat(self) -> dict[str, Any]:
        """Returns cumulative totals, and how the run is doing: the content of `heartbeat.json`."""
        progress = self.progress()
        with self._lock:
            totals = self.totals
            return {
                "job": self.prepared.record.name,
                "state": self._state,
                "started": self.started,
                "shards": {
                    "total": len(self.prepared.plan),
                    "scope": len(self.prepared.scope),
                    "done": totals.job_done + totals.elsewhere,
                    "skipped": self.skipped,
                    "running": progress.running if self._state == RUNNING else 0,
                    "failed": totals.failed,
                    "stale": self.stale,
                },
                **({"missing_inputs": list(self.missing)} if any(self.missing) else {}),
                "tasks": {"dispatched": self.scheduler.launched, "attempts": self.scheduler.attempts},
                **totals.as_dict(),
                "rate": progress.rate,
                "eta_seconds": middle(progress.eta_range_s),
                "eta_range_seconds": progress.eta_range_s,
                "failures": [{"error": one.error, "count": one.count, "shard": one.shard} for one in totals.failures()],
                "storage_calls": self._calls().as_dict(),
                **incomplete_as_dict(self.prepared.incomplete_input),
                **({"retrying": self._retrying.as_list()} if self._retrying and self._state == RUNNING else {}),
                **self._at_hand(),
                **({} if self._at is None else {"times": self._times.as_dict()}),
                **(progress.measured.as_dict() if progress.measured else {}),
                **(self._still.as_dict() if self._state == RUNNING else self._ended),
            }

    def _at_hand(self) -> dict[str, Any]:
        """Returns what the drivers of other parts leave to this one."""
        if self.options.part is None or self._state != RUNNING:
            return {}
        return {"at_hand": [self.prepared.plan.number(rank) for rank in self.scheduler.at_hand()[:MOST_AT_HAND]]}

    def job_summary(self) -> dict[str, Any] | None:
        """Returns the content of `summary.json`; None unless every shard of the job, not only of the scope, is done."""
        if self.totals.job_done < len(self.prepared.plan):
            return None
        return summary_as_dict(self.prepared, self.totals, self._earlier, self._reports(RunState.COMPLETE))

    def exchanges(self) -> list[ExchangeReport]:
        """Returns the equations of the exchanges of a job that is complete."""
        return exchanges(self._reports(RunState.COMPLETE))

    def _reports(self, state: RunState) -> tuple[StageReport, ...]:
        """Returns the stages of the job, the last of which ended as `state`; none if it has no others."""
        return reports_of(self.prepared, self.totals, state)

    def summary(self, state: RunState) -> Summary:
        """Returns the result of the run, which ended as `state`."""
        totals = self.totals
        reports = self._reports(state)
        return Summary(
            self.prepared.record.name,
            self.prepared.run_id,
            self.prepared.output,
            state,
            len(self.prepared.scope),
            totals.done + totals.elsewhere,
            self.skipped,
            totals.failed,
            self.scheduler.launched,
            self.scheduler.attempts,
            self._books(),
            source_bytes(reports) if reports else totals.bytes_in,
            totals.bytes_out,
            self.clock.monotonic() - self.started_s,
            self._calls(),
            self.totals.failures(),
            self.stale,
            reports,
            self.prepared.incomplete_input,
            self.start_s,
            self.missing,
            max(0, len(self.prepared.plan) - totals.job_done - (len(self.prepared.scope) - totals.done)),
            self.options.restricted_by,
            self.prepared.uncommitted.removed_inputs,
            "" if self.options.part is None else str(self.options.part),
            totals.by_others + totals.elsewhere,
            by_code=is_by_code(self.prepared.record.identity),
        )

    def _books(self) -> Books:
        # Those of the whole job once it is done; until then, those of its last stage.
        done = self.totals.job_done >= len(self.prepared.plan)
        return self.totals.books.after(self._earlier.books) if done and self._earlier else self.totals.books

    def _calls(self) -> Calls:
        return self.prepared.stores.calls.plus(self.totals.worker_calls)
