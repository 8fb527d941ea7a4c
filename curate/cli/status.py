"""Renders what is known of a job, and of all known jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click
from rich.text import Text

from curate.cli.terminal import LABEL_COLUMNS, Console, fact, line, prose, show
from curate.clock import Clock
from curate.errors import EXIT_INTERRUPTED, CurateError
from curate.ledger.heartbeat import RUNNING
from curate.ledger.stages import WAITING, StageReport, exchanges, stage_title
from curate.ledger.summary import incomplete_text, missing_text
from curate.observe import registry
from curate.observe.eta import format_range
from curate.observe.job import ledger_status, read_status
from curate.observe.place import NoJobError
from curate.observe.status import COMPLETE, STALLED, JobStatus, RunStatus, quiet_text
from curate.observe.summary_text import dropped_text, rows_text
from curate.pages.known import look_at
from curate.units import (
    ellipsize,
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_rate,
    json_line,
    plain_line,
    shell_word,
)

COLOURS = {
    "complete": "green",
    "running": "cyan",
    "pending": "yellow",
    WAITING: "dim",
    "stalled": "red",
    "failed": "red",
    "aborted": "red",
    "interrupted": "yellow",
    "unreachable": "red",
}
FAILED = ("failed", "aborted")
"""States of a job of which it is known what failed."""
SHOWN_RUNS = 5
SHOWN_PARTS = 64
"""Drivers of one output, of which each one is shown."""
SHOWN_FAILURES = 10
SHOWN_REASONS = 10
SHOWN_COUNTERS = 20
SHOWN_OPERATORS = 20
SHOWN_NAME = 40
"""Characters of an operator's name."""
BAR_COLUMNS = 40
"""Of a bar where there is room."""


GONE = "gone"
MOST_GONE = 10
"""Jobs whose output was removed that a list of all jobs shows, at most: those that were started last."""
UNREACHABLE = "unreachable"


def _watched(look: Callable[[], bool], clock: Clock, watch_s: float | None) -> int:
    """Has something shown, again and again while it goes on, which `look` says, if it is watched. Returns the exit
    code."""
    try:
        while look() and watch_s is not None:
            clock.sleep(watch_s)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def show_job(output: str, clock: Clock, *, as_json: bool, watch_s: float | None, quick: bool = False) -> int:
    """Prints the status of one job, again and again while it runs if watched. Returns the exit code.

    `quick`: from its ledger alone.
    """
    console = Console(highlight=False)

    def look() -> bool:
        status = (ledger_status if quick else read_status)(output, clock.now())
        if as_json:
            click.echo(json_line(status.as_dict()))
        else:
            more = f"curate status {'--quick ' if quick else ''}{shell_word(output)}"
            show(console, partial(_render, console, status, clock.now()), more if watch_s is not None else "")
        return status.state == RUNNING

    return _watched(look, clock, watch_s)


def show_all(clock: Clock, *, as_json: bool, watch_s: float | None) -> int:
    """Prints the jobs known under $CURATE_HOME, newest first; watched, again while one runs. Returns the exit code."""
    console = Console(highlight=False)

    def look() -> bool:
        found = look_at(registry.list_jobs(), clock.now())
        if as_json:
            click.echo(json_line({"jobs": [_as_dict(*one) for one in found]}))
        else:
            show(console, partial(_render_all, console, found), "curate status" if watch_s is not None else "")
        return any(isinstance(job, JobStatus) and job.state == RUNNING for _, job in found)

    return _watched(look, clock, watch_s)


# One job


