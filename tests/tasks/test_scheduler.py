"""The scheduler: how many tasks are in flight, what is bundled, what is news, and how a run ends."""

from __future__ import annotations

import random

import numpy as np
import pytest

from curate.errors import ConfigError
from curate.tasks.events import (
    Found,
    Launch,
    Outcome,
    Released,
    SchedulerState,
    ShardDone,
    ShardFailed,
    SlotsChanged,
    Stop,
    TaskEnded,
    TaskId,
    TaskStarted,
    Tick,
)
from curate.tasks.failure import FailureKind
from curate.tasks.policy import LEAST_WINDOW, Policy, max_failed_shards
from curate.tasks.scheduler import (
    LARGEST_BUNDLE,
    SHARD_OVERHEAD_BYTES,
    SHORTEST_BUNDLE_S,
    TRANSITIONS,
    IllegalTransitionError,
    Move,
    Scheduler,
    ShardState,
)
from curate.units import MIB
from tests.tasks.driven import Driven, bundle_of, make, said

# The window


@pytest.mark.parametrize(("slots", "window"), [(0, 16), (1, 16), (8, 16), (9, 18), (500, 1000)])
def test_the_window_is_twice_the_slots_and_never_less_than_sixteen(slots: int, window: int) -> None:
    """No slots at all still launch 16: pending tasks are what an autoscaler sees."""
    driven = make(3000, slots=slots)
    assert len(driven.launches) == window
    assert driven.scheduler.running_tasks == window
    assert driven.at(2000.0) == []


def test_max_in_flight_takes_the_place_of_the_window() -> None:
    """A limit holds on one slot as on a thousand, and a task that ends makes room for one."""
    driven = make(10, max_in_flight=3, slots=1000)
    assert len(driven.launches) == 3
    driven.tell(SlotsChanged(0))
    assert len(driven.finish(driven.launches[1])) == 1


def test_a_limit_that_would_run_nothing_is_refused() -> None:
    """With no task in flight a run would never end."""
    with pytest.raises(ValueError, match="max_in_flight is 0"):
        Policy(max_in_flight=0)


def test_fewer_slots_cancel_nothing_and_launch_nothing() -> None:
    """A cluster that shrinks keeps what is in flight; the next launch waits until that fits the smaller window."""
    driven = make(200, slots=20)
    assert len(driven.launches) == 40
    assert driven.tell(SlotsChanged(4)) == []
    for launch in driven.launches[:24]:
        assert driven.finish(launch) == []
    assert len(driven.finish(driven.launches[24])) == 1
    assert driven.cancelled == []


def test_more_slots_launch_at_once() -> None:
    """Nobody waits for a task to end before new nodes get work."""
    driven = make(200, slots=0)
    assert len(driven.launches) == 16
    assert len(driven.tell(SlotsChanged(50))) == 84
    assert driven.tell(SlotsChanged(50)) == []


# Bundles


def test_shards_run_one_by_one_until_a_rate_is_known() -> None:
    """Nothing is bundled on a guess: the first shards run alone, those of one size in plan order."""
    driven = make(40)
    assert [launch.shards for launch in driven.launches] == [(100 + k,) for k in range(LEAST_WINDOW)]


def test_large_shards_are_launched_first() -> None:
    """What is long would hold up the end. Shards of one size keep the order of the plan."""
    sizes = (np.random.default_rng(7).choice([0, 1, 5, 300], 500) * MIB).tolist()
    driven, order = make(500, size=sizes, max_in_flight=1, target_task_s=20.0), []
    while driven.flying:
        (launch,) = driven.flying.values()
        order += launch.shards
        driven.finish(launch)
    assert order == sorted(range(100, 600), key=lambda shard: -sizes[shard - 100])
    assert len(driven.launches) < 400


def test_bundles_hold_the_target_seconds_of_work() -> None:
    """At 1 s for a shard of this size, 30 s of work are 30 shards."""
    driven = make(10_000, target_task_s=30.0, slots=1)
    assert [len(launch.shards) for launch in driven.finish(driven.launches[0], seconds=1.0)] == [30]


