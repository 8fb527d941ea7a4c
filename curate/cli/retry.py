"""Runs the failed shards of a job again. The record of the last run says which job it is."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from curate.driver.options import parse_run_options, resolve_output
from curate.job.command import EXIT_OK, display, execute
from curate.job.locate import RecordedRun, locate, recorded_run
from curate.observe.failures import StageFailures, read_all_failures
from curate.units import plain_line

if TYPE_CHECKING:
    from curate.driver.options import RunOptions
    from curate.job.job import Job


def retry(
    output: str,
    *,
    script: str | None,
    backend: str | None,
    part: str | None,
    accept_code_change: bool,
    allow_concurrent: bool,
    max_failed_shards: str | None,
    notify: str | None,
    no_progress_after: str | None,
    as_json: bool,
    dry: bool,
) -> int:
    """Runs the failed shards of the job that writes to `output`. Returns the exit code, as the job's own command does.

    Inputs and backend are those of the last run, parameters those that the job had.
    """
    root = resolve_output(output)
    script = given_script(script)

    def make() -> tuple[Job, RunOptions]:
        stages = read_all_failures(root)
        found = stages[-1].found
        if not as_json and not any(stage.found.failed.any() for stage in stages):
            raise _NothingFailed(_nothing(stages))
        run = recorded_run(found.ledger, found.listing)
        enter.enter_context(working_folder(run))
        options = parse_run_options(
            input=run.inputs,
            output=root,
            backend=backend or run.backend,
            part=part,
            retry_failed=True,
            accept_code_change=accept_code_change,
            allow_incomplete_input=run.allow_incomplete_input,
            no_samples=run.no_samples,
            allow_concurrent=allow_concurrent,
            max_failed_shards=max_failed_shards,
            notify=notify,
            no_progress_after=no_progress_after,
            display=display(as_json),
            handle_signals=True,
        )
        return locate(run.origin, script=script), options

    with contextlib.ExitStack() as enter:
        try:
            return execute(make, as_json=as_json, dry=dry)
        except _NothingFailed as nothing:
            click.echo(str(nothing), err=True)
            return EXIT_OK


class _NothingFailed(Exception):
    """There is nothing to retry: "complete" would be said of a job that may not be."""


def _nothing(stages: list[StageFailures]) -> str:
    found = stages[-1].found
    root, left = plain_line(found.ledger.root), len(found.plan) - found.matched.count
    text = f"no shard of {root} has failed"
    if stages[-1].text and not len(found.plan):
        return f"{text}; its last stage has not begun: curate status {shlex.quote(root)}"
    return f"{text}; {left:,} of {len(found.plan):,} are not done: curate status {shlex.quote(root)}" if left else text


def given_script(script: str | None) -> str | None:
    """Returns the path given as --job so that it holds in any folder: see `working_folder`."""
    return None if script is None else str(Path(script).expanduser().absolute())


@contextlib.contextmanager
def working_folder(run: RecordedRun) -> Iterator[None]:
    """Works where the job was run, if that is here: its parameters may hold relative paths."""
    with contextlib.chdir(run.cwd) if run.cwd and Path(run.cwd).is_dir() else contextlib.nullcontext():
        yield
