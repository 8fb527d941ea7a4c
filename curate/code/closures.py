"""The identity of values that code captures, and of code without source text.

A value is hashed by its content, never by its address; a value for which that is impossible raises `Unhashable`.
"""

from __future__ import annotations

import array
import copyreg
import dataclasses
import datetime as dt
import enum
import functools
import hashlib
import itertools
import linecache
import operator
import os
import random
import re
import types
import uuid
from collections import UserList, UserString, defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from curate import jobs
from curate.code.kinds import is_a, is_long, is_masked, items_in, loaded, name_of, own_dict, pairs_in, shown, told_from
from curate.code.names import names_in
from curate.code.started import BEGUN, as_started
from curate.code.syntax import canonical, code_text, definition
from curate.code.tables import parts_of, table_text

PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""Types of which tables of millions are made: looked for first."""
PLAIN_IDS = frozenset(map(id, PLAIN))
"""Not every class can be hashed."""
_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_MADE = (deque, array.array, bytearray, slice, Fraction, *_GETTERS)
"""Types whose values pickle tells whole."""
_PARSED = ("argparse", "Namespace")
_DICT_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
BOUND = types.BuiltinFunctionType | types.MethodWrapperType
"""Types of what is written in C: functions, and methods such as the `get` of a dictionary."""
_DISPATCHER = functools.singledispatch(len).__code__  # type: ignore[attr-defined]
"""The code of each function that chooses another one by a type."""


_PLACED = re.compile(r"\b(__file__|(get)?cwd\b)")
"""What code names that asks where it lies."""
_WITH_STATE: tuple[Any, ...] = (
    *(int, float, complex, str, bytes, list, tuple, Mapping, set, frozenset, dt.date, dt.time, dt.timedelta, Decimal),
    *(range, uuid.UUID, PurePath, np.ndarray, np.generic, functools.partial, types.ModuleType),
)
"""Kinds that tell nothing of what else a value has, as one of a class that is derived from them."""
_SHARED = frozenset(map(id, (list, tuple, dict)))
"""Types of what may be in a value at many places, of which each may be in others."""
_LONGEST = 1 << 20
"""Longer texts, in characters, are hashed where they come again in one value."""


class Seen:
    """What a look at a value has been at: the code that it is in, and the texts of what it has seen there."""

    def __init__(
        self, within: frozenset[int] = frozenset(), folder: Path | None = None, asked: frozenset[str] = frozenset()
    ) -> None:
        """`folder`: where the program lies, if it asks for that; of what is near it, only where from there counts.
        `asked`: the names that the functions which it is in look up."""
        self.within = within
        self.folder = folder
        self.asked = asked
        self.texts: dict[int, tuple[Any, str]] = {}
        """By id; the values are kept, so that no other one can come to have it."""

    def inside(self, code: Any) -> Seen:
        """Returns what a look at the inside of a function or a class begins with."""
        names = names_in(code.__code__) if is_a(code, types.FunctionType) else ()
        return Seen(self.within | {id(code)}, self.folder, self.asked.union(names))


class Unhashable(Exception):
    """The value of `name` has no text that stands for it."""

    def __init__(self, name: str, value: Any, what: str = "") -> None:
        super().__init__(f"{name} is {what or f'a {name_of(type(value))}'}")
        self.value = value


def function_text(function: Any, seen: Seen | None = None) -> str:
    """Returns a function as text: its code, its defaults, and the values that it closes over.

    Where its module has no file, or is none that can be found by its name (`runpy`, `exec`), also the globals that it
    uses: nothing else tells them. Raises Unhashable.
    """
    seen = seen or Seen(folder=placed_in(function))
    if id(function) in seen.within:
        return "itself"
    seen = seen.inside(function)
    if function.__code__ is _DISPATCHER:
        # What it closes over is a cache of what it has chosen.
        return value_text(f"what {function.__name__} chooses from", dict(function.registry), seen)
    parts = [_source_text(function) or code_text(function.__code__)]
    parts += [f"default {text}" for text in _defaults(function, seen)]
    for name, value in closed_over(function):
        text = value_text(name, as_started(function, name, value), seen)
        parts.append(f"{name} = {BEGUN.told(function, name, text)}")
    if "<locals>" in function.__qualname__:  # of others, variables are looked at
        for name in sorted(seen.asked.intersection(own_dict(function))):
            with suppress(Unhashable):  # which another function may ask something else for
                parts.append(
                    f".{name} = {BEGUN.told(function, name, value_text(name, own_dict(function)[name], seen))}"
                )
    if "__file__" not in function.__globals__ or is_of_no_file(module_of(function)):
        for name, value in _globals_used(function):
            parts.append(f"{name} = {BEGUN.told(function.__globals__, name, _lenient(name, value, seen))}")
    return "\n".join(parts)


def placed_in(function: types.FunctionType) -> Path | None:
    """Returns the folder of a function's file, if that or the program asks where it lies: what a function is given is
    computed there. None of others, of which each path is meant as it is."""
    path = function.__code__.co_filename
    files = {path, str(getattr(loaded("__main__"), "__file__", path))}
    asks = any(_PLACED.search(line) for file in files for line in linecache.getlines(file))
    return Path(path).parent if asks and Path(path).is_absolute() else None


def module_of(function: types.FunctionType) -> str | None:
    """Returns the name of the module that a function lies in; `functools.wraps` copies that of another one."""
    return function.__globals__.get("__name__")


def is_of_no_file(module: str | None) -> bool:
    """Returns whether no file is known to be the module of a name."""
    return getattr(loaded(module or ""), "__file__", None) is None


def value_text(name: str, value: Any, seen: Seen | None = None) -> str:
    """Returns a text that stands for the value, the same in every process. Raises Unhashable."""
    if id(type(value)) in PLAIN_IDS:
        if seen is not None and seen.folder is not None and type(value) is str:
            value = told_from(value, seen.folder)
        return f"{type(value).__name__} {hex(value) if type(value) is int and is_long(value) else repr(value)}"
    seen = seen or Seen()
    if id(type(value)) not in _SHARED:
        try:
            return _value_text(name, value, seen)
        except (Unhashable, RecursionError):
            raise
        except Exception as error:  # what a class of the user's, or of a library, raises when it is asked
            raise Unhashable(name, value, f"a {name_of(type(value))} that raises {name_of(type(error))}") from error
    if is_plain(value):
        return _value_text(name, value, seen)
    if id(value) in seen.texts:
        text = seen.texts[id(value)][1]
        return text if len(text) <= _LONGEST else f"{type(value).__name__} {hashlib.sha256(text.encode()).hexdigest()}"
    text = _value_text(name, value, seen)
    seen.texts[id(value)] = value, text
    return text


def is_plain(value: Any) -> bool:
    """Returns whether a value is of Python's own types, and all that it holds is neither a table nor an object."""
    kind = type(value)
    if kind is dict:
        return PLAIN_IDS.issuperset(map(id, map(type, itertools.chain(value, value.values()))))
    return id(kind) in PLAIN_IDS or (id(kind) in _SHARED and PLAIN_IDS.issuperset(map(id, map(type, value))))