def test_bundles_follow_bytes() -> None:
    """Of shards twice as large, with the overhead of a shard counted once each, half as many fit into the same time."""
    sizes = [2 * MIB] * 1000 + [MIB - SHARD_OVERHEAD_BYTES] * 100_000
    driven = make(len(sizes), size=sizes, target_task_s=60.0, max_in_flight=1, slots=1)
    cost = 2 * MIB + SHARD_OVERHEAD_BYTES
    while (launch := next(iter(driven.flying.values()))).shards[-1] < 1100:
        for shard in launch.shards:
            driven.tell(ShardDone(launch.task, shard, 2 * MIB, cost / MIB, computed=True))
        driven.ended(launch)
    large = sum(shard < 1100 for shard in launch.shards)
    assert len(driven.launches[1].shards) == 60 * MIB // cost
    assert len(launch.shards) == large + (60 * MIB - large * cost) // MIB
    driven.finish(launch, seconds=5 / 4)  # of MIB bytes each: as fast as before
    assert len(next(iter(driven.flying.values())).shards) in (59, 60)


def test_a_shard_larger_than_the_target_runs_alone() -> None:
    """A bundle holds at least one shard, whatever it takes."""
    driven = make(100, size=1000 * MIB, target_task_s=0.5, slots=1)
    driven.finish(driven.launches[0])
    assert all(len(launch.shards) == 1 for launch in driven.launches)
    assert len(driven.launches) == 17


def test_a_tiny_target_means_one_shard_a_task() -> None:
    """`--target-task-seconds 0.001` never bundles, however fast shards are."""
    driven = make(100, target_task_s=0.001)
    while driven.flying:
        driven.finish(next(iter(driven.flying.values())), seconds=0.01)
    assert [len(launch.shards) for launch in driven.launches] == [1] * 100
    assert driven.finished == [SchedulerState.FINISHED]


def test_a_bundle_is_never_larger_than_its_limit() -> None:
    """However fast shards are, the arguments of a task stay small."""
    driven = make(3 * LARGEST_BUNDLE, size=0, target_task_s=1e9, max_in_flight=1)
    assert driven.tell(ShardDone(TaskId(0), 100, 0, 0.0, computed=True)) == []
    (launch,) = driven.ended(driven.launches[0])
    assert launch.shards == tuple(range(101, 101 + LARGEST_BUNDLE))


def test_bundles_shrink_towards_the_end() -> None:
    """No bundle takes more than half of a slot's share of what is left, so that all slots finish together; and none
    is cut below the shortest."""
    shortest, seconds = 2, SHORTEST_BUNDLE_S / 2
    driven = make(1001, target_task_s=1000.0, max_in_flight=1)
    driven.finish(driven.launches[0], seconds=seconds)
    left, lengths = 1000, []
    while driven.flying:
        (launch,) = driven.flying.values()
        assert len(launch.shards) <= max(left / (2 * 4), shortest) + 1e-6
        left -= len(launch.shards)
        lengths.append(len(launch.shards))
        driven.finish(launch, seconds=seconds)
    assert lengths[0] == 125
    assert lengths == sorted(lengths, reverse=True)
    assert set(lengths[-4:-1]) == {shortest}
    assert driven.finished == [SchedulerState.FINISHED]


def test_outputs_that_were_there_say_nothing_about_the_rate() -> None:
    """A shard that another driver had done costs a look, not its bytes: bundles are not sized by it."""
    driven = make(100, slots=1)
    for launch in driven.launches[:10]:
        driven.done(launch, seconds=1e-6, computed=False)
        driven.ended(launch)
    assert [len(launch.shards) for launch in driven.launches] == [1] * 26


