"""Where a job comes from, so that it can be made again: file, class and parameters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from curate.code.kinds import loaded
from curate.errors import ConfigError
from curate.job.asset import Asset
from curate.job.params import recorded_scalar, recorded_value
from curate.job.settings import tunable
from curate.jobs import is_job

being_imported: list[str] = []
"""The paths of files that are imported now, to find the job in them."""


def refuse_while_imported() -> None:
    """Raises ConfigError where the file of a job is only imported, and runs a job all the same: it would take the
    arguments of the program that imports it for its own."""
    if being_imported:
        raise unguarded(f"{being_imported[-1]} runs a job when it is imported")


def unguarded(what: str) -> ConfigError:
    """Returns the error of a file that does something when it is imported, in these words."""
    return ConfigError(f'{what}; put the code that runs the job under if __name__ == "__main__":')


def origin_of(cls: type, parameters: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns where a job of a class comes from, as JSON values: file, class, parameters, settings.

    Of a secret, `parameters` has the name of its environment variable. Without a file (a notebook) `script` is empty.
    """
    script, module = _home(cls)
    return {
        "script": script,
        "module": module,
        "class": cls.__qualname__,
        "parameters": {name: _as_json(value) for name, value in parameters.items()},
        "settings": {name: recorded_scalar(value) for name, value in settings.items()},
    }


def _home(cls: type) -> tuple[str, str]:
    """Returns the file of a class, and the name that its module is imported by; empty for a program's own."""
    module = loaded(cls.__module__)
    path = getattr(module, "__file__", None)
    if path is None or not os.path.isfile(path):  # noqa: PTH113 - text, as it goes into the ledger
        return "", ""
    spec = getattr(module, "__spec__", None)
    name = spec.name if spec is not None else ""  # a program has one where it was run with `python -m`
    path = os.path.abspath(path)  # noqa: PTH100 - a link stays the link that it was called by
    return path, name if is_job(name) or folder_of(path, name) is not None else ""


def folder_of(path: str, module: str) -> str | None:
    """Returns the folder from which `path` is imported as `module`, None if it cannot be."""
    if not module:
        return None
    file = Path(path)
    parts = [*file.parent.parts, *([] if file.name == "__init__.py" else [file.stem])]
    names = module.split(".")
    return str(Path(*parts[: -len(names)])) if parts[-len(names) :] == names else None


def _as_json(value: Any) -> Any:
    if isinstance(value, Asset):
        return value.uri
    return recorded_value(value, _as_json)


def job_origin(job: Any) -> dict[str, Any]:
    """Returns where a job comes from: its class, and what it takes to make it again."""
    given = vars(job)
    parameters = {
        name: job._secret_variables[name] if one.secret else getattr(job, name) for name, one in job._params.items()
    }
    origin = origin_of(type(job), parameters, {name: given[name] for name in tunable(type(job)) if name in given})
    return origin if job._chain is None else {**origin, "chain": dict(job._chain)}
