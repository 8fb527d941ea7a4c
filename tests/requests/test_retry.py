"""Retrying one call, by a clock that does not wait."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from curate import log
from curate.errors import ObjectNotFound, TransientStorageError
from curate.requests import retry
from curate.requests.reached import REACHED, Place
from curate.requests.retry import Retry
from curate.requests.throttle import Bounds, Limiter
from curate.testing.clock import FakeClock
from tests.support.fakes import NEVER_S


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


@pytest.mark.parametrize("refusals", [0, 1, 3])
def test_the_time_in_the_own_line_is_not_the_stores(clock: FakeClock, refusals: int) -> None:
    """Behind others of its process a call waits longer than its deadline, before each of its attempts: it is tried as
    often as one that had its turn at once, and what it says of its time is that of the store."""
    limiter = Limiter(Bounds(start=1, ceiling=1), clock)
    flaky = Flaky(refusals, clock, takes_s=1.0)

    def behind_others() -> int:
        taken, free = threading.Event(), threading.Event()

        def other() -> None:
            with limiter.request():
                taken.set()
                assert free.wait(NEVER_S)

        holder = threading.Thread(target=other)
        holder.start()
        assert taken.wait(NEVER_S)

        def leave() -> None:
            while not limiter.waiting:
                holder.join(0.001)
            clock.time_s += 1000.0
            free.set()

        leaver = threading.Thread(target=leave)
        leaver.start()
        try:
            with limiter.request():
                return flaky()
        finally:
            leaver.join()
            holder.join()

    # Waits of half a second, one and two at most.
    assert Retry(deadline_s=8.0, clock=clock).call("x", behind_others) == refusals + 1
    flaky.failures = 10**6
    with pytest.raises(TransientStorageError, match=r"^x: \d+ attempts in [4-9] s failed"):
        Retry(deadline_s=8.0, clock=clock).call("x", behind_others)


class TestFirstLook:
    """A place that never answered is a wrong address, until it answers."""

    PLACE = Place("S3 at http://minio:9000", "AWS_ENDPOINT_URL")

    @pytest.fixture(autouse=True)
    def _nothing_is_reached(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(REACHED, "_places", set())

    def seconds(self, clock: FakeClock, problem: str) -> float:
        """Returns after how many seconds a call is given up."""
        started_s = clock.time_s
        with pytest.raises(TransientStorageError, match=problem) as caught:
            Retry(clock=clock).call("list s3://b/", Flaky(10**6, clock, takes_s=0.1), self.PLACE)
        assert "\n" not in str(caught.value)
        return clock.time_s - started_s

    def test_it_is_said_within_seconds(self, clock: FakeClock) -> None:
        """In one line, with the next step; and not after a deadline that is shorter."""
        problem = (
            r"^list s3://b/: S3 at http://minio:9000 cannot be reached: failure \d+ \(\d+ attempts in \d s\); check "
            r"AWS_ENDPOINT_URL and the network, then run again$"
        )
        for _ in range(20):
            assert 0.1 <= self.seconds(clock, problem) <= 5.1
        with pytest.raises(TransientStorageError):
            Retry(clock=clock, deadline_s=0.0).call("x", flaky := Flaky(9), self.PLACE)
        assert flaky.calls == 1

    def test_one_answer_makes_patient(self, clock: FakeClock) -> None:
        """Of any call, and in the middle of one too: the service refused, but in its own words."""
        Retry(clock=clock).call("x", Flaky(2), self.PLACE)
        assert 60 < self.seconds(clock, "the store is unreachable or throttled") <= 120.1
        elsewhere = Place("S3 at http://other:9000", "AWS_ENDPOINT_URL")
        assert elsewhere not in REACHED
        # Seven seconds at least, which a first look does not have, and 72 at most, whatever the waits are.
        flaky = Flaky(7, clock, takes_s=1.0)

        def busy() -> int:
            REACHED.add(elsewhere)
            return flaky()

        assert Retry(clock=clock).call("x", busy, elsewhere) == 8

    def test_workers_know_what_their_driver_reached(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It travels with the program: one that begins in an outage is as patient as those before it."""
        REACHED.add(self.PLACE)
        shipped = pickle.dumps(REACHED)
        monkeypatch.setattr(REACHED, "_places", set())
        assert pickle.loads(shipped) is REACHED
        assert self.PLACE in REACHED


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


def test_who_waits_long_says_for_what(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten seconds, and every ten seconds after that, whatever else the process asks for meanwhile; a short
    disturbance is nothing to tell of."""
    monkeypatch.setattr(retry, "_SAID", retry._Said())
    with capture_logs() as logs:
        assert Retry(clock=clock, longest_wait_s=1.0).call("read a", Flaky(5)) == 6
        assert logs == []
        begun_s = clock.time_s
        with pytest.raises(TransientStorageError):
            Retry(clock=clock, longest_wait_s=1.0).call("read a", Flaky(10**6))
    took_s = clock.time_s - begun_s
    assert {(one["call"], one["log_level"]) for one in logs} == {("read a", "warning")}
    assert logs[0]["since"] in ("10 s, of 120 s at most", "11 s, of 120 s at most")
    assert logs[0]["error"].startswith("failure ")
    assert took_s / 12 < len(logs) <= took_s / 10
    with capture_logs() as logs:
        for what, later_s in (("read b", 100.0), ("read c", 101.0)):
            # Two threads, so to say, of which the second begins a second later, and would say so a second later.
            later = Retry(clock=FakeClock(clock.time_s + later_s), deadline_s=12.0, longest_wait_s=0.5)
            with pytest.raises(TransientStorageError):
                later.call(what, Flaky(10**6))
    assert [one["call"] for one in logs] == ["read b"]


def test_nobody_listens_to_that(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who listens writes what it hears to a store, which may be the one that refuses."""
    monkeypatch.setattr(retry, "_SAID", retry._Said())
    heard: list[Any] = []
    before = structlog.get_config()
    log.configure()
    log.listen(heard.append)
    try:
        with pytest.raises(TransientStorageError):
            Retry(clock=clock, deadline_s=15.0, longest_wait_s=0.5).call("read a", Flaky(10**6))
        assert retry._SAID._said_s is not None
        assert heard == []
        log.get_logger().warning("another")
        assert [one["event"] for one in heard] == ["another"]
    finally:
        log.stop_listening(heard.append)
        structlog.configure(**before)
