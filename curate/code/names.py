"""Which global names a piece of code reads: what it is compiled to tells them from those of its functions alone."""

from __future__ import annotations

import ast
import dis
import types
from collections.abc import Sequence
from functools import lru_cache

Read = dict[str, dict[str, None]]
"""Names, each with the attributes that are asked of them."""


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


def globals_read(codes: Sequence[types.CodeType]) -> Read:
    """Returns the global names that compiled code reads, each with the attributes that it asks of them."""
    found: Read = {}
    queue = list(codes)
    for code in queue:
        name = ""
        for one in dis.get_instructions(code):
            if one.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                name = one.argval
                found.setdefault(name, {})
            elif one.opname != "EXTENDED_ARG":
                if name and one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                    found[name][one.argval] = None
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


def own_names(node: ast.AST) -> set[str]:
    """Returns the names in a statement that are its functions' own, though its module may have others called like them.

    >>> sorted(own_names(ast.parse("def f(x, k=K): y = x + k; return y + Z").body[0]))
    ['k', 'x', 'y']
    """
    if (read := globals_named(node)) is None:
        return set()
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} - read.keys()
