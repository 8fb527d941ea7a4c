"""Runs `curate` in the test's own process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from curate.cli import main


@dataclass(frozen=True)
class Printed:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which is one JSON value."""
        return orjson.loads(self.out)


@dataclass(frozen=True)
class Curate:
    """The command line, as a function."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, *args: str) -> Printed:
        """Runs the command with these arguments."""
        self.monkeypatch.setattr("sys.argv", ["curate", *args])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.main()
        return Printed(int(ended.value.code or 0), *self.capsys.readouterr())


@pytest.fixture
def curate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Curate:
    """Runs `curate` with these arguments; returns exit code, standard output and standard error."""
    return Curate(capsys, monkeypatch)
