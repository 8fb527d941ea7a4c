"""What a value is, and has, without a word of its own: a proxy may load what it stands for when it is asked, or raise.

`isinstance` asks a value for its `__class__` where its type is another one, and `getattr` for whatever is not there.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import types
from collections import OrderedDict, deque
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any, get_args

from curate.imports import imported

_HAS_DICT = (types.GetSetDescriptorType, types.MemberDescriptorType)
_WITH_FUNCTION = (staticmethod, classmethod, types.MethodType)
_HOLD: tuple[Any, ...] = (OrderedDict, dict, list, tuple, set, frozenset, deque)
_DECIMAL_BITS = 14_000
"""Bits of numbers up to which Python makes decimals of them, however it is set up."""
_FIELDS = ("__dataclass_fields__", "__pydantic_fields__")
_NO_DEFAULT = ("_MISSING_TYPE", "_Nothing", "PydanticUndefinedType")
"""Types of what stands for a default that is not there."""
_PROGRAMS: dict[int, tuple[types.ModuleType, dict[str, Any]]] = {}
"""What stands for programs that are no modules, by the ids of their names, which are kept."""
_ABOVE = 3
"""Folders above that of a file up to which a path is told from there."""
Kinds = type | types.UnionType | tuple[Any, ...]


def is_a(value: Any, kinds: Kinds) -> bool:
    """Returns whether a value is of one of some types, whatever it says itself.

    >>> from unittest import mock
    >>> is_a({}, dict | list), is_a(mock.Mock(spec=dict), dict)
    (True, False)
    """
    try:
        return issubclass(type(value), kinds)
    except Exception:  # noqa: BLE001 - what a metaclass of the user's raises, which abstract classes compare with others
        several = kinds if isinstance(kinds, tuple) else get_args(kinds) or (kinds,)
        return any(base is one for base in type(value).__mro__ for one in several)


def name_of(cls: type) -> str:
    """Returns the name of a class, whatever its own class says.

    >>> name_of(dict)
    'dict'
    """
    return str(type.__dict__["__name__"].__get__(cls))


def body_of(cls: type) -> dict[str, Any]:
    """Returns what a class has, by name, whatever its own class says.

    >>> body_of(dict)["get"] is vars(dict)["get"]
    True
    """
    return dict(type.__dict__["__dict__"].__get__(cls))


def items_in(value: Any) -> Iterator[Any]:
    """Yields what a list, a set, a queue or the like holds, and the keys of a dictionary; of a class that is derived
    from one, too, whatever it says itself.

    >>> class Odd(list):
    ...     def __iter__(self): raise ValueError
    >>> list(items_in(Odd([1, 2])))
    [1, 2]
    """
    if any(type(value) is one for one in _HOLD):
        return iter(value)
    kind: Any = next(kind for kind in _HOLD if issubclass(type(value), kind))
    return iter(kind.__iter__(value))


def pairs_in(value: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Yields the keys of a dictionary, with what it has for them, whatever a class says that is derived from it."""
    kind = OrderedDict if issubclass(type(value), OrderedDict) else dict
    return iter(kind.items(value))


def is_long(value: Any) -> bool:
    """Returns whether a value is a number of which Python may refuse to make decimals."""
    return issubclass(type(value), int) and int.bit_length(value) > _DECIMAL_BITS


def shown(value: Any) -> str:
    """Returns the text of a number, a text or bytes; of a class that writes its own, that of what it is derived from;
    of a number of more than 4,000 digits, which Python refuses to write as decimals, the hexadecimal ones.

    >>> class Odd(int):
    ...     def __repr__(self): raise ValueError
    >>> shown(Odd(1)), shown("a")
    ('1', "'a'")
    """
    if is_long(value):
        return hex(int(value))
    kinds: tuple[Any, ...] = type(value).__mro__
    return str(next(one for one in kinds if not isinstance(one.__repr__, types.FunctionType)).__repr__(value))


def own_dict(value: Any) -> dict[str, Any]:
    """Returns the dictionary that a value has its attributes in; an empty one of a value without."""
    if issubclass(type(value), threading.local):  # of this thread
        local: dict[str, Any] = threading.local.__getattribute__(value, "__dict__")
        return local
    found = (vars(base).get("__dict__") for base in type(value).__mro__)
    known = next((one for one in found if type(one) in _HAS_DICT), None)
    return {} if known is None else known.__get__(value)


