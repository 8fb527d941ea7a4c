"""Reports the run of a job with several stages to its ledger and to watchers.

Watchers see one job: one run in the job's ledger, whose heartbeat has the running stage, its progress and the state of
the other stages. Each stage before the last one also has its own ledger. The heartbeat repeats its content, because a
bucket's job may have its stages on one machine's disk.

The last stage writes to the job's own ledger, under the same run: it takes the heartbeat over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Self

from curate.clock import Clock
from curate.dataclass import dataclass, replace
from curate.ledger.heartbeat import NO_RATE, RUNNING
from curate.ledger.ledger import Ledger
from curate.ledger.run_log import RunLog, new_run_id
from curate.ledger.stages import LAST, StageReport, source_bytes, stage_title
from curate.ledger.summary import RunState, Summary, staged_as_dict
from curate.observe import registry
from curate.observe.progress import Display, Progress
from curate.observe.run_totals import RunTotals
from curate.resume.options import RunOptions
from curate.resume.state import Prepared
from curate.stage.job_record import JobRecord
from curate.stage.stage import Stage
from curate.storage.protocol import Calls
from curate.tasks.books import Books, UpstreamBooks


def introduction(
    job: JobRecord, options: RunOptions, started: float, incomplete: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns what `run.json` says of a run, whatever it runs."""
    return {
        "job": job.name,
        "started": started,
        "inputs": list(options.inputs),
        "backend": options.backend,
        "limit": options.limit,
        "sample": options.sample,
        "allow_incomplete_input": options.allow_incomplete_input,
        **({"no_samples": True} if options.no_samples else {}),
        **incomplete_as_dict(incomplete),
        "origin": dict(job.origin),
    }


