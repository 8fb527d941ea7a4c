"""A chain of jobs on the command line: `curate run pipeline.toml` and `curate status pipeline.toml`."""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from curate.backends.make import BACKENDS
from curate.cli.terminal import Console, line
from curate.errors import EXIT_INTERRUPTED, EXIT_OK, ConfigError, CurateError
from curate.units import format_bytes, format_count, format_duration, json_line, plain_line

if TYPE_CHECKING:
    from curate.chain.chain import Chain
    from curate.chain.cost import Cost
    from curate.chain.plan import Asked, StepState, Verdict
    from curate.chain.recipe import Part, Recipe
    from curate.chain.run import StepEnd

CHAIN = ".toml"
"""What the name of a chain's file ends with."""
LOOK = {"runs": "yellow", "refused": "red", "waits": "dim", "up to date": "green"}


def chain_command(path: str) -> click.Command:
    """Returns the command that runs the chain of a file."""
    from curate.chain.chain import Chain

    return _command(path, _HELP, [], lambda _: Chain.read(path), costs=False)


def refuse_chain(output: str) -> None:
    """Raises ConfigError, with the outputs of its steps, for the file of a chain where the output of a job is asked
    for. What is a file of something else, or has a mistake, is told as what it is by what looks there."""
    path = Path(output.rstrip("/"))
    if path.suffix != CHAIN or not path.is_file():
        return
    from curate.chain.chain import Chain

    try:
        outputs = ", ".join(one.output for one in Chain.read(path).steps)
    except ConfigError:
        return
    raise ConfigError(f"{output} is the file of a chain, whose steps are jobs; pass the output of one: {outputs}")


def recipe_command(recipe: type[Recipe]) -> click.Command:
    """Returns the command that runs a recipe."""
    from curate.job.arguments import parameter_option, refuse_alike

    name = recipe.__module__.rpartition(".")[2]
    begins = recipe.begins
    own: list[click.Option] = [
        click.Option(
            ["-i", "--input", "inputs"],
            metavar="PATH",
            multiple=True,
            required=True,
            help="File, directory or quoted glob, local or a URI; can be repeated.",
        ),
        click.Option(
            ["-o", "--output", "output"], metavar="PATH", required=True, help="Prefix: each step writes below it."
        ),
        click.Option(
            ["--from", "begin"],
            type=click.Choice(begins),
            default=begins[0],
            show_default=True,
            help="What inputs are.",
        ),
        click.Option(
            ["--set", "changes"],
            metavar="STEP.OPTION=VALUE",
            multiple=True,
            help="Another value for an option of a step; can be repeated.",
        ),
        *(parameter_option(one) for one in recipe._params.values()),
    ]

    def make(values: dict[str, Any]) -> Chain:
        given = {key: values.pop(key) for key in ("inputs", "output", "begin", "changes")}
        # A list that is given several times is one list; one that is not given, its default.
        lists = {key: list(chain.from_iterable(one)) for key, one in values.items() if isinstance(one, tuple) and one}
        made = recipe(**{key: one for key, one in values.items() if not isinstance(one, tuple)}, **lists)
        found = made.chain(given["inputs"], given["output"], begin=given["begin"], changes=given["changes"])
        for step, why in made.left_out(given["begin"]).items():
            click.echo(f"step {plain_line(step)}: left out: {plain_line(why)}", err=True)
        return found

    parts = _parts_of(recipe)
    steps = ", ".join(f"{one.name} ({one.job}{', if asked for' * bool(one.left_out)})" for one in parts)
    about = f"{inspect.cleandoc(recipe.__doc__ or '')}\n\nSteps: {steps}.\n\n{_HELP}"
    made = _command(name, about, own, make, costs=True)
    refuse_alike(made)
    return made


def recipe_main(recipe: type[Recipe]) -> None:
    """Runs the command of a recipe on the program's arguments, and ends the process."""
    from curate.folders.working import naming_lost_folder
    from curate.job.command import exit_code, tell_error

    try:
        with naming_lost_folder():
            recipe_command(recipe).main(prog_name=sys.argv[0])
    except CurateError as error:
        tell_error(error)
        sys.exit(exit_code(error))


def recipe_named(name: str) -> type[Recipe] | None:
    """Returns the recipe that curate brings by that name, or that the file of that path has; None if there is none."""
    from curate import jobs

    own = name.endswith(".py")
    path = Path(name).absolute() if own else jobs.FOLDER / f"{name}.py"
    if ("/" in name and not own) or not is_recipe(path):
        return None
    # Late: other jobs are to say at once what they are.
    from curate.chain.recipe import recipes_of
    from curate.job.locate import imported, packaged

    found = recipes_of(imported(str(path)) if own else packaged(f"{jobs.__name__}.{name}"))
    if len(found) != 1:
        raise ConfigError(f"{name} has {len(found)} recipes, expected one; split the file")
    return found[0]


def is_recipe(path: Path) -> bool:
    """Returns whether the last class of a file is a recipe, as its text says: nothing is imported."""
    try:
        classes = [one for one in ast.parse(path.read_bytes()).body if isinstance(one, ast.ClassDef)]
    except (OSError, SyntaxError, ValueError):
        return False
    return bool(classes) and any("Recipe" in ast.unparse(base) for base in classes[-1].bases)


