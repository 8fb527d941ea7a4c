"""The canonical text of a syntax tree, without layout, comments and docstrings, and that of compiled code."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
import types
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from itertools import chain
from typing import Any

_HAS_DOCSTRING = 0x4000000
"""From Python 3.14 on, a function's flags say whether its first constant is its docstring."""
_DEFINE = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
"""What has statements in it that do not run with it, or not as those around it."""
_LOOPS = ast.For | ast.While
_LEAVES = "break"
"""Stands among names for what leaves a loop, or begins its next round."""
_WITHIN = ("body", "handlers", "orelse", "finalbody", "cases")
"""The fields that statements are in which run with one."""
_SILENT = ("ctx", "kind", "type_comment", "type_ignores")
"""Fields that say nothing which the rest does not."""


def canonical(node: ast.AST, leave_out: Collection[str] = ()) -> str:
    """Returns the tree as text: without docstrings, other bare strings, `pass`, positions, and the help of `param`.

    Fields that are empty are left out, so that a Python that knows more of them gives the same text. `leave_out` are
    names whose assignments in the body of the class `node` do not count.

    >>> spread = ast.parse("def f( x ):\\n  'adds one'\\n  return x+1")
    >>> canonical(spread) == canonical(ast.parse("def f(x): return x + 1"))
    True
    """
    if isinstance(node, ast.ClassDef) and leave_out:
        body = [statement for statement in node.body if not _assigns(statement, leave_out)]
        node = ast.ClassDef(**{**dict(ast.iter_fields(node)), "body": body})
    return _text(node)


def source_of(code: Any) -> ast.stmt | None:
    """Returns the statement that a function or a class is in, as its file has it; None where there is none."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(code))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None


def definition(function: Any) -> ast.FunctionDef | None:
    """Returns the whole definition of a function; None of a lambda, whose source is the statement around it.

    Of a wrapper it is its own one, and not that of what it wraps, whose name and place `functools.wraps` gives it.
    """
    bare = types.FunctionType(function.__code__, function.__globals__, closure=function.__closure__)
    tree = source_of(bare)
    return tree if isinstance(tree, ast.FunctionDef) and tree.name == bare.__name__ else None


@lru_cache(maxsize=4096)
def walruses(node: ast.AST) -> tuple[ast.NamedExpr, ...]:
    """Returns the `name := value` in the expressions of a statement, without those of statements inside of it."""
    found, queue = [], [node]
    for one in queue:
        found += [one] if isinstance(one, ast.NamedExpr) else []
        inner = () if isinstance(one, ast.Lambda) else ast.iter_child_nodes(one)
        queue += [child for child in inner if isinstance(child, ast.expr | ast.withitem | ast.comprehension)]
    return tuple(found)


def top_level(statement: ast.AST) -> Iterator[ast.AST]:
    """Yields a statement and those inside of it that run with it: not what is in functions and classes."""
    yield statement
    for child in _inner(statement):
        yield from top_level(child)


def _inner(node: ast.AST) -> Iterator[ast.AST]:
    """Yields what has statements that run with one, of which it is the next above."""
    if not isinstance(node, _DEFINE):
        inner = ast.stmt | ast.ExceptHandler | ast.match_case
        yield from (child for child in ast.iter_child_nodes(node) if isinstance(child, inner))


def names_assigned(node: ast.AST) -> set[str]:
    """Returns the names that a statement alone gives values."""
    if isinstance(node, _DEFINE):
        return {node.name}
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        # Not only names: `TABLE["x"] = 1` gives TABLE another value.
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For):
        targets = [node.target]
    elif isinstance(node, ast.With):
        targets = [item.optional_vars for item in node.items if item.optional_vars is not None]
    elif isinstance(node, ast.Match):
        inner = [one for case in node.cases for one in ast.walk(case.pattern)]
        caught = (getattr(one, "rest", None) or getattr(one, "name", None) for one in inner)
        return {*(one for one in caught if one), *(one.target.id for one in walruses(node))}
    found = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return found.union(one.target.id for one in walruses(node))


def has_parts(statement: ast.AST) -> bool:
    """Returns whether other statements are in one that run with it, as in an `if`."""
    return next(_inner(statement), None) is not None


def parts(statement: ast.stmt) -> dict[str, ast.stmt]:
    """Returns what of a statement decides on the value of each name that it or one inside of it gives one: these, the
    conditions around, and what leaves a loop. A program may do much else in one `if`.

    >>> both = parts(ast.parse("if A:\\n  print(1)\\n  k = 2\\n  j = 3\\nelse:\\n  j = 4").body[0])
    >>> print(ast.unparse(both["k"]))
    if A:
        k = 2
    """
    names: dict[int, set[str]] = {}

    def look(node: ast.AST) -> set[str]:
        found = {_LEAVES} if isinstance(node, ast.Break | ast.Continue) else set(names_assigned(node))
        found = found.union(*map(look, _inner(node)))
        names[id(node)] = found - {_LEAVES} if isinstance(node, _LOOPS) else found
        return names[id(node)]

    def decides(name: str) -> Callable[[ast.AST], bool]:
        return lambda one: not names[id(one)].isdisjoint((name, _LEAVES))

    return {name: _part(statement, decides(name)) for name in look(statement)}


def part_at(statement: ast.stmt, line: int) -> ast.stmt:
    """Returns of a statement the one inside of it that a line is in, with the conditions around, as if it lay there; it
    is the same object each time."""
    inner = [one for one in top_level(statement) if isinstance(one, ast.stmt) and has_line(one, line)][-1]
    if inner is statement and not has_parts(statement):
        return statement
    known: dict[int, ast.stmt] = vars(statement).setdefault("part_at", {})
    if id(inner) not in known:
        part = _part(statement, lambda one: any(within is inner for within in top_level(one)))
        known[id(inner)] = ast.copy_location(part, inner)
    return known[id(inner)]


def has_line(statement: ast.stmt, line: int) -> bool:
    """Returns whether a line is in a statement, or in what decorates it."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(one.lineno for one in decorators)])
    return first <= line <= (statement.end_lineno or 0)


