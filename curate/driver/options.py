"""How to run a job this time: the options that every job has, checked. Nothing here changes a byte of any output."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from curate.errors import ConfigError, did_you_mean
from curate.observe.progress import Display, NoDisplay
from curate.runtime.backends import BACKENDS
from curate.storage.uris import normalise
from curate.tasks.policy import max_failed_shards as parse_max_failed_shards
from curate.units import parse_percent


def resolve_output(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Returns the output prefix as an absolute URI. Raises ConfigError for a relative one where that would be lost."""
    local = "://" not in text
    if local and not text.startswith("/") and "RAY_JOB_CONFIG_JSON_ENV_VAR" in environ:
        raise ConfigError(
            f"output {text!r} is relative, and this runs under `ray job submit`: it would be written into an unpacked "
            "copy of the working directory and vanish with it; give an absolute path on shared storage, or gs://..."
        )
    return normalise(text).rstrip("/")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a stage this time: nothing here changes a byte of any output."""

    inputs: tuple[str, ...]
    output: str
    backend: str = "ray"
    limit: int | None = None
    """Only the first N shards of the plan."""
    sample: float | None = None
    """Only this fraction of the shards, chosen by a hash of their ids; at least one."""
    overwrite: bool = False
    """First remove this job's own outputs and ledger."""
    confirm: Callable[[str], bool] = lambda _: False
    """Asked before anything is removed."""
    accept_code_change: bool = False
    allow_incomplete_input: bool = False
    target_task_s: float = 120.0
    allow_concurrent: bool = False
    """Run although another driver is alive: both help, to the same bytes."""
    retry_failed: bool = False
    """Only the shards that failed in earlier runs and have no output."""
    redo_stale: bool = False
    """Replace outputs whose input changed since they were made."""
    drop_removed: bool = False
    """Take shards out of the job, with all that was made of them, whose input is not among the inputs any more."""
    keep_stages: bool = False
    """Keep what the stages before the last one made, once the job is complete."""
    max_failed_shards: str | None = None
    max_in_flight: int | None = None
    display: Display = field(default_factory=NoDisplay)
    handle_signals: bool = False
    """Whether SIGINT and SIGTERM end the run in order; only a program's main thread may."""


PathText = str | os.PathLike[str]


def parse_run_options(
    *,
    input: PathText | Sequence[PathText],
    output: PathText,
    backend: str = "ray",
    limit: int | None = None,
    sample: str | None = None,
    overwrite: bool = False,
    confirm: Callable[[str], bool] | None = None,
    accept_code_change: bool = False,
    allow_incomplete_input: bool = False,
    allow_concurrent: bool = False,
    retry_failed: bool = False,
    redo_stale: bool = False,
    drop_removed: bool = False,
    keep_stages: bool = False,
    target_task_seconds: float = 120.0,
    max_failed_shards: str | int | None = None,
    max_in_flight: int | None = None,
    display: Display | None = None,
    handle_signals: bool = False,
) -> RunOptions:
    """Returns the options of a run. Raises ConfigError for one that makes no sense, before anything is looked at."""
    inputs = [input] if isinstance(input, str | os.PathLike) else list(input)
    if not inputs:
        raise ConfigError("no input was given; add --input PATH_OR_GLOB (it can be repeated)")
    if not math.isfinite(target_task_seconds) or target_task_seconds <= 0:
        raise ConfigError(f"--target-task-seconds {target_task_seconds:g} is not a time above 0")
    if max_in_flight is not None and max_in_flight < 1:
        raise ConfigError(f"--max-in-flight {max_in_flight} would run nothing; it is a number of tasks, at least 1")
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit {limit} leaves nothing to do; it is a number of shards, at least 1")
    if backend not in BACKENDS:
        raise ConfigError(f"no backend {backend!r}{did_you_mean(backend, BACKENDS)}; there are: {', '.join(BACKENDS)}")
    if max_failed_shards is not None:
        parse_max_failed_shards(str(max_failed_shards), 1)
    return RunOptions(
        inputs=tuple(_path(one) for one in inputs),
        output=_path(output),
        backend=backend,
        limit=limit,
        sample=None if sample is None else _fraction(sample),
        overwrite=overwrite,
        confirm=confirm or (lambda _: False),
        accept_code_change=accept_code_change,
        allow_incomplete_input=allow_incomplete_input,
        allow_concurrent=allow_concurrent,
        retry_failed=retry_failed,
        redo_stale=redo_stale,
        drop_removed=drop_removed,
        keep_stages=keep_stages,
        target_task_s=target_task_seconds,
        max_failed_shards=None if max_failed_shards is None else str(max_failed_shards),
        max_in_flight=max_in_flight,
        display=display or NoDisplay(),
        handle_signals=handle_signals,
    )


def _fraction(text: str) -> float:
    if not isinstance(text, str):
        raise ConfigError(f"sample is {text!r}, expected a percentage as text, such as '1%'")
    try:
        return parse_percent(text)
    except ConfigError as error:
        raise ConfigError(f"--sample: {error}") from error


def _path(given: PathText) -> str:
    """Returns a path as text, its `~` replaced: a shell leaves that alone within quotes and behind `=`."""
    text = os.fspath(given)
    if not isinstance(text, str):
        raise ConfigError(f"{given!r} is {type(given).__name__}, expected a path as text")
    if not text.startswith("~"):
        return text
    path, slash = Path(text), "/" if text.endswith("/") else ""
    try:
        return f"{path.expanduser()}{slash}"
    except RuntimeError as error:
        raise ConfigError(f"{text!r} names the home of a user that does not exist ({error})") from error
