"""What a ledger says about a job: pure arithmetic over one listing, the plan and the heartbeats."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from curate.dataclass import dataclass, field, replace
from curate.ledger import layout
from curate.ledger.heartbeat import NO_RATE, RUNNING, Heartbeat, ProcessState
from curate.ledger.run_log import STALLED_S
from curate.ledger.stages import LAST, WAITING, StageReport
from curate.ledger.summary import staged_as_dict
from curate.notebook import html_facts
from curate.observe.eta import middle
from curate.observe.summary_text import rows_text
from curate.tasks.books import Books, UpstreamBooks
from curate.tasks.times import Times
from curate.units import format_duration

STALLED = "stalled"
PENDING = "pending"
COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run of a job."""

    run_id: str
    state: str
    started: float
    updated: float
    host: str = ""
    pid: int = 0
    gone: bool = False
    """Whether its process has ended for certain: it ran on this host, and there is none of its id and start time."""
    part: str = ""
    """Which of several drivers of the output it is; empty if it is the only one."""
    done: int = 0
    """Shards of the job whose output existed when it last said so."""
    tries: int = 0
    """Attempts at shards that ended in it."""
    calls: Mapping[str, int] = field(default_factory=dict)
    """Its storage calls, by kind."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """How long it worked on each stage, by key."""
    times: Mapping[str, Times] = field(default_factory=dict)
    """When attempts were at work, of each stage of a job of several, by key."""
    ended_by: str = ""
    """The error that ended it, where no shard did."""
    there: bool = False
    """Whether its process is there for certain: it runs on this host, or is stopped."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as its ledger shows it."""

    job: str
    output: str
    state: str
    total: int
    done: int
    running: int
    failed: int
    stale: int
    rows: dict[str, Any]
    counters: dict[str, Any]
    bytes_total: int
    bytes_done: int
    rate: dict[str, float]
    eta_range_s: tuple[float, float] | None
    """Seconds that the rest takes, at least and at most; None while unknown."""
    failures: list[Mapping[str, Any]]
    runs: list[RunStatus] = field(default_factory=list)
    """Newest first; of a job with very many, the newest of them."""
    earlier_runs: int = 0
    """Runs before those."""
    operators: list[Mapping[str, Any]] = field(default_factory=list)
    """What each operator did in that run, or in the newest one if none is at work, of a job of more than one step, or
    with a pool."""
    waits: str = ""
    """What the run at work waits for, in words, without how long."""
    waits_since: float | None = None
    quiet_s: float = 0.0
    """Seconds without a shard that ended, of a run at work that makes no progress; 0 of any other."""
    retrying: list[Mapping[str, Any]] = field(default_factory=list)
    """Shards that the run at work tries again, by what they failed of or wait for."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Sums that are in no output."""
    counted: int = 0
    """Shards whose rows `rows` has."""
    stages: tuple[StageReport, ...] = ()
    """All stages of a job with exchanges, in order. Shards, rows, bytes, rate and time left are then those of the stage
    at work, or of the last one."""
    stage: str = LAST
    """Key of that stage."""
    rows_running: int = 0
    """Rows read so far of running shards that take long."""
    missing: tuple[int, int] = (0, 0)
    """Inputs of earlier runs that the newest one was not given, and their shards, which are still part of the job."""
    incomplete_input: tuple[Mapping[str, Any], ...] = ()
    """Outputs of other jobs that were read and were not all there, which was allowed: output, job, missing, planned."""
    outputs_listed: bool = True
    """Whether outputs were looked at; if not, all of this is what the ledger says."""
    altered: bool = False
    """Whether all outputs are there, and are not those that the job was complete with."""
    as_of: float | None = None
    """When what the ledger says was written, if outputs were not looked at; None if no run has said anything."""

    @property
    def pending(self) -> int:
        """Shards that are neither done nor running nor failed."""
        return max(0, self.total - self.done - self.running - self.failed)

    @property
    def eta_seconds(self) -> float | None:
        """The middle of the range."""
        return middle(self.eta_range_s)

    def waits_text(self, now: float) -> str:
        """Returns what the run at work waits for, and for how long; empty if it goes on as it should."""
        if not self.waits or self.waits_since is None:
            return self.waits
        return f"{self.waits} (for {format_duration(max(0.0, now - self.waits_since))})"

    def _repr_html_(self) -> str:
        """Returns what a notebook shows: how far the job is, its books and its failures."""
        facts = {
            "state": self.state,
            "shards": f"{self.done:,} of {self.total:,} done",
            **{name: getattr(self, name) for name in ("running", "failed", "stale")},
            "rows": rows_text(self.rows),
            "time left": self.eta_range_s and " to ".join(map(format_duration, self.eta_range_s)),
            "waits for": self.waits,
            "progress": quiet_text(self.quiet_s),
            "output": self.output,
        }
        return html_facts(self.job, facts)

    def as_dict(self) -> dict[str, Any]:
        """Returns what `curate status OUTPUT --json` prints."""
        return {
            "job": self.job,
            "output": self.output,
            "state": self.state,
            "shards": {
                "total": self.total,
                "done": self.done,
                "running": self.running,
                "pending": self.pending,
                "failed": self.failed,
                "stale": self.stale,
            },
            "rows": self.rows,
            "rate": self.rate,
            "eta_seconds": self.eta_seconds,
            "eta_range_seconds": self.eta_range_s and list(self.eta_range_s),
            "failures": self.failures,
            "runs": [
                {"run_id": run.run_id, "state": run.state, "started": run.started, "updated": run.updated}
                | ({"process_gone": True} if run.gone else {})
                | ({"part": run.part} if run.part else {})
                | ({"ended_by": run.ended_by} if run.ended_by else {})
                for run in self.runs
            ],
            **({"rows_running": self.rows_running} if self.rows_running else {}),
            **({} if self.outputs_listed else {"outputs_listed": False, "as_of": self.as_of}),
            **({"altered": True} if self.altered else {}),
            **({"waits": self.waits} if self.waits else {}),
            **({"waits_since": self.waits_since} if self.waits_since is not None else {}),
            **({"no_progress_seconds": round(self.quiet_s, 1)} if self.quiet_s else {}),
            **({"missing_inputs": {"inputs": self.missing[0], "shards": self.missing[1]}} if any(self.missing) else {}),
            **({"incomplete_input": [dict(one) for one in self.incomplete_input]} if self.incomplete_input else {}),
            **({"retrying": self.retrying} if self.retrying else {}),
            **({"counters": self.counters} if self.counters else {}),
            **({"metrics": self.metrics} if self.metrics else {}),
            **({"earlier_runs": self.earlier_runs} if self.earlier_runs else {}),
            **({"stage": self.stage, **staged_as_dict(self.stages)} if self.stages else {}),
        }


