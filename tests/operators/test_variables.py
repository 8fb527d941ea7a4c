"""A value that a module computes, and its functions use, is part of what a dataset is; what is only logged is not."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

import curate
from curate.code.function import callable_text
from curate.errors import ConfigError
from curate.job.definition import job_digest
from tests.job.modules import Modules

K = 'int(os.environ["K"])'
COUNT = {
    "computed": f"k = {K}",
    "assigned twice": f"k = 1\nk = {K}",
    "in a loop": f"for k in range({K} + 1): pass",
    "in a main block": f"if os.environ:\n    started = time.time()\n    k = {K}",
    "set by a function": f"k = None\ndef set_k():\n    global k\n    k = {K}\nset_k()",
    "by another of it": f"j = {K}\nk = [j]",
    "a set of words": f"k = {{'a', str({K})}}",
    "changed in place": f"k = {{'a': 1}}\nk['a'] = {K}",
    "an array": f"k = np.arange({K})",
    "a date": f"k = datetime.date(2026, 1, {K})",
    "a pattern": f"k = re.compile(str({K}))",
    "a text read beside it": f"here = Path(__file__).parent\nk = (here / 'texts' / str({K})).read_text()",
    "a table of a function that logs": f"def load():\n    print(time.time())\n    return [{K}]\nk = load()",
    "a path of elsewhere": f"k = Path('/data') / str({K})",
    "what is called node as it is taken": f"k = frozenset(node for node in [{K}])",
    "one that is called home": f"k = [home.strip() for home in [str({K})]]",
    "the time of a moment that is given": f"k = datetime.datetime.fromtimestamp({K}).time()",
    "the text of a moment that is given": f"k = datetime.date(2026, 1, {K}).strftime('%d')",
    "a time of the day": f"k = datetime.time({K})",
    "an attribute that is called time": f"args = argparse.Namespace(time={K})\nk = args.time + 0",
    "a moment that is read": f"k = time.strptime(str({K}), '%d')",
    "what another one by the name of a moment gives": f"def today(): return {K}\nk = today()",
    "a place within": f"here = Path(__file__).parent\nk = here / str({K})",
    "a place within as text": f"k = os.path.join(os.path.dirname(__file__), str({K}))",
    "an object that is handed on": f"class O:\n    def __init__(self, k):\n        self.k = k\nk = O({K})",
    "what holds itself": f"k = [{K}]\nk.append(k)",
    "made of itself beside a moment": f"k = {K}\nk = [k, time.time()][0]\nk = k + 1\nk = k - 1",
    "made of another that is made of it": f"k = {K}\nj = time.time()\nfor i in 'ab':\n"
    "    j, k = j + 0 * k, k + 0 * int(j)",
}
DEFAULTS = {
    "of a helper": f"def helper(k={K}): return k\ndef f(row): return helper()",
    "of one by name": f"def helper(a, *, k={K}): return k\ndef f(row): return helper(1)",
    "of a method": f"class f:\n    def __call__(self, batch, j=1, k={K}): return k",
    "of a class's own": f"class C:\n    @classmethod\n    def of(cls, k={K}): return k\ndef f(row): return C.of()",
    "of a property": f"class C:\n    @property\n    def of(self, k={K}): return k\ndef f(row): return C().of",
    "of a lambda": f"g = lambda row, k={K}: k\ndef f(row): return g(row)",
    "of a lambda in a table": f"T = {{'a': lambda row, j=1: j, 'b': lambda row, k={K}: k}}\n"
    "def f(row): return T['b'](row)",
    "of one of two alike": f"T = [lambda row, k=1: k, lambda row, k={K}: k]\ndef f(row): return T[1](row)",
    "of what a decorator puts into a list": f"T = []\n@T.append\ndef g(row, k={K}): return k\n"
    "def f(row): return T[0](row)",
    "of what a function makes": f"def make(j):\n    def g(row, *, k=j): return k\n    return g\n"
    f"T = [make(0), make({K})]\ndef f(row): return T[1](row)",
    "of the first one for a type": f"@functools.singledispatch\ndef g(x): return 0\n@g.register\ndef _(x: int, k={K}): "
    "return k\n@g.register\ndef _(x: str): return 1\ndef f(row): return g(row)",
}
USES = {
    "a function": "def f(row): return k",
    "a lambda": "f = lambda row: k",
    "a helper": "def helper(): return k\ndef f(row): return helper()",
    "a class": "class f:\n    def __call__(self, batch): return k",
    "a class's body": "class f:\n    it = k\n    def __call__(self, batch): return self.it",
    "a function within": "def make():\n    def f(row): return k\n    return f\nf = make()",
}
PARTS = {
    "a network": ("ipaddress.ip_network('10.0.0.{}')", "ipaddress.ip_network(f'10.0.0.{k}')"),
    "a template": ("string.Template('$a {}')", "string.Template(f'$a {k}')"),
    "a layout of bytes": ("struct.Struct('{}s')", "struct.Struct(f'{k}s')"),
    "a view of bytes": ("memoryview(b'{}')", "memoryview(str(k).encode())"),
    "a buffer": ("pa.py_buffer(b'{}')", "pa.py_buffer(str(k).encode())"),
    "an exception": ("ValueError('{}')", "ValueError(k)"),
    "one of a file": ("FileNotFoundError(2, 'gone', '{}')", "FileNotFoundError(2, 'gone', str(k))"),
    "an interval": ("pd.Interval(0, {})", "pd.Interval(0, k)"),
    "a type of polars": ("pl.Decimal(9, {})", "pl.Decimal(9, k)"),
}
"""Values of Python's and of libraries': written out, and made of a `k` that is computed."""
DO_NOT = {
    "a moment": f"k = time.time() + {K}",
    "a moment by another name": f"from time import time as clock\nk = clock() + {K}",
    "a moment by what is kept": f"clock = datetime.datetime.now\nk = [clock().year + {K}][0]",
    "a moment of all of a module": f"from time import *\nk = monotonic() + {K}",
    "a moment of an import of a function": f"def made():\n    from datetime import date\n"
    f"    return str(date.today()) + str({K})\nk = made()",
    "a folder of the user's": f"k = Path('~', str({K})).expanduser()",
    "a folder of the machine's": f"k = str(Path.home() / str({K}))",
    "a moment by a function that asks for it": f"def now():\n    x = k\n    return x * 0 + time.time() - {K}\n"
    "k = 0\ni = now()\nk = i",
    "a moment again and again": f"k = time.time() + {K}\n" + "k = k + 1\nk = k - 1\n" * 20,
    "a process": f"pid = os.getpid() + {K}\nk = 'run-' + str(pid)",
    "by a function": f"def now_ms():\n    return time.time() * 1000 + {K}\nk = now_ms()",
    "a mapping that is no table": "k = os.environ",
    "what is deeper than Python goes": f"k = [{K}]\nfor _ in range(600):\n    k = [k]",
    "code that is installed": f"k = textwrap.dedent if {K} == 1 else textwrap.indent",
}
HEAD = """
import argparse, datetime, functools, os, re, textwrap, time
from pathlib import Path
import numpy as np
def f1(): pass
def f2(): pass
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Modules:
    texts = tmp_path / "modules" / "texts"
    texts.mkdir(parents=True)
    for k in "12":
        (texts / k).write_text(f"a prompt {k}\nof two lines")
    return Modules(tmp_path / "modules", monkeypatch)


