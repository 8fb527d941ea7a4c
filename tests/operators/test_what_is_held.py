"""Code and values that no statement of a function's module names decide its rows, and are part of what a dataset is:
what is in a table, an argument, a decorator or a package, and what the program sets from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import curate
from curate.code.closures import value_text
from curate.code.function import callable_text
from curate.errors import ConfigError
from curate.operators.udf import Udf
from tests.job.modules import Modules

READ = "def read(): return int(open(K).read())"
"""What a program computes as it starts: 1 in one run, 2 in the next."""
MADE = "def make(k):\n    def made(x): return x + k\n    return made"
CALLED = "def f(row): return h(row)"
WITHIN = "def g(x): return x + 1\ndef h(x): return g(x)"
"""A function whose helper changes: its own text stays."""
WRAPS = """
import functools
def by(h):
    @functools.wraps(h)
    def w(x): return h(x) + 1
    return w
def g(x): return x
"""
"""A wrapper that says that it is what it wraps: name, module, and where inspect looks for its source."""

WRAPPER = (
    "import functools\nclass By:\n"
    "    def __init__(self, h, k): functools.update_wrapper(self, h); self.h, self.k = h, k\n"
    "    def __call__(self, row): return self.h(row) + self.k\ndef over(h): return By(h, read())\n"
)
"""A wrapper that is an object."""

CODE = {
    "a table that is closed over": f"{WITHIN}\ndef make(d): return lambda row: d['a'](row)\nf = make({{'a': h}})",
    "a list in a partial": f"import functools\n{WITHIN}\ndef use(d, row): return d[0](row)\n"
    "f = functools.partial(use, [h])",
    "a default": f"{WITHIN}\nf = (lambda h: lambda row, h=h: h(row))(lambda x: g(x))",
    "a set": f"{WITHIN}\ndef make(d): return lambda row: [one(row) for one in d]\nf = make({{h, len}})",
    "an argument": f"{WITHIN}\ndef f(row, h): return h(row)\nargs = [h]",
    "a lambda as an argument": "def g(x): return x + 1\ndef f(row, h): return h(row)\nargs = [lambda x: g(x)]",
    "a class as an argument": "class H:\n    def o(self, x): return x + 1\ndef f(row, h): return h().o(row)\n"
    "args = [H]",
    "a table of a decorator": "T = {}\ndef put(h): T[h.__name__] = h; return h\n@put\ndef h(x): return x + 1\n"
    "def f(row): return T['h'](row)",
    "a list of a decorator": "T = []\ndef put(h): T.append(h); return h\n@put\ndef h(x): return x + 1\n"
    "def f(row): return T[0](row)",
    "a table of classes": "T = {}\nclass B:\n    def __init_subclass__(cls): T[cls.__name__] = cls\n"
    "class A(B):\n    def o(self, x): return x + 1\ndef f(row): return T['A']().o(row)",
    "one for each type": "import functools\n@functools.singledispatch\ndef h(x): return 0\n@h.register\n"
    "def _(x: int): return x + 1\ndef f(row): return h(row)",
    "a method of a value": "import typing\nclass N(typing.NamedTuple):\n    k: int\n"
    "    def o(self): return self.k + 1\n"
    "def make(n): return lambda row: n.o()\nf = make(N(1))",
    "a method of a text": "class S(str):\n    def o(self): return len(self) + 1\n"
    "def make(s): return lambda row: s.o()\nf = make(S('a'))",
    "what a table has for other keys": "class D(dict):\n    def __missing__(self, key): return key + 1\n"
    "def make(d): return lambda row: d[row]\nf = make(D())",
    "the default of a table": "import collections\ndef make(d): return lambda row: d[row]\n"
    "f = make(collections.defaultdict(lambda: 0 + 1))",
    "a method from outside": "class f:\n    def __call__(self, row): return self.o(row)\n"
    "def o(self, x): return x + 1\nf.o = o",
    "a table whose get is called": f"{WITHIN}\ndef make(get): return lambda row: get('a')(row)\n"
    "f = make({'a': h}.get)",
    "a field of a record": f"import dataclasses\n{WITHIN}\n@dataclasses.dataclass\nclass R:\n    h: object\n"
    "def make(r): return lambda row: r.h(row)\nf = make(R(h))",
    "a method of a record": "import dataclasses\n@dataclasses.dataclass\nclass R:\n    k: int\n"
    "    def o(self, x): return x + 1\ndef make(r): return lambda row: r.o(row)\nf = make(R(1))",
    "a record that is called": "import dataclasses\n@dataclasses.dataclass\nclass R:\n    k: int\n"
    "    def __call__(self, x): return x + 1\nf = R(1)",
    "what an object of a method holds": f"{WITHIN}\nclass O:\n    def __init__(self, h): self.h = h\n"
    "    def o(self, row): return self.h(row)\nf = O(h).o",
    "what is kept": f"import functools\n{WITHIN}\ndef make(h): return lambda row: h(row)\n"
    "f = make(functools.lru_cache(h))",
    "a name that Python has too": "def len(x): return x + 1\ndef f(row): return len(row)",
    "a wrapper": f"{WRAPS}f = by(g)",
    "a wrapper of its decorator": f"{WRAPS}@by\ndef f(row): return row",
    "a wrapper of a decorated one": f"{WRAPS}def plain(h): return h\n@plain\ndef g(x): return x\nf = by(g)",
    "a helper of a wrapper": f"{WRAPS.replace('+ 1', '+ k()')}def k(): return 0 + 1\nf = by(g)",
    "a wrapper in a partial": f"{WRAPS}f = functools.partial(by(g))",
    "a wrapper that is closed over": f"{WRAPS}def make(h): return lambda row: h(row)\nf = make(by(g))",
    "a wrapper in a list": f"{WRAPS}def make(d): return lambda row: d[0](row)\nf = make([by(g)])",
    "a wrapper in a table": f"{WRAPS}T = {{'g': by(g)}}\ndef f(row): return T['g'](row)",
    "of a text": "g = eval('lambda x: x + 1')\ndef f(row): return g(row)",
    "of a text, in a table": "T = {'g': eval('lambda x: x + 1')}\ndef f(row): return T['g'](row)",
    "of a text that uses a helper": f"{WITHIN}\nk = eval('lambda x: h(x)')\ndef f(row): return k(row)",
    "of a text with names of its own": "n = {}\nexec('def g(x): return h(x)', n)\nn['h'] = eval('lambda x: x + 1')\n"
    "k = n['g']\ndel n\ndef f(row): return k(row)",
    "of a file that is no module": "n = {}\nexec(compile('def g(x): return x + 1', 'rules.py', 'exec'), n)\n"
    "g = n['g']\ndef f(row): return g(row)",
    "a class of a text": "n = {}\nexec('class C:\\n    def o(self, x): return x + 1', n)\nC = n['C']\n"
    "def f(row): return C().o(row)",
    "a wrapper of a method": f"{WRAPS}class C:\n    def o(x): return x\nsetattr(C, 'o', by(C.o))\n"
    "def f(row): return C.o(row)",
}
"""Each changes from `+ 1` to `+ 2`."""
COMPUTES = "def __getattr__(name):\n    if name == 'o': return g\n    raise AttributeError(name)"
FROM = {
    "a package that imports it": ("import p\ndef f(row): return p.h.g(row)", "from . import h"),
    "a package that imports it by its name": ("import p\ndef f(row): return p.h.g(row)", "import p.h"),
    "by its name": ("import p.h\ndef f(row): return p.h.g(row)", ""),
    "the package of one": ("import p.h\ndef f(row): return p.g(row)", "from p.h import g"),
    "another name": ("import p.h\nz = p.h\ndef f(row): return z.g(row)", ""),
    "a name that is computed": (
        "import importlib\nz = importlib.import_module('p.h')\ndef f(row): return z.g(row)",
        "",
    ),
    "by the name of an attribute": ("import p.h as h\ndef f(row): return getattr(h, 'g')(row)", ""),
    "all of it": ("from p import *\ndef f(row): return g(row)", "from p.h import *"),
    "a name that is computed as it runs": ("import p.h as h\ndef f(row): return getattr(h, 'g'[row:])(row)", ""),
    "a name in its table": ("import p.h as h\ndef f(row): return vars(h)['g'](row)", ""),
    "an argument": ("import operator\nimport p.h as h\na = operator.attrgetter('g')\ndef f(row): return a(h)(row)", ""),
    "a call in the function": ("import importlib\ndef f(row): return importlib.import_module('p.h').g(row)", ""),
    "a call that is kept": (
        "from importlib import import_module\ndef f(row):\n    h = import_module('p.h')\n    return h.g(row)",
        "",
    ),
    "a call of Python's": ("def f(row): return __import__('p.h').h.g(row)", ""),
    "a text": ("import p.h\ndef f(row): return eval('p.h.g(row)')", ""),
    "the table of all": ("from p.h import g\ndef f(row): return globals()['g'](row)", ""),
    "a table of modules": (
        "import sys\nimport p.h as h\ndef __getattr__(name): return h.g\n"
        "def f(row): return sys.modules[__name__].o(row)",
        "",
    ),
    "a class that looks for its kinds": (
        "from p.h import g\nclass B: pass\nclass C(B):\n    def o(self, x): return g(x)\n"
        "def f(row): return B.__subclasses__()[0]().o(row)",
        "",
    ),
    "a name that its module computes": (
        "from p import o\ndef f(row): return o(row)",
        COMPUTES.replace("g\n", "__import__('importlib').import_module('p.h').g\n"),
    ),
    "the code that computes a name of its module": ("import p.h\ndef f(row): return p.h.o(row)", ""),
    "itself": ("import p\ndef f(row): return p.q.h.g(row)", "from . import h\nimport p as q"),
    "what a function around it imports": (
        "def make():\n    from p import h\n    def f(row): return h.g(row)\n    return f\nf = make()",
        "",
    ),
    "what one around a lambda does": ("def make():\n    import p.h\n    return lambda row: p.h.g(row)\nf = make()", ""),
    "what one closes over and hands on": (
        "import operator, p.h\ndef make(h): return lambda row: operator.attrgetter('g')(h)(row)\nf = make(p.h)",
        "",
    ),
    "what a helper closes over": (
        "import importlib\ndef make(h): return lambda row: h.g(row)\nh = make(importlib.import_module('p.h'))\n"
        "def f(row): return h(row)",
        "",
    ),
    "a default of a lambda": ("import p.h\nf = lambda row, h=p.h: h.g(row)", ""),
    "what a partial is given": ("import functools, p.h\nf = functools.partial(lambda h, row: h.g(row), p.h)", ""),
    "in a list": ("import p.h\ndef make(hs): return lambda row: hs[0].g(row)\nf = make([p.h])", ""),
    "in a table of a name that is computed": (
        "import importlib\nT = {n: importlib.import_module(n) for n in ['p.h']}\ndef f(row): return T['p.h'].g(row)",
        "",
    ),
    "in its table of names": ("import p.h as h\ndef f(row): return h.__dict__['g'](row)", ""),
    "in a class": (
        "class C:\n    import p.h as h\n    def o(self, x): return self.h.g(x)\ndef f(row): return C().o(row)",
        "",
    ),
    "of an object": (
        "import p.h\nclass C:\n    def __init__(self, h): self.h = h\n    def o(self, x): return self.h.g(x)\n"
        "f = C(p.h).o",
        "",
    ),
}
VALUES = {
    "in an expression": "(k := read())\ndef f(row): return k",
    "in a condition": "if (k := read()): pass\ndef f(row): return k",
    "in a match": "match [0, read()]:\n    case [_, k]: pass\ndef f(row): return k",
    "in a with": "import contextlib\nwith contextlib.nullcontext((0, read())) as (_, k): pass\ndef f(row): return k",
    "by a function": "def start():\n    global k\n    k = read()\nstart()\ndef f(row): return k",
    "by a name that is computed": "globals()['k'] = read()\ndef f(row): return k",
    "in a module": "import sys\nsetattr(sys.modules[__name__], 'k', read())\ndef f(row): return k",
    "in a function": "def f(row): return f.k\nf.k = read()",
    "in a helper": "def h(x): return h.k\nh.k = read()\ndef f(row): return h(row)",
    "in a helper by a name": "def h(x): return h.k\nsetattr(h, 'k', read())\ndef f(row): return h(row)",
    "in a helper of another module": "import with_k\nwith_k.h.k = read()\ndef f(row): return with_k.h(row)",
    "in a function by a decorator": "def by():\n    def over(h): h.k = read(); return h\n    return over\n@by()\n"
    "def h(x): return h.k\ndef f(row): return h(row)",
    "a default of a named tuple": "import collections\nP = collections.namedtuple('P', 'k', defaults=[read()])\n"
    "def f(row): return P().k",
    "a default of one with types": "import typing\nclass P(typing.NamedTuple):\n    k: int = read()\n"
    "def f(row): return P().k",
    "one for each type closes over it": f"import functools\n{MADE}\n@functools.singledispatch\ndef h(x): return 0\n"
    f"h.register(int, make(read()))\n{CALLED}",
    "in a class": "class f:\n    def __call__(self, row): return self.k\nf.k = read()",
    "in a class that is used": "class C: pass\nC.k = read()\ndef f(row): return C.k",
    "in an object": "class O:\n    def __init__(self, k): self.k = k\n    def o(self): return self.k\n"
    "o = O(read())\ndef f(row): return o.o()",
    "a default of a derived named tuple": "import collections\n"
    "class P(collections.namedtuple('P', 'k', defaults=[read()])): pass\ndef f(row): return P().k",
    "a default of a record with slots": "import dataclasses\n@dataclasses.dataclass(slots=True)\nclass R:\n"
    "    k: int = read()\ndef f(row): return R().k",
    "a default of a record that is derived": "import dataclasses\n@dataclasses.dataclass(slots=True)\nclass R:\n"
    "    k: int = dataclasses.field(default=read())\nclass Q(R): pass\ndef f(row): return Q().k",
    "a default of a record that is closed over": "import dataclasses\n@dataclasses.dataclass(slots=True)\n"
    "class R:\n    k: int = read()\ndef make(R): return lambda row: R().k\nf = make(R)",
    "a default of a record that a function makes": "import dataclasses\n"
    "R = dataclasses.make_dataclass('R', [('k', int, read())], slots=True)\ndef f(row): return R().k",
    "a default of attrs": "import attrs\n@attrs.define\nclass R:\n    k: int = read()\ndef f(row): return R().k",
    "what makes one of attrs": f"import attrs\n{MADE}\n@attrs.define\nclass R:\n"
    "    k: int = attrs.field(factory=make(read()))\ndef f(row): return R().k",
    "a default of pydantic": "import pydantic\nclass R(pydantic.BaseModel):\n    k: int = read()\n"
    "def f(row): return R().k",
    "what makes one of pydantic": f"import pydantic\n{MADE}\nclass R(pydantic.BaseModel):\n"
    "    k: int = pydantic.Field(default_factory=make(read()))\ndef f(row): return R().k",
    "what a wrapper has": f"{WRAPPER}@over\ndef f(row): return row",
    "what the wrapper of a helper is given": f"{WRAPPER}def of(k): return lambda h: By(h, k)\n@of(read())\n"
    f"def h(x): return x\n{CALLED}",
    "what draws numbers": "import numpy as np\nv = np.random.PCG64(read())\ndef f(row): return v.random_raw()",
    "what numbers are drawn from": "import numpy as np\nv = np.random.SeedSequence(read())\n"
    "def f(row): return np.random.default_rng(v)",
    "a pattern of regex": "import regex\nv = regex.compile('a', read() * regex.I)\ndef f(row): return v.match(row)",
    "options of a function of Arrow": "import pyarrow.compute as pc\nv = pc.MatchSubstringOptions(str(read()))\n"
    "def make(v): return lambda row: v\nf = make(v)",
    "what is said of a field": "import pyarrow as pa\nv = pa.field('a', pa.int8(), metadata={'k': str(read())})\n"
    "def f(row): return v.metadata",
    "an expression of polars": "import polars as pl\nv = pl.col('a') > read()\ndef f(row): return v",
    "how decimals are divided": "import decimal\nv = decimal.Context(prec=read())\ndef f(row): return v.divide(1, 3)",
    "what an enumeration's members are made with": "import enum\nclass E(enum.Enum):\n    A = 1\n"
    "    def __init__(self, v): self.k = read()\ndef f(row): return E.A.k",
    "what a member that is closed over is made with": "import enum\nclass E(enum.Enum):\n    A = 1\n"
    "    def __new__(cls, v):\n        made = object.__new__(cls)\n        made._value_, made.k = v, read()\n"
    "        return made\ndef make(e): return lambda row: e.k\nf = make(E.A)",
    "what a member in a list is made with": "import enum\nclass B(enum.Enum):\n"
    "    def __init__(self, v): self.k = read()\nclass E(B): A = 1\nv = [E.A]\ndef f(row): return v[0].k",
    "an attribute of a member": "import enum\nclass E(enum.Enum): A = 1\nE.A.k = read()\ndef f(row): return E.A.k",
    "in an enumeration": "import enum\nclass E(enum.Enum):\n    A = read()\ndef make(e): return lambda row: e.value\n"
    "f = make(E.A)",
    "what a function closes over": f"{MADE}\nh = make(read())\n{CALLED}",
    "what a decorator is given": f"def by(k): return lambda h: lambda x: h(x) + k\n@by(read())\ndef h(x): return x\n"
    f"{CALLED}",
    "which function": f"def a(x): return 1\ndef b(x): return 2\nh = a if read() == 1 else b\n{CALLED}",
    "which function by a statement": f"def a(x): return 1\ndef b(x): return 2\nif read() == 1:\n    h = a\nelse:\n"
    f"    h = b\n{CALLED}",
    "which definition": f"if read() == 1:\n    def h(x): return 1\nelse:\n    def h(x): return 2\n{CALLED}",
    "which class": "class A:\n    def o(self): return 1\nclass B:\n    def o(self): return 2\n"
    "o = A() if read() == 1 else B()\ndef f(row): return o.o()",
    "which wrapper": f"{WRAPS}def over(h):\n    @functools.wraps(h)\n    def w(x): return -h(x)\n    return w\n"
    f"h = by(g) if read() == 1 else over(g)\n{CALLED}",
    "what is masked": "import numpy as np\nm = np.ma.array([1, 2], mask=[read() == 1, False])\n"
    "def make(m): return lambda row: m.sum()\nf = make(m)",
    "the zone of a time": "import datetime, zoneinfo\n"
    "zone = zoneinfo.ZoneInfo(['Europe/Paris', 'Europe/Berlin'][read() - 1])\n"
    "def make(t): return lambda row: t\nf = make(datetime.datetime(2026, 1, 1, tzinfo=zone))",
    "the second of two hours": "import datetime\ndef make(t): return lambda row: t.fold\n"
    "f = make(datetime.datetime(2026, 1, 1, fold=read() - 1))",
    "what a class in a function closes over": "import dataclasses\ndef make(k):\n    @dataclasses.dataclass\n"
    "    class R:\n        n: int\n        def o(self): return k\n    r = R(1)\n    return lambda row: r.o()\n"
    "f = make(read())",
    "an attribute of a text": "class S(str): pass\ns = S('a')\ns.k = read()\ndef make(s): return lambda row: s.k\n"
    "f = make(s)",
}
"""Each computes its value as the program starts."""
TOLD = {
    "what a decorator puts into tables": "T, S = {}, []\ndef put(k):\n    def over(h):\n"
    "        T[h.__name__] = lambda x: h(x) + k\n        S.append((h, k))\n        return h\n    return over\n"
    "@put(1)\ndef h(x): return x\ndef f(row): return T['h'](S[0][1])",
    "what a method is given": "import functools\nclass C:\n    def o(self, k): return k\n"
    "    p = functools.partialmethod(o, 1)\ndef f(row): return C().p()",
    "checks of fields": "import attrs\n@attrs.define\nclass R:\n    k: int = attrs.field(converter=int, "
    "validator=attrs.validators.le(1))\ndef f(row): return R(row).k",
    "a default of what is in a list": "T = []\n@T.append\ndef h(x, k=1): return k\ndef f(row): return T[0](row)",
    "defaults of lambdas": "T = [lambda x, k=1: k, lambda x, k=2: k]\ng = lambda x, k=1: k\n"
    "def f(row): return T[0](g(row))",
    "a default of what a function makes": "def make():\n    def h(x, k=1): return k\n    return h\nT = [make()]\n"
    "def f(row): return T[0](row)",
    "an attribute of a class in a list": "T = []\n@T.append\nclass C:\n    k = 1\ndef f(row): return T[0].k",
    "a default": "import collections\nP = collections.namedtuple('P', 'k', defaults=[1])\n"
    "class Q(P): pass\ndef h(x): return P().k\ndef f(row): return h(row)",
    "an attribute": "def h(x): return h.k\nh.k = [1, 2]\ndef f(row): return h(row)",
    "what a decorator is given": "def by(k):\n    def over(h): h.k = k; return h\n    return over\n@by([1])\n"
    "def h(x): return h.k\ndef f(row): return h(row)",
    "what it counts": "def h(x):\n    h.k += 1\n    return x\nh.k = 0\ndef f(row): return h(row)",
    "one for each type": "import functools\n@functools.singledispatch\ndef h(x): return 0\n@h.register\n"
    "def _(x: int): return 1\ndef f(row): return h(row)",
    "a default of a derived one": "import collections\n"
    "class P(collections.namedtuple('P', 'k', defaults=[1])): pass\ndef f(row): return P().k",
    "a default of a record with slots": "import dataclasses\n@dataclasses.dataclass(slots=True)\nclass R:\n"
    "    k: int = 1\n    n: list = dataclasses.field(default_factory=lambda: [])\nclass Q(R): pass\n"
    "def f(row): return Q().k",
    "defaults of attrs": "import attrs\n@attrs.define\nclass R:\n    k: int = 1\n    n: list = attrs.Factory(list)\n"
    "    m: list = attrs.field(factory=lambda: [])\ndef f(row): return R().k",
}
"""Nothing is computed in these: no value is beside their statements."""
RECORDS = {
    "a record": "dataclasses.dataclass(R)(read())",
    "one with slots": "dataclasses.dataclass(slots=True)(R)(read())",
    "one of pydantic": "pydantic.create_model('M', k=(int, 1))(k=read())",
    "parsed arguments": "argparse.Namespace(k=read())",
    "a namespace": "types.SimpleNamespace(k=read())",
}
KINDS = {
    "a method of a set": "{read()}.__contains__",
    "a method of a dictionary": "{1: read()}.get",
    "a method of a list": "[read()].__getitem__",
    "a method of a pattern": "re.compile(str(read())).search",
    "a method of a text": "str(read()).startswith",
    "a method of an array": "np.array([read()]).item",
    "a comparison": "read().__eq__",
    "what sorts by a table": "functools.partial(sorted, key={1: read()}.get)",
    "what gets an item": "operator.itemgetter(read())",
    "what gets an attribute": "operator.attrgetter(f'a{read()}')",
    "what calls a method": "operator.methodcaller('f', k=read())",
    "a queue": "collections.deque([read()], 3)",
    "a fraction": "fractions.Fraction(read(), 3)",
    "bytes that change": "bytearray([read()])",
    "an array of C": "array.array('i', [read()])",
    "a slice": "slice(read())",
}
IMPORTS = "import argparse, array, collections, dataclasses, fractions, functools, operator, pydantic, re, types\n"
IMPORTS += "import numpy as np\nclass R: __annotations__ = {'k': int}\n"
CLOSED = "def make(v): return lambda row: (v, getattr(v, 'k', 0))\nf = make"
VALUES |= {f"{name} closed over": f"{IMPORTS}{CLOSED}({one})" for name, one in {**KINDS, **RECORDS}.items()}
VALUES |= {f"{name} in a global": f"{IMPORTS}v = {one}\ndef f(row): return v" for name, one in KINDS.items()}
RULE = "class Rule:\n    def __init__(self, k): self.k = k\n    def o(self): return self.k\n"
SLOT = "class Rule:\n    __slots__ = ('k',)\n    def __init__(self, k): self.k = k\n    def o(self): return self.k\n"
NUMBER = RULE.replace("return self.k", "return 1")
"""Of which nothing but what holds it asks for its attribute."""
VALUES |= {
    "objects in a list": f"{RULE}v = [Rule(read())]\ndef f(row): return v[0].o()",
    "objects of which others ask": f"{NUMBER}v = [Rule(read())]\ndef f(row): return [one.k for one in v]",
    "how many objects": f"{NUMBER}v = [Rule(1)] * read()\ndef f(row): return len(v)",
    "objects in a table": f"{RULE}v = {{'a': Rule(read())}}\ndef f(row): return v['a'].o()",
    "objects as keys": f"{RULE}v = {{Rule(read()): 1}}\ndef f(row): return [one.o() for one in v]",
    "objects in a set": f"{RULE}v = {{Rule(read()), Rule(0)}}\ndef f(row): return [one.o() for one in v]",
    "objects in an object in a tuple": f"{RULE}v = (Rule([Rule(read())]),)\ndef f(row): return v[0].o()[0].o()",
    "records in a list": "import dataclasses\n@dataclasses.dataclass\nclass R:\n    k: int\nv = [R(read())]\n"
    "def f(row): return v[0].k",
    "objects with slots in a list": f"{SLOT}v = [Rule(read())]\ndef f(row): return v[0].o()",
    "an object with slots": f"{SLOT}v = Rule(read())\ndef f(row): return v.o()",
    "a slot that is asked for": f"{SLOT.replace('return self.k', 'pass')}v = Rule(read())\ndef f(row): return v.k",
    "an attribute by its name": f"{NUMBER}v = Rule(read())\ndef f(row): return getattr(v, 'k')",
    "a method of an object": f"{RULE}v = Rule(read()).o\ndef f(row): return v()",
    "an attribute of a class that a decorator puts into a list": "T = []\ndef put(c): T.append(c); return c\n@put\n"
    "class C:\n    k = read()\ndef f(row): return T[0].k",
    "what a class in a list is derived with": "T = []\nclass B:\n"
    "    def __init_subclass__(cls, k): T.append(cls); cls.k = k\nclass C(B, k=read()): pass\n"
    "def f(row): return T[0].k",
    "what a decorator closes over that it puts into a table": "T = {}\ndef put(k):\n    def over(h):\n"
    "        T[h.__name__] = lambda x: h(x) + k\n        return h\n    return over\n@put(read())\ndef h(x): return x\n"
    "def f(row): return T['h'](row)",
    "what a decorator puts into a list beside it": "T = []\ndef put(k):\n    def over(h):\n"
    "        T.append((h, k))\n        return h\n    return over\n@put(read())\ndef h(x): return x\n"
    "def f(row): return T[0][1]",
    "what a method is given": "import functools\nclass C:\n    def o(self, k): return k\n"
    "    p = functools.partialmethod(o, read())\ndef f(row): return C().p()",
    "what a method of an object in a list is given": "import functools\nclass C:\n    def o(self, k): return k\n"
    "    p = functools.partialmethod(o, k=read())\nT = [C()]\ndef f(row): return T[0].p()",
    "one method for each type closes over it": f"import functools\n{MADE.replace('(x)', '(self, x)')}\nclass C:\n"
    "    @functools.singledispatchmethod\n    def o(self, x): return 0\n    o.register(int, make(read()))\n"
    "def f(row): return C().o(row)",
    "what converts a field": f"import attrs\n{MADE}\n@attrs.define\nclass R:\n"
    "    k: int = attrs.field(converter=make(read()))\ndef f(row): return R(row).k",
    "what checks a field": "import attrs\n@attrs.define\nclass R:\n"
    "    k: int = attrs.field(validator=attrs.validators.le(read()))\ndef f(row): return R(row).k",
    "the limit of a field": "import pydantic\nclass R(pydantic.BaseModel):\n    k: int = pydantic.Field(le=read())\n"
    "def f(row): return R(k=row).k",
    "the limit of a field by its type": "import pydantic, typing\nclass R(pydantic.BaseModel):\n"
    "    k: typing.Annotated[int, pydantic.Field(le=read())]\ndef f(row): return R(k=row).k",
    "a private name in a class": "class C: pass\nC._k = read()\ndef f(row): return C._k",
}
OWN = {
    "a moment that a function sets": "import time\ndef start():\n    global k\n    k = time.time() + read()\nstart()\n"
    "def f(row): return print(k)",
    "an object with a moment": "import time\nclass T:\n    def __init__(self): self.t = time.time() + read()\n"
    "    def lap(self): return time.time() - self.t\nt = T()\ndef f(row): return t.lap()",
    "an object that counts": "class T:\n    def __init__(self): self.n = read()\n    def lap(self): self.n += 1\n"
    "t = T()\n"
    "def f(row): return t.lap()",
    "a decorator with a moment": "import time\ndef timed(h):\n    t = time.time() + read()\n"
    "    return lambda x: (t, h(x))[1]\n"
    f"@timed\ndef h(x): return x\n{CALLED}",
    "the random numbers of all": "import random\nrandom.seed(read())\ndef make(v): return lambda row: v(row)\n"
    "f = make(random.choice)",
    "objects with a moment": "import time\nclass T:\n    def __init__(self): self.t = time.time() + read()\n"
    "    def lap(self): return time.time() - self.t\nv = [T()]\ndef f(row): return v[0].lap()",
    "objects that count": "class T:\n    def __init__(self): self.n = read()\n    def lap(self): self.n += 1\n"
    "v = [T()]\ndef f(row): return v[0].lap()",
    "objects with a cache": "class T:\n    def __init__(self): self.n = {read(): 1}\n"
    "    def lap(self, x): self.n[x] = 1\nv = [T()]\ndef f(row): return v[0].lap(row)",
    "objects with what is computed once": "import functools\nclass T:\n    @functools.cached_property\n"
    "    def n(self): return 1\nv = [T() for _ in 'a']\nif read() == 2: v[0].n\ndef f(row): return v[0].n",
    "objects that hold each other": "class T: pass\nv = [T() for _ in 'ab']\nv[0].o = v[1]\nv[1].o = v[0]\n"
    "def f(row): return v",
    "a cache of records": "import dataclasses\n@dataclasses.dataclass\nclass R:\n    k: int\nT = {}\n"
    "def start(x):\n    T[x] = R(x)\n    return x\nstart(read())\ndef f(row): return start(row)",
    "a cache of partials": "import functools\n@functools.lru_cache()\ndef h(x): return x\nT = {}\n"
    "def start(x):\n    T[x] = functools.partial(h, x)\n    return x\nstart(read())\ndef f(row): return start(row)",
    "a table that it does not use": "T = {'a': read()}\ndef f(row): return row",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Modules:
    return Modules(tmp_path / "modules", monkeypatch)


def text_of(modules: Modules, source: str) -> Any:
    module = modules.load(source, "of_user")
    return Udf(module.f, tuple(vars(module).get("args", ()))).identity("f")


@pytest.mark.parametrize("source", CODE.values(), ids=CODE)
def test_code_that_is_held_counts(source: str, modules: Modules) -> None:
    before = text_of(modules, source)
    assert text_of(modules, source) == before != text_of(modules, source.replace("+ 1", "+ 2"))


@pytest.mark.parametrize("text", ["lambda x: x + k", "lambda x, k=k: k", "(lambda k: lambda x: k)(k)"])
def test_code_of_a_text_that_is_computed_counts(text: str, modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a rule that comes from the command line."""
    source = "import os\nk = int(os.environ['K'])\ng = eval(os.environ['RULE'])\ndef f(row): return g(row)"
    texts = []
    for k, rule in (("1", text), ("1", text), ("2", text), ("1", text.replace("lambda x", "lambda y, x=k"))):
        monkeypatch.setenv("K", k)
        monkeypatch.setenv("RULE", rule)
        texts.append(str(text_of(modules, source)))
    assert texts[0] == texts[1]
    assert len({*texts}) == 3


