"""What of the values of variables can be compared: data, and of objects and code what these hold, at any depth.

The functions and classes in a value decide what a callable gives, as its own code does: a table of functions, an
argument, a default and what a decorator closes over hold code which no statement names.
"""

from __future__ import annotations

import ast
import enum
import functools
import hashlib
import inspect
import random
import types
from collections import ChainMap, UserDict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from curate.code.closures import (
    BOUND,
    PLAIN_IDS,
    Unhashable,
    closed_over,
    fields_of,
    is_in_no_file,
    is_plain,
    module_of,
    owner_of,
    settings_of,
    value_text,
)
from curate.code.held import CODE, PARTIALS, attributes_of, is_object, is_of_user
from curate.code.kinds import checks_of, defaults_of_function, is_a, items_in, own_dict, pairs_in, told_from
from curate.code.names import CHANGING, mangled, used_of_self
from curate.code.own import DRAWN_FROM, NOTHING, Origin, Origins, Variable
from curate.code.sources import Module, Sources, Used
from curate.code.started import as_started
from curate.code.syntax import defaults_in, in_brackets, is_literal, made_in, names_assigned
from curate.code.tables import args_of, inside, parts_of
from curate.dataclass import replace
from curate.log import get_logger

TABLES = (dict, list, tuple, set, frozenset)
_VIEWS = (types.MappingProxyType, UserDict, ChainMap)
"""Mappings that are made of dictionaries."""
_LONG = 200
"""Longer texts are hashed, in characters."""
_GENERATORS = "numpy.random."
"""What the modules of what draws numbers in numpy begin with."""
_MADE = (
    frozenset({"compile", "partial", "partialmethod", "attrgetter", "itemgetter", "methodcaller", "Generator"})
    | DRAWN_FROM
)
"""What makes values of other libraries of what it is given alone."""
_MADE_OF_PARTS = ("ip_address", "ip_interface", "ip_network", "py_buffer")
"""And what is not called as the class of what it makes."""
_Def = ast.FunctionDef | ast.AsyncFunctionDef
_WARNED: set[tuple[str, str]] = set()
"""Modules and names of values of which this process has warned."""
_OWN = "its own"
"""Stands for what a process has of its own."""


def is_data(value: Any) -> bool:
    """Returns whether a value can be compared, and is no code: statements tell that."""
    return id(type(value)) in PLAIN_IDS or _is_data(value, {})


def _is_data(value: Any, known: dict[int, tuple[Any, bool]]) -> bool:
    """Returns whether it is; `known` are the values that were looked at, and are kept: what holds itself is none."""
    if is_plain(value):
        return True
    if id(value) not in known:
        known[id(value)] = value, False
        with suppress(Unhashable, RecursionError):
            known[id(value)] = value, _can_be_compared(value, known)
    return known[id(value)][1]


def _can_be_compared(value: Any, known: dict[int, tuple[Any, bool]]) -> bool:
    if is_a(value, dict):
        return all(_is_data(one, known) for pair in pairs_in(value) for one in pair)
    if is_a(value, (*TABLES, deque)):
        return all(_is_data(one, known) for one in items_in(value))
    if is_a(value, BOUND):
        owner = owner_of(value)
        return not CHANGING.fullmatch(value.__name__) and owner is not None and _is_data(owner, known)
    if is_a(value, CODE | Mapping):
        # Another mapping may be the environment, or a database.
        parts = [settings] if (settings := settings_of(value)) else _viewed(value) if is_a(value, _VIEWS) else []
        return bool(parts) and all(_is_data(one, known) for one in parts)
    # Of a record what is asked of it counts.
    return fields_of(value) is None and bool(value_text("", value))


def _viewed(value: Any) -> list[Any]:
    """Returns what a mapping is made of."""
    if is_a(value, UserDict):
        return [dict(own_dict(value).get("data", {}))]
    return list(value.maps) if is_a(value, ChainMap) else [dict(value)]