def texts_of(modules: Modules, source: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the text of `f` in a program that is started with K as 1, 1 and 2."""
    texts = []
    for k in "112":
        monkeypatch.setenv("K", k)
        texts.append(callable_text("f", modules.load(HEAD + source, "of_user").f))
    return texts


OF_PARTS = "import ipaddress, string, struct\nimport pandas as pd, polars as pl, pyarrow as pa\n"


@pytest.mark.quick
@pytest.mark.parametrize(("written", "computed"), PARTS.values(), ids=PARTS)
def test_a_value_of_a_library_counts_by_its_parts(
    written: str, computed: str, modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template that was read from another file was taken for the same."""
    for value in (computed, f"[{computed}]", f"{{'a': {computed}}}"):
        read = f"{OF_PARTS}def read(k): return {value}\nv = read({K})"
        one, same, other = texts_of(modules, f"{read}\ndef f(row): return v", monkeypatch)
        assert one == same != other, value
        one, same, other = texts_of(modules, f"{read}\ndef by(v): return lambda row: v\nf = by(v)", monkeypatch)
        assert one == same != other, value
    [told, _, _] = texts_of(modules, f"{OF_PARTS}v = {written.format(1)}\ndef f(row): return v", monkeypatch)
    assert "\nv" not in told, "its statement tells it"


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("value", COUNT.values(), ids=COUNT)
def test_a_value_that_its_statement_does_not_tell_counts(
    value: str, use: str, modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, same, other = texts_of(modules, f"{value}\n{use}", monkeypatch)
    assert one == same != other


@pytest.mark.parametrize("source", DEFAULTS.values(), ids=DEFAULTS)
def test_a_default_counts_that_its_statement_does_not_tell(
    source: str, modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, same, other = texts_of(modules, source, monkeypatch)
    assert one == same != other


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("value", DO_NOT.values(), ids=DO_NOT)
def test_what_a_process_has_of_its_own_does_not(
    value: str, use: str, modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(set(texts_of(modules, f"{value}\n{use}", monkeypatch))) == 1


NAMED = f"args = argparse.Namespace(k={K}, out={K} + 1, tasks=3)"


def test_of_parsed_arguments_those_that_are_named_count(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    named = "def f(row): return args.k"
    one, same, other = texts_of(modules, f"{NAMED}\n{named}", monkeypatch)
    assert one == same != other
    assert "args.k = int 1" in one.splitlines()
    assert len(set(texts_of(modules, f"{NAMED}\n{named.replace('args.k', 'args.tasks')}", monkeypatch))) == 1


def test_of_a_module_of_the_users_too(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    for source in (
        "import settings\ndef f(row): return settings.k",
        "from settings import k as j\nf = lambda row: j",
        "def f(row):\n    import settings\n    return settings.k",
        "def f(row):\n    from settings import k\n    return k",
    ):
        texts = []
        for k in "112":
            monkeypatch.setenv("K", k)
            modules.forget("settings")
            modules.write("settings", f"import os\nk = {K}")
            modules.load("import settings", "of_other")
            texts.append(callable_text("f", modules.load(source, "of_user").f))
        assert texts[0] == texts[1] != texts[2], source


@pytest.mark.parametrize(
    "source",
    [
        "def f(k): return k",
        "def f(row):\n    k = {}\n    k['a'] = row\n    return k",
        "def f(row): return [k for k in row]",
        "f = lambda row: row.k",
    ],
)
def test_a_name_of_the_functions_own_is_not_the_modules(
    source: str, modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all("k = int" not in text for text in texts_of(modules, f"k = {K}\n{source}", monkeypatch))


@pytest.mark.parametrize(
    "source",
    [
        "k = {}\ndef f(row):\n    k[row] = 1\n    return {}",
        "k = set()\ndef f(row):\n    k.add(row)\n    return {}",
        "k = 0\ndef f(row):\n    global k\n    k += 1\n    return {}",
        "k = {}\nf = lambda row: k.setdefault(row, 1)",
        "from tables import k as j\ndef f(row):\n    j[row] = 1\n    return {}",
        "from tables import *\ndef f(row):\n    k[row] = 1\n    return {}",
        "def f(row):\n    from tables import k\n    k[row] = 1\n    return {}",
    ],
)
def test_what_code_changes_as_it_runs_does_not_count(source: str, modules: Modules) -> None:
    modules.forget("tables")
    modules.write("tables", "k = {}")
    modules.load("import tables", "of_other")
    f = modules.load(source, "of_user").f
    before = callable_text("f", f)
    f(1)
    assert callable_text("f", f) == before


@pytest.mark.parametrize(
    "source",
    [
        "def help():\n    k = []\n    k.append(1)\ndef f(row): return k, help()",
        "def help(k): k.append(1)\ndef f(row): return k, help([])",
        "def help(row): return [k.pop() for k in row]\ndef f(row): return k, help([])",
        "class C:\n    def help(self, *k): k[0].x = 1\n    def f(self): return k\ndef f(row): return C().f()",
        "def f(row):\n    def help(k): k[row] = 1\n    return k, help({})",
        "def help(row):\n    try: pass\n    except ValueError as k: k.x = 1\ndef f(row): return k, help(row)",
        "def help(k):\n    def inner(): k.add(1)\n    return inner\ndef f(row): return k, help(set())",
        "import other\ndef f(row): return k, other.help()",
    ],
)
def test_a_name_of_a_functions_own_that_it_changes_is_not_the_modules(
    source: str, modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the module's own variable of that name out."""
    modules.write("other", "k = []\ndef help(): k.append(1)")
    one, same, other = texts_of(modules, f"k = [{K}]\n{source}", monkeypatch)
    assert one == same != other


def test_of_an_object_what_another_module_asks_of_one_of_its_name_does_not_count(
    modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules.write("other", "class args: k = 1\ndef help(): return args.k")
    source = f"import other\nargs = argparse.Namespace(k={K}, j=1)\ndef f(row): return args.j, other.help()"
    assert len(set(texts_of(modules, source, monkeypatch))) == 1


def test_a_value_that_a_statement_tells_adds_nothing(modules: Modules) -> None:
    """Its text is that of the code alone."""
    for value in ("5", "-5", "'a'", "(1, 2)", "{'a': [1]}", "{'b', 'a', 'c'}", "None"):
        f = modules.load(f"k = {value}\ndef f(row): return k", "of_user").f
        assert len(callable_text("f", f).splitlines()) == 2


SCRIPT = """
import contextlib, curate, os, time
ds = curate.range(3)
if os.environ["K"]:
    n = 4
    ds = ds.map(lambda row: (n, row)[1])
    f = lambda row: (n, row)[1]
    started = time.time()
for n in (1, 2):
    ds = ds.map(lambda row: {**row, "n": n, "at": time.time()})
with open(__file__) as at, contextlib.nullcontext(ds.filter(lambda row: row["n"] == n)) as ds:
    pass
ds = ds.map(lambda row: row)
"""


@pytest.mark.quick
def test_a_script_that_makes_a_dataset_step_by_step(
    modules: Modules, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a block, by the name that it had: each step was made of all others, without end where one takes the time."""
    monkeypatch.setenv("K", "1")
    module = modules.load(SCRIPT, "of_user")
    assert callable_text("f", module.f)
    assert module.ds.explain()
    assert "not compared" not in capsys.readouterr().err


def test_a_long_value_is_short(modules: Modules) -> None:
    f = modules.load("k = [str(n) for n in range(1000)]\ndef f(row): return k", "of_user").f
    assert len(callable_text("f", f).splitlines()[-1]) < 30


def test_it_counts_in_a_job_without_a_version(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one, that says what is the same."""
    source = f"""
import curate
k = {K}
class Made(curate.Job):
    num_cpus = os.cpu_count()
    version = None
    def process(self, row):
        return k
"""
    digests = {}
    for is_identity in (True, False):
        digests[is_identity] = []
        for one in "112":
            monkeypatch.setenv("K", one)
            cls = modules.load(HEAD + textwrap.dedent(source), "of_user").Made
            digests[is_identity].append(job_digest(cls, is_identity=is_identity))
    assert len(set(digests[False])) == 1
    assert digests[True][0] == digests[True][1] != digests[True][2]


def test_a_write_with_another_value_is_refused_by_name(
    modules: Modules, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was taken for done, with the rows of the value before."""

    def written(k: str) -> list[Any]:
        monkeypatch.setenv("K", k)
        f = modules.load(f"{HEAD}\nk = {K}\ndef f(row): return {{'n': row['id'] * k}}", "of_user").f
        curate.range(3).map(f).write_parquet(tmp_path / "out", backend="inline")
        return [row["n"] for row in curate.read_parquet(tmp_path / "out").take_all()]

    assert written("1") == written("1") == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"k = int 1'\]\], you asked for .*k = int 2"):
        written("2")


def test_a_copy_of_the_environment_counts_by_what_is_added_to_it(
    modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a subprocess: of a job it was an Unhashable, and a dataset was refused. No secret is in its text."""
    for n in range(4):
        monkeypatch.setenv(f"SECRET_{n}", "hidden")
    said = []
    for mode, more in (("fast", "1"), ("fast", "2"), ("slow", "2")):
        monkeypatch.setenv("MORE", more)
        module = modules.load(
            "import os, curate\nENV = {**os.environ, 'MODE': ''}\ndef f(row): return ENV\n"
            "class Mine(curate.RowsJob):\n    def process(self, batch): return f(batch)\n",
            "of_user",
        )
        module.ENV["MODE"] = mode
        said.append((callable_text("f", module.f), job_digest(module.Mine, is_identity=True)))
    assert said[0] == said[1]
    assert not {*said[1]} & {*said[2]}
    assert "hidden" not in said[0][0]


@pytest.mark.parametrize("value", ["{'of': dict(os.environ)}", "Env()"])
def test_the_environment_in_another_value_is_refused(
    value: str, modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what can be done, of a job, too: that was an Unhashable, and a traceback."""
    monkeypatch.setenv("PATH", "/bin")
    module = modules.load(
        "import os, curate\nclass Env:\n    def __init__(self): self.env = dict(os.environ)\n"
        f"    def get(self): return self.env\nENV = {value}\ndef f(row): return ENV.get('of')\n"
        "class Mine(curate.RowsJob):\n    def process(self, batch): return f(batch)\n"
    )
    said = r"depends on a value .*: ENV.* is the whole environment \(take .*; "
    with pytest.raises(ConfigError, match=f"^Mine {said}make it a parameter, or declare a version"):
        job_digest(module.Mine, is_identity=True)
    with pytest.raises(ConfigError, match=said):
        curate.range(1).map(module.f).write_parquet("memory://variables/out", backend="inline")


RECORD = (
    f"@dataclass\nclass Inner:\n    k: int\n@dataclass\nclass Record:\n    inner: Inner\n    k: int\n"
    f"args = Record(Inner({K}), {K})\n"
)
HANDED = {
    "to a function": "def h(a): return a.k\ndef f(row): return h(args)",
    "by name": "def h(a): return a.k\ndef f(row): return h(a=args)",
    "in parts": "def h(k, **other): return k\ndef f(row): return h(**vars(args))",
    "to another name": "def f(row):\n    a = args\n    return a.k",
    "in what it has": "def f(row): return args.inner.k",
    "by a name that is computed": "def f(row): return getattr(args, row)",
}


@pytest.mark.parametrize("use", HANDED.values(), ids=HANDED)
@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        f"args = argparse.Namespace(k={K}, inner=argparse.Namespace(k={K}))\n",
        f"from types import SimpleNamespace as Of\nargs = Of(k={K}, inner=Of(k={K}))\n",
    ],
    ids=["own", "parsed", "simple"],
)
def test_all_of_a_record_counts_that_is_handed_on(
    record: str, use: str, modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is not known what is asked of it: rows made with other settings were taken for done."""
    one, same, other = texts_of(modules, f"from dataclasses import dataclass\n{record}{use}", monkeypatch)
    assert one == same != other


def test_all_of_a_record_of_another_module_counts(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for k in "112":
        monkeypatch.setenv("K", k)
        modules.forget("settings")
        modules.write("settings", f"import argparse, os\n{NAMED}")
        texts.append(
            callable_text("f", modules.load("import settings\ndef f(row): return settings.args.k", "of_user").f)
        )
    assert texts[0] == texts[1] != texts[2]