WITHIN_IT = "import contextlib\n@contextlib.contextmanager\ndef by(k=0):\n    yield k"
BY = "import functools\nclass by:\n    def __init__(self, h): functools.update_wrapper(self, h); self.h = h"
DECORATED = {
    "a context": f"{WITHIN_IT}\n@by()\ndef f(row): return row + 1",
    "its own code": f"{WITHIN_IT} + 1\n@by()\ndef f(row): return row",
    "what it is given": f"{WITHIN_IT}\nk = [0 + 1][0]\n@by(k)\ndef f(row): return row",
    "a helper": f"{WITHIN_IT}\ndef g(row): return row + 1\n@by()\ndef f(row): return g(row)",
    "an object": f"{BY}\n    def __call__(self, row): return self.h(row)\n@by\ndef f(row): return row + 1",
    "its method": f"{BY}\n    def __call__(self, row): return self.h(row) + 1\n@by\ndef f(row): return row",
}


@pytest.mark.parametrize("source", DECORATED.values(), ids=DECORATED)
def test_what_a_library_or_a_class_decorates_is_told_by_its_statement(source: str, modules: Modules) -> None:
    """As `torch.no_grad()` and `tenacity.retry` do: it was refused, because of what such a wrapper has of its own."""
    test_code_that_is_held_counts(source, modules)


