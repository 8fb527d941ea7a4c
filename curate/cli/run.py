"""Runs a built-in job or recipe by its name, or that of a file by its path. Lists the built-in ones."""

from __future__ import annotations

import ast

import click

from curate import jobs
from curate.cli.chain import CHAIN, chain_command, recipe_command, recipe_named


class RunGroup(click.Group):
    """`curate run`: a command for each job, made when it is asked for. What follows the job is the job's."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the jobs that curate brings."""
        del ctx
        return [name for name, _ in listed()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the command of a job, as its script has it. Raises ConfigError if there is no such job."""
        del ctx
        if cmd_name.startswith("-"):
            return None  # click says that there is no such option
        if cmd_name.endswith(CHAIN):
            return chain_command(cmd_name)
        if (recipe := recipe_named(cmd_name)) is not None:
            return recipe_command(recipe)
        from curate.job.command import command
        from curate.job.locate import named_job

        return command(named_job(cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the jobs that curate brings, each in a line; imports none."""
        del ctx
        with formatter.section("Jobs that curate brings"):
            formatter.write_dl(listed())


def show_jobs() -> None:
    """Prints the jobs that curate brings, a line each: name, and what it does."""
    found = listed()
    width = max(len(name) for name, _ in found)
    for name, does in found:
        click.echo(f"{name:<{width}}  {does}")


def listed() -> list[tuple[str, str]]:
    """Returns the jobs that curate brings: name, and what it does. Reads their files: importing them takes a second."""
    return [(path.stem, _does(ast.parse(path.read_bytes()))) for path in sorted(jobs.FOLDER.glob("*.py"))]


def _does(tree: ast.Module) -> str:
    """Returns what a job does, as its class says, which is the last one of its file."""
    last = [one for one in tree.body if isinstance(one, ast.ClassDef)][-1]
    return (ast.get_docstring(last) or "").partition("\n")[0].rstrip(".")
