"""What every store promises, over memory (the specification), local and GCS.

The tests are in `curate.testing`, where users find them for stores of their own.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from curate.storage.faulty import FaultyStore
from curate.testing.contract import StoreContract, StorePlace
from tests.support.moto_server import many_puts


class TestStores(StoreContract):
    """The stores that come with curate; `place` is in conftest.py."""

    @many_puts
    def test_a_list_is_lazy_and_paged(self, place: StorePlace) -> None:
        """In pages as every store's."""
        super().test_a_list_is_lazy_and_paged(place)


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [
        "memory",
        "local",
        "gcs",
        *(pytest.param(one, marks=pytest.mark.nightly) for one in ("local-named", "s3", "moto")),
    ],
    indirect=True,
)
class TestAFaultyStoreWithoutFaults(StoreContract):
    """Passes for the store that it is over: what a test sees under faults is due to those."""

    @pytest.fixture
    def place(self, place: StorePlace) -> StorePlace:
        return replace(place, make=lambda: FaultyStore(place.make()))
