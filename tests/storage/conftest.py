"""The three stores, each with an empty root to work in; a clock that does not wait."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from curate.storage import Store, local, open_store
from curate.storage.gcs import GCSStore
from curate.storage.memory import clear
from curate.storage.retry import Retry
from tests.gcs_emulator import GcsEmulator


@dataclass
class FakeClock:
    """Time that passes only by sleeping, and remembers for how long."""

    time_s: float = 1000.0
    sleeps: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.time_s

    def monotonic(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.time_s += seconds


@dataclass(frozen=True)
class Place:
    """A store and somewhere to put things."""

    kind: str
    root: str
    """URI of an empty directory, with a slash at its end."""
    make: Callable[[], Store]
    """Makes another instance over the same contents."""
    store: Store
    count: Callable[[], dict[str, int] | None]
    """What the server counted; None where there is no server."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsEmulator]:
    with GcsEmulator() as running:
        for name, value in running.environ.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def gcs(emulator: GcsEmulator, clock: FakeClock) -> GCSStore:
    """A store of the emulator that waits by the fake clock."""
    assert emulator.counts() == {"list": 0, "get": 0, "put": 0, "delete": 0}
    return GCSStore(Retry(clock=clock))


@pytest.fixture(params=["memory", "local", "local-named", "gcs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    kind: str = request.param
    if kind == "memory":
        bucket = f"test-{uuid.uuid4().hex}"
        root = f"memory://{bucket}/root/"
        yield Place(kind, root, lambda: open_store(root), open_store(root), lambda: None)
        clear(bucket)
    elif kind.startswith("local"):
        if kind == "local-named":
            request.getfixturevalue("monkeypatch").setattr(local, "NAMELESS", False)
        (tmp_path / "root").mkdir()
        root, scratch = f"{tmp_path}/root/", f"{tmp_path}/scratch"
        yield Place("local", root, lambda: open_store(root, scratch), open_store(root, scratch), lambda: None)
    else:
        emulator: GcsEmulator = request.getfixturevalue("emulator")
        root = "gs://bucket/root/"
        yield Place(kind, root, lambda: open_store(root), open_store(root), emulator.counts)
