"""Renders what is known of a job, and of all known jobs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import click
import orjson
from rich.console import Console
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from curate.clock import Clock
from curate.dataset.look import look
from curate.errors import ConfigError, CurateError
from curate.tasks import registry
from curate.tasks.status import RUNNING, JobStatus
from curate.units import format_bytes, format_duration

COLOURS = {
    "complete": "green",
    "running": "cyan",
    "pending": "yellow",
    "stalled": "red",
    "failed": "red",
    "aborted": "red",
    "interrupted": "yellow",
}
SHOWN_RUNS = 5
SHOWN_FAILURES = 10


def show_job(output: str, clock: Clock, *, as_json: bool, watch_s: float | None) -> int:
    """Prints the status of one job, again and again while it runs if watched. Returns the exit code."""
    console = Console(highlight=False)
    while True:
        status = look(output, clock.now())
        if as_json:
            click.echo(orjson.dumps(status.as_dict()))
        else:
            if watch_s is not None and console.is_terminal:
                console.clear()
            _render(console, status, clock.now())
        if watch_s is None or status.state != RUNNING:
            return 0
        clock.sleep(watch_s)


def _render(console: Console, status: JobStatus, now: float) -> None:
    colour = COLOURS.get(status.state, "white")
    console.print(
        f"[bold]{escape(status.job)}[/]  [{colour}]{status.state}[/]  {escape(status.output)}", soft_wrap=True
    )
    percent = 100 * status.done / status.total if status.total else 0
    bar = ProgressBar(total=max(status.total, 1), completed=status.done, width=40)
    grid = Table.grid(padding=(0, 1))
    grid.add_row(bar, f"{status.done:,} of {status.total:,} shards ({percent:.1f} %)")
    console.print(grid)
    counts = {
        "running": status.running,
        "pending": status.pending,
        "failed": status.failed,
        "stale": status.stale,
    }
    facts = Table.grid(padding=(0, 2))
    facts.add_row("shards", ", ".join(f"{n:,} {name}" for name, n in counts.items() if n) or "all done")
    rows = status.rows
    dropped = ", ".join(f"{n:,} {escape(reason)}" for reason, n in rows["dropped"].items())
    facts.add_row(
        "rows",
        f"{rows['in']:,} in + {rows['created']:,} created = {rows['out']:,} out "
        f"+ {sum(rows['dropped'].values()):,} dropped + {rows['quarantined']:,} quarantined",
    )
    if dropped:
        facts.add_row("dropped", dropped)
    for name, value in status.counters.items():
        facts.add_row("counter", f"{escape(name)} = {value:,}")
    facts.add_row("input", f"{format_bytes(status.bytes_done)} of {format_bytes(status.bytes_total)}")
    if status.state == RUNNING:
        rate = status.rate
        eta = "unknown" if status.eta_seconds is None else format_duration(status.eta_seconds)
        facts.add_row(
            "rate",
            f"{rate['shards_per_s']:,.1f} shards/s, {rate['rows_per_s']:,.0f} rows/s, "
            f"{format_bytes(rate['bytes_per_s'])}/s, ETA {eta}",
        )
    console.print(facts, soft_wrap=True)
    for failure in status.failures[:SHOWN_FAILURES]:
        console.print(
            f"  [red]failed[/] {failure['count']:,} x {escape(failure['error'])}  (such as {escape(failure['shard'])})",
            soft_wrap=True,
        )
    for run in status.runs[:SHOWN_RUNS]:
        console.print(
            f"  run {run.run_id}  [{COLOURS.get(run.state, 'white')}]{run.state}[/]  started {_time(run.started)}, "
            f"last heard of {format_duration(max(0.0, now - run.updated))} ago  ({escape(run.host)}, pid {run.pid})",
            soft_wrap=True,
        )
    if len(status.runs) > SHOWN_RUNS:
        console.print(f"  ... and {len(status.runs) - SHOWN_RUNS} earlier runs")


def show_all(now: float, *, as_json: bool, watch: bool, sleep: Callable[[float], None]) -> int:
    """Prints the jobs known under $CURATE_HOME, newest first. Returns the exit code."""
    del sleep
    if watch:
        raise ConfigError("--watch shows one job; give its output: curate status OUTPUT --watch")

    def peek(entry: dict[str, Any]) -> tuple[dict[str, Any], JobStatus | str]:
        try:
            return entry, look(entry["output"], now)
        except CurateError as error:
            return entry, str(error)

    entries = registry.known()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(peek, entries))
    if as_json:
        jobs = [
            status.as_dict() if isinstance(status, JobStatus) else {**entry, "state": "unreachable", "error": status}
            for entry, status in found
        ]
        click.echo(orjson.dumps({"jobs": jobs}))
        return 0
    if not found:
        click.echo(f"No jobs are known under {registry.home()}. One is noted there when it starts to run.")
        return 0
    table = Table(box=None, pad_edge=False)
    for name in ("job", "state", "done", "failed", "started", "output"):
        table.add_column(name, justify="right" if name in ("done", "failed") else "left", overflow="fold")
    for entry, status in found:
        started = _time(entry["started"])
        if isinstance(status, JobStatus):
            state = f"[{COLOURS.get(status.state, 'white')}]{status.state}[/]"
            done = f"{status.done:,}/{status.total:,}"
            table.add_row(escape(status.job), state, done, f"{status.failed:,}", started, escape(status.output))
        else:
            table.add_row(escape(entry["job"]), "[red]unreachable[/]", "", "", started, escape(entry["output"]))
    Console(highlight=False).print(table)
    return 0


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
