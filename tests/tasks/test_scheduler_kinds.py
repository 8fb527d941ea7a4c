"""The scheduler's failure table: each kind with its own budget, its own wait, and what becomes of a bundle."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from curate.tasks import scheduler
from curate.tasks.events import (
    Launch,
    Outcome,
    SchedulerState,
    ShardFailed,
    ShardWaiting,
    SlotsChanged,
    Stop,
    TaskId,
    Tick,
)
from curate.tasks.failure import FailureKind
from curate.tasks.scheduler import FAREWELL_S, PAUSE_S, SHARD_OVERHEAD_BYTES
from curate.units import GIB, MIB
from tests.tasks.driven import Driven, bundle_of, make, said

K = FailureKind
DONE, RETRY, FAILED, COPY_FAILED = Outcome.DONE, Outcome.RETRY, Outcome.FAILED, Outcome.COPY_FAILED


@dataclass(frozen=True)
class Row:
    """What the table says of a kind."""

    tries: int
    """At which the shard is given up."""
    waits_s: tuple[float, ...]
    """Between the tries."""
    task: bool = False
    """Whether it ends the task, or its shard alone."""


AT_ONCE = (0.0,) * 20
DOUBLING = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, *(60.0,) * 14)

TABLE = {
    K.THROTTLED: Row(21, DOUBLING),
    K.STORAGE: Row(4, DOUBLING[:3]),
    K.DISK_FULL: Row(4, DOUBLING[:3]),
    K.LOST: Row(21, AT_ONCE, task=True),
    K.UNSERVED: Row(21, DOUBLING, task=True),
    K.CRASHED: Row(3, DOUBLING[:2], task=True),
    K.OUT_OF_MEMORY: Row(3, AT_ONCE[:2], task=True),
    K.TIMED_OUT: Row(3, DOUBLING[:2], task=True),
    K.USER_ERROR: Row(4, DOUBLING[:3]),
    K.RETRY_LATER: Row(21, DOUBLING),
    K.CORRUPT: Row(1, ()),
    K.FOREIGN: Row(6, AT_ONCE[:5]),
    K.MISCONFIGURED: Row(1, ()),
}


def fail(driven: Driven, launch: Launch, kind: FailureKind, after_s: float = 0.0) -> None:
    """Lets a task of one shard fail, in the way in which this kind shows."""
    (shard,) = launch.shards
    if kind is K.TIMED_OUT:
        driven.start(launch)
        driven.pass_(102.0)
        assert driven.cancelled[-1] == launch.task
        driven.ended(launch, K.LOST)
    elif TABLE[kind].task:
        driven.ended(launch, kind)
    else:
        driven.failed(launch, shard, kind, after_s)
        driven.ended(launch)


def test_every_kind_is_in_the_table() -> None:
    """A kind without a row would have no budget."""
    assert set(TABLE) == set(FailureKind)


@pytest.mark.parametrize("kind", FailureKind)
def test_a_shard_that_always_fails_is_given_up_after_its_budget(kind: FailureKind) -> None:
    """After exactly so many tries, as far apart as the table says; that is booked once, as is every try."""
    row, waits = TABLE[kind], []
    driven = make(1, task_timeout_s=100.0)
    for number in range(row.tries):
        (launch,) = driven.flying.values()
        assert launch.attempt == number + 1
        ended_s = driven.now_s + (102.0 if kind is K.TIMED_OUT else 0.0)
        fail(driven, launch, kind)
        if number + 1 < row.tries:
            due_s = driven.scheduler.next_event_s()
            waits.append(0.0 if due_s is None else due_s - ended_s)
            if due_s is not None:
                assert driven.at(due_s - 0.001) == []
                driven.at(due_s)
    assert tuple(waits) == row.waits_s
    assert [(one.outcome, one.kind) for one in driven.took()] == [(RETRY, kind)] * (row.tries - 1) + [(FAILED, kind)]
    assert driven.finished == [SchedulerState.FINISHED]
    assert (driven.scheduler.failed, driven.scheduler.attempts) == (1, row.tries)


def test_a_full_disk_ends_the_run() -> None:
    """Once one shard was given up for it: there is no room for the others either, and none of them is launched."""
    driven = make(50, max_in_flight=1)
    for number in range(4):
        (launch,) = driven.flying.values()
        driven.failed(launch, launch.shards[0], K.DISK_FULL)
        assert bool(driven.finished) == (number == 3)
        if number < 3:
            driven.ended(launch)
            due_s = driven.scheduler.next_event_s()
            while launch.shards[0] not in [one.shards[0] for one in driven.flying.values()]:
                for other in list(driven.flying.values()):
                    driven.finish(other)
                driven.at(due_s)
    assert driven.finished == [SchedulerState.ABORTED]
    assert driven.scheduler.failed == 1
    assert driven.scheduler.unfinished > 0


def unserved(driven: Driven, launch: Launch) -> None:
    driven.ended(launch, K.UNSERVED)


def test_of_a_task_that_was_not_served_all_shards_wait_alike() -> None:
    """None is suspected, and each runs alone then; what was never launched is held back until one is served."""
    driven, launch = bundle_of(5, more=30, slots=4)
    others = [one for one in driven.flying.values() if one.task != launch.task]
    for one in others:
        driven.finish(one)
    before = driven.scheduler.launched
    driven.took()
    unserved(driven, launch)
    told = [(one.shard, one.outcome, one.kind, one.tries, one.wait_s) for one in driven.took()]
    assert told == [(shard, RETRY, K.UNSERVED, 1, 1.0) for shard in launch.shards]
    assert all(len(one.shards) == 1 for one in driven.launches[before:])


def test_what_serves_none_stops_the_run() -> None:
    """After a quarter of an hour without a shard that was computed. None is blamed but those that had all their tries,
    and what runs may end."""
    driven = make(1000, slots=4, max_in_flight=4)
    runs = next(iter(driven.flying.values()))
    began_s = driven.now_s
    while driven.scheduler.state is SchedulerState.ACTIVE:
        for launch in list(driven.flying.values()):
            if launch.task != runs.task:
                unserved(driven, launch)
        if driven.scheduler.state is SchedulerState.ACTIVE:
            due_s = driven.scheduler.next_event_s()
            assert due_s is not None
            driven.at(due_s)
    assert driven.now_s - began_s > 900.0
    assert driven.scheduler.futile == scheduler.UNSERVED
    # Those that were tried for the last time in that moment.
    assert 1 <= driven.scheduler.failed <= 3
    # As many as could be in flight have asked, and no more.
    assert len({launch.shards for launch in driven.launches}) <= 8
    assert driven.finished == []
    driven.finish(runs)
    assert driven.finished == [SchedulerState.FINISHED]


def test_a_shard_alone_that_is_never_served_stops_nobody() -> None:
    """It may be larger than what there is room for: it fails after its tries, and the others are done."""
    driven = make(200, slots=2)
    poison = driven.launches[0].shards[0]
    while not driven.finished:
        for launch in list(driven.flying.values()):
            if poison in launch.shards:
                driven.ended(launch, K.UNSERVED)
            else:
                driven.finish(launch)
        due_s = driven.scheduler.next_event_s()
        if due_s is not None and not driven.flying:
            driven.at(due_s)
    assert driven.finished == [SchedulerState.FINISHED]
    assert (driven.scheduler.failed, driven.scheduler.done) == (1, 199)
    assert driven.scheduler.futile == ""


def test_the_time_limit_of_a_shard_that_is_held_up_does_not_run() -> None:
    """It waits for an actor which works for another task: that one alone runs out of time, and this one once all of the
    time that was its own is over, however often it is held up in between."""
    driven = make(2, task_timeout_s=100.0, speculate=False)
    poison, innocent = driven.flying.values()
    for launch in (poison, innocent):
        driven.start(launch)
    begun_s = driven.now_s
    driven.at(begun_s)
    assert not driven.scheduler.looks(begun_s + 0.1)
    while driven.now_s < begun_s + 150.0:
        driven.now_s += 1.0
        assert driven.scheduler.looks(driven.now_s)
        driven.tell(Tick(frozenset({innocent.task})))
    assert driven.cancelled == [poison.task]
    own_s = 1.0
    while own_s < 99.0:
        for held_up in (frozenset[int](), frozenset({innocent.task})):
            driven.now_s += 1.0
            driven.tell(Tick(held_up))
        own_s += 1.0
        assert driven.cancelled == [poison.task]
    driven.pass_(4.0)
    assert driven.cancelled == [poison.task, innocent.task]


@pytest.mark.parametrize("pause_s", [25.0, PAUSE_S - 1.0, PAUSE_S + 10.0])
def test_a_pause_of_the_driver_is_not_that_of_a_shard_that_was_held_up(pause_s: float) -> None:
    """What it was when it was last seen it may have been until now."""
    driven = make(1, task_timeout_s=20.0, speculate=False)
    (launch,) = driven.flying.values()
    driven.start(launch)
    driven.at(driven.now_s)
    driven.now_s += 1.0
    driven.tell(Tick(frozenset({launch.task})))
    driven.now_s += pause_s
    driven.tell(Tick())
    driven.pass_(18.0)
    assert driven.cancelled == []
    driven.pass_(4.0)
    assert driven.cancelled == [launch.task]


def test_what_is_held_up_gets_no_copy() -> None:
    """It would wait for the same actors."""
    driven = make(40, slots=2)
    slow = driven.launches[0]
    driven.start(slow)
    held_up = frozenset({slow.task})
    while len(driven.flying) > 1:
        other = next(one for one in driven.flying.values() if one is not slow)
        driven.start(other)
        driven.now_s += 1.0
        driven.finish(other)
        driven.tell(Tick(held_up))
    for _ in range(1000):
        driven.now_s += 1.0
        driven.tell(Tick(held_up))
    assert [one for one in driven.launches if one.copy_of is not None] == []
    driven.now_s += 1.0
    driven.tell(Tick())
    assert [one.copy_of for one in driven.launches if one.copy_of is not None] == [slow.task]


def test_each_kind_has_its_own_count() -> None:
    """A shard that used up all budgets but one of each kind is still tried, and done if that goes well."""
    driven = make(1, task_timeout_s=100.0)
    total = 0
    for kind, row in TABLE.items():
        for _ in range(row.tries - 1):
            (launch,) = driven.flying.values()
            total += 1
            assert launch.attempt == total
            fail(driven, launch, kind)
            due_s = driven.scheduler.next_event_s()
            if due_s is not None:
                driven.at(due_s)
    (launch,) = driven.flying.values()
    driven.finish(launch)
    assert (driven.scheduler.done, driven.scheduler.failed, driven.scheduler.attempts) == (1, 0, total + 1)


@pytest.mark.parametrize("kind", FailureKind)
def test_after_a_crash_it_runs_where_nothing_has_run(kind: FailureKind) -> None:
    """What a worker died of may be what another shard had left behind there. No other failure costs a new process."""
    driven = make(1, task_timeout_s=100.0)
    (launch,) = driven.flying.values()
    assert not launch.fresh
    fail(driven, launch, kind)
    driven.pass_(2.0)
    assert [one.fresh for one in driven.flying.values()] == ([] if TABLE[kind].tries == 1 else [kind is K.CRASHED])


@pytest.mark.parametrize("kind", FailureKind)
def test_failures_of_another_kind_leave_a_budget_as_it_is(kind: FailureKind) -> None:
    """They neither use it up nor add to it."""
    driven = make(1, task_timeout_s=100.0)
    other = K.LOST if kind is K.THROTTLED else K.THROTTLED
    for number in range(TABLE[kind].tries):
        for one in (other, kind) if number < 3 else (kind,):
            assert not driven.finished
            (launch,) = driven.flying.values()
            fail(driven, launch, one)
            due_s = driven.scheduler.next_event_s()
            if due_s is not None:
                driven.at(due_s)
    assert driven.took()[-1].kind is kind
    assert driven.scheduler.failed == 1


# What becomes of a bundle


def test_a_failed_shard_is_retried_alone_while_its_bundle_goes_on() -> None:
    """A poison shard takes none with it: the others of its task are done by that task."""
    driven, launch = bundle_of(5)
    driven.failed(launch, 100, K.USER_ERROR)
    driven.done(launch, *launch.shards[1:])
    assert driven.ended(launch) == []
    assert said(driven) == [(100, RETRY), *((shard, DONE) for shard in range(101, 105))]
    assert driven.at(1000.9) == []
    assert [(again.shards, again.attempt) for again in driven.at(1001.0)] == [((100,), 2)]


@pytest.mark.parametrize("kind", [K.CRASHED, K.TIMED_OUT, K.OUT_OF_MEMORY])
def test_a_task_that_died_strikes_the_shard_that_it_died_of(kind: FailureKind) -> None:
    """It runs alone from then on; the others are bundled anew, in halves, and at once. None of them is an attempt
    number 1 again: any may have its output, for word of small shards travels slower than they end."""
    driven, launch = bundle_of(8)
    driven.done(launch, 100, 101)
    again = driven.ended(launch, kind, suspect=104)
    at_once = [((102, 103, 105), 2), ((106, 107), 2)]
    assert [(one.shards, one.attempt) for one in again[:2]] == at_once
    assert said(driven)[2:] == [(104, RETRY)]
    again += driven.at(1001.0)
    assert [(one.shards, one.attempt) for one in again[2:]] == [((104,), 2)]
    assert driven.scheduler.attempts == 3


@pytest.mark.parametrize("kind", [K.CRASHED, K.OUT_OF_MEMORY])
@pytest.mark.parametrize("suspects", [2, 3, 10])
def test_a_task_that_died_of_one_of_several_strikes_none(kind: FailureKind, suspects: int) -> None:
    """They run again together, in their order, as a second try, which tells; the first of them is told of as lost. No
    shard asks for more memory, or runs in a process of its own, for what another has done."""
    driven, launch = bundle_of(9)
    driven.done(launch, 100)
    again = driven.ended(launch, kind, suspect=104, suspects=suspects, peak_bytes=GIB)
    last = min(104 + suspects, 109)
    behind = tuple(range(last, 109))
    together = next(one for one in again if one.shards[0] == 104)
    assert together.shards == tuple(range(104, last))
    assert {shard for one in again for shard in one.shards} == {101, 102, 103, *together.shards, *behind}
    assert {(one.attempt, one.memory, one.fresh) for one in again} == {(2, None, False)}
    assert [(one.shard, one.outcome, one.kind) for one in driven.took()[1:]] == [(104, RETRY, K.LOST)]
    driven.ended(together, kind, suspect=105, peak_bytes=GIB)
    assert [(one.shard, one.outcome, one.kind) for one in driven.took()] == [(105, RETRY, kind)]


def test_where_nobody_looked_the_first_shard_without_a_report_is_suspected() -> None:
    """Shards run in order. So it is where the suspect is none of the task's."""
    for suspect in (None, 100, 999):
        driven, launch = bundle_of(8)
        driven.done(launch, 100, 101)
        driven.ended(launch, K.CRASHED, suspect)
        assert said(driven)[2:] == [(102, RETRY)]


