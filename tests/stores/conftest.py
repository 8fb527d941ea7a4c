"""The stores, each with an empty root to work in."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from curate.requests.retry import Retry
from curate.stores import local
from curate.stores.gcs import GCSStore
from curate.stores.memory import clear
from curate.stores.open import open_store
from curate.stores.s3.store import S3Store
from curate.testing.clock import FakeClock
from curate.testing.contract import StorePlace
from tests.support.gcs_emulator import GcsEmulator
from tests.support.moto_server import OWN_STORES, MotoServer
from tests.support.s3_emulator import S3Emulator


@pytest.fixture
def s3(s3_emulator: S3Emulator, clock: FakeClock) -> S3Store:
    """A store of the emulator that waits by the fake clock."""
    assert s3_emulator.counts() == {"list": 0, "get": 0, "put": 0, "delete": 0}
    return S3Store(Retry(clock=clock))


@pytest.fixture
def gcs(emulator: GcsEmulator, clock: FakeClock) -> GCSStore:
    """A store of the emulator that waits by the fake clock."""
    assert emulator.counts() == {"list": 0, "get": 0, "put": 0, "delete": 0}
    return GCSStore(Retry(clock=clock))


@pytest.fixture(params=[*OWN_STORES, pytest.param("moto", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StorePlace]:
    kind: str = request.param
    if kind == "memory":
        bucket = f"test-{uuid.uuid4().hex}"
        root = f"memory://{bucket}/root/"
        yield StorePlace(root, lambda: open_store(root))
        clear(bucket)
    elif kind.startswith("local"):
        if kind == "local-named":
            request.getfixturevalue("monkeypatch").setattr(local, "NAMELESS", False)
        (tmp_path / "root").mkdir()
        root, scratch = f"{tmp_path}/root/", f"{tmp_path}/scratch"
        yield StorePlace(root, lambda: open_store(root, scratch), foreign="relative/path")
    elif kind == "moto":
        with MotoServer() as moto:
            for name, value in moto.environ.items():
                request.getfixturevalue("monkeypatch").setenv(name, value)
            root = "s3://bucket/root/"
            assert open_store(root).delete(f"{root}x") is False
            yield StorePlace(root, lambda: open_store(root), same_bytes_same_generation=True)
    elif kind == "s3":
        server: S3Emulator = request.getfixturevalue("s3_emulator")
        root = "s3://bucket/root/"
        # Asked once in a process: how the service deletes.
        assert open_store(root).delete(f"{root}x") is False
        server.reset_counts()
        yield StorePlace(root, lambda: open_store(root), server.counts, same_bytes_same_generation=True)
    else:
        emulator: GcsEmulator = request.getfixturevalue("emulator")
        root = "gs://bucket/root/"
        yield StorePlace(root, lambda: open_store(root), emulator.counts)
