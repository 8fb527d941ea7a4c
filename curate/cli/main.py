"""`curate`: looks at jobs. Needs no cluster, only read access to their outputs. Imports late, to start fast."""

from __future__ import annotations

import sys
from typing import Any

import click

EXIT_USAGE = 2
WATCH_S = 2.0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="curate")
def cli() -> None:
    """Looks at curate's jobs. A job itself is run as a script: python jobs/toxicity.py --help"""


@cli.command()
@click.argument("output", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--watch", is_flag=True, help="Show it again every two seconds while it runs.")
def status(output: str | None, as_json: bool, watch: bool) -> None:
    """Shows how far the job that writes to OUTPUT is; without OUTPUT, all jobs known under $CURATE_HOME.

    Works while a job runs, and after it was killed: everything comes from what lies beside the output.
    """
    from curate import log
    from curate.cli.status import show_all, show_job
    from curate.clock import SystemClock

    log.configure()
    watch_s = WATCH_S if watch else None
    if output is None:
        sys.exit(show_all(SystemClock(), as_json=as_json, watch_s=watch_s))
    sys.exit(show_job(output, SystemClock(), as_json=as_json, watch_s=watch_s))


@cli.command()
@click.argument("output")
@click.option("--shard", metavar="ID", help="Show one shard whole: every try, with the traceback.")
@click.option("--all", "everything", is_flag=True, help="Also tries that failed of shards that were done later.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def failures(output: str, shard: str | None, everything: bool, as_json: bool) -> None:
    """Shows the shards of the job that writes to OUTPUT that have failed, grouped by what went wrong."""
    from curate import log
    from curate.cli.failures import show_failures, show_shard

    log.configure()
    if shard is not None:
        sys.exit(show_shard(output, shard, as_json=as_json))
    sys.exit(show_failures(output, everything=everything, as_json=as_json))


@cli.command()
@click.argument("output")
@click.option("--job", "script", metavar="PATH", help="Where the job's file is now, if not where it was run from.")
@click.option("--backend", type=click.Choice(["ray", "inline"]), help="Where tasks run; by default as in the last run.")
@click.option("--accept-code-change", is_flag=True, help="Go on although the code changed under the same version.")
@click.option("--allow-concurrent", is_flag=True, help="Run although another driver is at work on OUTPUT, and help it.")
@click.option("--max-failed-shards", metavar="N|P%", help="Stop, with exit code 3, when more shards have failed.")
@click.option("--dry-run", "dry", is_flag=True, help="Say what would run; run and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def retry(output: str, **options: Any) -> None:
    """Runs the shards that have failed of the job that writes to OUTPUT again, and nothing else.

    The job is made as its last run was: from its file, with its parameters and inputs. Exit codes are those of a job.
    """
    from curate.cli.retry import retry

    sys.exit(retry(output, **options))


def main() -> Any:
    """Runs the command line; an error that curate raises on purpose is one line and exit code 2."""
    from curate.errors import CurateError

    try:
        return cli()
    except CurateError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(EXIT_USAGE)


if __name__ == "__main__":
    main()
