"""A chain of jobs on the command line: `curate run pipeline.toml` and `curate status pipeline.toml`."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from curate.backends.make import BACKENDS
from curate.cli.terminal import line
from curate.errors import CurateError
from curate.units import format_count, json_line, plain_line

if TYPE_CHECKING:
    from curate.chain.plan import Asked, StepState, Verdict
    from curate.chain.run import StepEnd

CHAIN = ".toml"
"""What the name of a chain's file ends with."""
LOOK = {"runs": "yellow", "refused": "red", "waits": "dim", "up to date": "green"}


def chain_command(path: str) -> click.Command:
    """Returns the command that runs the chain of a file."""

    @click.command(path, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
    @click.option("--step", metavar="NAME", default="", help="Run this step alone.")
    @click.option("--dry-run", "dry", is_flag=True, help="Say what would run; run and write nothing.")
    @click.option("--backend", type=click.Choice(BACKENDS), help="Where tasks of all steps run.")
    @click.option(
        "--part",
        metavar="K/N",
        help="Be driver K (from 0) of N that run this chain together, without Ray between them.",
    )
    @click.option("--redo-stale", is_flag=True, help="Do shards again whose input changed since, in all steps.")
    @click.option("--drop-removed", is_flag=True, help="Remove shards whose input was removed, in all steps.")
    @click.option(
        "--overwrite", metavar="NAME", multiple=True, help="Make this step anew, and all that read it, after asking."
    )
    @click.option("--yes", is_flag=True, help="Do not ask.")
    @click.option("--accept-code-change", is_flag=True, help="Go on although code changed under the same version.")
    @click.option("--notify", metavar="URL|VARIABLE", help="Post there how each step ends, as its job's command does.")
    @click.option("--no-progress-after", metavar="TIME", help="Say that there is no progress after so long.")
    @click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
    def run(**values: Any) -> None:
        sys.exit(_run(path, **values))

    return run


_HELP = """Brings all jobs of a chain up to date, in the order of its file: each as that job alone is run.

Everything is checked before anything is written. Run it again and it resumes; it does nothing where nothing is to be
done. Exit codes are those of a job: that of the first step that is not complete.
"""


def _run(
    path: str,
    *,
    step: str,
    dry: bool,
    backend: str | None,
    part: str | None,
    redo_stale: bool,
    drop_removed: bool,
    overwrite: tuple[str, ...],
    yes: bool,
    accept_code_change: bool,
    notify: str | None,
    no_progress_after: str | None,
    as_json: bool,
) -> int:
    from curate import log
    from curate.chain.chain import Chain
    from curate.chain.plan import Asked
    from curate.chain.run import Request, prepare, run_chain
    from curate.job.command import EXIT_INTERRUPTED, EXIT_OK, ask, display, exit_code, tell_error, tell_interrupted
    from curate.job.streams import end_stdout, outlast_readers, stdout_to_stderr
    from curate.keywords import on_command_line

    outlast_readers()
    log.configure()
    options: dict[str, Any] = {"confirm": ask, "yes": yes, "accept_code_change": accept_code_change}
    options |= {"display": display(as_json), "handle_signals": True}
    given = {"backend": backend, "part": part, "notify": notify, "no_progress_after": no_progress_after}
    options |= {name: value for name, value in given.items() if value is not None}
    ended_steps: list[StepEnd] = []

    def tell(end: StepEnd) -> None:
        ended_steps.append(end)
        _tell(end)

    request = Request(Asked(redo_stale, drop_removed, frozenset(overwrite)), step, options, tell)
    try:
        with on_command_line(), stdout_to_stderr() if as_json else contextlib.nullcontext():
            chain = Chain.read(path)
            with contextlib.chdir(chain.folder):
                planned = prepare(chain.steps, request)
                ended = None if dry else run_chain(planned, request)
    except CurateError as error:
        tell_error(error)
        return exit_code(error)
    except KeyboardInterrupt as interrupt:
        tell_interrupted(interrupt, begun=bool(ended_steps))
        return EXIT_INTERRUPTED
    if ended is None:
        show(path, planned.states, planned.verdicts, planned.asked, as_json=as_json)
        return EXIT_OK
    if as_json:
        click.echo(json_line({"chain": path, **ended.as_dict()}))
        end_stdout()
    for one in ended.steps:
        if not one.complete:
            if one.summary is not None:
                return one.summary.state.exit_code or 1
            if one.error is not None:
                return exit_code(one.error)
    return EXIT_OK


def _tell(end: StepEnd) -> None:
    """Prints how a step ended."""
    from curate.job.command import tell_error
    from curate.observe.summary_text import render

    if end.summary is not None:
        click.echo(f"step {plain_line(end.name)}: {render(end.summary)}", err=True)
    elif end.error is not None:
        tell_error(end.error, f"step {end.name!r}: ")
    else:
        why = f"{', '.join(end.after)} did not complete" if end.after else "the chain was interrupted"
        click.echo(f"step {plain_line(end.name)}: not run, for {plain_line(why)}", err=True)


def show_chain(path: str, *, as_json: bool) -> int:
    """Prints how far each step of a chain is, and what a run would do. Returns the exit code."""
    from curate.chain.chain import Chain
    from curate.chain.plan import Asked, verdicts

    states = Chain.read(path).status()
    show(path, states, verdicts(states, Asked()), Asked(), as_json=as_json)
    return 0


def show(path: str, states: tuple[StepState, ...], found: tuple[Verdict, ...], asked: Asked, *, as_json: bool) -> None:
    """Prints the steps of a chain, a line each, with what a run would do and what is out of date."""
    from curate.chain.plan import kept

    if as_json:
        steps = [_as_dict(one, verdict, asked) for one, verdict in zip(states, found, strict=True)]
        click.echo(json_line({"chain": path, "steps": steps}))
        return
    console = Console(highlight=False)
    fine = sum(one.action.value == "up to date" for one in found)
    line(console, Text(f"{plain_line(path)}: {format_count(len(states), 'step')}, {fine} up to date"))
    rows = [(plain_line(one.name), one.state or "not begun", _shards(one), _rows(one)) for one in states]
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    for state, verdict, (name, how, shards, made) in zip(states, found, rows, strict=True):
        text = Text(f"{name:<{widths[0]}}  {how:<{widths[1]}}  {shards:>{widths[2]}}  {made:>{widths[3]}}  ")
        text.append(verdict.action.value, LOOK[verdict.action.value])
        text.append(f": {'; '.join(verdict.why)}" if verdict.why else "")
        line(console, text)
        for one in (*_lost(state), *kept(state, asked)):
            line(console, Text(f"{'':<{widths[0]}}  {one}"))


def _as_dict(state: StepState, verdict: Verdict, asked: Asked) -> dict[str, Any]:
    from curate.chain.plan import kept

    return {
        "step": state.name,
        "output": state.output,
        "state": state.state or "not begun",
        "shards": {"total": state.total, "done": state.done, "failed": state.failed},
        "rows": state.rows,
        "inputs": {"new": state.new, "changed": state.changed, "removed": state.removed, "lost": state.lost},
        "action": verdict.action.value,
        "why": list(verdict.why),
        "kept": list(kept(state, asked)),
    }


def _shards(state: StepState) -> str:
    return f"{state.done:,}/{state.total:,}"


def _rows(state: StepState) -> str:
    return f"{state.rows['out']:,} rows" if state.rows else ""


def _lost(state: StepState) -> tuple[str, ...]:
    if not state.lost:
        return ()
    return (f"{format_count(state.lost, 'input')} gone, which an earlier step makes again",)