def quiet_text(quiet_s: float) -> str:
    """Returns that a run makes no progress; empty if it does.

    >>> quiet_text(2520.0), quiet_text(0.0)
    ('none: no shard has ended for 42 min', '')
    """
    return f"none: no shard has ended for {format_duration(quiet_s)}" if quiet_s else ""


LEAST_SPAN_S = 1.0
"""Rates are not told from less time than this: a first burst would promise a wonder."""


def run_status(beat: Heartbeat, now: float) -> RunStatus:
    """Returns a run's status: one that says it runs but was silent for a minute, or is gone, is stalled."""
    state, process, at = beat.state, beat.process, beat.process.state()
    gone, there = (beat.running and at is one for one in (ProcessState.GONE, ProcessState.ALIVE))
    if gone or (beat.running and now - beat.updated > STALLED_S):
        state = STALLED
    took = {one.key: one.seconds for one in beat.stages if one.seconds is not None}
    where = process.host, process.pid, gone, beat.part
    done = beat.shards["done"]
    of_stages = took, beat.times, beat.ended_by, there
    return RunStatus(beat.run_id, state, beat.started, beat.updated, *where, done, beat.tries, beat.calls, *of_stages)


def leading(heartbeats: Iterable[Heartbeat], now: float) -> Heartbeat | None:
    """Returns the heartbeat that speaks for a job: of the newest run that is at work, else of the newest.

    By their ids: the clock of one that ended long ago may have been ahead of all others.
    """
    newest_first = sorted(heartbeats, key=lambda beat: beat.run_id, reverse=True)
    return next((one for one in newest_first if run_status(one, now).state == RUNNING), (*newest_first, None)[0])


@dataclass(frozen=True, slots=True)
class JobCounts:
    """How far a job is by what lies in its output: its plan, and a listing."""

    job: str
    output: str
    total: int
    done: int
    bytes_total: int = 0
    bytes_done: int = 0


