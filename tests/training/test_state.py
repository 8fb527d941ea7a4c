"""Shares of ranks and workers, and states: arithmetic alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.errors import ConfigError
from curate.training.state import Batches, Reading, batches_after, check_share

READING = Reading(2**64 - 1, "0123456789abcdef", 2**20, 2**20, 2**40)


@given(st.integers(1, 200), st.integers(1, 6), st.sampled_from([1, 2, 4]), st.integers(1, 3), st.booleans(), st.data())
def test_each_sample_has_one_reader(
    samples: int, times: int, ranks: int, workers: int, drop_last: bool, data: st.DataObject
) -> None:
    """From any batch on, ranks and workers together have each place once; in the order of ranks and of the workers'
    turns, they are the global order."""
    batches = Batches(samples, times * ranks, drop_last)
    first = data.draw(st.integers(0, batches.count))
    places = np.arange(samples)
    shares = {
        (rank, worker): iter(batches.of(places, rank, ranks, worker, workers, first).tolist())
        for rank in range(ranks)
        for worker in range(workers)
    }
    found = []
    for number in range(first, batches.count):
        for rank in range(ranks):
            share = shares[rank, (number - first) % workers]
            found += [next(share) for _ in range(batches.rows(number, rank, ranks))]
    assert found == list(range(first * batches.size, max(batches.end, first * batches.size)))
    assert all(next(share, None) is None for share in shares.values())
    assert batches.end == (samples // batches.size * batches.size if drop_last else samples)


def test_a_state_is_small() -> None:
    """The largest there is, as JSON."""
    assert len(json.dumps(READING.state(10**4, 10**12))) <= 200


def test_a_state_comes_back() -> None:
    """Also through JSON, and the last batch of an epoch is followed by the next epoch."""
    batches = Batches(10 * 2**20, 2**20, True)
    state = json.loads(json.dumps(READING.state(3, 4 * 2**20)))
    assert READING.resumed(state, batches) == (3, 4 * 2**20)
    assert READING.resumed(READING.state(3, 10 * 2**20), batches) == (4, 0)
    assert batches_after(3, 10, batches) == (4, 0)


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("seed", 7),
        ("corpus", "fedcba9876543210"),
        ("sequence_length", 512),
        ("batch_size", 64),
        ("shuffle_bytes", 0),
        ("order", 0),
    ],
)
def test_a_state_of_something_else_is_refused_with_both_sides(name: str, there: object) -> None:
    """Each value that decides what a position means."""
    state = {**READING.state(0, 0), name: there}
    here = READING.as_dict()[name]
    with pytest.raises(ConfigError, match=f"{name}: {there!r} in the state, {here!r} here"):
        READING.resumed(state, Batches(2**21, 2**20, True))


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (None, "not a state of TokenShards: found None"),
        ({"epoch": 1}, "found epoch; expected epoch, position"),
        (READING.state(-1, 0), "the state's epoch is -1, expected a whole number, at least 0"),
        (READING.state(0, 5), "position 5, expected a multiple of the batch size"),
        (READING.state(0, 2**40), "and at most 2,097,152"),
        ({**READING.state(0, 0), "position": "0"}, "the state's position is '0', expected a whole number, at least 0"),
    ],
)
def test_what_is_no_state_is_refused(state: object, told: str) -> None:
    """A torn one, one of another version, one that was edited."""
    with pytest.raises(ConfigError, match=told):
        READING.resumed(state, Batches(2**21, 2**20, True))


@pytest.mark.parametrize(
    ("share", "told"),
    [
        ((0, 0, 1), "batch_size is 0"),
        ((8, 2, 2), "rank is 2, expected a number below world_size, which is 2"),
        ((8, -1, 2), "rank is -1"),
        ((8, 0, 0), "world_size is 0"),
        ((8, 0, 3), "batch_size is 8, which 3 ranks cannot share equally.*such as 6"),
        ((True, 0, 1), "batch_size is True"),
    ],
)
def test_shares_that_there_are_not(share: tuple[int, int, int], told: str) -> None:
    """Ranks out of range, and batches that cannot be divided."""
    with pytest.raises(ConfigError, match=told):
        check_share(*share)
