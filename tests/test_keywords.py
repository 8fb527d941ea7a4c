"""Keyword arguments that are declared once, as whoever asks for help sees them."""

from __future__ import annotations

import ast
import pydoc
import re
from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pytest

import curate
from curate.dataset.grouped import GroupedData
from curate.driver.options import RunArguments
from curate.operators.udf import UdfOptions

FUNCTIONS: list[tuple[Callable[..., Any], Any]] = [
    (curate.Job.run, RunArguments),
    (curate.Job.options, RunArguments),
    (curate.Dataset.map_batches, UdfOptions),
    (curate.Dataset.map, UdfOptions),
    (curate.Dataset.flat_map, UdfOptions),
    (curate.Dataset.filter, UdfOptions),
    (GroupedData.map_groups, UdfOptions),
]


@pytest.mark.parametrize(("function", "typed"), FUNCTIONS, ids=lambda one: getattr(one, "__qualname__", ""))
def test_each_is_shown_by_name(function: Callable[..., Any], typed: Any) -> None:
    shown = signature(function).parameters
    assert Parameter.VAR_KEYWORD not in {one.kind for one in shown.values()}
    assert all(shown[name].kind is Parameter.KEYWORD_ONLY for name in typed.__annotations__)


def test_help_shows_types_and_what_has_to_be_given() -> None:
    assert "output: str | os.PathLike[str], backend: str = 'auto'" in pydoc.plaintext.document(curate.Job.run)
    shown = "fn_args: collections.abc.Iterable[typing.Any] | None = None"
    assert shown in pydoc.plaintext.document(curate.Dataset.map_batches)


CURATE = Path(curate.__file__).parent
FOR_THE_COMMAND_LINE = {"cli", "job/arguments.py", "job/command.py", "keywords.py", "pages/style.py"}
"""What only a command line reaches; and what is no message: variables of CSS are called so, too."""
WORD = re.compile(r"(?<![\w-])--[a-z]+")
BUCKET_SUFFIX = "--x-s3"
COMMAND = re.compile(r"\b(curate (retry|run|failures|replay|logs|status)|ray (start|job submit)|ray.init)\b")


def _texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the texts of a module that are no docstring, values in them as `{}`."""
    if isinstance(tree, ast.JoinedStr):
        yield tree.lineno, "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in tree.values)
    elif isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        yield tree.lineno, tree.value
    is_leaf = isinstance(tree, ast.JoinedStr) or (isinstance(tree, ast.Expr) and isinstance(tree.value, ast.Constant))
    for child in () if is_leaf else ast.iter_child_nodes(tree):
        yield from _texts(child)


def test_no_message_is_in_the_words_of_the_command_line_only() -> None:
    """What was asked for in Python has no `--overwrite`: an option is said by `option()`. A command may be quoted."""
    found = []
    for path in sorted(CURATE.rglob("*.py")):
        name = path.relative_to(CURATE).as_posix()
        if FOR_THE_COMMAND_LINE.isdisjoint({name, name.partition("/")[0]}):
            texts = _texts(ast.parse(path.read_text()))
            found += [
                f"{name}:{line}: {text}"
                for line, text in texts
                if WORD.search(COMMAND.split(text)[0]) and text != BUCKET_SUFFIX
            ]
    assert found == []
