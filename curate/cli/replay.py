"""Runs one shard of a job in this process, and shows the result."""

from __future__ import annotations

import contextlib
import pdb
import sys
from typing import Any

import click
from rich.text import Text

from curate.cli.failures import visible
from curate.cli.retry import given_script, working_folder
from curate.cli.terminal import Console, fact, line, print_table
from curate.clock import SystemClock
from curate.errors import EXIT_FAILED, EXIT_INTERRUPTED
from curate.graph.dry import as_run
from curate.graph.replay import Replayed, frames_below, replay, users_traceback
from curate.job.locate import locate
from curate.job.streams import end_stdout, stdout_to_stderr
from curate.ledger.stages import LAST
from curate.observe.failures import StageFailures, read_shard, recorded_run
from curate.observe.job import find_job
from curate.observe.place import root_of
from curate.observe.summary_text import dropped_text, rows_text
from curate.resume.options import RunOptions
from curate.tasks.failure import Failure, FailureKind
from curate.units import format_bytes, format_duration, format_number, json_line, plain_line, shell_word


def show_replay(
    output: str, shard_id: str, *, script: str | None, publish: bool, debug: bool, rows: int, as_json: bool
) -> int:
    """Runs a shard of the job that writes to `output` and prints the result, or the traceback. Returns the exit code.

    With `debug`, a debugger starts where the job's code raised.
    """
    root = root_of(output)
    script = given_script(script)
    # Whatever the job prints, standard output holds the result and nothing else, if that is JSON.
    try:
        with stdout_to_stderr() if as_json else contextlib.nullcontext():
            stage, own = read_shard(root, shard_id)
            found = stage.found
            found.shard(own)
            job = found if stage.key == LAST else find_job(root)
            run = recorded_run(job.ledger, job.listing)
            with working_folder(run):
                spec = locate(run.origin, script=script).spec()
                if stage.text:
                    options = RunOptions(tuple(run.inputs), root, backend="inline", allow_incomplete_input=True)
                    spec = as_run(spec, options, stage.key, SystemClock())
                # A debugger is to stop at the first row that the job raises for, and not to see others set aside.
                replayed = replay(found, spec, own, SystemClock(), publish=publish, whole=not debug, rows=rows)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if as_json:
        click.echo(json_line(_as_dict(root, stage, replayed), default=str))
        end_stdout()
    else:
        _render(Console(highlight=False), root, stage, replayed)
    if debug and replayed.record.failure is not None:
        _debug(replayed.error)
    return EXIT_FAILED if replayed.record.failure is not None else 0


def _as_dict(root: str, stage: StageFailures, replayed: Replayed) -> dict[str, Any]:
    record, shard = replayed.record, replayed.shard
    failure = record.failure
    value: dict[str, Any] = {
        "output": root,
        "shard": stage.addressed(shard.id),
        **({"stage": stage.key} if stage.text else {}),
        "input": shard.uri,
        "state": "done" if failure is None else "failed",
        "seconds": round(record.seconds, 3),
        "published": replayed.published,
        "existed": record.existed,
        "notes": list(replayed.notes),
    }
    if failure is not None:
        traceback = users_traceback(replayed.error) if replayed.error else failure.traceback
        reason = {"kind": failure.kind.value, "error": failure.error, "frame": failure.frame, "traceback": traceback}
        return value | {"failure": reason}
    assert record.books is not None
    return value | {
        "rows": record.books.rows(),
        "counters": record.books.sorted_counters(),
        "bytes_out": record.bytes_out,
        "first_rows": replayed.rows,
    }


def _render(console: Console, root: str, stage: StageFailures, replayed: Replayed) -> None:
    record, shard = replayed.record, replayed.shard
    took = format_duration(record.seconds)
    name = (plain_line(stage.addressed(shard.id)), "bold")
    if record.failure is not None:
        kind = record.failure.kind.value.replace("_", " ")
        line(console, Text.assemble(name, "  ", ("failed", "red"), f" after {took}: {kind}"))
    else:
        line(console, Text.assemble(name, "  ", ("done", "green"), f" in {took}; {_published(replayed)}"))
    if stage.text:
        fact(console, "at", Text(plain_line(stage.text)))
    fact(console, "input", Text(plain_line(shard.uri)))
    for note in replayed.notes:
        fact(console, "note", Text(note), "yellow")
    if record.failure is not None:
        line(console, Text())
        for one in _reason(replayed, record.failure).rstrip().splitlines():
            line(console, Text(visible(one)))
        return
    _books(console, record)
    if replayed.rows:
        line(console, Text())
        columns = list(dict.fromkeys(name for row in replayed.rows for name in row))
        if left := print_table(console, columns, replayed.rows):
            line(console, Text(f"and {len(left):,} more columns; --json shows all"))
    if not replayed.published and stage.found.failed[record.index]:
        line(console, Text())
        fact(console, "retry", Text(f"curate retry {shell_word(root)}"))


def _reason(replayed: Replayed, failure: Failure) -> str:
    if replayed.error is not None:
        return users_traceback(replayed.error)
    # Where curate read what it should not have, it is no news; the error names the object.
    return failure.error if failure.kind is FailureKind.CORRUPT else failure.traceback


def _published(replayed: Replayed) -> str:
    if replayed.record.existed:
        return "its output existed before"
    return "published" if replayed.published else "nothing is published"


def _books(console: Console, record: Any) -> None:
    rows = record.books.rows()
    fact(console, "rows", Text(rows_text(rows)))
    for reason, n in rows["dropped"].items():
        fact(console, "dropped", Text(dropped_text(reason, n, labelled=True)))
    for counter, n in record.books.sorted_counters().items():
        fact(console, "counter", Text(f"{plain_line(counter)} = {format_number(n)}"))
    fact(console, "bytes", Text(f"{format_bytes(record.bytes_out)} out"))


def _debug(error: BaseException | None) -> None:
    """Starts a debugger at the innermost frame in user code; `down` leads to what that called."""
    if error is None or error.__traceback__ is None:
        click.echo("no debugger: it was not the job's own code that raised", err=True)
        return
    debugger = pdb.Pdb()
    if below := frames_below(error.__traceback__):
        debugger.cmdqueue.append(f"up {below}")
    debugger.reset()
    sys.stdout.flush()
    debugger.interaction(None, error.__traceback__)
