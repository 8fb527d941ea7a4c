"""Of a value that a module computes each part counts: beside a moment, a place or a machine, in an object in an object,
in what code fills as it runs, of whichever import; what a run has of its own is left out alone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from curate.code.function import callable_text
from tests.job.modules import Modules

K = "int(os.environ['K'])"
HEAD = """
import argparse, collections, configparser, dataclasses, datetime, enum, functools, os, random, time, types
from pathlib import Path
import numpy as np
"""
USE = "def f(row): return k"
LIBRARIES = "contextvars, io, itertools, json, textwrap, threading, typing"
NEAR = f"(Path(__file__).parent / str({K}))"
INNER = "class I:\n    def __init__(self, k): self.k = k\n"
HOLDS = f"{INNER}class O:\n    def __init__(self, i): self.i = i\n    def o(self): return self.i.k\n"
SECTION = f"c = configparser.ConfigParser()\nc.read_dict({{'a': {{'k': str({K})}}}})\n"
MOMENTS = {
    "in a table": f"k = {{'t': time.time() + 3600, 'k': {K}}}\n{USE}",
    "in a table that is called": f"k = dict(t=time.time(), k={K})\n{USE}",
    "in a list": f"k = [time.time() + 3600, {K}]\n{USE}",
    "in a list of lists": f"k = [[time.time()], [{K}]]\n{USE}",
    "in another variable of its statement": f"t, k = time.time(), {K}\n{USE}",
    "in a namespace": f"k = argparse.Namespace(t=time.time(), k={K})\ndef f(row): return k.k, k.t",
    "in a record": f"@dataclasses.dataclass\nclass R:\n    t: float\n    k: int\nk = R(time.time(), {K})\n{USE}",
    "put into it": f"k = {{'k': {K}}}\nk['t'] = time.time()\n{USE}",
    "by a function": f"def load():\n    t = time.time()\n    return {{'k': {K}, 't': t}}\nk = load()\n{USE}",
    "that a function is given": f"def of(t, k): return {{'at': t, 'k': k}}\nk = of(time.time() + 9, {K})\n{USE}",
    "beside what a function returns": f"def load():\n    t = time.time()\n    return {K}, time.time() - t + 9\n"
    f"k = load()\n{USE}",
    "beside where it lies": f"class O:\n    def __init__(self, k): self.me, self.k = id(self), k\nk = O({K})\n{USE}",
    "in a variable of that name": f"def load():\n    k = time.time()\n    print(k, end='')\n"
    f"    return {{'k': {K}, 't': k}}\nk = load()\n{USE}",
    "that an object keeps": f"class O:\n    def __init__(self, k):\n        self.t, self.k = time.time(), k\n"
    f"        self.end = self.t + 9\nk = O({K})\n{USE}",
    "that a function logs": f"def load():\n    print(time.time(), end='')\n    return {K}\nk = load()\n{USE}",
    "in an object": f"class O:\n    def __init__(self, k):\n        self.t = time.time()\n        self.k = k\n"
    f"    def o(self): return self.k, self.t\nk = O({K})\ndef f(row): return k.o()",
    "that an object is given": f"class O:\n    def __init__(self, t, k): self.at, self.k = t, k\n"
    f"    def o(self): return self.k, self.at\nk = O(time.time() + 9, {K})\ndef f(row): return k.o()",
    "in an object in a list": f"class O:\n    def __init__(self, k):\n        self.t = time.time() + 9\n"
    f"        self.k = k\nk = [O({K})]\ndef f(row): return k[0].k",
    "closed over": f"def by(k):\n    t = time.time()\n    return lambda x: (t, k)\ng = by({K})\n"
    "def f(row): return g(row)",
    "closed over by a decorator": f"def by(k):\n    t = time.time() + 9\n    return lambda h: lambda x: (t, k, h(x))\n"
    f"@by({K})\ndef g(x): return x\ndef f(row): return g(row)",
}
MACHINES = {
    "in a table": f"k = {{'n': os.cpu_count() * 2, 'k': {K}}}\n{USE}",
    "instead of a value": f"k = {K} or os.cpu_count()\n{USE}",
    "where none is given": f"k = int(os.environ.get('K', os.cpu_count()))\n{USE}",
    "in one of two cases": f"k = {K} if 'K' in os.environ else os.cpu_count()\n{USE}",
    "in another variable": f"n, k = os.cpu_count(), {K}\n{USE}",
    "as an argument": f"class O:\n    def __init__(self, n, k): self.n, self.k = n - 1, k\n"
    f"k = O(os.cpu_count(), {K})\ndef f(row): return k.k, k.n",
}
PLACES = {
    "above a file": f"k = Path(__file__).parent / str({K})\n{USE}",
    "above a file as text": f"k = os.path.join(os.path.dirname(os.path.abspath(__file__)), str({K}))\n{USE}",
    "above other folders": f"k = Path(__file__).resolve().parents[1] / 'data' / str({K})\n{USE}",
    "in a list": f"here = os.path.dirname(__file__)\nk = [here + '/' + str({K}), here + '/0']\n{USE}",
    "in a table": f"k = {{'words': str(Path(__file__).parent / 'words'), 'k': {K}}}\n{USE}",
    "in an object": f"class O:\n    def __init__(self, at, k): self.at, self.k = at, k\n"
    f"k = O(Path(__file__).parent / 'words', {K})\ndef f(row): return k.k, k.at",
    "in a function that closes over it": f"def make(k): return lambda row: k\nf = make({NEAR})",
    "in a text in a table that is closed over": f"def make(k): return lambda row: k\nf = make({{'a': [str({NEAR})]}})",
    "in a function of a variable": f"def make(k): return lambda row: k\ng = make({NEAR})\ndef f(row): return g(row)",
    "in a default": f"def f(row, k={NEAR}): return k",
    "in a default of a lambda": f"f = lambda row, *, k=str({NEAR}): k",
    "in a partial": f"f = functools.partial(lambda k, row: k, {NEAR})",
    "in a partial of a variable": f"g = functools.partial(lambda k, row: k, k={NEAR})\ndef f(row): return g(row)",
    "in an object whose method it is": f"{INNER}\n    def o(self, row): return self.k\nf = I({NEAR}).o",
}
HELD = {
    "an object in an object": f"{HOLDS}o = O(I({K}))\ndef f(row): return o.o()",
    "an object in one that is asked for it": f"{HOLDS}o = O(I({K}))\ndef f(row): return o.i.k",
    "an object in a list in an object": f"{HOLDS}o = O([I({K})])\ndef f(row): return o.i[0].k",
    "an object in a table in an object": f"{HOLDS}o = O({{'a': I({K})}})\ndef f(row): return o.o()",
    "an object that is handed on": f"{INNER}o = I({K})\ndef h(a): return a.k\ndef f(row): return h(o)",
    "an object by another name": f"{INNER}o = I({K})\ndef f(row):\n    a = o\n    return a.k",
    "an object that hands itself on": f"{INNER}class O(I):\n    def o(self): return h(self)\n"
    f"def h(a): return a.k\no = O({K})\ndef f(row): return o.o()",
    "an object that calls itself this": "class O:\n    def __init__(this, k): this.k = k\n"
    f"    def o(this): return this.k\no = O({K})\ndef f(row): return o.o()",
    "an object with a property": "class O:\n    def __init__(me, k): me.k = k\n    @property\n"
    f"    def o(me): return me.k\no = O({K})\ndef f(row): return o.o",
    "an object of which another attribute is set": f"{INNER}o = I({K})\no.n = 0\ndef f(row):\n    o.n += 1\n"
    "    return o.k",
    "an object that a function closes over": f"{INNER}def make(o): return lambda x: o.k\ng = make(I({K}))\n"
    "def f(row): return g(row)",
    "an object of a view": f"{INNER}k = types.MappingProxyType({{'a': I({K})}})\ndef f(row): return k['a'].k",
    "an object in a partial": f"{INNER}k = functools.partial(lambda o, x: o.k, I({K}))\ndef f(row): return k(row)",
    "a function in a list": f"def make(k): return lambda x: k\nk = [make({K})]\ndef f(row): return k[0](row)",
    "a function in an object": f"{INNER}def make(k): return lambda x: k\no = I(make({K}))\ndef f(row): return o.k(row)",
    "a value beside a function": f"def g(x): return x\nk = {{'a': (g, {K})}}\ndef f(row): return k['a'][1]",
    "a namespace in a list": f"k = [argparse.Namespace(k={K})]\ndef f(row): return k[0].k",
    "which function of a table": f"def a(x): return 1\ndef b(x): return 2\nk = [(a if {K} == 1 else b, 0)]\n"
    "def f(row): return k[0][0](row)",
    "numbers of Python": f"k = random.Random({K})\ndef f(row): return k.random()",
    "numbers of numpy": f"k = np.random.default_rng({K})\ndef f(row): return k.random()",
    "numbers of numpy as they were": f"k = np.random.RandomState({K})\ndef f(row): return k.rand()",
    "a choice of several values": f"class E(enum.Enum):\n    A = (1, {K})\ndef f(row): return E.A.value",
    "a choice that a function closes over": f"class E(enum.Enum):\n    A = (1, {K})\n"
    "def make(e): return lambda row: e.value\nf = make(E.A)",
    "a choice of an object": f"{INNER}class E(enum.Enum):\n    A = I({K})\nk = E.A\ndef f(row): return k.value.k",
    "a queue": f"k = collections.deque([{K}])\ndef f(row): return k[0]",
    "a queue in a table": f"k = {{'a': collections.deque([{K}])}}\ndef f(row): return k['a'][0]",
    "a list of Python": f"k = collections.UserList([{K}])\ndef f(row): return k[0]",
    "the keys of a table": f"k = {{{K}: 1}}.keys()\ndef f(row): return list(k)",
    "settings that are read": f"{SECTION}def f(row): return c['a']['k']",
    "settings that are asked": f"{SECTION}def f(row): return c.get('a', 'k')",
    "a section of settings": f"{SECTION}k = c['a']\ndef f(row): return k['k']",
    "settings that a function closes over": f"{SECTION}def make(c): return lambda row: c['a']['k']\nf = make(c)",
}
BESIDE = {
    "a set": "class S(set): pass\no = S()",
    "a frozen set": "class S(frozenset): pass\no = S()",
    "a date": "class S(datetime.date): pass\no = S(2026, 1, 2)",
    "a moment": "class S(datetime.datetime): pass\no = S(2026, 1, 2, fold=1)",
    "a span": "class S(datetime.timedelta): pass\no = S(1)",
    "a decimal number": "class S(decimal.Decimal): pass\no = S(1)",
    "a path": "class S(type(Path())): pass\no = S('a')",
    "an array": "class S(np.ndarray): pass\no = np.zeros(2).view(S)",
    "an array of objects": "class S(np.ndarray): pass\no = np.array([None]).view(S)",
    "a partial": "o = functools.partial(len)",
    "a function": "def inner():\n    def o(): pass\n    return o\no = inner()",
    "a module of no file": "o = types.ModuleType('o')",
    "a number": "class S(int): pass\no = S(1)",
}
"""Values that have an attribute beside what their kind tells."""
INSIDE = {
    "a variable of a context": f"k = contextvars.ContextVar('k', default={K})\ndef f(row): return k.get()",
    "one in a list": f"k = [contextvars.ContextVar('k', default={K})]\ndef f(row): return k[0].get()",
    "what a thread has": f"k = threading.local()\nk.k = {K}\ndef f(row): return k.k",
    "what a thread has as a class says": "class L(threading.local):\n    def __init__(self, k): self.k = k\n"
    f"k = L({K})\ndef f(row): return k.k",
    "an iterator": f"k = iter([{K}])\ndef f(row): return next(k)",
    "an iterator of others": f"k = zip([{K}])\ndef f(row): return next(k)",
    "a count": f"k = itertools.count({K})\ndef f(row): return next(k)",
    "a method of a count": f"k = itertools.count({K}).__next__\ndef f(row): return k()",
    "a generator": f"def g(k): yield k\nk = g({K})\ndef f(row): return next(k)",
    "a generator in brackets": f"k = (x for x in [{K}])\ndef f(row): return next(k)",
    "an order": f"def by(k):\n    def c(a, b): return k * (a - b)\n    return c\nk = functools.cmp_to_key(by({K}))\n"
    "def f(row): return sorted([1, 2], key=k)",
    "an order of a default": f"k = functools.cmp_to_key(lambda a, b, k={K}: k * (a - b))\n"
    "def f(row): return sorted([1, 2], key=k)",
    "an encoder": f"k = json.JSONEncoder(indent={K})\ndef f(row): return k.encode(row)",
    "what wraps texts": f"k = textwrap.TextWrapper(width={K})\ndef f(row): return k.wrap(row)",
    "a file in memory": f"k = io.StringIO(str({K}))\ndef f(row): return k.getvalue()",
    "a cell": f"k = types.CellType({K})\ndef f(row): return k.cell_contents",
    "a polynomial": f"k = np.poly1d([{K}, 1])\ndef f(row): return k(row)",
    "a type": f"k = typing.Literal[{K}]\ndef f(row): return k",
    "a type in a type": f"k = list[typing.Annotated[int, {K}]]\ndef f(row): return k",
    "a type that is closed over": f"def make(k): return lambda row: k\nf = make(typing.Literal[{K}])",
    "types in a table": f"k = {{'a': [typing.Literal[{K}]]}}\ndef f(row): return k",
    "a field of a record": f"@dataclasses.dataclass\nclass R:\n    k: typing.Annotated[int, {K}]\n"
    "def f(row): return typing.get_type_hints(R, include_extras=True)",
    "an attribute that is private to a class": "class O:\n    def __init__(self, k): self.__k = k\n"
    f"    def o(self): return self.__k\no = O({K})\ndef f(row): return o.o()",
    "one of the class": f"class O:\n    __k = {K}\n    def o(self): return self.__k\no = O()\ndef f(row): return o.o()",
}
"""Values of Python's own libraries, in which others are, and of which no attribute is asked."""
TWO = "class A:\n    def o(self): return 1\nclass B:\n    def o(self): return 2\n"
CHOSEN = {
    "a class": f"{TWO}k = {{1: A, 2: B}}[{K}]\ndef f(row): return k().o()",
    "what a class is derived from": f"{TWO}class C(A if {K} == 1 else B): pass\ndef f(row): return C().o()",
    "what one is derived from by a name": f"{TWO}D = A if {K} == 1 else B\n"
    "class C(D): pass\ndef f(row): return C().o()",
    "a lambda of a table": f"T = {{1: lambda x: x, 2: lambda x: x + 1}}\nk = T[{K}]\ndef f(row): return k(row)",
    "a function of Python": f"k = min if {K} == 1 else max\ndef f(row): return k(row)",
}
"""Code that a module chooses by what it reads."""
CHECKED = {
    "a field of a model": f"class M(pydantic.BaseModel):\n    k: typing.Literal[{K}]\ndef f(row): return M(k=row)",
    "a field of many": f"class M(pydantic.BaseModel):\n    k: list[typing.Annotated[int, pydantic.Field(ge={K})]]\n"
    "def f(row): return M(k=row)",
    "a field of a model in a function": "def make(k):\n    class M(pydantic.BaseModel):\n        a: typing.Literal[k]\n"
    f"    return lambda row: M(a=row)\nf = make({K})",
    "a type of a field": f"A = typing.Annotated[int, pydantic.Field(ge={K})]\nclass M(pydantic.BaseModel):\n    k: A\n"
    "def f(row): return M(k=row)",
    "a check of a type": f"k = pydantic.TypeAdapter(typing.Literal[{K}])\ndef f(row): return k.validate_python(row)",
    "a check of a bound": f"k = pydantic.TypeAdapter(typing.Annotated[int, pydantic.Field(ge={K})])\n"
    "def f(row): return k.validate_python(row)",
}
FILLED = {
    "a set that is loaded": f"def load(): return {{{K}}}\nk = load()\ndef f(row):\n    k.add(0)\n    return k",
    "a table that is loaded": f"k = dict(a={K})\ndef f(row):\n    k[row] = 1\n    return k",
    "a number": f"k = {K}\ndef f(row):\n    global k\n    k += 1\n    return k",
    "a queue": f"k = collections.deque([{K}])\ndef f(row): return k.append(1)",
}
BEGUN = {
    "a set": "k = set()\ndef f(row):\n    k.add(row)\n    return len(k)",
    "a queue": "k = collections.deque(maxlen=3)\ndef f(row):\n    k.append(row)\n    return len(k)",
    "a table of literals": "k = {'a': [0] * 3}\ndef f(row):\n    k['a'] = row",
    "zeros": "k = np.zeros(3)\ndef f(row): k[0] += row",
    "a list of zeros": "k = [0] * 3\ndef f(row): k[0] += row",
    "a table by what it is for": "keys = ('a', 'b')\nk = {key: 0 for key in keys}\ndef f(row): k['a'] += row",
    "a table of what an object has": f"{INNER}o = I({{}})\ndef f(row): o.k[row] = 1",
    "an attribute": f"{INNER}o = I(0)\ndef f(row): o.k += 1",
    "a table of another module": "import tables\ndef f(row): tables.k[row] = 1",
}
"""What functions fill, and statements tell what it began with."""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Modules:
    return Modules(tmp_path / "modules", monkeypatch)


