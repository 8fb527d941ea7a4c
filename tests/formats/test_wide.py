"""Files of very many columns: what is done for each column does not grow with the others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import curate

ROOT = Path(curate.__file__).parent
NAMES = ("names", "column_names")
"""What makes a list each time: of a schema, and of a table."""


def _done_again(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields what a loop, or a comprehension, does once for each of its items."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.While):
            yield from node.body
        elif isinstance(node, ast.DictComp):
            yield from (node.key, node.value, *(test for one in node.generators for test in one.ifs))
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            yield from (node.elt, *(test for one in node.generators for test in one.ifs))


def _is_names(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in NAMES


def _is_of_all(node: ast.AST) -> bool:
    """Returns whether it is the names of all columns, or what a function makes of all of them."""
    given = node.args if isinstance(node, ast.Call) else []
    return _is_names(node) or any(isinstance(one, ast.Name) and one.id in ("schema", "table") for one in given)


def _searches(tree: ast.AST) -> Iterator[str]:
    """Yields where the names of all columns, or what a function makes of them, are searched for one of them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            if any(isinstance(how, ast.In | ast.NotIn) for how in node.ops) and any(map(_is_of_all, node.comparators)):
                yield ast.unparse(node)
        elif isinstance(node, ast.Attribute) and node.attr in ("count", "index") and _is_names(node.value):
            yield ast.unparse(node)


@pytest.mark.parametrize("room", ["formats", "arrow", "exchange", "job", "operators", "reduce"])
def test_no_loop_searches_all_names_for_each_column(room: str) -> None:
    """It took two minutes to look into a file of CSV with 10,000 columns: a set of the names is made once."""
    found = {
        f"{path.relative_to(ROOT)}: {search}"
        for path in (ROOT / room).rglob("*.py")
        for again in _done_again(ast.parse(path.read_text()))
        for search in _searches(again)
    }
    assert not found
