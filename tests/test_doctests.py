"""Examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import curate

# Importing Ray takes seconds, and what is there to see of it needs a cluster.
LEFT_OUT = "curate.runtime.ray"
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
    assert doctest.testmod(found, extraglobs={"curate": curate}, raise_on_error=False).failed == 0


def test_there_are_examples() -> None:
    """A finder that finds nothing would be content with anything."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = sum(len(test.examples) for name in MODULES for test in finder.find(importlib.import_module(name)))
    assert len(MODULES) > 40
    assert found > 30