def _value_text(name: str, value: Any, seen: Seen) -> str:
    text = _kind_text(name, value, seen)
    if id(type(value)) in _SHARED or is_a(value, enum.Enum) or is_masked(value) or not is_a(value, _WITH_STATE):
        return text
    return f"{text}{_state(name, value, seen)}"


def _kind_text(name: str, value: Any, seen: Seen) -> str:
    # Those that millions are of are told before all others.
    if type(value) is list or type(value) is tuple:
        return f"{type(value).__name__}({', '.join([value_text(name, item, seen) for item in value])})"
    if type(value) is dict and not is_environment(value):
        pairs = [f"{value_text(name, key, seen)}: {value_text(name, item, seen)}" for key, item in value.items()]
        return f"dict({', '.join(pairs)})"
    if is_a(value, enum.Enum):
        has = own_dict(value).get("_value_")
        own = f" {value_text(name, has, seen)}" if id(type(has)) in PLAIN_IDS else ""
        return f"{type(value).__qualname__}.{value.name}{own}"
    if is_a(value, int | float | complex | str | bytes) or value is Ellipsis:
        return f"{type(value).__name__} {shown(value)}"
    if is_a(value, list | tuple):
        items = ", ".join(value_text(name, item, seen) for item in items_in(value))
        return f"{type(value).__name__}({items})"
    if (settings := settings_of(value)) is not None:
        return f"{type(value).__name__} {value_text(name, settings, seen)}"
    if is_a(value, Mapping):
        if is_environment(value):
            raise Unhashable(name, value, "the whole environment (take the variables that are needed out of it)")
        is_dict = is_a(value, dict)
        has = [*(pairs_in(value) if is_dict else itertools.islice(value.items(), len(value) + 1))]
        if not is_dict and len(has) > len(value):
            raise Unhashable(name, value, f"a {type(value).__name__} that holds more than its length says")
        pairs = [f"{value_text(name, key, seen)}: {value_text(name, item, seen)}" for key, item in has]
        return f"{type(value).__name__}({', '.join(pairs)})"
    if is_a(value, set | frozenset):
        return f"set({', '.join(sorted(value_text(name, item, seen) for item in items_in(value)))})"
    if is_a(value, _DICT_VIEWS):
        return f"{type(value).__name__} {value_text(name, list(value), seen)}"
    if is_a(value, re.Pattern):
        return f"pattern {value.pattern!r} {value.flags}"
    if is_a(value, dt.timezone):
        return repr(value)
    if is_a(value, ZoneInfo) and value.key is not None:
        return f"ZoneInfo {value.key}"
    if is_a(value, dt.datetime | dt.time) and isinstance(value.tzinfo, ZoneInfo):
        return f"{type(value).__name__} {value} {value_text(name, value.tzinfo)}"
    if is_a(value, dt.datetime | dt.time) and value.fold:
        return f"{type(value).__name__} {value} again"
    if is_a(value, dt.date | dt.time | dt.timedelta | Decimal | range | uuid.UUID):
        return f"{type(value).__name__} {value}"
    if is_masked(value):
        # What lies under the mask is no value.
        told = [value.filled(value.fill_value), np.ma.getmaskarray(value), value.fill_value]
        return f"masked {', '.join(value_text(name, one, seen) for one in told)}"
    if is_a(value, np.ndarray) and not value.dtype.hasobject:
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"ndarray {value.dtype.str if value.dtype.names is None else value.dtype} {value.shape} {digest[:16]}"
    if is_a(value, np.ndarray):
        text = value_text(name, value.tolist(), seen)
        return f"ndarray {value.dtype} {value.shape} {hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if is_a(value, pa.Scalar):
        return f"{type(value).__name__} {value.type} {value_text(name, value.as_py(), seen)}"
    if is_a(value, PurePath) and seen.folder is not None:
        value = told_from(value, seen.folder)
    if is_a(value, PurePath | pa.DataType | pa.Field | pa.Schema | np.generic | np.dtype):
        return f"{type(value).__name__} {value!s}{(is_a(value, pa.Field) and value.metadata) or ''}"
    if is_a(value, types.ModuleType):
        return f"module {value.__name__}"
    if is_a(value, functools.partial):
        bound = value_text(name, [value.args, value.keywords], seen)
        return f"partial {value_text(name, value.func, seen)} {bound}"
    if is_a(value, types.MethodType):
        text = value_text(name, value.__func__, seen)
        if is_a(value.__self__, type) or is_of_curates(type(value.__self__)) or owner_of(value) is None:
            return text
        return f"{text} of {BEGUN.told(value.__self__, '', _pickled(f'what {name} belongs to', value.__self__, seen))}"
    if is_a(value, types.FunctionType):
        return function_text(value, seen)
    if is_a(value, functools._lru_cache_wrapper):
        return f"cached {value_text(name, value.__wrapped__, seen)}"
    if is_a(value, type | BOUND):
        # Without its module, which is called __main__ or by its name, as the program was started.
        text = f"{type(value).__name__} {value.__qualname__}"
        owner = None if is_a(value, type) else owner_of(value)
        return text if owner is None else f"{text} of {value_text(f'what {name} belongs to', owner, seen)}"
    if is_a(value, _MADE):
        return f"{type(value).__name__} {_pickled(name, value, seen)}"
    if (parts := parts_of(value)) is not None:
        return f"{type(value).__name__} {value_text(name, parts, seen)}"
    if (fields := fields_of(value)) is not None:
        return f"{type(value).__qualname__} {value_text(f'what {name} has', fields, seen)}"
    if text := table_text(value):
        return text
    raise Unhashable(name, value)


