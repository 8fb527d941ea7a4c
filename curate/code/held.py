"""The functions and classes in a value, at any depth: they decide what a callable gives, as its own code does.

A table of functions, an argument, a default and what a decorator closes over hold code which no statement names.
"""

from __future__ import annotations

import functools
import types
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from curate.code.closures import (
    BOUND,
    PLAIN,
    Unhashable,
    closed_over,
    fields_of,
    is_of_curates,
    owner_of,
    value_text,
)


def held(value: Any) -> Iterator[types.FunctionType | type]:
    """Yields the functions and classes in a value, and the classes of what is in it, each once: in lists, dictionaries,
    partials and methods, and what functions close over, wrap and have as defaults."""
    seen, queue = set[int](), [value]
    for one in queue:
        if type(one) in PLAIN or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, types.FunctionType | type):
            yield one
        elif type(one).__module__ != "builtins":
            queue.append(type(one))
        queue += _within(one)


def _within(value: Any) -> Iterator[Any]:
    if isinstance(value, types.FunctionType):
        yield from (inner for _, inner in closed_over(value))
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        owner = value.__self__ if isinstance(value.__self__, type) else type(value.__self__)
        yield value.__func__
        if not is_of_curates(owner):
            yield owner
            yield from getattr(owner_of(value), "__dict__", {}).values()
    elif isinstance(value, BOUND):
        yield owner_of(value)
    elif isinstance(value, dict):
        yield from value
        yield from value.values()
        if isinstance(value, defaultdict):
            yield value.default_factory
    elif isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, set | frozenset):  # whose own order is another one in each process
        yield from sorted((one for one in value if not _is_plain(one)), key=_order)
    elif isinstance(value, property):
        yield from (value.fget, value.fset)
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif not isinstance(value, type) and (fields := fields_of(value)) is not None:
        yield from fields.values()
    if not isinstance(value, type) and (wrapped := getattr(value, "__dict__", {}).get("__wrapped__")) is not None:
        yield wrapped


def _is_plain(value: Any) -> bool:
    return type(value) in PLAIN or (type(value) is tuple and all(type(one) in PLAIN for one in value))


def _order(value: Any) -> tuple[str, str, str]:
    """Returns what values in a set are sorted by: a name, and what else tells them apart in every process."""
    named = types.FunctionType | types.MethodType | BOUND | type
    try:
        text = value_text("", value)
    except (Unhashable, RecursionError):
        text = ""  # of such an object only its class counts
    return value.__qualname__ if isinstance(value, named) else "", type(value).__qualname__, text
