"""Renders what the workers of a job logged and printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click
import orjson
from rich.console import Console
from rich.text import Text

from curate.cli.terminal import line, moment
from curate.clock import Clock
from curate.dataset.browse import newest_run, said
from curate.dataset.look import FoundJob, find_job, look
from curate.tasks import layout
from curate.tasks.status import RUNNING
from curate.units import plain

FOLLOW_S = 2.0
EXIT_INTERRUPTED = 130
COLOURS = {"debug": "dim", "warning": "yellow", "error": "red", "critical": "red"}
_OWN = ("time", "level", "event", "shard", "attempt", "stream")
_LONG = ("exception", "stack")
"""Fields of several lines, which are shown beneath."""


def show_logs(output: str, clock: Clock, *, shard: str | None, run: str | None, follow: bool, as_json: bool) -> int:
    """Prints the lines of a run's workers, merged by time. Returns the exit code.

    Followed: what comes later too, as it is published, until no run is at work any more.
    """
    found = find_job(output)
    if shard is not None:
        found.rank_of(shard)
    names = found.listing.logs
    run_id = newest_run(names, found.listing.run_ids, run)
    if follow and run is None:
        run_id = max(found.listing.run_ids, default=run_id)
    console = Console(highlight=False)
    if not as_json:
        where = f", run {run_id}" if run_id else ""
        line(console, Text.assemble((plain(found.job["job"]), "bold"), f"  {plain(found.ledger.root)}{where}"))
    shown: set[str] = set()
    count = 0
    try:
        while True:
            alive = follow and look(output, clock.now()).state == RUNNING
            new = [name for name in names if layout.run_id_of(name) == run_id and name not in shown]
            shown.update(new)
            for value in _of_shard(said(found.ledger, new), shard):
                count += 1
                _show(console, value, as_json=as_json)
            if not alive:
                break
            clock.sleep(FOLLOW_S)
            names = _names(found, run_id)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if not count and not as_json:
        line(console, Text(_nothing(found, run_id, shard)))
    return 0


def _names(found: FoundJob, run_id: str | None) -> list[str]:
    """Returns the segments of a run's logs as they are now."""
    ledger = found.ledger
    prefix = ledger.uri(layout.run_file(run_id or "", "logs/"))
    names = (item.uri.removeprefix(ledger.root + "/") for item in ledger.store.list(prefix))
    return [name for name in names if layout.is_log_segment(name)]


def _of_shard(lines: Iterable[dict[str, Any]], shard: str | None) -> Iterator[dict[str, Any]]:
    return (value for value in lines if shard is None or value.get("shard") == shard)


def _show(console: Console, value: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(orjson.dumps(value))
        return
    level, stream = str(value.get("level", "")), str(value.get("stream", "log"))
    # What was printed has no level; what was logged came by the usual way.
    how = level if stream in ("log", "curate") else stream
    shard, attempt = plain(str(value.get("shard", ""))), value.get("attempt", 1)
    # Before the first attempt it was asked for the schema of its output.
    tried = {0: " (for the schema)", 1: ""}.get(attempt, f" (try {plain(str(attempt))})")
    event = plain(str(value.get("event", "")))
    fields = "".join(
        f" {plain(str(name))}={plain(_text(field))}" for name, field in value.items() if name not in (*_OWN, *_LONG)
    )
    text = Text.assemble(
        (moment(value["time"])[11:], "dim"),
        "  ",
        (f"{plain(how):<7}", COLOURS.get(level, "")),
        f"  {shard}{tried}: {event}",
    )
    text.append(fields, "dim")
    text.rstrip()
    line(console, text)
    for name in filter(value.get, _LONG):
        for one in str(value[name]).rstrip().split("\n"):
            line(console, Text(f"    {_indented(one)}"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _indented(one: str) -> str:
    """Returns a line that cannot do anything to a terminal, as far indented as it is."""
    return " " * (len(one) - len(one.lstrip())) + plain(one)


def _nothing(found: FoundJob, run_id: str | None, shard: str | None) -> str:
    if run_id is None:
        return "no worker has logged or printed anything"
    having = sorted({layout.run_id_of(name) for name in found.listing.logs} - {run_id}, reverse=True)
    others = f"; other runs have: {', '.join(having[:5])}" if having else ""
    about = "" if shard is None else f" about {plain(shard)}"
    return f"no worker of this run has logged or printed anything{about}{others}"
