"""Tells whether a module is still what its file says: code that was imported runs, and what is on disk is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any

from curate.code.closures import code_text


def changed_since_import(module: ModuleType, path: str, data: bytes) -> str:
    """Returns the name of a function of a module that its file, which has this `data` now, does not have so any more;
    empty if there is none, or if it was not compiled from the file as it is, as by pytest.

    Comments, docstrings and the order of functions do not count, nor functions that are only in the file.
    """
    if type(getattr(module, "__loader__", None)) is not SourceFileLoader:
        return ""
    try:
        known = _codes(path, data)
    except (SyntaxError, ValueError):
        return ""
    for function in _functions(module):
        code = function.__code__
        if code.co_filename == path and code_text(code) not in known.get(code.co_qualname, ()):
            return code.co_qualname
    return ""


@lru_cache(maxsize=64)
def _codes(path: str, data: bytes) -> dict[str, frozenset[str]]:
    """Returns what is compiled from a file, by qualified names, of which there may be several of one."""
    found: dict[str, set[str]] = {}
    queue = [compile(data, path, "exec", dont_inherit=True)]
    for code in queue:
        found.setdefault(code.co_qualname, set()).add(code_text(code))
        queue += [one for one in code.co_consts if isinstance(one, CodeType)]
    return {name: frozenset(texts) for name, texts in found.items()}


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Yields the functions of a module and of its classes, and those that they close over, as decorators do."""
    queue: list[Any] = []
    for value in list(vars(module).values()):
        # By type: what stands for an object of another library may do anything when it is asked for an attribute.
        if issubclass(type(value), type) and value.__module__ == module.__name__:
            queue += list(vars(value).values())
        elif type(value) is FunctionType and value.__module__ == module.__name__:
            queue.append(value)
    seen = set[int]()
    for value in queue:
        if type(value) in (staticmethod, classmethod):
            value = value.__func__
        elif type(value) is property:
            value = value.fget
        if type(value) is FunctionType and id(value) not in seen:
            seen.add(id(value))
            yield value
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # assigned later, if ever
                    queue.append(cell.cell_contents)
