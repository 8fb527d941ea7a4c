"""Plans in words, identities and outputs are those of the versions before: whoever upgrades goes on where they were."""

from __future__ import annotations

import pytest

from tests.pins.pinning import cases, pinned, read

PINNED = read()


@pytest.mark.parametrize("case", cases())
def test_a_plan_is_what_it_was(case: str) -> None:
    """The same plan is explained, identified and written as it was; if not, outputs that exist are orphans."""
    found = pinned(case)
    assert found == PINNED[case]


def test_nothing_is_pinned_that_is_not_tried() -> None:
    """Every pin belongs to a plan that is tried."""
    assert sorted(PINNED) == sorted(cases())
