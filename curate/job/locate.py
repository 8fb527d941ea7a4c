"""The way back from a ledger to its job: the same job made again, without its command line. See `origin`.

The file is imported under its own name and never as `__main__`, so that nothing in it runs that would start the job.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from curate.errors import ConfigError, ObjectNotFound, did_you_mean
from curate.job.origin import folder_of
from curate.job.params import Param
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing
from curate.runtime.shipping import ship

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
    path = _path(origin, script)
    module = _imported(path, str(origin.get("module", "")))
    cls: Any = module
    for name in str(origin["class"]).split("."):
        cls = getattr(cls, name, None)
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


def _imported(path: str, module: str) -> ModuleType:
    """Imports a file, as the module that it was or as one named after it, beside what lies in its folder."""
    folder = folder_of(path, module)
    name = module if folder is not None else Path(path).stem
    folder = folder or os.path.dirname(path)  # noqa: PTH120
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # A file may be called like a module of Python's, or of a library.
    names = (name, f"{name}_job")
    known = {one: sys.modules[one] for one in names if one in sys.modules}
    found = next((one for one in known.values() if _is_file(one, path)), None)
    if found is None:
        found = _executed(path, names[bool(known)], by_name=bool(module) and not known)
    ship(found, folder)
    return found


def _is_file(module: ModuleType, path: str) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and os.path.exists(file) and os.path.samefile(file, path)  # noqa: PTH110, PTH121


def _executed(path: str, name: str, *, by_name: bool) -> ModuleType:
    try:
        if by_name:
            module = importlib.import_module(name)
            if _is_file(module, path):
                return module
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{path} is no Python file; name the job's file with --job PATH")
        module = importlib.util.module_from_spec(spec)
        # Before it runs: what it defines is looked up by its module's name.
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module
    except SystemExit as error:
        raise ConfigError(
            f'{path} ends the program when it is imported; put what runs the job under if __name__ == "__main__":'
        ) from error
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error


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
