"""Writes the page of a job, or the report of a corpus, to a file; serves pages."""

from __future__ import annotations

import contextlib
import os
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from curate.clock import Clock
from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.job.streams import stdout_to_stderr
from curate.notify.receiver import parse_receiver
from curate.observe.job import find_job
from curate.observe.place import NoJobError
from curate.pages.document import GENERATOR, document
from curate.pages.read import read_page
from curate.pages.server import PageServer
from curate.resume.options import parse_quiet
from curate.storage.uris import normalise_input
from curate.units import json_line

if TYPE_CHECKING:
    from curate.report.make import Wanted

STANDARD_OUTPUT = "-"
LOOKED_AT_BYTES = 4096
"""Bytes of a file in which it has to say that it is a page."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to become of a page."""

    file: str | None
    """Where it goes; None: to a file called after what it is about."""
    show: bool
    """Whether a browser opens it."""
    as_json: bool
    """Whether its numbers are printed instead."""

    def __post_init__(self) -> None:
        if self.as_json and (self.file is not None or self.show):
            raise click.UsageError("--json prints the page's numbers instead of writing a page; give it alone")
        if self.show and self.file == STANDARD_OUTPUT:
            raise click.UsageError("--open needs a file; give another --output than -")


def make_page(output: str, clock: Clock, asked: Asked) -> int:
    """Writes the page of the job that writes to `output`, or prints its model. Returns the exit code."""
    page = read_page(output, clock.now())
    if asked.as_json:
        click.echo(json_line(page.as_dict()))
        return 0
    return _give(asked, f"{_name(output, 'page')}.html", document(page), GENERATOR)


def make_corpus_page(wanted: Wanted, asked: Asked) -> int:
    """Makes the report of a corpus and writes it, or prints its numbers. Returns the exit code."""
    # What reads rows: looking at a job needs none of it.
    from curate.report import html
    from curate.report.make import make_report

    with stdout_to_stderr():
        report = make_report(wanted)
    if asked.as_json:
        click.echo(json_line(report))
        return 0
    return _give(asked, f"{_name(wanted.corpus, 'corpus')}-report.html", html.document(report), html.GENERATOR)


def _name(output: str, otherwise: str) -> str:
    return normalise_input(output).rstrip("/").rpartition("/")[2] or otherwise


def _give(asked: Asked, name: str, data: bytes, generator: str) -> int:
    """Writes a page where it was asked for. Returns the exit code."""
    if asked.file == STANDARD_OUTPUT:
        click.echo(data, nl=False)
        return 0
    path = Path(asked.file or name).absolute()
    write_page(path, data, generator)
    click.echo(str(path))
    if asked.show and not webbrowser.open(path.as_uri()):
        click.echo(f"no browser was found; open {path} yourself", err=True)
    return 0


@dataclass(frozen=True, slots=True)
class Notify:
    """Who is notified of the jobs that are served."""

    to: str | None = None
    """A URL, or the name of a variable that has one; None: nobody."""
    after: str | None = None
    """After how long a run without a shard that ended makes no progress; None: as each run says."""


def serve_pages(outputs: Sequence[str], clock: Clock, *, port: int, show: bool, notify: Notify | None = None) -> int:
    """Serves pages until it is interrupted. Returns the exit code."""
    notify = notify or Notify()
    receiver, after_s = parse_receiver(notify.to), parse_quiet(notify.after)
    for output in outputs:
        try:
            find_job(output)
        except NoJobError:
            raise  # said now, rather than in a browser
        except ConfigError:
            continue  # its page says what is damaged
    with PageServer(outputs, port, clock) as server, contextlib.ExitStack() as watched:
        notified = ""
        if receiver is not None:
            from curate.notify.watch import Watcher

            watcher = Watcher(receiver, server.outputs_now, clock, after_s=after_s)
            watcher.start()
            watched.callback(watcher.close)
            notified = f", notifying {receiver.name}"
        click.echo(f"serving {server.url}{notified}; end it with Ctrl-C", err=True)
        if show:
            webbrowser.open(server.url)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def write_page(path: Path, data: bytes, generator: str) -> None:
    """Writes a page whole, or not at all. Raises ConfigError if another file than a page has that name, and if the
    folder cannot be written."""
    try:
        if path.exists() and not _is_page(path, generator):
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


def _is_page(path: Path, generator: str) -> bool:
    """Returns whether a file, and no link or folder, is a page that was made before."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as source:
        return f'content="{generator}"'.encode() in source.read(LOOKED_AT_BYTES)
