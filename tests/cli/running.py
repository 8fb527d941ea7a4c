"""Runs `curate` in the test's own process."""

from __future__ import annotations

import os
import subprocess
import sys
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


_LIGHT = """
import sys
from curate.cli.main import main
try:
    main()
except SystemExit as ended:
    assert not ended.code
heavy = {"ray", "gcsfs", "fsspec", "sklearn", "pandas", "curate.job", "curate.driver.stage_run", "aiohttp"}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


def check_light(*args: str) -> None:
    """Checks that a command costs no cluster, no cloud library and no model, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _LIGHT, *args], capture_output=True, text=True, timeout=60, env=dict(os.environ)
    )
    assert (done.returncode, done.stderr) == (0, "[]\n"), done.stderr
