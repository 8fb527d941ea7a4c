"""The digest of a job's code: changed by what it does, and by nothing else."""

from __future__ import annotations

import ast
import importlib.util
import linecache
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.code.sources import Imports
from curate.code.syntax import canonical
from curate.errors import ConfigError
from curate.job.definition import job_digest
from curate.job.job import Job
from tests.job.modules import Modules

BASE = '''
import re
from curate import Job, param

LIMIT = 10
TABLE = {"a": 1}
UNUSED = 1

def helper(x):
    """Helps."""
    return deeper(x) + 1

def deeper(x):
    return x

def unused(x):
    return x

class Mine(Job):
    """Does it."""

    version = "1"
    num_cpus = 1
    threshold: float = param(0.5, help="how much")

    def process(self, batch):
        """Does a batch."""
        return helper(batch) if len(batch) < LIMIT else TABLE
'''


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Modules:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return Modules(tmp_path, monkeypatch)


class TestWhatCounts:
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("len(batch) < LIMIT", "len(batch) <= LIMIT"),
            ("LIMIT = 10", "LIMIT = 11"),
            ('TABLE = {"a": 1}', 'TABLE = {"a": 2}'),
            ('TABLE = {"a": 1}', 'TABLE = {"a": 1}\nTABLE["b"] = 2'),
            ("LIMIT = 10", "LIMIT = 10\nLIMIT += 1"),
            ("LIMIT = 10", "try:\n    import nothing\n    LIMIT = 10\nexcept ImportError:\n    LIMIT = 12"),
            ("deeper(x) + 1", "deeper(x) + 2"),
            ("def deeper(x):\n    return x", "def deeper(x):\n    return -x"),
            ("return helper(batch)", "return helper(batch) or 0"),
            ("param(0.5,", "param(0.6,"),
            ("def process(self, batch):", "def process(self, batch, k=1):"),
            (
                "def process(self, batch):",
                "@property\n    def batch_size(self): return 5\n\n    def process(self, batch):",
            ),
            ("def deeper(x):", "@staticmethod\ndef deeper(x):"),
        ],
    )
    def test_what_the_class_says_and_what_it_uses(self, modules: Modules, old: str, new: str) -> None:
        """Its methods, and the functions and constants of its module that they use, directly or not."""
        assert old in BASE
        assert modules.digest(BASE.replace(old, new, 1)) != modules.digest(BASE)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('"""Does it."""', '"""Does it well."""'),
            ('    """Does it."""\n\n', ""),
            ('"""Does a batch."""\n        ', ""),
            ('"""Helps."""', '"""Helps a lot."""'),
            ("LIMIT = 10", "LIMIT = 10  # ten"),
            ("LIMIT = 10", 'LIMIT = 10\n"""Most rows of a small batch."""'),
            ("LIMIT = 10", "LIMIT = (\n    10\n)"),
            ("    return deeper(x) + 1", "    return (deeper(x)\n            + 1)"),
            ("def helper(x):", "\n\n\n\ndef helper( x ):"),
            ('{"a": 1}', "{'a': 1,}"),
            ("UNUSED = 1", "UNUSED = 2"),
            ("def unused(x):\n    return x", "def unused(x):\n    return 2 * x"),
            ("def unused(x):", "def another(y):\n    return y\n\ndef unused(x):"),
            ('help="how much"', 'help="from where on"'),
            ("num_cpus = 1", "num_cpus = 4\n    memory = 2**31\n    max_tasks = 3\n    max_bad_rows = 5"),
            ("class Mine(Job):", "class Other(Job):\n    pass\n\nclass Mine(Job):"),
            ("", 'if __name__ == "__main__":\n    Mine.main()\n'),
            ("", "for x in (1, 2):\n    print(x)\n"),
            ("", "with open(__file__) as batch:\n    pass\n"),
        ],
    )
    def test_what_does_not(self, modules: Modules, old: str, new: str) -> None:
        """Docstrings, comments, layout, help; what it does not use; and settings that change no byte."""
        changed = BASE.replace(old, new, 1) if old else BASE + new
        assert changed != BASE
        assert modules.digest(changed) == modules.digest(BASE)

    def test_nor_does_the_empty_text_that_one_python_sees_in_a_format(self) -> None:
        """Python 3.12 parses `{n:{width}}` with an empty text behind the width; others have none."""
        mine, theirs = ast.parse("f'{n:{width}}'", mode="eval"), ast.parse("f'{n:{width}}'", mode="eval")
        specs = [node for node in ast.walk(theirs) if isinstance(node, ast.JoinedStr)]
        specs[1].values.append(ast.Constant(""))
        assert canonical(mine) == canonical(theirs)
        assert canonical(mine) != canonical(ast.parse("f'{n:{width} }'", mode="eval"))

    def test_neither_the_name_of_the_module_nor_its_place(self, modules: Modules) -> None:
        """`python jobs/toxicity.py`, `from jobs.toxicity import ..` and the copy that `ray job submit` runs."""
        first = modules.load(BASE, "one_name").Mine
        second = modules.load(BASE, "another_name").Mine
        assert job_digest(first) == job_digest(second)
        main = modules.load(BASE, "third_name").Mine
        main.__module__ = "__main__"
        modules.monkeypatch.setitem(sys.modules, "__main__", sys.modules["third_name"])
        assert job_digest(main) == job_digest(first)

    def test_a_source_in_another_encoding_is_read_as_it_says(self, modules: Modules, tmp_path: Path) -> None:
        source = (
            "# -*- coding: latin-1 -*-\nfrom curate import Job\nWORD = 'caf\xe9'\nclass Mine(Job):\n    WORD = WORD\n"
        )
        (tmp_path / "latin.py").write_bytes(source.encode("latin-1"))
        spec = importlib.util.spec_from_file_location("latin", tmp_path / "latin.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        modules.monkeypatch.setitem(sys.modules, "latin", module)
        spec.loader.exec_module(module)
        assert job_digest(module.Mine)


class TestOtherModules:
    """The user's own modules count as far as they are used; installed packages do not: the lock file pins them."""

    COMMON = """
FACTOR = 2

class Base:
    def scale(self, x):
        return x * FACTOR

def clean(x):
    return x

def other(x):
    return 1
"""

    WAYS = (
        ("from common import clean", "clean(b)"),
        ("from common import clean as c", "c(b)"),
        ("import common", "common.clean(b)"),
        ("import common as c", "c.clean(b)"),
        ("from again import clean", "clean(b)"),
        ("from package import inner", "inner.clean(b)"),
        ("import package.inner", "package.inner.clean(b)"),
        ("from package.relative import clean", "clean(b)"),
    )

    @pytest.mark.parametrize(
        ("imports", "base", "returned", "inside"),
        [
            *((imports, "Job", returned, inside) for imports, returned in WAYS for inside in (False, True)),
            ("from common import *", "Job", "clean(b)", False),
            ("from common import Base", "Base, Job", "b", False),
            ("import common", "common.Base, Job", "b", False),
        ],
    )
    def test_imported_functions_and_base_classes_count(
        self, modules: Modules, imports: str, base: str, returned: str, inside: bool
    ) -> None:
        """However they are imported, at the top or where they are used."""
        source = job_source(imports, returned, base=base, inside=inside)

        def digest(common: str) -> str:
            for name in ("common", "again", "package", "package.inner", "package.relative"):
                modules.forget(name)
            modules.write("common", common)
            modules.write("again", "from common import clean\n")
            modules.write("package.__init__", "")
            modules.write("package.inner", "from common import clean\n")
            modules.write("package.relative", "from .inner import clean\n")
            return modules.digest(source)

        before = digest(self.COMMON)
        assert digest(self.COMMON.replace("return x\n", "return -x\n").replace("FACTOR = 2", "FACTOR = 3")) != before
        assert digest(self.COMMON.replace("return 1", "return 2")) == before, "other() is not used"
        assert digest(f"# a comment\n{self.COMMON}") == before

    @pytest.mark.slow
    def test_what_a_part_of_a_package_imports_counts_where_that_is_the_program(self, modules: Modules) -> None:
        """`python -m package.mine` calls it __main__; its relative imports start from the package all the same."""
        told = "from curate.job.definition import job_digest\nprint(job_digest(Mine))\n"
        modules.write("package.__init__", "")
        modules.write("package.mine", job_source("from .common import clean", "clean(b)") + told)

        def digest(common: str, *program: str) -> str:
            modules.write("package.common", common)
            words = [sys.executable, "-B", *program]
            environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            return subprocess.run(
                words, cwd=modules.folder, env=environ, check=True, capture_output=True
            ).stdout.decode()

        before = digest(self.COMMON, "-m", "package.mine")
        assert before == digest(self.COMMON, "-c", "import package.mine")
        assert before != digest(self.COMMON.replace("return x\n", "return -x\n"), "-m", "package.mine")

    @pytest.mark.parametrize("change", ["", "k = 1", "b + 1"])
    def test_a_program_is_the_same_one_under_a_profiler(self, change: str, tmp_path: Path) -> None:
        """cProfile and `trace` run it with names that are of no module, and `__main__` is theirs: what it uses counted
        for nothing, and `curate retry` would have run the profiler."""
        source = (
            "from curate import Job\nfrom curate.code.function import callable_text\n"
            "from curate.job.definition import job_digest\nfrom curate.job.origin import origin_of\n"
            "k = 1\ndef help(b): return b + 1, k\nclass Mine(Job):\n    def process(self, b): return help(b)\n"
            "def make(h): return lambda b: h(b)\nclass Called:\n    def __call__(self, b): return help(b)\n"
            "told = [job_digest(Mine, is_identity=True), job_digest(Mine), origin_of(Mine, {}, {})]\n"
            "told += [callable_text('f', one) for one in (help, make(help), lambda b: help(b), Called)]\n"
        )
        path = tmp_path / "mine.py"

        def told(source: str) -> list[Any]:
            path.write_text(source)
            linecache.checkcache()
            plain: list[Any] = runpy.run_path(str(path), run_name="__main__")["told"]
            names = {"__name__": "__main__", "__file__": str(path), "__package__": None}
            exec(compile(source, str(path), "exec"), names)
            assert names["told"] == plain
            return plain

        before, after = told(source), told(source.replace(change, f"{change} + 1") if change else f"# said\n{source}")
        same = [one == other for one, other in zip(before, after, strict=True) if not isinstance(one, dict)]
        assert same == [not change] * len(same)
        assert before[2]["script"] == str(path)

    def test_installed_packages_are_named_and_not_read(self, modules: Modules) -> None:
        one, other = (job_source("import pyarrow.compute as pc", f"pc.{name}(b)") for name in ("abs", "negate"))
        assert modules.digest(one) != modules.digest(other)

    def test_nothing_is_imported_for_it(self, modules: Modules) -> None:
        """What is imported where it is used may take seconds, and the driver does not use it."""
        source = job_source("from slow.inner import clean", "clean(b)", inside=True)

        def digest(inner: str) -> str:
            modules.write("slow.__init__", "raise AssertionError('imported')\n")
            modules.write("slow.inner", inner)
            return modules.digest(source)

        before = digest(self.COMMON)
        assert digest(self.COMMON.replace("return x\n", "return -x\n")) != before
        assert not {"slow", "slow.inner"} & set(sys.modules)

    @pytest.mark.parametrize(
        "imports",
        [
            "try: from fast import clean\nexcept ImportError: from slow import clean",
            "try: from fast import clean as c\nexcept ImportError: from slow import clean as c\nclean = c",
            "try: import fast as p\nexcept ImportError: import slow as p\ndef clean(b): return p.clean(b)",
            "def clean(b):\n    try: from fast import clean as c\n    except ImportError: from slow import clean as c\n"
            "    return c(b)",
        ],
    )
    def test_each_of_several_imports_of_a_name_counts(self, modules: Modules, imports: str) -> None:
        """Only the last one was read: the other, which was used, might change."""
        digests = []
        for factor in "223":
            for name in ("fast", "slow"):
                modules.forget(name)
            modules.write("fast", self.COMMON.replace("return x\n", f"return x * {factor}\n"))
            modules.write("slow", self.COMMON)
            digests.append(modules.digest(job_source(imports, "clean(b)")))
        assert digests[0] == digests[1] != digests[2]

    def test_modules_that_import_each_other_end(self, modules: Modules) -> None:
        modules.write("ping", "import pong\ndef hit(x):\n    return pong.hit(x)\n")
        modules.write("pong", "import ping\ndef hit(x):\n    return ping.hit(x)\n")
        assert modules.digest(job_source("import ping", "ping.hit(b)"))


def job_source(imports: str, returned: str, *, base: str = "Job", inside: bool = False) -> str:
    """Returns a module with a job whose `process` returns an expression."""
    top, local = ("", f"        {imports}\n") if inside else (f"{imports}\n", "")
    lines = [f"{top}class Mine({base}):", "    def process(self, b):", f"{local}        return {returned}", ""]
    return "\n".join(["from curate import Job", *lines])


def make(factor: Any = 1, *, name: str = "Made") -> type[Job]:
    """Makes a job that closes over a value."""

    class Made(Job):
        def process(self, batch: pa.Table) -> Any:
            return [batch] * factor

    Made.__name__ = name
    return Made


def make_with_helper(number: int) -> type[Job]:
    """Makes a job that closes over a function that closes over a value."""

    def helper(batch: pa.Table) -> Any:
        return [batch] * number

    class Made(Job):
        def process(self, batch: pa.Table) -> Any:
            return helper(batch)

    return Made


def make_with_default(number: int) -> type[Job]:
    class Made(Job):
        def process(self, batch: pa.Table, times: int = number) -> Any:
            return [batch] * times

    return Made


def make_with_constant(number: int) -> type[Job]:
    class Made(Job):
        TIMES = number

        def process(self, batch: pa.Table) -> Any:
            return [batch] * self.TIMES

    return Made


def make_with_super(number: int) -> type[Job]:
    class Made(Job):
        def setup(self) -> None:
            super().setup()
            self.number = number

        def process(self, batch: pa.Table) -> Any:
            return [batch] * self.number

    return Made


class TestClassesMadeInFunctions:
    @pytest.mark.parametrize("maker", [make, make_with_helper, make_with_default, make_with_constant, make_with_super])
    def test_the_values_they_close_over_count(self, maker: Callable[[int], type[Job]]) -> None:
        """Their text is the same."""
        assert job_digest(maker(1)) == job_digest(maker(1))
        assert job_digest(maker(1)) != job_digest(maker(2))

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("a", "b"),
            ([1, 2], [2, 1]),
            ({"a": 1}, {"a": 2}),
            ({1, 2}, {1, 3}),
            (1, 1.0),
            (1, True),
            (None, "None"),
            (pa.int8(), pa.int16()),
            (pa.schema([("a", pa.int8())]), pa.schema([("b", pa.int8())])),
            (Path("/a"), Path("/b")),
            (min, max),
            (int, float),
        ],
    )
    def test_values_of_many_kinds(self, one: Any, other: Any) -> None:
        assert job_digest(make(one)) == job_digest(make(one))
        assert job_digest(make(one)) != job_digest(make(other))

    def test_sets_have_no_order(self) -> None:
        words = [f"word {k}" for k in range(50)]
        assert job_digest(make(set(words))) == job_digest(make({words[-k] for k in range(50)}))

    def test_a_value_that_cannot_be_hashed_is_refused_where_it_is_the_identity(self) -> None:
        """Naming it. Beside a declared version it only guards, and is left out."""
        with pytest.raises(
            ConfigError, match=r"Made.process depends on .*: factor is a object; .* or declare a version"
        ):
            make(object())().spec()
        endless: list[Any] = []
        endless.append(endless)
        with pytest.raises(
            ConfigError, match=r"Made.process depends on .*: one that holds itself, .*, or declare a ver"
        ):
            make(endless)().spec()
        made = make(object())
        made.version = "1"
        assert made().spec().record.code_digest