def _part(node: Any, keeps: Callable[[ast.AST], bool]) -> Any:
    """Returns a statement with those inside of it that count, or with which one does."""
    if not has_parts(node):
        return node
    fields = dict(ast.iter_fields(node))
    kept = {name: _kept(fields[name], keeps) for name in _WITHIN if name in fields}
    if "handlers" in fields and (kept["orelse"] or any(map(keeps, chain.from_iterable(map(_inner, node.handlers))))):
        kept["body"] = fields["body"]  # whatever comes before may be what raises
    if kept.get("body") == []:
        kept["body"] = [ast.Pass(lineno=1, col_offset=0)]
    return ast.copy_location(type(node)(**{**fields, **kept}), node)


def _kept(inner: list[Any], keeps: Callable[[ast.AST], bool]) -> list[Any]:
    """Returns what counts of a block; all that catch errors, and all cases, as what comes first decides on the next."""
    return [_part(one, keeps) for one in inner if not isinstance(one, ast.stmt) or keeps(one)]


def _text(value: Any) -> str:
    if isinstance(value, ast.Constant):
        return f"{type(value.value).__name__} {value.value!r}"
    if isinstance(value, ast.Call) and _calls(value.func, "param"):
        keywords = [keyword for keyword in value.keywords if keyword.arg != "help"]
        value = ast.Call(value.func, value.args, keywords)
    if isinstance(value, ast.JoinedStr):
        value = ast.JoinedStr([one for one in value.values if not _is_no_text(one)])
    if isinstance(value, ast.AST):
        fields = ((name, field) for name, field in ast.iter_fields(value) if name not in _SILENT)
        texts = [f"{name}={text}" for name, field in fields if (text := _text(field))]
        return f"{type(value).__name__}({','.join(texts)})"
    if isinstance(value, list):
        items = [_text(item) for item in value if not _says_nothing(item)]
        return f"[{','.join(items)}]" if items else ""
    return "" if value is None else repr(value)


def _says_nothing(node: Any) -> bool:
    if isinstance(node, ast.Pass):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_no_text(node: ast.expr) -> bool:
    """Returns whether a part of an f-string is an empty text, as Python 3.12 alone has behind `{n:{width}}`."""
    return isinstance(node, ast.Constant) and node.value == ""


def _calls(function: ast.expr, name: str) -> bool:
    return (isinstance(function, ast.Name) and function.id == name) or (
        isinstance(function, ast.Attribute) and function.attr == name
    )


def _assigns(statement: ast.stmt, names: Collection[str]) -> bool:
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    else:
        return False
    return all(isinstance(target, ast.Name) and target.id in names for target in targets)


def is_literal(node: ast.expr) -> bool:
    """Returns whether an expression is a value that its text tells."""
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def defaults_in(args: ast.arguments) -> dict[str, ast.expr]:
    """Returns the expressions of defaults, by the names of their arguments.

    >>> list(defaults_in(ast.parse("lambda a, b=1, *, c, d=2: 0").body[0].value.args))
    ['b', 'd']
    """
    positional = [*args.posonlyargs, *args.args][-len(args.defaults) or None :]
    pairs = (*zip(positional, args.defaults, strict=False), *zip(args.kwonlyargs, args.kw_defaults, strict=True))
    return {arg.arg: default for arg, default in pairs if default is not None}


