"""Which actors of a pool start, which are let go and which are given up: the same decisions on every backend."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.errors import PoolFailed
from curate.runtime.pools import MAX_FAILED_STARTS, RETRY_S, SETUP_S, ActorPool, PoolActor
from curate.runtime.protocol import ActorStatus, PoolSpec, Resources

Pool = ActorPool[PoolActor[ActorStatus]]
ACTORS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 3), st.none() | st.just(5.0), st.none() | st.floats(0.0, 2 * SETUP_S)),
    max_size=6,
)
"""Of each actor: whether it is ready, its calls that wait, since when it leaves, since when it is being set up."""


def pool_of(actors: list[Any], size: int = 1) -> Pool:
    pool: Pool = ActorPool(spec=PoolSpec("model", program=cast(Any, None), resources=Resources(num_cpus=1)), size=size)
    for serial, (ready, queued, leaves_s, begun_s) in enumerate(actors):
        seen = ActorStatus(at_s=0.0, worked_s=0.0, queued=queued, task=None)
        pool.actors[serial] = PoolActor(serial=serial, ready=ready, seen=seen, leaves_s=leaves_s, begun_s=begun_s)
    return pool


@given(ACTORS, st.integers(0, 6))
def test_a_pool_starts_what_is_missing_or_lets_go_of_those_with_least_to_do(actors: list[Any], size: int) -> None:
    """Never both. Those that are set up go before those that have calls; these alone may do what they have."""
    pool = pool_of(actors, size)
    before, missing = pool.staying, pool.missing(9.0)
    ended = pool.shrink(9.0)
    gone = [one for one in before if one.leaves_s is not None]
    assert len(before) + missing - len(gone) == size
    assert not (missing and gone)
    assert all(one.leaves_s == 9.0 for one in gone)
    assert {one.serial for one in ended} == {one.serial for one in gone if not one.ready}
    for one in gone:
        assert all((one.ready, one.queued) <= (other.ready, other.queued) for other in pool.staying)


@given(ACTORS)
def test_an_actor_hangs_that_is_set_up_for_long(actors: list[Any]) -> None:
    """Not one that waits for a place, that is ready, or that has been given up."""
    now = 2 * SETUP_S
    hanging = {one.serial for one in pool_of(actors).hanging(now)}
    for serial, (ready, _, leaves_s, begun_s) in enumerate(actors):
        late = begun_s is not None and now - begun_s >= SETUP_S
        assert (serial in hanging) == (late and not ready and leaves_s is None)


@given(ACTORS, st.none() | st.sets(st.integers(0, 5)))
def test_who_leaves_is_given_up_once_callers_are_told_of_others(actors: list[Any], listed: set[int] | None) -> None:
    """Until then it is as if it had begun to leave now."""
    pool = pool_of(actors)
    leaving = {one.serial for one in pool.ready if one.leaves_s is not None}
    found = pool.unlisted(9.0, listed)
    told = leaving if listed is None else leaving & listed
    assert [(one.serial, leaves_s) for one, leaves_s in found] == [(serial, 5.0) for serial in sorted(leaving - told)]
    assert {one.serial for one in pool.ready if one.leaves_s == 9.0} == told


@pytest.mark.parametrize("ready", [False, True], ids=["none", "another"])
@pytest.mark.parametrize("fails", [False, True], ids=["dies", "raises"])
def test_after_an_actor_that_could_not_start_the_next_one_waits_longer(ready: bool, fails: bool) -> None:
    """The pool has failed if it has no other, and this one says that it never can, or is the third in a row."""
    pool = pool_of([(True, 0, None, None)] if ready else [], 2)
    now = 100.0
    for times in range(1, 10):
        failed = pool.not_started(now, "no weights", fails=fails)
        assert (failed is not None) == (not ready and (fails or times >= MAX_FAILED_STARTS))
        if isinstance(failed, PoolFailed):
            often = f", {times} times in a row" if times >= MAX_FAILED_STARTS else ""
            assert str(failed) == f"model: an actor cannot be set up{often}\nno weights"
        wait_s = min(RETRY_S, 2.0**times)
        assert pool.missing(now + wait_s - 0.01) == 0
        assert pool.missing(now + wait_s) == (1 if ready else 2)
        now += wait_s
