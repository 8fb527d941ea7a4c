"""Renders what the workers of a job logged and printed."""

from __future__ import annotations

from typing import Any

import click
import orjson
from rich.text import Text

from curate.cli.terminal import Console, line, moment
from curate.clock import Clock
from curate.dataclass import dataclass
from curate.errors import EXIT_INTERRUPTED
from curate.ledger import layout
from curate.ledger.heartbeat import RUNNING
from curate.ledger.stages import LAST
from curate.observe.browse import newest_run, worker_lines
from curate.observe.job import FoundJob, find_job, find_shard, find_stages, read_status
from curate.units import json_line, plain_line

FOLLOW_S = 2.0
COLOURS = {"debug": "dim", "warning": "yellow", "error": "red", "critical": "red"}
_OWN = ("time", "level", "event", "shard", "attempt", "stream")
_LONG = ("exception", "stack")
"""Fields of several lines, which are shown beneath."""


def show_logs(output: str, clock: Clock, *, shard: str | None, run: str | None, follow: bool, as_json: bool) -> int:
    """Prints the lines of a run's workers by time; with exchanges, stage after stage. Returns the exit code.

    Followed: what comes later too, as it is published, until no run is at work any more.
    """

    def look() -> tuple[bool, FoundJob, list[_Log]]:
        # Whether it is over comes first: what is published after the last listing would never be shown.
        alive = follow and read_status(output, clock.now()).state == RUNNING
        found = find_job(output)
        return alive, found, _logs(found, shard, run, follow=follow)

    alive, found, logs = look()
    last = logs[-1]
    console = Console(highlight=False)
    if not as_json:
        where = f", run {last.run_id}" if last.run_id else ""
        line(
            console, Text.assemble((plain_line(found.job["job"]), "bold"), f"  {plain_line(found.ledger.root)}{where}")
        )
    shown: set[str] = set()
    count = 0
    try:
        while True:
            for log in logs:
                ledger = log.found.ledger
                new = [name for name in log.names if ledger.uri(name) not in shown]
                shown.update(map(ledger.uri, new))
                for value in worker_lines(ledger, new):
                    if log.shard is not None and value.get("shard") != log.shard:
                        continue
                    count += 1
                    _show(console, log.addressed(value), as_json=as_json)
            if not alive:
                break
            clock.sleep(FOLLOW_S)
            alive, found, logs = look()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if not count and not as_json:
        line(console, Text(_nothing(last.found, last.run_id, shard)))
    return 0


@dataclass(frozen=True, slots=True)
class _Log:
    """What workers of one run said that ran shards of one stage."""

    found: FoundJob
    key: str
    run_id: str | None
    shard: str | None
    """Only lines about this shard."""

    @property
    def names(self) -> list[str]:
        """Its segments."""
        return [name for name in self.found.listing.logs if layout.run_id_of(name) == self.run_id]

    def addressed(self, value: dict[str, Any]) -> dict[str, Any]:
        """Returns a line with its shard as it is called within the job."""
        return value if self.key == LAST or "shard" not in value else value | {"shard": f"{self.key}/{value['shard']}"}


def _logs(found: FoundJob, shard: str | None, run: str | None, *, follow: bool) -> list[_Log]:
    """Returns the logs to show, in the order of the stages. Raises ConfigError for an unknown shard, or run."""
    if shard is not None:
        one, key, own, _ = find_shard(found.ledger.root, shard)
        one.rank_of(own)
        return [_Log(one, key, _run_of(one, run, follow=follow), own)]
    stages = [(key, one) for key, one in find_stages(found).there.items()]
    knowing = [(key, one) for key, one in stages if run is None or run in one.listing.run_ids]
    logs = [_Log(one, key, _run_of(one, run, follow=follow), None) for key, one in knowing]
    if run is None or run in found.listing.run_ids or not knowing:
        logs.append(_Log(found, LAST, _run_of(found, run, follow=follow), None))
    return logs


def _run_of(found: FoundJob, run: str | None, *, follow: bool) -> str | None:
    newest = newest_run(found.listing.logs, found.listing.run_ids, run)
    return max(found.listing.run_ids, default=newest) if follow and run is None else newest


def _show(console: Console, value: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json_line(value))
        return
    level, stream = str(value.get("level", "")), str(value.get("stream", "log"))
    # What was printed has no level; what was logged came by the usual way.
    how = level if stream in ("log", "curate") else stream
    shard, attempt = plain_line(str(value.get("shard", ""))), value.get("attempt", 1)
    # Before the first attempt it was asked for the schema of its output.
    tried = {0: " (for the schema)", 1: ""}.get(attempt, f" (try {plain_line(str(attempt))})")
    event = plain_line(str(value.get("event", "")))
    fields = "".join(
        f" {plain_line(str(name))}={plain_line(_text(field))}"
        for name, field in value.items()
        if name not in (*_OWN, *_LONG)
    )
    text = Text.assemble(
        (moment(value["time"])[11:], "dim"),
        "  ",
        (f"{plain_line(how):<7}", COLOURS.get(level, "")),
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
    return " " * (len(one) - len(one.lstrip())) + plain_line(one)


def _nothing(found: FoundJob, run_id: str | None, shard: str | None) -> str:
    if run_id is None:
        return "no worker has logged or printed anything"
    having = sorted({layout.run_id_of(name) for name in found.listing.logs} - {run_id}, reverse=True)
    others = f"; other runs have: {', '.join(having[:5])}" if having else ""
    about = "" if shard is None else f" about {plain_line(shard)}"
    return f"no worker of this run has logged or printed anything{about}{others}"
