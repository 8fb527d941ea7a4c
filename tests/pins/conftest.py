"""What pins are made in: the memory store, which numbers generations anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from curate.stores import memory


@pytest.fixture(autouse=True)
def _memory_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(memory, "_generations", memory._generations)
    yield
    memory.clear("pinned")
