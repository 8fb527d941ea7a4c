"""What a class has decides its rows, whoever gave it: its body, a decorator, or the program from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from curate.job.definition import job_digest
from tests.job.modules import Modules


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Modules:
    return Modules(tmp_path, monkeypatch)


SET = {
    "a decorator's argument": "@by(load())\n    def process(self, x): return x",
    "a property's": "kk = prop(load())",
    "a static method's": "kk = staticmethod(make(load()))",
    "an object": "_o = O(load())\n    def process(self, x): return self._o.k",
    "of a class within": "class C: k = load()\n    def process(self, x): return self.C.k",
    "from outside": "def process(self, x): return self._k\nMine._k = load()",
    "a method from outside": "def process(self, x): return self.a()\nsetattr(Mine, 'a', make(load()))",
    "by its base": "_b = 1\n    def process(self, x): return self._k\nfor one in [Mine]: one._k = load()",
    "of a helper's by the name of a parameter": "k: int = 1\n    def process(self, x): return H.k\nclass H: k = load()",
    "in a registry": "def process(self, x): return R.items['a'](x)\nR = Registry()\n"
    "@R.register('a')\ndef a(x): return x + KK",
}
WITH = """
from curate import Job
def load(): return int(open(FILE).read())
def make(k): return lambda *a: k
def prop(k): return property(lambda self: k)
def by(k):
    def of(f): return lambda self, x: f(self, x) + k
    return of
class O:
    def __init__(self, k): self.k = k
class Registry:
    def __init__(self): self.items = {}
    def register(self, name):
        def put(f):
            self.items[name] = f
            return f
        return put
class Mine(Job):
"""


@pytest.mark.parametrize("body", SET.values(), ids=SET)
def test_what_a_class_has_counts_however_it_came_to_it(body: str, modules: Modules, tmp_path: Path) -> None:
    """A job with another value was taken for the same, and its outputs for done."""
    digests = []
    for k in "112":
        (tmp_path / "k").write_text(k)
        source = f"FILE = {str(tmp_path / 'k')!r}{WITH}    {body.replace('KK', k)}"
        digests.append(job_digest(modules.load(source, "of_user").Mine, is_identity=True))
    assert digests[0] == digests[1] != digests[2]
