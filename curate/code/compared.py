"""What of the values of variables can be compared: data, and of objects of the user's classes what these hold."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import types
from collections import ChainMap, UserDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from curate.code.closures import BOUND, PLAIN, Unhashable, fields_of, owner_of, value_text
from curate.code.kinds import is_a, own_dict
from curate.code.names import CHANGING
from curate.code.sources import Sources

CODE = types.FunctionType | types.BuiltinFunctionType | types.MethodType | types.ModuleType | type
TABLES = (dict, list, tuple, set, frozenset)
_VIEWS = (types.MappingProxyType, UserDict, ChainMap)
"""Mappings that are made of dictionaries."""
_LONG = 200
"""Of what is in another value, longer texts are hashed, in characters."""
_AS_MADE = ("__init__", "__post_init__", "__setstate__")
"""Methods that set what an object is made with."""


def is_data(value: Any) -> bool:
    """Returns whether a value can be compared, and is no code: statements tell that."""
    if type(value) in PLAIN:
        return True
    try:
        if is_a(value, dict):
            return all(map(is_data, value)) and all(map(is_data, value.values()))
        if is_a(value, list | tuple | set | frozenset):
            return all(map(is_data, value))
        if is_a(value, BOUND):
            owner = owner_of(value)
            return not CHANGING.fullmatch(value.__name__) and owner is not None and is_data(owner)
        if is_a(value, CODE | Mapping | deque):
            # Another mapping may be the environment, or a database; a queue is there to be filled.
            return is_a(value, _VIEWS) and all(map(is_data, _viewed(value)))
        # Of a record what is asked of it counts.
        return fields_of(value) is None and bool(value_text("", value))
    except (Unhashable, RecursionError):
        return False


def _viewed(value: Any) -> list[Any]:
    """Returns what a mapping is made of."""
    return list(value.maps) if is_a(value, ChainMap) else [dict(value)]


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
    return _is_of_user(type(value), sources)


def has_objects(value: Any, sources: Sources) -> bool:
    """Returns whether a value is a table with objects of the user's classes in it."""
    if not is_a(value, TABLES):
        return False
    inner = (*value, *value.values()) if is_a(value, dict) else value
    return any(_is_of_user(cls, sources) for cls in {*map(type, inner)})


def compared(value: Any, sources: Sources) -> Any:
    """Returns a value with what can be compared of it: of an object of the user's, what it holds and its methods do not
    change; of other objects, which class they are of. What is in a table may be asked for anything, under any name.

    Each object is looked at once, as many ways as lead to it: those between a few that all know each other are beyond
    counting. Of what is in it, a long text is its digest.
    """
    seen: dict[int, Any] = {id(value): "itself"}

    def inner(one: Any) -> Any:
        if type(one) in PLAIN:
            return one
        if id(one) not in seen:
            seen[id(one)] = "itself"
            told = _opened(one, sources, inner)
            text = value_text("", told)
            seen[id(one)] = told if len(text) <= _LONG else hashlib.sha256(text.encode()).hexdigest()[:16]
        return seen[id(one)]

    return _opened(value, sources, inner)


def _opened(value: Any, sources: Sources, inner: Callable[[Any], Any]) -> Any:
    """Returns what can be compared of a value, with `inner` of what is in it."""
    if is_data(value):
        return value
    if is_a(value, dict):
        return [(inner(key), inner(one)) for key, one in value.items()]
    if is_a(value, list | tuple):
        return [inner(one) for one in value]
    if is_a(value, set | frozenset):
        # In each process it has an order of its own. Of objects that know each other, the first one is told whole.
        ordered = sorted(value, key=lambda one: value_text("", _opened(one, sources, _outline)))
        return sorted(value_text("", inner(one)) for one in ordered)
    cls = type(value)
    changed = {name for name, how in _of_self(cls, sources) if how != "asked"}
    has = attributes_of(value) if is_object(value, sources) else fields_of(value) or {}
    kept = {name: one for name, one in has.items() if name not in changed and not _is_cached(cls, name)}
    return cls.__qualname__, {name: inner(one) for name, one in kept.items()}


def _outline(value: Any) -> Any:
    return value if is_data(value) else type(value).__qualname__


def asked_of_self(cls: type, sources: Sources) -> dict[str, None]:
    """Returns the attributes that a class of the user's asks of its objects, and sets only as they are made."""
    of_self = list(_of_self(cls, sources))
    changed = {name for name, how in of_self if how == "set"}
    return {name: None for name, how in of_self if how == "asked" and name not in changed}


def _of_self(cls: type, sources: Sources) -> Iterator[tuple[str, str]]:
    """Yields the attributes that the methods of a user's class use of their objects, each with how: it is `asked`,
    `set` after these were made, or `filled`, as a cache is."""
    bodies = [used.statement for base in cls.__mro__ if (used := sources.of(base)) is not None]
    methods = [one for body in bodies if isinstance(body, ast.ClassDef) for one in body.body]
    for method in (one for one in methods if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)):
        for one in ast.walk(method):
            name, inner = _self_name(one), _self_name(getattr(one, "value", None))
            if name and _is_read(one):
                yield name, "asked"
            elif name and method.name not in _AS_MADE:
                yield name, "set"
            if inner and method.name not in _AS_MADE and (not _is_read(one) or _calls_a_change(one)):
                yield inner, "filled"


def _is_read(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", ast.Load()), ast.Load)


def _calls_a_change(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and CHANGING.fullmatch(node.attr) is not None


def _self_name(node: Any) -> str:
    """Returns the `name` of `self.name`; empty for another expression."""
    match node:
        case ast.Attribute(ast.Name("self"), str(name)):
            return name
    return ""


def _is_of_user(cls: type, sources: Sources) -> bool:
    return cls.__module__ != "builtins" and not issubclass(cls, CODE) and sources.of(cls) is not None


def _is_cached(cls: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(cls, name, None), functools.cached_property)
