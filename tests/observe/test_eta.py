"""How long the rest of a run takes: when it is told, and that it is told right."""

from __future__ import annotations

import bisect
import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.observe.eta import RECENT_S, Pace, format_range


def steady(seconds: int, shards_per_s: float, size: int = 1000) -> Pace:
    """Returns the pace of a run that has gone on at one speed."""
    pace = Pace()
    for second in range(seconds + 1):
        shards = round(second * shards_per_s)
        pace.add(float(second), shards, shards * size)
    return pace


# When it is told


@pytest.mark.parametrize(("left", "known"), [(1901, False), (1900, True), (0, True)])
def test_it_is_unknown_until_a_twentieth_of_the_bytes_is_done(left: int, known: bool) -> None:
    """100 of 2,000 are 5 %; of the shards nothing is asked."""
    pace = Pace()
    pace.add(0.0, 0, 0)
    pace.add(10.0, 99, 100)
    assert (pace.time_left(1, left) is not None) == known


def test_empty_inputs_are_counted_by_the_shard() -> None:
    """They have no bytes that could be left."""
    pace = steady(100, 1.0, size=0)
    assert pace.time_left(1901, 0) is None
    low, high = pace.time_left(1900, 0) or (0, 0)
    assert low <= 1900 <= high
    assert pace.time_left(5, 10) is None


def test_nothing_is_told_from_less_than_a_second() -> None:
    """A first burst would promise a wonder."""
    pace = Pace()
    assert pace.time_left(1, 1) is None
    pace.add(5.0, 0, 0)
    assert pace.time_left(1, 1) is None
    pace.add(5.9, 100, 100)
    assert pace.time_left(1, 1) is None
    pace.add(6.0, 100, 100)
    assert pace.time_left(1, 1) is not None


def test_a_run_that_resumes_tells_of_itself() -> None:
    """What earlier runs did in which time is not known: the totals of this run begin at nothing."""
    pace = Pace()
    pace.add(0.0, 0, 0)
    pace.add(10.0, 1, 49)
    assert pace.time_left(10, 951) is None


# What is told


@pytest.mark.parametrize("seconds", [10, 100, 1000, 10_000])
def test_a_steady_run_ends_within_the_range(seconds: int) -> None:
    """Which is as narrow as chance allows for 2 shards a second."""
    low, high = steady(seconds, 2.0).time_left(2 * seconds, 2 * seconds * 1000) or (0, 0)
    assert low <= seconds <= high
    assert high - low < 6 * seconds / (2 * seconds) ** 0.5


@pytest.mark.parametrize(("before", "after"), [(10.0, 5.0), (5.0, 10.0), (10.0, 1.0)])
def test_a_run_that_has_changed_its_speed_ends_within_the_range(before: float, after: float) -> None:
    """Half of the machines are gone for two minutes: the rest may take as long as that says, or about as before."""
    pace = Pace()
    shards = 0.0
    for second in range(3600 + 120):
        shards += before if second < 3600 else after
        pace.add(float(second), int(shards), int(shards) * 1000)
    low, high = pace.time_left(36_000, 36_000_000) or (0, 0)
    assert low < 1.04 * min(36_000 / after, 36_000 / before)
    assert high > 0.96 * max(36_000 / after, 36_000 / before)


def test_a_pause_between_bursts_is_no_slower_speed() -> None:
    """Tasks of two minutes that bring twenty shards each: of the last minute, which brought none, nothing is told."""
    pace = Pace()
    for second in range(1200):
        shards = 20 * (second // 120)
        pace.add(float(second), shards, shards * 1000)
    low, high = pace.time_left(180, 180_000) or (0, 0)
    assert 600 < low <= 1200 <= high < 2500


def test_the_first_shard_of_few_says_little() -> None:
    """One in ten after a minute: the rest takes from 6 to 18 minutes."""
    pace = Pace()
    pace.add(0.0, 0, 0)
    pace.add(60.0, 1, 100)
    assert pace.time_left(9, 900) == (360.0, 1080.0)


@pytest.mark.parametrize(("total", "slots"), [(200, 1), (200, 4), (1000, 1), (1000, 4), (1000, 16)])
def test_tasks_of_chance_mostly_end_within_the_range(total: int, slots: int) -> None:
    """Shards take a random time, now and then a very long one: of what is told at any moment, four in five hold.

    The last tasks run beside idle slots, which no rate knows of: it is told when all have begun.
    """
    rng = random.Random(1)
    told_of, held = 0, 0
    for _ in range(60):
        free, ends = [0.0] * slots, []
        for _ in range(total):
            end_s = free[0] + rng.lognormvariate(2.0, 1.0)
            heapq.heapreplace(free, end_s)
            ends.append(end_s)
        ends.sort()
        now_s = int(rng.uniform(0.1, 0.7) * ends[-1])
        pace = Pace()
        for at_s in sorted({*range(0, now_s, max(1, now_s // 200)), now_s}):
            done = bisect.bisect(ends, at_s)
            pace.add(float(at_s), done, done * 1000)
        left = total - bisect.bisect(ends, now_s)
        told = pace.time_left(left, left * 1000)
        told_of += told is not None
        held += told is not None and told[0] <= ends[-slots] - now_s <= told[1]
    assert told_of > 50
    assert held > 0.8 * told_of


@given(
    st.lists(st.tuples(st.floats(0, 500), st.integers(0, 50), st.integers(0, 5000)), min_size=1, max_size=80),
    st.integers(0, 1000),
    st.integers(0, 10**6),
)
def test_a_range_is_a_range(steps: list[tuple[float, int, int]], shards_left: int, bytes_left: int) -> None:
    """Whatever happens: from a finite time to one that is no shorter."""
    pace = Pace()
    now_s, shards, size = 100.0, 0, 0
    for gap_s, more_shards, more_bytes in steps:
        now_s, shards, size = now_s + gap_s, shards + more_shards, size + more_bytes
        pace.add(now_s, shards, size)
        told = pace.time_left(shards_left, bytes_left)
        if told is not None:
            assert 0 <= told[0] <= told[1] < 10**12


# What is kept


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [100, 3000, 30_000])
def test_points_are_few_and_near_where_they_are_looked_for(seconds: int) -> None:
    """A working day of seconds is some hundreds of points; any time ago is met to an eighth, or a second."""
    pace = steady(seconds, 1.0)
    times = [point.time_s for point in pace._points]
    assert len(times) < 400
    assert (times[0], times[-1]) == (0.0, float(seconds))
    assert times == sorted(set(times))
    ago = RECENT_S
    while ago < seconds:
        nearest = min(abs(seconds - ago - time_s) for time_s in times)
        assert nearest <= max(1.0, ago / 8)
        ago *= 1.1


def test_a_long_silence_forgets_nothing_that_matters() -> None:
    """A driver that was stopped for an hour has its points from before it."""
    pace = steady(1000, 1.0)
    pace.add(4600.0, 1001, 1_001_000)
    assert len(pace._points) > 5


# How it is shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ((0.0, 0.0), "0 s"),
        ((0.2, 0.8), "0-1 s"),
        ((59.0, 119.0), "59-119 s"),
        ((59.0, 120.0), "0-2 min"),
        ((720.0, 1080.0), "12-18 min"),
        ((3000.0, 7300.0), "0-3 h"),
        ((86_400.0, 180_000.0), "1-3 d"),
        (None, "unknown"),
    ],
)
def test_a_range_is_shown_in_one_unit(seconds: tuple[float, float] | None, text: str) -> None:
    """Rounded outwards: what is promised is never less than what is known."""
    assert format_range(seconds) == text
