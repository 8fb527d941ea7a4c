"""The values of variables that their statements do not tell, as that of `K = int(sys.argv[1])` at the top of a module.

The statements of what code uses count in its identity (see `curate.code.sources`). Where a variable is computed, or
assigned more than once, its value counts too: a run with another K would take for done what the one before made. Those
values count that can be compared (`value_text`); of an object whose attributes are named, as of parsed arguments, these
attributes, and all of them of one that is handed on; of objects of the user's classes in a table, all that they
hold (see `curate.code.compared`). Not counted is what a process, a moment or a machine has of its own, and where a
program lies (see `curate.code.own`); nor what the code changes as it runs, as a cache: what this began with counts.
"""

from __future__ import annotations

import ast
import enum
import inspect
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import singledispatchmethod
from pathlib import Path
from typing import Any

from curate.code.closures import BOUND, PLAIN_IDS, closed_over, fields_of, is_environment, made_text, value_text
from curate.code.compared import (
    TABLES,
    asked_of_self,
    compared,
    counts,
    given_checks,
    given_defaults,
    has_objects,
    is_cached,
    is_data,
    is_made_of_text,
    is_of_library,
    is_of_parts,
    is_stated,
    is_whole,
    of_self,
    says,
    set_on,
    short,
    tells,
    warn_once,
)
from curate.code.held import CODE, attributes_of, held, is_object, registered
from curate.code.kinds import defaults_of, functions_in, is_a, is_called, is_path, loaded, own_dict
from curate.code.names import CALLED, CHANGING, WHOLE, attributes_in, globals_changed, globals_named, globals_read
from curate.code.own import NOTHING, OWN, SURELY, Origin, Origins, Variable, assigned, assigns, beside_environment
from curate.code.sources import Module, Sources, Used, names_used
from curate.code.started import BEGUN, as_started
from curate.code.syntax import calls_above, canonical, code_text, qualname, which
from curate.code.tables import inside

_Def = ast.FunctionDef | ast.AsyncFunctionDef


