"""A job as a command-line program: parses, runs, prints, and returns the exit code."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import click

from curate import log
from curate.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    ConfigError,
    CurateError,
    ObjectNotFound,
    PermissionDenied,
    ShardError,
    had_begun,
)
from curate.folders.working import naming_lost_folder
from curate.job.arguments import JobCommand, click_run_options, parameter_option, setting_option
from curate.job.definition import refuse_own_init
from curate.job.origin import refuse_while_imported
from curate.job.params import Param
from curate.job.settings import TUNABLE, tunable
from curate.job.streams import end_stdout, outlast_readers, stdout_to_stderr
from curate.keywords import on_command_line
from curate.observe.progress import Display, LiveDisplay, LogDisplay
from curate.observe.summary_text import render
from curate.resume.options import parse_run_options
from curate.runtime.interrupts import obeyed_everywhere
from curate.units import escape_controls, json_line

if TYPE_CHECKING:
    from curate.resume.options import RunOptions
    from curate.stage.stage import Stage


class Staged(Protocol):
    """What a command runs: a job."""

    def spec(self) -> Stage:
        """Returns it as a stage."""


class JobClass(Protocol):
    """What a command is made of: a class of jobs."""

    @property
    def name(self) -> str:
        """Name of the job."""

    @property
    def _params(self) -> Mapping[str, Param]:
        """Its parameters, by name."""

    def __call__(self, **parameters: Any) -> Staged:
        """Returns a job with these parameters."""


def command(cls: JobClass) -> click.Command:
    """Returns the click command of a job class. Raises ConfigError for one that no command can be made of."""
    refuse_own_init(cls)
    sections = [
        ("Run", click_run_options()),
        ("Parameters of this job", [parameter_option(one) for one in cls._params.values()]),
        ("Settings", [setting_option(name, getattr(cls, name)) for name in tunable(cls)]),
    ]

    def callback(**values: Any) -> None:
        sys.exit(_run(cls, values))

    return JobCommand(cls.name, sections, callback, (cls.__doc__ or "").strip() or None)


def main(cls: JobClass) -> None:
    """Runs the job's command on the program's arguments and ends the process."""
    refuse_while_imported()
    try:
        with obeyed_everywhere(), naming_lost_folder():
            command(cls).main(prog_name=sys.argv[0])
    except ConfigError as error:  # parameters that can be no options, and a folder that is gone
        tell_error(error)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _run(cls: JobClass, values: dict[str, Any]) -> int:
    """Runs the job with parsed options and returns the exit code."""
    as_json, dry = values.pop("as_json"), values.pop("dry_run")
    parameters = _parameters(cls, values)

    def make() -> tuple[Staged, RunOptions]:
        options = parse_run_options(confirm=ask, display=display(as_json), handle_signals=True, **values)
        return cls(**parameters), options

    return execute(make, as_json=as_json, dry=dry)


def execute(make: Callable[[], tuple[Staged, RunOptions]], *, as_json: bool, dry: bool) -> int:
    """Runs what `make` returns, prints the result, and returns the exit code; with `dry`, says what would run.

    The summary goes to standard error. With `as_json` standard output holds one JSON object and nothing else, whatever
    else prints, the job or a library. A pipe or a terminal that is closed ends no run.
    """
    log.configure()
    outlast_readers()
    try:
        with on_command_line(), stdout_to_stderr() if as_json else contextlib.nullcontext():
            text = _result(*make(), as_json=as_json, dry=dry)
    except CurateError as error:
        tell_error(error)
        return exit_code(error)
    except KeyboardInterrupt as interrupt:
        # Before the first task or after the last: in between, signals are counted and handled in order.
        tell_interrupted(interrupt)
        return EXIT_INTERRUPTED
    # What `--dry-run` says was asked for, and can be paged.
    click.echo(text.output, err=not (as_json or dry))
    if as_json:
        end_stdout()
    return text.exit_code


def tell_interrupted(interrupt: KeyboardInterrupt, *, begun: bool = False) -> None:
    """Prints that the user has ended it; and that it resumes, if there is something to resume."""
    begun = begun or had_begun(interrupt)
    click.echo("interrupted; run it again to resume" if begun else "interrupted before any shard was begun", err=True)


def tell_error(error: CurateError, about: str = "") -> None:
    """Prints an error, after what it is about."""
    click.echo(f"error: {escape_controls(about + log.redacted(str(error)))}", err=True)


def exit_code(error: CurateError) -> int:
    """Returns the exit code for an error: 2 where what was asked for has to change, 1 where running again helps.

    So a store that cannot be reached is no mistake of the user's, and a missing right or a wrong path is.
    """
    return (
        EXIT_USAGE if isinstance(error, ConfigError | ShardError | PermissionDenied | ObjectNotFound) else EXIT_FAILED
    )


class _Result(NamedTuple):
    output: str | bytes
    exit_code: int


def _result(job: Staged, options: RunOptions, *, as_json: bool, dry: bool) -> _Result:
    from curate.graph.entry import run

    if dry:
        return _Result(_dry_run(job.spec(), options, as_json=as_json), EXIT_OK)
    summary = run(job.spec(), options)
    return _Result(json_line(summary.as_dict()) if as_json else render(summary), summary.state.exit_code)


def _dry_run(stage: Stage, options: RunOptions, *, as_json: bool) -> str | bytes:
    """Returns what a run would do. Writes nothing, starts nothing."""
    from curate.graph.entry import dry_run

    prepared, text, chosen = dry_run(stage, options)
    if not as_json:
        return escape_controls(text)
    total, run = len(prepared.scope), len(prepared.todo)
    value = {
        "job": stage.record.name,
        "output": prepared.output,
        "dry_run": True,
        "inputs": len(prepared.inputs.table),
        "shards": {"total": total, "skipped": total - run, "run": run, "stale": len(prepared.stale)},
        "remove": len(prepared.uncommitted.remove or ()),
        "backend": {"name": chosen.name, "reason": chosen.why},
    }
    return json_line(value)


def _parameters(cls: JobClass, values: dict[str, Any]) -> dict[str, Any]:
    """Takes what is the job's out of the parsed values: parameters and settings that were given."""
    parameters: dict[str, Any] = {}
    for name, one in cls._params.items():
        value = values.pop(name)
        if one.many:
            # Given at all, even as an empty text, it replaces the default.
            value = [item for group in value for item in group] if value else None
        if value is not None:
            parameters[name] = value
    for name in TUNABLE:
        if (value := values.pop(name, None)) is not None:
            parameters[name] = value
    return parameters


def display(as_json: bool) -> Display:
    """Returns what shows how far a run is: drawn on a terminal, else a line now and then."""
    return LiveDisplay() if sys.stderr.isatty() and not as_json else LogDisplay()


def ask(question: str) -> bool:
    """Asks the user at the terminal; without one the answer is no. Raises KeyboardInterrupt for Ctrl-C."""
    try:
        return _at_terminal() and click.confirm(question, err=True)
    except click.Abort:
        raise KeyboardInterrupt from None


def _at_terminal() -> bool:
    return sys.stdin.isatty()
