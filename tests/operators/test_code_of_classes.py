"""The code of a class that batches are given to is part of what a dataset is, as that of a function is."""

from __future__ import annotations

import collections
import functools
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