def test_arrays_do_as_well_as_lists() -> None:
    """The driver hands in NumPy arrays; launches hold plain ints, which pickle small and compare with everything."""
    driven = Driven(Scheduler(np.arange(5), np.full(5, MIB, dtype=np.int64), Policy()))  # type: ignore[arg-type]
    assert [launch.shards for launch in driven.launches] == [(k,) for k in range(5)]
    assert all(type(shard) is int for launch in driven.launches for shard in launch.shards)


# What is launched again


def test_what_failed_goes_before_what_is_new() -> None:
    """A shard that has to be tried again holds up the end longer than one that goes well."""
    driven = make(100, max_in_flight=1)
    (again,) = driven.ended(driven.launches[0], FailureKind.LOST)
    assert again.shards == (100,)


def test_an_end_without_new_work_is_shared_by_all_slots() -> None:
    """What a lost task leaves when nothing new is left is cut up: the run would otherwise wait for one slot that runs
    it whole, while the others have nothing to do."""
    driven, launch = bundle_of(100, slots=8)
    parts = driven.ended(launch, FailureKind.LOST)
    assert [len(part.shards) for part in parts] == [13] * 7 + [9]
    assert sorted(shard for part in parts for shard in part.shards) == list(range(100, 200))


def test_while_there_is_new_work_a_lost_task_stays_whole() -> None:
    """Every slot has something to do, and a task costs something."""
    driven, launch = bundle_of(100, more=100_000, slots=8, max_in_flight=1)
    (again,) = driven.ended(launch, FailureKind.LOST)
    assert again.shards == launch.shards


# What is news


def test_a_task_that_ends_well_has_reported_on_every_shard() -> None:
    """To say otherwise is a mistake of the caller, who has to say what became of the rest."""
    driven, launch = bundle_of(3)
    assert driven.scheduler.unreported(launch.task) == (100, 101, 102)
    with pytest.raises(ValueError, match=r"task 0 ended well, but 3 of its shards did not report \(first: 100\)"):
        driven.ended(launch)


@pytest.mark.parametrize("ended", [False, True])
def test_news_of_a_shard_that_the_task_does_not_hold_is_ignored(ended: bool) -> None:
    """A message that comes twice, or late, or for another's shard, changes nothing and is not booked."""
    driven, launch = bundle_of(3)
    driven.done(launch, 100)
    if ended:
        driven.ended(launch, FailureKind.LOST)
    before = (driven.scheduler.done, driven.scheduler.failed, driven.scheduler.attempts, driven.scheduler.unfinished)
    driven.took()
    for shard in [100, 99, 999, *([101, 102] if ended else [])]:
        driven.done(launch, shard)
        driven.failed(launch, shard, FailureKind.CORRUPT)
    ghost = Launch(TaskId(77), (101,), 1)
    driven.start(ghost)
    driven.done(ghost)
    driven.failed(ghost, 101, FailureKind.CORRUPT)
    driven.ended(ghost, FailureKind.LOST)
    scheduler = driven.scheduler
    assert (scheduler.done, scheduler.failed, scheduler.attempts, scheduler.unfinished) == before
    assert driven.took() == []
    assert scheduler.unreported(TaskId(77)) == ()


# Waiting


def test_a_shard_that_is_due_while_the_window_is_full_gives_no_time_to_wait_for() -> None:
    """Else its caller, who waits until then, would not wait at all, again and again."""
    driven = make(3, max_in_flight=1)
    driven.failed(driven.launches[0], 100, FailureKind.USER_ERROR)
    (second,) = driven.ended(driven.launches[0])
    assert driven.scheduler.next_event_s() == 1001.0
    assert driven.at(1001.5) == []
    assert driven.scheduler.next_event_s() is None
    assert [launch.shards for launch in driven.finish(second)] == [(100,)]


