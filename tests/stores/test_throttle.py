"""How many requests are made at once: the rule, its effect on a store that throttles, and the places under threads."""

from __future__ import annotations

import heapq
import itertools
import os
import random
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from weakref import WeakValueDictionary

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.errors import ObjectNotFound, TransientStorageError
from curate.requests import throttle
from curate.requests.retry import Retry
from curate.requests.throttle import Bounds, Limiter, Window, refusing
from curate.storage.protocol import Outcome
from curate.stores.gcs import GCSStore
from curate.stores.s3.store import S3Store
from curate.testing.clock import FakeClock
from tests.support.gcs_emulator import GcsEmulator

BOUNDS = Bounds()
REFUSED = TransientStorageError("503")
DEADLINE_S = 20.0
"""How long a test waits for another thread before it fails."""


# The rule


def test_a_window_grows_by_one_after_a_window_of_successes() -> None:
    """From 16 to 17 takes 16, to 18 another 17; one that is not full does not grow, and none beyond its ceiling."""
    window = Window(BOUNDS.start)
    for limit in range(BOUNDS.start, BOUNDS.ceiling):
        for _ in range(limit):
            assert window.limit == limit
            assert window.succeeded(BOUNDS, full=False, now_s=0) == window
            window = window.succeeded(BOUNDS, full=True, now_s=0)
    assert window.limit == BOUNDS.ceiling
    for _ in range(1000):
        window = window.succeeded(BOUNDS, full=True, now_s=0)
    assert window.limit == BOUNDS.ceiling


def test_a_burst_of_refusals_counts_once() -> None:
    """Sixty requests that were under way together say one thing, whenever their answers come."""
    window = Window(64)
    for answered_s in (10.0, 10.001, 10.4, 12.0, 30.0):
        window = window.refused(BOUNDS, sent_s=9.9, now_s=answered_s)
        assert window == Window(32, 0, 10.0, 64)
    assert window.refused(BOUNDS, sent_s=10.1, now_s=10.2) == Window(16, 0, 10.2, 32)


def test_a_refusal_takes_back_what_was_counted_towards_growth() -> None:
    """Growth needs a whole window without a refusal."""
    window = Window(4, successes=3, lowered_s=10.0)
    assert window.refused(BOUNDS, sent_s=9.0, now_s=10.2).successes == 0


