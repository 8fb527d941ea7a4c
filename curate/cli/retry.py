"""Runs the failed shards of a job again. The record of the last run says which job it is."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from curate.around import contextmanager
from curate.errors import EXIT_OK
from curate.job.arguments import click_run_options, setting_option
from curate.job.command import display, execute
from curate.job.locate import locate
from curate.job.settings import NEUTRAL, TUNABLE
from curate.observe.failures import RecordedRun, StageFailures, read_all_failures, recorded_run
from curate.observe.place import root_of
from curate.resume.options import parse_run_options
from curate.storage.uris import at_home
from curate.units import plain_line, shell_word

if TYPE_CHECKING:
    from curate.job.job import Job
    from curate.resume.options import RunOptions


SETTINGS = tuple(name for name in TUNABLE if name in NEUTRAL)
"""Settings that a retry may have of its own: with others, the outputs that are there would be those of another job."""
OF_THE_LAST_RUN = ("backend", *SETTINGS)
"""What is as in the last run where it is not given."""
MEANINGLESS = ("input", "output", "overwrite", "yes", "retry_failed", "redo_stale", "drop_removed")
"""Options of a run that a retry does not have: it knows where, and does nothing but what has failed."""
OF_ALL_COMMANDS = ("dry_run", "as_json")
"""Options of a run that its command has anyway."""


@functools.cache
def options_of_run() -> list[click.Option]:
    """Returns the options that a retry has in common with a run of the job."""
    shared = [one for one in click_run_options() if one.name not in (*MEANINGLESS, *OF_ALL_COMMANDS)]
    found = [*shared, *(setting_option(name, None) for name in SETTINGS)]
    for one in found:
        about, mark, default = (one.help or "").partition("  [default: ")
        if one.name in OF_THE_LAST_RUN:
            mark, default = "", " By default as in the last run."
        one.help = f"{about[0].upper()}{about[1:]}.{mark}{default}"
    return found


def retry(output: str, *, script: str | None, as_json: bool, dry_run: bool, **given: Any) -> int:
    """Runs the failed shards of the job that writes to `output`. Returns the exit code, as the job's own command does.

    `given` are options of a run and settings of the job. Parameters are those that the job had, inputs, backend and
    settings those of the last run, unless they are given.
    """
    settings = {name: value for name in SETTINGS if (value := given.pop(name)) is not None}
    root = root_of(output)
    script = given_script(script)

    def make() -> tuple[Job, RunOptions]:
        stages = read_all_failures(root)
        found = stages[-1].found
        if not as_json and not any(stage.found.failed.any() for stage in stages):
            raise _NothingFailed(_nothing(stages))
        run = recorded_run(found.ledger, found.listing)
        enter.enter_context(working_folder(run))
        again = {
            **given,
            "backend": given["backend"] or run.backend,
            "allow_incomplete_input": given["allow_incomplete_input"] or run.allow_incomplete_input,
            "no_samples": given["no_samples"] or run.no_samples,
        }
        options = parse_run_options(
            input=run.inputs,
            output=root,
            retry_failed=True,
            display=display(as_json),
            handle_signals=True,
            **again,
        )
        return locate(run.origin, script=script, settings=settings), options

    with contextlib.ExitStack() as enter:
        try:
            return execute(make, as_json=as_json, dry=dry_run)
        except _NothingFailed as nothing:
            click.echo(str(nothing), err=True)
            return EXIT_OK


class _NothingFailed(Exception):
    """There is nothing to retry: "complete" would be said of a job that may not be."""


def _nothing(stages: list[StageFailures]) -> str:
    found = stages[-1].found
    status = f"curate status {shell_word(found.ledger.root)}"
    root, left = plain_line(found.ledger.root), len(found.plan) - found.matched.count
    text = f"no shard of {root} has failed"
    if stages[-1].text and not len(found.plan):
        return f"{text}; its last stage has not begun: {status}"
    return f"{text}; {left:,} of {len(found.plan):,} are not done: {status}" if left else text


def given_script(script: str | None) -> str | None:
    """Returns the path given as --job so that it holds in any folder: see `working_folder`."""
    return None if script is None else str(Path(at_home(script)).absolute())


@contextmanager
def working_folder(run: RecordedRun) -> Iterator[None]:
    """Works where the job was run, if that is here: its parameters may hold relative paths."""
    with contextlib.chdir(run.cwd) if run.cwd and Path(run.cwd).is_dir() else contextlib.nullcontext():
        yield