def test_a_culprit_deep_in_a_bundle_is_found_in_few_crashes() -> None:
    """A worker that dies before it says which shards it has done: the search halves, it does not go one by one."""
    driven, crashes = bundle_of(1000)[0], 0
    while not driven.finished:
        for launch in list(driven.flying.values()):
            if 800 in launch.shards:
                crashes += 1
                driven.ended(launch, K.CRASHED)
            else:
                driven.finish(launch)
        if not driven.finished:
            driven.pass_(10.0)
    assert (driven.scheduler.done, driven.scheduler.failed) == (999, 1)
    assert crashes <= 3 + 10  # its own three, and one for each halving of a thousand


def test_a_lost_task_is_queued_again_whole() -> None:
    """Every shard without a report runs again, in the same order and at once; each is struck."""
    driven, launch = bundle_of(6)
    driven.done(launch, 100)
    again = driven.ended(launch, K.LOST, suspect=103)
    assert said(driven)[1:] == [(shard, RETRY) for shard in range(101, 106)]
    assert [(one.shards, one.attempt) for one in again] == [((101, 102, 103, 104, 105), 2)]


def test_a_task_that_is_lost_again_is_queued_in_halves() -> None:
    """It may be too long for the nodes it gets."""
    driven, launch = bundle_of(5)
    (again,) = driven.ended(launch, K.LOST)
    halves = driven.ended(again, K.LOST)
    assert [(half.shards, half.attempt) for half in halves] == [((100, 101, 102), 3), ((103, 104), 3)]