def is_environment(value: Mapping[Any, Any]) -> bool:
    """Returns whether a mapping is `os.environ`, or has most of it, as a copy has: secrets, and what is other in each
    process. Other tables are told from it by a name that is always there."""
    if value is os.environ or value is getattr(os, "environb", None):
        return True
    if is_a(value, dict) and type(value) is not dict:
        derived: Any = value
        value = dict(pairs_in(derived)) if dict.__contains__(derived, "PATH") else {}
    if "PATH" not in value:
        return False
    same = [name for name, one in os.environ.items() if isinstance(value.get(name), str) and value[name] == one]
    return len(same) > max(len(os.environ) // 2, 3)


def settings_of(value: Any) -> dict[str, Any] | None:
    """Returns what a ConfigParser, or a section of one, has read; None of other values."""
    # By their names: most programs have none.
    kinds = {one.__name__ for one in type(value).__mro__ if one.__module__ == "configparser"}
    if "SectionProxy" in kinds:
        has = own_dict(value)
        return {"section": has["_name"], **(settings_of(has["_parser"]) or {})}
    if "RawConfigParser" not in kinds:
        return None
    has = own_dict(value)
    return {"defaults": dict(has["_defaults"]), "sections": {name: dict(one) for name, one in has["_sections"].items()}}


def owner_of(method: Any) -> Any:
    """Returns the object that a method is of; None of a function, a method of a class, and of those of the `random` of
    all, which each process seeds anew."""
    owner = getattr(method, "__self__", None)
    return None if is_a(owner, type | types.ModuleType) or owner is random._inst else owner


def fields_of(value: Any) -> dict[str, Any] | None:
    """Returns the values of a record by name: of a dataclass, of parsed arguments, of one of attrs or pydantic; None of
    other objects, as a Dataset, which may hold what each process has of its own."""
    cls = type(value)
    # By its name: to import argparse takes ten milliseconds of each program.
    if is_a(value, types.SimpleNamespace | UserList | UserString) or any(
        (one.__module__, one.__name__) == _PARSED for one in cls.__mro__
    ):
        return dict(vars(value))
    if is_of_curates(cls):
        return None
    if dataclasses.is_dataclass(cls) and not is_a(value, type):
        names = [field.name for field in dataclasses.fields(value)]
    elif isinstance(attributes := getattr(cls, "__attrs_attrs__", None), tuple):
        names = [one.name for one in attributes]
    elif isinstance(models := getattr(cls, "__pydantic_fields__", None), dict):
        names = list(models)
    else:
        return None
    return {**own_dict(value), **{name: getattr(value, name) for name in names if hasattr(value, name)}}


def _pickled(name: str, value: Any, seen: Seen) -> str:
    """Returns what pickle would send of an object as text: its state, and what it is made with. Raises Unhashable."""
    try:
        reduced = value.__reduce_ex__(4)
    except Exception as error:  # a class may raise what it likes
        raise Unhashable(name, value) from error
    if isinstance(reduced, str):
        return reduced
    made, args, state, *others = (*tuple(reduced), None)[:5]
    told = [] if made is copyreg.__newobj__ and args == (type(value),) else [made, *args]  # type: ignore[attr-defined]
    told += [*([] if told and state is None else [state]), *(list(one) for one in others if one is not None)]
    return ", ".join(value_text(name, one, seen) for one in told)


def _state(name: str, value: Any, seen: Seen) -> str:
    """Returns what a value has beside what its kind has: the attributes of one of a subclass, the factory of a
    defaultdict. Raises Unhashable."""
    factory = value.default_factory if is_a(value, defaultdict) else None
    told = [] if factory is None else [value_text(f"the default of {name}", factory, seen)]
    if settings_of(value) is not None:
        return ""
    if is_a(value, types.ModuleType) and (value.__spec__ is not None or loaded(value.__name__) is value):
        return ""  # of a file, or Python's
    state = dict(own_dict(value))
    if is_a(value, types.ModuleType | functools.partial):  # what Python and `functools.wraps` set
        state = {key: one for key, one in state.items() if key[:2] != "__"}
    if state:
        told.append(value_text(f"what {name} has", state, seen))
    return "".join(f" of {one}" for one in told)


def is_curates(module: str) -> bool:
    """Returns whether a module is curate's own, and no job that it brings: those are code of users."""
    return module == "curate" or (module.startswith("curate.") and not jobs.is_job(module))


def is_of_curates(cls: type) -> bool:
    """Returns whether a class is, or extends, one of curate's, as jobs do: what those are made with is elsewhere."""
    return any(is_curates(base.__module__) for base in cls.__mro__)


def _source_text(function: Any) -> str:
    return "" if (tree := definition(function)) is None else canonical(tree)


def _defaults(function: Any, seen: Seen) -> Iterator[str]:
    given, code = function.__defaults__ or (), function.__code__
    for at, value in enumerate(given, code.co_argcount - len(given)):
        name = code.co_varnames[at] if at >= 0 else ""
        text = value_text(f"a default of {function.__name__}", as_started(function, name, value), seen)
        yield BEGUN.told(function, f"default {name}", text)
    for name, value in sorted((function.__kwdefaults__ or {}).items()):
        text = value_text(name, as_started(function, name, value), seen)
        yield f"{name} = {BEGUN.told(function, f'default {name}', text)}"


def closed_over(function: Any) -> Iterator[tuple[str, Any]]:
    """Yields the variables that a function closes over, with their values."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        # What `super()` needs: the class itself.
        if name != "__class__":
            try:
                yield name, cell.cell_contents
            except ValueError:
                continue  # assigned later, if ever


def _globals_used(function: Any) -> Iterator[tuple[str, Any]]:
    for name in names_in(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _lenient(name: str, value: Any, seen: Seen) -> str:
    """Returns the text of a global; most of those that have none are other libraries' objects. Of a class that is in no
    file, and of an object of one, also that of its code."""
    if is_a(value, type) and is_in_no_file(value):
        return _class_text(value, seen)
    try:
        return value_text(name, value, seen)
    except Unhashable:
        cls = type(value)
        return _class_text(cls, seen) if is_in_no_file(cls) else cls.__qualname__


def made_text(code: Any) -> str:
    """Returns a function or a class that was compiled from a text, as by `eval`, as text."""
    if is_a(code, type):
        return _class_text(code, Seen())
    try:
        return function_text(code)
    except (Unhashable, RecursionError):
        return code_text(code.__code__)


def _class_text(cls: type, seen: Seen) -> str:
    if id(cls) in seen.within:
        return "itself"
    seen = seen.inside(cls)
    parts = [f"type {cls.__qualname__}"]
    for base in filter(is_in_no_file, cls.__mro__):
        for name, value in sorted(vars(base).items()):
            inner = [getattr(value, one, None) for one in ("__func__", "fget", "fset", "func")]
            functions = [one for one in (value, *inner) if is_a(one, types.FunctionType)]
            if functions or not (name.startswith("__") and name.endswith("__")):
                parts += [f"{name} = {_lenient(name, one, seen)}" for one in functions or [value]]
    return "\n".join(parts)


def is_in_no_file(cls: type) -> bool:
    """Returns whether a class is a notebook's, a function's or of what was executed under a name of its own, as `runpy`
    does; not one that was compiled."""
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        return True
    return is_of_no_file(cls.__module__) and any(is_a(one, types.FunctionType) for one in vars(cls).values())
