"""Which global names a piece of code reads: what it is compiled to tells them from those of its functions alone."""

from __future__ import annotations

import ast
import dis
import types
from collections.abc import Sequence


def compiled(node: ast.AST) -> list[types.CodeType]:
    """Returns what a statement is compiled to, alone in a module; nothing of an expression, or where that fails."""
    if not isinstance(node, ast.stmt):
        return []
    try:
        # With what `python -O` leaves out: a job is the same one there.
        return [compile(ast.Module([node], []), "<code>", "exec", dont_inherit=True, optimize=0)]
    except (SyntaxError, ValueError):
        return []


def globals_read(codes: Sequence[types.CodeType]) -> dict[str, dict[str, None]]:
    """Returns the global names that compiled code reads, each with the attributes that it asks of them."""
    found: dict[str, dict[str, None]] = {}
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


def own_names(node: ast.AST) -> set[str]:
    """Returns the names in a statement that are its functions' own, though its module may have others called like them.

    >>> sorted(own_names(ast.parse("def f(x, k=K): y = x + k; return y + Z").body[0]))
    ['k', 'x', 'y']
    """
    codes = compiled(node)
    named = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return named - globals_read(codes).keys() if codes else set()
