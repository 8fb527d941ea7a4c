"""Code that travels to workers by value."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from curate.runtime import shipping


def test_a_module_that_was_replaced_or_forgotten_does_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may be loaded from its file again in one process: the last one counts, and only while it is there."""
    monkeypatch.setattr(shipping, "BY_VALUE", [])
    monkeypatch.setattr(shipping, "FOLDERS", [])
    first, second = ModuleType("travels"), ModuleType("travels")
    for module in (first, second):
        monkeypatch.setitem(sys.modules, "travels", module)
        shipping.ship(module, "/jobs")
        assert shipping.shipped() == [module]
    assert shipping.FOLDERS == ["/jobs"]
    monkeypatch.delitem(sys.modules, "travels")
    assert shipping.shipped() == []
