"""The code of a class that batches are given to is part of what a dataset is, as that of a function is."""

from __future__ import annotations

import collections
import functools
import linecache
import runpy
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import curate
from curate.code.function import callable_text
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from tests.job.modules import Modules

SOURCE = """
    import functools
    from helping import Base, helped

    def used(n):
        return n + 1

    class Added(Base):
        '''Says something.'''
        def __call__(self, batch):
            return {"n": [used(helped(n.as_py())) for n in batch["id"]]}

    class Kept:
        def __init__(self, k):
            self.k = k

        def added(self, batch):
            return self._of(batch["id"])

        def _of(self, ids):
            return {"n": [n.as_py() + self.k for n in ids]}

        @classmethod
        def same(cls, batch):
            return cls(0).added(batch)

    def made(k):
        class Added:
            def __call__(self, batch):
                return {"n": [n.as_py() + k for n in batch["id"]]}
        return Added

    def closing(cls):
        return lambda batch: cls()(batch)
"""
HELPING = """
    def helped(n):
        return n

    class Base:
        step = 1
"""
CHANGES = {
    "its method": ("used(helped(n.as_py()))", "used(helped(n.as_py())) * 2"),
    "a function that it calls": ("return n + 1", "return n + 2"),
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Modules:
    return Modules(tmp_path / "modules", monkeypatch)


def loaded(modules: Modules, source: str, helping: str = HELPING) -> Any:
    """Returns a module of this source, called `of_user`, and its helper, as a program that starts finds them."""
    modules.forget("helping")
    modules.write("helping", helping)
    return modules.load(source, "of_user")


WAYS: dict[str, Callable[[Any], Any]] = {
    "the class": lambda module: module.Added,
    "in a partial": lambda module: functools.partial(module.closing, module.Added),
    "closed over": lambda module: module.closing(module.Added),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_changes_its_rows_changes_its_text(way: Callable[[Any], Any], modules: Modules) -> None:
    """It alone: a docstring is none of it."""
    before = callable_text("f", way(loaded(modules, SOURCE)))
    assert callable_text("f", way(loaded(modules, SOURCE))) == before
    assert callable_text("f", way(loaded(modules, SOURCE.replace("Says something", "Says nothing")))) == before
    texts = [callable_text("f", way(loaded(modules, SOURCE.replace(*one)))) for one in CHANGES.values()]
    texts += [callable_text("f", way(loaded(modules, SOURCE, HELPING.replace("return n", "return -n"))))]
    texts += [callable_text("f", way(loaded(modules, SOURCE, HELPING.replace("step = 1", "step = 2"))))]
    assert len({before, *texts}) == 5


def test_what_a_class_within_a_function_closes_over_counts(modules: Modules) -> None:
    module = loaded(modules, SOURCE)
    one, same, other = (callable_text("f", module.made(k)) for k in (1, 1, 100))
    assert one == same != other


def test_of_a_method_its_object_counts(modules: Modules, tmp_path: Path) -> None:
    """Its state, and what else its class does; what cannot be compared is refused by name."""

    def texts(source: str) -> list[str]:
        kept = loaded(modules, source).Kept
        return [callable_text("f", one) for one in (kept(1).added, kept(2).added, kept.same)]

    before, changed = texts(SOURCE), texts(SOURCE.replace("n.as_py() + self.k", "n.as_py() - self.k"))
    assert texts(SOURCE) == before
    assert len({*before, *changed}) == 6
    kept = loaded(modules, SOURCE).Kept
    for k, rows in ((1, [1, 2]), (2, [2, 3])):
        out = tmp_path / str(k)
        curate.range(2).map_batches(kept(k).added).write_parquet(out, backend="inline")
        assert [row["n"] for row in curate.read_parquet(out).take_all()] == rows
    with pytest.raises(ConfigError, match="with another identity"):
        curate.range(2).map_batches(kept(3).added).write_parquet(tmp_path / "1", backend="inline")
    with pytest.raises(ConfigError, match="what added belongs to is a object; pass plain values"):
        curate.range(2).map_batches(kept(object()).added).write_parquet(tmp_path / "3", backend="inline")


class Given(curate.Job):
    """A job that builds with a method of its own."""

    version = "1"
    k: int = curate.param(1, help="what is added")

    def added(self, batch: Any) -> Any:
        """Adds to numbers."""
        return batch


def test_of_a_job_what_it_is_made_with_is_told_elsewhere() -> None:
    """By its own identity: it holds more than that."""
    assert callable_text("f", Given(k=1).added) == callable_text("f", Given(k=2).added)


def test_one_of_an_installed_package_is_its_name() -> None:
    """The lock file pins those."""
    assert callable_text("f", collections.Counter) == "type Counter"


def test_a_write_of_other_code_is_refused(modules: Modules, tmp_path: Path) -> None:
    """It was taken for done, with the rows of the code as it was."""

    def written(source: str, **how: Any) -> list[Any]:
        ds = curate.range(3).map_batches(loaded(modules, source).Added)
        assert ds.write_parquet(tmp_path / "out", backend="inline", **how).state == "complete"
        return [row["n"] for row in curate.read_parquet(tmp_path / "out").take_all()]

    assert written(SOURCE) == written(SOURCE) == [1, 2, 3]
    changed = SOURCE.replace("return n + 1", "return n + 5")
    with pytest.raises(ConfigError, match="with another identity"):
        written(changed)
    assert written(changed, overwrite=True, yes=True) == [5, 6, 7]


@pytest.mark.parametrize("together", [Dataset.union, Dataset.zip])
def test_classes_of_one_name_are_not_taken_for_each_other(
    together: Callable[[Any, Any], Any], modules: Modules, tmp_path: Path
) -> None:
    """What is written is what is consumed."""
    module = loaded(modules, SOURCE)
    one, other = (curate.range(2).map_batches(module.made(k)) for k in (1, 100))
    both = together(one, other)
    consumed = both.take_all()
    assert {value for row in consumed for value in row.values()} == {1, 2, 100, 101}
    both.write_parquet(tmp_path / "out", backend="inline")
    assert curate.read_parquet(tmp_path / "out").take_all() == consumed


def test_a_value_that_cannot_be_compared_is_refused_by_name() -> None:
    """Where a class closes over it."""
    lock = object()

    class Locked:
        def __call__(self, batch: Any) -> Any:
            return batch if lock else None

    with pytest.raises(ConfigError, match=r"Locked\.__call__ depends on .*lock is a object; pass it to the construct"):
        curate.range(2).map_batches(Locked).write_parquet("memory://refused/out", backend="inline")


KINDS = {
    "dict": "{name}(dict)",
    "exception": "{name}(KeyError)",
    "abstract": "{name}(abc.ABC)",
    "slots": "{name}:\n    __slots__ = ('k',)\nclass Other",
    "named tuple": "{name}(typing.NamedTuple):\n    k: int = 1\nclass Other",
    "dataclass": "Slotted:\n    pass\n@dataclasses.dataclass(slots=True)\nclass {name}:\n    k: int = 1\nclass Other",
    "typed dictionary": "{name}(typing.TypedDict):\n    k: int\nclass Other",
    "enumeration": "{name}(enum.Enum):\n    K = 1\nclass Other",
    "ordered": "{name}(collections.OrderedDict)",
    "protocol": "Protocol(typing.Protocol):\n    pass\nclass {name}(Protocol)",
}
"""How classes begin that have what no one wrote: methods of compiled bases, slots, what makes them abstract."""


@pytest.mark.ci(15)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["in a module", "in a function", "without a source"])
def test_a_class_of_any_kind_has_a_text_that_its_code_decides(
    kind: str, where: str, modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its bases are, and whether it is called or used."""

    def text(number: int) -> str:
        body = f"class {KINDS[kind].format(name='Kind')}:\n    def __call__(self, batch):\n        return {number}\n"
        if where == "in a function":
            used = f"lambda batch: (Kind, {number})"
            body = "def make():\n" + textwrap.indent(f"{body}return {used}\n", "    ")
        source = "import abc, collections, dataclasses, enum, typing\n" + body
        if where == "without a source":
            module = types.ModuleType("of_a_notebook")
            monkeypatch.setitem(sys.modules, "of_a_notebook", module)  # which a dataclass looks for
            exec(source, vars(module))
            found = vars(module)["Kind"]
        else:
            loading = modules.load(source, "of_user")
            found = loading.make() if where == "in a function" else loading.Kind
        return callable_text("map", found)

    assert text(1) == text(1)
    if where == "in a function" or "Other" not in KINDS[kind]:
        assert text(1) != text(2)


@pytest.mark.parametrize("way", ["runpy", "exec", "exec with a file"])
@pytest.mark.parametrize("callable", ["function", "Class", "method", "made"])
@pytest.mark.parametrize(
    "change", [("n + 1", "n + 2"), ("LIMIT = 3", "LIMIT = 4"), ("return 5", "return 6"), ("2 * n", "3 * n")]
)
def test_code_that_was_executed_under_any_name_counts_with_what_it_uses(
    way: str, callable: str, change: tuple[str, str], tmp_path: Path
) -> None:
    """No module has that name, and so no file tells what a function, a class or a constant is."""

    def text(source: str) -> str:
        path = tmp_path / "job.py"
        path.write_text(textwrap.dedent(source))
        linecache.clearcache()
        if way == "runpy":
            names = runpy.run_path(str(path))
        else:
            names = {"__name__": "of_nobody"} | ({"__file__": str(path)} if way == "exec with a file" else {})
            exec(compile(path.read_text(), str(path) if way == "exec with a file" else "<cell>", "exec"), names)
        found = {
            "function": lambda: names["function"],
            "Class": lambda: names["Class"],
            "method": lambda: names["Class"]().method,
            "made": lambda: names["made"](),
        }[callable]()
        return callable_text("map", found)

    source = """
        LIMIT = 3
        def helper(n):
            return n + 1
        class Used:
            def own(self):
                return 5
        def function(n):
            return helper(2 * n), LIMIT, Used().own()
        class Class:
            def __call__(self, n):
                return function(n)
            def method(self, n):
                return function(n)
        def made():
            return lambda n: function(n)
    """
    assert text(source) == text(source)
    assert text(source) != text(source.replace(*change))


def test_of_a_notebook_the_code_of_classes_and_objects_that_a_function_uses_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cell that is changed and run again is other code, also behind a class, a base, or an object."""
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)

    def text(source: str) -> str:
        names = {"__name__": "__main__"}
        exec(textwrap.dedent(source), names)
        return callable_text("map", names["function"])

    source = """
        class Base:
            limit = 1
            @property
            def more(self):
                return 2
        class Used(Base):
            @staticmethod
            def own():
                return 3
            def itself(self):
                return Used()
        class Kept:
            def own(self):
                return 4
        KEPT = Kept()
        def function(n):
            return Used().own(), KEPT.own()
    """
    assert text(source) == text(source)
    changes = [("limit = 1", "limit = 5"), ("return 2", "return 5"), ("return 3", "return 5"), ("return 4", "return 5")]
    assert len({text(source.replace(*change)) for change in changes} | {text(source)}) == 5
