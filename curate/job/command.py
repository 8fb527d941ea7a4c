"""A job as a command-line program: its parameters, then the options that every job has."""

from __future__ import annotations

import sys
from typing import Any

import click
import orjson

from curate import log
from curate.errors import ConfigError, CurateError
from curate.job.asset import Asset
from curate.job.base import SETTINGS, TUNABLE, Job
from curate.job.params import Param
from curate.runtime import BACKENDS
from curate.tasks.progress import Display, LiveDisplay, LogDisplay
from curate.tasks.summary import Summary
from curate.units import format_bytes, format_duration, parse_bytes

EXIT_USAGE = 2
_SETTING_HELP = {
    "batch_size": "rows of a batch, at most",
    "shard_bytes": "stored bytes of a shard, at which large inputs are split; 64MiB, 1g",
    "format": "format of the outputs: parquet or jsonl",
    "codec": "compression of the outputs: zstd, snappy or none for parquet, zstd or gzip for jsonl",
    "num_cpus": "CPUs that a task holds",
    "memory": "memory that a task asks for; 2g, 512MiB",
    "max_tasks": "tasks at once, at most",
    "max_bad_rows": "rows of a shard that may be quarantined, N or P%  [default: 0.1%, at least 10]",
}
_BYTES = ("shard_bytes", "memory")


