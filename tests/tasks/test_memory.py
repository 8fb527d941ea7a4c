"""Rules of what tasks ask for because of what earlier ones held."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.tasks.events import AskMemory, Launch, Tick
from curate.tasks.failure import FailureKind
from curate.tasks.memory import KEPT, LOWER, ROOM, STEPS, LearntMemory, slots_with
from curate.units import GIB, MIB
from tests.tasks.driven import Driven, make

amounts = st.lists(st.integers(1, 64 * GIB), min_size=1, max_size=3 * KEPT)
shares = st.integers(MIB, 16 * GIB)
limits = st.one_of(st.none(), st.integers(16 * GIB, 64 * GIB))


@given(held=amounts, share=shares, most=limits)
def test_asked_is_enough_for_nine_of_ten_and_never_more_than_there_is(
    held: list[int], share: int, most: int | None
) -> None:
    """Or nothing is asked for, and then nine of ten hold no more than every slot has."""
    learnt = LearntMemory()
    for one in held:
        learnt.held(one, share, most)
    last = held[-KEPT:]
    beyond = sum(one > (learnt.asked or share) for one in last)
    assert learnt.asked is None or learnt.asked <= (most or learnt.asked)
    assert beyond <= max(len(last) // 10, len(last) > 2) or learnt.asked == most


@given(held=amounts, share=shares)
def test_a_change_is_told_exactly_when_there_is_one(held: list[int], share: int) -> None:
    learnt = LearntMemory()
    for one in held:
        before = learnt.asked
        assert learnt.held(one, share, None) == (learnt.asked != before)


@given(base=st.integers(2 * GIB, 8 * GIB), wobble=st.lists(st.floats(0.97, 1.03), min_size=50, max_size=300))
def test_tasks_that_hold_about_the_same_ask_for_few_amounts(base: int, wobble: list[float]) -> None:
    """A cluster places tasks that ask for different amounts apart."""
    learnt = LearntMemory()
    asked = []
    for part in wobble:
        learnt.held(int(base * part), GIB, None)
        asked.append(learnt.asked)
    steps = 1 + 0.06 * base * ROOM / (GIB // STEPS)
    assert sum(one != other for one, other in pairwise(asked)) <= steps + 1


def test_one_shard_that_holds_far_more_than_others_asks_for_itself_alone() -> None:
    """Once two others were seen."""
    learnt = LearntMemory()
    for held, asked in ((30, 33), (2, 33), (2, None), (30, 33), (2, 33)):
        learnt.held(held * GIB, 4 * GIB, None)
        assert learnt.asked == (None if asked is None else asked * GIB)


def test_less_is_asked_for_only_if_it_is_much_less() -> None:
    learnt = LearntMemory()
    learnt.held(8 * GIB, GIB, None)
    most = learnt.asked
    assert most is not None
    for _ in range(KEPT):
        learnt.held(int(0.8 * 8 * GIB), GIB, None)
    assert learnt.asked == most
    for _ in range(KEPT):
        learnt.held(int(0.5 * LOWER * 8 * GIB), GIB, None)
    assert learnt.asked is not None
    assert learnt.asked < LOWER * most


@pytest.mark.parametrize("share", [None, 8 * GIB])
def test_nothing_is_asked_for_where_shares_are_not_known_or_large_enough(share: int | None) -> None:
    learnt = LearntMemory()
    assert not learnt.held(6 * GIB, share, 64 * GIB)
    assert learnt.asked is None


def test_what_was_held_counts_once_nodes_are_known_to_be_smaller() -> None:
    learnt = LearntMemory()
    learnt.held(6 * GIB, 8 * GIB, 64 * GIB)
    assert learnt.shared(4 * GIB, 32 * GIB)
    assert learnt.asked == 7 * GIB
    assert learnt.shared(8 * GIB, 64 * GIB)
    assert learnt.asked is None


@given(slots=st.integers(0, 100_000), share=shares, asked=st.one_of(st.none(), st.integers(1, 64 * GIB)))
def test_as_many_run_at_once_as_memory_allows(slots: int, share: int, asked: int | None) -> None:
    found = slots_with(asked, slots, share)
    assert min(slots, 1) <= found <= slots
    if asked is not None and found > 1:
        assert found * min(asked, share) <= slots * share


# In a run


def _hungry(shards: int, slots: int, share: int, held: int, **policy: object) -> Driven:
    """A run of which every shard holds as much, told of one at a time in the order of launches."""
    driven = make(shards, slots=0, **policy)
    driven.offer(slots, largest=slots * share, share=share)
    while not driven.finished:
        launch = next(iter(driven.flying.values()))
        driven.start(launch)
        if launch.task not in driven.cancelled:
            driven.done(launch, held=held)
        driven.ended(launch, FailureKind.LOST if launch.task in driven.cancelled else None)
        driven.tell(Tick())
    return driven


def test_all_but_the_first_tasks_ask_for_what_the_first_shard_held() -> None:
    """Those that wait in the queue by then, too: they are taken back, and no shard is lost, done twice or struck."""
    driven = _hungry(100, slots=4, share=4 * GIB, held=6 * GIB)
    asking = [launch.memory for launch in driven.launches]
    queued = 16
    assert asking == [None] * queued + [7 * GIB] * (len(asking) - queued)
    assert driven.asked == [AskMemory(7 * GIB, 2)]
    assert [driven.launches[task].shards for task in driven.cancelled] == [(105 + n,) for n in range(11)]
    assert sorted(one.shard for one in driven.records) == list(range(100, 200))
    assert {one.outcome.value for one in driven.records} == {"done"}


def test_nothing_is_taken_back_where_slots_have_enough() -> None:
    driven = _hungry(100, slots=4, share=8 * GIB, held=6 * GIB)
    assert driven.asked == []
    assert driven.cancelled == []
    assert {launch.memory for launch in driven.launches} == {None}


def test_only_as_many_tasks_are_kept_in_flight_as_memory_has_room_for() -> None:
    driven = make(1000, slots=0)
    driven.offer(100, largest=800 * GIB, share=8 * GIB)
    first = driven.launches[0]
    driven.start(first)
    driven.done(first, held=30 * GIB)
    driven.tell(Tick())
    assert driven.asked == [AskMemory(33 * GIB, 24)]
    for task in list(driven.cancelled):
        driven.ended(driven.flying[task], FailureKind.LOST)
    # The first ones run as they began; nothing comes after them before so many are left as have room, and a queue.
    assert len(driven.flying) == 100
    while len(driven.flying) > 48:
        assert driven.finish(next(iter(driven.flying.values())))[:1] == []
    assert len(driven.finish(next(iter(driven.flying.values())))) == 1


def test_what_a_shard_that_ran_out_of_memory_held_teaches_others() -> None:
    driven = make(100, slots=0)
    driven.offer(4, largest=16 * GIB, share=4 * GIB)
    first = driven.launches[0]
    driven.start(first)
    launches: list[Launch] = driven.ended(first, FailureKind.OUT_OF_MEMORY, peak_bytes=5 * GIB)
    launches += driven.tell(Tick())
    assert driven.asked == [AskMemory(int(5.5 * GIB), 2)]
    for task in list(driven.cancelled):
        launches += driven.ended(driven.flying[task], FailureKind.LOST)
    # It asks for twice of what it had; others for what it had, and some more.
    assert {one.memory for one in launches if 100 in one.shards} == {10 * GIB}
    assert {one.memory for one in launches if 100 not in one.shards} == {int(5.5 * GIB)}


def test_who_declares_more_gets_it() -> None:
    driven = _hungry(50, slots=4, share=4 * GIB, held=6 * GIB, declared_memory=9 * GIB)
    assert {launch.memory for launch in driven.launches} == {None, 9 * GIB}


@pytest.mark.parametrize("peak", [0, 2 * GIB, 5 * GIB, 12 * GIB])
def test_who_runs_out_of_what_was_learnt_asks_for_twice_as_much(peak: int) -> None:
    """Whatever is known of what it held. It asked for the same again where that was less than half of it, three times
    where nothing was known, and was given up."""
    driven = make(40, slots=0, target_task_s=0.01)
    driven.offer(8, largest=64 * GIB, share=4 * GIB)
    while not any(one.memory for one in driven.flying.values()):
        launch = next(iter(driven.flying.values()))
        driven.start(launch)
        driven.done(launch, held=6 * GIB)
        driven.ended(launch)
    launch = next(one for one in driven.flying.values() if one.memory)
    (shard,) = launch.shards
    asked = [launch.memory or 0]
    for _ in range(2):
        driven.start(launch)
        driven.ended(launch, FailureKind.OUT_OF_MEMORY, peak_bytes=peak)
        while not (again := [one for one in driven.flying.values() if shard in one.shards]):
            other = next(iter(driven.flying.values()))
            driven.done(other, held=6 * GIB)
            driven.ended(other)
        (launch,) = again
        asked.append(launch.memory or 0)
    assert asked[1] == 2 * max(asked[0], peak)
    assert asked[2] == min(2 * max(asked[1], peak), 64 * GIB)