def test_shards_wait_out_their_own_backoff() -> None:
    """The earliest is told, and launched, first; none a moment too early."""
    driven = make(2)
    one, two = driven.launches
    driven.now_s = 1000.25
    driven.failed(two, 101, FailureKind.USER_ERROR)
    driven.now_s = 1001.0
    driven.failed(one, 100, FailureKind.USER_ERROR)
    driven.ended(one)
    driven.ended(two)
    assert driven.scheduler.next_event_s() == 1001.25
    assert driven.at(1001.2) == []
    assert [launch.shards for launch in driven.at(1001.25)] == [(101,)]
    assert driven.scheduler.next_event_s() == 1002.0


def test_backoffs_double_up_to_a_minute() -> None:
    """However often a shard is tried again, it is within a minute."""
    driven, waits = make(1, throttle_limit=9), []
    for _ in range(9):
        (launch,) = driven.flying.values()
        driven.failed(launch, 100, FailureKind.THROTTLED)
        driven.ended(launch)
        due_s = driven.scheduler.next_event_s()
        assert due_s is not None
        waits.append(due_s - driven.now_s)
        driven.at(due_s)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


# The table


def test_a_move_that_the_table_does_not_hold_is_refused() -> None:
    """Every pair of state and move is either in the table, or raises and leaves the shard where it was."""
    moves = {(state, move) for state in ShardState for move in Move}
    assert set(TRANSITIONS) < moves
    for state, move in sorted(moves):
        scheduler = make(1).scheduler
        scheduler._states[100] = state
        if (state, move) in TRANSITIONS:
            scheduler._move(100, move)
            assert scheduler._states[100] == TRANSITIONS[state, move]
        else:
            with pytest.raises(IllegalTransitionError, match=rf"shard 100 is {state.name}: it cannot {move}"):
                scheduler._move(100, move)
            assert scheduler._states[100] == state


def test_done_and_failed_are_final() -> None:
    """What is over stays over, whatever its other copy says."""
    assert not {state for state, _ in TRANSITIONS} & {ShardState.DONE, ShardState.FAILED}


# The end


def test_nothing_to_do_is_finished() -> None:
    """A run without shards ends with its first event, whatever that is."""
    for first in (SlotsChanged(4), Tick(), Stop()):
        scheduler = Scheduler([], [])
        assert [type(action).__name__ for action in scheduler.handle(first, 0.0)] == ["Finish"]
        assert scheduler.state is SchedulerState.FINISHED
        assert (scheduler.unfinished, scheduler.next_event_s()) == (0, None)


def test_stopped_it_launches_nothing_and_finishes_with_what_runs() -> None:
    """Not even a shard whose backoff is over, or one that was lost; what is left stays unfinished."""
    driven = make(100)
    launches = list(driven.launches)
    driven.failed(launches[0], 100, FailureKind.USER_ERROR)
    driven.ended(launches[0])
    more = driven.launches[16:]
    assert driven.tell(Stop()) == []
    assert driven.scheduler.state is SchedulerState.STOPPING
    assert driven.scheduler.next_event_s() is None
    driven.ended(launches[1], FailureKind.LOST)
    for launch in [*launches[2:], *more]:
        assert driven.scheduler.state is SchedulerState.STOPPING
        assert driven.at(driven.now_s + 99.0) == []
        assert driven.finish(launch) == []
    assert driven.finished == [SchedulerState.FINISHED]
    assert driven.scheduler.unfinished == 100 - 15


def test_which_shard_has_run_longest() -> None:
    """Of those that can have a slot: since its task was last heard of, or began."""
    driven = make(8, slots=2)
    scheduler = driven.scheduler
    first, second, queued, *_ = driven.launches
    assert scheduler.longest() == (first.task, first.shards[0], 1000.0)
    driven.now_s = 1005.0
    driven.done(first, first.shards[0])
    driven.ended(first)
    assert scheduler.longest() == (second.task, second.shards[0], 1000.0)
    driven.finish(second)
    found = scheduler.longest()
    assert found is not None
    assert found[0] == queued.task
    assert Scheduler([1], [1]).longest() is None