class Variables:
    """The variables that code reads: fed with each piece of it, it yields those whose values count."""

    def __init__(self, sources: Sources, left_out: Collection[str] = (), cls: type | None = None) -> None:
        """`left_out`: names in the bodies of a class and its bases whose values are told elsewhere."""
        self._sources = sources
        self._left_out = dict.fromkeys(map(id, getattr(cls, "__mro__", ())), left_out)
        self._names_asked, self._names_set = set[str](), set[str]()
        self._origins = Origins(sources)
        self._found: dict[tuple[str, str], Variable] = {}
        self._imported: dict[tuple[str, str], str] = {}
        self._unread: dict[tuple[str, str], Used] = {}
        self._attributes: dict[tuple[str, str], dict[str, None]] = {}
        self._changed: set[tuple[str, str]] = set()
        self._seen: dict[int, ast.stmt] = {}
        self._defaults: dict[int, types.FunctionType] = {}
        self._places: set[tuple[str, int, str]] = set()
        self._made: dict[int, str] = {}
        self._looked: dict[int, Variable] = {}

    def take(self, module: Module, node: ast.AST, used: Sequence[Used], codes: Sequence[types.CodeType] = ()) -> None:
        """Takes in a piece of code of a module and what its names stand for; `codes`: where `node` only lists a
        function's names, what that was compiled to."""
        read = globals_read(codes) if codes else globals_named(node) or {}
        self._names_asked |= attributes_in(node)
        self._names_set |= attributes_in(node, by_methods=True)
        self._take_others(module, read)
        self._take_imported(module, read)
        for name, attributes in read.items():
            self._attributes.setdefault((module.name, name), {}).update(attributes)
        changed = {*globals_changed(node)}
        if codes:
            changed |= {name for name, attributes in read.items() if any(map(CHANGING.fullmatch, attributes))}
        self._changed |= {(module.name, name) for name in changed}
        own = _values(module)
        for one in used:
            values = _values(one.module)
            if one.root in read:
                # What is asked of what a module has is not known.
                asked = {**read[one.root], **({WHOLE: None} if one.name in read[one.root] else {})}
                self._attributes.setdefault((one.module.name, one.name), {}).update(asked)
            # Imported from another module, it is the same object there, maybe by another name.
            root, is_it = one.root or one.name, not one.root or own.get(one.root) is values.get(one.name)
            found = {name.removeprefix(root) for name in changed if is_it and name.partition(".")[0] == root}
            found |= {""} if f"{root}.{one.name}" in changed and not is_it else set()
            self._changed |= {(one.module.name, f"{one.name}{rest}") for rest in found}
            if one.module.name not in sys.modules and not isinstance(one.statement, _Def | ast.ClassDef):
                self._unread[one.module.name, one.name] = one
            if one.name in values and (one.root in read or not one.root):
                self._add(one.name, values[one.name], one, one.module.defined[one.name])
            value: Any = values.get(one.name)
            if is_a(value, type):
                self.take_body(one, value)
            elif isinstance(one.statement, _Def) or is_a(value, types.FunctionType):
                self._take_defaults(one, one.name, value)

    def trees(self, queue: list[Used], neutral: Collection[str] = ()) -> Iterator[str]:
        """Yields the statements in a queue as text, and those that they use, the nearest first; each once.

        `neutral`: names whose assignments in the first one, which is a class, do not count.
        """
        at = 0
        while at < len(queue) or (further := self._held()):
            if at == len(queue):
                queue += further
            one = queue[at]
            if id(one.statement) not in self._seen:
                # Kept, so that no other statement can come to have its id.
                self._seen[id(one.statement)] = one.statement
                self._places.add(one.place)
                yield canonical(one.statement, () if at else neutral)
                used = list(self._sources.used_by(one.module, one.statement))
                self.take(one.module, one.statement, used)
                queue += used
            at += 1

    def _held(self) -> list[Used]:
        """Returns the statements of the user's code that variables hold and no statement names: what a decorator put
        into a table, or is set from outside."""
        found: dict[tuple[str, int, str], Used] = {}
        for variable in list(self._found.values()):
            if id(variable) not in self._looked:
                self._looked[id(variable)] = variable
                owner = variable.name.partition(".")[0] if "." in variable.name else ""
                for one in () if id(type(variable.value)) in PLAIN_IDS else held(variable.value, self._sources):
                    # The methods of a class are in its body, or made of that, as those of a dataclass.
                    if isinstance(one, types.ModuleType):
                        # The attributes that are asked of a module by its name are known.
                        further = self.take_all(one) if owner or one is not variable.value else []
                        found |= {each.place: each for each in further if each.place not in self._places}
                        continue
                    is_method = bool(owner) and owner in qualname(one).split(".")[:-1]
                    used = None if is_method else self._sources.of(one)
                    if used is None and not owner and is_made_of_text(one, self._sources):
                        self._made[id(one)] = f"{variable.name} has {short(made_text(one))}"
                        found |= {each.place: each for each in self._used_by_made(one)}
                    elif used is not None:
                        found |= {used.place: used} if used.place not in self._places else {}
                        if isinstance(one, type):
                            self.take_body(used, one)
                        else:
                            self._take_defaults(used, one.__code__.co_name, one)
        return list(found.values())

    def take_all(self, module: types.ModuleType) -> list[Used]:
        """Takes in a module that is in a value, of which anything may be asked, and returns its statements."""
        if (known := self._sources.module(module.__name__)) is None:
            return []
        used = list(self._sources.of_module(module, [WHOLE], ()))
        self.take(known, ast.Tuple([], ast.Load()), used)
        return used

    def _used_by_made(self, code: types.FunctionType | type) -> list[Used]:
        """Takes in what a function uses that was compiled from a text in a module, and returns its statements."""
        if isinstance(code, type) or (module := self._sources.module(code.__globals__.get("__name__") or "")) is None:
            return []
        used = list(self._sources.used_by(module, names := names_used(code)))
        self.take(module, names, used, [code.__code__])
        return used

    def take_body(self, used: Used, cls: type, called: str = "") -> None:
        """Takes in what a class has: what its body assigns and defines, and what is set from outside."""
        called = called or cls.__name__
        body = used.statement.body if isinstance(used.statement, ast.ClassDef) else []
        has = {**vars(cls), **(defaults_of(cls) if body else {})}
        if (made := calls_above(used.statement)) and self._origins.of(used.module, made).reads:
            has |= defaults_of(cls.__bases__[0])
        for name in sorted(has.keys() - {*self._left_out.get(id(cls), ())}):
            self._add(f"{called}.{name}", has[name], used, body, is_public=not name.startswith("_"))
        for check in given_checks(used, cls, called, self._origins):
            self._found.setdefault((used.module.name, f"{check.name} checks"), check)
        for one in body:
            inner: Any = vars(cls).get(one.name) if isinstance(one, _Def | ast.ClassDef) else None
            if isinstance(one, _Def):
                for function in functions_in(inner):
                    self._take_defaults(Used(used.module, one, one.name), f"{called}.{one.name}", function)
            elif isinstance(one, ast.ClassDef) and is_a(inner, type):
                self.take_body(Used(used.module, one, one.name), inner, f"{called}.{one.name}")

    def texts(self) -> Iterator[str]:
        """Yields `name = value` of each whose statements do not tell the value."""
        self._warn_of_unread()
        yield from self._imported.values()
        yield from self._made.values()
        for key, one in self._found.items():
            told = BEGUN.told(loaded(key[0]), ".".join(key), "\n".join(self._lines(key, one)))
            if told:
                yield told

    def _warn_of_unread(self) -> None:
        """Warns of values that are computed in modules which are not imported yet: nothing is, for an identity."""
        for (module, name), one in self._unread.items():
            nodes = [node for _, node in assigned(one.statement, name)]
            if self._origins.of(one.module, nodes).reads:
                why = "functions import its module only as rows are made"
                warn_once(module, name, why, f"import {module} at the top of a file")

    def _lines(self, key: tuple[str, str], one: Variable) -> Iterator[str]:
        if is_a(one.value, types.FunctionType) and one.is_computed:
            if (origin := self._origin(one)) is not None:
                yield from self._choice(one, origin)
        elif not (key in self._changed and self._origins.is_begun(one, _values(one.used.module))) and (
            self._is_asked(one) or not self._is_told(one)
        ):
            kind = type(one.value)
            if one.is_chosen and not is_a(one.value, type) and self._sources.of(kind) is not None:
                yield f"{one.name} is a {kind.__qualname__}"
            if (origin := self._origin(one)) is not None:
                yield from self._text(one, origin)
        elif key in self._changed and is_a(one.value, TABLES):
            yield from self._registered(one)
        if one.is_method and not (is_a(one.value, types.FunctionType) and one.is_computed):
            origin = self._origins.of(one.used.module, [*(node for _, node in one.assigned), *one.decorators])
            if origin.reads or (one.is_set and (one.assigned or self._is_asked(one))):
                for function in self._functions(one):
                    yield from self._closed(one, origin, function)
        if is_a(one.value, types.FunctionType | singledispatchmethod) and (given := self._given(one)):
            origin = self._origin(one) or Origin()
            values = {name: self._compared(value, one, origin) for name, value in given.items()}
            yield from (f"{one.name}.{name} = {short(value_text(name, value))}" for name, value in values.items())

    def _registered(self, one: Variable) -> Iterator[str]:
        """Yields what decorators that are given what is read put into a table with functions."""
        put, by = registered(one.value, self._sources)
        put = [pair for pair in put if says(pair[1], self._sources)]
        for module, node in by if put else ():
            if self._origins.of(module, [*node.args, *(word.value for word in node.keywords)]).reads:
                told = self._compared(put, one, self._origins.of(module, [node]))
                yield f"{one.name} has {short(value_text(one.name, told))}"
                return

    def _is_told(self, one: Variable) -> bool:
        """Returns whether statements tell a value: not what a decorator that reads makes of a function, an object."""
        is_made = bool(one.decorators) and not one.is_method and is_object(one.value, self._sources)
        return tells(one) and not (is_made and self._origins.of(one.used.module, one.decorators).reads)

    def _given(self, one: Variable) -> dict[str, Any]:
        """Returns what a function was given that no statement tells: attributes that code asks it for, as a table that
        was read, and what the functions close over that it chooses from by a type."""
        has = own_dict(own_dict(one.value).get("dispatcher", one.value))
        if isinstance(registry := has.get("registry"), types.MappingProxyType):
            functions = [by for by in registry.values() if isinstance(by, types.FunctionType)]
            return {"registry": registry} if any(any(closed_over(by)) for by in functions) else {}
        module = one.used.module
        asked = self._attributes.get((module.name, one.name), {})
        kept = [name for name in asked if name in has and (module.name, f"{one.name}.{name}") not in self._changed]
        kept = [name for name in kept if counts(has[name], self._sources)]
        nodes = [*(node for _, node in one.assigned), *one.decorators]
        is_told = bool(kept and nodes) and not (one.is_computed or self._origins.of(module, nodes).reads)
        return {} if is_told else {name: has[name] for name in kept}

    def _origin(self, one: Variable) -> Origin | None:
        """Returns what a variable is computed from; None if it is all a process's own, or nothing that a statement does
        not tell is in it beside that."""
        origin = self._origins.of(one.used.module, one.made_with)
        if not any(map(OWN.fullmatch, origin.names)) or (one.made_with and not one.assigned):
            return origin
        if not origin.reads:
            return None
        has_parts = is_a(one.value, Mapping | CODE) or is_whole(one.value) or is_object(one.value, self._sources)
        if has_parts or fields_of(one.value) is not None:
            return origin
        return None if origin.is_own == SURELY or (origin.is_own and origin.is_like_own(one.value)) else origin

    def _choice(self, one: Variable, origin: Origin) -> Iterator[str]:
        """Yields which of the user's functions a computed one is, and what values those that made it were given."""
        for function in self._functions(one):
            told = short(code_text(function.__code__)) if one.is_chosen and function.__code__.co_name[0] == "<" else ""
            yield f"{one.name} is {qualname(function)} {told or which(one.used.statement, function)}".rstrip()
            yield from self._closed(one, origin, function)

    def _functions(self, one: Variable) -> list[types.FunctionType]:
        found = (by for by in held(one.value, self._sources) if isinstance(by, types.FunctionType))
        return [by for by in found if self._sources.of(by) is not None]

    def _closed(self, one: Variable, origin: Origin, function: types.FunctionType) -> Iterator[str]:
        """Yields what a function closes over."""
        for name, value in closed_over(function):
            value = as_started(function, name, value)
            if name in origin.variables or (origin.is_own and origin.is_like_own(value)):
                continue
            if is_data(value):
                value = self._compared(value, one, Origin(origin.names), is_known=True)
                yield f"{function.__name__}.{name} = {value_text(name, value)}"
            elif not is_a(value, CODE) and says(value, self._sources):
                text = value_text(name, self._compared(value, one, origin))
                yield f"{function.__name__}.{name} = {short(text)}"

    def _compared(
        self, value: Any, one: Variable, origin: Origin, *, is_known: bool = False, is_inside: bool = False
    ) -> Any:
        """Returns what of a value can be compared, without what a process has of its own, and where a program lies.
        `is_known`: it is data, of which all can be. `is_inside`: with what is in objects of Python's libraries."""
        folder = Path(one.used.module.path).parent if origin.is_placed else None
        own = origin if origin.labels or origin.variables or origin.is_own else None
        return (
            value
            if is_known and own is None and folder is None
            else compared(value, self._sources, own, folder, is_inside=is_inside)
        )

    def _take_imported(self, module: Module, names: Iterable[str]) -> None:
        """Takes in which of several imports of a name it is of, as where one is not there on each machine."""
        values = _values(module)
        for name in names:
            found = module.imports.called(name)
            if name in values and len(found) > 1 and any(map(self._is_of_user, found)):
                which = next((one for one in found if is_called(one, values[name])), "another")
                self._imported[module.name, name] = f"{name} is {which}"

    def _is_of_user(self, imported: str) -> bool:
        return any(self._sources.module(one) is not None for one in (imported, imported.rpartition(".")[0]) if one)

    def _take_others(self, module: Module, names: Iterable[str]) -> None:
        """Takes in globals that no statement of the top level binds: functions do, or the program from outside."""
        values = _values(module)
        for name in names:
            key = (module.name, name)
            is_bound = module.binds(name) and not self._is_computed_in(module, name)
            if name not in values or is_bound or name.startswith("__") or key in self._found:
                continue
            stars = [vars(sys.modules[one]) for one in module.imports.stars if one in sys.modules]
            if any(one.get(name) is values[name] for one in stars):
                continue
            nodes = [one for statement in module.body for one in ast.walk(statement) if isinstance(one, ast.stmt)]
            found = [(False, value) for node in nodes for _, value in assigns(node, name)]
            self._found[key] = Variable(name, values[name], Used(module, ast.Pass(), name, name), found or NOTHING)

    def _is_computed_in(self, module: Module, name: str) -> bool:
        return any(self._sources.computes(*one) for one in module.imports.names.get(name, ()))

    def _take_defaults(self, used: Used, name: str, value: Any) -> None:
        function: Any = inspect.unwrap(value) if callable(value) else None
        if not is_a(function, types.FunctionType) or id(function) in self._defaults:
            return
        for one in given_defaults(used, name, function):
            self._defaults[id(function)] = function
            key = used.module.name, one.name
            while key in self._found:  # what others make is there as often as it was made
                key = key[0], f"{key[1]}'"
            self._found[key] = one

    def _add(
        self, name: str, value: Any, used: Used, statements: Sequence[ast.stmt], *, is_public: bool = False
    ) -> None:
        """Adds a variable that statements assign; if none does, its value counts where it `is_public`."""
        key = (used.module.name, name)
        if key not in self._found:
            owner, _, last = name.rpartition(".")
            last = last.removeprefix(f"_{owner.rpartition('.')[2].lstrip('_')}" if "__" in last[1:] else "")
            found = [pair for statement in statements for pair in assigned(statement, last)]
            same = [one for one in statements if owner and isinstance(one, _Def) and one.name == last]
            decorators = [by for one in (*same, used.statement) for by in getattr(one, "decorator_list", ())]
            is_set = bool(owner) and not (found or same)
            self._found[key] = Variable(name, value, used, found or NOTHING * is_public, decorators, is_set)

    def _text(self, one: Variable, origin: Origin) -> Iterator[str]:
        with suppress(RecursionError):  # too deep to be told
            told = [f"{name} = {short(value_text(name, value))}" for name, value in self._told(one, origin)]
            yield from told
            if not (told or is_a(one.value, TABLES)) and inside(one.value) is None and self._is_opaque(one):
                why = f"nothing tells what is in a {type(one.value).__name__}"
                warn_once(one.used.module.name, one.name, why, "give what it is made of a name at the top of its file")

    def _is_opaque(self, one: Variable) -> bool:
        """Returns whether a value is an object of a library, or has some, which is made of what is read."""
        is_made = is_of_library(one.value, self._sources) and not is_stated(one, one.value)
        return is_made and self._origins.given(one).reads

    def _has_inside(self, one: Variable, origin: Origin) -> bool:
        told = [self._compared(one.value, one, origin, is_inside=is_inside) for is_inside in (False, True)]
        return value_text("", told[0]) != value_text("", told[1])

    def _told(self, one: Variable, origin: Origin) -> Iterator[tuple[str, Any]]:
        """Yields what of a value can be compared, by name: all of it, or of an object the attributes that are asked."""
        value = one.value
        if is_a(value, types.MethodType) and is_object(value.__self__, self._sources):
            value = value.__self__
        if is_a(value, dict) and is_environment(value):
            yield one.name, beside_environment(value)
        elif is_a(value, enum.Enum):
            inner = own_dict(value).get("_value_")
            if says(inner, self._sources):
                is_told = id(type(inner)) in PLAIN_IDS or is_stated(one, inner)
                yield one.name, value if is_told else [value, self._compared(inner, one, origin)]
            for name, has in set_on(value, self._sources, self._origins).items():
                yield f"{one.name}.{name}", self._compared(has, one, origin)
        elif is_data(value) and not (is_stated(one, value) and is_of_parts(value)):
            if not (origin.is_placed and not origin.reads and is_path(value)):
                yield one.name, self._compared(value, one, origin, is_known=True)
        elif is_a(value, CODE):
            if origin.reads and one.is_chosen and is_a(value, type | BOUND):
                yield f"{one.name} is", value
            if origin.reads and (defaults := defaults_of(value)):
                yield one.name, self._compared(defaults, one, origin)
        elif has_objects(value, self._sources):
            yield one.name, self._compared(value, one, origin)
        elif self._is_opaque(one) and self._has_inside(one, origin):
            yield one.name, self._compared(value, one, origin, is_inside=True)
        elif is_whole(value) or not (is_object(value, self._sources) or attributes_of(value)):
            if one.used.module.path and says(value, self._sources) and not is_stated(one, value):
                yield one.name, self._compared(value, one, origin)
        else:
            has = attributes_of(value)
            for name in self._asked(one, value, has):
                if name in has and name not in origin.labels and counts(has[name], self._sources):
                    yield f"{one.name}.{name}", self._compared(has[name], one, origin)

    def _asked(self, one: Variable, value: Any, has: Mapping[str, Any]) -> Iterable[str]:
        """Returns the attributes of an object that code asks for, of itself or by the name of its variable; where it is
        handed on, all."""
        cls, key = type(value), (one.used.module.name, one.name)
        named = self._attributes.get(key, {})
        asked = {**named, **asked_of_self(cls, self._sources)}
        is_all = WHOLE in asked or "." in one.name  # what is asked of what an object has is not known
        if is_all or CALLED in named:
            asked |= dict.fromkeys(fields_of(value) or ())
        if is_all and is_object(value, self._sources):
            changed = {name for name, how in of_self(cls, self._sources) if how != "asked"}
            asked |= dict.fromkeys(name for name in has if name not in changed and not is_cached(cls, name))
        return [name for name in asked if (key[0], f"{one.name}.{name}") not in self._changed]

    def _is_asked(self, one: Variable) -> bool:
        """Returns whether code asks a class for what no statement of its gives it."""
        owner, _, name = one.name.rpartition(".")
        is_named = one.is_set and name in self._names_asked - self._names_set
        return not one.assigned and (is_named or name in self._attributes.get((one.used.module.name, owner), {}))


def _values(module: Module) -> Mapping[str, Any]:
    """Returns the values of a module's names; none if it is not imported."""
    return {} if (known := loaded(module.name)) is None else vars(known)