def test_what_was_refused_is_not_tried_again_at_once() -> None:
    """Refused at 6, a window grows from 3 to 5 and stays there until ten seconds have passed."""
    window = Window(6).refused(BOUNDS, sent_s=0.0, now_s=1.0)
    limits = []
    for now_s in (2.0, 10.9, 11.0):
        for _ in range(200):
            window = window.succeeded(BOUNDS, full=True, now_s=now_s)
        limits.append(window.limit)
    assert limits[:2] == [5, 5]
    assert limits[2] > 6


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0, 2), st.floats(0, 2)), max_size=300))
def test_a_window_stays_within_its_bounds(steps: list[tuple[bool, bool, float, float]]) -> None:
    """Whatever happens: between floor and ceiling, up by one, down by half, and down only for what was sent since."""
    bounds = Bounds(start=4, floor=1, ceiling=6)
    window, now_s = Window(bounds.start), 100.0
    for succeeded, full, later_s, took_s in steps:
        now_s += later_s
        before = window
        if succeeded:
            window = window.succeeded(bounds, full=full, now_s=now_s)
            assert before.limit <= window.limit <= before.limit + 1
        else:
            window = window.refused(bounds, sent_s=now_s - took_s, now_s=now_s)
            assert window.limit in (before.limit, max(1, before.limit // 2))
            assert window.lowered_s == (now_s if now_s - took_s >= before.lowered_s else before.lowered_s)
        assert bounds.floor <= window.limit <= bounds.ceiling
        assert 0 <= window.successes < max(2, window.limit)


@pytest.mark.parametrize("wrong", [{"floor": 0}, {"start": 65}, {"start": 1, "floor": 2}, {"kept": 1}])
def test_bounds_without_sense_are_refused(wrong: dict[str, int]) -> None:
    """Nothing could move, or everything would stop."""
    with pytest.raises(ValueError, match="expected 1 <= floor <= start <= ceiling"):
        Bounds(**wrong)


# Its effect, by a clock of its own


@dataclass
class Served:
    """How a simulated storm ended."""

    answered: int = 0
    refused: int = 0
    seconds: float = 0.0


class Storm:
    """Clients that make calls of a server which serves `capacity` at once and refuses the rest within a hop.

    Every client waits between attempts as `Retry` does. Those of a process share a window; without `bounds` none do.
    """

    def __init__(
        self, *, clients: int, calls: int, capacity: int, bounds: Bounds | None, seed: int = 1, processes: int = 1
    ) -> None:
        self.bounds, self.capacity, self.rng = bounds, capacity, random.Random(seed)
        self.processes = processes
        self.windows = [Window(bounds.start if bounds else 10**9)] * processes
        self.waiting = [deque(range(process, clients, processes)) for process in range(processes)]
        self.in_flight = [0] * processes
        self.serving = 0
        self.left, self.attempt = [calls] * clients, [0] * clients
        self.events: list[tuple[float, int, str, int, float]] = []
        self.numbers = itertools.count()
        self.now_s = 0.0

    def run(self) -> Served:
        served = Served()
        for process in range(self.processes):
            self._start(process)
        while self.events:
            self.now_s, _, kind, client, sent_s = heapq.heappop(self.events)
            process = client % self.processes
            if kind == "wakes":
                self.waiting[process].append(client)
            else:
                served.answered += kind == "answer"
                served.refused += kind == "refusal"
                self._ended(process, client, kind == "answer", sent_s)
            self._start(process)
        served.seconds = self.now_s
        return served

    def _start(self, process: int) -> None:
        while self.waiting[process] and self.in_flight[process] < self.windows[process].limit:
            client = self.waiting[process].popleft()
            self.in_flight[process] += 1
            if self.serving < self.capacity:
                self.serving += 1
                self._after(self.rng.uniform(0.04, 0.06), "answer", client)
            else:
                self._after(0.01, "refusal", client)

    def _ended(self, process: int, client: int, answered: bool, sent_s: float) -> None:
        window, bounds = self.windows[process], self.bounds
        full = self.in_flight[process] + len(self.waiting[process]) >= window.limit
        self.in_flight[process] -= 1
        if answered:
            self.serving -= 1
            self.left[client], self.attempt[client] = self.left[client] - 1, 0
            if self.left[client]:
                self.waiting[process].append(client)
            if bounds:
                self.windows[process] = window.succeeded(bounds, full=full, now_s=self.now_s)
            return
        self._after(self.rng.uniform(0, min(32.0, 0.5 * 2 ** self.attempt[client])), "wakes", client)
        self.attempt[client] += 1
        if bounds:
            self.windows[process] = window.refused(bounds, sent_s=sent_s, now_s=self.now_s)

    def _after(self, seconds: float, kind: str, client: int) -> None:
        heapq.heappush(self.events, (self.now_s + seconds, next(self.numbers), kind, client, self.now_s))


@pytest.mark.parametrize("capacity", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_storm_is_calmed(capacity: int, seed: int) -> None:
    """64 clients with 100 calls each of a server that takes few at once: every call succeeds, with a tenth of the
    refusals, or fewer, that full jitter alone leads to, and within 1.1 of the time that the server needs."""
    common = {"clients": 64, "calls": 100, "capacity": capacity, "seed": seed}
    without, limited = Storm(bounds=None, **common).run(), Storm(bounds=BOUNDS, **common).run()
    assert limited.answered == without.answered == 6400
    assert limited.refused <= without.refused / 10
    assert limited.seconds < 1.1 * 6400 * 0.05 / capacity
    assert without.seconds > 1.2 * limited.seconds


@pytest.mark.parametrize(("capacity", "processes"), [(8, 4), (16, 8), (8, 64)])
def test_processes_share_what_the_store_takes(capacity: int, processes: int) -> None:
    """Each with its own window, and none that knows of the others: over ten storms, no more refusals than without, and
    no more time. (Where each makes one request at a time, there is nothing to narrow: it is the same.)"""
    common = {"clients": 64, "calls": 100, "capacity": capacity, "processes": processes}
    without = [Storm(bounds=None, seed=seed, **common).run() for seed in range(10)]
    limited = [Storm(bounds=BOUNDS, seed=seed, **common).run() for seed in range(10)]
    assert {storm.answered for storm in without + limited} == {6400}
    assert sum(storm.refused for storm in limited) <= sum(storm.refused for storm in without)
    assert sum(storm.seconds for storm in limited) <= sum(storm.seconds for storm in without)


def test_without_a_storm_nothing_is_held_back() -> None:
    """As many as there are go on at once, after a start in which the window opens."""
    common = {"clients": 64, "calls": 500, "capacity": 64}
    without, limited = Storm(bounds=None, **common).run(), Storm(bounds=BOUNDS, **common).run()
    assert limited.refused == without.refused == 0
    assert limited.seconds < 1.2 * without.seconds


# Places, under threads


class Held:
    """A request that goes on in a thread of its own until it is told how to end."""

    def __init__(self, limiter: Limiter, *, started: Callable[[], None] = lambda: None) -> None:
        self.limiter = limiter
        self.entered, self.end = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self.started = started
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self.limiter.request():
                self.started()
                self.entered.set()
                assert self.end.wait(DEADLINE_S)
                if self.error is not None:
                    raise self.error
        except (TransientStorageError, ObjectNotFound):
            pass

    def finish(self, error: BaseException | None = None) -> None:
        self.error = error
        self.end.set()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits until another thread is as far."""
    pause = threading.Event()
    for _ in range(int(DEADLINE_S / 0.001)):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError(what)


def test_first_come_first_served() -> None:
    """Requests get their places in the order in which they asked, one for each that is given back."""
    limiter, order = Limiter(Bounds(start=1, ceiling=1)), []
    first = Held(limiter)
    assert first.entered.wait(DEADLINE_S)
    later = []
    for number in range(8):
        later.append(Held(limiter, started=lambda n=number: order.append(n)))
        until(lambda n=number: limiter.waiting == n + 1, "a request waits")
    first.finish()
    for number, held in enumerate(later):
        assert held.entered.wait(DEADLINE_S)
        assert order == list(range(number + 1))
        assert limiter.under_way == 1
        held.finish()
    assert (limiter.under_way, limiter.waiting) == (0, 0)


@pytest.mark.parametrize("limit", [1, 3, 16])
def test_never_more_at_once_and_none_forgotten(limit: int) -> None:
    """Many threads, some of which are refused: never more under way than the limit, and all of them get through."""
    limiter = Limiter(Bounds(start=limit, floor=limit, ceiling=limit))
    lock, running, most, done = threading.Lock(), 0, 0, Counter[int]()

    def client(number: int) -> None:
        nonlocal running, most
        rng = random.Random(number)
        for _ in range(100):
            try:
                with limiter.request():
                    with lock:
                        running += 1
                        most = max(most, running)
                    try:
                        if rng.random() < 0.3:
                            raise REFUSED
                    finally:
                        with lock:
                            running -= 1
            except TransientStorageError:
                pass
            done[number] += 1

    with ThreadPoolExecutor(40) as pool:
        list(pool.map(client, range(40), timeout=DEADLINE_S))
    assert sum(done.values()) == 4000
    assert 1 <= most <= limit
    assert (limiter.under_way, limiter.waiting) == (0, 0)


def test_what_a_refusal_is() -> None:
    """503s, resets and timeouts narrow the window; a 404 is an answer like another; an interrupt says nothing."""
    clock = FakeClock()
    limiter = Limiter(Bounds(start=8), clock)
    for error, limit in ((REFUSED, 4), (ObjectNotFound("x"), 4), (KeyboardInterrupt(), 4), (REFUSED, 2)):
        clock.advance(5)
        with pytest.raises(type(error)), limiter.request():
            raise error
        assert (limiter.window.limit, limiter.under_way) == (limit, 0)
    held = [Held(limiter), Held(limiter)]
    for one in held:
        assert one.entered.wait(DEADLINE_S)
    for one in held:
        one.finish(ObjectNotFound("x"))
    # The second ended alone in a window of two: that was not tried out.
    assert limiter.window.successes == 1


def test_a_thread_does_not_wait_for_itself() -> None:
    """A request from a signal handler, in the middle of a request of the same thread, with one place in all."""
    limiter = Limiter(Bounds(start=1, ceiling=1))
    with limiter.request(), limiter.request():
        assert limiter.under_way == 1
    assert limiter.under_way == 0


def test_the_place_of_a_dead_thread_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that ended in the middle of a request, without a word, holds up nobody."""
    limiter = Limiter(Bounds(start=1, ceiling=1))
    monkeypatch.setattr(limiter, "REAP_S", 0.01)
    dying = threading.Thread(target=lambda: limiter._enter(threading.current_thread()))
    dying.start()
    dying.join()
    assert limiter.under_way == 1
    with limiter.request():
        assert limiter.under_way == 1
    held = Held(limiter)
    assert held.entered.wait(DEADLINE_S)
    held.finish()


def test_one_that_is_interrupted_while_it_waits_leaves_the_line() -> None:
    """Those behind it move up."""
    limiter = Limiter(Bounds(start=1, ceiling=1))
    first = Held(limiter)
    assert first.entered.wait(DEADLINE_S)
    wait = limiter._changed.wait

    def interrupted(timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return wait(timeout)

    limiter._changed.wait = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt), limiter.request():
        raise AssertionError("there was no place")
    assert limiter.waiting == 0
    behind = Held(limiter)
    until(lambda: limiter.waiting == 1, "a request waits")
    first.finish()
    assert behind.entered.wait(DEADLINE_S)
    behind.finish()


# Over HTTP


@pytest.mark.usefixtures("emulator")
def test_all_stores_of_a_process_share_a_limiter() -> None:
    """It is the process that a store throttles; the child of a fork has a limiter of its own, with no place taken."""
    limiter = GCSStore().limiter
    assert GCSStore(Retry(deadline_s=1)).limiter is limiter
    assert GCSStore(limiter=Limiter()).limiter is not limiter
    with limiter.request():
        child = os.fork()
        if child == 0:
            own = GCSStore().limiter
            os._exit(0 if own is not limiter and own.under_way == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with GcsEmulator() as other, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", other.url)
        assert GCSStore().limiter is not limiter


def test_a_503_narrows_the_window(emulator: GcsEmulator) -> None:
    """Each in its own second; an answer that is no is an answer."""
    clock = FakeClock()
    gcs = GCSStore(Retry(clock=clock), Limiter(clock=clock))
    for status, limit in ((503, 8), (429, 4), (404, 4), (412, 4), (504, 2)):
        clock.advance(2)
        emulator.fail(status=status)
        gcs.delete("gs://bucket/x")
        assert gcs.limiter.window.limit == limit
    assert gcs.transient_failures == 3


@pytest.mark.slow
def test_a_server_that_takes_few_at_once_refuses_few(emulator: GcsEmulator) -> None:
    """32 threads against a server that takes four at once: every publish succeeds, and the server refuses less than
    a quarter of what it refuses without a limiter."""

    def hammer(name: str, bounds: Bounds) -> tuple[int, int]:
        gcs = GCSStore(Retry(first_wait_s=0.02, longest_wait_s=0.2), Limiter(bounds))
        emulator.heal()
        capacity = emulator.limit(concurrent=4, takes_s=0.004)
        with ThreadPoolExecutor(32) as pool:
            ended = list(pool.map(lambda n: gcs.publish(f"gs://bucket/{name}/{n:03}", b"x"), range(320)))
        assert [published.outcome for published in ended] == [Outcome.CREATED] * 320
        assert (gcs.transient_failures, gcs.calls.put) == (capacity.refused, 320 + capacity.refused)
        return capacity.refused, capacity.most

    free, _ = hammer("free", Bounds(start=64, floor=64))
    limited, most = hammer("limited", Bounds(start=16))
    assert most <= 16 + 4
    assert limited < free / 4, (limited, free)


def test_a_store_that_refuses_is_named_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """In words that a screen shows; one that has not refused, or not lately, is not."""
    # Stores that other tests use in this process may have refused.
    monkeypatch.setattr(throttle, "_LIMITERS", WeakValueDictionary())
    clock = FakeClock()
    limiter = Limiter(Bounds(start=16), clock)
    assert limiter.refusing() == ""
    with pytest.raises(TransientStorageError), limiter.request():
        raise TransientStorageError("503")
    said = "the store refuses or loses requests: 8 requests at once instead of 16"
    assert limiter.refusing() == said
    assert said in refusing()
    clock.advance(61.0)
    assert limiter.refusing() == ""


def test_a_look_at_all_limiters_is_safe_while_others_are_made() -> None:
    """It is taken at each tick of a run, whose threads make the first requests to further stores meanwhile."""
    made: list[Limiter] = []
    maker = threading.Thread(target=lambda: made.extend(Limiter() for _ in range(5_000)))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        maker.start()
        while maker.is_alive():
            refusing()
    finally:
        sys.setswitchinterval(before)
        maker.join()


def test_a_request_makes_no_limiter_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://nowhere.example")
    monkeypatch.setattr(throttle, "_of_services", {})
    made: list[object] = []
    monkeypatch.setattr(throttle, "Limiter", lambda: made.append(None) or Limiter())
    for store in (GCSStore(), S3Store().service):
        assert len({store.limiter for _ in range(5)}) == 1
    assert len(made) == 2
