"""What a variable began with that code changes as it runs, as a cache: by the statement that tells it, and by what it
was before the code ran in this process."""

from __future__ import annotations

import ast
import builtins
import dis
import hashlib
import linecache
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from curate.code.kinds import is_a
from curate.code.names import CHANGING, changes
from curate.code.syntax import defaults_in, definition

_NOT_CHANGED = (str, bytes, types.FunctionType, types.ModuleType, type)
"""Types of which most are that functions close over, and none is filled."""
_FILLED = (dict, list, set, deque, defaultdict, Counter, OrderedDict)
"""Types of tables that a call of theirs makes with nothing in it."""
_Def = ast.FunctionDef | ast.AsyncFunctionDef
_Inner = _Def | ast.Lambda


class Begun:
    """What values were before code that changes them ran in this process: each is told so as long as it is what that
    code left; once somebody else has changed it, as it is."""

    def __init__(self) -> None:
        self._left: dict[tuple[int, str], tuple[Any, str, str]] = {}
        """By who has a value, which is kept, and its name: a digest of what code left, and what that began with."""
        self._looking = threading.local()

    def told(self, holder: Any, name: str, text: str) -> str:
        """Returns the text of a value, or of what it began with, if it is as code left it."""
        key = (id(holder), name)
        known = self._left.get(key)
        began = known[2] if known is not None and known[1] == _digest(text) else text
        if (seen := getattr(self._looking, "seen", None)) is not None:
            seen[key] = holder, text, began
        return began

    def look(self, tell: Callable[[], Any]) -> Look | None:
        """Returns what values are as a function tells them; None if there is one that it cannot."""
        seen: Look = {}
        self._looking.seen = seen
        try:
            tell()
        except Exception:  # noqa: BLE001 - who asks for the identity itself is told
            return None
        finally:
            self._looking.seen = None
        return seen

    def left(self, before: Look | None, after: Look | None) -> None:
        """Takes in what values were before code ran, and are after it."""
        if before is None or after is None:
            return
        for key, (holder, text, _) in after.items():
            _, was, began = before.get(key, (holder, "", ""))
            known = self._left.get(key)
            if text != was and (known is None or known[1] != _digest(text)):
                self._left[key] = holder, _digest(text), began


Look = dict[tuple[int, str], tuple[Any, str, str]]
BEGUN = Begun()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def as_started(function: types.FunctionType, name: str, value: Any) -> Any:
    """Returns what a variable of a function began with, if that changes it and a statement tells this; else its value.

    Rows decide what is in it then, and not it what is in the rows. Where it may have been given something before the
    first row, or comes from elsewhere, it counts as it is.
    """
    if is_a(value, _NOT_CHANGED) or not any(name in _changed_names(one) for one in _sharing(function, name)):
        return value
    is_closed_over = name in function.__code__.co_freevars
    expression = _assigned(function, name) if is_closed_over else _default_of(function, name)
    if expression is None:
        return value
    if any(isinstance(one, ast.Call) for one in ast.walk(expression)):  # `set()` is taken for a literal
        return _empty(value) if is_new(expression, type(value), function.__globals__) else value
    try:
        return ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return value


def _changed_names(function: types.FunctionType) -> set[str]:
    """Returns the names of what a function changes as it runs."""
    if (tree := definition(function)) is None:
        return set(_changed_by_code(function.__code__))
    nodes = list(ast.walk(tree))
    stated = {name for one in nodes if isinstance(one, ast.Nonlocal) for name in one.names}
    return stated.union(name.partition(".")[0] for name in map(changes, nodes) if name)


def _changed_by_code(code: types.CodeType) -> Iterator[str]:
    """Yields the names of what compiled code, as that of a lambda, calls a method of which changes it."""
    name = ""
    for one in dis.get_instructions(code):
        if name and one.opname in ("LOAD_ATTR", "LOAD_METHOD") and CHANGING.fullmatch(one.argval):
            yield name
        is_variable = one.opname.startswith(("LOAD_DEREF", "LOAD_FAST")) and isinstance(one.argval, str)
        name = one.argval if is_variable else ""
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _changed_by_code(inner)


def _sharing(function: types.FunctionType, name: str) -> Iterator[types.FunctionType]:
    """Yields a function, and those that it closes over and that have the same variable."""
    yield function
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for cell in cells.values() if name in cells else ():
        try:
            other = cell.cell_contents
        except ValueError:
            continue  # assigned later, if ever
        if is_a(other, types.FunctionType) and any(one is cells[name] for one in other.__closure__ or ()):
            yield other


def _default_of(function: types.FunctionType, name: str) -> ast.expr | None:
    """Returns the expression of a default; None of a variable that is no argument, and of a lambda's."""
    return None if (tree := definition(function)) is None else defaults_in(tree.args).get(name)


