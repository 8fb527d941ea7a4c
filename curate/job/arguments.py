"""The options of a job's command: one for each parameter, one for each setting, and those that every job has."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field
from typing import Any

import click

from curate.errors import ConfigError
from curate.job.asset import Asset
from curate.job.params import DEEPEST, Param
from curate.job.settings import SETTINGS, SIZES
from curate.objects.record import OF_TOKENS, OFFERED
from curate.resume.options import OPTIONS, RunOption
from curate.units import format_bytes, parse_bytes

_SIZES_SHOWN = "; 64MiB, 2g"
_UNSET_SHOWN = {"max_bad_rows": "0.1%, at least 10", "codec": "zstd"}
"""What None means, for settings of which it can be said."""


class SizeParam(click.ParamType[int]):
    """A number of bytes, with or without a unit."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns the bytes."""
        try:
            return value if isinstance(value, int) else parse_bytes(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class ListParam(click.ParamType[list[Any]]):
    """One value or several with commas between; the option can be repeated as well."""

    def __init__(self, one: Param) -> None:
        self._one = one
        self._item: click.ParamType[Any] = click.types.convert_type(_kind(one))
        # A URI may hold a comma, and nothing else that is given in a list is as long.
        self._split = one.type is not Asset and one.split
        word = {str: "text", Asset: "uri"}.get(one.type, getattr(self._item, "name", "value"))
        self.name = f"{word}[,{word}]" if self._split else str(word)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        """Returns the values; an empty text is an empty list."""
        if isinstance(value, list):
            return value
        if (listed := _listed(str(value))) is not None:
            way = f"{self.name}: {','.join(listed)}" if self._split else "the option once for each"
            self.fail(f"{str(value)!r} is a list in JSON, expected {way}", param, ctx)
        parts = [part.strip() for part in str(value).split(",")] if self._split else [str(value)]
        return [self._item.convert(part, param, ctx) for part in parts if part]


def _listed(value: str) -> list[str] | None:
    """Returns the texts of a list in JSON; None for any other value."""
    with suppress(ValueError):
        found = json.loads(value) if value.lstrip().startswith("[") else None
        if isinstance(found, list) and found and all(isinstance(one, str) for one in found):
            return found
    return None


class DictParam(click.ParamType[dict[str, Any]]):
    """Names with values, as a JSON object."""

    name = "json"

    def __init__(self, one: Param) -> None:
        self._one = one

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Returns the names with their values, checked."""
        try:
            found = value if isinstance(value, dict) else json.loads(value, object_pairs_hook=_once)
            checked: dict[str, Any] = self._one.check(found, "the job")
        except ValueError as error:
            self.fail(f"{value!r} is not JSON ({error}); expected {self._one.shape}", param, ctx)
        except RecursionError:
            self.fail(f"{value!r:.60}... has lists in more than {DEEPEST} others; expected fewer", param, ctx)
        except ConfigError as error:
            self.fail(str(error).removeprefix("the job."), param, ctx)
        return checked


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON. Raises ValueError for a name that is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def parameter_option(one: Param) -> click.Option:
    """Returns the option of a parameter."""
    shown = one.help
    if one.secret:
        shown = f"{shown} (name of an environment variable)".strip()
    default = None if one.required else one.default
    # A default of None is one to click, which would then not ask for the option.
    presence: dict[str, Any] = {"required": True} if one.required else {"default": default}
    if one.many:
        values = [item.uri if isinstance(item, Asset) else item for item in default or ()]
        if one.type is Asset:
            shown = f"{shown}; can be repeated".removeprefix("; ")
        if not one.required:
            shown = f"{shown}  [default: {', '.join(map(str, values)) or 'none'}]"
        return click.Option(
            [one.option, one.name],
            type=ListParam(one),
            multiple=True,
            required=one.required,
            help=shown,
            show_default=False,
        )
    if one.named:
        told = "" if one.required else f"  [default: {'none' if default is None else json.dumps(default)}]"
        return click.Option(
            [one.option, one.name],
            type=DictParam(one),
            help=shown + told,
            show_default=False,
            metavar="JSON",
            **presence,
        )
    if isinstance(default, Asset):
        presence["default"] = default.uri
    if one.type is bool:
        return click.Option([f"{one.option}/--no-{one.option[2:]}", one.name], help=shown, **presence)
    metavar = "URI" if one.type is Asset else None
    return click.Option([one.option, one.name], type=_kind(one), metavar=metavar, help=shown, **presence)


def _kind(one: Param) -> Any:
    if isinstance(one.type, tuple):
        return click.Choice(list(one.type))
    return str if one.type is Asset else one.type


def setting_option(name: str, default: Any) -> click.Option:
    """Returns the option of a setting, which is `default` where it is not given."""
    kinds = [kind for kind in SETTINGS[name].kinds if kind is not type(None)]
    if bool in kinds:
        option = name.replace("_", "-")
        return click.Option([f"--{option}/--no-{option}", name], default=None, help=SETTINGS[name].about)
    kind: Any = SizeParam() if name in SIZES else float if float in kinds else kinds[0]
    if name == "format":
        kind = click.Choice([format.value for format in (*OFFERED, *OF_TOKENS)])
    shown = format_bytes(default).replace(" ", "") if name in SIZES and default else default
    shown = _UNSET_SHOWN.get(name) if shown is None else shown
    return click.Option(
        ["--" + name.replace("_", "-"), name],
        type=kind,
        default=None,
        metavar="N" if kind is int else None,
        help=SETTINGS[name].about
        + _SIZES_SHOWN * (name in SIZES)
        + (f"  [default: {shown}]" if shown is not None else ""),
    )


def refuse_alike(command: click.Command) -> None:
    """Raises ConfigError where two options of a command are written alike, or have one name: a value that is given to
    one of them would be the other's. The command line turns a parameter `a` off by `--no-a`."""
    known = dict.fromkeys(command.context_settings["help_option_names"], "help")
    for one in command.params:
        for word in {*one.opts, *one.secondary_opts, one.name or ""}:
            if word in known:
                shown = word if word.startswith("-") else f"--{word}"
                raise ConfigError(
                    f"{command.name} has the option {shown} twice, for {known[word]!r} and for {one.name!r}; rename "
                    "the parameter"
                )
            known[word] = one.name or ""


def click_run_options() -> list[click.Option]:
    """Returns the options that say how a job is run this time; the same for every job."""
    listed = [_run_option(name, one) for name, one in OPTIONS.items()]
    at = list(OPTIONS).index("overwrite")
    return [
        *listed[:at],
        _flag("--dry-run", "show what would run and what is skipped, and why; run and write nothing"),
        listed[at],
        _flag("--yes", "do not ask"),
        *listed[at + 1 :],
        click.Option(["--json", "as_json"], is_flag=True, help="print the result as one JSON object"),
    ]


def _run_option(name: str, one: Field[Any]) -> click.Option:
    option: RunOption = one.metadata["option"]
    flag = "--" + name.replace("_", "-")
    if one.default is False:
        return _flag(flag, option.help)
    kind: Any = click.Choice(option.choices) if option.choices else None
    if option.below_one:
        kind = click.IntRange(min=1)
    # A default of None is one to click, which would then not ask for the option.
    default = None if option.variable else one.default
    presence: dict[str, Any] = {"required": True} if default is MISSING else {"default": default}
    return click.Option(
        [option.short, flag, name] if option.short else [flag, name],
        type=kind,
        multiple=name == "input",
        metavar=option.metavar,
        help=option.help + (f"  [default: {option.default_text}]" if option.default_text else ""),
        **presence,
    )


def _flag(name: str, help: str) -> click.Option:
    return click.Option([name], is_flag=True, help=help, show_default=False)


Section = tuple[str, Sequence[click.Option | None]]


class JobCommand(click.Command):
    """A command whose help has a section for each kind of option."""

    def __init__(self, name: str, sections: Sequence[Section], callback: Callable[..., Any], help: str | None) -> None:
        self._sections = sections
        super().__init__(
            name,
            params=[option for _, options in sections for option in options if option],
            callback=callback,
            help=help,
            epilog="Run it again and it resumes: shards whose output exists are skipped. Options of the first section "
            "count for this run only. Parameters, batch size, shard bytes, format and codec are the job's identity: an "
            "existing output of others is refused.",
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
        )
        refuse_alike(self)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the sections."""
        for title, options in [*self._sections, ("Other", [self.get_help_option(ctx)])]:
            found = [option.get_help_record(ctx) for option in options if option is not None]
            records = [record for record in found if record is not None]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records, col_max=34)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments; says what is likely where a shell has replaced a glob by the names it found."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if "unexpected extra argument" not in error.message:
                raise
            hint = "was a glob not quoted? write --input 'data/*.jsonl', so that the shell does not expand it"
            raise click.UsageError(f"{error.message}; {hint}", ctx) from error
