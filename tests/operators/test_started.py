"""What a function fills as it runs, as a cache, is no part of what it is; what that began with is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import curate
from curate.code.function import callable_text
from tests.job.modules import Modules

FILLED = {
    "a table by a key": "def make():\n    s = {}\n    def f(x):\n        s[x] = s.get(x, 0) + 1\n        return s[x]\n"
    "    return f\nf = make()",
    "a set": "def make():\n    s = set()\n    def f(x):\n        s.add(x)\n        return x\n    return f\nf = make()",
    "a list that has a value": "def make():\n    s = [0]\n    def f(x):\n        s.append(x)\n        return x\n"
    "    return f\nf = make()",
    "a table with a default": "from collections import defaultdict\ndef make():\n    s = defaultdict(list)\n"
    "    def f(x):\n        s[x].append(1)\n        s[x + 1] = []\n        return x\n    return f\nf = make()",
    "a queue": "import collections\ndef make():\n    s = collections.deque(maxlen=3)\n"
    "    def f(x):\n        s.append(x)\n        return x\n    return f\nf = make()",
    "by a lambda": "def make():\n    s: dict = {}\n    return lambda x: s.setdefault(x, 1)\nf = make()",
    "a number": "def make():\n    n = 0\n    def f(x):\n        nonlocal n\n        n += 1\n        return n\n"
    "    return f\nf = make()",
    "what is made at first": "def make():\n    n = None\n    def f(x):\n        nonlocal n\n        n = n or {1: 2}\n"
    "        return n\n    return f\nf = make()",
    "by another function": "def make():\n    s = {}\n    def put(x): s[x] = 1\n    def f(x):\n        put(x)\n"
    "        return len(s)\n    return f\nf = make()",
    "by a wrapper": "import functools\ndef memo(h):\n    s = {}\n    @functools.wraps(h)\n    def f(x):\n"
    "        if x not in s: s[x] = h(x)\n        return s[x]\n    return f\n@memo\ndef f(x): return x",
    "a default": "def f(x, s={}):\n    s[x] = 1\n    return x",
    "a default by name": "def f(x, *, s=[]):\n    s.append(x)\n    return x",
    "a default of a helper": "def h(x, s=[1]):\n    s.append(x)\n    return x\ndef f(x): return h(x)",
}
COUNT = {
    "what it began with": "def make():\n    s = [1]\n    def f(x):\n        s.append(x)\n        return x\n"
    "    return f\nf = make()",
    "what it is given": "def make(s):\n    def f(x):\n        s.append(x)\n        return x\n"
    "    return f\nf = make([1])",
    "what is put into it before": "def make(k):\n    s = []\n    s.append(k)\n    def f(x):\n        s.append(x)\n"
    "        return x\n    return f\nf = make(1)",
    "what another function puts into it before": "def put(s): s.append(1)\ndef make():\n    s = []\n    put(s)\n"
    "    def f(x):\n        s.append(x)\n        return x\n    return f\nf = make()",
    "what it is made of": "def make(k):\n    s = set(k)\n    def f(x):\n        s.add(x)\n        return x\n"
    "    return f\nf = make([1])",
    "what it has one of two times": "def make(k):\n    s = []\n    if k: s = [k]\n    def f(x):\n        s.append(x)\n"
    "        return x\n    return f\nf = make(1)",
    "what only others fill": "def make(k):\n    s = {}\n    s['a'] = k\n    return lambda x: s['a']\nf = make(1)",
    "a default": "def f(x, s=[1]):\n    s.append(x)\n    return x",
    "a default of a lambda": "def make(k):\n    s = []\n    return lambda x, s=k: s.append(x)\nf = make([1])",
}
"""In each, 1 is what rows depend on."""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Modules:
    return Modules(tmp_path / "modules", monkeypatch)


@pytest.mark.parametrize("source", FILLED.values(), ids=FILLED)
def test_what_a_function_fills_is_told_by_what_it_began_with(source: str, modules: Modules) -> None:
    """A look at some rows before they were written made it another function."""
    f = modules.load(source, "of_user").f
    before = callable_text("f", f)
    f(1)
    assert callable_text("f", f) == before


@pytest.mark.parametrize("source", COUNT.values(), ids=COUNT)
def test_what_it_began_with_counts(source: str, modules: Modules) -> None:
    texts = [callable_text("f", modules.load(one, "of_user").f) for one in (source, source.replace("1", "2"))]
    assert texts[0] != texts[1]


def test_a_look_before_a_write_changes_nothing(modules: Modules, tmp_path: Path) -> None:
    """It was refused as the output of another function."""
    for is_first in (True, False):
        module = modules.load(
            "def memo(h):\n    s = {}\n    def f(row):\n        if row['id'] not in s: s[row['id']] = h(row)\n"
            "        return s[row['id']]\n    return f\nf = memo(lambda row: {'n': row['id']})",
            "of_user",
        )
        ds = curate.range(3).map(module.f)
        looked: list[Any] = [] if is_first else ds.take(1)
        assert len(looked) == 1 - is_first
        assert ds.write_parquet(tmp_path / "out", backend="inline").state == "complete"