def has_objects(value: Any, sources: Sources) -> bool:
    """Returns whether a value is a table with objects of the user's classes in it."""
    if not is_a(value, TABLES):
        return False
    inner = chain.from_iterable(pairs_in(value)) if is_a(value, dict) else items_in(value)
    return any(is_of_user(cls, sources) for cls in {id(kind): kind for kind in map(type, inner)}.values())


def is_whole(value: Any) -> bool:
    """Returns whether of a value all counts, and not what is asked of it."""
    return is_a(value, (*TABLES, *_VIEWS, deque, *PARTIALS)) or _is_drawn_from(value)


def says(value: Any, sources: Sources) -> bool:
    """Returns whether a value has anything in it that can be compared and that no statement of code tells."""
    seen, known = set[int](), dict[int, tuple[Any, bool]]()
    queue = [value]
    for one in queue:
        if id(type(one)) in PLAIN_IDS or _is_data(one, known):
            return True
        if id(one) in seen:
            continue
        seen.add(id(one))
        if is_a(one, enum.Enum) or is_object(one, sources) or _is_drawn_from(one) or fields_of(one) is not None:
            return True
        if is_a(one, dict):
            queue += (inner for _, inner in pairs_in(one))
        elif is_a(one, _VIEWS):
            queue += _viewed(one)
        elif is_a(one, (*TABLES, deque)):
            queue += items_in(one)
        elif is_a(one, types.FunctionType):
            queue += (as_started(one, name, inner) for name, inner in closed_over(one))
        elif is_a(one, PARTIALS):
            queue += (one.func, *one.args, *one.keywords.values())
        elif is_a(one, types.MethodType):
            queue.append(one.__self__)
    return False


def is_of_library(value: Any, sources: Sources) -> bool:
    """Returns whether a value is an object of a library, or a table that may have some: no code, no part of a class, no
    record, and no mapping that may be the environment or a database. Not of curate: a plan says itself what it is."""
    if type(value).__module__.partition(".")[0] == "curate":
        return False
    if is_a(value, CODE) or (is_a(value, Mapping) and not is_a(value, (*TABLES, *_VIEWS))):
        return False
    is_part = any("__get__" in vars(base) for base in type(value).__mro__)
    return not (is_part or is_object(value, sources) or is_data(value)) and fields_of(value) is None


def counts(value: Any, sources: Sources) -> bool:
    """Returns whether an attribute of an object that code asks for is part of an identity."""
    return is_data(value) or fields_of(value) is not None or says(value, sources)


def compared(
    value: Any, sources: Sources, origin: Origin | None = None, folder: Path | None = None, *, is_inside: bool = False
) -> Any:
    """Returns a value with what can be compared of it: of an object of the user's, what it holds and its methods do not
    change; of a function, which one it is and what it closes over; of other objects, which class they are of. What is
    in a table may be asked for anything, under any name.

    Of what a process has of its own, which its `origin` tells, only that; of what lies in a `folder`, where; of objects
    of Python's libraries what is `inside`, if that is asked for.

    Each object is looked at once, as many ways as lead to it: those between a few that all know each other are beyond
    counting. Of what is in it, a long text is its digest.
    """
    return _Walk(sources, origin, folder, is_inside=is_inside).opened(value)


def is_made_by(module: Module, node: ast.AST, value: Any) -> bool:
    """Returns whether an expression of a module makes this value of code, literals and other variables alone."""
    match node:
        case ast.Dict(keys, nodes) if is_a(value, dict) and None not in keys and len(value) == len(nodes):
            pairs = zip((*keys, *nodes), (*value, *value.values()), strict=True)
            return all(one is not None and is_made_by(module, one, inner) for one, inner in pairs)
        case ast.List(nodes) | ast.Tuple(nodes) if is_a(value, list | tuple) and len(value) == len(nodes):
            return all(is_made_by(module, one, inner) for one, inner in zip(nodes, value, strict=True))
        case ast.Name() | ast.Attribute():
            return is_a(value, CODE)
        case ast.Lambda():
            return is_a(value, types.FunctionType) and not value.__closure__
        case ast.Call(ast.Name(name) | ast.Attribute(ast.Name(_), name) | ast.Attribute(ast.Attribute(), name) as by):
            root = next(one.id for one in ast.walk(by) if isinstance(one, ast.Name))
            is_made = name in _MADE or is_a(value, pa.DataType | np.dtype)
            is_made |= name in (*_MADE_OF_PARTS, type(value).__name__) and parts_of(value) is not None
            is_made = is_made and root not in module.defined
            return is_made and all(map(_is_given, (*node.args, *(one.value for one in node.keywords))))
        case ast.expr() if is_literal(node) and is_data(value):
            return value_text("", ast.literal_eval(node)) == value_text("", value)
    return False


