"""Files are removed and replaced under the lock of their folder; who waits for it long says so."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from curate.folders import lock
from curate.storage.protocol import Object
from curate.stores.local import LocalStore
from tests.support.fakes import NEVER_S


def replace(store: LocalStore, seen: Object) -> None:
    with store.writer(seen.uri) as writer:
        writer.write(b"new")
        writer.publish(over=seen.generation)


CHANGES: dict[str, tuple[Callable[[LocalStore, Object], Any], bytes | None]] = {
    "removed": (lambda store, seen: store.delete(seen.uri, seen.generation), None),
    "replaced": (replace, b"new"),
}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> tuple[list[dict[str, Any]], threading.Event]:
    """What is said, and when it was said twice."""
    said: list[dict[str, Any]] = []
    twice = threading.Event()

    def warning(_: str, **about: Any) -> None:
        said.append(about)
        if len(said) > 1:
            twice.set()

    monkeypatch.setattr(lock, "get_logger", lambda: SimpleNamespace(warning=warning))
    monkeypatch.setattr(lock, "SAID_AFTER_S", 0.01)
    return said, twice


@pytest.mark.parametrize("change", CHANGES)
def test_who_waits_for_a_lock_says_so(
    change: str, tmp_path: Path, told: tuple[list[dict[str, Any]], threading.Event]
) -> None:
    """Again and again, until whoever has it goes on; then it is done."""
    path, (said, twice), (do, after) = tmp_path / "out" / "a", told, CHANGES[change]
    store = LocalStore(str(tmp_path / "scratch"))
    seen = store.publish(str(path), b"old").object
    with ThreadPoolExecutor(1) as pool:
        # As a process does that is stopped in the middle of it.
        other = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(other, fcntl.LOCK_EX)
            doing = pool.submit(do, store, seen)
            doing.add_done_callback(lambda _: twice.set())
            assert twice.wait(NEVER_S)
            assert not doing.done()
            assert path.read_bytes() == b"old"
        finally:
            os.close(other)
        doing.result(NEVER_S)
    assert {(one["folder"], one["to_change"]) for one in said} == {(str(path.parent), "a")}
    assert (path.read_bytes() if path.exists() else None) == after


@pytest.mark.parametrize("change", CHANGES)
def test_who_has_it_at_once_starts_no_thread(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(str(tmp_path / "scratch"))
    seen = store.publish(str(tmp_path / "a"), b"old").object
    monkeypatch.setattr(lock, "_saying", None)
    CHANGES[change][0](store, seen)
