"""A digest of what a job's class says: its syntax tree, without docstrings, comments and layout.

It covers the class, its bases outside of curate, and whatever at the top level of their modules they name,
transitively. What they import is not covered: that is what the lock file pins.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from pathlib import Path


def code_digest(cls: type) -> str:
    """Returns 16 hex digits of the code of a class; empty if its source cannot be found (an interactive session)."""
    parts = []
    for base in cls.__mro__:
        if base is object or base.__module__ == "curate" or base.__module__.startswith("curate."):
            continue
        source = _class_trees(base)
        if source is None:
            return ""
        parts += [ast.dump(_without_docstrings(tree)) for tree in source]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _class_trees(cls: type) -> list[ast.AST] | None:
    """Returns the class's tree and those of the top-level names that it uses, in the order of the module."""
    module = sys.modules.get(cls.__module__)
    path = getattr(module, "__file__", None)
    if path is None or not Path(path).exists():
        return None
    top = ast.parse(Path(path).read_text()).body
    defined: dict[str, ast.stmt] = {}
    for statement in top:
        for name in _names_defined(statement):
            defined[name] = statement
    if "." in cls.__qualname__ or cls.__name__ not in defined:
        try:
            root: ast.stmt = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        except (OSError, TypeError, SyntaxError):
            return None
    else:
        root = defined[cls.__name__]
    wanted, queue = {id(root)}, [root]
    while queue:
        for node in ast.walk(queue.pop()):
            if isinstance(node, ast.Name) and (used := defined.get(node.id)) is not None and id(used) not in wanted:
                wanted.add(id(used))
                queue.append(used)
    trees: list[ast.AST] = [statement for statement in top if id(statement) in wanted]
    return trees if any(tree is root for tree in trees) else [root, *trees]


def _names_defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        return [node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    return []


class _DocstringRemover(ast.NodeTransformer):
    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:] or [ast.Pass()]
        return node


def _without_docstrings(tree: ast.AST) -> ast.AST:
    visited: ast.AST = _DocstringRemover().visit(tree)
    return visited