def test_a_shard_that_takes_its_nodes_down_is_given_up_alone() -> None:
    """Its neighbours in the bundle are lost a few times with it, and then done."""
    driven, _ = bundle_of(100)
    while not driven.finished:
        for launch in list(driven.flying.values()):
            if 142 in launch.shards:
                driven.ended(launch, K.LOST)
            else:
                driven.finish(launch)
    assert (driven.scheduler.done, driven.scheduler.failed) == (99, 1)


def test_lost_too_often_gives_up_only_those_that_were() -> None:
    """Shards of one bundle may have been lost different numbers of times."""
    driven, launch = bundle_of(2, loss_limit=1)
    (again,) = driven.ended(launch, K.LOST)
    driven.failed(again, 101, K.USER_ERROR)
    driven.took()
    driven.ended(again, K.LOST)
    assert said(driven) == [(100, FAILED)]
    (last,) = driven.at(1001.0)
    assert (last.shards, last.attempt) == ((101,), 3)


# The last try


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_the_last_try_is_known_as_such(retries: int) -> None:
    """Exactly the launch after whose user error the shard is given up; failures of other kinds do not matter."""
    driven = make(1, user_error_retries=retries)
    errors = 0
    for kind in [K.LOST, K.USER_ERROR, K.CRASHED, K.USER_ERROR, K.RETRY_LATER, K.USER_ERROR, K.THROTTLED, K.USER_ERROR]:
        (launch,) = driven.flying.values()
        assert launch.last == (errors == retries)
        fail(driven, launch, kind)
        errors += kind is K.USER_ERROR
        if errors > retries:
            break
        due_s = driven.scheduler.next_event_s()
        if due_s is not None:
            driven.at(due_s)
    assert driven.took()[-1].outcome is FAILED
    assert errors == retries + 1