def _assigned(function: types.FunctionType, name: str) -> ast.expr | None:
    """Returns the expression that a function around this one assigns to a variable, if nothing else that may run before
    the rows uses it: the one around itself, other functions in it, and those that it calls."""
    code = function.__code__
    tree = _parsed("".join(linecache.getlines(code.co_filename)))
    around = [one for one in ast.walk(tree) if isinstance(one, _Def) and _is_around(one, code)]
    for one in sorted(around, key=lambda one: -one.lineno):
        if name in {arg.arg for arg in ast.walk(one.args) if isinstance(arg, ast.arg)}:
            return None
        inner = [node for node in ast.walk(one) if isinstance(node, _Def | ast.Lambda)]
        itself = [node for node in inner if _is_of(node, code)]
        sharing = [node for node in inner if any(_is_of(node, other.__code__) for other in _sharing(function, name))]
        sharing += _callers(itself, [node for node in inner if node not in around])
        parents = _outside(one, sharing)
        if named := [node for node in parents if isinstance(node, ast.Name) and node.id == name]:
            is_sure = len(named) == 1 and not any(_may_run(node, parents, itself) for node in _uses(parents, sharing))
            return _alone(parents[named[0]], named[0]) if is_sure else None
    return None


def _is_around(node: _Def, code: types.CodeType) -> bool:
    return not _is_of(node, code) and node.lineno <= code.co_firstlineno <= (node.end_lineno or 0)


def _is_of(node: _Inner, code: types.CodeType) -> bool:
    """Returns whether a function is what was compiled to this code."""
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and code.co_firstlineno == node.lineno
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    return node.name == code.co_name and first <= code.co_firstlineno <= node.lineno


def _callers(itself: Sequence[_Inner], inner: Sequence[_Inner]) -> Iterator[_Inner]:
    """Yields the function that calls one, that which calls this, and so on, as long as there is one alone."""
    for called in itself:
        found, names = [called], {called.name} if isinstance(called, _Def) else set[str]()
        while names:
            calling = [one for one in inner if one not in found and _names(one) & names]
            if len(calling) != 1:
                break
            yield from calling
            found += calling
            names = {one.name for one in calling if isinstance(one, _Def)}


def _names(function: _Inner) -> set[str]:
    return {one.id for one in ast.walk(function) if isinstance(one, ast.Name)}


def _outside(function: _Def, sharing: Collection[ast.AST]) -> dict[ast.AST, ast.AST]:
    """Returns the nodes in a function, each with the one that it is in, without those in the bodies of `sharing`."""
    found: dict[ast.AST, ast.AST] = dict.fromkeys(function.body, function)
    queue = [*found]
    for node in queue:
        body: Any = getattr(node, "body", ()) if node in sharing else ()
        left_out = body if isinstance(body, list) else [body]
        inner = [one for one in ast.iter_child_nodes(node) if one not in left_out]
        found |= dict.fromkeys(inner, node)
        queue += inner
    return found


def _alone(statement: ast.AST, target: ast.AST) -> ast.expr | None:
    """Returns what a statement assigns, if it assigns it to this alone."""
    match statement:
        case ast.Assign([one], value) | ast.AnnAssign(one, _, ast.expr() as value) if one is target:
            return value
    return None


def _uses(parents: Mapping[ast.AST, ast.AST], sharing: Iterable[_Inner]) -> Iterator[ast.expr | ast.stmt]:
    """Yields where functions that share a variable are used: their names, and lambdas themselves."""
    names = set()
    for node in (one for one in sharing if one in parents):
        match parents[node]:
            case ast.Assign([ast.Name(name)]):
                names.add(name)
            case ast.ClassDef():
                yield node  # by an object of the class
            case _ if isinstance(node, ast.Lambda):
                yield node
        names |= {node.name} if isinstance(node, _Def) else set()
    yield from (one for one in parents if isinstance(one, ast.Name) and one.id in names and _is_read(one))


def _may_run(use: ast.AST, parents: Mapping[ast.AST, ast.AST], itself: Sequence[_Inner]) -> bool:
    """Returns whether a function may run where it is used, as where it is called. It does not where it is returned, nor
    where the one that is asked about itself is handed to a method, as to `Dataset.map`."""
    at = use
    while isinstance(parents[at], ast.Tuple | ast.List | ast.Dict | ast.keyword):
        at = parents[at]
    match parents[at]:
        case ast.Return() | ast.Attribute(ctx=ast.Store()):
            return False
        case ast.Call(ast.Attribute() as method) if method is not at:
            names = {one.name for one in itself if isinstance(one, _Def)}
            return not (use in itself or (isinstance(use, ast.Name) and use.id in names))
    return True


def _is_read(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def is_new(expression: ast.expr, cls: type, names: Mapping[str, Any]) -> bool:
    """Returns whether a call, where these `names` are known, makes a new table of a class of Python's with nothing in
    it: `set()`, `defaultdict(list)`, `deque(maxlen=3)`."""
    match expression:
        case ast.Call(called, [], []):
            is_empty = True
        case ast.Call(called, [_], []):
            is_empty = cls is defaultdict
        case ast.Call(called, [], [ast.keyword("maxlen")]):
            is_empty = cls is deque
        case _:
            return False
    match called:
        case ast.Name(name):
            found = names.get(name, getattr(builtins, name, None))
        case ast.Attribute(ast.Name(module), name) if is_a(names.get(module), types.ModuleType):
            found = vars(names[module]).get(name)
        case _:
            return False
    return is_empty and cls in _FILLED and found is cls


def _empty(value: Any) -> Any:
    """Returns a new table like one of `_FILLED`, with nothing in it."""
    match value:
        case defaultdict(default_factory=factory):
            return defaultdict(factory)
        case deque(maxlen=maxlen):
            return deque(maxlen=maxlen)
    return type(value)()


@lru_cache(maxsize=8)
def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module([], [])
