"""`curate`: runs jobs, and looks at them with read access to outputs alone. Imports late, to start fast."""

from __future__ import annotations

import errno
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from curate import log
from curate.backends.make import BACKENDS
from curate.cli.chain import CHAIN, refuse_chain, show_chain
from curate.cli.run import RunGroup, show_jobs
from curate.clock import SystemClock
from curate.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, CurateError

WATCH_S = 2.0
RUN_JOBS = ("run", "retry", "replay", "report")
"""Commands that import jobs, and what those import."""


class _NoPandas:
    """Arrow imports pandas, where that is installed, to see that a list is no data frame: for a third of a second."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError("what looks at jobs needs no pandas", name=fullname)


class _Group(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
        except OSError as error:
            # A store's errors are curate's own, and name the file: this is standard output, sent to a full disk.
            if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            click.echo(f"error: standard output cannot be written: {error.strerror}; send it elsewhere", err=True)
            sys.exit(EXIT_FAILED)


def _not_empty(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Returns the value of an option. Raises click.BadParameter for one that was given and is empty."""
    if value == "" and context.get_parameter_source(option.name or "") is not click.core.ParameterSource.DEFAULT:
        raise click.BadParameter("it is empty, as where a variable is not set; give a value, or leave the option out")
    return value


_filled = partial(click.option, callback=_not_empty)


def _no_chain(context: click.Context, argument: click.Parameter, value: Any) -> Any:
    """Returns the outputs that were given. Raises ConfigError for the file of a chain."""
    del context, argument
    for one in value if isinstance(value, tuple) else (value,):
        refuse_chain(one)
    return value


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="curate")
def cli() -> None:
    """Runs jobs and looks at them. OUTPUT is the prefix that a job writes to, local, gs:// or s3://. No command needs a
    cluster: `run`, `retry` and `report` use one if there is one to join.
    """
    log.configure()


@cli.group(
    cls=RunGroup,
    short_help="Run a job, by its name or its file.",
    options_metavar="",
    subcommand_metavar="JOB [OPTIONS OF THE JOB]",
)
def run() -> None:
    """Runs a job: one that curate brings, by its name, or one of your own, by its file. Where a file has several jobs,
    name one: path/to/mine.py:Mine

    `curate run path/to/mine.py` does the same as `python path/to/mine.py`, to the same output. `curate run
    pipeline.toml` runs a chain of jobs, as that file names them. To see the options of either: curate run JOB --help
    """


@cli.command(short_help="The jobs that curate brings.")
def jobs() -> None:
    """Lists the jobs that curate brings, and what each does. What they need: pip install 'curate[jobs]'"""
    show_jobs()


