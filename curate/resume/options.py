"""The options of a run, checked; every job has them. None changes a byte of any output."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, Required, TypedDict, Unpack

from curate.backends.choose import VARIABLE
from curate.backends.make import AUTO, BACKENDS, check_backend
from curate.dataclass import MISSING, dataclass, field, fields
from curate.errors import ConfigError
from curate.keywords import option, shows_keywords
from curate.ledger.heartbeat import NO_PROGRESS_AFTER_S
from curate.notify.receiver import Receiver, parse_receiver
from curate.notify.teller import Teller
from curate.observe.progress import Display
from curate.operators.arguments import path_text, path_texts
from curate.storage.uris import at_home, normalise, unreplaced
from curate.tasks.parts import Part
from curate.tasks.policy import max_failed_shards as parse_max_failed_shards
from curate.units import LARGEST, is_finite, parse_duration, parse_percent


def resolve_output(text: str) -> str:
    """Returns the output prefix as an absolute URI. Raises ConfigError for a relative one where that would be lost."""
    if not text:
        raise ConfigError(_empty("output"))
    if why := unreplaced(text):
        raise ConfigError(f"{option('output', text)}: {why}")
    local = "://" not in text
    if local and not text.startswith("/") and "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        raise ConfigError(
            f"output {text!r} is relative, and this runs under `ray job submit`: it would be written into an unpacked "
            "copy of the working directory and vanish with it; give an absolute path on shared storage, or gs://..."
        )
    if not (root := normalise(text).rstrip("/")):
        raise ConfigError(f"{option('output', text)}: all files lie there; choose a folder for the outputs")
    return root


PathText = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class RunOption:
    """How an option of a run is given, and what it may be."""

    help: str
    metavar: str | None = None
    name: str = ""
    """What it is called where it is given; by default as the field."""
    short: str = ""
    default_text: str = ""
    """What None means, for an option of which it can be said."""
    check: Callable[[Any], Any] = lambda value: value
    """Returns a value that was given as the field holds it. Raises ConfigError for one that is not valid."""
    below_one: str = ""
    """What is wrong with a number below 1."""
    choices: tuple[str, ...] = ()
    variable: str = ""
    """Environment variable that says what holds where nothing is given."""


def _option(help: str, *, default: Any = MISSING, **how: Any) -> Any:
    return field(default=default, metadata={"option": RunOption(help, **how)})


def no_input() -> str:
    """Returns what is said to who gave no input."""
    return f"no input was given; add {option('input', 'PATH_OR_GLOB')}; it can be several"


def _empty(name: str) -> str:
    return f"{option(name, ...)}: the path is empty, as where a variable is not set; expected a path or a URI"


def input_texts(given: PathText | Sequence[PathText]) -> tuple[str, ...]:
    """Returns inputs as a tuple of paths and URIs. Raises ConfigError where there is none, or an empty one."""
    inputs = path_texts(given, "input")
    if not inputs:
        raise ConfigError(no_input())
    if "" in inputs:
        raise ConfigError(_empty("input"))
    return tuple(at_home(one) for one in inputs)


def _output(given: PathText) -> str:
    return at_home(path_text(given, "output"))


def _fraction(text: str | None) -> float | None:
    if text is not None and not isinstance(text, str):
        raise ConfigError(f"sample is {text!r}, expected a percentage as text, such as '1%'")
    try:
        return None if text is None else parse_percent(text)
    except ConfigError as error:
        raise ConfigError(f"{option('sample', text)}: {error}") from error


def _seconds(value: float) -> float:
    if not is_finite(value) or value <= 0:
        raise ConfigError(f"{option('target_task_seconds', value)} is not a time above 0")
    return value


def _part(text: str | None) -> Part | None:
    if text is None:
        return None
    try:
        return Part.of_environment(os.environ) if text == "auto" else Part.parse(text)
    except ConfigError as error:
        raise ConfigError(f"{option('part', text)}: {error}") from error


def parse_quiet(value: str | float | None) -> float | None:
    """Returns the seconds without progress after which it is said; None for None. Raises ConfigError."""
    if value is None:
        return None
    try:
        seconds = parse_duration(value if isinstance(value, str) else f"{value:.6f}")
    except (ConfigError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{option('no_progress_after', value)} is not a time above 0; write it like 90s, 30min or 2h"
        ) from error
    return seconds


def _failed_shards(value: str | int | None) -> str | None:
    if value is not None:
        parse_max_failed_shards(str(value), 1)
    return None if value is None else str(value)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a stage this time: nothing here changes a byte of any output.

    The one list of these options: the command line of a job, `Job.run` and the checks read it.
    """

    inputs: tuple[str, ...] = _option(
        "file, directory or quoted glob, local or a URI (gs://, s3://, hf://, ...); can be repeated",
        name="input",
        short="-i",
        metavar="PATH",
        check=input_texts,
    )
    output: str = _option("prefix that the outputs and the ledger go under", short="-o", metavar="PATH", check=_output)
    backend: str = _option(
        "where tasks run: on Ray, in worker processes of this machine (local), or in the driver itself (inline); auto: "
        "on Ray if there is a cluster to join, or if the job asks for what only Ray can place; else local",
        default=AUTO,
        choices=BACKENDS,
        check=check_backend,
        variable=VARIABLE,
        default_text=f"${VARIABLE}, else {AUTO}",
    )
    limit: int | None = _option(
        "this run only: the first N shards; a run without it does the rest",
        default=None,
        metavar="N",
        below_one="leaves nothing to do; it is a number of shards",
    )
    sample: float | None = _option(
        "this run only: this part of the shards, at least one, the same ones each time",
        default=None,
        metavar="P%",
        check=_fraction,
    )
    """A fraction; the shards are chosen by a hash of their ids."""
    overwrite: bool = _option("first remove this job's own outputs and ledger, after asking", default=False)
    accept_code_change: bool = _option("go on although the code changed under the same version", default=False)
    allow_incomplete_input: bool = _option(
        "read the output of a job that is not complete, or lacks outputs", default=False
    )
    allow_concurrent: bool = _option("run alongside another process that is already writing this output", default=False)
    part: Part | None = _option(
        "be driver K (from 0) of N that make one output together, each on its own machine, without Ray between them; "
        "auto: as Slurm, Kubernetes or torchrun number this process",
        default=None,
        metavar="K/N",
        check=_part,
    )
    """It begins with its part of the shards, and then helps with the others."""
    retry_failed: bool = _option("this run only: the shards that failed before", default=False)
    """Those that have no output."""
    redo_stale: bool = _option("do shards again whose input changed since their output was made", default=False)
    drop_removed: bool = _option(
        "remove shards whose input is no longer given (it was deleted, or the glob is narrower now), and their outputs",
        default=False,
    )
    keep_stages: bool = _option(
        "keep intermediate files after success, for debugging; the next run removes them", default=False
    )
    no_samples: bool = _option(
        "keep no rows of those that are dropped, to be looked at: by default up to 20 a reason and shard", default=False
    )
    target_task_s: float = _option(
        "seconds of work to bundle into one task",
        default=120.0,
        name="target_task_seconds",
        metavar="S",
        check=_seconds,
    )
    max_failed_shards: str | None = _option(
        "stop, with exit code 3, when more shards have failed", default=None, metavar="N|P%", check=_failed_shards
    )
    max_in_flight: int | None = _option(
        "tasks launched at once",
        default=None,
        metavar="N",
        default_text="max(16, 2 x slots)",
        below_one="would run nothing; it is a number of tasks",
    )
    notify: Receiver | None = _option(
        "URL to post to, as JSON with a line for Slack, when the run ends, fails, is interrupted or makes no progress; "
        "or the name of an environment variable that has it. A killed run is reported by the next one",
        default=None,
        metavar="URL|VARIABLE",
        check=parse_receiver,
    )
    no_progress_after: float | None = _option(
        "say that there is no progress after so long without a shard that ended",
        default=None,
        metavar="TIME",
        default_text="30min",
        check=parse_quiet,
    )
    """Seconds."""
    teller: Teller = field(default_factory=Teller)
    """Who hears of the run as it goes: made by who runs the job, of `notify`."""
    confirm: Callable[[str], bool] = lambda _: False
    """Asked before anything is removed."""
    display: Display = field(default_factory=Display)
    handle_signals: bool = False
    """Whether SIGINT and SIGTERM end the run in order; only a program's main thread may."""

    @property
    def quiet_s(self) -> float:
        """Seconds without a shard that ended after which the run makes no progress."""
        return NO_PROGRESS_AFTER_S if self.no_progress_after is None else self.no_progress_after

    @property
    def concurrent(self) -> bool:
        """Whether other drivers may be making the same output."""
        return self.allow_concurrent or self.part is not None

    @property
    def restricted_by(self) -> str:
        """What restricts this run to some shards of the job, as it is given; empty if nothing does."""
        given = {
            option("retry_failed"): self.retry_failed,
            option("limit", self.limit): self.limit is not None,
            option("sample", f"{100 * (self.sample or 0.0):g}%"): self.sample is not None,
        }
        return " ".join(text for text, wanted in given.items() if wanted)


