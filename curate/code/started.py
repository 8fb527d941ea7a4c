"""What a variable began with that a function closes over, or has as a default, and changes as it runs, as a cache."""

from __future__ import annotations

import ast
import copy
import dis
import linecache
import types
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from curate.code.names import CHANGING, changes
from curate.code.syntax import definition

_NOT_CHANGED = (str, bytes, types.FunctionType, types.ModuleType, type)
"""Types of which most are that functions close over, and none is filled."""
_FILLED = (dict, list, set, deque)
_Def = ast.FunctionDef | ast.AsyncFunctionDef


def as_started(function: types.FunctionType, name: str, value: Any) -> Any:
    """Returns what a variable of a function began with, if that changes it and a statement tells this; else its value.

    Rows decide what is in it then, and not it what is in the rows. What it is given from elsewhere counts as it is.
    """
    if isinstance(value, _NOT_CHANGED) or not any(name in changed_names(one) for one in _sharing(function, name)):
        return value
    is_closed_over = name in function.__code__.co_freevars
    expression = _assigned(function.__code__, name) if is_closed_over else _default_of(function, name)
    if expression is None:
        return value
    try:
        return ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _emptied(value) if isinstance(value, _FILLED) and _is_empty(expression) else value


def changed_names(function: types.FunctionType | _Def) -> set[str]:
    """Returns the names of what a function changes as it runs."""
    tree = definition(function) if isinstance(function, types.FunctionType) else function
    if tree is None and isinstance(function, types.FunctionType):
        return set(_changed_by_code(function.__code__))
    nodes = list(ast.walk(tree)) if tree is not None else []
    stated = {name for one in nodes if isinstance(one, ast.Nonlocal) for name in one.names}
    return stated.union(filter(None, map(changes, nodes)))


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
        if isinstance(other, types.FunctionType) and any(one is cells[name] for one in other.__closure__ or ()):
            yield other


def _default_of(function: types.FunctionType, name: str) -> ast.expr | None:
    """Returns the expression of a default; None of a variable that is no argument, and of a lambda's."""
    if (tree := definition(function)) is None:
        return None
    args = tree.args
    positional = [*args.posonlyargs, *args.args][-len(args.defaults) or None :]
    pairs = (*zip(positional, args.defaults, strict=False), *zip(args.kwonlyargs, args.kw_defaults, strict=True))
    return next((default for arg, default in pairs if arg.arg == name), None)


def _assigned(code: types.CodeType, name: str) -> ast.expr | None:
    """Returns the expression that a function around this one assigns to a variable, if it names it for nothing else."""
    tree = _parsed("".join(linecache.getlines(code.co_filename)))
    around = [one for one in ast.walk(tree) if isinstance(one, _Def) and _is_around(one, code)]
    for one in sorted(around, key=lambda one: -one.lineno):
        if name in {arg.arg for arg in ast.walk(one.args) if isinstance(arg, ast.arg)}:
            return None
        inner = list(_own(one))
        named = [node for node in inner if isinstance(node, ast.Name) and node.id == name]
        for node in inner:
            match node:
                case ast.Assign([ast.Name() as target], value) if named == [target]:
                    return value
                case ast.AnnAssign(ast.Name() as target, _, ast.expr() as value) if named == [target]:
                    return value
        if named:
            return None
    return None


def _is_around(node: _Def, code: types.CodeType) -> bool:
    is_itself = node.name == code.co_name and code.co_firstlineno <= node.lineno
    return not is_itself and node.lineno <= code.co_firstlineno <= (node.end_lineno or 0)


def _own(function: _Def) -> Iterator[ast.AST]:
    """Yields the nodes of a function that are in no function in it."""
    queue: list[ast.AST] = list(function.body)
    for one in queue:
        yield one
        if not isinstance(one, _Def | ast.Lambda | ast.ClassDef):
            queue += ast.iter_child_nodes(one)


def _is_empty(expression: ast.expr) -> bool:
    """Returns whether a call makes a table that has nothing in it: `set()`, `defaultdict(list)`, `deque(maxlen=3)`."""
    match expression:
        case ast.Call(ast.Name("defaultdict") | ast.Attribute(_, "defaultdict"), [ast.Name()], []):
            return True
        case ast.Call(ast.Name() | ast.Attribute(), [], keywords):
            return all(one.arg == "maxlen" for one in keywords)
    return False


def _emptied(value: Any) -> Any:
    empty = copy.copy(value)
    empty.clear()
    return empty


@lru_cache(maxsize=8)
def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module([], [])
