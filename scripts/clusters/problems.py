"""A problem in a file, with its line, and the error that ends a command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""


class Refused(click.ClickException):
    """What was asked for cannot be done as it is: one line with the next step. Exit code 2."""

    exit_code = 2

    def show(self, file: object = None) -> None:  # noqa: ARG002
        click.echo(f"error: {self.message}", err=True)


@dataclass(frozen=True, order=True)
class Problem:
    """Something that is wrong in a file.

    >>> print(Problem("infra/cluster.yaml", 12, "no zone"))
    infra/cluster.yaml:12: no zone
    """

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


def shown(path: Path) -> str:
    """Returns a path as it is printed: from the repository's root where it lies there."""
    path = path.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