OPTIONS = {one.metadata["option"].name or one.name: one for one in fields(RunOptions) if "option" in one.metadata}
"""The fields that are options of the command line, by the name that they are given by."""


class _Places(TypedDict, total=False):
    input: Required[PathText | Sequence[PathText]]
    output: Required[PathText]
    backend: str


class SharedArguments(TypedDict, total=False):
    """What a run of a job and a write of a dataset can both be given."""

    limit: int | None
    sample: str | None
    overwrite: bool
    allow_incomplete_input: bool
    allow_concurrent: bool
    part: str | None
    retry_failed: bool
    redo_stale: bool
    drop_removed: bool
    keep_stages: bool
    no_samples: bool
    target_task_seconds: float
    max_failed_shards: str | int | None
    max_in_flight: int | None
    notify: str | None
    no_progress_after: str | float | None


class RunArguments(_Places, SharedArguments, total=False):
    """What a run can be given, for type checkers: see `RunOptions`."""

    accept_code_change: bool
    yes: bool
    """Answers `confirm`."""
    confirm: Callable[[str], bool] | None
    display: Display | None
    handle_signals: bool


DEFAULTS = {name: one.default for name, one in OPTIONS.items()} | {"yes": False, "handle_signals": False}
"""What holds where nothing is given, for who asks for help."""


