"""Examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import inspect
import linecache
import pkgutil
from typing import Any

import pytest

import curate
from curate.dataset.grouped import GroupedData
from curate.dataset.split import DataIterator

# Importing Ray takes seconds, and what is there to see of it needs a cluster.
pytestmark = pytest.mark.quick

LEFT_OUT = "curate.backends.ray.backend"
MODULES = sorted(
    {"curate"}
    | {
        module.name
        for module in pkgutil.walk_packages(curate.__path__, "curate.")
        if not module.name.startswith(LEFT_OUT)
    }
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    """Every `>>>` of the module prints what it says, with `curate` imported."""
    found = importlib.import_module(name)
    # A class of an example is the user's, and of no module of curate.
    names = {"curate": curate, "__name__": "__main__"}
    # Before each example a debugger looks whether any file that a traceback ever showed has changed.
    linecache.clearcache()
    assert doctest.testmod(found, extraglobs=names, raise_on_error=False).failed == 0


@pytest.mark.parametrize("shown", [curate.Dataset, GroupedData, DataIterator], ids=lambda cls: cls.__name__)
def test_every_method_has_one(shown: type) -> None:
    """Who looks a method up sees it at work."""
    methods = {name: getattr(shown, name) for name in dir(shown) if not name.startswith("_")}
    methods = {name: method for name, method in methods.items() if callable(method)}
    assert methods
    assert [name for name, method in methods.items() if ">>> " not in (method.__doc__ or "")] == []


@pytest.mark.parametrize("name", [name for name in curate.__all__ if inspect.isfunction(getattr(curate, name))])
def test_so_has_every_function(name: str) -> None:
    """What is imported from `curate` begins with one of them."""
    assert ">>> " in (getattr(curate, name).__doc__ or "")


@pytest.mark.extras
@pytest.mark.parametrize("cls", [curate.Dataset, DataIterator], ids=lambda cls: cls.__name__)
def test_examples_of_tensors(cls: type[Any]) -> None:
    """They are skipped where there is no torch."""
    method = cls.iter_torch_batches
    (found,) = doctest.DocTestFinder().find(method, "iter_torch_batches", globs={"curate": curate})
    assert found.examples
    for example in found.examples:
        example.options.pop(doctest.SKIP, None)
    assert doctest.DocTestRunner().run(found).failed == 0


def test_there_are_examples() -> None:
    """A finder that finds nothing would be content with anything."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = sum(len(test.examples) for name in MODULES for test in finder.find(importlib.import_module(name)))
    assert len(MODULES) > 40
    assert found > 30