@pytest.mark.parametrize("retries", [0, 1])
def test_a_bundle_is_a_last_try_only_without_retries(retries: int) -> None:
    """It holds shards that never failed; with no retries at all it is the last try of each."""
    _, launch = bundle_of(5, user_error_retries=retries)
    assert launch.last == (retries == 0)


# Retry later


@pytest.mark.parametrize(("after_s", "waits"), [(0.0, (1, 2, 4)), (3.0, (3, 3, 4)), (3600.0, (3600, 3600, 3600))])
def test_retry_later_waits_as_long_as_it_was_asked_to(after_s: float, waits: tuple[float, ...]) -> None:
    """At least; what asks for no time, again and again, waits longer each time as any failure does."""
    driven, waited = make(1), []
    for _ in waits:
        (launch,) = driven.flying.values()
        assert not launch.last
        fail(driven, launch, K.RETRY_LATER, after_s)
        due_s = driven.scheduler.next_event_s()
        assert due_s is not None
        waited.append(due_s - driven.now_s)
        assert driven.at(due_s - 0.001) == []
        driven.at(due_s)
    assert tuple(waited) == waits


def test_a_service_that_is_down_is_not_asked_for_every_shard() -> None:
    """A window of shards that were told to come later holds new ones back, until the first of them is due."""
    driven = make(1000)
    while driven.flying:
        launch = next(iter(driven.flying.values()))
        driven.failed(launch, launch.shards[0], K.RETRY_LATER, after_s=100.0)
        driven.ended(launch)
    assert len(driven.launches) == 16 + 15
    assert driven.scheduler.next_event_s() == 1100.0
    again = driven.at(1100.0)
    assert [launch.attempt for launch in again] == [2] * 16
    for launch in again:
        driven.finish(launch)
    while driven.flying:
        driven.finish(next(iter(driven.flying.values())))
    assert driven.finished == [SchedulerState.FINISHED]
    assert driven.scheduler.done == 1000