def _render(console: Console, status: JobStatus, now: float) -> None:
    line(
        console,
        Text.assemble((plain_line(status.job), "bold"), "  ", _state(status.state), f"  {plain_line(status.output)}"),
    )
    # A complete job without a shard is done; one that is not planned yet is not.
    part = status.done / status.total if status.total else float(status.state == COMPLETE)
    # Rounded down: 100 % is said of nothing that is not done.
    percent = math.floor(1000 * part) / 10
    counts = f" {status.done:,} of {status.total:,} shards ({percent:.1f} %)"
    line(console, Text.assemble(_bar(console, part, console.width - len(counts)), counts))
    names = max((len(ellipsize(one.name, SHOWN_NAME)) for one in status.stages), default=0)
    for number, one in enumerate(status.stages):
        fact(console, "" if number else "stages", _stage(number + 1, one, names, at=one.key == status.stage))
    for label, value in _facts(status, now):
        fact(console, label, Text(value))
    for label, value in _failures(status):
        fact(console, label, Text(value), "red")
    for label, value in _books(status):
        fact(console, label, Text(value))
    shown = _shown_runs(status)
    for number, run in enumerate(shown):
        ago = f"{format_duration(max(0.0, now - run.updated))} ago"
        if run.updated > now + 1:
            ago = f"{format_duration(run.updated - now)} ahead of the clock here"
        if run.state == RUNNING:
            ago = f"last heartbeat {ago} on {plain_line(run.host)}, process {run.pid}"
            ago = f"for {format_duration(max(0.0, now - run.started))}, {ago}"
        elif run.gone:
            ago = f"process {run.pid} on {plain_line(run.host)} is gone; last heartbeat {ago}"
        elif run.state == STALLED:
            ago = f"last heartbeat {ago} on {plain_line(run.host)}, process {run.pid}"
        joint = " " if run.state == RUNNING else ", "
        which = f"part {run.part}  " if run.part else ""
        fact(console, "" if number else "run", Text.assemble(f"{which}{run.run_id} ", _state(run.state), joint + ago))
        if run.ended_by:
            fact(console, "", Text(ellipsize(run.ended_by)), "red")
    more = len(status.runs) - len(shown) + status.earlier_runs
    if more:
        fact(console, "", Text(f"... and {more:,} earlier"))
    at_rest = status.state in FAILED or (status.failures and status.state != RUNNING)
    some = at_rest and not (shown and shown[0].ended_by and not status.failures)
    look = "failures" if some else "verify" if status.altered else ""
    if look:
        # In a line of its own, to be copied.
        line(console, Text(f"{'next':<{LABEL_COLUMNS}}curate {look} {shell_word(status.output)}"))
    if hint := _next(status):
        fact(console, "" if look else "next", Text(hint))


def _shown_runs(status: JobStatus) -> list[RunStatus]:
    """Returns the newest runs; of a job that several drivers make, the newest of each part, in the order of parts."""
    if not status.runs or not status.runs[0].part:
        return status.runs[:SHOWN_RUNS]
    newest = {run.part: run for run in reversed(status.runs) if run.part}
    return sorted(newest.values(), key=lambda run: int(run.part.partition("/")[0]))[:SHOWN_PARTS]


def _facts(status: JobStatus, now: float) -> Iterator[tuple[str, str]]:
    """Yields what is known of a job, by label: first what somebody who watches it wants to see, then its books."""
    counts = {"running": status.running, "pending": status.pending, "failed": status.failed, "stale": status.stale}
    so_far = f" ({format_count(status.rows_running, 'row')} so far)" if status.rows_running else ""
    if status.stages and status.state != COMPLETE:
        yield "at", stage_title(status.stages, status.stage)
    yield (
        "shards",
        ", ".join(f"{n:,} {name}{so_far if name == 'running' else ''}" for name, n in counts.items() if n)
        or ("all done" if status.total or status.state == COMPLETE else "not planned yet"),
    )
    if not status.outputs_listed:
        said = "no run has reported yet"
        if status.as_of is not None:
            said = f"{_time(status.as_of)} UTC, {format_duration(max(0.0, now - status.as_of))} ago"
        yield "as of", f"{said}; from the ledger alone, outputs were not looked at"
    if status.state == RUNNING:
        yield from _going_on(status, now)


