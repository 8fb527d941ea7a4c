"""What holds for every test: nothing of the user's own home is read or written, Ray asks for no token, and no cluster
of others is joined, nor one of these tests by others."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog

from tests.fakes import FakeClock

# Ray notes the address of a cluster there, and whoever has no other address joins it. Short: it holds sockets.
os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
atexit.register(shutil.rmtree, os.environ["RAY_TMPDIR"], ignore_errors=True)

# How long an example takes says something about the machine's load, and nothing about a rule.
hypothesis.settings.register_profile("curate", deadline=None)
hypothesis.settings.load_profile("curate")


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own `$CURATE_HOME`, which is empty."""
    path = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("CURATE_HOME", str(path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    return path


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command line that is called in this process configures logging for all of it."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def clock() -> FakeClock:
    """Time that passes only when the test, or what it tests, sleeps."""
    return FakeClock()