@pytest.mark.parametrize(
    "source",
    [
        f"{WITHIN_IT}\ndef f(row): return row\nf = by()(f)",
        f"{WITHIN_IT}\ndef made():\n    @by()\n    def f(row): return row\n    return f\nf = made()",
        "import functools, threading\ndef by(h):\n    lock = threading.Lock()\n    @functools.wraps(h)\n"
        "    def inner(row):\n        with lock: return h(row)\n    return inner\n@by\ndef f(row): return row",
    ],
    ids=["by no decorator", "in a function", "a wrapper of the user's"],
)
def test_other_wrappers_of_what_cannot_be_compared_are_refused(source: str, modules: Modules) -> None:
    with pytest.raises(ConfigError, match="cannot be compared between runs"):
        text_of(modules, source)


def test_what_python_makes_of_a_record_adds_nothing(modules: Modules) -> None:
    source = "import dataclasses\n@dataclasses.dataclass(order=True)\nclass R:\n    k: int = 1\no = R()\n"
    assert " has " not in str(text_of(modules, f"{source}def f(row): return o < R(2)"))


@pytest.mark.parametrize(("source", "package"), FROM.values(), ids=FROM)
def test_code_of_a_package_counts_however_it_is_called(source: str, package: str, modules: Modules) -> None:
    """A package that imports its own module by `from . import h` was followed without an end."""
    texts = []
    for k in "112":
        for name in ("p", "p.h"):
            modules.forget(name)
        modules.write("p.__init__", package)
        modules.write("p.h", f"def g(x): return x + {k}\n{COMPUTES}")
        texts.append(text_of(modules, source))
    assert texts[0] == texts[1] != texts[2]


