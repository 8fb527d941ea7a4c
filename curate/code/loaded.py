"""Tells whether a module is still what its file says: code that was imported runs, and what is on disk is recorded."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any

from curate.code.kinds import body_of
from curate.code.syntax import code_text


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


@functools.lru_cache(maxsize=64)
def _codes(path: str, data: bytes) -> dict[str, frozenset[str]]:
    """Returns what is compiled from a file, by qualified names, of which there may be several of one."""
    found: dict[str, set[str]] = {}
    queue = [compile(data, path, "exec", dont_inherit=True)]
    for code in queue:
        found.setdefault(code.co_qualname, set()).add(code_text(code))
        queue += [one for one in code.co_consts if isinstance(one, CodeType)]
    return {name: frozenset(texts) for name, texts in found.items()}


_INNER: tuple[tuple[type, tuple[str, ...]], ...] = (
    (staticmethod, ("__func__",)),
    (classmethod, ("__func__",)),
    (property, ("fget", "fset", "fdel")),
    (functools.cached_property, ("func",)),
    (functools.partial, ("func",)),
    (functools.partialmethod, ("func",)),
    (functools.singledispatchmethod, ("dispatcher",)),
    (functools._lru_cache_wrapper, ("__wrapped__",)),
)
"""Where Python's own wrappers have the functions in them."""


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Yields the functions of a module and of its classes, and those in what Python wraps them in, and that they close
    over, as decorators do."""
    queue: list[Any] = list(vars(module).values())
    seen = set[int]()
    for value in queue:
        # By type: what stands for an object of another library may do anything when it is asked for an attribute.
        kind = type(value)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if kind is FunctionType:
            yield value
            queue += vars(value).values()
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # assigned later, if ever
                    queue.append(cell.cell_contents)
        elif kind is MappingProxyType:  # what `singledispatch` chooses from
            queue += value.values()
        elif issubclass(kind, type):
            body = body_of(value)
            queue += body.values() if body.get("__module__") == module.__name__ else ()
        else:
            queue += [getattr(value, name) for one, names in _INNER if kind is one for name in names]
