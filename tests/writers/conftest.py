"""A store that the tests of a file share."""

from __future__ import annotations

import pytest

from tests.support.fake_store import FakeStore


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()