def _is_given(node: ast.expr) -> bool:
    """Returns whether the text of an argument tells it, with the variables in it: what draws numbers may be in it."""
    match node:
        case ast.Call(ast.Name(name) | ast.Attribute(_, name)) if name in DRAWN_FROM:
            return all(map(_is_given, (*node.args, *(one.value for one in node.keywords))))
    return isinstance(node, ast.Name | ast.Attribute) or is_literal(node)


def is_stated(variable: Variable, value: Any) -> bool:
    """Returns whether what is assigned to a variable makes this value of code, literals and other variables alone, with
    no function of the user's in between: the text of each tells it."""
    return len(variable.assigned) == 1 and is_made_by(variable.used.module, variable.assigned[0][1], value)


def tells(variable: Variable) -> bool:
    """Returns whether what is assigned to a variable is this value, by its text alone, or is code."""
    if len(variable.assigned) != 1:
        return not variable.assigned
    [(is_all, node)] = variable.assigned
    try:
        literal = ast.literal_eval(node) if is_all and isinstance(node, ast.expr) else variable
        return is_data(literal) and value_text("", literal) == value_text("", variable.value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, Unhashable):
        return False


def given_defaults(used: Used, name: str, function: types.FunctionType) -> Iterator[Variable]:
    """Yields the defaults of a function that a statement defines, or that is in one; nothing if it has no such one."""
    is_it = isinstance(used.statement, _Def) and used.statement.name == function.__name__
    made: Any = [used.statement] if is_it else made_in(used.statement, function.__code__)
    for arg, default in defaults_of_function(function).items() if made else ():
        found = [(True, node) for by in made if (node := defaults_in(by.args).get(arg)) is not None] or NOTHING
        one = Variable(f"{name}.{arg}", as_started(function, arg, default), used, found)
        # Lambdas of one line look alike.
        yield next((told for pair in found if tells(told := replace(one, assigned=[pair]))), one)


def given_checks(used: Used, cls: type, called: str, origins: Origins) -> Iterator[Variable]:
    """Yields what the fields of a class are annotated with, and checked and converted by, and what it is derived from,
    where what is read is given to that, or chooses it."""
    chosen = [one for one in getattr(used.statement, "bases", ()) if isinstance(one, ast.IfExp | ast.Subscript)]
    if chosen and origins.of(used.module, chosen).reads:
        yield Variable(f"{called} bases", [one.__qualname__ for one in cls.__bases__], used, [(False, chosen[0])])
    checks, annotated = checks_of(cls), vars(cls).get("__annotations__", {})
    for name in {**annotated, **checks}:
        body = [one for one in getattr(used.statement, "body", ()) if name in (*names_assigned(one), _annotates(one))]
        kinds = [one.annotation for one in body if isinstance(one, ast.AnnAssign)]
        nodes, typed = _given_to(body), [*_given_to(kinds), *chain.from_iterable(map(in_brackets, kinds))]
        told = checks.get(name, []) if origins.of(used.module, nodes).reads else []
        told += [annotated[name]] if name in annotated and origins.of(used.module, typed).reads else []
        if told:
            yield Variable(f"{called}.{name}", told, used, [(False, node) for node in (*nodes, *typed)])


def _given_to(nodes: Sequence[ast.AST]) -> list[ast.AST]:
    """Returns what calls are given. Of one in another it is what that is given: which function of a library it calls is
    told."""
    calls = [one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Call)]
    given = [one for call in calls for one in (*call.args, *(word.value for word in call.keywords))]
    return [one for one in given if not (isinstance(one, ast.Call) and (one.args or one.keywords))]