def test_waiting_shards_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were every one of a million to fail, new ones are launched only as others have been tried again."""
    monkeypatch.setattr(scheduler, "MOST_WAITING", 50)
    driven = make(1000)
    while driven.flying:
        launch = next(iter(driven.flying.values()))
        driven.failed(launch, launch.shards[0], K.STORAGE)
        driven.ended(launch)
    assert len(driven.launches) == 50 + 15
    assert len(driven.at(1001.0)) == 16


def test_other_failures_hold_nothing_back() -> None:
    """A storm of them is no reason not to try the shards that have not failed."""
    driven = make(1000)
    for _ in range(1000):
        launch = next(iter(driven.flying.values()))
        driven.failed(launch, launch.shards[0], K.THROTTLED)
        driven.ended(launch)
    assert len(driven.launches) == 1000


# Out of memory


@pytest.mark.parametrize(
    ("declared", "peak", "asked"),
    [
        (None, 0, [2 * GIB, 4 * GIB]),
        (None, 3 * GIB, [6 * GIB, 12 * GIB]),
        (5 * GIB, 3 * GIB, [10 * GIB, 20 * GIB]),
        (100 * MIB, 200 * MIB, [2 * GIB, 4 * GIB]),
    ],
)
def test_out_of_memory_asks_for_twice_as_much(declared: int | None, peak: int, asked: list[int]) -> None:
    """As what was asked for, as it held at its peak, or as 1 GiB: whichever is most. At once, and alone."""
    driven, launch = bundle_of(1, declared_memory=declared)
    for want in asked:
        assert launch.memory is None or launch.memory == want // 2
        (launch,) = driven.ended(launch, K.OUT_OF_MEMORY, peak_bytes=peak)
        assert launch.memory == want
    driven.finish(launch)
    assert driven.finished == [SchedulerState.FINISHED]


def test_nobody_else_asks_for_more() -> None:
    """The rest of its bundle runs with what every task has."""
    driven, launch = bundle_of(5)
    again = driven.ended(launch, K.OUT_OF_MEMORY, suspect=102)
    assert {one.shards: one.memory for one in again} == {(100, 101): None, (103, 104): None, (102,): 2 * GIB}


def test_more_than_the_largest_node_has_is_not_asked_for() -> None:
    """It would wait for ever. What runs out of memory there is given up: there is no more to give."""
    driven, launch = bundle_of(1, largest_memory=3 * GIB, memory_limit=100)
    (launch,) = driven.ended(launch, K.OUT_OF_MEMORY)
    assert launch.memory == 2 * GIB
    (launch,) = driven.ended(launch, K.OUT_OF_MEMORY)
    assert launch.memory == 3 * GIB
    driven.ended(launch, K.OUT_OF_MEMORY)
    assert said(driven) == [(100, RETRY), (100, RETRY), (100, FAILED)]


def test_a_task_that_had_all_there_is_from_the_start_is_given_up_at_once() -> None:
    """It was declared to take the largest node."""
    driven, launch = bundle_of(1, largest_memory=8 * GIB, declared_memory=8 * GIB)
    driven.ended(launch, K.OUT_OF_MEMORY)
    assert said(driven) == [(100, FAILED)]


@pytest.mark.parametrize("asks", [True, False])
def test_what_shared_all_there_is_with_others_is_not_given_up_at_once(asks: bool) -> None:
    """It had asked for all, they for nothing, and its node may have been killing the wrong one. Its tries still end."""
    driven = make(2, slots=2, memory_limit=4, declared_memory=GIB if asks else None)
    driven.offer(2, 2 * GIB)
    other, launch = driven.launches
    driven.start(other)
    for _ in range(3):
        driven.start(launch)
        again = driven.ended(launch, K.OUT_OF_MEMORY, peak_bytes=2 * GIB)
        if not again:
            break
        (launch,) = again
        assert launch.memory == 2 * GIB
    driven.start(launch)
    driven.ended(launch, K.OUT_OF_MEMORY)
    assert said(driven) == [(101, RETRY)] * (1 if asks else 3) + [(101, FAILED)]


def test_when_the_largest_node_is_gone_the_next_one_has_to_do() -> None:
    """What was to ask for more than any node has now asks for all of the largest."""
    driven, launch = bundle_of(1, largest_memory=64 * GIB)
    (launch,) = driven.ended(launch, K.OUT_OF_MEMORY, peak_bytes=10 * GIB)
    assert launch.memory == 20 * GIB
    driven.tell(SlotsChanged(1, 16 * GIB))
    (launch,) = driven.ended(launch, K.LOST)
    assert launch.memory == 16 * GIB


# The time limit


def test_a_shard_over_its_time_is_cancelled_once_and_timed_out() -> None:
    """Whatever its end looks like: a worker that is killed crashes, or is lost, or says nothing."""
    for end in (K.CRASHED, K.LOST, K.OUT_OF_MEMORY):
        driven, launch = bundle_of(4, task_timeout_s=100.0, speculate=False)
        driven.start(launch)
        driven.pass_(100.0)
        assert driven.cancelled == []
        driven.pass_(500.0)
        assert driven.cancelled == [launch.task]
        again = driven.ended(launch, end, suspect=101)
        assert [(one.shard, one.outcome, one.kind) for one in driven.took()] == [(101, RETRY, K.TIMED_OUT)]
        assert [one.shards for one in again] == [(100, 102), (103,)]


def test_the_limit_is_of_a_shard_not_of_its_bundle() -> None:
    """Whoever reports, has as long for the next one."""
    driven, launch = bundle_of(4, task_timeout_s=100.0, speculate=False)
    driven.start(launch)
    for shard in launch.shards:
        driven.pass_(99.0)
        driven.done(launch, shard)
    driven.ended(launch)
    assert (driven.cancelled, driven.finished) == ([], [SchedulerState.FINISHED])


def test_a_task_that_waits_for_a_slot_is_not_late() -> None:
    """Its time begins when it is known to run."""
    driven = make(20, task_timeout_s=100.0, slots=1)
    driven.pass_(1000.0)
    assert driven.cancelled == []
    driven.start(driven.launches[0])
    driven.pass_(102.0)
    assert driven.cancelled == [TaskId(0)]


def test_a_shard_that_ends_after_all_costs_the_next_one_nothing() -> None:
    """It was done while its task was being cancelled. What is cut off is innocent: lost, not timed out."""
    driven, launch = bundle_of(3, task_timeout_s=100.0, speculate=False)
    driven.start(launch)
    driven.pass_(102.0)
    driven.done(launch, 100)
    driven.ended(launch, K.LOST)
    assert [(one.shard, one.outcome, one.kind) for one in driven.took()] == [
        (100, DONE, None),
        (101, RETRY, K.LOST),
        (102, RETRY, K.LOST),
    ]


def test_a_driver_that_stood_still_blames_nobody() -> None:
    """Stopped for an hour, it has heard of nobody for an hour: it listens before it judges."""
    driven = make(2, task_timeout_s=100.0, speculate=False)
    one, two = driven.launches
    driven.start(one)
    driven.start(two)
    driven.pass_(50.0)
    driven.at(driven.now_s + 3600.0)
    assert driven.cancelled == []
    driven.finish(one)
    driven.pass_(1.0)
    assert driven.cancelled == [two.task]
    assert PAUSE_S < FAREWELL_S


def test_it_looks_once_a_second() -> None:
    """To go through ten thousand tasks costs time, and ticks come with every harvest."""
    driven = make(1, task_timeout_s=100.0, speculate=False)
    driven.start(driven.launches[0])
    for now_s in (1000.0, 1025.0, 1050.0, 1075.0, 1100.0, 1100.9):
        driven.at(now_s)
        assert driven.cancelled == []
    driven.at(1101.0)
    assert driven.cancelled == [TaskId(0)]


def test_after_a_stop_the_limit_still_holds() -> None:
    """What hangs would take the whole grace; nothing is launched in its place."""
    driven = make(20, task_timeout_s=20.0, slots=1)
    driven.start(driven.launches[0])
    driven.tell(Stop())
    driven.pass_(22.0)
    assert driven.cancelled == [TaskId(0)]
    assert driven.ended(driven.launches[0], K.LOST) == []


# Stragglers: the last shard of four hangs, the others take a second


def straggler(n: int = 4, *, slots: int = 4, **policy: object) -> tuple[Driven, Launch]:
    """All is done but the last task, which runs."""
    driven = make(n, slots=slots, **policy)
    *others, last = driven.launches
    driven.now_s += 1.0
    for launch in others:
        driven.finish(launch, seconds=1.0)
    driven.took()
    return driven, last


def copy_of(driven: Driven, launch: Launch, within_s: float = 20.0) -> Launch:
    """Lets time pass until a copy of a task is launched."""
    copies = driven.pass_(within_s)
    assert [one.copy_of for one in copies] == [launch.task]
    return copies[0]


def test_a_straggler_gets_one_copy() -> None:
    """At three times what its bytes take, and ten seconds; one that stays alone."""
    driven, slow = straggler()
    assert driven.pass_(1000.0 + 3 * 1 + 10 - driven.now_s) == []
    copy = copy_of(driven, slow, within_s=1.5)
    assert (copy.shards, copy.attempt, copy.last, copy.memory) == (slow.shards, 2, False, None)
    assert driven.pass_(1000.0) == []
    assert driven.records == []


def test_copies_are_for_idle_slots() -> None:
    """A slot must be idle, and within the limit of tasks in flight. While slots are gone there is none."""
    driven, slow = straggler(4, slots=1)
    assert driven.pass_(100.0) == []
    driven.tell(SlotsChanged(2))
    copy_of(driven, slow)

    driven, slow = straggler(4, slots=4, max_in_flight=1)
    assert driven.pass_(100.0) == []

    driven, slow = straggler(20, slots=18)
    assert len(driven.flying) == 1
    for _ in range(2):
        driven.tell(SlotsChanged(0))
        assert driven.pass_(100.0) == []
    driven.tell(SlotsChanged(18))
    copy_of(driven, slow)


def test_stragglers_do_not_set_the_pace_that_they_are_judged_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end only the slow ones still report. However slow that is, they are slow by the pace of the whole run."""
    monkeypatch.setattr("curate.tasks.scheduler.PART_LEAST_S", math.inf)
    driven, slow = bundle_of(20, slots=4)
    driven.start(slow)
    driven.pass_(5.0)
    driven.done(slow, 100, seconds=5.0)
    driven.pass_(5.0)
    driven.done(slow, 101, seconds=5.0)
    copy = copy_of(driven, slow, within_s=2.0)
    assert copy.shards == tuple(range(119, 101, -1))


