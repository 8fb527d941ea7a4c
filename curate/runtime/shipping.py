"""Sends code to workers that they cannot import: that of a job that was loaded from a file by its path."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import cloudpickle

BY_VALUE: list[ModuleType] = []
"""Modules whose code travels with what refers to it, as that of `__main__` does: no worker needs their file."""
FOLDERS: list[str] = []
"""Folders in which workers look for modules too, where they have them: those beside the job's file."""


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
    """Returns bytes of which `pickle.loads` makes `value` in another process of this machine; functions of the program
    included.

    Whatever a module has that can be imported there is referred to by name. Raises what pickling raises.
    """
    for module in shipped():
        cloudpickle.register_pickle_by_value(module)
    data: bytes = cloudpickle.dumps(value)
    return data
