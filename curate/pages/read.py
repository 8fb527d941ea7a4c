"""Reads what a page says from an output prefix: no inputs, no cluster. What cannot be read is noted and left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from curate import log
from curate.around import contextmanager
from curate.errors import ConfigError, CurateError
from curate.ledger import layout
from curate.ledger.failures import Group
from curate.ledger.heartbeat import RUNNING, newest_heartbeats
from curate.ledger.ledger import Ledger, open_ledger
from curate.ledger.stages import stage_title
from curate.observe.failures import StageFailures, read_all_failures, repeatable, replay_command, retry_command
from curate.observe.job import status_of
from curate.observe.place import NoJobError, root_of
from curate.observe.status import COMPLETE, STALLED, JobStatus, RunStatus, run_status
from curate.pages.attempts import TimedFailures, Work, longest, strip, timeline, total_seconds, work_of, work_of_times
from curate.pages.books.read import bad_rows, sampled_rows, short_reasons, stage_books
from curate.pages.costs import Prices, costs, read_prices
from curate.pages.lineage import read_lineage
from curate.pages.model import FailureGroup, Head, Operator, Page, Retried, Run
from curate.units import ellipsize, escape_controls, format_count, format_duration, shell_word

READERS = 16
SHOWN_NAME = 120
SHOWN_TRACEBACK = 6_000
"""Characters of the end of a traceback."""
SHOWN_STAGES = 100
SHOWN_GROUPS = 20
SHOWN_PARAMETERS = 100
SHOWN_INPUTS = 20
SHOWN_NOTES = 20
DAMAGED = "damaged"


def read_page(output: str, now: float) -> Page:
    """Returns the page of the job that writes to `output`. Raises NoJobError, and what the store raises."""
    with _noted() as notes:
        try:
            return _page(read_all_failures(output), now, notes)
        except NoJobError:
            raise
        except ConfigError as error:
            return _damaged(output, now, [*notes, str(error)])


@contextmanager
def _noted() -> Iterator[list[str]]:
    """Collects the warnings that are logged within a block: what could not be read is said there."""
    notes: list[str] = []

    def hear(event: Mapping[str, Any]) -> None:
        if event.get("level") == "warning" and len(notes) < SHOWN_NOTES:
            more = ", ".join(
                f"{name}: {value}" for name, value in event.items() if name not in ("event", "level", "timestamp")
            )
            text = ellipsize(f"{event.get('event')} ({more})")
            if text not in notes:
                notes.append(text)

    log.ensure_configured()
    log.listen(hear)
    try:
        yield notes
    finally:
        log.stop_listening(hear)


def _page(stages: list[StageFailures], now: float, notes: list[str]) -> Page:
    timed = [(one, TimedFailures(**_fields(one))) for one in stages]
    last = timed[-1][1]
    status = status_of(last, now)
    at = next((found for one, found in timed if one.key == status.stage), last)
    ends = {run.run_id: (run.started, run.updated) for run in status.runs}
    bytes_out = int(last.listing.objects.numbers("size")[last.matched.position[last.matched.done]].sum())
    runs = _runs(last.ledger, status.runs)
    groups = [(one, group) for one, found in timed for group in found.groups()]
    again = bool(groups) and repeatable(last)
    return Page(
        now,
        _head(last, status, bytes_out, now),
        books=stage_books(status, bytes_out),
        sampled=sampled_rows([(one.key, found) for one, found in timed], status),
        bad_rows=bad_rows(last, status),
        time=timeline(_work(timed, status), ends),
        shards=strip(at.attempts, at.matched.done, at.failed) if len(at.plan) else None,
        longest=longest(at.attempts, at.plan, at.matched.done, at.failed),
        operators=_operators(status),
        failures=tuple(_failure(last.ledger.root, one, group, again=again) for one, group in groups[:SHOWN_GROUPS]),
        more_failures=max(0, len(groups) - SHOWN_GROUPS),
        retrying=tuple(
            Retried(ellipsize(one["error"]), one["count"], ellipsize(one["shard"], SHOWN_NAME))
            for one in status.retrying[:SHOWN_GROUPS]
        ),
        runs=runs,
        lineage=read_lineage(last, status, runs[0].inputs if runs else (), now, notes),
        earlier_runs=status.earlier_runs,
        costs=_costs(timed, status, notes),
        notes=tuple(notes),
    )


def _work(timed: list[tuple[StageFailures, TimedFailures]], status: JobStatus) -> list[Work]:
    """Returns what was at work: of the stages of a job of several, what the newest runs say, if they do: events of a
    stage go with it."""
    if not status.stages:
        return [work_of(found.attempts) for _, found in timed]
    names = {one.key: ellipsize(stage_title(status.stages, one.key)) for one in status.stages}
    told = [(run, key, times) for run in status.runs for key, times in run.times.items() if key in names]
    of_stages = [work_of_times(times, names[key], run.updated) for run, key, times in told]
    if any(len(work.ends) for work in of_stages):
        return of_stages
    return [work_of(found.attempts, ellipsize(one.text)) for one, found in timed]


def _fields(one: StageFailures) -> dict[str, Any]:
    found = one.found
    names = ("ledger", "listing", "job", "plan", "matched")
    return {name: getattr(found, name) for name in names}


def _damaged(output: str, now: float, notes: list[str]) -> Page:
    """Returns what can be shown of a job whose plan, or whose own record, cannot be read."""
    ledger = open_ledger(root_of(output))
    listing = ledger.list()
    beats = newest_heartbeats(ledger, listing.run_ids)
    runs = [run_status(beat, now) for beat in sorted(beats, key=lambda beat: beat.run_id, reverse=True)]
    try:
        job = ellipsize(str(ledger.read_json(layout.JOB).get("job", "?")), SHOWN_NAME)
    except CurateError:
        job = "unknown job"
    says = "The ledger cannot be read as a whole. Runs are shown as far as they are known; the notes say what is not."
    return Page(
        now,
        Head(job, ellipsize(ledger.root), DAMAGED, says, bytes_out=listing.bytes),
        notes=tuple(ellipsize(one) for one in notes),
        runs=_runs(ledger, runs),
        costs=costs(None, [run.calls for run in runs], _prices(notes), ()),
    )


# Head


def _head(found: TimedFailures, status: JobStatus, bytes_out: int, now: float) -> Head:
    job = found.job
    identity = {
        "job": job["job"],
        "version": _version(job.get("identity", {})),
        "fingerprint": job["fingerprint"],
        "code digest": job.get("code_digest"),
        "format": " ".join(str(job[name]) for name in ("format", "codec") if name in job),
    }
    parameters = {**job["parameters"]} if isinstance(job.get("parameters"), Mapping) else {}
    counts = {"total": status.total, "done": status.done, "running": status.running, "pending": status.pending}
    return Head(
        ellipsize(status.job, SHOWN_NAME),
        ellipsize(status.output),
        ellipsize(status.state, SHOWN_NAME),
        state_text(status),
        counts | {"failed": status.failed, "stale": status.stale},
        "" if status.state == COMPLETE or not status.stages else ellipsize(stage_title(status.stages, status.stage)),
        short_reasons(status.rows),
        {ellipsize(name, SHOWN_NAME): value for name, value in [*status.counters.items()][:SHOWN_PARAMETERS]},
        status.bytes_done,
        status.bytes_total,
        bytes_out,
        status.rate if status.state == RUNNING else {},
        status.eta_range_s,
        ellipsize(status.waits_text(now)),
        {name: ellipsize(str(value)) for name, value in identity.items() if value},
        {
            ellipsize(str(name), SHOWN_NAME): ellipsize(_value(value))
            for name, value in [*parameters.items()][:SHOWN_PARAMETERS]
        },
    )


def state_text(status: JobStatus) -> str:
    """Returns the state of a job in words, with the next step."""
    shards = format_count(status.total, "shard")
    if status.state == COMPLETE:
        return f"All {shards} are done." if status.total != 1 else "Its one shard is done."
    some = f"{status.done:,} of {shards} done"
    failed = f", {status.failed:,} failed" if status.failed else ""
    if status.state == RUNNING:
        quiet = f" No shard has ended for {format_duration(status.quiet_s)}." if status.quiet_s else ""
        return f"{some}{failed}; {status.running:,} are running now.{quiet}"
    if status.state == STALLED and not status.runs[0].gone:
        run, host = status.runs[0], ellipsize(status.runs[0].host)
        if run.there:
            return f"{some}{failed}. Process {run.pid} on {host} is there, and is stopped or cannot write."
        return f"{some}{failed}. No word from process {run.pid} on {host}; if it is gone, run the job again."
    if status.failed:
        return f"{some}{failed}. After fixing the cause, run the job again; finished shards are skipped."
    if status.altered:
        return f"{some}, but outputs were changed after the job was complete; curate verify says which, and what to do."
    return f"{some}. Run the job again; it resumes."


def _version(identity: Any) -> str:
    version = identity.get("version") if isinstance(identity, Mapping) else None
    return "" if version is None else str(version)


def _value(value: Any) -> str:
    try:
        return value if isinstance(value, str) else orjson.dumps(value).decode()
    except TypeError:
        return repr(value)


# Operators


def _operators(status: JobStatus) -> tuple[Operator, ...]:
    total_s = sum(one["wall_s"] for one in status.operators)
    most = max((one["wall_s"] for one in status.operators), default=0.0)
    return tuple(
        Operator(
            ellipsize(one["name"], SHOWN_NAME),
            int(one["rows_in"]),
            int(one["rows_out"]),
            one["wall_s"],
            one["cpu_s"],
            one["wall_s"] / total_s if total_s else 0.0,
            _bytes(one.get("bytes_out")),
            _bytes(one.get("largest_bytes")),
            _bytes(one.get("peak_bytes")),
            int(one["actors"]) if "actors" in one else None,
            one["busy"] if "actors" in one else None,
            limits=bool(most) and one["wall_s"] == most,
        )
        for one in status.operators[:SHOWN_STAGES]
    )


def _bytes(value: Any) -> int:
    """Returns a number of bytes; 0 where an earlier version wrote none."""
    return int(value) if isinstance(value, int | float) and value > 0 else 0


# Failures, runs, lineage, costs


def _failure(output: str, stage: StageFailures, group: Group, *, again: bool) -> FailureGroup:
    example = group.example
    shard = stage.addressed(example["shard"])
    node, pid = example.get("node"), example.get("pid")
    trace = escape_controls(example.get("traceback", "")[-SHOWN_TRACEBACK:])
    return FailureGroup(
        ellipsize(example.get("error", "")),
        ellipsize(example.get("frame", "")),
        ellipsize(stage.text),
        group.shards,
        group.attempts,
        ", ".join(ellipsize(kind.replace("_", " "), SHOWN_NAME) for kind, _ in group.kinds.most_common()),
        group.first,
        group.last,
        ellipsize(shard),
        ellipsize(example.get("input", "")),
        ellipsize(f"process {pid} on {node}" if pid else node or "", SHOWN_NAME),
        trace[-SHOWN_TRACEBACK:],
        (
            f"curate failures {shell_word(output)} --shard {shell_word(shard)}",
            *((replay_command(output, shard), retry_command(output)) if again else ()),
        ),
    )


def _runs(ledger: Ledger, runs: list[RunStatus]) -> tuple[Run, ...]:
    def read(run: RunStatus) -> Mapping[str, Any]:
        try:
            return ledger.read_json(layout.run_file(run.run_id, "run.json"))
        except CurateError as error:
            log.get_logger().warning("cannot read the record of a run", run=run.run_id, error=str(error))
            return {}

    with ThreadPoolExecutor(READERS) as pool:
        return tuple(map(_run, runs, pool.map(read, runs)))


def _run(run: RunStatus, told: Mapping[str, Any]) -> Run:
    versions = told.get("versions", {})
    return Run(
        ellipsize(run.run_id, SHOWN_NAME),
        ellipsize(run.state, SHOWN_NAME),
        run.started,
        run.updated,
        ellipsize(told.get("user", "?"), SHOWN_NAME),
        ellipsize(f"{run.host}, process {run.pid}" + (", which has ended" if run.gone else ""), SHOWN_NAME),
        ellipsize(" ".join(map(shell_word, told.get("command", ())))),
        ellipsize(told.get("cwd", "")),
        ellipsize(told.get("backend", ""), SHOWN_NAME),
        run.part,
        ellipsize(", ".join(f"{name} {version}" for name, version in versions.items())),
        tuple(ellipsize(one) for one in told.get("inputs", ())[:SHOWN_INPUTS]),
        run.done,
        run.tries,
        run.calls,
        ellipsize(run.ended_by),
    )


def _costs(timed: list[tuple[StageFailures, TimedFailures]], status: JobStatus, notes: list[str]) -> Any:
    remarks = []
    told = [times for run in status.runs for times in run.times.values()]
    if told:
        # Of all stages: the events of one go with it.
        slot_s = sum(sum(times.amounts["slots"]) for times in told)
    else:
        slot_s = sum(total_seconds(found.attempts) for _, found in timed)
        if status.stages and status.state == COMPLETE and len(timed) < len(status.stages):
            remarks.append(
                "Slot-hours are those of the last stage: the events of earlier stages were removed with them."
            )
    if status.earlier_runs:
        remarks.append(f"{'Slot-hours and requests' if told else 'Requests'} are those of the newest runs.")
    return costs(slot_s, [run.calls for run in status.runs], _prices(notes), remarks)


def _prices(notes: list[str]) -> Prices | None:
    try:
        return read_prices()
    except CurateError as error:
        notes.append(ellipsize(str(error)))
        return None
