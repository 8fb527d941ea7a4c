"""The order of an epoch: bijections, windows, and how evenly samples are mixed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.training.order import Chunks, Order, order_of, permuted, round_keys

SEEDS = st.integers(0, 2**64 - 1)
UNITS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=8).filter(
    lambda units: any(samples for samples, _ in units)
)


def order(units: list[tuple[int, int]], seed: int, window: int, mixed: bool = True) -> Order:
    samples, most = (np.array(one, np.int64) for one in zip(*units, strict=True))
    return Order(Chunks(samples, most), seed, window, mixed)


def epoch_of(one: Order, epoch: int, place: int = 0) -> list[tuple[int, int]]:
    """Returns unit and number of the sample at each place, from the window of one on."""
    found = []
    for window in one.windows(epoch, place):
        slots, samples = window.samples(np.arange(window.start, window.stop))
        found += zip(window.units[slots].tolist(), samples.tolist(), strict=True)
    return found


@given(st.integers(1, 3000), SEEDS, st.integers(0, 5))
def test_each_number_is_taken_to_another(size: int, seed: int, epoch: int) -> None:
    """The permutation of any size is one."""
    found = permuted(np.arange(size), size, round_keys(seed, epoch))
    assert sorted(found.tolist()) == list(range(size))


@given(st.integers(2, 10**12), SEEDS, st.data())
def test_a_place_is_known_without_the_others(size: int, seed: int, data: st.DataObject) -> None:
    """Of billions of places, some are computed alone: within bounds, different, and each as among others."""
    places = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True)))
    keys = round_keys(seed)
    found = permuted(places, size, keys)
    assert len(set(found.tolist())) == len(places)
    assert found.min() >= 0
    assert found.max() < size
    assert permuted(places[:1], size, keys)[0] == found[0]


@given(UNITS, SEEDS, st.integers(1, 12), st.integers(0, 3), st.booleans())
def test_an_epoch_has_each_sample_once(
    units: list[tuple[int, int]], seed: int, window: int, epoch: int, mixed: bool
) -> None:
    """Whatever the units, the chunks and the windows are; and unmixed in the order of the corpus."""
    there = [(unit, number) for unit, (samples, _) in enumerate(units) for number in range(samples)]
    found = epoch_of(order(units, seed, window, mixed), epoch)
    assert sorted(found) == there
    assert mixed or found == there


@given(UNITS, SEEDS, st.integers(1, 12), st.data())
def test_a_place_has_one_sample(units: list[tuple[int, int]], seed: int, window: int, data: st.DataObject) -> None:
    """`locate` and windows from a place on agree with the whole epoch."""
    one = order(units, seed, window)
    whole = epoch_of(one, 1)
    place = data.draw(st.integers(0, len(whole) - 1))
    assert one.locate(1, place) == whole[place]
    rest = epoch_of(one, 1, place)
    assert rest == whole[len(whole) - len(rest) :]
    assert len(rest) >= len(whole) - place


def test_epochs_and_seeds_differ() -> None:
    """Two epochs of a seed, and two seeds, have other orders."""
    found = {tuple(epoch_of(order([(300, 10)], seed, 4), epoch)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(found) == 4


def test_this_order_is_kept() -> None:
    """States that are stored somewhere rely on it: with another order, VERSION is another."""
    found = [number for _, number in epoch_of(order([(16, 2)], 1, 4), 0)]
    assert found == PINNED


PINNED = [12, 9, 11, 13, 10, 14, 8, 15, 7, 4, 3, 0, 1, 2, 5, 6]


@pytest.mark.slow
@pytest.mark.parametrize("size", [5, 16, 100])
def test_places_are_equally_likely(size: int) -> None:
    """Over many seeds, the first number goes to each place as often: chi-square with a bound of one in a million."""
    trials = 60 * size
    found = [int(permuted(np.array([0]), size, round_keys(seed))[0]) for seed in range(trials)]
    counts = np.bincount(found, minlength=size)
    expected = trials / size
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # Wilson and Hilferty's approximation of the quantile.
    degrees = size - 1
    assert chi_square < degrees * (1 - 2 / (9 * degrees) + 4.75 * (2 / (9 * degrees)) ** 0.5) ** 3


def test_windows_have_about_the_bytes_asked_for() -> None:
    """Chunks of 1 MiB: 64 MiB are 64; of row groups that are larger, four."""
    assert order_of(Chunks(np.array([100_000]), np.array([256])), 4096, 0, 64 << 20).window in (64, 65)
    assert order_of(Chunks(np.array([10_000] * 9), np.array([10_000] * 9)), 4096, 0, 1 << 20).window == 4