def defaults_of(cls: type) -> dict[str, Any]:
    """Returns the defaults of the fields that a record has beside those of its bases: of a named tuple, a dataclass, a
    class of attrs or pydantic, which may keep them elsewhere than in the class; none of another class. Where a function
    makes one that closes over others, this.

    >>> import collections
    >>> defaults_of(collections.namedtuple("P", "a b", defaults=[1]))
    {'b': 1}
    """
    has = own_dict(cls) if issubclass(type(cls), type) else {}
    named = has.get("_field_defaults")
    if type(named) is dict:
        return named
    fields: dict[str, Any] = next((has[one] for one in _FIELDS if type(has.get(one)) is dict), {})
    if isinstance(attributes := has.get("__attrs_attrs__"), tuple):
        fields = {one.name: one for one in attributes}
    found, above = dict[str, Any](), dict[str, Any]()
    for name, field in fields.items():
        given = getattr(field, "default", None)
        # A dataclass closes over what makes its defaults.
        making = getattr(given, "factory", None) or ("__pydantic_fields__" in has and field.default_factory)
        if getattr(making, "__closure__", None) is not None:
            found[name] = making
        elif not making and type(given).__name__ not in _NO_DEFAULT:
            found[name] = given
    for base in cls.__mro__[:0:-1] if found else ():
        above |= defaults_of(base)
    return {name: one for name, one in found.items() if above.get(name, found) is not one}


def checks_of(cls: type) -> dict[str, list[Any]]:
    """Returns what the fields of a class of attrs or pydantic are converted and checked by; none of another class."""
    has = own_dict(cls) if issubclass(type(cls), type) else {}
    attributes, fields = has.get("__attrs_attrs__"), has.get("__pydantic_fields__")
    found = {name: list(one.metadata) for name, one in fields.items()} if type(fields) is dict else {}
    if isinstance(attributes, tuple):
        found = {one.name: [by for by in (one.converter, one.validator) if by] for one in attributes}
    return {name: one for name, one in found.items() if one}


def loaded(name: str) -> types.ModuleType | None:
    """Returns a module that this process has imported. What cProfile or `trace` runs calls itself `__main__`, and is no
    module: one with its names stands for it.

    >>> loaded("sys") is sys, loaded("not.there")
    (True, None)
    """
    known = sys.modules.get(name)
    if name != "__main__":
        return known
    frame, found = sys._current_frames().get(threading.main_thread().ident or 0), list[dict[str, Any]]()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == name:
            found.append(frame.f_globals)
        frame = frame.f_back
    has = found[0] if found else {}
    if known is None or has is vars(known) or "__file__" not in has or not any(one is vars(known) for one in found):
        return known
    program, _ = _PROGRAMS.setdefault(id(has), (types.ModuleType(name), has))
    program.__dict__.update(has)
    return program


def functions_in(value: Any) -> Iterator[types.FunctionType]:
    """Yields the functions that an attribute of a class is made of; itself, if it is one.

    >>> [one.__name__ for one in functions_in(property(lambda self: 1))]
    ['<lambda>']
    """
    if is_a(value, property):
        candidates = [value.fget, value.fset]
    elif is_a(value, functools.cached_property):
        candidates = [value.func]
    else:
        candidates = [value.__func__ if is_a(value, _WITH_FUNCTION) else value]
    yield from (one for one in candidates if is_a(one, types.FunctionType))


def defaults_of_function(function: Any) -> dict[str, Any]:
    """Returns the defaults of a function, by the names of its arguments."""
    code, given = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    return {**dict(zip(names[::-1], given[::-1], strict=False)), **(function.__kwdefaults__ or {})}


def is_called(imported: str, value: Any) -> bool:
    """Returns whether a value is what is imported by a name in full: a module, or what one has."""
    above, _, name = imported.rpartition(".")
    return loaded(imported) is value or ((known := loaded(above)) is not None and vars(known).get(name) is value)


def is_path(value: Any) -> bool:
    return is_a(value, PurePath) or (is_a(value, str) and value.startswith("/") and "\n" not in value)


def told_from(value: Any, folder: Path) -> Any:
    """Returns a path that lies in a folder, or not far above it, as it is called from there; another value as it is."""
    is_path = is_a(value, PurePath) and type(value).__module__.partition(".")[0] == "pathlib" and value.is_absolute()
    if not (is_path or (type(value) is str and value.startswith("/") and "\n" not in value)):
        return value
    at = os.path.relpath(value, folder)
    is_near = at.split("/").count("..") <= min(_ABOVE, len(folder.parts) - 2)
    return type(value)(at) if is_near else value


def is_masked(value: Any) -> bool:
    """Returns whether a value is an array of numpy with a mask; does not import what makes these, for 6 ms."""
    ma = imported("numpy.ma")
    return ma is not None and is_a(value, ma.MaskedArray)