def test_a_bundle_is_judged_by_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a second for a shard, two of twenty in 20 s are slow: nobody waits until all twenty should be done."""
    monkeypatch.setattr("curate.tasks.scheduler.PART_LEAST_S", math.inf)
    driven, slow = bundle_of(20, slots=4)
    driven.scheduler._seconds_computed = driven.scheduler._cost_computed / (MIB + SHARD_OVERHEAD_BYTES)
    driven.start(slow)
    driven.pass_(8.0)
    driven.done(slow, 100, 101)
    assert driven.pass_(3 * (2 + 1) + 10 - 8.0) == []
    assert copy_of(driven, slow, within_s=2.0).shards == tuple(range(119, 101, -1))


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_straggler_that_would_end_last_is_copied_first(ahead: int) -> None:
    """One slot is idle: it is not for the one that is nearly through."""
    driven, _ = bundle_of(20, more=100, slots=3)
    tasks = list(driven.flying.values())
    assert [len(launch.shards) for launch in tasks] == [20, 100]
    for launch in tasks:
        driven.start(launch)
    driven.done(tasks[ahead], *tasks[ahead].shards[:-2])
    copy_of(driven, tasks[1 - ahead])
    assert len(driven.flying) == 3


def test_a_shard_that_falls_due_goes_before_a_copy() -> None:
    """One slot is idle, and a shard's backoff ends in the moment in which a task is slow enough."""
    driven = make(3, slots=2, backoff_s=14.5)
    one, two, slow = driven.launches
    driven.at(1000.0)
    driven.finish(one)
    driven.failed(two, 101, K.USER_ERROR)
    driven.ended(two)
    assert driven.pass_(13.0) == []
    assert [launch.shards for launch in driven.at(1014.5)] == [(101,)]
    assert slow.task in driven.flying


def test_while_new_shards_are_held_back_idle_slots_copy() -> None:
    """A service that is down keeps them back, not the straggler that is through with it."""
    driven = make(1000, slots=16, max_in_flight=16)
    slow, *others = driven.launches
    for launch in others:
        driven.done(launch)
        driven.ended(launch)
    while len(driven.flying) > 1:
        launch = list(driven.flying.values())[1]
        for shard in launch.shards:
            driven.failed(launch, shard, K.RETRY_LATER, after_s=3600.0)
        driven.ended(launch)
    copy_of(driven, slow)


