"""Slots that are idle take what others have not begun."""

from __future__ import annotations

import pytest

from curate.tasks.events import Launch, SchedulerState, SlotsChanged
from curate.tasks.failure import FailureKind
from curate.tasks.scheduler import SHORTEST_BUNDLE_S
from tests.tasks.driven import Driven, bundle_of


def shared(
    n: int = 20, *, slots: int = 2, pace_s: float = 10.0, **policy: object
) -> tuple[Driven, Launch, list[Launch]]:
    """A task of `n` shards at so many seconds each, and what idle slots take of it."""
    driven, whole = bundle_of(n, slots=slots, **policy)
    driven.scheduler._seconds_computed *= pace_s * n / SHORTEST_BUNDLE_S
    driven.start(whole)
    return driven, whole, driven.pass_(2.0)


def test_an_idle_slot_takes_half_of_what_is_not_begun() -> None:
    """From its end. Of 20 shards one is at hand, and 19 are not begun."""
    driven, whole, parts = shared()
    (part,) = parts
    assert (part.shards, part.part_of, part.copy_of, part.attempt) == (tuple(range(110, 120)), whole.task, None, 2)
    assert driven.scheduler.unreported(whole.task) == tuple(range(100, 110))
    assert driven.pass_(20.0) == []


def test_each_idle_slot_takes_half_of_what_would_end_last() -> None:
    driven, whole, _ = shared(slots=8)
    shards = [driven.scheduler.unreported(task) for task in driven.flying]
    assert sorted(shard for one in shards for shard in one) == list(whole.shards)
    assert len(shards) == 8
    assert max(map(len, shards)) <= 2 * min(map(len, shards)) + 1


@pytest.mark.parametrize("seconds", [0.5, 1.0])
def test_what_is_too_little_is_not_shared(seconds: float) -> None:
    """A part has ten seconds of work: what was shortened is cancelled at its end, and its worker set up again."""
    assert shared(pace_s=seconds)[2] == []
    assert shared(pace_s=4 * seconds)[2] != []


def test_slots_that_others_wait_for_take_nothing() -> None:
    driven, whole = bundle_of(20, more=3)
    driven.scheduler._seconds_computed *= 1e6
    driven.start(whole)
    assert len(driven.flying) > 1
    assert driven.pass_(5.0) == []


def test_nothing_is_shared_where_nothing_may_run_twice() -> None:
    assert shared(speculate=False)[2] == []


def test_a_task_is_cancelled_when_it_has_ended_what_it_kept() -> None:
    """It does not know that the others are not its any more. Nobody waits for its end."""
    driven, whole, (part,) = shared()
    driven.done(whole, *range(100, 109))
    assert driven.cancelled == []
    driven.failed(whole, 109, FailureKind.CORRUPT)
    assert driven.cancelled == [whole.task]
    # One that it had begun by then is the other task's all the same.
    driven.done(whole, 110)
    assert driven.scheduler.done == 9
    driven.finish(part)
    assert driven.finished == [SchedulerState.FINISHED]
    assert (driven.scheduler.done, driven.scheduler.failed) == (19, 1)


@pytest.mark.parametrize("kind", [FailureKind.LOST, FailureKind.CRASHED])
@pytest.mark.parametrize("dies", ["whole", "part"])
def test_either_dies_with_its_own_shards(dies: str, kind: FailureKind) -> None:
    driven, whole, (part,) = shared()
    one, other = (whole, part) if dies == "whole" else (part, whole)
    own = driven.scheduler.unreported(one.task)
    launches = driven.ended(one, kind)
    again = [shard for launch in launches for shard in launch.shards]
    assert set(again) <= set(own)
    assert driven.scheduler.unreported(other.task) == tuple(sorted({*whole.shards} - {*own}))


def test_what_is_shared_at_the_pace_of_its_own_task() -> None:
    """A task on a slow machine has more left than its bytes say."""
    driven, whole = bundle_of(20, slots=2)
    driven.start(whole)
    assert driven.pass_(8.0) == []
    driven.done(whole, 100)
    (part,) = driven.pass_(2.0)
    assert part.part_of == whole.task


def test_a_copy_and_what_has_one_are_not_shared() -> None:
    """Both run the same shards, and meet."""
    driven, slow = bundle_of(20, slots=2)
    driven.start(slow)
    (copy,) = driven.pass_(20.0)
    assert copy.copy_of == slow.task
    driven.tell(SlotsChanged(8))
    driven.done(slow, 100, seconds=1e6)
    assert driven.pass_(5.0) == []
