"""Finds the code in a value: the functions and classes that no statement names where they are called."""

from __future__ import annotations

import ast
import functools
import gc
import types
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

from curate.code.closures import (
    BOUND,
    PLAIN_IDS,
    Unhashable,
    closed_over,
    fields_of,
    is_of_curates,
    is_plain,
    owner_of,
    value_text,
)
from curate.code.kinds import is_a, items_in, own_dict, pairs_in
from curate.code.sources import Module, Sources
from curate.code.tables import args_of

CODE = types.FunctionType | types.BuiltinFunctionType | types.MethodType | types.ModuleType | type
_KEY: Any = type(functools.cmp_to_key(max))
PARTIALS = (functools.partial, functools.partialmethod)


def attributes_of(value: Any) -> dict[str, Any]:
    """Returns the attributes of an object, those in slots, too; asks the object for none that it computes."""
    slots = {
        name: one
        for base in type(value).__mro__
        for name, one in vars(base).items()
        if isinstance(one, types.MemberDescriptorType)
    }
    found = {}
    for name, one in slots.items():
        with suppress(AttributeError):  # not set
            found[name] = one.__get__(value)
    return {**found, **own_dict(value)}


def is_object(value: Any, sources: Sources) -> bool:
    """Returns whether a value is an object of a class of the user's."""
    return is_of_user(type(value), sources)


def is_of_user(cls: type, sources: Sources) -> bool:
    """Returns whether a class is one of the user's, and its objects are no code."""
    return cls.__module__ != "builtins" and not issubclass(cls, CODE) and sources.of(cls) is not None


def registered(table: Any, sources: Sources) -> tuple[list[Any], list[tuple[Module, ast.Call]]]:
    """Returns what of a table is code of the user's, or in a list or a tuple with some, and the calls that decorate it.

    Objects, and what is made of functions as rows come, may be a cache's.
    """
    pairs = pairs_in(table) if is_a(table, dict) else ((None, one) for one in items_in(table))
    put, by = [], list[tuple[Module, ast.Call]]()
    for pair in pairs:
        inner = items_in(pair[1]) if is_a(pair[1], list | tuple) else [pair[1]]
        code = [one for part in inner if is_a(part, types.FunctionType | type) for one in held(part, sources)]
        used = [sources.of(one) for one in code if not isinstance(one, types.ModuleType)]
        put += [pair] if any(used) else []
        decorators = [(one.module, by) for one in used if one for by in getattr(one.statement, "decorator_list", ())]
        by += [(module, node) for module, node in decorators if isinstance(node, ast.Call)]
    return put, by


def held(value: Any, sources: Sources) -> Iterator[types.FunctionType | types.ModuleType | type]:
    """Yields the functions, classes and modules in a value, and the classes of what is in it, each once: in lists,
    dictionaries, partials, methods and objects of the user's classes, and what functions close over, wrap and have as
    defaults."""
    seen, queue = set[int](), [value]
    for one in queue:
        if id(type(one)) in PLAIN_IDS or id(one) in seen or is_plain(one):
            continue
        seen.add(id(one))
        if any(type(one) is kind for kind in (dict, list, tuple)):  # of which there are millions
            parts = chain(one, one.values()) if type(one) is dict else one
            queue += [inner for inner in parts if id(type(inner)) not in PLAIN_IDS]
            continue
        if is_a(one, types.FunctionType | types.ModuleType | type):
            yield one
        elif type(one).__module__ != "builtins":
            queue.append(type(one))
        queue += _within(one)
        if not is_of_curates(type(one)) and is_object(one, sources):
            queue += attributes_of(one).values()


def _within(value: Any) -> Iterator[Any]:
    if is_a(value, types.FunctionType):
        yield from (inner for _, inner in closed_over(value))
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
    elif is_a(value, PARTIALS):
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
        yield from items_in(value)
        yield from (one for _, one in pairs_in(value))
        if is_a(value, defaultdict):
            yield value.default_factory
    elif is_a(value, list | tuple):
        yield from items_in(value)
    elif is_a(value, set | frozenset):  # whose own order is another one in each process
        yield from sorted((one for one in items_in(value) if not _is_plain(one)), key=_order)
    elif is_a(value, property):
        yield from (value.fget, value.fset)
    elif is_a(value, staticmethod | classmethod):
        yield value.__func__
    elif is_a(value, functools.cached_property):
        yield value.func
    elif (args := args_of(value)) is not None:
        yield from args
    elif type(value) is _KEY:
        yield from gc.get_referents(value)
    elif is_a(value, functools.singledispatchmethod):
        yield value.dispatcher
    elif not is_a(value, type) and (fields := fields_of(value)) is not None:
        yield from fields.values()
    if not is_a(value, type) and (wrapped := own_dict(value).get("__wrapped__")) is not None:
        yield wrapped


def _is_plain(value: Any) -> bool:
    return id(type(value)) in PLAIN_IDS or (type(value) is tuple and all(id(type(one)) in PLAIN_IDS for one in value))


def _order(value: Any) -> tuple[str, str, str]:
    """Returns what values in a set are sorted by: a name, and what else tells them apart in every process."""
    named = types.FunctionType | types.MethodType | BOUND | type
    try:
        text = value_text("", value)
    except (Unhashable, RecursionError):
        text = ""  # of such an object only its class counts
    return value.__qualname__ if is_a(value, named) else "", type(value).__qualname__, text
