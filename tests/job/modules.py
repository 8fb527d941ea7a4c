"""Modules with jobs in them, written and imported by tests."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from curate.job.definition import job_digest

_NUMBERS = itertools.count()


class Modules:
    """Writes modules, and imports them as if for the first time."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        monkeypatch.syspath_prepend(str(folder))
        # By time and size it would be that of the file before, written in the same second.
        monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(self, name: str, source: str) -> None:
        """Writes a module that can be imported."""
        path = self.folder / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        # Python tells by the time of a folder whether it has other files now: not two of one tick of the clock.
        importlib.invalidate_caches()

    def load(self, source: str, name: str = "") -> ModuleType:
        """Returns a module of this source, by default with a name of its own."""
        name = name or f"module_{next(_NUMBERS)}"
        self.write(name, source)
        spec = importlib.util.spec_from_file_location(name, self.folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        self.monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    def forget(self, name: str) -> None:
        """Makes the next import read the file again."""
        self.monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()

    def digest(self, source: str) -> str:
        """Returns the digest of the class Mine in a module of this source."""
        return job_digest(self.load(source).Mine)
