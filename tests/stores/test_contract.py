"""What every store promises, over memory (the specification), local and GCS.

The tests are in `curate.testing`, where users find them for stores of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest

from curate.stores.faulty import FaultyStore
from curate.stores.memory import MemoryStore
from curate.testing.contract import StoreContract, StorePlace
from tests.support.moto_server import many_puts


def some_in_ci(number: int, test: Callable[..., None]) -> Callable[..., None]:
    """Returns a copy of a test of the contract, which knows nothing of our marks: of its cases CI takes so many."""

    @wraps(test)
    def copy(*given: Any, **named: Any) -> None:
        test(*given, **named)

    marked: Callable[..., None] = pytest.mark.ci(number)(copy)
    return marked


class TestStores(StoreContract):
    """The stores that come with curate; `place` is in conftest.py."""

    test_odd_names_are_plain_names = some_in_ci(38, StoreContract.test_odd_names_are_plain_names)
    test_racing_publishers_create_once = some_in_ci(8, StoreContract.test_racing_publishers_create_once)

    @many_puts
    def test_a_list_is_lazy_and_paged(self, place: StorePlace) -> None:
        """In pages as every store's."""
        super().test_a_list_is_lazy_and_paged(place)


@pytest.mark.ci(1)
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


@pytest.mark.parametrize("root", ["root", "mine", "other", "a", "a.b", "o/x"])
def test_a_place_may_have_any_name(root: str) -> None:
    """The contract asks for a root that ends in a slash, and for nothing else."""
    place = StorePlace(f"memory://any-{root.replace('/', '-')}/{root}/", MemoryStore)
    StoreContract().test_a_prefix_is_a_string_not_a_directory(place)