def _going_on(status: JobStatus, now: float) -> Iterator[tuple[str, str]]:
    rate = status.rate
    shards, rows = format_rate(rate["shards_per_s"], "shard"), format_rate(rate["rows_per_s"], "row")
    yield "rate", f"{shards}, {rows}, {format_bytes(rate['bytes_per_s'])}/s"
    # A run that stands still has no end to be seen.
    yield "ETA", "unknown while no shard ends" if status.quiet_s else format_range(status.eta_range_s)
    if status.quiet_s:
        yield "progress", quiet_text(status.quiet_s)
    if status.waits:
        yield "waits", ellipsize(status.waits_text(now))
    texts = (f"{format_count(one['count'], 'shard')}: {ellipsize(one['error'])}" for one in status.retrying)
    yield from _listed("retrying", texts, SHOWN_FAILURES)


def _books(status: JobStatus) -> Iterator[tuple[str, str]]:
    rows = status.rows
    dropped = sorted(rows["dropped"].items(), key=lambda item: (-item[1], item[0]))
    yield "rows", rows_text(rows)
    yield from _listed("dropped", (dropped_text(one, n, labelled=True) for one, n in dropped), SHOWN_REASONS)
    for one in exchanges(status.stages) if status.state == COMPLETE else ():
        if one.rows_in != one.rows_out:
            yield "unequal", f"{plain_line(one.name)}: {one.rows_in:,} rows went in, {one.rows_out:,} came out"
    if status.outputs_listed or status.bytes_total:
        yield "input", f"{format_bytes(status.bytes_done)} of {format_bytes(status.bytes_total)}"
    if any(status.missing):
        yield "", missing_text(*status.missing)
    yield from (("", text) for text in incomplete_text(status.incomplete_input))
    for label, sums in (("counters", status.counters), ("metrics", status.metrics)):
        yield from _listed(label, (f"{plain_line(k)} = {format_number(v)}" for k, v in sums.items()), SHOWN_COUNTERS)
    if status.state == RUNNING:
        yield from _listed("operators", map(_operator, status.operators), SHOWN_OPERATORS)


def _stage(number: int, one: StageReport, columns: int, *, at: bool) -> Text:
    """Returns how far a stage is, in a line that begins with its name, in so many columns."""
    text = Text.assemble((f"{number}  {ellipsize(one.name, SHOWN_NAME):<{columns}}  ", "bold" if at else ""))
    text.append_text(Text.assemble(_state(one.state)))
    if one.total:
        text.append(f", {one.done:,} of {one.total:,} shards")
        text.append(f", {one.failed:,} failed" if one.failed else "")
    if one.rows is not None and one.total:
        text.append(f", {one.rows['in']:,} rows in, {one.rows['out']:,} out")
    return text


def _operator(one: Mapping[str, Any]) -> str:
    """Returns what an operator has done, in a line."""
    rows = [f"{one[key]:,} rows {what}" for key, what in (("rows_in", "in"), ("rows_out", "out")) if one[key]]
    text = f"{ellipsize(one['name'], SHOWN_NAME)}: "
    text += f"{', '.join(rows)}; " if rows else ""
    text += f"{format_duration(one['wall_s'])} busy, {format_duration(one['cpu_s'])} of it on a CPU"
    if "actors" in one:
        actors = format_count(one["actors"], "actor")
        text += f"; {actors} {100 * one['busy']:.0f} % busy, {one['queued']:,} calls queued"
    return text


def _failures(status: JobStatus) -> Iterator[tuple[str, str]]:
    texts = (
        f"{one['count']:,} x {ellipsize(one['error'])} (for example {plain_line(one['shard'])})"
        for one in status.failures
    )
    yield from _listed("failed", texts, SHOWN_FAILURES)


def _listed(label: str, texts: Iterable[str], most: int) -> Iterator[tuple[str, str]]:
    """Yields the first `most` texts, the first with the label, and how many there are beyond them."""
    everything = list(texts)
    for number, text in enumerate(everything[:most]):
        yield "" if number else label, text
    if len(everything) > most:
        yield "", f"... and {len(everything) - most:,} more"


