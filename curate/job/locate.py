"""Finds jobs: a built-in one by its name, one of a file by its path, or the job of a ledger's last run, made again
without its command line. See `origin`.

A file is imported under its own name and never as `__main__`, so that the import does not start the job.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from curate import jobs
from curate.around import contextmanager
from curate.code.sources import installed
from curate.errors import ConfigError, did_you_mean
from curate.job.definition import refuse_own_init
from curate.job.origin import being_imported, folder_of, unguarded
from curate.job.params import Param, as_recorded
from curate.keywords import option
from curate.runtime import shipping

if TYPE_CHECKING:
    from curate.job.job import Job


_LOCALS = "<locals>"


# By name or file


def packaged_names() -> list[str]:
    """Returns the names of the jobs that curate brings, in order."""
    return sorted(one.name for one in pkgutil.iter_modules(jobs.__path__))


def packaged(module: str) -> ModuleType:
    """Imports `curate.jobs.NAME`. Workers import it too: it is there where curate is. Raises ConfigError."""
    name = module.rpartition(".")[2]
    if name not in packaged_names():
        raise ConfigError(
            f"curate has no built-in job {name!r} here{did_you_mean(name, packaged_names())}; `curate jobs` lists them"
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
            near = did_you_mean(Path(path).name, [one.name for one in Path(path).parent.glob("*.py")])
            raise ConfigError(
                f"{problem}{near or '; pass the Python file of a job, or a name that `curate jobs` lists'}"
            )
        return _only(jobs_of(imported(path)), wanted, name)
    if name not in packaged_names():
        near = did_you_mean(name, [*packaged_names(), *(one.name for one in Path().glob("*.py"))])
        raise ConfigError(
            f"curate has no built-in job {name!r}{near or ';'} `curate jobs` lists them; name your own job by its "
            "file: curate run path/to/job.py"
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
            f"{path} has no job: it defines no subclass of curate.Job, curate.TextJob or curate.FileJob; "
            "name another file"
        )
    if len(found) > 1:
        first = next(iter(found))
        raise ConfigError(
            f"{path} has {len(found)} jobs: {', '.join(found)}; name the one to run: curate run {path}:{first}"
        )
    return next(iter(found.values()))


# From what a ledger says


def _from_json(one: Param, value: Any) -> Any:
    """Returns a recorded value as the parameter takes it."""
    if isinstance(value, list):
        return [_from_json(one, item) for item in value]
    if isinstance(value, dict):
        return {name: _from_json(one, item) for name, item in value.items()}
    return as_recorded(value, one.type)


def locate(origin: Mapping[str, Any], *, script: str | None = None, settings: Mapping[str, Any] = {}) -> Job:
    """Returns the job that `origin` tells of, made again. `script` is where its file is now, if that is elsewhere;
    `settings` replace those that it had.

    Raises ConfigError if the file is not there or cannot be imported, if it has no such class, and for parameters that
    the class does not take (any more).
    """
    from curate.job.job import Job

    if missing := {"class", "script", "parameters", "settings"} - origin.keys():
        raise ConfigError(
            f"the last run does not record the {', '.join(sorted(missing))} the job has: its run.json is damaged; run "
            f"the job itself with {option('retry_failed')}"
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
            "the class was renamed or moved: pass its file: curate retry OUTPUT --job PATH (or curate replay)"
        )
    refuse_own_init(cls)
    parameters = {
        name: _from_json(cls._params[name], value) if name in cls._params else value
        for name, value in origin["parameters"].items()
    }
    try:
        return cls(**parameters, **{**origin["settings"], **settings})
    except TypeError as error:
        raise ConfigError(
            f"{origin['class']} cannot be made from its parameters: {error}; run the job itself with "
            f"{option('retry_failed')}"
        ) from error


def _path(origin: Mapping[str, Any], script: str | None) -> str:
    recorded = str(origin["script"])
    if _LOCALS in str(origin["class"]):
        raise ConfigError(
            f"the job's class {origin['class']!r} was defined inside a function and cannot be imported; run it as "
            "before, with retry_failed=True"
        )
    if script is None and not recorded:
        raise ConfigError(
            f"the job's class {origin['class']!r} was not defined in a file (but in a notebook or on standard input); "
            "save it to a file and pass that: curate retry OUTPUT --job PATH; or run it as before, with "
            "retry_failed=True"
        )
    path = os.path.abspath(os.path.expanduser(script) if script else recorded)  # noqa: PTH100, PTH111 - as in `_home`
    if not os.path.isfile(path):  # noqa: PTH113
        if script:
            raise ConfigError(f"the file {script!r} does not exist; pass the Python file of {origin['class']!r}")
        raise ConfigError(
            f"the job's class {origin['class']!r} was in {path}, which does not exist now (under `ray job submit` it "
            "was an unpacked copy); pass its file: curate retry OUTPUT --job PATH (or curate replay)"
        )
    return path


# Importing a file


def imported(path: str, module: str = "") -> ModuleType:
    """Imports a file, as the module that it was or as one named after it, beside what lies in its folder; as a part of
    its package, if it imports others of that by a relative import.

    Its code travels to workers from here. Raises ConfigError if it cannot be imported.
    """
    module = module or _in_package(Path(path))
    folder = folder_of(path, module)
    name = module if folder is not None else Path(path).stem
    if "." not in name or folder is None:
        # As Python does with a script: what a link leads to has its modules beside it.
        folder = os.path.dirname(os.path.realpath(path))  # noqa: PTH120
    # A file may be called like a module of Python's, or of a library: its folder is then behind theirs, so that who
    # imports that module, here or in a worker, does not get the file.
    taken = _is_taken(name)
    if folder not in sys.path:
        sys.path.insert(len(sys.path) if taken else 0, folder)
    names = (name, f"{name}_job")
    known = {one: sys.modules[one] for one in names if one in sys.modules}
    found = next((one for one in known.values() if _is_file(one, path)), None)
    if found is None:
        with _own_helpers(path, folder):
            by_name = bool(module) and "." in name and not known
            found = _executed(path, names[taken or bool(known)], by_name=by_name)
    shipping.ship(found, folder)
    return found


def _is_taken(name: str) -> bool:
    """Returns whether Python, curate or an installed library has a module of that name."""
    if name in sys.stdlib_module_names or name == jobs.__name__.partition(".")[0]:
        return True
    return "." not in name and PathFinder.find_spec(name, [str(one) for one in installed()]) is not None


def _in_package(file: Path) -> str:
    """Returns what a file with relative imports is called in its package; empty for one without, which is a script."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""  # whoever imports it says so
    level = max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)
    names: list[str] = []
    if level:
        folder, names = file.parent, [] if file.name == "__init__.py" else [file.stem]
        # A package may do without `__init__.py`, and goes up as far as the import does at least.
        while folder.name and (len(names) <= level or (folder / "__init__.py").is_file()):
            folder, names = folder.parent, [folder.name, *names]
    return ".".join(names)


