"""What a function fills as it runs, as a cache, is no part of what it is; what that began with is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import curate
from curate.code.function import callable_text
from curate.code.started import BEGUN
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


CHANGED = {
    "a table of tables": "c = {'a': {}}\ndef f(x): c['a'][x] = 1",
    "a table by another name": "c = {}\ndef f(x):\n    d = c\n    d[x] = 1",
    "a table that is handed on": "c = {}\ndef put(t, x): t[x] = 1\ndef f(x): put(c, x)",
    "a table of a value": "c = {'a': []}\ndef f(x):\n    for one in c.values(): one.append(x)",
    "a table that a look-up fills": "from collections import defaultdict\nc = defaultdict(int)\ndef f(x): return c[x]",
    "a list that is put in order": "c = [3, 1, 2]\ndef f(x): c.sort()",
    "what is loaded": "import json\nc = json.loads('[1]')\ndef f(x): c.append(x)",
    "a number that is loaded": "import json\nc = json.loads('1')\ndef f(x):\n    global c\n    c += 1",
    "a number by the table of names": "c = 1\ndef f(x): globals()['c'] = x + 5",
    "a number by a text": "c = 1\ndef f(x): exec('global c; c += 1')",
    "an attribute": "class O:\n    def __init__(self): self.n = {}\n    def put(self, x): self.n[x] = 1\no = O()\n"
    "def f(x): o.put(x)",
    "an attribute of an object in an object": "class I: n = 0\nclass O:\n    def __init__(self): self.i = I()\n"
    "    def put(self): self.i.n += 1\no = O()\ndef f(x): o.put()",
    "an attribute of a class": "class O:\n    n = 0\n    @classmethod\n    def put(cls): cls.n += 1\ndef f(x): O.put()",
    "what an object has of itself": "class O: pass\no = O()\ndef put(o): o.__dict__['k'] = 1\ndef f(x): put(o)",
    "a table of a class of the user's": "class M(dict):\n    def __missing__(self, k):\n        self[k] = k\n"
    "        return k\nm = M()\ndef f(x): return m[x]",
    "numbers that are drawn": "import random\nk = [random.Random(7)]\ndef f(x): return k[0].random()",
    "an array": "import numpy as np\nc = np.zeros(3)\ndef f(x): np.add.at(c, 0, 1)",
    "a table of a default": "def make():\n    c = {}\n    def f(x, d=c): d[x] = 1\n    return f\nf = make()",
    "a table of a table that it closes over": "def make():\n    c = {'a': []}\n    def f(x): c['a'].append(x)\n"
    "    return f\nf = make()",
    "a class in a function": "def make():\n    class O: n = 0\n    def f(x): O.n += 1\n    return f\nf = make()",
}
"""What code changes in ways that its statements do not tell."""


@pytest.mark.parametrize("source", CHANGED.values(), ids=CHANGED)
def test_what_rows_change_in_this_process_counts_as_it_was(source: str, modules: Modules) -> None:
    """A look at some rows, or a write of another output, made it another function: the next write was refused."""
    source += "\ndef each(row):\n    f(row['id'])\n    return row\ndef first(row): return (f(row['id']), row)[1]\n"
    before = [callable_text("f", getattr(modules.load(source, "of_user"), name)) for name in ("each", "first")]
    module = modules.load(source, "of_user")
    for _ in range(2):
        assert curate.range(3).map(module.each).take(2)
        assert [callable_text("f", one) for one in (module.each, module.first)] == before
    assert curate.range(3).limit(2).map(module.each).take_all()
    assert callable_text("f", module.each) == before[0]


@pytest.mark.parametrize(
    ("source", "change"),
    [
        ("c = {'a': []}\ndef f(row): c['a'].append(1); return row", lambda module: module.c.update(b=[])),
        ("k = 1\nc = {'a': []}\ndef f(row): c['a'].append(k); return row", lambda module: setattr(module, "k", 2)),
        ("class O: n = 0\no = O()\ndef f(row): vars(o)['k'] = 1; return row", lambda module: setattr(module.O, "n", 2)),
    ],
)
def test_what_somebody_changes_after_it_counts(source: str, change: Callable[[Any], Any], modules: Modules) -> None:
    module = modules.load(source, "of_user")
    assert curate.range(1).map(module.f).take_all()
    before = callable_text("f", module.f)
    change(module)
    assert callable_text("f", module.f) != before


def test_what_somebody_changes_while_rows_are_iterated_counts(modules: Modules) -> None:
    """It is not known whether code changed it, or who took the rows."""
    module = modules.load("c = {'a': []}\ndef f(row): return {**row, 'n': len(c['a'])}", "of_user")
    before = callable_text("f", module.f)
    for row in curate.range(2).map(module.f).iter_rows():
        module.c["a"].append(row["id"])
    assert callable_text("f", module.f) != before


def test_a_module_that_rows_import_is_warned_of_and_changes_nothing(
    modules: Modules, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No identity imports it: what it computes was left out without a word, and after a look at rows it was there."""
    modules.forget("of_rows")
    modules.write("of_rows", "import os\nk = int(os.environ['K'])\nj = 1\ndef g(x): return x + k + j")
    monkeypatch.setenv("K", "1")
    f = modules.load("def f(row):\n    from of_rows import g\n    return {'n': g(row['id'])}", "of_user").f
    curate.log.ensure_configured()
    before = callable_text("f", f)
    told = capsys.readouterr().err
    assert "of_rows.k" in told
    assert "import of_rows at the top" in told
    assert "of_rows.j" not in told
    assert curate.range(2).map(f).take_all() == [{"n": 2}, {"n": 3}]
    assert callable_text("f", f) == before
    assert "of_rows" not in capsys.readouterr().err


def test_a_cell_of_a_notebook_counts_as_it_was() -> None:
    """Its globals are told by their values."""
    space: dict[str, Any] = {"__name__": "notebook"}
    exec(compile("c = {}\nk = 1\ndef f(row):\n    c[row['id']] = k\n    return row\n", "<cell 1>", "exec"), space)
    before = callable_text("f", space["f"])
    assert curate.range(2).map(space["f"]).take_all()
    assert space["c"]
    assert callable_text("f", space["f"]) == before
    space["k"] = 2
    assert callable_text("f", space["f"]) != before


@pytest.mark.parametrize(
    ("value", "looks"),
    [
        ("{}", 2),
        ("dict.fromkeys(range(4_900))", 2),
        ("dict.fromkeys(range(5_100), 0)", 0),
        ("[[[n] for n in range(100)] for _ in range(100)]", 0),
        ("(__import__('numpy').zeros(1 << 17), [])", 2),
        ("(__import__('numpy').zeros((1 << 20) + 1), [])", 0),
        ("type('T', (), {})", 2),
        ("__import__('types').SimpleNamespace(words=list(range(10_000)))", 0),
        ("()", 0),
    ],
)
def test_rows_wait_for_no_look_at_very_much(
    value: str, looks: int, modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor for one at what cannot change."""
    module = modules.load(f"known = {value}\ndef f(row):\n    known\n    return row", "of_user")
    looked: list[Any] = []
    monkeypatch.setattr(BEGUN, "look", looked.append)
    assert curate.range(2).map(module.f).take(1) == [{"id": 0}]
    assert len(looked) == looks


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