@cli.command(short_help="How far a job is; without OUTPUT, all known jobs.")
@click.argument("output", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--watch", is_flag=True, help="Show it again every two seconds while it runs.")
@click.option("--quick", is_flag=True, help="Tell from the ledger alone, without listing outputs; says as of when.")
def status(output: str | None, as_json: bool, watch: bool, quick: bool) -> None:
    """Shows how far the job that writes to OUTPUT is; without OUTPUT, all jobs known under $CURATE_HOME. Of the TOML
    file of a chain, how far each of its steps is.

    Works while a job runs, and after it was killed: everything comes from what lies beside the output.
    """
    from curate.cli.status import show_all, show_job

    # The output of a job may be called so, too: it is a folder.
    chain = output is not None and output.endswith(CHAIN) and not Path(output).is_dir()
    if quick and (output is None or chain):
        raise click.UsageError("--quick is for one job; give the OUTPUT of a job")
    if watch and chain:
        raise click.UsageError("--watch is for one job, or for all known ones; give the OUTPUT of a step")
    watch_s = WATCH_S if watch else None
    if output is not None and chain:
        sys.exit(show_chain(output, as_json=as_json))
    if output is None:
        sys.exit(show_all(SystemClock(), as_json=as_json, watch_s=watch_s))
    sys.exit(show_job(output, SystemClock(), as_json=as_json, watch_s=watch_s, quick=quick))


@cli.command(short_help="Take a job off the list of known jobs.")
@click.argument("output", required=False)
@click.option("--removed", is_flag=True, help="All jobs whose output was removed, instead of OUTPUT.")
def forget(output: str | None, removed: bool) -> None:
    """Takes the job that writes to OUTPUT off the list that `curate status` shows. Its output and ledger stay.

    With --removed, the intermediate files that such jobs have left in $CURATE_SCRATCH are removed, too.

    The next run of the job puts it on the list again.
    """
    from curate.cli.status import forget_removed
    from curate.observe import registry
    from curate.units import format_count

    if (output is not None) == removed:
        raise click.UsageError("give the OUTPUT of a job, or --removed")
    if output is None:
        jobs, freed = forget_removed(SystemClock())
        files = f"; intermediate files of {format_count(freed, 'job')} removed from $CURATE_SCRATCH" if freed else ""
        click.echo(f"{format_count(jobs, 'job')} no longer listed{files}", err=True)
        return
    registry.forget(output)
    click.echo(f"{output} is no longer listed; its files were not touched", err=True)


@cli.command(short_help="What failed, grouped by reason.")
@click.argument("output", callback=_no_chain)
@click.option("--shard", metavar="ID", help="Show one shard whole: every try, with the traceback.")
@click.option("--all", "everything", is_flag=True, help="Also tries that failed of shards that were done later.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def failures(output: str, shard: str | None, everything: bool, as_json: bool) -> None:
    """Shows the shards of the job that writes to OUTPUT that have failed, grouped by what went wrong."""
    from curate.cli.failures import show_failures, show_shard

    if shard is not None and everything:
        raise click.UsageError("--shard shows every try of that shard, also after it was done; leave out --all")
    if shard is not None:
        sys.exit(show_shard(output, shard, as_json=as_json))
    sys.exit(show_failures(output, everything=everything, as_json=as_json))


class _RetryCommand(click.Command):
    """A command with the options of a run and settings of a job, which are known once these are imported."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Returns its own, and those."""
        from curate.cli.retry import options_of_run

        return [*self.params, *options_of_run(), *super().get_params(ctx)[len(self.params) :]]


@cli.command(cls=_RetryCommand, short_help="Run the failed shards again.")
@click.argument("output", callback=_no_chain)
@click.option("--job", "script", metavar="PATH", help="Where the job's file is now, if not where it was run from.")
@click.option("--dry-run", is_flag=True, help="Say what would run; run and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def retry(output: str, **options: Any) -> None:
    """Runs the shards that have failed of the job that writes to OUTPUT again, and nothing else.

    The job is made as its last run was: from its file, with its parameters, inputs and settings, but without the
    --limit and --sample of that run. Settings that are given here replace those. Shards that were never tried stay
    pending: run the job itself for those. Exit codes are those of a job.
    """
    from curate.cli.retry import retry

    sys.exit(retry(output, **options))


@cli.command(short_help="A page of the job: one HTML file.")
@click.argument("output", callback=_no_chain)
@_filled("--output", "file", metavar="FILE", help="The file to write, - for standard output; else OUTPUT's name.")
@click.option("--open", "show", is_flag=True, help="Open it in a browser.")
@click.option("--json", "as_json", is_flag=True, help="Print the page's numbers as one JSON object; write nothing.")
def page(output: str, file: str | None, show: bool, as_json: bool) -> None:
    """Writes one HTML file about the job that writes to OUTPUT: its rows, time, shards, plan, failures, runs and costs.

    Everything comes from what lies beside the output. The file needs no network and no other file; it replaces an
    earlier page of that name, and no other file.
    """
    from curate.cli.page import Asked, make_page

    sys.exit(make_page(output, SystemClock(), Asked(file, show, as_json)))


@cli.command(short_help="What two outputs do not have in common.")
@click.argument("left", callback=_no_chain)
@click.argument("right", callback=_no_chain)
@click.option("--id-column", metavar="NAME", help="Compare the rows too, by the values of this column.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def diff(left: str, right: str, id_column: str | None, as_json: bool) -> None:
    """Compares the outputs LEFT and RIGHT of two jobs, or of two runs of one; exit code 0 if they are equal, else 1.

    Identity with parameters and code, shards, books and schema; with --id-column, all rows are read and compared.
    """
    from curate.cli.diff import show_difference

    sys.exit(show_difference(left, right, SystemClock(), id_column=id_column, as_json=as_json))


@cli.command(short_help="Pages of jobs, live, for a browser here.")
@click.argument("outputs", nargs=-1, metavar="[OUTPUT]...", callback=_no_chain)
@click.option("--port", type=click.IntRange(0, 65535), default=8723, show_default=True, help="The port; 0: a free one.")
@click.option("--open", "show", is_flag=True, help="Open it in a browser.")
@click.option("--notify", metavar="URL|VARIABLE", help="Post there when a run ends, is killed, or makes no progress.")
@click.option("--no-progress-after", "after", metavar="TIME", help="How long that takes; else as each run says.")
def serve(outputs: tuple[str, ...], port: int, show: bool, notify: str | None, after: str | None) -> None:
    """Serves the page of the job that writes to OUTPUT, or of several; without OUTPUT, of all known jobs, with a list.

    Only programs on this machine can reach it. It reads the ledger for each request, needs no cluster and changes
    nothing; with --notify, it records what was sent. /metrics has the jobs in the OpenMetrics format, /healthz says
    that the server runs. Ctrl-C ends it.
    """
    from curate.cli.page import Notify, serve_pages

    sys.exit(serve_pages(outputs, SystemClock(), port=port, show=show, notify=Notify(notify, after)))


@cli.command(short_help="Read every output and check it.")
@click.argument("output", callback=_no_chain)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(output: str, as_json: bool) -> None:
    """Reads every output of the job that writes to OUTPUT, and its record; exit code 1 if anything is off.

    Schema, row counts, checksums and books; objects that are missing, or not of the job.
    """
    from curate.cli.verify import show_verified

    sys.exit(show_verified(output, SystemClock(), as_json=as_json))


@cli.command(short_help="The first rows.")
@click.argument("output", callback=_no_chain)
@click.option("-n", "rows", type=click.IntRange(min=1), default=10, show_default=True, help="How many rows.")
@click.option("--columns", metavar="A,B", help="Only these columns, in this order.")
@click.option("--shard", metavar="ID", help="Of this shard only.")
@click.option("--side", metavar="NAME", help="Of this extra output.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a row.")
def head(output: str, rows: int, columns: str | None, shard: str | None, side: str | None, as_json: bool) -> None:
    """Shows the first rows of the job that writes to OUTPUT, in the order of its plan."""
    from curate.cli.head import show_head

    names = None if columns is None else list(dict.fromkeys(name.strip() for name in columns.split(",")))
    sys.exit(show_head(output, min(rows, sys.maxsize), columns=names, shard=shard, side=side, as_json=as_json))


@cli.command(short_help="Rows that were set aside, and why.")
@click.argument("output", callback=_no_chain)
@click.option("--shard", metavar="ID", help="Of this shard only.")
@click.option("--reason", metavar="TEXT", help="Only rows whose reason contains this text.")
@click.option("-n", "rows", type=click.IntRange(min=0), default=10, show_default=True, help="How many rows.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a row: all of them, unless -n is given.")
@click.pass_context
def quarantine(
    context: click.Context, output: str, shard: str | None, reason: str | None, rows: int, as_json: bool
) -> None:
    """Shows the rows that the job that writes to OUTPUT has set aside, with their reasons."""
    from curate.cli.quarantine import show_quarantine

    given = context.get_parameter_source("rows") is not click.core.ParameterSource.DEFAULT
    most = None if as_json and not given else min(rows, sys.maxsize)
    sys.exit(show_quarantine(output, shard=shard, reason=reason, most=most, as_json=as_json))


@cli.command(short_help="What workers logged and printed.")
@click.argument("output", callback=_no_chain)
@click.option("--shard", metavar="ID", help="Of this shard only.")
@click.option("--run", metavar="ID", help="Of this run; without it, of the newest.")
@click.option("--follow", is_flag=True, help="Go on as long as the run does.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def logs(output: str, shard: str | None, run: str | None, follow: bool, as_json: bool) -> None:
    """Shows what the workers of the job that writes to OUTPUT logged and printed, in the order of time."""
    from curate.cli.logs import show_logs

    sys.exit(show_logs(output, SystemClock(), shard=shard, run=run, follow=follow, as_json=as_json))


@cli.command(short_help="Run one shard here, to find out.")
@click.argument("output", callback=_no_chain)
@click.option("--shard", "shard_id", metavar="ID", required=True, help="The shard: its output's name without suffix.")
@click.option("--job", "script", metavar="PATH", help="Where the job's file is now, if not where it was run from.")
@click.option("--publish", is_flag=True, help="Publish the output, as a run would: never over one that exists.")
@click.option("--pdb", "debug", is_flag=True, help="Start a debugger where the job's code raises.")
@click.option("-n", "rows", type=click.IntRange(min=0), default=5, show_default=True, help="Rows to show.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay(output: str, shard_id: str, **options: Any) -> None:
    """Runs one shard of the job that writes to OUTPUT here, without a cluster, and publishes nothing.

    Shows its books and first rows, or the traceback; exit code 1 if it fails.
    """
    from curate.cli.replay import show_replay

    options["rows"] = min(options["rows"], sys.maxsize)
    sys.exit(show_replay(output, shard_id, **options))


@cli.command(short_help="What is in a corpus: a page of its columns and sources.")
@click.argument("corpus", callback=_no_chain)
@_filled("--by", metavar="COLUMN", default="", help="The column that names the source of a row.")
@_filled("--against", metavar="OTHER", default="", help="Another corpus, or run, that is shown beside this one.")
@_filled("--id-column", metavar="NAME", default="", help="With --against: compare rows by this column, too.")
@_filled("-o", "--output", "file", metavar="FILE", help="Where the page goes; - is standard output.")
@click.option(
    "--work",
    metavar="PATH",
    help="Where the report's own files go; by default to _report-NAME beside CORPUS, which nothing reads as data.",
)
@click.option("--backend", type=click.Choice(BACKENDS), help="Where tasks run.")
@click.option("--open", "show", is_flag=True, help="Open it in a browser.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as one JSON object; write no page.")
def report(corpus: str, file: str | None, show: bool, as_json: bool, **how: Any) -> None:
    """Reports what is in CORPUS: the output of a job, a folder, or a quoted glob. Of each column nulls, different
    values, lengths or numbers as a histogram, and the most frequent values; of each source what is there, and what
    share of it the job kept. With --against both are shown side by side, and by --id-column which rows appeared, went
    or changed.

    Rows are read by a job of its own, which only reads what is new when it runs again.
    """
    from curate.cli.page import Asked, make_corpus_page
    from curate.report.make import wanted

    sys.exit(make_corpus_page(wanted(corpus, **how), Asked(file, show, as_json)))


def _read_names_as_utf8() -> None:
    """Starts this process anew where Python takes the names of files for something else than UTF-8, as in the locale
    POSIX with PYTHONUTF8=0: outputs are found by their names, and a job that is complete would be shown without."""
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode:
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def main() -> Any:
    """Runs the command line; an error that curate raises on purpose is one line and exit code 2."""
    from curate.folders.working import naming_lost_folder
    from curate.keywords import on_command_line
    from curate.units import escape_controls

    log.open_closed_streams()
    _read_names_as_utf8()
    found = None if set(RUN_JOBS).intersection(sys.argv[1:2]) else _NoPandas()
    if found is not None:
        sys.meta_path.insert(0, found)
    try:
        with on_command_line(), naming_lost_folder():
            return cli()
    except CurateError as error:
        click.echo(f"error: {escape_controls(log.redacted(str(error)))}", err=True)
        sys.exit(EXIT_USAGE)
    except UnicodeEncodeError:
        if (broken := next((one for one in sys.argv[1:] if not _is_unicode(one)), None)) is None:
            raise
        click.echo(f"error: {broken!r} is not valid Unicode; pass UTF-8", err=True)
        sys.exit(EXIT_USAGE)
    finally:
        if found is not None:
            sys.meta_path.remove(found)


if __name__ == "__main__":
    main()
