"""Writes the page of a job to a file, and serves pages."""

from __future__ import annotations

import contextlib
import os
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import click

from curate.clock import Clock
from curate.errors import ConfigError
from curate.observe.job import NoJobError, find_job
from curate.pages.document import GENERATOR, document
from curate.pages.read import read_page
from curate.pages.server import PageServer
from curate.storage.uris import normalise
from curate.units import json_line

STANDARD_OUTPUT = "-"
LOOKED_AT_BYTES = 4096
"""Bytes of a file in which it has to say that it is a page."""


def make_page(output: str, clock: Clock, *, file: str | None, show: bool, as_json: bool) -> int:
    """Writes the page of the job that writes to `output`, or prints its model. Returns the exit code."""
    if as_json and (file is not None or show):
        raise click.UsageError("--json prints the page's numbers instead of writing a page; give it alone")
    if show and file == STANDARD_OUTPUT:
        raise click.UsageError("--open needs a file; give another --output than -")
    page = read_page(output, clock.now())
    if as_json:
        click.echo(json_line(page.as_dict()))
        return 0
    data = document(page)
    if file == STANDARD_OUTPUT:
        click.echo(data, nl=False)
        return 0
    path = Path(file or f"{normalise(output).rstrip('/').rpartition('/')[2] or 'page'}.html").absolute()
    write_page(path, data)
    click.echo(str(path))
    if show and not webbrowser.open(path.as_uri()):
        click.echo(f"no browser was found; open {path} yourself", err=True)
    return 0


def serve_pages(outputs: Sequence[str], clock: Clock, *, port: int, show: bool) -> int:
    """Serves pages until it is interrupted. Returns the exit code."""
    for output in outputs:
        try:
            find_job(output)
        except NoJobError:
            raise  # said now, rather than in a browser
        except ConfigError:
            continue  # its page says what is damaged
    with PageServer(outputs, port, clock) as server:
        click.echo(f"serving {server.url}; end it with Ctrl-C", err=True)
        if show:
            webbrowser.open(server.url)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def write_page(path: Path, data: bytes) -> None:
    """Writes a page whole, or not at all. Raises ConfigError if another file than a page has that name, and if the
    folder cannot be written."""
    try:
        if path.exists() and not _is_page(path):
            raise ConfigError(f"{path} exists and is not a page of curate; give another file with --output")
        # Beside the file, so that it takes its place at once: who looks at a page never sees half of one.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}-", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as sink:
                sink.write(data)
            umask = os.umask(0)
            os.umask(umask)
            Path(temporary).chmod(0o666 & ~umask)
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}; give another file with --output") from error


def _is_page(path: Path) -> bool:
    """Returns whether a file, and no link or folder, is a page that was made before."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as source:
        return f'content="{GENERATOR}"'.encode() in source.read(LOOKED_AT_BYTES)
