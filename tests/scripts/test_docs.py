"""scripts/docs: all that users can import has its place in the reference, a docstring and an example."""

from __future__ import annotations

import subprocess
import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

import curate
import curate.testing

SCRIPT = Path(__file__).parents[2] / "scripts" / "docs"


def undocumented(module: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    pdoc = pytest.importorskip("pdoc.doc")
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    script = types.ModuleType("docs")
    SourceFileLoader("docs", str(SCRIPT)).exec_module(script)
    return list(script.undocumented(pdoc.Module(module)))


@pytest.mark.slow
def test_the_reference_is_complete(tmp_path: Path) -> None:
    """Each public name has a place there, and pdoc warns of nothing."""
    made = subprocess.run([sys.executable, SCRIPT, "--output", tmp_path], capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout == f"{tmp_path}/index.html\n"
    pages = {name: (tmp_path / name).read_text() for name in ("curate.html", "curate/testing.html")}
    assert [name for name in curate.__all__ if f'id="{name}"' not in pages["curate.html"]] == []
    assert [name for name in curate.testing.__all__ if f'id="{name}"' not in pages["curate/testing.html"]] == []
    assert 'id="Dataset.map_batches"' in pages["curate.html"]


def test_who_says_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its full name; what an example of its class shows needs none of its own."""
    module = types.ModuleType("example")
    code = '''
class Shown:
    """Is shown.

    >>> Shown().used()
    """
    def used(self): "Is used."
    def unused(self): "Is not."
    def silent(self): pass
def function(): "Does something."
'''
    exec(code, vars(module))
    module.__all__ = ["Shown", "function"]  # type: ignore[attr-defined]
    assert sorted(undocumented(module, monkeypatch)) == [
        "no docstring: example.Shown.silent",
        "no example: example.Shown.unused",
        "no example: example.function",
    ]