def test_to_stop_twice_is_to_stop() -> None:
    """And before anything runs it is the end."""
    driven = make(3)
    assert driven.tell(Stop()) == driven.tell(Stop()) == []
    scheduler = Scheduler([1], [1])
    assert [type(action).__name__ for action in scheduler.handle(Stop(), 0.0)] == ["Finish"]


def test_aborted_as_soon_as_more_than_the_limit_have_failed() -> None:
    """The limit itself is tolerated; one more, and nothing is launched again."""
    driven = make(100, max_failed=2)
    for number, launch in enumerate(driven.launches[:3]):
        assert driven.scheduler.state is SchedulerState.ACTIVE
        driven.failed(launch, 100 + number, FailureKind.CORRUPT)
        driven.ended(launch)
    assert driven.finished == [SchedulerState.ABORTED]
    assert len(driven.launches) == 18
    assert driven.at(1e9) == []


@pytest.mark.parametrize("how", ["finished", "aborted", "stopped"])
def test_nothing_is_done_about_anything_after_the_end(how: str) -> None:
    """Whatever still comes in, of tasks in flight or not, has no effect at all."""
    driven = make(1 if how == "finished" else 40, max_failed=0)
    one, two = driven.launches[0], driven.launches[-1]
    if how == "finished":
        driven.finish(one)
    elif how == "aborted":
        driven.failed(one, 100, FailureKind.CORRUPT)
    else:
        driven.tell(Stop())
        for launch in driven.launches:
            driven.finish(launch)
    assert len(driven.finished) == 1
    scheduler = driven.scheduler
    before = (scheduler.state, scheduler.done, scheduler.failed, scheduler.launched, scheduler.attempts)
    for event in (
        SlotsChanged(100),
        TaskStarted(two.task),
        ShardDone(two.task, two.shards[0], 1, 1.0, computed=True),
        ShardFailed(two.task, two.shards[0], FailureKind.USER_ERROR),
        TaskEnded(two.task, FailureKind.LOST),
        Tick(),
        Stop(),
    ):
        assert scheduler.handle(event, 1e6) == []
    assert (scheduler.state, scheduler.done, scheduler.failed, scheduler.launched, scheduler.attempts) == before


def test_a_task_that_never_ends_after_its_last_shard_is_cancelled() -> None:
    """All that it was to do exists: nobody waits longer than a minute for what else its worker does."""
    driven = make(1)
    (launch,) = driven.launches
    driven.at(1000.0)
    driven.done(launch)
    driven.pass_(60.0)
    assert (driven.cancelled, driven.finished) == ([], [])
    driven.pass_(1.0)
    assert (driven.cancelled, driven.finished) == ([launch.task], [SchedulerState.FINISHED])
    assert said(driven) == [(100, Outcome.DONE)]


def test_a_finished_shard_costs_a_handful_of_bytes() -> None:
    """Nothing is kept of what is over but a byte a shard, and what was there from the start: order, costs, bounds."""
    limits = {"user_error_retries": 0, "retry_later_limit": 1, "memory_limit": 2, "loss_limit": 1}
    driven = make(2_000, size=0, max_in_flight=1, target_task_s=0.001, **limits)
    kinds = [FailureKind.USER_ERROR, FailureKind.RETRY_LATER, FailureKind.OUT_OF_MEMORY, FailureKind.LOST]
    chance = random.Random(1)
    while not driven.finished:
        if not driven.flying:
            due_s = driven.scheduler.next_event_s()
            assert due_s is not None
            driven.at(due_s)
        (launch,) = driven.flying.values()
        kind = chance.choice(kinds)
        if chance.random() < 0.8:
            driven.finish(launch)
        elif kind in (FailureKind.LOST, FailureKind.OUT_OF_MEMORY):
            driven.ended(launch, kind)
        else:
            driven.failed(launch, launch.shards[0], kind)
            driven.ended(launch)
    scheduler = driven.scheduler
    kept = (scheduler._running, scheduler._strikes, scheduler._ready, scheduler._waiting, scheduler._memory)
    assert [len(one) for one in kept] == [0] * 5
    assert scheduler._told_to_wait == 0
    assert scheduler.done + scheduler.failed == 2_000
    assert scheduler.failed > 50
    arrays = (scheduler._order, scheduler._costs)
    assert sum(array.nbytes for array in arrays) + len(scheduler._states) <= 9 * 2_100


