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
from curate.errors import ConfigError
from curate.job.settings import SETTINGS, TUNABLE
from curate.operators.udf import UdfOptions
from curate.resume.options import RunArguments

pytestmark = pytest.mark.quick

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
    # In one line or in several: from Python 3.13 on, a long signature has a line for each argument.
    told = " ".join(pydoc.plaintext.document(curate.Job.run).split())
    assert "output: str | os.PathLike[str], backend: str = 'auto'" in told
    shown = "fn_args: collections.abc.Iterable[typing.Any] | None = None"
    assert shown in pydoc.plaintext.document(curate.Dataset.map_batches)


class Mine(curate.Job):
    """Writes rows as they are."""

    version = "1"
    word: str = "a"

    def process(self, batch: Any) -> Any:
        return batch


def refused(function: Callable[..., Any], **given: Any) -> str:
    """Returns why it is not called with these."""
    with pytest.raises(ConfigError) as error:
        function(**given)
    return str(error.value)


@pytest.mark.parametrize("ask", [Mine().run, Mine.options], ids=["run", "options"])
def test_a_run_names_the_place_of_what_is_no_option_of_it(ask: Callable[..., Any]) -> None:
    """Whatever belongs to a job is none; what is near is asked for, all that there is is listed, nothing begins."""
    paths = {"input": "in", "output": "out"}
    for name in ("word", *TUNABLE):
        what = "setting" if name in SETTINGS else "parameter"
        assert refused(ask, **paths, **{name: 1}) == (
            f"a run of Mine has no option {name!r}: it is a {what} of the job; write Mine({name}=...)"
        )
    for name in SETTINGS.keys() - TUNABLE:
        assert refused(ask, **paths, **{name: 1}).endswith(f"write {name} = ... in class Mine")
    listed = f"it has: {', '.join(sorted(RunArguments.__annotations__))}"
    assert refused(ask, **paths, limti=1) == f"a run of Mine has no option 'limti'; did you mean 'limit'?; {listed}"
    assert refused(ask, **paths, qqqqq=1) == f"a run of Mine has no option 'qqqqq'; {listed}"
    assert refused(ask, input="in", outptu="out").startswith(
        "a run of Mine has no option 'outptu'; did you mean 'output'?"
    )
    assert refused(ask, input="in") == "a run of Mine needs the prefix to write below; add output=..."
    assert refused(ask, output="out") == "a run of Mine needs the files, folders or globs to read; add input=..."


def test_a_job_names_the_place_of_what_is_no_parameter_of_it() -> None:
    """Options of a run, and settings that only a class has."""
    for name in RunArguments.__annotations__:
        assert refused(Mine, **{name: 1}) == (
            f"Mine has no parameter {name!r}: it is an option of a run; write run({name}=...)"
        )
    for name in SETTINGS.keys() - TUNABLE:
        assert refused(Mine, **{name: 1}).endswith(f"it is a setting of the class; write {name} = ... in class Mine")


def test_a_method_lists_what_it_takes() -> None:
    says = r"unexpected keyword argument 'output'; it takes: path, codec, partition_cols, "
    with pytest.raises(TypeError, match=says):
        curate.range(3).write_parquet("out", output="out")  # type: ignore[call-arg]


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