def _parts_of(recipe: type[Recipe]) -> Sequence[Part]:
    """Returns the steps of a recipe with its defaults, and anything for a parameter that has none."""
    made = recipe.__new__(recipe)
    for name, one in recipe._params.items():
        setattr(made, name, None if one.required else one.default)
    return list(made.parts(recipe.begins[0]))


def _command(
    name: str, about: str, own: Sequence[click.Option], make: Callable[[dict[str, Any]], Chain], *, costs: bool
) -> click.Command:
    """Returns a command that runs the chain that is made of the values of its `own` options."""

    @click.command(name, help=about, context_settings={"help_option_names": ["-h", "--help"]})
    @click.option("--step", metavar="NAME", help="Run this step alone.")
    @click.option(
        "--dry-run",
        "dry",
        is_flag=True,
        help="Say what would run"
        + (", and about what it will cost, from a sample" if costs else "")
        + "; run and write nothing.",
    )
    @click.option("--backend", type=click.Choice(BACKENDS), help="Where tasks of all steps run.")
    @click.option(
        "--part",
        metavar="K/N",
        help="Be driver K (from 0) of N that run this chain together, without Ray between them.",
    )
    @click.option("--allow-concurrent", is_flag=True, help="Help another driver that runs a step.")
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
        mine = {str(one.name): values.pop(str(one.name)) for one in own}
        sys.exit(_run(name, lambda: make(mine), costs=costs, **values))

    run.params = [*own, *run.params]
    return run


_HELP = """Brings all jobs of a chain up to date, in the order of its file: each as that job alone is run.

All that can be known before the first step has run is checked before anything is written. Run it again and it resumes;
it does nothing where nothing is to be done. Exit codes are those of a job: that of the first step that is not complete.
"""


def _run(
    path: str,
    make: Callable[[], Chain],
    *,
    costs: bool,
    step: str | None,
    dry: bool,
    redo_stale: bool,
    drop_removed: bool,
    overwrite: tuple[str, ...],
    as_json: bool,
    **given: Any,
) -> int:
    """Runs a chain; `given` are options of the runs of all steps. Returns the exit code."""
    from curate import log
    from curate.chain.cost import sample_cost
    from curate.chain.plan import Asked
    from curate.chain.run import Request, prepare, run_chain
    from curate.job.command import ask, display, exit_code, tell_error, tell_interrupted
    from curate.job.streams import end_stdout, outlast_readers, stdout_to_stderr
    from curate.keywords import on_command_line

    log.configure()
    outlast_readers()
    options: dict[str, Any] = {"confirm": ask, "display": display(as_json), "handle_signals": True}
    options |= {name: value for name, value in given.items() if value is not None}
    ended_steps: list[StepEnd] = []

    def tell(end: StepEnd) -> None:
        ended_steps.append(end)
        _tell(end)

    request = Request(Asked(redo_stale, drop_removed, frozenset(overwrite)), step, options, tell)
    try:
        with on_command_line(), stdout_to_stderr() if as_json else contextlib.nullcontext():
            found = make()
            with found.entered():
                planned = prepare(found.steps, request)
                ended = None if dry else run_chain(planned, request)
                cost = sample_cost(found.steps) if dry and costs else None
    except CurateError as error:
        tell_error(error)
        return exit_code(error)
    except KeyboardInterrupt as interrupt:
        tell_interrupted(interrupt, begun=bool(ended_steps))
        return EXIT_INTERRUPTED
    if ended is None:
        show(path, planned.states, planned.verdicts, planned.asked, as_json=as_json, cost=cost)
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
    return EXIT_OK if ended.complete else EXIT_INTERRUPTED


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


def show(
    path: str,
    states: tuple[StepState, ...],
    found: tuple[Verdict, ...],
    asked: Asked,
    *,
    as_json: bool,
    cost: Cost | None = None,
) -> None:
    """Prints the steps of a chain, a line each: what a run would do, what is out of date; and what it will cost."""
    from curate.chain.plan import kept

    if as_json:
        steps = [_as_dict(one, verdict, asked) for one, verdict in zip(states, found, strict=True)]
        click.echo(json_line({"chain": path, "steps": steps} | ({"cost": asdict(cost)} if cost else {})))
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
    if cost is not None:
        _show_cost(console, cost)


def _show_cost(console: Console, cost: Cost) -> None:
    """Prints about what a run of all steps takes, if the sample is like the rest."""
    share = cost.sample / cost.whole if cost.whole else 1.0
    read = f"{format_bytes(cost.sample)} of {format_bytes(cost.whole)} ({share:.2%})"
    line(console, Text(f"\nall steps from the start, about, from {read}:"))
    width = max(len(one.name) for one in cost.steps)
    for one in cost.steps:
        rows = f"{one.rows_in * cost.times:>16,.0f} rows in {one.rows_out * cost.times:>16,.0f} out"
        took = f"{format_duration(one.seconds * cost.times):>9} of a core, {format_bytes(one.bytes_out * cost.times)}"
        line(console, Text(f"{plain_line(one.name):<{width}}{rows}  {took}"))
    whole = sum(one.seconds for one in cost.steps) * cost.times
    line(
        console,
        Text(f"{'in all':<{width}}  {format_duration(whole)} of a core; copies that lie far apart are not seen"),
    )


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