# --max-failed-shards


@pytest.mark.parametrize(
    ("text", "total", "limit"), [("0", 10, 0), ("3", 10, 3), (" 5 ", 10, 5), ("1%", 1000, 10), ("1%", 99, 0)]
)
def test_max_failed_shards_is_a_number_or_a_percentage(text: str, total: int, limit: int) -> None:
    """A percentage of fewer shards than it would take is none."""
    assert max_failed_shards(text, total) == limit


def test_a_percentage_is_exact() -> None:
    """Of 100 shards, 29 % tolerated 28: a product of floats is a little less than the number that it stands for."""
    tenths = [(number, total) for number in range(1, 1001) for total in (7, 100, 1_000)]
    wrong = [one for one in tenths if max_failed_shards(f"{one[0] / 10} %", one[1]) != one[0] * one[1] // 1000]
    assert wrong == []


@pytest.mark.parametrize("text", ["-1", "many", "", "1.5", "101%", "0%", "%", "٣", "1_0"])
def test_a_limit_that_is_neither_is_refused(text: str) -> None:
    """It says what it expected."""
    with pytest.raises(ConfigError, match=r"percentage"):
        max_failed_shards(text, 10)


# Shards of other drivers


def held(n: int, others: int, **policy: object) -> Driven:
    """Returns a scheduler of n shards, and of others that are held back, ranked behind them."""
    flags = [False] * n + [True] * others
    return Driven(Scheduler(range(n + others), [MIB] * (n + others), Policy(**policy), flags))  # type: ignore[arg-type]


def test_what_is_held_is_launched_when_it_is_released() -> None:
    """In the order in which it is released, after what was there before; the run is not over before it is."""
    driven = held(2, 3, max_in_flight=1)
    assert driven.scheduler.idle == 0
    driven.tell(Released([4, 2]))
    while driven.flying:
        driven.finish(next(iter(driven.flying.values())))
    assert [shard for launch in driven.launches for shard in launch.shards] == [0, 1, 4, 2]
    assert (driven.finished, driven.scheduler.held().tolist()) == ([], [3])
    assert driven.scheduler.idle == 4
    driven.tell(Released([3]))
    driven.finish(driven.launches[-1])
    assert driven.finished == [SchedulerState.FINISHED]


def test_what_others_have_done_is_not_launched() -> None:
    """Held back or not; with the last shard the run is over. What runs goes on."""
    driven = held(4, 2, max_in_flight=1)
    driven.tell(Found([2, 3, 5]))
    assert (driven.scheduler.done, driven.scheduler.unfinished) == (3, 3)
    driven.finish(driven.launches[0])
    driven.finish(driven.launches[1])
    assert [launch.shards for launch in driven.launches] == [(0,), (1,)]
    driven.tell(Found([4]))
    assert driven.finished == [SchedulerState.FINISHED]


def test_slots_are_idle_when_there_is_nothing_to_launch() -> None:
    """Without any slots, one: a cluster starts them for what is launched. None once the run is to stop."""
    driven = held(2, 3)
    assert driven.scheduler.idle == 2
    driven.tell(SlotsChanged(0))
    assert driven.scheduler.idle == 0
    for launch in driven.launches[:2]:
        driven.finish(launch)
    assert driven.scheduler.idle == 1
    driven.tell(Stop())
    assert driven.scheduler.idle == 0


def test_only_what_was_not_launched_can_be_found() -> None:
    """What runs reports itself."""
    driven = held(1, 1)
    with pytest.raises(IllegalTransitionError, match="cannot find"):
        driven.tell(Found([0]))
