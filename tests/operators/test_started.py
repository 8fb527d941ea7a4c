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
    "a table with a default of its own": "from collections import defaultdict\ndef make():\n"
    "    s = defaultdict(lambda: 0)\n    def f(x):\n        s[x] += 1\n        s.update({x + 1: 1})\n        return x\n"
    "    return f\nf = make()",
    "numbers": "from collections import Counter\ndef make():\n    s = Counter()\n    def f(x):\n        s.update([x])\n"
    "        return x\n    return f\nf = make()",
    "in a function in a function": "def make():\n    s = {}\n    def put(k):\n        def f(x):\n            s[x] = k\n"
    "            return x\n        return f\n    return put(1)\nf = make()",
    "handed to a method": "class Made:\n    def map(self, f): return f\ndef make(made):\n    s = []\n    def f(x):\n"
    "        s.append(x)\n        return x\n    return made.map(f)\nf = make(Made())",
    "a lambda handed to a method": "class Made:\n    def map(self, f): return f\ndef make(made):\n    s = []\n"
    "    return made.map(lambda x: s.append(x))\nf = make(Made())",
    "with an attribute": "def make():\n    s = []\n    def f(x):\n        s.append(x)\n        return x\n"
    "    f.calls = 0\n    return f\nf = make()",
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


LOADED = {
    "a function": "def load(): return {1}\ndef make():\n    s = load()\n",
    "a function of a module": "import types\nconfig = types.SimpleNamespace(load=lambda: {1})\n"
    "def make():\n    s = config.load()\n",
    "one that is called like a class of Python's": "def set(): return {1}\ndef make():\n    s = set()\n",
    "a function that is called like one": "def set(of=frozenset): return {1}\ndef make():\n    s: set = set()\n",
    "a class": "class set(set):\n    def __init__(self): self.add(1)\ndef make():\n    s = set()\n",
    "a table that another function fills": "def make():\n    s = set()\n    def load(): s.add(1)\n    load()\n",
    "a table that a lambda fills": "def make():\n    s = set()\n    load = lambda: s.add(1)\n    load()\n",
    "a table that a method fills": "def make():\n    s = set()\n    class Load:\n"
    "        def __init__(self): s.add(1)\n    Load()\n",
    "a table of another name": "def make():\n    s = set()\n    t = s\n    t.add(1)\n",
    "a table that a default hands on": "def make():\n    s = set()\n    def load(t=s): t.add(1)\n    load()\n",
    "a table that comprehensions fill": "def make():\n    s = set()\n    [s.add(x) for x in [1]]\n",
}
"""In each, 1 is in `s` before any row is seen."""
BEFORE = {
    "it is called": "    f(1)\n    return f\nf = make()",
    "it is handed on": "    list(map(f, [1]))\n    return f\nf = make()",
    "it has another name": "    g = f\n    g(1)\n    return f\nf = make()",
    "another one calls it": "    def load(): f(1)\n    load()\n    return f\nf = make()",
    "another one is returned, too": "    def load(): s.add(1)\n    return load, f\nload, f = make()\nload()",
    "one that it calls is called": "    f(1)\n    def g(x): return f(x)\n    return g\nf = make()",
    "one that it calls is called by another one": "    def g(x): return f(x)\n    def load(): f(1)\n"
    "    return load, g\nload, f = make()\nload()",
}
"""What may run before rows do, and puts 1 into `s`."""
FILLS = "    def f(x):\n        s.add(x)\n        return x\n"


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


@pytest.mark.parametrize(
    "source",
    [
        *(f"{begin}{FILLS}    return f\nf = make()" for begin in LOADED.values()),
        *(f"def make():\n    s = set()\n{FILLS}{end}" for end in BEFORE.values()),
        "def load(): return {1}\ndef f(x, s=load()):\n    s.add(x)\n    return x",
        "class set(set):\n    def __init__(self): self.add(1)\ndef f(x, s=set()):\n    s.add(x)\n    return x",
    ],
    ids=[*LOADED, *BEFORE, "a default that a function loads", "a default of a class of the user's"],
)
def test_a_table_counts_that_may_have_had_rows_before(source: str, modules: Modules, tmp_path: Path) -> None:
    """Where words that were loaded were left out, other words' rows were taken for done. Their file is no code."""
    texts = []
    for number in (1, 2):
        (tmp_path / "number").write_text(str(number))
        read = f"from pathlib import Path\nONE = int(Path({str(tmp_path / 'number')!r}).read_text())\n"
        texts.append(callable_text("f", modules.load(read + source.replace("1", "ONE"), "of_user").f))
    # The number itself is told: what is asked is whether the table is.
    assert len({text.replace("ONE = int 1", "").replace("ONE = int 2", "") for text in texts}) == 2


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
