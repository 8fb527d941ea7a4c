"""Which global names a piece of code reads: what it is compiled to tells them from those of its functions alone."""

from __future__ import annotations

import ast
import dis
import re
import types
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

CHANGING = re.compile("append(left)?|add|update|setdefault|extend|insert|pop(item)?|remove|discard|clear")
"""Methods that change what they are called on."""
_MADE = re.compile("_.*_|_fields|_field_defaults")
_AS_MADE = ("__init__", "__post_init__", "__setstate__")
"""Methods that set what an object is made with."""
_ASK_NOTHING = ("getattr", "id", "isinstance", "setattr", "super", "type")
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_SCOPES = _FUNCTIONS | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
"""What has names of its own."""

Read = dict[str, dict[str, None]]
"""Names, each with the attributes that are asked of them; `WHOLE` where they are handed on, and any may be."""
WHOLE = ""
CALLED = "()"
"""In place of `WHOLE`, where they are called: what is called knows itself what it asks of itself."""


@lru_cache(maxsize=64)
def globals_named(node: ast.AST) -> Read | None:
    """Returns the global names that a statement reads, compiled alone in a module; None of an expression, or where that
    fails. Nobody changes it: whoever asks of the same statement next gets it, too."""
    if not isinstance(node, ast.stmt):
        return None
    try:
        # With what `python -O` leaves out: a job is the same one there.
        return globals_read([compile(ast.Module([node], []), "<code>", "exec", dont_inherit=True, optimize=0)])
    except (SyntaxError, ValueError):
        return None


_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
AROUND = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
"""What Python loads the variables with of functions around one."""


def globals_read(codes: Sequence[types.CodeType], loads: Sequence[str] = _GLOBAL) -> Read:
    """Returns the global names that code reads, or functions `AROUND` it, with the attributes that it asks of them."""
    found: Read = {}
    queue = list(codes)
    for code in queue:
        name, is_asked, handed = "", False, WHOLE
        for one in dis.get_instructions(code):
            if one.opname in loads:
                if name:  # handed on, or called
                    found[name][handed] = None
                name, is_asked = one.argval, name == "getattr"
                handed = CALLED if one.opname == "LOAD_GLOBAL" and (one.arg or 0) & 1 else WHOLE
                found.setdefault(name, {})
            elif one.opname != "EXTENDED_ARG":
                is_named = one.opname in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR")
                if name:
                    is_named |= is_asked and one.opname == "LOAD_CONST" and isinstance(one.argval, str)
                    found[name][one.argval if is_named else handed] = None
                name = ""
        queue += [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return found


def names_in(code: types.CodeType) -> dict[str, None]:
    """Returns all names that compiled code looks up: global ones, and attributes."""
    codes, names = [code], dict[str, None]()
    while codes:
        one = codes.pop()
        names.update(dict.fromkeys(one.co_names))
        codes += [inner for inner in one.co_consts if isinstance(inner, types.CodeType)]
    return names


def attributes_in(node: ast.AST, *, by_methods: bool = False) -> set[str]:
    """Returns the attributes that code asks for, whatever of, without those that Python sets on classes; or those that
    methods of a class set as they run: not `__init_subclass__` and the like.

    >>> attributes_in(ast.parse("class C:\\n  def __new__(c): c.a = 1\\n  def f(s): s.b = 1").body[0], by_methods=True)
    {'b'}
    """
    body = node.body if isinstance(node, ast.ClassDef) else []
    methods = [one for one in body if isinstance(one, _FUNCTIONS) and getattr(one, "name", "")[:2] != "__"]
    inner = [one for top in (methods if by_methods else [node]) for one in ast.walk(top)]
    kind = ast.Store if by_methods else ast.Load
    found = [one for one in inner if isinstance(one, ast.Attribute) and isinstance(one.ctx, kind)]
    return {one.attr for one in found if not _MADE.fullmatch(one.attr)}


def own_names(node: ast.AST) -> set[str]:
    """Returns the names in a statement that are its functions' own, though its module may have others called like them.

    >>> sorted(own_names(ast.parse("def f(x, k=K): y = x + k; return y + Z").body[0]))
    ['k', 'x', 'y']
    """
    if (read := globals_named(node)) is None:
        return set()
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} - read.keys()


