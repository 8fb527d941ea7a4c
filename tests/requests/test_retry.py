"""Retrying one call, by a clock that does not wait."""

from __future__ import annotations

import pickle

import pytest

from curate.errors import ObjectNotFound, TransientStorageError
from curate.requests.retry import Retry
from curate.testing.clock import FakeClock


class Flaky:
    """Fails a number of times, then returns how often it was called."""

    def __init__(self, failures: int, clock: FakeClock | None = None, takes_s: float = 0.0) -> None:
        self.failures = failures
        self.clock = clock
        self.takes_s = takes_s
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.clock:
            self.clock.time_s += self.takes_s
        if self.calls <= self.failures:
            raise TransientStorageError(f"failure {self.calls}")
        return self.calls


def test_success_costs_one_call_and_no_wait(clock: FakeClock) -> None:
    """The usual case."""
    assert Retry(clock=clock).call("x", Flaky(0)) == 1
    assert clock.sleeps == []


def test_waits_are_random_and_double_up_to_a_bound(clock: FakeClock) -> None:
    """Full jitter: each wait lies anywhere between nothing and its bound, so that throttled clients spread out."""
    retry = Retry(deadline_s=1e9, first_wait_s=1.0, longest_wait_s=16.0, clock=clock)
    laps = []
    for _ in range(200):
        clock.sleeps.clear()
        assert retry.call("x", Flaky(8)) == 9
        laps.append(list(clock.sleeps))
    for attempt, bound in enumerate([1, 2, 4, 8, 16, 16, 16, 16]):
        waits = [lap[attempt] for lap in laps]
        assert 0 <= min(waits) < 0.1 * bound
        assert 0.9 * bound < max(waits) <= bound


def test_no_attempt_starts_after_the_deadline(clock: FakeClock) -> None:
    """Slow attempts count too; the last failure is told, and is the cause."""
    flaky, started_s = Flaky(10**6, clock, takes_s=7.0), clock.time_s
    with pytest.raises(
        TransientStorageError, match=r"list gs://b/: \d attempts in \d+ s failed, .* failure \d"
    ) as caught:
        Retry(deadline_s=30.0, clock=clock).call("list gs://b/", flaky)
    assert 2 <= flaky.calls <= 5
    assert clock.time_s - started_s <= 30.0 + 7.0
    assert str(caught.value.__cause__) == f"failure {flaky.calls}"


def test_other_errors_pass_at_once(clock: FakeClock) -> None:
    """Only what may pass is tried again."""

    def missing() -> None:
        raise ObjectNotFound("x")

    with pytest.raises(ObjectNotFound):
        Retry(clock=clock).call("x", missing)
    assert clock.sleeps == []


def test_a_policy_travels() -> None:
    """It is part of a store's pickle."""
    assert pickle.loads(pickle.dumps(Retry(deadline_s=3.0))).deadline_s == 3.0