def _annotates(statement: ast.AST) -> str:
    """Returns the name that a statement annotates; empty if none."""
    return getattr(getattr(statement, "target", None), "id", "") if isinstance(statement, ast.AnnAssign) else ""


def is_of_parts(value: Any) -> bool:
    """Returns whether a value is one of Python's or a library's that its parts decide, or a table with one."""
    if is_a(value, TABLES):
        return any(map(is_of_parts, chain.from_iterable(pairs_in(value)) if is_a(value, dict) else items_in(value)))
    return parts_of(value) is not None


def is_made_of_text(code: types.FunctionType | type, sources: Sources) -> bool:
    """Returns whether code of the user's was compiled from a text, as by `eval`: no file has it."""
    if isinstance(code, type):
        return code.__module__ == "builtins" and is_in_no_file(code)
    lies_in = module_of(code)
    return not Path(code.__code__.co_filename).exists() and (not lies_in or sources.module(lies_in) is not None)


def short(text: str) -> str:
    """Returns a text, or what stands for a long one."""
    return text if len(text) <= _LONG else hashlib.sha256(text.encode()).hexdigest()[:16]


class _Walk:
    """One look at all that a value holds."""

    def __init__(
        self, sources: Sources, origin: Origin | None, folder: Path | None, *, is_inside: bool = False
    ) -> None:
        self._sources = sources
        self._is_inside = is_inside
        self._origin = origin
        self._folder = folder
        self._seen: dict[int, tuple[Any, Any]] = {}
        self._data: dict[int, tuple[Any, bool]] = {}
        self._changed: dict[int, set[str]] = {}
        """Attributes that the methods of a class change, by the ids of those classes that were looked at."""

    def opened(self, value: Any) -> Any:
        """Returns what can be compared of a value."""
        self._seen[id(value)] = value, "itself"
        items = self._origin.items if self._origin is not None else ()
        if items and is_a(value, list | tuple):
            return [_OWN if at in items else self._inner(one) for at, one in enumerate(items_in(value))]
        return self._opened(value)

    def _inner(self, one: Any) -> Any:
        if id(type(one)) in PLAIN_IDS:
            return self._leaf(one)
        if id(one) not in self._seen:
            # Kept, so that no other value can come to have its id.
            self._seen[id(one)] = one, "itself"
            told = self._opened(one)
            text = value_text("", told)
            told = told if len(text) <= _LONG else short(text)
            self._seen[id(one)] = one, told
        return self._seen[id(one)][1]

    def _leaf(self, value: Any) -> Any:
        if self._origin is not None and self._origin.is_like_own(value):
            return _OWN
        return value if self._folder is None else told_from(value, self._folder)

    def _named(self, values: Mapping[Any, Any], own: Collection[str]) -> dict[Any, Any]:
        """Returns what can be compared of what has names, of which some may be those of a process's own."""
        return {name: _OWN if name in own else self._inner(one) for name, one in values.items()}

    def _opened(self, value: Any) -> Any:
        origin = self._origin or Origin()
        is_data = _is_data(value, self._data)
        kinds = (*TABLES, deque) if self._folder is None else (*TABLES, deque, *PARTIALS)
        if is_data and (not is_a(value, kinds) or (self._origin is None and self._folder is None)):
            return self._leaf(value)
        if is_a(value, dict):
            pairs = ((key, _OWN if type(key) is str and key in origin.labels else one) for key, one in pairs_in(value))
            return [(self._inner(key), self._inner(one)) for key, one in pairs]
        if is_a(value, (list, tuple, deque)):
            return [self._inner(one) for one in items_in(value)]
        if is_a(value, set | frozenset):
            # In each process it has an order of its own. Of objects that know each other, the first one is told whole.
            ordered = sorted(
                items_in(value), key=lambda one: value_text("", _Outline(self._sources, None, None).opened(one))
            )
            return sorted(value_text("", self._inner(one)) for one in ordered)
        cls = type(value)
        if is_a(value, _VIEWS):
            return cls.__qualname__, [self._inner(one) for one in _viewed(value)]
        if is_a(value, enum.Enum):
            return value_text("", value), self._inner(own_dict(value).get("_value_"))
        if is_a(value, types.FunctionType):
            closed = ((name, as_started(value, name, one)) for name, one in closed_over(value))
            return value.__code__.co_qualname, self._named(dict(closed), origin.variables)
        if is_a(value, PARTIALS):
            return "partial", [self._inner(one) for one in (value.func, value.args, value.keywords)]
        if is_a(value, types.MethodType):
            return value.__func__.__qualname__, [] if is_a(value.__self__, type) else self._inner(value.__self__)
        if is_a(value, CODE):
            return value.__name__
        if _is_drawn_from(value):
            return cls.__qualname__, self._inner(_state_of(value))
        if (parts := args_of(value)) is not None:
            return cls.__qualname__, [self._inner(one) for one in parts]
        if self._is_inside and is_of_library(value, self._sources) and (parts := inside(value)) is not None:
            return cls.__qualname__, [self._inner(one) for one in parts]
        if id(cls) not in self._changed:
            self._changed[id(cls)] = {name for name, how in of_self(cls, self._sources) if how != "asked"}
        changed = self._changed[id(cls)]
        has = attributes_of(value) if is_object(value, self._sources) else fields_of(value) or {}
        kept = {name: one for name, one in has.items() if name not in changed and not is_cached(cls, name)}
        return cls.__qualname__, self._named(kept, origin.labels)