def globals_changed(node: ast.AST) -> Iterator[str]:
    """Yields the global names of what functions in a tree change as they run; those that functions import, too.

    >>> list(globals_changed(ast.parse("def f(x, a=[]): a.append(x); b[x] = 1; c = {}; c[x] = 1; d.n += 1")))
    ['b', 'd.n']
    """
    queue: list[tuple[ast.AST, frozenset[str], bool]] = [(node, frozenset(), False)]
    for one, own, runs in queue:
        if isinstance(one, _SCOPES):
            own, runs = _own(one, own), runs or isinstance(one, _FUNCTIONS)
        elif runs and isinstance(one, ast.Global):
            yield from one.names
        elif runs and (name := changes(one)) and name.partition(".")[0] not in own:
            yield name
        queue += [(child, own, runs) for child in ast.iter_child_nodes(one)]


def changes(node: ast.AST) -> str:
    """Returns the name of what an expression changes, with the attribute if only that is set; empty if nothing."""
    match node:
        case ast.Attribute(ast.Name(name), str(attribute), ast.Store() | ast.Del()):
            return f"{name}.{attribute}"
        case ast.Attribute(ast.Attribute(ast.Name(name), str(attribute)), str(called), ast.Load()) if (
            CHANGING.fullmatch(called)
        ):
            return f"{name}.{attribute}"
        case ast.Subscript(ast.Attribute(ast.Name(name), str(attribute)), _, ast.Store() | ast.Del()):
            return f"{name}.{attribute}"
        case ast.Attribute(ast.Name(name), str(called), ast.Load()) if CHANGING.fullmatch(called):
            return name
        case ast.Subscript(ast.Name(name), _, ast.Store() | ast.Del()):
            return name
    return ""


def _own(scope: ast.AST, around: frozenset[str]) -> frozenset[str]:
    """Returns the names that are no global ones in a function or comprehension: its own, and those around it."""
    found, stated, queue = set(around), set[str](), [scope]
    for one in queue:
        match one:
            case ast.Name(str(name), ast.Store() | ast.Del()) | ast.arg(str(name)):
                found.add(name)
            case ast.ExceptHandler(_, str(name)) | ast.MatchAs(_, str(name)) | ast.MatchStar(str(name)):
                found.add(name)
            case ast.MatchMapping(rest=str(name)):
                found.add(name)
            case ast.FunctionDef(str(name)) | ast.AsyncFunctionDef(str(name)) | ast.ClassDef(str(name)):
                found |= set() if one is scope else {name}
            case ast.Global(names):
                stated.update(names)
        if one is scope or not isinstance(one, _SCOPES):
            queue += ast.iter_child_nodes(one)
    return frozenset(found - stated)


def used_of_self(body: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yields the attributes that the methods of a class use of their objects, each with how: it is `asked`, `set` after
    these were made, or `filled`, as a cache is; `WHOLE` where they hand these on."""
    for method in (one for one in body.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)):
        me = next((one.arg for one in (*method.args.posonlyargs, *method.args.args)), "")
        nodes = list(ast.walk(method))
        for one in nodes:
            name, inner = _self_name(one, me), _self_name(getattr(one, "value", None), me)
            if name and _is_read(one):
                yield name, "asked"
            elif name and method.name not in _AS_MADE:
                yield name, "set"
            if inner and method.name not in _AS_MADE and (not _is_read(one) or _calls_a_change(one)):
                yield inner, "filled"
        if me and method.name not in _AS_MADE and any(_hands_on(one, me) for one in nodes):
            yield WHOLE, "asked"


def mangled(name: str, cls: str) -> str:
    """Returns what Python calls an attribute that is private to a class of a name.

    >>> mangled("__k", "_Of"), mangled("_k", "Of"), mangled("__k__", "Of")
    ('_Of__k', '_k', '__k__')
    """
    is_private = name[:2] == "__" and name[-2:] != "__"
    return f"_{cls.lstrip('_')}{name}" if is_private else name


def _is_read(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", ast.Load()), ast.Load)


def _calls_a_change(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and CHANGING.fullmatch(node.attr) is not None


def _self_name(node: Any, me: str) -> str:
    """Returns the `name` of `self.name`, as `me` is called; empty for another expression."""
    match node:
        case ast.Attribute(ast.Name(called), str(name)) if called == me:
            return name
    return ""


def _hands_on(node: ast.AST, me: str) -> bool:
    """Returns whether an expression hands an object on, of which others may ask anything then."""
    if not isinstance(node, ast.Call) or (isinstance(node.func, ast.Name) and node.func.id in _ASK_NOTHING):
        return False
    given = (*node.args, *(one.value for one in node.keywords))
    return any(isinstance(one, ast.Name) and one.id == me for one in given)
