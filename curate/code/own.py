"""What of a computed value a process, a moment or a machine has of its own: it makes no row but is logged, so that it
is left out of an identity; what is beside it counts.

Followed is where such a value goes: to a variable, an attribute, a key, an argument of the user's own functions.
"""

from __future__ import annotations

import ast
import builtins
import datetime as dt
import hashlib
import math
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partialmethod
from types import FunctionType
from typing import Any

from curate.code.closures import value_text
from curate.code.kinds import is_a
from curate.code.names import own_names
from curate.code.sources import Module, Sources, Used, imports_in
from curate.code.started import is_new
from curate.code.syntax import is_literal, names_assigned, top_level, walruses
from curate.dataclass import dataclass, replace

OWN = re.compile(
    r"id|hash|time\.(time(_ns)?|strftime)|platform\.node|pathlib\.\w+\.home|.*\.((monotonic|perf_counter)(_ns)?|now|today|"
    "utcnow|gmtime|localtime|getp?pid|get_ident|uuid[14]|urandom|token_(hex|bytes|urlsafe)|gethostname|getuser|uname|"
    "(process_)?cpu_count|sched_getaffinity|device_count|is_available|virtual_memory|disk_usage|getloadavg|mk[ds]temp|"
    "gettempdir|(Named)?Temporary(Directory|File)|expanduser)"
)
"""What each process, moment or machine has of its own, by the names of `Sources.foreign`."""
PLACES = re.compile(r"__file__|.*\.(get)?cwd")
"""Where a program lies."""
_UNSEEDED = "os.urandom"
"""What a process takes its numbers from that are not seeded."""
DRAWN_FROM = frozenset({"Random", "RandomState", "SystemRandom", "default_rng", "SeedSequence"}) | {
    *("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
}
"""And what does, given nothing."""
_CPUS = re.compile(r".*(cpu_count|getaffinity)")
_MAKES = re.compile(
    r"(collections|datetime|functools|itertools|math|numpy\.(zeros|ones|full|empty|arange)(_like)?|os\.path|pathlib|"
    r"platform|posixpath|socket|tempfile|time|types|uuid)(\..*)?|os|numpy|\.("
    "absolute|as_posix|date|format|hex|isoformat|join(path)?|lower|r?strip|replace|resolve|strftime|time|timestamp|"
    "upper|with_(name|suffix))"
)
"""What makes a value of others, and reads none from elsewhere."""
_READ = ("open", "input", "globals", "vars", "eval", "exec", "getattr")
_ASKS = ("get", "getenv", "setdefault", "getattr", "next")
"""What is called with what stands for a value that is not there."""
NOT, MAYBE, SURELY = 0, 1, 2

Function = ast.FunctionDef | ast.AsyncFunctionDef
_Def = Function | ast.ClassDef
_DISPLAYS = ast.Dict | ast.List | ast.Tuple | ast.Set


@dataclass(frozen=True)
class Origin:
    """What a value is computed from."""

    names: frozenset[str] = frozenset()
    """What is not the user's, by the names of `Sources.foreign`."""
    is_own: int = NOT
    """Whether it is a process's own: `NOT`, `MAYBE` where that is one of several, `SURELY`."""
    labels: frozenset[str] = frozenset()
    """The attributes and keys in it that are."""
    variables: frozenset[str] = frozenset()
    """The variables that are, of functions that make it."""
    items: frozenset[int] = frozenset()
    """Which of a list or a tuple are."""

    @property
    def is_placed(self) -> bool:
        """Whether it is computed from where the program lies."""
        return any(map(PLACES.fullmatch, self.names))

    @property
    def reads(self) -> bool:
        """Whether anything from elsewhere may be in it, which no statement tells."""
        known = (OWN, PLACES, _MAKES)
        return any(
            one in _READ or not (hasattr(builtins, one) or any(by.fullmatch(one) for by in known)) for one in self.names
        )

    def is_like_own(self, value: Any) -> bool:
        """Returns whether a value is one that this process has of its own, as far as can be seen."""
        if type(value) is int and any(map(_CPUS.fullmatch, self.names)) and value == os.cpu_count():
            return True
        if type(value) is dt.datetime:
            value = value.timestamp()
        if type(value) not in (int, float):
            return False
        if value == os.getpid():
            return True
        now = time.time()
        return any(now - 10**6 < value / unit <= now + 1 for unit in (1, 10**3, 10**6, 10**9) if math.isfinite(value))


@dataclass(frozen=True)
class Variable:
    """A variable of a module or of a class, with what is known of how it came to its value."""

    name: str
    value: Any
    used: Used
    assigned: Sequence[tuple[bool, ast.AST]]
    """What is assigned to it, each with whether that is all of its value."""
    decorators: Sequence[ast.AST] = ()
    """Of a function or a class, or of what has it."""
    is_set: bool = False
    """Whether a class has it by no statement of its body: from outside, or made by what decorates it."""

    @property
    def is_method(self) -> bool:
        """Returns whether it is what classes have functions in."""
        return is_a(self.value, METHODS)

    @property
    def made_with(self) -> Sequence[ast.AST]:
        """Returns what is assigned to it, or decorates it."""
        return [node for _, node in self.assigned] or self.decorators

    @property
    def is_chosen(self) -> bool:
        """Returns whether it is one of several that its statements name."""
        kinds = ast.IfExp | ast.BoolOp | ast.Subscript
        return len(self.assigned) > 1 or any(isinstance(node, kinds) for _, node in self.assigned)

    @property
    def is_computed(self) -> bool:
        """Returns whether the text of what makes a function does not tell which one: a choice, or values computed."""
        if self.is_chosen or not (self.assigned or isinstance(self.used.statement, _Def)):
            return True
        calls = [one for node in self.made_with for one in ast.walk(node) if isinstance(one, ast.Call)]
        given = [one for call in calls for one in (*call.args, *(keyword.value for keyword in call.keywords))]
        return not all(map(is_literal, given))


METHODS = (FunctionType, property, staticmethod, classmethod, partialmethod, cached_property)
"""Types of what a class has functions in."""
NOTHING: list[tuple[bool, ast.AST]] = [(False, ast.Constant(None))]
"""What is assigned to a variable that is set from outside."""


@dataclass(frozen=True)
class _Look:
    """How far the value of one expression is a process's own."""

    least: int
    most: int
    made_of: Sequence[tuple[Module, ast.AST]]
    """What variables in it were assigned."""

    def level(self, levels: Mapping[int, int]) -> int:
        """Returns that, where so much is known of what it is made of."""
        return min(self.most, max([self.least, *(levels[id(one)] for _, one in self.made_of)]))


class Origins:
    """What values are computed from."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._scopes: dict[tuple[int, frozenset[str]], tuple[int, frozenset[str]]] = {}
        self._levels: dict[int, int] = {}  # of what is assigned to variables, by its id: its statement keeps it
        self._open = 0  # scopes that are being looked at, of which more may be found than is known

    def of(self, module: Module, nodes: Sequence[ast.AST]) -> Origin:
        """Returns what the value is computed from that these expressions of a module are assigned to."""
        reached = [(module, node, frozenset[str]()) for node in nodes]
        names, seen, inner = set[str](), set[tuple[int, frozenset[str]]](), []
        for above, node, given in reached:
            if (id(node), given) not in seen:
                seen.add((id(node), given))
                inner.append((above, node, given))
                names.update(self._sources.foreign(above, node))
                names |= {_UNSEEDED} if any(map(_is_unseeded, ast.walk(node))) else set()
                for used in self._sources.used_by(above, node):
                    if isinstance(used.statement, _Def):
                        reached.append((used.module, used.statement, frozenset()))
                    else:
                        reached += [(used.module, one, frozenset()) for _, one in assigned(used.statement, used.name)]
        found = Origin(frozenset(names))
        if not any(map(OWN.fullmatch, names)):
            return found
        labels = set[str]()
        for above, node, given in inner:
            labels |= self._scope(above, node, given)[1]
            for called, names_given in self._calls(above, node, labels):
                if (id(called.statement), names_given) not in seen:
                    seen.add((id(called.statement), names_given))
                    inner.append((called.module, called.statement, names_given))
        levels = {self._level(module, node, ()) for node in nodes}
        level = levels.pop() if len(levels) == 1 else MAYBE if levels - {NOT} else NOT
        several = [pair for node in nodes for pair in self._items(module, node)] if len(nodes) == 1 else []
        items = {at for at, level in several if level == SURELY}
        is_within = any(self._level(module, one, ()) for node in nodes for one in _within(node))
        return replace(
            found,
            is_own=level or MAYBE * is_within,
            labels=frozenset(one[1:] for one in labels if one[0] == "."),
            variables=frozenset(one for one in labels if one[0] != "."),
            items=frozenset(items),
        )

    def given(self, one: Variable) -> Origin:
        """Returns what is computed from that calls are given which make a variable's value; of other expressions, they
        themselves. Other variables are looked at where they are."""
        nodes = list[ast.AST]()
        for node in one.made_with:
            call = node if isinstance(node, ast.Call) else None
            nodes += [*call.args, *(word.value for word in call.keywords)] if call else [node]
        return self.of(one.used.module, [node for node in nodes if not _is_variable(node)])

    def is_begun(self, one: Variable, names: Mapping[str, Any]) -> bool:
        """Returns whether statements tell what a variable began with that code changes: where it was loaded, it counts
        as it is. `names`: those of its module."""
        nodes, value = [node for _, node in one.assigned], one.value
        if not one.used.module.binds(one.name.partition(".")[0]):
            return True
        values = [node for node in nodes if isinstance(node, ast.expr)]
        if len(values) == len(nodes) and all(is_literal(one) or is_new(one, type(value), names) for one in values):
            return True
        return not self.of(one.used.module, nodes).reads

    def _items(self, module: Module, node: ast.AST) -> Iterator[tuple[int, int]]:
        """Yields whether each item of a list or a tuple is a process's own, which an expression is or a function that
        it calls returns."""
        if isinstance(node, ast.List | ast.Tuple):
            yield from ((at, self._level(module, one, ())) for at, one in enumerate(node.elts))
        for used in self._sources.used_by(module, node.func) if isinstance(node, ast.Call) else ():
            inner = [one for one in ast.walk(used.statement) if isinstance(one, ast.Return)]
            match inner, used.statement:
                case [ast.Return(ast.List(items) | ast.Tuple(items))], ast.FunctionDef():
                    names = self._scope(used.module, used.statement, frozenset())[1]
                    yield from ((at, self._level(used.module, one, names)) for at, one in enumerate(items))

    def _level(self, module: Module, node: ast.AST, names: Collection[str]) -> int:
        """Returns whether the value of an expression is a process's own, or made of it; `names`: variables that are."""
        first = self._look(module, node, names)
        looked, reached = dict[int, _Look](), list(first.made_of)
        for above, one in reached:
            if id(one) not in self._levels and id(one) not in looked:
                looked[id(one)] = self._look(above, one, ())
                reached += looked[id(one)].made_of
        # Of variables that are made of each other, as in `x = f(x)`, levels rise until none does.
        levels, before = self._levels | {key: one.least for key, one in looked.items()}, dict[int, int]()
        while levels != before:
            before = levels
            levels = before | {key: one.level(before) for key, one in looked.items()}
        if not self._open:
            self._levels = levels
        return first.level(levels)

    def _look(self, module: Module, node: ast.AST, names: Collection[str]) -> _Look:
        """Returns what an expression alone says of its level."""
        if isinstance(node, _DISPLAYS | ast.Lambda):
            return _Look(NOT, NOT, [])
        nodes = list(ast.walk(node))
        most = MAYBE if any(map(_chooses, nodes)) else SURELY
        is_own = any(_named(one) in names or _is_unseeded(one) for one in nodes)
        if is_own or any(map(OWN.fullmatch, self._sources.foreign(module, node))):
            return _Look(most, most, [])
        least, made_of = NOT, list[tuple[Module, ast.AST]]()
        for used in self._sources.used_by(module, node):
            if isinstance(used.statement, _Def):
                least = max(least, self._scope(used.module, used.statement, frozenset())[0])
            else:
                made_of += [(used.module, one) for _, one in assigned(used.statement, used.name)]
        return _Look(min(least, most), most, made_of)

    def _scope(self, module: Module, node: ast.AST, given: frozenset[str]) -> tuple[int, frozenset[str]]:
        """Returns whether what a function returns is a process's own, and the names in it that are, as those that it is
        `given`; those of attributes, keys and arguments with a dot."""
        key = (id(node), given)
        if key in self._scopes:
            return self._scopes[key]
        self._scopes[key], self._open = (NOT, frozenset()), self._open + 1  # for one that calls itself
        self._scopes[key] = self._scope_of(module, node, given)
        self._open -= 1
        return self._scopes[key]

    def _scope_of(self, module: Module, node: ast.AST, given: frozenset[str]) -> tuple[int, frozenset[str]]:
        if isinstance(node, ast.ClassDef):
            methods = [one for one in node.body if isinstance(one, Function)]
            scopes = [self._scope(module, one, given if one.name == "__init__" else frozenset()) for one in methods]
            rest = [one for one in node.body if not isinstance(one, Function)]
            scopes.append(self._scope(module, ast.Module(rest, []), frozenset()))
            level = min(MAYBE, max(one for one, _ in scopes))
            return level, frozenset().union(given, *(names for _, names in scopes))
        nodes = list(ast.walk(node))
        local = own_names(node)
        defined = {name: one for name, one in module.defined.items() if name not in local}
        imports = module.imports.joined(imports_in(nodes, module.package))
        module = replace(module, defined=defined, imports=imports)
        bound, names, before = [pair for one in nodes for pair in _bound(one)], set(given), -1
        while len(names) > before:
            before = len(names)
            names |= {name for name, one in bound if name not in names and self._level(module, one, names)}
        returned = [one.value for one in nodes if isinstance(one, ast.Return | ast.Yield) and one.value is not None]
        levels = {self._level(module, one, names) for one in returned}
        level = levels.pop() if len(levels) == 1 else MAYBE if levels - {NOT} else NOT
        return level, frozenset(names)

    def _calls(self, module: Module, node: ast.AST, names: Collection[str]) -> Iterator[tuple[Used, frozenset[str]]]:
        """Yields the user's functions that are called with what is a process's own, and which arguments are."""
        for one in ast.walk(node):
            if isinstance(one, ast.Call) and (one.args or one.keywords):
                called = [by for by in self._sources.used_by(module, one.func) if isinstance(by.statement, _Def)]
                given = {word.arg for word in one.keywords if word.arg and self._level(module, word.value, names)}
                for by in called[-1:]:
                    pairs = zip(_arguments(by.statement), one.args, strict=False)
                    given |= {name for name, value in pairs if self._level(module, value, names)}
                    if given:
                        yield by, frozenset(given)


def assigned(statement: ast.stmt, name: str) -> list[tuple[bool, ast.AST]]:
    """Returns what a statement, or one in it, assigns to a name, and whether that is all of its value; kept there."""
    known: dict[str, list[tuple[bool, ast.AST]]] = vars(statement).setdefault("assigned", {})
    if name not in known:
        known[name] = [pair for node in top_level(statement) for pair in assigns(node, name)]
    return known[name]


def assigns(node: ast.AST, name: str) -> Iterator[tuple[bool, ast.AST]]:
    """Yields what a statement alone assigns to a name, and whether that is all of its value."""
    if name in names_assigned(node):
        yield from ((False, one.value) for one in walruses(node) if one.target.id == name)
        if isinstance(node, ast.Assign):
            found = [value for target in node.targets for one, value in _pairs(target, node.value) if _is(one, name)]
            yield all(isinstance(target, ast.Name) for target in node.targets), found[0] if found else node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield isinstance(node.target, ast.Name), node.value
        elif isinstance(node, ast.AugAssign):
            yield False, node.value
        elif isinstance(node, ast.For):
            yield False, node.iter
        elif isinstance(node, ast.With):
            yield False, ast.Tuple([item.context_expr for item in node.items], ast.Load())
        elif isinstance(node, ast.Match):
            yield False, node.subject


def beside_environment(value: Mapping[Any, Any]) -> dict[Any, str]:
    """Returns what a copy of the environment, as for a subprocess, has that this has not: digests, as there are secrets
    in it."""
    known = dict(os.environ)
    texts = {name: value_text("", one) for name, one in value.items() if known.get(name) != one}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yields what is assigned to each of several targets, as in `a, b = 1, 2`."""
    many = ast.Tuple | ast.List
    if not (isinstance(target, many) and isinstance(value, many)):
        yield target, value
    elif len(target.elts) == len(value.elts) and not any(isinstance(one, ast.Starred) for one in value.elts):
        for inner, one in zip(target.elts, value.elts, strict=True):
            yield from _pairs(inner, one)
    else:
        yield from ((inner, value) for inner in target.elts)


def _bound(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yields the names that a node gives values: of variables, attributes, keys and arguments."""
    if isinstance(node, ast.Assign):
        for one, value in (pair for target in node.targets for pair in _pairs(target, node.value)):
            yield from ((name, value) for name in _names(one))
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        yield from ((name, node.value) for name in _names(node.target))
    elif isinstance(node, ast.keyword) and node.arg:
        yield f".{node.arg}", node.value
    elif isinstance(node, ast.Dict):
        keys = [one.value if isinstance(one, ast.Constant) else None for one in node.keys]
        pairs = zip(keys, node.values, strict=True)
        yield from ((f".{key}", value) for key, value in pairs if isinstance(key, str))


def _is_variable(node: ast.AST) -> bool:
    """Returns whether an expression names a variable, or what a library has; not what a program was started with."""
    is_named = all(isinstance(one, ast.Name | ast.Attribute | ast.expr_context) for one in ast.walk(node))
    return is_named and getattr(node, "attr", "") not in ("argv", "environ")


def _named(node: ast.AST) -> str:
    """Returns what an expression asks for, an attribute with a dot; empty if it asks for nothing."""
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(_, name):
            return f".{name}"
    return ""


def _names(target: ast.expr) -> Iterator[str]:
    match target:
        case ast.Name(name):
            yield name
        case ast.Attribute(_, name) | ast.Subscript(_, ast.Constant(str(name))):
            yield f".{name}"
        case ast.Tuple(several) | ast.List(several):
            for one in several:
                yield from _names(one)


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _within(node: ast.AST) -> Iterator[ast.expr]:
    """Yields what is in a list, a tuple or a set that an expression makes, at any depth."""
    for one in node.elts if isinstance(node, ast.List | ast.Tuple | ast.Set) else ():
        yield one
        yield from _within(one)


def _is_unseeded(node: ast.AST) -> bool:
    """Returns whether an expression makes what draws other numbers in each process."""
    match node:
        case ast.Call(ast.Attribute(_, name) | ast.Name(name), [], []):
            return name in DRAWN_FROM
    return False


def _chooses(node: ast.AST) -> bool:
    """Returns whether an expression is one of several."""
    match node:
        case ast.IfExp() | ast.BoolOp():
            return True
        case ast.Call(ast.Attribute(_, name) | ast.Name(name)):
            return name in _ASKS
    return False


def _arguments(statement: ast.AST) -> Iterable[str]:
    """Returns the names of what is given to a function by place, or to a class, as its objects are made."""
    if isinstance(statement, ast.ClassDef):
        made = [one for one in statement.body if isinstance(one, Function) and one.name == "__init__"]
        fields = [f".{name}" for one in statement.body if isinstance(one, ast.AnnAssign) for name in _names(one.target)]
        return list(_arguments(made[0]))[1:] if made else fields
    if not isinstance(statement, Function):
        return ()
    return [one.arg for one in (*statement.args.posonlyargs, *statement.args.args)]