class _Outline(_Walk):
    """A look at what a value is, and not at what it holds."""

    def _inner(self, one: Any) -> Any:
        return one if is_data(one) else type(one).__qualname__


def _is_drawn_from(value: Any) -> bool:
    return is_a(value, random.Random) or type(value).__module__.startswith(_GENERATORS)


def _state_of(value: Any) -> Any:
    """Returns what decides the next numbers that are drawn."""
    if is_a(value, random.Random):
        return random.Random.getstate(value) if type(value) is random.Random else ""
    if hasattr(type(value), "bit_generator"):
        return value.bit_generator.state
    return value.state if hasattr(type(value), "state") else value.get_state(legacy=False)


def set_on(value: enum.Enum, sources: Sources, origins: Origins) -> dict[str, Any]:
    """Returns the attributes of a choice that are set from outside, or by what makes it and reads a value."""
    cls, makers = type(value), list[tuple[Module, ast.AST]]()
    for used in filter(None, map(sources.of, cls.__mro__)):
        body = getattr(used.statement, "body", ())
        makers += [(used.module, by) for by in body if getattr(by, "name", "") in ("__init__", "__new__")]
    if makers and not any(origins.of(module, [by]).reads for module, by in makers):
        return {}
    left_out = {name for name, how in of_self(cls, sources) if how != "asked"}
    has = {name: at for name, at in own_dict(value).items() if not (name in left_out or is_cached(cls, name))}
    return {name: at for name, at in has.items() if name[-1] != "_" and counts(at, sources)}


def asked_of_self(cls: type, sources: Sources) -> dict[str, None]:
    """Returns the attributes that a class asks of its objects, and sets only as they are made; `WHOLE` if handed on."""
    used = list(of_self(cls, sources))
    changed = {name for name, how in used if how == "set"}
    return {name: None for name, how in used if how == "asked" and name not in changed}


def of_self(cls: type, sources: Sources) -> Iterator[tuple[str, str]]:
    """Yields what the methods of a user's class use of their objects (see `used_of_self`)."""
    bodies = [used.statement for base in cls.__mro__ if (used := sources.of(base)) is not None]
    for body in bodies:
        if isinstance(body, ast.ClassDef):
            yield from ((mangled(name, body.name), how) for name, how in used_of_self(body))


def is_cached(cls: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(cls, name, None), functools.cached_property)


def warn_once(module: str, name: str, why: str, instead: str) -> None:
    """Warns once of a value that no identity has."""
    if (module, name) not in _WARNED:
        _WARNED.add((module, name))
        get_logger().warning(
            f"a value is not compared between runs: {why}",
            value=f"{module}.{name}",
            next=f"{instead}, so that rows made with another value are noticed",
        )