def test_of_a_module_that_is_closed_over_what_is_asked_counts(modules: Modules) -> None:
    """As of one that its own module imports; of one in another one, too."""
    texts = []
    for used, other in ("01", "02", "11"):
        for name in ("p", "p.h"):
            modules.forget(name)
        modules.write("p.__init__", f"def other(): return {other}")
        modules.write("p.h", f"def g(x): return x + {used}\ndef other(): return {other}")
        source = "def make():\n    import p.h\n    def f(row): return p.h.g(row)\n    return f\nf = make()"
        texts.append(text_of(modules, source))
    assert texts[0] == texts[1] != texts[2]


def test_code_of_a_wrapper_counts_that_lies_in_another_module(modules: Modules) -> None:
    """It says that it is of the module of what it wraps, where other functions have the names of its helpers."""
    texts = []
    for k in "112":
        modules.forget("wrapping")
        modules.write("wrapping", f"{WRAPS.replace('+ 1', '+ help()')}def help(): return {k}")
        texts.append(text_of(modules, "import wrapping\ndef help(): return 0\ndef g(x): return x\nf = wrapping.by(g)"))
    assert texts[0] == texts[1] != texts[2]


def computed(modules: Modules, source: str, tmp_path: Path) -> list[Any]:
    texts = []
    modules.write("with_k", "def h(x): return h.k")
    for k in "112":
        modules.forget("with_k")
        (tmp_path / "k").write_text(k)
        texts.append(text_of(modules, f"K = {str(tmp_path / 'k')!r}\n{READ}\n{source}"))
    return texts