def job_status(
    counts: JobCounts,
    heartbeats: Sequence[Heartbeat],
    summary: Mapping[str, Any] | None,
    now: float,
    earlier_runs: int = 0,
) -> JobStatus:
    """Returns the status of a job from what was read: its counts, and the rest from one run's heartbeat.

    That run is the one that is `leading`. `heartbeats` in any order; `summary` is there if the job was complete when it
    was written.
    """
    newest_first = sorted(heartbeats, key=lambda beat: beat.run_id, reverse=True)
    runs = [run_status(beat, now) for beat in newest_first]
    newest = leading(newest_first, now)
    led = next((run.state for run in runs if newest is not None and run.run_id == newest.run_id), PENDING)
    if newest is not None and newest.part:
        running = [one for one, run in zip(newest_first, runs, strict=True) if run.state == RUNNING and one.part]
        newest = _of_parts(running) if running else newest
    total, done = counts.total, counts.done
    # A plan that was removed is made again by the next run.
    planned = summary.get("shards", {}).get("total", 0) if summary is not None else 0
    complete = summary is not None and done >= max(total, planned)
    # A run of a part (`limit`, `sample`) was complete; the job is not.
    state = COMPLETE if complete else PENDING if led == COMPLETE else led
    at_work = newest if state == RUNNING else None
    failed = 0 if complete or newest is None else min(newest.shards["failed"], total - done)
    incomplete = newest.incomplete_input if newest is not None else ()
    if summary is not None and complete:
        incomplete = tuple(summary.get("incomplete_input", ()))
    rows, counters, metrics = _told_books(summary if complete else None, newest)
    return JobStatus(
        counts.job,
        counts.output,
        state,
        total,
        done,
        running=min(at_work.shards["running"], total - done - failed) if at_work else 0,
        failed=failed,
        stale=newest.shards["stale"] if newest else 0,
        counted=done if complete else newest.shards["done"] if newest else 0,
        rows=dict(rows),
        counters=dict(counters),
        metrics=dict(metrics),
        bytes_total=counts.bytes_total,
        bytes_done=counts.bytes_done,
        rate=dict(at_work.rate if at_work else NO_RATE),
        eta_range_s=at_work.eta_range_s if at_work else None,
        failures=list(newest.failures) if newest and not complete else [],
        runs=runs,
        earlier_runs=earlier_runs,
        operators=list(newest.operators) if newest else [],
        waits=at_work.waits if at_work else "",
        waits_since=at_work.waits_since if at_work else None,
        quiet_s=at_work.quiet_s(now) if at_work else 0.0,
        rows_running=at_work.rows_running if at_work else 0,
        missing=newest.missing if newest else (0, 0),
        incomplete_input=incomplete,
        retrying=list(at_work.retrying) if at_work else [],
    )


def earlier_failures(status: JobStatus, failures: Collection[str]) -> bool:
    """Returns whether shards may have failed in other runs than the newest, which was not asked for them, or did not
    come to them, or was killed before it told of all: `failures` are the segments of failures of all runs."""
    if not status.pending or status.state in (RUNNING, COMPLETE):
        return False
    own = layout.run_file(status.runs[0].run_id, "") if status.runs and status.runs[0].state != STALLED else None
    return any(own is None or not one.startswith(own) for one in failures)


def _told_books(summary: Mapping[str, Any] | None, newest: Heartbeat | None) -> tuple[Mapping[str, Any], ...]:
    """Returns rows, counters and metrics: of the whole job with its earlier stages if it is complete, else of a run."""
    if summary is None:
        return (newest.rows, newest.counters, newest.metrics) if newest is not None else (Books().rows(), {}, {})
    rows, counters, metrics = summary["rows"], summary["counters"], summary.get("metrics", {})
    earlier = UpstreamBooks.of(summary)
    if earlier is None:
        return rows, counters, metrics
    whole = Books.parse(rows, counters, metrics).after(earlier.books)
    return whole.rows(), whole.sorted_counters(), whole.sorted_metrics().get("metrics", {})