def text_of(modules: Modules, source: str, k: int) -> str:
    modules.monkeypatch.setenv("K", str(k))
    return callable_text("f", modules.load(HEAD + source, "of_user").f)


CASES = {
    f"{kind}, {name}": source
    for kind, sources in {
        "moment": MOMENTS,
        "machine": MACHINES,
        "place": PLACES,
        "held": HELD,
        "filled": FILLED,
    }.items()
    for name, source in sources.items()
}


@pytest.mark.parametrize("source", CASES.values(), ids=CASES)
def test_each_part_counts(source: str, modules: Modules) -> None:
    """Where nothing told it, rows made with another one were taken for done."""
    one, same, other = (text_of(modules, source, k) for k in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize("source", MOMENTS.values(), ids=MOMENTS)
def test_at_another_time_it_is_the_same(source: str, modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    before, at = text_of(modules, source, 1), time.time()
    monkeypatch.setattr(time, "time", lambda: at + 100_000)
    assert text_of(modules, source, 1) == before


@pytest.mark.parametrize("source", MACHINES.values(), ids=MACHINES)
def test_on_another_machine_it_is_the_same(source: str, modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    before = text_of(modules, source, 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 1000)
    assert text_of(modules, source, 1) == before


@pytest.mark.parametrize(
    "value",
    [
        *("random.Random()", "np.random.default_rng()", "[random.Random()]", "I(random.Random())"),
        *("np.random.Generator(np.random.PCG64())", "np.random.default_rng(np.random.SeedSequence())"),
        "np.random.PCG64()",
    ],
)
def test_numbers_that_nobody_seeded_do_not_count(value: str, modules: Modules) -> None:
    """In each process they are others."""
    source = f"{INNER}k = {value}\ndef h(k): return k\ndef f(row): return h(k)"
    assert text_of(modules, source, 1) == text_of(modules, source, 1)


@pytest.mark.parametrize("source", PLACES.values(), ids=PLACES)
def test_in_another_folder_it_is_the_same(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {text_of(Modules(tmp_path / name / "jobs", monkeypatch), source, 1) for name in ("one", "another/deeper")}
    assert len(texts) == 1


@pytest.mark.parametrize("source", BEGUN.values(), ids=BEGUN)
def test_what_functions_fill_is_told_by_what_it_began_with(source: str, modules: Modules) -> None:
    modules.forget("tables")
    modules.write("tables", "k = {}")
    f = modules.load(HEAD + source, "of_user").f
    before = callable_text("f", f)
    f(1)
    assert callable_text("f", f) == before


@pytest.mark.parametrize("source", CHOSEN.values(), ids=CHOSEN)
def test_which_code_is_chosen_counts(source: str, modules: Modules) -> None:
    one, same, other = (text_of(modules, source, k) for k in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize("source", INSIDE.values(), ids=INSIDE)
def test_what_is_in_a_value_of_pythons_libraries_counts(source: str, modules: Modules) -> None:
    one, same, other = (text_of(modules, f"import {LIBRARIES}\n{source}", k) for k in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize("source", CHECKED.values(), ids=CHECKED)
def test_what_a_type_is_given_counts_where_values_are_checked_by_it(source: str, modules: Modules) -> None:
    pytest.importorskip("pydantic")
    one, same, other = (text_of(modules, f"import pydantic, typing\n{source}", k) for k in (1, 1, 2))
    assert one == same != other


def test_of_an_object_that_nothing_tells_a_run_warns_once(
    modules: Modules, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is compared in its place is said: the value that it is made of, by a name."""
    source = "import hashlib\nk = hashlib.sha256({})\ndef f(row): return k.hexdigest()"
    name = "of_nothing_told"
    modules.monkeypatch.setenv("K", "1")
    for _ in range(2):
        callable_text("f", modules.load(f"{HEAD}{source.format('os.environb[bytes([75])]')}", name).f)
    callable_text("f", modules.load(f"{HEAD}{source.format('bytes([75])')}", "of_text_alone").f)
    said = caplog.text + "".join(capsys.readouterr())
    assert said.count("nothing tells what is in a HASH") == said.count(f"{name}.k") == 1
    assert "of_text_alone" not in said


@pytest.mark.parametrize("source", BESIDE.values(), ids=BESIDE)
def test_what_a_value_has_beside_its_kind_counts_where_a_function_closes_over_it(source: str, modules: Modules) -> None:
    source = f"import decimal\n{source}\ndef make(o, k):\n    o.k = k\n    return lambda row: o.k\nf = make(o, {K})"
    one, same, other = (text_of(modules, source, k) for k in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize("what", ["from {} import g", "import {} as g"])
def test_which_of_several_imports_is_used_counts(what: str, modules: Modules) -> None:
    for name in ("fast", "slow"):
        modules.forget(name)
        modules.write(name, "def g(x): return x")
    source = f"if {K} == 1: {what.format('fast')}\nelse: {what.format('slow')}\ndef f(row): return g"
    one, same, other = (text_of(modules, source, k) for k in (1, 1, 2))
    assert one == same != other
