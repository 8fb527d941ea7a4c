"""Writes the report of a corpus to a file."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from curate.cli.page import STANDARD_OUTPUT, write_page
from curate.job.streams import stdout_to_stderr
from curate.report.html import GENERATOR, document
from curate.report.make import Wanted, make_report
from curate.units import json_line


def show_report(wanted: Wanted, *, file: str | None, show: bool, as_json: bool) -> int:
    """Makes the report of a corpus and writes it, or prints its numbers. Returns the exit code."""
    if as_json and (file is not None or show):
        raise click.UsageError("--json prints the report's numbers instead of writing a page; give it alone")
    if show and file == STANDARD_OUTPUT:
        raise click.UsageError("--open needs a file; give another --output than -")
    with stdout_to_stderr():
        report = make_report(wanted)
    if as_json:
        click.echo(json_line(report))
        return 0
    data = document(report)
    if file == STANDARD_OUTPUT:
        click.echo(data, nl=False)
        return 0
    path = Path(file or f"{wanted.corpus.rstrip('/').rpartition('/')[2] or 'corpus'}-report.html").absolute()
    write_page(path, data, GENERATOR)
    click.echo(str(path))
    if show and not webbrowser.open(path.as_uri()):
        click.echo(f"no browser was found; open {path} yourself", err=True)
    return 0
