"""Where the end-to-end tests work: over local files, and over the emulators of GCS and S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.harness import Place, wait_for_agents
from tests.support.moto_server import MotoServer
from tests.support.workbench import Bench


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """All that drivers have started ends, if after a while."""
    yield
    wait_for_agents()


@pytest.fixture
def local(tmp_path: Path) -> Place:
    return Place(str(tmp_path / "data"))


@pytest.fixture
def moto() -> Iterator[MotoServer]:
    with MotoServer() as running:
        yield running


@pytest.fixture(
    params=["local", pytest.param("gcs", marks=pytest.mark.slow), pytest.param("s3", marks=pytest.mark.slow)]
)
def place(request: pytest.FixtureRequest) -> Place:
    """An empty place for inputs and outputs: one after the other in all kinds of storage, but for the quick tests."""
    if request.param == "local":
        found: Place = request.getfixturevalue("local")
        return found
    if request.param == "moto":
        return Place("s3://bucket/data", request.getfixturevalue("moto"))
    if request.param == "s3":
        return Place("s3://bucket/data", request.getfixturevalue("s3_emulator"))
    return Place("gs://bucket/data", request.getfixturevalue("emulator"))


@pytest.fixture
def bench(request: pytest.FixtureRequest, place: Place, tmp_path: Path) -> Bench:
    """Where a job runs over the FILES of a module."""
    return Bench(place, tmp_path / "trace", place.write("in", request.module.FILES))