def test_without_speculation_there_are_no_copies() -> None:
    """`speculate=False`."""
    driven, _ = straggler(speculate=False)
    assert driven.pass_(1000.0) == []


def test_without_a_rate_nobody_is_slow() -> None:
    """Nothing was computed yet: the first task may simply take that long."""
    driven = make(1)
    assert driven.pass_(1000.0) == []


@pytest.mark.parametrize("winner", ["copy", "straggler"])
def test_who_is_done_first_cancels_the_other(winner: str) -> None:
    """Once, and the run does not wait for its end."""
    driven, slow = straggler()
    copy = copy_of(driven, slow)
    first, second = (copy, slow) if winner == "copy" else (slow, copy)
    driven.done(first)
    assert driven.cancelled == [second.task]
    assert said(driven) == [(slow.shards[0], DONE)]
    assert driven.finished == []
    driven.ended(first)
    assert driven.finished == [SchedulerState.FINISHED]
    assert (driven.scheduler.done, driven.scheduler.attempts) == (4, 4)


def test_who_is_beaten_strikes_nothing() -> None:
    """Its end, whatever it is, and its own late success are no news; it counts as in flight until then."""
    driven, slow = straggler(6, slots=6)
    copy = copy_of(driven, slow)
    driven.done(copy)
    driven.done(slow)
    driven.failed(slow, slow.shards[0], K.USER_ERROR)
    driven.ended(slow, K.CRASHED)
    assert said(driven) == [(slow.shards[0], DONE)]
    driven.ended(copy)
    assert driven.finished == [SchedulerState.FINISHED]
    assert driven.scheduler.attempts == 6


def test_a_bundle_and_its_copy_meet() -> None:
    """The copy begins at the end, so that neither repeats what the other has done; the last shard ends both."""
    driven, slow = bundle_of(6, slots=4)
    driven.start(slow)
    copy = copy_of(driven, slow, within_s=30.0)
    assert copy.shards == tuple(reversed(slow.shards))
    driven.done(copy, 105, 104)
    driven.done(slow, 100, 101, 102)
    assert driven.cancelled == []
    assert driven.scheduler.unreported(slow.task) == (103,)
    assert driven.scheduler.unreported(copy.task) == (103,)
    driven.done(slow, 103)
    assert driven.cancelled == [copy.task]
    driven.ended(slow)
    assert driven.finished == [SchedulerState.FINISHED]
    assert (driven.scheduler.done, driven.scheduler.attempts) == (6, 6)


@pytest.mark.parametrize("kind", [K.CRASHED, K.LOST, K.OUT_OF_MEMORY, K.USER_ERROR, K.CORRUPT])
@pytest.mark.parametrize("first", ["copy", "straggler"])
def test_a_copy_that_fails_means_nothing_while_the_other_runs(kind: FailureKind, first: str) -> None:
    """Not a strike, not a launch; when the other one fails too, that is one failure."""
    driven, slow = straggler(user_error_retries=1)
    copy = copy_of(driven, slow)
    loser, other = (copy, slow) if first == "copy" else (slow, copy)
    attempts = driven.scheduler.attempts
    fail(driven, loser, kind)
    assert said(driven) == [(slow.shards[0], COPY_FAILED)]
    assert list(driven.flying.values()) == [other]
    fail(driven, other, K.LOST if kind is K.CORRUPT else kind)
    assert said(driven) == [(slow.shards[0], RETRY)]
    driven.pass_(2.0)
    (again,) = driven.flying.values()
    assert (again.shards, again.attempt, again.copy_of) == (slow.shards, 2, None)
    assert driven.scheduler.attempts == attempts + 2


def test_a_bundle_whose_copy_dies_requeues_what_only_it_had() -> None:
    """Shards that failed in one of the two are left to the other; where both had it, the other goes on with it."""
    driven, slow = bundle_of(4, slots=4)
    driven.start(slow)
    copy = copy_of(driven, slow, within_s=30.0)
    driven.failed(copy, 103, K.USER_ERROR)
    assert said(driven) == [(103, COPY_FAILED)]
    again = driven.ended(slow, K.CRASHED, suspect=100)
    assert said(driven) == [(100, COPY_FAILED)]
    assert [one.shards for one in again] == [(103,)]
    assert driven.scheduler.unreported(copy.task) == (102, 101, 100)


def test_a_copy_that_failed_is_not_made_again() -> None:
    """It would fail again, once a second, for as long as the straggler hangs."""
    driven, slow = straggler()
    copy = copy_of(driven, slow)
    driven.ended(copy, K.CRASHED)
    assert driven.pass_(1000.0) == []


def test_a_copy_that_was_lost_with_its_node_is_made_again() -> None:
    """That was no fault of the copy's."""
    driven, slow = straggler()
    copy = copy_of(driven, slow)
    driven.ended(copy, K.LOST)
    again = copy_of(driven, slow)
    driven.done(again)
    driven.ended(again)
    assert driven.finished == [SchedulerState.FINISHED]


def test_a_copy_is_not_copied_while_its_straggler_runs() -> None:
    """Two at most; but one that is left alone, because the other was lost, may get one as any task may."""
    driven, slow = straggler()
    copy = copy_of(driven, slow)
    assert driven.pass_(1000.0) == []
    driven.ended(slow, K.LOST)
    copy_of(driven, copy)


def test_both_over_their_time_is_one_time_out() -> None:
    """Each is cancelled; the shard is struck when the second one ends."""
    driven, slow = straggler(task_timeout_s=100.0)
    driven.start(slow)
    copy = copy_of(driven, slow)
    driven.start(copy)
    driven.pass_(150.0)
    assert driven.cancelled == [slow.task, copy.task]
    driven.ended(slow, K.LOST)
    driven.ended(copy, K.LOST)
    assert [(one.outcome, one.kind) for one in driven.took()] == [(COPY_FAILED, K.TIMED_OUT), (RETRY, K.TIMED_OUT)]