def made_in(statement: ast.AST, code: types.CodeType) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda]:
    """Returns the functions in a statement that may be what code was compiled from: lambdas of one line look alike."""
    names, found, here = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], [], []
    for one in ast.walk(statement):
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            args = (*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs)
            if getattr(one, "name", "<lambda>") == code.co_name and tuple(arg.arg for arg in args) == names:
                found.append(one)
                first = min([one.lineno, *(by.lineno for by in getattr(one, "decorator_list", ()))])
                here += [one] if first <= code.co_firstlineno <= one.lineno else []
    return here or found


def qualname(code: types.FunctionType | type) -> str:
    """Returns the name that code was written with; `functools.wraps` gives a wrapper that of another function."""
    return code.__qualname__ if isinstance(code, type) else code.__code__.co_qualname


def which(statement: ast.stmt, function: types.FunctionType) -> str:
    """Returns which of several functions of its name, as in both branches of an `if`, one is."""
    same = [
        one
        for one in ast.walk(statement)
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == function.__code__.co_name
    ]
    lines = [min([one.lineno, *(decorator.lineno for decorator in one.decorator_list)]) for one in same]
    at = function.__code__.co_firstlineno
    return str(lines.index(at)) if len(same) > 1 and at in lines else ""


def code_text(code: types.CodeType) -> str:
    """Returns compiled code as text, for code without a source: instructions, names, constants, and what is unusual of
    its arguments; no docstring."""
    constants = list(code.co_consts)
    function = bool(code.co_flags & inspect.CO_NEWLOCALS) and code.co_name != "<lambda>"
    if function and constants and isinstance(constants[0], str) and _may_be_docstring(code):
        constants[0] = None
    texts = map(_constant_text, constants)
    told = f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars} ({', '.join(texts)})"
    return f"{told}{_arguments_text(code)}{_handlers_text(code)}"


def _arguments_text(code: types.CodeType) -> str:
    """Returns how many arguments of which kind code takes; nothing where all are given by place or by name, as the
    names and the defaults tell these."""
    starred = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    if not (code.co_posonlyargcount or code.co_kwonlyargcount or starred):
        return ""
    return f" takes {code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount} {starred}"


def _handlers_text(code: types.CodeType) -> str:
    """Returns which instructions of a function which handler is for: all that tells a `try` with `else` from one
    without. An expression, as a lambda is, has no handlers but those that its instructions tell."""
    return f" handles {code.co_exceptiontable.hex()}" if code.co_exceptiontable and code.co_name[0] != "<" else ""


def _constant_text(value: Any) -> str:
    """Returns a constant of compiled code as text. Of a set literal, which is a frozen set there, each process has the
    elements in an order of its own."""
    if isinstance(value, types.CodeType):
        return code_text(value)
    if isinstance(value, frozenset):
        return f"frozenset({{{', '.join(sorted(map(_constant_text, value)))}}})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant_text, value))}{',' * (len(value) == 1)})"
    return repr(value)


def _may_be_docstring(code: types.CodeType) -> bool:
    has_flag = code.co_flags & _HAS_DOCSTRING
    # Before 3.14 the first constant of a `def` is its docstring, or None.
    return bool(has_flag) or not hasattr(inspect, "CO_HAS_DOCSTRING")


def in_brackets(annotation: ast.AST) -> Iterator[ast.AST]:
    """Yields what a type is given, as the value of `Literal[value]`: what is in brackets, at any depth."""
    for one in ast.walk(annotation):
        if isinstance(one, ast.Subscript):
            inner = one.slice.elts if isinstance(one.slice, ast.Tuple) else [one.slice]
            yield from (part for part in inner if not isinstance(part, ast.Name | ast.Attribute | ast.Subscript))
            yield from (part for part in inner if isinstance(part, ast.Subscript) and not _names_type(part.value))


def _names_type(node: ast.AST) -> bool:
    """Returns whether what is before brackets may be a type: not what is read from a table, as `os.environ`."""
    name = getattr(node, "id", "") or getattr(node, "attr", "")
    return name[:1].isupper() or hasattr(builtins, name)


def calls_above(statement: ast.stmt) -> list[ast.AST]:
    """Returns the calls that make what a class is derived from, as `namedtuple("P", "k")`: no other statement does."""
    return [one for one in getattr(statement, "bases", ()) if isinstance(one, ast.Call)]
