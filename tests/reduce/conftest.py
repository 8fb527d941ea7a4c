"""Sizes for tests of what 100 TB look like."""

from __future__ import annotations

import pytest

from curate.exchange import run_file
from curate.plan import rewrites
from curate.reduce import merge, ranges


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Pages, run files and merged files so small that a few thousand rows have many; returns what sets more sizes."""
    monkeypatch.setattr(merge, "MERGED_BYTES", 20_000)
    monkeypatch.setattr(rewrites, "LEAST_MAP_BYTES", 1)
    monkeypatch.setattr(rewrites, "MAPS", 1 << 30)
    monkeypatch.setattr(ranges, "LEAST_BYTES", 8_000)
    defaults = list(run_file.RunWriter.__init__.__defaults__ or ())
    defaults[defaults.index(run_file.PAGE_BYTES)] = 500
    monkeypatch.setattr(run_file.RunWriter.__init__, "__defaults__", tuple(defaults))
    return monkeypatch
