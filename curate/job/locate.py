"""The way back from a ledger to its job: the same job made again, without its command line. See `origin`.

See `curate.job.load` for how its file is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from curate import jobs
from curate.errors import ConfigError, ObjectNotFound, did_you_mean
from curate.job.load import imported, packaged
from curate.job.params import Param
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing

if TYPE_CHECKING:
    from curate.job.job import Job


_LOCALS = "<locals>"


def _from_json(one: Param, value: Any) -> Any:
    """Returns a recorded value as the parameter takes it: infinities and very large numbers were written as text."""
    if isinstance(value, list):
        return [_from_json(one, item) for item in value]
    return one.type(value) if isinstance(value, str) and one.type in (int, float) else value


def locate(origin: Mapping[str, Any], *, script: str | None = None) -> Job:
    """Returns the job that `origin` tells of, made again. `script` is where its file is now, if that is elsewhere.

    Raises ConfigError if the file is not there or cannot be imported, if it has no such class, and for parameters that
    the class does not take (any more).
    """
    from curate.job.job import Job

    if missing := {"class", "script", "parameters", "settings"} - origin.keys():
        raise ConfigError(
            f"the last run does not say which {', '.join(sorted(missing))} the job has: its run.json is damaged; run "
            "the job's own command with --retry-failed"
        )
    name = str(origin.get("module", ""))
    if script is None and jobs.is_job(name):
        # Wherever curate is installed here: its file lay in another folder where it was run.
        path, module = name, packaged(name)
    else:
        path = _path(origin, script)
        module = imported(path, name)
    cls: Any = module
    for part in str(origin["class"]).split("."):
        cls = getattr(cls, part, None)
    if not isinstance(cls, type) or not issubclass(cls, Job):
        known = [name for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, Job)]
        raise ConfigError(
            f"{path} has no job {origin['class']!r}{did_you_mean(str(origin['class']), known)}; "
            "the job's class was renamed or moved: name its file with --job PATH"
        )
    parameters = {
        name: _from_json(cls._params[name], value) if name in cls._params else value
        for name, value in origin["parameters"].items()
    }
    try:
        return cls(**parameters, **origin["settings"])
    except TypeError as error:
        raise ConfigError(
            f"{origin['class']} cannot be made from its parameters: {error}; run its own command with --retry-failed"
        ) from error


def _path(origin: Mapping[str, Any], script: str | None) -> str:
    recorded = str(origin["script"])
    if _LOCALS in str(origin["class"]):
        raise ConfigError(
            f"the job's class {origin['class']!r} was made inside of a function, where it cannot be found again; "
            "run it as before, with retry_failed=True or --retry-failed"
        )
    if script is None and not recorded:
        raise ConfigError(
            f"the job's class {origin['class']!r} was in no file (a notebook, or a program given on standard input); "
            "save it to one and name that with --job PATH, or run it as before, with retry_failed=True"
        )
    path = os.path.abspath(os.path.expanduser(script) if script else recorded)  # noqa: PTH100, PTH111 - as in `_home`
    if not os.path.isfile(path):  # noqa: PTH113
        if script:
            raise ConfigError(f"--job {script!r}: there is no such file; give the Python file of {origin['class']!r}")
        raise ConfigError(
            f"the job's class {origin['class']!r} was in {path}, which is not there (under `ray job submit` it was an "
            "unpacked copy); say where its file is with --job PATH"
        )
    return path


# What the ledger says of the last run


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What it takes to run a job again."""

    run_id: str
    origin: Mapping[str, Any]
    inputs: Sequence[str]
    """Absolute, as far as that can be told."""
    cwd: str
    """Folder in which it was run; empty where that is not known."""
    backend: str
    allow_incomplete_input: bool


def recorded_run(ledger: Ledger, listing: OutputListing) -> RecordedRun:
    """Returns the last run of a job that says where the job comes from. Raises ConfigError if none does."""
    for run_id in sorted(listing.run_ids, reverse=True):
        try:
            run = ledger.read_json(layout.run_file(run_id, "run.json"))
        except ObjectNotFound:
            continue
        if run.get("origin") and run.keys() >= {"inputs", "backend"}:
            cwd = str(run.get("cwd", ""))
            inputs = [_absolute(str(one), cwd) for one in run["inputs"]]
            incomplete = bool(run.get("allow_incomplete_input"))
            return RecordedRun(run_id, run["origin"], inputs, cwd, str(run["backend"]), incomplete)
    raise ConfigError(
        f"no run under {ledger.root} says where its job comes from (those of a dataset's write_... do not); "
        "run the job's own command with --retry-failed, or the dataset's script again: what is done is skipped"
    )


def _absolute(given: str, cwd: str) -> str:
    """Returns an input as it was meant in the folder where it was given."""
    slash = "/" if given.endswith("/") else ""
    return os.path.normpath(os.path.join(cwd, given)) + slash if cwd and "://" not in given else given  # noqa: PTH118