def _next(status: JobStatus) -> str:
    """Returns what to do now, if anything."""
    if status.altered:
        # A run that finds one cut off is refused.
        return "outputs were changed after the job was complete; this says which, and what to do"
    if status.state == STALLED and (run := status.runs[0]).there:
        return f"process {run.pid} is still there: it is stopped, or cannot write; kill -CONT {run.pid} lets it go on"
    if status.state == STALLED and not (run := status.runs[0]).gone:
        return f"if process {run.pid} on {plain_line(run.host)} is gone, run the job again; it resumes"
    if status.state in FAILED:
        again = " with --redo-stale" if status.stale else ""
        return f"fix the cause and run the job again{again}; finished shards are skipped"
    if status.state in (STALLED, "interrupted", "pending"):
        return "run the job again; it resumes"
    if status.stale and status.state == COMPLETE:
        return "run the job again with --redo-stale to make what is stale again: its input has changed"
    return ""


# All jobs


def forget_removed(clock: Clock) -> tuple[int, int]:
    """Takes the jobs off the list whose output was removed, and removes what they have left on this machine; returns
    how many jobs, and of how many of these something was removed. One that cannot be reached stays."""
    gone = [entry["output"] for entry, job in look_at(registry.list_jobs(), clock.now()) if isinstance(job, NoJobError)]
    # First: who is not on the list is not found again.
    removed = sum(registry.remove_abandoned(output, clock.now()) for output in gone)
    for output in gone:
        registry.forget(output)
    return len(gone), removed


def _as_dict(entry: dict[str, Any], job: JobStatus | CurateError) -> dict[str, Any]:
    if isinstance(job, JobStatus):
        return job.as_dict()
    state = GONE if isinstance(job, NoJobError) else UNREACHABLE
    return {"job": entry["job"], "output": entry["output"], "state": state, "error": str(job)}


def _render_all(console: Console, found: list[tuple[dict[str, Any], JobStatus | CurateError]]) -> None:
    if not found:
        prose(console, f"No jobs are known under {registry.home()}. The first run of a job adds it.")
        return
    rows = [("job", "state", "done", "failed", "started (UTC)")]
    gone = [entry["output"] for entry, job in found if isinstance(job, NoJobError)]
    found = [(entry, job) for entry, job in found if entry["output"] not in gone[MOST_GONE:]]
    for entry, job in found:
        name, state, done, failed = plain_line(entry["job"]), UNREACHABLE, "", ""
        if isinstance(job, JobStatus):
            name, state, done, failed = plain_line(job.job), job.state, f"{job.done:,}/{job.total:,}", f"{job.failed:,}"
        elif isinstance(job, NoJobError):
            state = GONE
        rows.append((name, state, done, failed, _time(entry["started"])))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    outputs = ["output", *(plain_line(entry["output"]) for entry, _ in found)]
    room = console.width - sum(widths) - 2 * len(widths)
    beneath = console.is_terminal and max(map(len, outputs)) > room
    for number, (row, output) in enumerate(zip(rows, outputs, strict=True)):
        job_name, state, done, failed, started = row
        text = Text(f"{job_name:<{widths[0]}}  ")
        text.append(f"{state:<{widths[1]}}", COLOURS.get(state, "") if number else "")
        text.append(f"  {done:>{widths[2]}}  {failed:>{widths[3]}}  {started:<{widths[4]}}")
        if not beneath:
            text.append(f"  {output}")
        text.rstrip()
        if not number:
            text.stylize("bold")
        line(console, text)
        if beneath and number:
            line(console, Text(f"    {output}"))
    for _, job in found:
        if isinstance(job, CurateError) and not isinstance(job, NoJobError):
            line(console, Text.assemble(("unreachable: ", "red"), plain_line(str(job))))
    if gone:
        what = "1 output was" if len(gone) == 1 else f"{len(gone):,} outputs were"
        shown = f", {MOST_GONE} shown" if len(gone) > MOST_GONE else ""
        line(console, Text(f"{what} removed{shown}; to take them off this list: curate forget --removed"))


# Lines


def _bar(console: Console, part: float, room: int) -> tuple[str, str]:
    columns = max(0, min(BAR_COLUMNS, room))
    full, empty = ("█", "░") if console.encoding.startswith("utf") else ("#", ".")
    filled = math.floor(columns * part)
    return full * filled + empty * (columns - filled), "green"


def _state(state: str) -> tuple[str, str]:
    return state, COLOURS.get(state, "")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
