"""Values that stand for others, or answer as they like: an identity asks nothing of them."""

from __future__ import annotations

import cProfile
import functools
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import curate
from curate.code.closures import Unhashable
from curate.code.function import callable_text
from curate.code.kinds import is_a, own_dict
from curate.code.watch import watched
from curate.job.definition import job_digest
from curate.operators.udf import Udf
from tests.job.modules import Modules

RAISES = "raise RuntimeError(cls)"
ODD = {
    "one whose class is asked": "class P:\n    @property\n    def __class__(self): raise RuntimeError('no context')\n"
    "    @property\n    def __dict__(self): raise RuntimeError('no context')\np = P()",
    "one that says it is a table": "class P:\n    @property\n    def __class__(self): ASKED.append(1); return dict\n"
    "    def __getattr__(self, name): ASKED.append(1); return None\np = P()",
    "one that has every attribute": "class P:\n    __slots__ = ()\n"
    "    def __getattr__(self, name): ASKED.append(1)\np = P()",
    "one that has none": "class P:\n    def __getattribute__(self, name): raise ValueError(name)\np = P()",
    "one that is gone": "import weakref\nclass P: pass\np = weakref.proxy(P())",
}
USED = {
    "alone": "",
    "in a table": "p = {'a': [p]}\n",
    "handed on": "def of(p):\n    def g(x): return p\n    return g\ng = of(p)\n",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Modules:
    return Modules(tmp_path / "modules", monkeypatch)


@pytest.mark.parametrize("used", USED.values(), ids=USED)
@pytest.mark.parametrize("source", ODD.values(), ids=ODD)
def test_what_a_module_has_is_not_asked(source: str, used: str, modules: Modules) -> None:
    """A proxy without a context was a traceback, and a lazy one was loaded by each driver."""
    module = modules.load(
        f"import curate\nASKED = []\n{source}\n{used}def f(row): return type(p.x), g(row)\n"
        "class Mine(curate.RowsJob):\n    def process(self, batch): return f(batch)\n"
    )
    assert callable_text("f", module.f)
    assert job_digest(module.Mine, is_identity=True)
    assert module.ASKED == []


@pytest.mark.parametrize("source", ODD.values(), ids=ODD)
def test_what_a_function_closes_over_is_refused_by_its_type(source: str, modules: Modules) -> None:
    module = modules.load(f"ASKED = []\n{source}\ndef make(p):\n    def f(row): return p\n    return f\nf = make(p)\n")
    with pytest.raises(curate.ConfigError, match=r"map\(f\) depends on .*: p is a (P|ProxyType|weakref.ProxyType); "):
        curate.range(1).map(module.f).write_parquet("memory://proxies/out", backend="inline")
    assert module.ASKED == []


SAID = "): ASKED.append(1)"
DERIVED = {
    "a dictionary": f"class P(dict):\n    def __iter__(self{SAID}\n    def items(self{SAID}\n"
    f"    def values(self{SAID}\np = P(a=N)",
    "a list": f"class P(list):\n    def __iter__(self{SAID}\n    def __len__(self{SAID}\np = P([N])",
    "a number": f"class P(int):\n    def __repr__(self{SAID}\n    def __eq__(self, other{SAID}\n"
    "    def __hash__(self): return 1\np = P(N)",
    "a text": f"class P(str):\n    def __repr__(self{SAID}\np = P('aN')",
    "a set": f"class P(set):\n    def __iter__(self{SAID}\np = P([N])",
    "a choice": f"import enum\nclass P(enum.Enum):\n    A = N\n    @property\n    def value(self{SAID}\np = P.A",
    "an object": f"class P:\n    def __init__(self): self.k = N\n    def __eq__(self, other{SAID}\n"
    f"    def __repr__(self{SAID}\n    def __bool__(self{SAID}\n    @property\n    def o(self{SAID}\n"
    "    def __hash__(self): return 1\np = P()",
}
"""Objects of classes that are derived from Python's, with N in them."""


@pytest.mark.parametrize("used", ["", "p = [p]\n", "p = {'a': (p,)}\n", "p = {frozenset({1}): p}\n"])
@pytest.mark.parametrize("source", DERIVED.values(), ids=DERIVED)
def test_what_is_derived_from_pythons_is_told_by_what_it_holds(source: str, used: str, modules: Modules) -> None:
    """And not by what it says: that runs the user's code, which may load, log or count."""
    texts = []
    for number in "112":
        code = f"ASKED = []\n{source.replace('N', number)}\n{used}def h(x): return x\ndef f(row): return h(p)\n"
        module = modules.load(code)
        module.ASKED.clear()
        texts.append(callable_text("f", module.f))
        assert module.ASKED == []
    assert texts[0] == texts[1] != texts[2]


RAISE = "): raise ValueError('asked')"
RAISING = {
    "a dictionary": f"class P(dict):\n    def __contains__(self, key{RAISE}\n    def get(self, key{RAISE}\np = P(a=1)",
    "a path": f"import pathlib\nclass P(type(pathlib.Path())):\n    def __str__(self{RAISE}\np = P('a')",
    "a moment": f"import datetime\nclass Z(datetime.tzinfo):\n    def utcoffset(self, at{RAISE}\n"
    "p = datetime.datetime(2026, 1, 1, tzinfo=Z())",
    "a mapping": f"import collections.abc\nclass P(collections.abc.Mapping):\n    def __getitem__(self, key{RAISE}\n"
    "    def __iter__(self): return iter('a')\n    def __len__(self): return 1\np = P()",
    "a table of Python's": "import collections\n"
    f"class P(collections.UserDict):\n    def __iter__(self{RAISE}\np = P(a=1)",
    "a choice": f"import enum\nclass P(enum.Enum):\n    A = 1\n    @property\n    def name(self{RAISE}\np = P.A",
}


@pytest.mark.quick
@pytest.mark.parametrize("source", RAISING.values(), ids=RAISING)
def test_what_raises_when_it_is_asked_is_told_or_refused_by_name(source: str, modules: Modules) -> None:
    """The error of such a class ended a write, with a traceback of curate's and no word of what it was about."""
    for used in ("def f(row): return p", "def by(p): return lambda row: p\nf = by(p)", "def f(row, p=p): return p"):
        module = modules.load(f"{source}\n{used}\n")
        with suppress(Unhashable):
            callable_text("f", module.f)


MOST_CALLS = 3_000_000
"""Of functions, that an answer takes."""
ENDLESS = (
    "import collections.abc, itertools\nclass P(collections.abc.Mapping):\n    def __getitem__(self, key): return 1\n"
    "    def __iter__(self): return itertools.count()\n    def __len__(self): return 1\np = P()"
)
UNHASHABLE = "class M(type):\n    def __eq__(cls, other): return cls is other\n"
ANSWERED = {
    "a class that is compared with nothing": f"class M(type):\n    def __eq__(cls, other{RAISE}\n"
    "    def __hash__(cls): return 1\nclass p(metaclass=M): pass",
    "an object of one": f"class M(type):\n    def __eq__(cls, other{RAISE}\n    def __hash__(cls): return 1\n"
    "class P(metaclass=M): pass\np = P()",
    "a class that cannot be hashed": f"{UNHASHABLE}class p(metaclass=M): pass",
    "an object of a class that cannot be hashed": f"{UNHASHABLE}class P(metaclass=M): pass\np = P()",
    "a list of such": f"{UNHASHABLE}class P(metaclass=M): pass\np = [P(), P]",
    "a class that answers nothing": f"class M(type):\n    def __getattribute__(cls, name): {RAISES}\n"
    "class P(metaclass=M): pass\np = P",
    "an object that answers nothing": f"class M(type):\n    def __getattribute__(cls, name): {RAISES}\n"
    "class P(metaclass=M): pass\np = [object.__new__(P)]",
    "a class that is in no module": f"class M(type):\n    @property\n    def __module__(cls): {RAISES}\n"
    "class P(metaclass=M): pass\np = [P(), P]",
    "a class without a body": f"class M(type):\n    @property\n    def __dict__(cls): {RAISES}\n"
    "class P(metaclass=M): pass\np = [P(), P]",
    "150 partials": "import functools\np = len\nfor n in range(150): p = functools.partial(max, p, n)",
    "a mapping without an end": ENDLESS,
    "a list in 5,000 others": "p = []\nfor _ in range(5000): p = [p]",
    "a table in 5,000 others": "p = {}\nfor _ in range(5000): p = {1: p}",
}


@pytest.mark.quick
@pytest.mark.parametrize("source", ANSWERED.values(), ids=ANSWERED)
def test_whatever_a_module_has_there_is_an_answer(source: str, modules: Modules) -> None:
    """A metaclass ended it with a traceback of curate's, a mapping never, and a list after half a minute."""
    for called in ("def f(row): return p", "p = [p]\ndef by(p): return lambda row: p\nf = by(p)"):
        mine = "import curate\nclass Mine(curate.RowsJob):\n    def process(self, batch): return f(batch)\n"
        module = modules.load(f"{source}\n{called}\n{mine}")
        told = [lambda module=module: Udf(module.f).identity("f"), lambda module=module: job_digest(module.Mine)]
        told.append(lambda module=module: job_digest(module.Mine, is_identity=True))
        told.append(lambda module=module: watched([module.f]).__enter__())
        profile = cProfile.Profile()  # which, unlike a function of Python, counts where Python goes no deeper, too
        with profile:
            for one in told:
                with suppress(curate.ConfigError):
                    one()
        calls = sum(one.callcount for one in profile.getstats())
        assert calls < MOST_CALLS


@pytest.mark.parametrize("bits", [13_000, 14_001, 20_000])
def test_a_number_of_any_length_counts(bits: int, modules: Modules) -> None:
    """A mask of 20,000 bits has more digits than Python writes: that was a ValueError."""
    uses = [
        f"k = (1 << {bits}) + N\ndef f(row): return k",
        f"def by(k): return lambda row: k\nf = by([(1 << {bits}) + N])",
    ]
    for source in uses:
        one, same, other = (callable_text("f", modules.load(source.replace("N", last)).f) for last in "112")
        assert one == same != other


def test_an_attribute_is_where_python_has_it() -> None:
    class Named:
        def __init__(self) -> None:
            self.name = "a"

    class Slots(Named):
        __slots__ = ("other",)

    def f() -> None: ...

    values: list[Any] = [Named(), Slots(), types.SimpleNamespace(name="a"), types, f, KeyError(), functools.partial(f)]
    assert [own_dict(one) for one in values] == [vars(one) for one in values]
    assert own_dict(1) == own_dict("a") == own_dict({"a": 1}) == {}
    assert is_a(True, int)
    assert not is_a(1, str | bytes)
