"""The emulator of GCS, as this process sees it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.gcs_emulator import GcsEmulator


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsEmulator]:
    with GcsEmulator() as running:
        for name, value in running.environ.items():
            monkeypatch.setenv(name, value)
        yield running
