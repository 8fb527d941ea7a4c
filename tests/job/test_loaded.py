"""Whether a module is what its file says now: what was imported runs, and what is on disk is recorded."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import curate
from curate.code import sources
from curate.code.function import callable_text
from curate.code.loaded import changed_since_import
from tests.job.inline import refusing

SOURCE = """
import dataclasses, functools

def outer(x):
    \"\"\"Says something.\"\"\"
    return [y for y in (lambda: x)()]  # and more

def logged(function):
    @functools.wraps(function)
    def wrapper(row):
        return function(row)
    return wrapper

@logged
def made(row):
    return {"n": row["id"] + 1}

class Thing:
    def method(self):
        return 1
    @staticmethod
    def fixed():
        return 2
    @property
    def shown(self):
        return 3
    @shown.setter
    def shown(self, value):
        self.kept = 4
    @functools.cached_property
    def once(self):
        return 5
    @functools.lru_cache
    def known(self):
        return 6
    @functools.singledispatchmethod
    def by_type(self, value):
        return 7
    bound = functools.partialmethod(lambda self, value: 8, 1)
    class Within:
        def method(self):
            return 9

@functools.cache
def cached(x):
    return 10

@functools.singledispatch
def chosen(x):
    return 11

@chosen.register
def _(x: int):
    return 12

@chosen.register
def _(x: str):
    return 13

def unnamed(function):
    return lambda row: function(row)

@unnamed
def decorated(row):
    return 14

given = functools.partial(lambda row: 15, 1)

@dataclasses.dataclass
class Made:
    n: int = 0
"""
SAME = {
    "nothing": lambda text: text,
    "a comment": lambda text: text.replace("# and more", "# and less"),
    "a docstring": lambda text: text.replace("Says something", "Says nothing"),
    "layout": lambda text: "\n\n" + text.replace("\n\n", "\n\n\n"),
    "a further function": lambda text: text + "\ndef new():\n    return 9\n",
}


def _with_another(text: str, number: int) -> str:
    return re.sub(rf"(return |= |: ){number}\b", rf"\g<1>{number}00", text)


OTHER: dict[str, Callable[[str], str]] = {
    "outer.<locals>.<lambda>": lambda text: text.replace("(lambda: x)", "(lambda: x or [])"),
    "outer": lambda text: (
        text.replace("for y in", "for y in *[],").replace("*[],", "list")
        and text.replace("return [y", "x = x\n    return [y")
    ),
    "made": lambda text: text.replace("+ 1}", "+ 100}"),
    "Thing.method": lambda text: text.replace("return 1\n", "return 11\n"),
    "Thing.fixed": lambda text: text.replace("return 2", "return 22"),
    "Thing.shown": lambda text: text.replace("return 3", "return 33"),
    **{f"return {number}": lambda text, number=number: _with_another(text, number) for number in range(4, 16)},
    "Thing.method gone": lambda text: text.replace("def method", "def other"),
}


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, Path]]:
    """A module, and its file."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "loaded_module.py"
    path.write_text(SOURCE)
    yield importlib.import_module("loaded_module"), path
    del sys.modules["loaded_module"]


@pytest.mark.parametrize("how", SAME)
def test_what_changes_no_function_is_no_change(how: str, loaded: tuple[ModuleType, Path]) -> None:
    module, path = loaded
    assert changed_since_import(module, str(path), SAME[how](SOURCE).encode()) == ""


@pytest.mark.parametrize("how", OTHER)
def test_the_first_function_that_is_another_is_named(how: str, loaded: tuple[ModuleType, Path]) -> None:
    module, path = loaded
    changed = OTHER[how](SOURCE)
    assert changed != SOURCE
    assert changed_since_import(module, str(path), changed.encode())


def test_rows_are_not_recorded_as_those_of_other_code(loaded: tuple[ModuleType, Path], tmp_path: Path) -> None:
    """Until it is reloaded; a file that is no Python now, or is gone, says nothing."""
    module, path = loaded

    def write(name: str) -> Callable[[], object]:
        return lambda: curate.range(2).map(module.made).write_json(tmp_path / name, backend="inline")

    write("before")()
    path.write_text(OTHER["made"](SOURCE))
    with refusing("has changed since this process imported it: made is another function there now"):
        write("between")()
    assert not (tmp_path / "between").exists()
    importlib.reload(module)
    write("after")()
    assert [row["n"] for row in curate.read_json(tmp_path / "after").take_all()] == [100, 101]


def test_a_file_is_parsed_once_until_it_changes(
    loaded: tuple[ModuleType, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of its functions are used, in however many datasets: each asks for its module."""
    module, path = loaded
    parse, files = ast.parse, []

    def noted(source: Any, *args: Any, **kwargs: Any) -> Any:
        files.extend([source] if isinstance(source, bytes) else [])
        return parse(source, *args, **kwargs)

    monkeypatch.setattr(ast, "parse", noted)
    # Other tests have used the same file.
    sources._top.cache_clear()
    first = [callable_text("f", one) for one in (module.made, module.outer, module.made)]
    assert files == [SOURCE.encode()]
    changed = OTHER["made"](SOURCE)
    path.write_text(changed)
    importlib.reload(module)
    again = [callable_text("f", one) for one in (module.made, module.outer, module.made)]
    assert files == [SOURCE.encode(), changed.encode()]
    assert first[0] == first[2] != again[0] == again[2]
    assert first[1] == again[1]


def test_no_object_is_asked_for_anything(loaded: tuple[ModuleType, Path]) -> None:
    """What stands for another library's may raise then, as Ray's client does."""

    class Touchy:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    module, path = loaded
    module.touchy = Touchy()  # type: ignore[attr-defined]
    assert changed_since_import(module, str(path), SOURCE.encode()) == ""


def test_what_was_not_compiled_from_the_file_alone_is_not_judged(loaded: tuple[ModuleType, Path]) -> None:
    """As test modules are by pytest, whose assertions are others."""
    module, path = loaded
    module.__loader__ = object()  # type: ignore[assignment]
    assert changed_since_import(module, str(path), OTHER["made"](SOURCE).encode()) == ""


SETS = """
chosen = lambda row: row["x"] in {"alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta"}

def told(row):
    return row["x"] in {"alpha", "beta", "gamma", "delta"} or (row["y"], 1) in {("a", 1), ("b", 2), ("c", 3)}
"""
SAYS = """
import hashlib, sys
from pathlib import Path
from curate.code.function import callable_text
from curate.code.loaded import changed_since_import
import sets_module
path = Path(sets_module.__file__)
print(changed_since_import(sets_module, str(path), path.read_bytes()) or "the same")
for one in (sets_module.chosen, lambda row: row in ({"one", "two", "three", "four", "five"}, 1)):
    print(hashlib.sha256(callable_text("f", one).encode()).hexdigest())
"""


@pytest.mark.slow
def test_set_literals_are_the_same_in_every_process(tmp_path: Path) -> None:
    """Whatever order a process has their elements in, compiled here or read from what another one compiled."""
    (tmp_path / "sets_module.py").write_text(SETS)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(curate.__file__).parents[1])])}
    said = set()
    for seed in range(6):
        ran = subprocess.run(
            [sys.executable, "-c", SAYS],
            env={**environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        )
        said.add(ran.stdout)
    (only,) = said
    assert only.splitlines()[0] == "the same"
