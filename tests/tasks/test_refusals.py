"""What a store refuses to each shard stops a run after a few; what it refuses to some does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from curate.tasks.events import Outcome, SchedulerState, ShardFailed
from curate.tasks.failure import FailureKind, Refusal
from curate.tasks.refusals import LEAST_S, LEAST_SHARDS, MOST_SHARDS, Refusals, refuses_all
from tests.tasks.driven import Driven, make

READ, WRITE = Refusal.READ, Refusal.WRITE


@pytest.mark.parametrize(
    ("refusal", "shards", "seconds", "elsewhere", "all_of_them"),
    [
        (WRITE, 1, 1e6, False, False),  # one shard, for itself, however often it is tried
        (WRITE, LEAST_SHARDS - 1, 1e6, True, False),
        (WRITE, LEAST_SHARDS, LEAST_S - 0.1, True, False),  # a right that was granted a moment ago
        (WRITE, LEAST_SHARDS, LEAST_S, False, True),
        (WRITE, 1000, LEAST_S, False, True),
        (READ, 1000, 1e6, False, False),  # neighbours may be in one folder
        (READ, LEAST_SHARDS, LEAST_S - 0.1, True, False),
        (READ, LEAST_SHARDS, LEAST_S, True, True),
    ],
)
def test_when_all_are_refused(
    refusal: Refusal, shards: int, seconds: float, elsewhere: bool, all_of_them: bool
) -> None:
    """Several shards, for as long as one is tried, none accepted; of reads, one from elsewhere among them."""
    assert refuses_all(refusal, shards, seconds, elsewhere=elsewhere) is all_of_them


def test_one_that_is_accepted_begins_the_count_anew() -> None:
    """So do the seconds, and whether one was from elsewhere."""
    refusals = Refusals()
    for shard in range(LEAST_SHARDS):
        assert not refusals.refused(READ, shard, float(shard), elsewhere=True)
    assert refusals.doubtful
    refusals.accepted()
    assert not refusals.doubtful
    for shard in range(LEAST_SHARDS):
        assert not refusals.refused(READ, shard, 1000.0 + shard, elsewhere=False)
    assert not refusals.refused(READ, 0, 2000.0, elsewhere=False)
    assert refusals.refused(READ, 9, 2000.0, elsewhere=True)


def test_reads_and_writes_are_counted_apart() -> None:
    """Two of each are no three of either."""
    refusals = Refusals()
    for shard in range(LEAST_SHARDS - 1):
        for refusal in Refusal:
            assert not refusals.refused(refusal, shard, 100.0 * shard, elsewhere=True)
    assert not refusals.doubtful


# What the scheduler does about it


def drive(driven: Driven, refused: Callable[[int], Refusal | None], each_s: float = 1.0) -> int:
    """Runs tasks in order, one second a shard, until the run is over; returns how many tries of shards were made."""
    tries = 0
    while not driven.finished:
        if not driven.flying:
            due_s = driven.scheduler.next_event_s()
            assert due_s is not None
            driven.at(max(due_s, driven.now_s))
            continue
        launch = next(iter(driven.flying.values()))
        for shard in launch.shards:
            tries += 1
            driven.now_s += each_s
            if (what := refused(shard)) is None:
                driven.done(launch, shard, seconds=each_s)
            else:
                driven.tell(ShardFailed(launch.task, shard, FailureKind.STORAGE, refused=what))
            if driven.finished:
                return tries
        driven.ended(launch)
    return tries


@pytest.mark.parametrize("each_s", [0.001, 1.0, 600.0])
@pytest.mark.parametrize(
    ("refusal", "state"), [(WRITE, SchedulerState.ABORTED), (READ, SchedulerState.FINISHED)], ids=["write", "read"]
)
def test_a_store_that_refuses_all_from_some_moment_on(refusal: Refusal, state: SchedulerState, each_s: float) -> None:
    """The run ends, with what was done, a failure that says why, and some seconds or some tries for nothing."""
    driven = make(5000, slots=2, max_in_flight=2)
    begun = iter(range(10**9))
    tries = drive(driven, lambda _: None if next(begun) < 10 else refusal, each_s)
    assert driven.finished == [state]
    scheduler = driven.scheduler
    assert (scheduler.done, scheduler.refused) == (10, refusal)
    assert scheduler.futile
    assert scheduler.failed >= 1
    assert tries * each_s <= 10 * each_s + 2 * LEAST_S or tries <= 10 + 5 * MOST_SHARDS
    (*_, last) = driven.took()
    assert (last.outcome, last.kind) == (Outcome.FAILED, FailureKind.STORAGE)


def test_outputs_that_took_minutes_each_are_refused_three_times() -> None:
    """No more than that is computed for nothing."""
    driven = make(5000, slots=1, max_in_flight=1)
    assert drive(driven, lambda _: WRITE, each_s=600.0) == LEAST_SHARDS


@pytest.mark.parametrize("refusal", Refusal)
@pytest.mark.parametrize("stays", [{150}, {100, 250, 399}, set(range(100, 103)), {397, 398, 399}])
def test_shards_that_are_refused_for_themselves(refusal: Refusal, stays: set[int]) -> None:
    """They fail after their tries, and all others are done, wherever they are in the plan."""
    driven = make(300, slots=4)
    drive(driven, lambda shard: refusal if shard in stays else None)
    assert driven.finished == [SchedulerState.FINISHED]
    assert (driven.scheduler.done, driven.scheduler.failed) == (300 - len(stays), len(stays))
    assert not driven.scheduler.futile


@pytest.mark.parametrize("first", [100, 200, 300])
def test_a_folder_that_cannot_be_read(first: int) -> None:
    """A third of the plan in a row, a minute each: the others are read, whether they come before or after."""
    driven = make(300, slots=4)
    drive(driven, lambda shard: READ if first <= shard < first + 100 else None, each_s=60.0)
    assert driven.finished == [SchedulerState.FINISHED]
    assert driven.scheduler.done == 200
    # Where nothing else is left, not all of the folder is tried.
    assert driven.scheduler.failed == 100 or first == 300


def test_what_runs_while_inputs_are_refused_may_end() -> None:
    """It was read before: it is computed once, and published."""
    driven = make(100, slots=2, max_in_flight=2)
    slow = driven.launches[0]
    while driven.scheduler.refused is None:
        others = [one for one in driven.flying.values() if one is not slow]
        if not others:
            driven.pass_(1.0)
            continue
        for shard in others[0].shards:
            driven.now_s += 1.0
            driven.tell(ShardFailed(others[0].task, shard, FailureKind.STORAGE, refused=READ))
        driven.ended(others[0])
    assert not driven.finished
    assert driven.cancelled == []
    driven.finish(slow)
    assert driven.finished == [SchedulerState.FINISHED]
    assert driven.scheduler.done == len(slow.shards)


def test_refusals_that_turn_into_other_failures() -> None:
    """What holds the others back is then over, and these are done."""
    driven = make(1000, slots=4)
    seen: set[int] = set()
    while not driven.finished:
        for launch in list(driven.flying.values()):
            for shard in launch.shards:
                driven.now_s += 0.001
                if shard in seen:
                    driven.failed(launch, shard, FailureKind.CORRUPT)
                elif len(seen) < MOST_SHARDS:
                    seen.add(shard)
                    driven.tell(ShardFailed(launch.task, shard, FailureKind.STORAGE, refused=WRITE))
                else:
                    driven.done(launch, shard, seconds=0.001)
            driven.ended(launch)
        driven.pass_(0.5)
    assert driven.finished == [SchedulerState.FINISHED]
    assert driven.scheduler.failed == len(seen) >= MOST_SHARDS
    assert driven.scheduler.unfinished == 0


def test_the_last_shards_are_refused() -> None:
    """Where nothing else is left, nothing is stopped: the run ends with all its shards tried, and failed."""
    driven = make(3, slots=4)
    drive(driven, lambda _: READ)
    assert driven.finished == [SchedulerState.FINISHED]
    assert (driven.scheduler.failed, driven.scheduler.futile) == (3, "")
