"""A job's class, by the name of a job that curate brings, or from a file by its path.

A file is imported under its own name and never as `__main__`, so that nothing in it runs that would start the job.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from curate import jobs
from curate.errors import ConfigError, did_you_mean
from curate.job.origin import folder_of
from curate.runtime.shipping import ship

if TYPE_CHECKING:
    from curate.job.job import Job


def packaged_names() -> list[str]:
    """Returns the names of the jobs that curate brings, in order."""
    return sorted(one.name for one in pkgutil.iter_modules(jobs.__path__))


def packaged(module: str) -> ModuleType:
    """Imports `curate.jobs.NAME`. Workers import it too: it is there where curate is. Raises ConfigError."""
    name = module.rpartition(".")[2]
    if name not in packaged_names():
        raise ConfigError(
            f"curate brings no job {name!r}{did_you_mean(name, packaged_names())}; curate jobs lists them"
        )
    return importlib.import_module(module)


def named_job(name: str) -> type[Job]:
    """Returns the class of a job as a command names it: `toxicity`, `path/to/mine.py`, or `path/to/mine.py:Mine`.

    Raises ConfigError if there is no such job, if its file cannot be imported, and if a file has several and none is
    named.
    """
    path, colon, wanted = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        path, wanted = name, ""
    if path.endswith(".py") or "/" in path:
        path = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - text, as it goes into the ledger
        if not os.path.isfile(path):  # noqa: PTH113
            problem = f"{path} is a folder" if os.path.isdir(path) else f"there is no file {path}"  # noqa: PTH112
            raise ConfigError(f"{problem}; give the Python file of a job, or a name that `curate jobs` lists")
        return _only(jobs_of(imported(path)), wanted, name)
    if name not in packaged_names():
        near = did_you_mean(name, [*packaged_names(), *(one.name for one in Path().glob("*.py"))])
        raise ConfigError(
            f"curate brings no job {name!r}{near or ';'} `curate jobs` lists those that it brings; name a job of your "
            "own by its file: curate run path/to/job.py"
        )
    return _only(jobs_of(packaged(f"{jobs.__name__}.{name}")), "", name)


def jobs_of(module: ModuleType) -> dict[str, type[Job]]:
    """Returns the jobs that a module defines, by the names of their classes; without those that others derive from."""
    from curate.job.job import Job

    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Job) and value.__module__ == module.__name__
    }
    bases = {base for one in found.values() for base in one.__mro__[1:]}
    return {name: one for name, one in found.items() if one not in bases}


def _only(found: dict[str, type[Job]], wanted: str, name: str) -> type[Job]:
    """Returns the job of a file that is `wanted`, or the only one."""
    path = name.removesuffix(f":{wanted}")
    if wanted:
        if wanted not in found:
            listed = f"; it has: {', '.join(found)}" if found else ""
            raise ConfigError(f"{path} has no job {wanted!r}{did_you_mean(wanted, found)}{listed}")
        return found[wanted]
    if not found:
        raise ConfigError(
            f"{path} has no job: it defines no class that derives from curate.Job, curate.TextJob or curate.FileJob; "
            "name another file"
        )
    if len(found) > 1:
        first = next(iter(found))
        raise ConfigError(
            f"{path} has {len(found)} jobs: {', '.join(found)}; name the one to run: curate run {path}:{first}"
        )
    return next(iter(found.values()))


def imported(path: str, module: str = "") -> ModuleType:
    """Imports a file, as the module that it was or as one named after it, beside what lies in its folder.

    Its code travels to workers from here. Raises ConfigError if it cannot be imported.
    """
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
            raise ConfigError(f"{path} is no Python file; give the Python file of a job")
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
