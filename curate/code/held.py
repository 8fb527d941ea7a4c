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
from curate.code.kinds import is_a, own_dict


def held(value: Any) -> Iterator[types.FunctionType | type]:
    """Yields the functions and classes in a value, and the classes of what is in it, each once: in lists, dictionaries,
    partials and methods, and what functions close over, wrap and have as defaults."""
    seen, queue = set[int](), [value]
    for one in queue:
        if type(one) in PLAIN or id(one) in seen:
            continue
        seen.add(id(one))
        if is_a(one, types.FunctionType | type):
            yield one
        elif type(one).__module__ != "builtins":
            queue.append(type(one))
        queue += _within(one)


def _within(value: Any) -> Iterator[Any]:
    if is_a(value, types.FunctionType):
        yield from (inner for _, inner in closed_over(value))
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
    elif is_a(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif is_a(value, types.MethodType):
        owner = value.__self__ if is_a(value.__self__, type) else type(value.__self__)
        yield value.__func__
        if not is_of_curates(owner):
            yield owner
            yield from own_dict(owner_of(value)).values()
    elif is_a(value, BOUND):
        yield owner_of(value)
    elif is_a(value, dict):
        yield from value
        yield from value.values()
        if is_a(value, defaultdict):
            yield value.default_factory
    elif is_a(value, list | tuple):
        yield from value
    elif is_a(value, set | frozenset):  # whose own order is another one in each process
        yield from sorted((one for one in value if not _is_plain(one)), key=_order)
    elif is_a(value, property):
        yield from (value.fget, value.fset)
    elif is_a(value, staticmethod | classmethod):
        yield value.__func__
    elif not is_a(value, type) and (fields := fields_of(value)) is not None:
        yield from fields.values()
    if not is_a(value, type) and (wrapped := own_dict(value).get("__wrapped__")) is not None:
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
    return value.__qualname__ if is_a(value, named) else "", type(value).__qualname__, text