class _Bytes(click.ParamType[int]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_bytes(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class _Names(click.ParamType[list[str]]):
    """One value or several with commas between; the option can be repeated as well."""

    name = "name[,name]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        del param, ctx
        return value if isinstance(value, list) else [part.strip() for part in str(value).split(",")]


def command(cls: type[Job]) -> click.Command:
    """Returns the click command of a job class."""
    options: list[click.Parameter] = [_option(one) for one in cls._params.values()]
    options += [_setting(cls, name) for name in TUNABLE if name not in cls.__dict__ or not _is_property(cls, name)]
    options += _common()

    def callback(**values: Any) -> None:
        sys.exit(_run(cls, values))

    return click.Command(
        cls.name,
        params=options,
        callback=callback,
        help=(cls.__doc__ or "").strip() or None,
        epilog="Running it again continues where it stopped: shards whose output exists are skipped.",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
    )


def main(cls: type[Job]) -> None:
    """Runs the job's command on the program's arguments and ends the process."""
    command(cls).main(prog_name=sys.argv[0])


def _is_property(cls: type[Job], name: str) -> bool:
    return isinstance(getattr(cls, name, None), property)


def _option(one: Param) -> click.Option:
    flag = "--" + one.name.replace("_", "-")
    default = None if one.required or one.default is None else one.default
    shown = one.help or ""
    if one.secret:
        shown = f"{shown} (name of an environment variable)".strip()
    if isinstance(default, Asset):
        default = default.uri
    if one.many:
        text = ", ".join(map(str, default or [])) or "none"
        return click.Option(
            [flag], type=_Names(), multiple=True, help=f"{shown}  [default: {text}]", show_default=False
        )
    if one.type is bool:
        return click.Option([f"{flag}/--no-{flag[2:]}"], default=default, help=shown)
    kind: Any = click.Choice(list(one.type)) if isinstance(one.type, tuple) else str if one.type is Asset else one.type
    return click.Option([flag], type=kind, default=default, required=one.required, help=shown)


def _setting(cls: type[Job], name: str) -> click.Option:
    default = getattr(cls, name)
    kinds = [kind for kind in SETTINGS[name] if kind is not type(None)]
    kind: Any = _Bytes() if name in _BYTES else float if float in kinds else kinds[0]
    shown = format_bytes(default).replace(" ", "") if name in _BYTES and default else default
    return click.Option(
        ["--" + name.replace("_", "-")],
        type=kind,
        default=None,
        help=_SETTING_HELP[name] + (f"  [default: {shown}]" if shown is not None else ""),
    )


def _common() -> list[click.Option]:
    return [
        click.Option(
            ["-i", "--input", "inputs"],
            multiple=True,
            required=True,
            help="file, directory or glob, local or gs://; can be repeated",
        ),
        click.Option(["-o", "--output"], required=True, help="prefix that the outputs and the ledger go under"),
        click.Option(["--limit"], type=click.IntRange(min=1), help="only the first N shards"),
        click.Option(
            ["--sample"], metavar="P%", help="only this part of the shards, at least one; the same ones each time"
        ),
        click.Option(["--dry-run"], is_flag=True, help="say what would run and what is skipped, and run nothing"),
        click.Option(
            ["--overwrite"], is_flag=True, help="first remove this job's own outputs and ledger, after asking"
        ),
        click.Option(["--yes"], is_flag=True, help="do not ask"),
        click.Option(
            ["--accept-code-change"], is_flag=True, help="go on although the code changed under the same version"
        ),
        click.Option(["--allow-incomplete-input"], is_flag=True, help="read the output of a job that is not complete"),
        click.Option(
            ["--target-task-seconds"], type=float, default=120.0, help="seconds of work to bundle into one task"
        ),
        click.Option(
            ["--max-failed-shards"], metavar="N|P%", help="stop, with exit code 3, when more shards have failed"
        ),
        click.Option(
            ["--max-in-flight"],
            type=click.IntRange(min=1),
            help="tasks launched at once  [default: max(16, 2 x slots)]",
        ),
        click.Option(["--backend"], type=click.Choice(BACKENDS), default="ray", help="where tasks run"),
        click.Option(["--json", "as_json"], is_flag=True, help="print the result as one JSON object"),
    ]


def _run(cls: type[Job], values: dict[str, Any]) -> int:
    """Runs the job with parsed options and returns the exit code."""
    log.configure()
    as_json, dry = values.pop("as_json"), values.pop("dry_run")
    parameters = {name: values.pop(name) for name in cls._params}
    for name, one in cls._params.items():
        if one.many:
            given = [item for group in parameters[name] for item in group]
            parameters[name] = [one.type(item) for item in given] if given else one.default
    parameters = {name: value for name, value in parameters.items() if value is not None}
    for name in TUNABLE:
        if values.get(name) is not None:
            parameters[name] = values[name]
        values.pop(name, None)
    yes = values.pop("yes")
    try:
        job = cls(**parameters)
        options = cls.options(
            input=values.pop("inputs"),
            confirm=(lambda _: True) if yes else _ask,
            display=_display(as_json),
            handle_signals=True,
            **values,
        )
        if dry:
            from curate.dataset.driver import dry_run

            click.echo(dry_run(job.spec(), options))
            return 0
        from curate.dataset.driver import run

        summary = run(job.spec(), options)
    except CurateError as error:
        click.echo(f"error: {error}", err=True)
        return EXIT_USAGE
    if as_json:
        click.echo(orjson.dumps(summary.as_dict()))
    else:
        click.echo(render(summary))
    return summary.state.exit_code


def _display(as_json: bool) -> Display:
    return LiveDisplay() if sys.stderr.isatty() and not as_json else LogDisplay()


def _ask(question: str) -> bool:
    return sys.stdin.isatty() and click.confirm(question, err=True)


def render(summary: Summary) -> str:
    """Returns a summary as a person reads it."""
    rows = summary.books
    dropped = sum(rows.dropped.values())
    lines = [
        f"{summary.job}: {summary.state.value} in {format_duration(summary.seconds)}",
        f"  shards   {summary.done:,} of {summary.total:,} done"
        + (f" ({summary.skipped:,} skipped: their output existed)" if summary.skipped else "")
        + (f", {summary.failed:,} failed" if summary.failed else ""),
        f"  rows     {rows.rows_in:,} in + {rows.created:,} created = {rows.rows_out:,} out + {dropped:,} dropped "
        f"+ {rows.quarantined:,} quarantined",
    ]
    lines += [f"             {n:,} dropped: {reason}" for reason, n in sorted(rows.dropped.items())]
    lines += [f"  counter  {name} = {value:,}" for name, value in rows.sorted_counters().items()]
    lines += [
        f"  bytes    {format_bytes(summary.bytes_in)} in, {format_bytes(summary.bytes_out)} out",
        f"  output   {summary.output}",
    ]
    for group in summary.failures:
        lines.append(f"  failed   {group.count:,} x {group.error}  (such as {group.shard})")
    if summary.state.exit_code:
        lines.append(f"Run it again to go on where it stopped; see: curate status {summary.output}")
    return "\n".join(lines)