def test_who_is_being_cancelled_is_not_copied() -> None:
    """Its shard runs again as soon as it has ended, which is struck; a copy would hide that."""
    driven, slow = straggler(task_timeout_s=5.0)
    driven.start(slow)
    assert driven.pass_(100.0) == []
    assert driven.cancelled == [slow.task]


def test_who_is_beaten_while_it_is_cancelled_is_not_cancelled_again() -> None:
    """It had timed out; then its copy was done."""
    driven, slow = straggler(task_timeout_s=20.0)
    driven.start(slow)
    copy = copy_of(driven, slow, within_s=19.0)
    driven.pass_(10.0)
    assert driven.cancelled == [slow.task]
    driven.done(copy)
    driven.ended(copy)
    assert driven.cancelled == [slow.task]
    assert driven.finished == [SchedulerState.FINISHED]


def test_a_start_is_known_from_the_order_of_launches() -> None:
    """A task that hung from the beginning is a straggler as soon as slots are idle: a task that was launched after it
    has run long ago."""
    driven = make(40, slots=4)
    hung = driven.launches[0]
    while len(driven.flying) > 1:
        driven.pass_(1.0)
        for launch in list(driven.flying.values())[1:4]:
            driven.finish(launch)
    assert driven.now_s < 1014.0 + 1.0
    copy_of(driven, hung, within_s=max(0.0, 1015.5 - driven.now_s))


@pytest.mark.parametrize("shrunk", [False, True])
def test_to_wait_for_a_slot_is_not_to_be_slow(shrunk: bool) -> None:
    """Nine tasks of 8 s on two slots: the last one begins after 32 s, and is nobody's straggler at 40; so where a
    cluster shrinks and loses what ran on it."""
    driven = make(9, slots=9 if shrunk else 2)
    if shrunk:
        driven.pass_(1.0)
        driven.tell(SlotsChanged(2))
        for launch in list(driven.flying.values()):
            driven.ended(launch, K.LOST)
    while driven.flying:
        assert driven.pass_(8.0) == []
        for launch in list(driven.flying.values())[:2]:
            driven.finish(launch, seconds=8.0)
    assert driven.finished == [SchedulerState.FINISHED]


def test_stopped_nothing_is_copied() -> None:
    """A copy is a launch."""
    driven, _ = straggler()
    driven.tell(Stop())
    assert driven.pass_(100.0) == []


# What shards need is busy


def test_while_a_service_is_down_the_smallest_shards_ask_for_it_alone() -> None:
    """Each says when a first batch is done; once one is, shards are launched as before: the largest first, bundled."""
    sizes = [100 * MIB, 3 * MIB, 50 * MIB, 1 * MIB, 2 * MIB, *[200 * MIB] * 4]
    driven = make(len(sizes), size=sizes, slots=2, max_in_flight=2)
    assert [launch.shards for launch in driven.launches] == [(105,), (106,)]
    first, second = driven.launches
    assert not first.asks
    assert not second.asks
    driven.failed(first, 105, K.RETRY_LATER, 100.0)
    (asking,) = driven.ended(first)
    assert (asking.shards, asking.asks) == ((103,), True)
    driven.failed(second, 106, K.RETRY_LATER, 100.0)
    # As many wait as may be in flight: nobody else is sent to ask.
    assert driven.ended(second) == []
    driven.tell(ShardWaiting(asking.task, 103, waits=False))
    assert [(launch.shards[0], launch.asks) for launch in driven.launches[3:]] == [(107, False)]


def test_a_shard_that_waits_where_it_is_is_neither_late_nor_slow() -> None:
    """Its time limit counts from its last word, and no copy of it calls again what is done."""
    driven = make(2, slots=4, task_timeout_s=100.0)
    slow, other = driven.launches
    driven.start(slow)
    driven.done(other)
    driven.ended(other)
    for _ in range(40):
        driven.tell(ShardWaiting(slow.task, slow.shards[0], waits=True))
        assert driven.pass_(5.0) == []
        assert driven.cancelled == []
    driven.tell(ShardWaiting(slow.task, slow.shards[0], waits=False))
    assert [launch.copy_of for launch in driven.pass_(30.0)] == [slow.task]


def test_tries_that_a_worker_made_by_itself_count_and_what_it_got_done_forgives() -> None:
    """Twenty in a row in which nothing was done, wherever they were made."""
    driven = make(1)
    for tries, forgiven in [(15, False), (15, True), (5, False)]:
        (launch,) = driven.flying.values()
        if forgiven:
            driven.tell(ShardWaiting(launch.task, 100, waits=False))
        driven.tell(ShardFailed(launch.task, 100, K.RETRY_LATER, tries=tries))
        driven.ended(launch)
        assert driven.records[-1].outcome is Outcome.RETRY
        driven.at(driven.scheduler.next_event_s() or 0.0)
    assert driven.records[-1].tries == 20
    (launch,) = driven.flying.values()
    driven.tell(ShardWaiting(launch.task, 100, waits=False))
    driven.tell(ShardFailed(launch.task, 100, K.RETRY_LATER, tries=20))
    driven.ended(launch)
    assert driven.records[-1].outcome is Outcome.RETRY
    driven.at(driven.scheduler.next_event_s() or 0.0)
    (launch,) = driven.flying.values()
    driven.tell(ShardFailed(launch.task, 100, K.RETRY_LATER))
    assert driven.records[-1].outcome is FAILED