@pytest.mark.parametrize("source", VALUES.values(), ids=VALUES)
def test_a_value_counts_however_it_is_set(source: str, modules: Modules, tmp_path: Path) -> None:
    one, same, other = computed(modules, source, tmp_path)
    assert one == same != other


@pytest.mark.parametrize("source", TOLD.values(), ids=TOLD)
def test_what_statements_tell_of_a_function_adds_nothing(source: str, modules: Modules) -> None:
    assert " = " not in str(text_of(modules, source))


@pytest.mark.parametrize("source", OWN.values(), ids=OWN)
def test_what_a_run_has_of_its_own_does_not(source: str, modules: Modules, tmp_path: Path) -> None:
    assert len({str(one) for one in computed(modules, source, tmp_path)}) == 1


def test_modules_that_take_all_of_each_other_end(modules: Modules) -> None:
    modules.write("one", "from other import *")
    modules.write("other", "from one import *\ndef g(x): return x")
    assert "name='g'" in callable_text("f", modules.load("from one import *\ndef f(row): return g(h)", "of_user").f)


@pytest.mark.parametrize("kind", ["itself", "a copy", "a copy with more"])
def test_the_environment_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written into the ledger, with its secrets, and no other process has the same."""
    for n in range(4):
        monkeypatch.setenv(f"SECRET_{n}", "hidden")
    environ = {"itself": os.environ, "a copy": dict(os.environ), "a copy with more": {**os.environ, "more": 1}}[kind]

    def f(row: Any, environ: Any = environ) -> Any:
        return row if environ else None

    said = r"is the whole environment \(take the variables that are needed"
    for function in (f, lambda row: environ and row):
        with pytest.raises(ConfigError, match=said) as refused:
            curate.range(2).map(function).write_parquet("memory://held/out", backend="inline")
        assert "hidden" not in str(refused.value)


def test_a_table_with_a_variable_of_the_environment_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/bin")
    assert "/bin" in value_text("t", {"PATH": "/bin", "HOME": "/", "other": [1]})


def test_a_function_that_chooses_by_type_is_told_by_what_it_chooses_from(modules: Modules) -> None:
    """It was refused for the cache in it."""
    source = "import functools\n@functools.singledispatch\ndef f(row): return g(row)\ndef g(row): return 1\n"
    source += "@f.register\ndef _(row: dict): return h(row)\ndef h(row): return 2\n"
    texts = []
    for more in ("", "@f.register\ndef _(row: list): return 4\n"):
        for old, new in (("", ""), ("return 1", "return 3"), ("return 2", "return 3"), ("row: dict", "row: set")):
            f = modules.load(source.replace(old, new) + more, "of_user").f
            texts.append(callable_text("f", f))
            assert f(1)
            assert callable_text("f", f) == texts[-1]
    assert len(set(texts)) == 8


SEEDED = """
import sys
from curate.code import callable_text
sys.path.insert(0, sys.argv[1])
import of_seeds
print([callable_text("f", f) for f in (of_seeds.f, of_seeds.g)])
"""


@pytest.mark.slow
def test_what_a_set_holds_has_no_order(modules: Modules, tmp_path: Path) -> None:
    """Not even of objects that have no names."""
    names = ("One", "Two", "Three", "Four")
    source = "import dataclasses\n@dataclasses.dataclass\nclass R:\n    h: object\n"
    source += "    def __hash__(self): return hash(self.h.__name__)\n"
    for at, one in enumerate(names):
        source += f"class {one}:\n    def __hash__(self): return hash('{one}')\n    def o(self): return {at}\n"
        source += f"def h{one}(x): return x + {at}\n"
    source += f"K = set()\nfor one in ({', '.join(f'{one}()' for one in names)}): K.add(one)\n"
    source += "def f(row): return [one.o() for one in K]\ndef make(d): return lambda row: [r.h(row) for r in d]\n"
    modules.write("of_seeds", f"{source}g = make({{{', '.join(f'R(h{one})' for one in names)}}})")
    said = set()
    for seed in range(4):
        ran = subprocess.run(
            [sys.executable, "-c", SEEDED, str(tmp_path / "modules")],
            env={**os.environ, "PYTHONPATH": str(Path(curate.__file__).parents[1]), "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        )
        said.add(ran.stdout)
    assert len(said) == 1


def test_what_holds_itself_and_objects_that_are_called_are_refused_with_what_helps() -> None:
    """The first was a RecursionError."""
    endless: list[Any] = []
    endless.append(endless)

    class Called:
        def __call__(self, row: Any) -> Any:
            return row

    def f(row: Any) -> Any:
        return endless and row

    def g(row: Any) -> Any:
        return ds and row

    ds = curate.range(2)
    with pytest.raises(ConfigError, match=r"map\(g\) depends on a value .*: ds is a Dataset; pass plain values"):
        ds.map(g).write_parquet("memory://held/out", backend="inline")
    with pytest.raises(ConfigError, match=r"map\(f\) depends on a value that holds itself"):
        curate.range(2).map(f).write_parquet("memory://held/out", backend="inline")
    with pytest.raises(ConfigError, match=r"calls an object, .*: pass its class \(Called\) and fn_constructor_args"):
        curate.range(2).map(Called()).write_parquet("memory://held/out", backend="inline")


def test_a_write_of_another_helper_is_refused(modules: Modules, tmp_path: Path) -> None:
    """It was taken for done, with the rows of the helper before."""

    def written(more: int) -> list[Any]:
        source = f"T = {{}}\ndef put(h): T['h'] = h; return h\n@put\ndef h(n): return n + {more}\n"
        f = modules.load(f"{source}def f(row): return {{'n': T['h'](row['id'])}}", "of_user").f
        curate.range(3).map(f).write_parquet(tmp_path / "out", backend="inline")
        return [row["n"] for row in curate.read_parquet(tmp_path / "out").take_all()]

    assert written(1) == written(1) == [1, 2, 3]
    with pytest.raises(ConfigError, match="with another identity"):
        written(2)