class TestWithoutAFile:
    """A notebook, an interactive session: there is no source file to look at."""

    SOURCE = """
from curate import Job
LIMIT = 10
def helper(x):
    "Helps."
    return x + LIMIT
class Mine(Job):
    "Mine."
    def process(self, batch):
        "Processes."
        return helper(batch)
"""

    def _digest(self, source: str) -> str:
        space: dict[str, Any] = {"__name__": "notebook"}
        exec(compile(source, "<cell 1>", "exec"), space)
        return job_digest(space["Mine"])

    @pytest.mark.parametrize(
        ("old", "new"),
        [("LIMIT = 10", "LIMIT = 11"), ("return x +", "return x -"), ("helper(batch)", "helper(-batch)")],
    )
    def test_code_helpers_and_constants_count(self, old: str, new: str) -> None:
        assert self._digest(self.SOURCE.replace(old, new)) != self._digest(self.SOURCE)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("LIMIT = 10", "LIMIT = 10  # ten"),
            ('"Helps."', '"Is of help."'),
            ('"Mine."', '"Yours."'),
            ('"Processes."', '"X."'),
            ("x + LIMIT", "(x\n      + LIMIT)"),
        ],
    )
    def test_docstrings_comments_and_layout_do_not(self, old: str, new: str) -> None:
        assert self._digest(self.SOURCE.replace(old, new)) == self._digest(self.SOURCE)

    def test_without_a_version_it_is_the_identity(self) -> None:
        """Two versions of a cell are two jobs."""
        space: dict[str, Any] = {"__name__": "notebook"}
        exec(compile(self.SOURCE, "<cell 1>", "exec"), space)
        first = space["Mine"]().spec()
        exec(compile(self.SOURCE.replace("LIMIT = 10", "LIMIT = 11"), "<cell 2>", "exec"), space)
        assert space["Mine"]().spec().record.fingerprint != first.record.fingerprint


def test_imports_of_functions_hide_those_of_their_module() -> None:
    theirs = Imports({"p": ["p"]}, {"g": [("fast", "g"), ("slow", "g")]}, ["a"])
    joined = theirs.joined(Imports({}, {"g": [("other", "g")]}, ["b"]))
    assert (joined.called("g"), joined.called("p"), joined.called("h"), joined.stars) == (
        ["other.g"],
        ["p"],
        [],
        ["a", "b"],
    )
