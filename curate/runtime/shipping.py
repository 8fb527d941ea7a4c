"""Sends code to workers that they cannot import: that of a job that was loaded from a file by its path."""

from __future__ import annotations

import copyreg
import functools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from curate.around import contextmanager
from curate.code.closures import closed_over
from curate.code.names import globals_read
from curate.errors import ConfigError

BY_VALUE: list[ModuleType] = []
"""Modules whose code travels with what refers to it, as that of `__main__` does: no worker needs their file."""
FOLDERS: list[str] = []
"""Folders in which workers look for modules too, where they have them: those beside the job's file."""
_OF_NO_WORKER = frozenset({"PYTEST_CURRENT_TEST", "COLUMNS", "LINES", "_"})
"""Variables that change by themselves, and that no worker looks at."""


def environ() -> dict[str, str]:
    """Returns the environment of this process that workers get."""
    return {name: value for name, value in os.environ.items() if name not in _OF_NO_WORKER}


def interpreter(program: str) -> list[str]:
    """Returns the command that runs a program in an interpreter like this one: optimized, in UTF-8, with its warnings,
    and with the same folders of modules, of which Python ignores what is no text."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", f"import sys; sys.path[:] = {folders()!r}; {program}"]


def folders() -> list[str]:
    """Returns where this process looks for modules, and workers."""
    path = [one for one in sys.path if isinstance(one, str)]
    return [*path, *(one for one in FOLDERS if one not in path)]


def shipped() -> list[ModuleType]:
    """Returns the modules whose code travels: those that are still what their name stands for in this process."""
    return [module for module in BY_VALUE if sys.modules.get(module.__name__) is module]


def ship(module: ModuleType, folder: str) -> None:
    """Makes workers get the code of `module` from here, and what it imports from `folder`, as if it were the program.

    For backends that are started later.
    """
    if module not in BY_VALUE:
        BY_VALUE.append(module)
    if folder not in FOLDERS:
        FOLDERS.append(folder)


def pickle_value(value: Any) -> bytes:
    """Returns bytes of which `pickle.loads` makes `value` in another process here; with functions of the program.

    Whatever a module has that can be imported there is referred to by name. Raises what pickling raises.
    """
    _register_shipped()
    data: bytes = cloudpickle.dumps(value)
    return data


def _register_shipped() -> None:
    for module in shipped():
        cloudpickle.register_pickle_by_value(module)


def _reduced(cached: Any) -> str | tuple[Any, ...]:
    """Returns how what `functools.cache` or `lru_cache` made is pickled: by its name where a worker finds it there, as
    Python does, else with its function. Which travels, but the name of its wrapper leads nowhere in a worker."""
    name = str(cached.__qualname__)
    module = sys.modules.get(cached.__module__)
    if module is not None and module.__name__ != "__main__" and module not in shipped():
        try:
            if attrgetter(name)(module) is cached:
                return name
        except AttributeError:
            pass
    return _cached_again, (cached.__wrapped__, cached.cache_parameters())


def _cached_again(function: Callable[..., Any], how: dict[str, Any]) -> Any:
    return functools.lru_cache(**how)(function)


copyreg.pickle(functools._lru_cache_wrapper, _reduced)


def refuse_unsendable(who: str, value: Any) -> None:
    """Raises ConfigError if a value cannot be sent to other processes, with the variables of the user's functions that
    hold what cannot: a lock, an open file, a connection."""
    if (failed := _fault(value)) is None:
        return
    error, functions = failed
    names = dict.fromkeys(name for function in functions for name in _unsendable_names(function))
    held = f" (it is {', '.join(names)})" if names else ""
    raise ConfigError(
        f"{who} cannot be sent to worker processes: {error}{held}; make that where it is used: in the function, in the "
        "setup() of a job, in the __init__ of a class that is passed in place of a function; or run all in this "
        "process, with the backend inline"
    ) from error


@contextmanager
def naming_unsendable(who: str, values: Sequence[Any]) -> Iterator[None]:
    """Is around what sends values: raises as `refuse_unsendable` does if that fails, which is looked for only then, as
    they may be large."""
    try:
        yield
    except (TypeError, AttributeError, pickle.PicklingError):
        for value in values:
            refuse_unsendable(who, value)
        raise


def _fault(value: Any) -> tuple[Exception, list[FunctionType]] | None:
    """Returns why a value cannot be pickled, and the functions whose code would have travelled; None if it can be."""
    _register_shipped()
    pickler = _Pickler()
    try:
        pickler.dump(value)
    except Exception as error:  # noqa: BLE001 - whatever an object of the user's raises when it is asked what it is
        return error, pickler.functions
    return None


def _unsendable_names(function: FunctionType) -> Iterator[str]:
    known = function.__globals__
    used = {name: known[name] for name in globals_read([function.__code__]) if name in known}
    for name, value in (used | dict(closed_over(function))).items():
        if not isinstance(value, FunctionType | type | ModuleType) and _fault(value) is not None:
            yield f"{name} in {function.__qualname__}"


class _Nowhere:
    """A file that keeps nothing: what is sent may take as much memory as there is."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes  # which may be a buffer: that of a large array


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Notes the functions whose code travels."""

    def __init__(self) -> None:
        super().__init__(_Nowhere(), protocol=5)
        self.functions: list[FunctionType] = []

    def reducer_override(self, obj: Any) -> Any:
        """Returns how an object is pickled, as cloudpickle does."""
        found = super().reducer_override(obj)
        if isinstance(obj, FunctionType) and found is not NotImplemented:
            self.functions.append(obj)
        return found