_KINDS: dict[str, tuple[type, str]] = {
    "int | None": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "bool": (bool, "true or false"),
}
"""What an option may be, and how it is called, by the type of its field; others have a check of their own."""


def _check_kind(name: str, value: Any, annotation: str) -> None:
    kind, called = _KINDS.get(annotation, (object, ""))
    if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is Integral)):
        raise ConfigError(f"{option(name, value)} is not {called}")


@shows_keywords(RunArguments, DEFAULTS)
def parse_run_options(**given: Unpack[RunArguments]) -> RunOptions:
    """Returns the options of a run. Raises ConfigError for an invalid one, before anything is read."""
    values: dict[str, Any] = dict(given)
    for name, one in OPTIONS.items():
        variable = one.metadata["option"].variable
        if variable and values.get(name) is None and os.environ.get(variable):
            values[name] = os.environ[variable]
    for name in [name for name in OPTIONS if name in values]:
        how: RunOption = OPTIONS[name].metadata["option"]
        value = values.pop(name)
        if value is None and how.variable:
            continue
        _check_kind(name, value, str(OPTIONS[name].type))
        if how.below_one and value is not None and value < 1:
            raise ConfigError(f"{option(name, value)} {how.below_one}, at least 1")
        if how.below_one and value is not None and value > LARGEST:
            raise ConfigError(f"{option(name, value)} is too large, expected less than 2^63")
        values[OPTIONS[name].name] = how.check(value)
    if values.get("part") is not None:
        for name in ("overwrite", "redo_stale", "drop_removed"):
            if values.get(name):
                raise ConfigError(
                    f"{option('part', str(values['part']))} makes outputs beside other drivers, and {option(name)} "
                    f"removes some: run once with {option(name)} alone, then start the parts"
                )
    if values.pop("yes", False):
        values["confirm"] = lambda _: True
    return RunOptions(**{name: value for name, value in values.items() if value is not None})
