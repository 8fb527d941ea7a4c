"""The arithmetic of mixtures, beside what is done one unit at a time."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from curate.mixture.quotas import largest_remainder, quota, strata
from tests.mixture.plain import shares

weights = st.lists(st.integers(0, 50) | st.fractions(0, 3, max_denominator=20), min_size=1, max_size=8).filter(any)


@given(st.integers(0, 10**15), weights)
def test_quotas_are_those_given_one_by_one(total: int, weights: list[Fraction | int]) -> None:
    """Their sum is the total, and each is the next whole number to its share, below or above."""
    found = largest_remainder(total, weights)
    assert found == shares(total, weights)
    assert sum(found) == total
    assert all(abs(one - Fraction(total) * of / sum(weights)) < 1 for one, of in zip(found, weights, strict=True))


@given(st.integers(0, 10**6), st.integers(0, 1000), st.integers(1, 9))
def test_whole_epochs_first(wanted: int, had: int, most: int) -> None:
    """What is given and what is lacked is what is wanted; nothing is there more often than it may be."""
    found = quota(wanted, had, most)
    given = found.epochs * had + found.rest
    assert given + found.missing == wanted
    assert given == min(wanted, had * most)
    assert found.rest == 0 or (found.rest < had and found.epochs < most)


@given(st.integers(0, 10**6), st.lists(st.integers(0, 300), min_size=1, max_size=9), st.integers(1, 5))
def test_strata_give_what_their_source_gives(wanted: int, had: list[int], most: int) -> None:
    """None lacks anything unless the source does."""
    found = strata(wanted, had, most)
    assert sum(one.wanted for one in found) == wanted
    assert sum(one.missing for one in found) == quota(wanted, sum(had), most).missing