def _of_parts(beats: Sequence[Heartbeat]) -> Heartbeat:
    """Returns what the drivers of several parts say together, in the words of the newest, which is the first."""
    first = beats[0]
    ranges = [one.eta_range_s for one in beats if one.eta_range_s is not None]
    # Each says how long the rest of its own shards takes.
    eta = (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None
    running, failed = sum(one.shards["running"] for one in beats), max(one.shards["failed"] for one in beats)
    return replace(
        first,
        shards={**first.shards, "running": running, "failed": failed},
        rate={name: sum(one.rate[name] for one in beats) for name in NO_RATE},
        eta_range_s=eta,
        retrying=tuple(shard for one in beats for shard in one.retrying),
        rows_running=sum(one.rows_running for one in beats),
    )


def with_stages(
    job: JobStatus, planned: Sequence[StageReport], seen: Mapping[str, JobStatus], beat: Heartbeat | None
) -> JobStatus:
    """Returns the status of a job with exchanges that is not complete, as that of the stage which it is at.

    `job` is what its own ledger says, where its last stage is at work. Of the others, `seen` has what the ledgers say
    that can be looked at, and `beat`, the heartbeat of the job's run, what it says of the rest.
    """
    told = {one.key: one for one in (beat.stages if beat else ())}
    live = job.state == RUNNING
    reports = []
    for one in planned[:-1]:
        if (there := seen.get(one.key)) is not None:
            reports.append(report_of(one, there))
            continue
        report = told.get(one.key, one)
        # The last stage is planned from what those before it became: they were complete, if nobody says so any more.
        over = job.total and not live and report.state == WAITING
        reports.append(replace(report, state=COMPLETE) if over else report)
    begun = all(one.state == COMPLETE for one in reports)
    reports.append(report_of(planned[-1], job) if begun and job.total else planned[-1])
    at = next((one for one in reports[:-1] if one.state != COMPLETE), reports[-1])
    if not live:
        # What its own ledger calls running, or waits to be run, is that no more.
        ended = at.state if at.state == WAITING else job.state
        reports = [replace(one, running=0, state=ended if one is at else one.state) for one in reports]
    if at.key == LAST:
        return replace(job, stages=tuple(reports))
    there = seen.get(at.key)
    if there is None:
        there = _status_of_report(job, at, beat)
    else:
        failures: list[Mapping[str, Any]] = [{**one, "shard": f"{at.key}/{one['shard']}"} for one in there.failures]
        there = replace(there, failures=failures)
    return replace(
        there,
        job=job.job,
        output=job.output,
        state=job.state,
        running=there.running if live else 0,
        rate=there.rate if live else dict(NO_RATE),
        eta_range_s=there.eta_range_s if live else None,
        waits=job.waits,
        waits_since=job.waits_since,
        quiet_s=job.quiet_s,
        rows_running=job.rows_running,
        incomplete_input=job.incomplete_input,
        retrying=there.retrying if live else [],
        runs=job.runs,
        earlier_runs=job.earlier_runs,
        stages=tuple(reports),
        stage=at.key,
    )


def report_of(planned: StageReport, status: JobStatus) -> StageReport:
    """Returns how far a stage is whose ledger was looked at."""
    return replace(
        planned,
        state=status.state,
        total=status.total,
        done=status.done,
        running=status.running,
        failed=status.failed,
        rows=status.rows,
        bytes_in=status.bytes_done,
    )


def _status_of_report(job: JobStatus, at: StageReport, beat: Heartbeat | None) -> JobStatus:
    """Returns the status of a stage whose ledger cannot be looked at, as the job's own run tells of it."""
    at_work = beat if job.state == RUNNING else None
    return replace(
        job,
        total=at.total,
        done=at.done,
        running=at.running,
        failed=at.failed,
        stale=0,
        rows=dict(at.rows or Books().rows()),
        bytes_total=0,
        bytes_done=at.bytes_in,
        rate=dict(at_work.rate if at_work else NO_RATE),
        eta_range_s=at_work.eta_range_s if at_work else None,
        failures=list(beat.failures) if beat else [],
        operators=list(at_work.operators) if at_work else [],
        retrying=list(at_work.retrying) if at_work else [],
    )


@dataclass(slots=True)
class RateWindow:
    """Rates over the last minute or so of a run, from totals seen at times. Holds a bounded number of points."""

    span_s: float = 60.0
    _points: list[tuple[float, int, int, int]] = field(default_factory=list)

    def add(self, now_s: float, shards: int, rows: int, size_bytes: int) -> None:
        """Notes the totals at a time; at most one point a second is kept."""
        if len(self._points) > 1 and now_s - self._points[-2][0] < 1.0:
            self._points[-1] = (now_s, shards, rows, size_bytes)
        else:
            self._points.append((now_s, shards, rows, size_bytes))
        while len(self._points) > 2 and now_s - self._points[1][0] > self.span_s:
            del self._points[0]

    def rates(self) -> dict[str, float]:
        """Returns shards, rows and input bytes per second."""
        if len(self._points) < 2:
            return dict(NO_RATE)
        (t0, *first), (t1, *last) = self._points[0], self._points[-1]
        elapsed_s = t1 - t0
        if elapsed_s < LEAST_SPAN_S:
            return dict(NO_RATE)
        values = [round((b - a) / elapsed_s, 3) for a, b in zip(first, last, strict=True)]
        return dict(zip(NO_RATE, values, strict=True))