@contextmanager
def _own_helpers(path: str, folder: str) -> Iterator[None]:
    """Imports the file of a job in its block. Raises ConfigError if it imports a module from beside it of which another
    job has one of that name: a process knows one, and what is sent to workers names it."""
    others = {
        name: module
        for name, module in list(sys.modules.items())
        if (home := os.path.dirname(_file_of(module))) in shipping.FOLDERS  # noqa: PTH120
        and home != folder
        and (Path(folder) / f"{name}.py").is_file()
        and module not in shipping.BY_VALUE
    }
    for name in others:
        del sys.modules[name]
    try:
        yield
        twice = sorted(name for name in others if name in sys.modules)
    finally:
        sys.modules.update(others)
    if twice:
        home = os.path.dirname(_file_of(others[twice[0]]))  # noqa: PTH120
        raise ConfigError(
            f"{path} imports {twice[0]!r} from beside it, and another job imported a module of that name from {home}: "
            "a process, and each of its workers, knows one. Rename one of them, or run each job by itself"
        )


def _file_of(module: ModuleType) -> str:
    # Not by `getattr`: what stands for a module may import something then.
    return str(getattr(module, "__dict__", {}).get("__file__") or "")


def _is_file(module: ModuleType, path: str) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and os.path.exists(file) and os.path.samefile(file, path)  # noqa: PTH110, PTH121


def _executed(path: str, name: str, *, by_name: bool) -> ModuleType:
    being_imported.append(path)
    try:
        if by_name:
            module = importlib.import_module(name)
            if _is_file(module, path):
                return module
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{path} is not a Python file; pass the Python file of a job")
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
        raise unguarded(f"{path} ends the program when it is imported") from error
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        being_imported.remove(path)