def incomplete_as_dict(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what a record says was missing of the inputs; nothing if they were whole."""
    return {"incomplete_input": [dict(one) for one in found]} if found else {}


def reports_of(prepared: Prepared, totals: RunTotals, state: RunState) -> tuple[StageReport, ...]:
    """Returns the stages of a job, the last of which ended as `state`; none if it has no others."""
    history = prepared.history
    if history.summarised:
        return history.reports
    if not prepared.stage.reports:
        return ()
    *before, last = prepared.stage.reports
    shards = len(prepared.plan), totals.job_done, 0, totals.failed
    now = StageReport(
        *(last.key, last.name, last.reads, state.value, *shards),
        *(totals.books.rows(), totals.bytes_in, totals.bytes_out),
    )
    return (*before, now)


def summary_as_dict(
    prepared: Prepared, totals: RunTotals, earlier: UpstreamBooks | None, reports: Sequence[StageReport]
) -> dict[str, Any]:
    """Returns the content of `summary.json` of a job of which every shard is done."""
    return {
        **({} if earlier is None else {"earlier": earlier.as_dict()}),
        "job": prepared.record.name,
        "fingerprint": prepared.record.fingerprint,
        "run_id": prepared.run_id,
        "shards": {"total": len(prepared.plan), "done": totals.job_done},
        **totals.as_dict(),
        **incomplete_as_dict(prepared.incomplete_input),
        **staged_as_dict([one.settled() for one in reports]),
    }


BeatFields = Callable[[], dict[str, Any]]


class JobProgress:
    """One run of a job of several stages."""

    def __init__(
        self,
        stage: Stage,
        options: RunOptions,
        ledger: Ledger,
        clock: Clock,
        stages: Sequence[StageReport],
        calls: Callable[[], Calls],
        run_id: str = "",
    ) -> None:
        """`calls` returns the storage calls that the run made beside those of its stages."""
        self.job = stage.record.name
        self.ledger = ledger
        self.display = _OneDisplay(options.display)
        self._stage = stage
        self._options = options
        self._clock = clock
        self._own_calls = calls
        self._stages = {one.key: one for one in stages}
        self._times: dict[str, Any] = {}
        """When attempts at shards of each stage were at work."""
        self.start_s = 0.0
        """Seconds that it took, before this began, to start what runs tasks."""
        self._began_s = clock.monotonic()
        self._ended: list[Summary] = []
        self._begin(run_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._state = (RunState.INTERRUPTED if kind is KeyboardInterrupt else RunState.FAILED).value
        self.display.end()
        if self._opened and not self._handed_over:
            self._runlog.close()

    def _begin(self, run_id: str = "") -> None:
        self.started = self._clock.now()
        self.run_id = run_id or new_run_id(self.started)
        self._at = next(iter(self._stages))
        self._beat: BeatFields | None = None
        self._state = RUNNING
        self._opened = self._handed_over = False
        self._runlog = RunLog(self.ledger, self.run_id, self._clock, self.heartbeat, self._options.part)

    def _open(self) -> None:
        run, shared = (self.ledger, self.job, self.run_id), self._options.concurrent
        self._options.teller.begins(*run, self._runlog.says, shared=shared)
        about = introduction(self._stage.record, self._options, self.started, self._stage.holes)
        self._runlog.open({**about, "stages": [one.planned() for one in self._stages.values()]})
        registry.register(self.ledger.root, self.job, self.run_id, self.started)
        self._opened = True

    @property
    def stages(self) -> tuple[StageReport, ...]:
        """The stages of the job, as far as they are known."""
        return tuple(self._stages.values())

    def stage(self, key: str, name: str) -> StageHandle:
        """Returns what a stage tells of itself to, which begins now."""
        if key not in self._stages:
            # Whether run files are merged first, they alone tell.
            last = self._stages.pop(LAST)
            self._stages |= {key: StageReport(key, name.removeprefix(f"{self.job}: ")), LAST: last}
        if self._handed_over:
            # The last stage has ended, and some is made again: that is another run.
            self._begin(new_run_id(self._clock.now(), [self.run_id]))
        self._at, self._beat = key, None
        return StageHandle(self, key)

    def watch(self, key: str, beat: BeatFields) -> None:
        """Hears of a stage from now on, which has begun to work. Raises what the store raises.

        Only then does the job's ledger say that there is a run: one that is refused leaves none. The last stage writes
        that itself.
        """
        self._beat = beat
        if key == LAST:
            if self._opened and not self._handed_over:
                self._runlog.close()
            self._handed_over = True
        elif not self._opened:
            self._open()

    def ended(self, key: str, summary: Summary) -> None:
        """Notes how a stage ended."""
        self._ended.append(summary)
        if self._beat is not None:
            # As it ended: so it is told of until another one begins.
            last = self._beat() | {"storage_calls": Calls().as_dict()}
            self._beat = lambda: last
            self._times[key] = last.get("times", {})
        before = self._stages[key]
        now = summary.stages[-1] if summary.stages else report(before, summary)
        self._stages[key] = replace(now, seconds=(before.seconds or 0.0) + summary.seconds)

    def concluded(self, summary: Summary) -> None:
        """Notes what the summary of the job says of all stages: another driver ended the last ones."""
        self._stages |= {one.key: one for one in summary.stages}

    # What is told

    def summary(self, ended: Summary) -> Summary:
        """Returns the result of the run, from that of the stage that ended it."""
        self._state = ended.state.value
        stages = tuple(self._stages.values())
        return replace(
            ended,
            job=self.job,
            run_id=self.run_id,
            output=self.ledger.root,
            # Of a job that reads its inputs again at last, and came only so far, none were read for the last time.
            bytes_in=source_bytes(stages) or ended.bytes_in,
            seconds=self._clock.monotonic() - self._began_s + self.start_s,
            start_seconds=self.start_s + sum(one.start_seconds for one in self._ended),
            calls=reduce(Calls.plus, (one.calls for one in self._ended), self._own_calls()),
            failures=tuple(replace(one, shard=self._addressed(one.shard)) for one in ended.failures),
            stages=stages,
        )

    def _addressed(self, shard: str) -> str:
        return shard if self._at == LAST else f"{self._at}/{shard}"

    def heartbeat(self) -> dict[str, Any]:
        """Returns the content of the job's `heartbeat.json` while a stage before the last one is at work."""
        beat = self._beat
        return self.whole(_nothing_yet() if beat is None else beat())

    def whole(self, beat: dict[str, Any]) -> dict[str, Any]:
        """Returns what the stage at work says of itself as what the job says."""
        at = self._at
        calls = reduce(Calls.plus, (one.calls for one in self._ended), self._own_calls())
        shards = beat["shards"]
        now = {} if self._beat is None else {at: self._now(at, beat)}
        failures = [{**one, "shard": self._addressed(one["shard"])} for one in beat["failures"]]
        return {
            **beat,
            "job": self.job,
            "state": beat["state"] if at == LAST else self._state,
            "started": self.started,
            "shards": shards,
            "failures": failures,
            # Numbers of shards of the last stage only: those of others are in their own ledgers.
            **({"at_hand": []} if at != LAST else {}),
            "storage_calls": {
                name: number + beat["storage_calls"].get(name, 0) for name, number in calls.as_dict().items()
            },
            "stage": at,
            "stages": [one.as_dict() for one in {**self._stages, **now}.values()],
            "times": {**self._times, **({at: beat["times"]} if "times" in beat else {})},
        }

    def _now(self, key: str, beat: dict[str, Any]) -> StageReport:
        shards, sizes = beat["shards"], beat["bytes"]
        counts = {name: shards[name] for name in ("total", "done", "running", "failed")}
        return replace(
            self._stages[key], state=beat["state"], rows=beat["rows"], bytes_in=sizes["in"], bytes_out=sizes["out"],
            **counts,
        )  # fmt: skip

    def text(self, key: str) -> str:
        """Returns which stage one is, as people are told."""
        return stage_title(tuple(self._stages.values()), key)


@dataclass(frozen=True, slots=True)
class StageHandle:
    """Where a stage is in the run of its job."""

    course: JobProgress
    key: str

    @property
    def last(self) -> bool:
        """Whether it is the last one, whose ledger is that of the job."""
        return self.key == LAST

    @property
    def run_id(self) -> str | None:
        """The run that the stage is part of, if that is in its own ledger."""
        return self.course.run_id if self.last else None

    @property
    def job(self) -> str:
        """The name of the job."""
        return self.course.job

    @property
    def text(self) -> str:
        """Which stage it is, as people are told."""
        return self.course.text(self.key)

    def watch(self, beat: BeatFields) -> None:
        """Has the stage heard of from now on."""
        self.course.watch(self.key, beat)

    def whole(self, beat: dict[str, Any]) -> dict[str, Any]:
        """Returns the stage's heartbeat as it stands in its ledger."""
        return self.course.whole(beat) if self.last else beat


def report(planned: StageReport, summary: Summary) -> StageReport:
    """Returns how far a stage is that has ended in this way."""
    return replace(
        planned,
        state=summary.state.value,
        total=summary.total,
        done=summary.done,
        failed=summary.failed,
        rows=summary.books.rows(),
        bytes_in=summary.bytes_in,
        bytes_out=summary.bytes_out,
    )


def _nothing_yet() -> dict[str, Any]:
    return {
        "state": RUNNING,
        "shards": dict.fromkeys(("total", "scope", "done", "skipped", "running", "failed", "stale"), 0),
        "tasks": {"dispatched": 0, "attempts": 0},
        "rows": Books().rows(),
        "counters": {},
        "bytes": {"in": 0, "out": 0},
        "rate": dict(NO_RATE),
        "eta_seconds": None,
        "eta_range_seconds": None,
        "failures": [],
        "storage_calls": Calls().as_dict(),
    }


class _OneDisplay(Display):
    """The display of a run, for all of its stages: it ends with the last of them."""

    def __init__(self, inner: Display) -> None:
        self.interval_s = inner.interval_s
        self._inner = inner
        self._last: Progress | None = None

    def show(self, progress: Progress) -> None:
        """Shows where a stage is now."""
        self._last = progress
        self._inner.show(progress)

    def close(self, last: Progress) -> None:
        """Shows where a stage ended."""
        self.show(last)

    def end(self) -> None:
        """Ends the display."""
        if self._last is not None:
            self._inner.close(self._last)
            self._last = None
