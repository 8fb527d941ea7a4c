"""How many actors pools should have: bounds, hysteresis, who comes first, and that a task always has room."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.runtime.protocol import PoolSpec, Resources
from curate.runtime.scaling import (
    GROW_LOOKS,
    SHRINK_S,
    LoadTrend,
    PoolLoad,
    by_gpu,
    does_not_fit,
    fits,
    needs,
    scale,
    take_resources,
)

ONE = {"CPU": 1.0}
PLENTY = [{"CPU": 1000.0}]


def sight(size: int = 1, **more: object) -> PoolLoad:
    """A pool of actors of one CPU, all ready, with nothing to do."""
    seen = {"needs": ONE, "min_size": 1, "max_size": None, "size": size, "ready": size, "queued": 0, "busy": 0.0}
    return PoolLoad(**{**seen, **more})


def looks(first: PoolLoad, count: int, elapsed_s: float = 1.0, nodes: list[dict[str, float]] = PLENTY) -> list[int]:
    """Returns the sizes that a pool gets in so many looks that all show the same, every actor ready at once."""
    sizes = []
    for _ in range(count):
        (wanted,) = scale([first], nodes, ONE, elapsed_s)
        sizes.append(wanted.size)
        first = replace(first, size=wanted.size, ready=wanted.size, trend=wanted.trend)
    return sizes


def test_it_grows_when_calls_have_waited_for_some_looks() -> None:
    """Not before: a queue that is gone at the next look needs nobody. Then half as many again, at most."""
    assert looks(sight(queued=50, busy=1.0), 4 * GROW_LOOKS)[GROW_LOOKS - 2 :: GROW_LOOKS] == [1, 2, 3, 4]
    assert looks(sight(4, queued=50, busy=1.0), GROW_LOOKS)[-1] == 6
    assert looks(sight(100, queued=100, busy=0.79), 10) == [100] * 10
    assert looks(sight(100, queued=99, busy=1.0), 10) == [100] * 10


def test_one_look_without_a_queue_begins_anew() -> None:
    """What counts is that calls wait all the time."""
    almost = sight(queued=9, busy=1.0, trend=LoadTrend(short_looks=GROW_LOOKS - 1))
    assert scale([almost], PLENTY, ONE, 1.0)[0].size == 2
    assert scale([replace(almost, queued=0)], PLENTY, ONE, 1.0)[0].trend.short_looks == 0


def test_it_shrinks_after_a_longer_quiet_time() -> None:
    """And not to fewer than are at work; a queue ends the quiet."""
    idle = sight(8)
    assert looks(idle, 29) == [8] * 29
    assert looks(idle, 30)[-1] == 5
    assert looks(idle, 300)[-1] == 1
    assert looks(sight(8, busy=0.5), 30)[-1] == 7
    assert scale([replace(idle, queued=1, trend=LoadTrend(quiet_s=SHRINK_S))], PLENTY, ONE, 1.0)[0].size == 8


def test_it_settles_where_the_work_is_done() -> None:
    """With work for four there are soon six: those who stay are at work three quarters of the time."""
    pool = sight(20)
    for _ in range(600):
        (wanted,) = scale([replace(pool, busy=min(1.0, 4 / pool.size))], PLENTY, ONE, 1.0)
        pool = replace(pool, size=wanted.size, ready=wanted.size, trend=wanted.trend)
    assert pool.size == 6


def test_it_waits_for_those_that_start() -> None:
    """They will change what is seen."""
    assert looks(sight(3, ready=2, queued=50, busy=1.0), 1) == [3]
    assert (
        scale([sight(3, ready=2, queued=50, busy=1.0, trend=LoadTrend(9, 99.0))], PLENTY, ONE, 1.0)[0].trend
        == LoadTrend()
    )


def test_the_slow_to_start_come_first() -> None:
    """Where there is room for one only."""
    hungry = sight(queued=50, busy=1.0, trend=LoadTrend(short_looks=GROW_LOOKS))
    pools = [replace(hungry, start_s=start_s) for start_s in (1.0, 60.0, 5.0)]
    assert [one.size for one in scale(pools, [{"CPU": 2.0}], ONE, 1.0)] == [1, 2, 1]
    assert [one.size for one in scale(pools, [{"CPU": 3.0}], ONE, 1.0)] == [1, 2, 2]


def test_the_task_gets_the_node_that_actors_cannot_use() -> None:
    """A node with a GPU is not kept free for a task that runs elsewhere too."""
    hungry = sight(needs={"CPU": 1.0, "GPU": 1.0}, queued=50, busy=1.0, trend=LoadTrend(short_looks=GROW_LOOKS))
    assert scale([hungry], [{"CPU": 1.0, "GPU": 1.0}, {"CPU": 1.0}], ONE, 1.0)[0].size == 2
    assert scale([hungry], [{"CPU": 1.0, "GPU": 1.0}], ONE, 1.0)[0].size == 1


amounts = st.fixed_dictionaries({"CPU": st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0])}, optional={"GPU": st.just(0.5)})
nodes = st.lists(
    st.fixed_dictionaries({"CPU": st.integers(0, 8).map(float)}, optional={"GPU": st.just(1.0)}), max_size=4
)


@st.composite
def sights(draw: st.DrawFn) -> PoolLoad:
    smallest = draw(st.integers(1, 4))
    size = draw(st.integers(1, 8))
    return PoolLoad(
        draw(amounts),
        smallest,
        draw(st.none() | st.integers(smallest, 8)),
        size,
        draw(st.integers(0, size)),
        draw(st.integers(0, 50)),
        draw(st.floats(0, 1)),
        draw(st.floats(0, 100)),
        LoadTrend(draw(st.integers(0, 5)), draw(st.floats(0, 60))),
    )


@given(st.lists(sights(), min_size=1, max_size=3), nodes, amounts, st.floats(0.1, 60))
def test_bounds(pools: list[PoolLoad], nodes: list[dict[str, float]], task: dict[str, float], elapsed_s: float) -> None:
    """Never below the smallest size nor above the largest; who grows fits, with a task beside, if one did before."""
    before = [dict(node) for node in nodes]
    wanted = scale(pools, nodes, task, elapsed_s)
    assert nodes == before
    more = []
    for pool, one in zip(pools, wanted, strict=True):
        assert pool.min_size <= one.size
        assert pool.max_size is None or one.size <= max(pool.max_size, pool.min_size)
        if one.size > max(pool.size, pool.min_size):
            more += [pool.needs or ONE] * (one.size - max(pool.size, pool.min_size))
            assert pool.queued >= pool.ready == pool.size
    if more and any(fits(node, task) for node in nodes):
        total = {name: sum(node.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
        for name, amount in total.items():
            assert sum(one.get(name, 0.0) for one in [*more, task]) <= amount + 1e-6


@given(st.lists(st.sampled_from(["queue", "idle"]), min_size=1, max_size=200))
def test_it_does_not_swing(loads: list[str]) -> None:
    """A change of mind takes as long as it takes to be sure: between growing and shrinking lies the quiet time."""
    pool, grown_s = sight(4), -SHRINK_S
    for s, load in enumerate(loads):
        seen = replace(pool, queued=9 if load == "queue" else 0, busy=1.0 if load == "queue" else 0.0)
        (wanted,) = scale([seen], PLENTY, ONE, 1.0)
        if wanted.size > pool.size:
            grown_s = s
        elif wanted.size < pool.size:
            assert s - grown_s >= SHRINK_S
            assert loads[s - 29 : s + 1] == ["idle"] * 30
        pool = replace(seen, size=wanted.size, ready=wanted.size, trend=wanted.trend)


@given(amounts, nodes)
def test_what_fits_can_be_taken(held: dict[str, float], nodes: list[dict[str, float]]) -> None:
    """As many as are said to fit, and no other: also of tenths, whose sums are not exact."""
    for node in nodes:
        count = fits(node, held)
        left = dict(node)
        for _ in range(count):
            assert fits(left, held)
            take_resources(left, held if any(held.values()) else ONE)
        assert not fits(left, held)


shares = st.lists(st.sampled_from([0.25, 0.3, 0.4, 0.5, 0.6, 1.0, 2.0]), min_size=1, max_size=8)


@given(shares, st.integers(0, 4))
def test_a_share_of_a_gpu_is_of_one_gpu(asked: list[float], count: int) -> None:
    """Whoever holds what: something fits if and only if there is a GPU that has it, or as many as it asks for."""
    node, gpus = by_gpu({"CPU": 8.0, "GPU": float(count)}), [1.0] * count
    for amount in asked:
        held = {"GPU": amount}
        each = min(1.0, amount)
        able = sorted((left, at) for at, left in enumerate(gpus) if left >= each - 1e-6)[: max(1, int(amount))]
        assert (fits(node, held) > 0) == (len(able) == max(1, int(amount)))
        # As many as there is room for, one after the other.
        there, taken = dict(node), 0
        while fits(there, held):
            take_resources(there, held)
            taken += 1
        assert fits(node, held) == taken
        if fits(node, held):
            take_resources(node, held)
            for _, at in able:
                gpus[at] -= each
        assert sorted(left for name, left in node.items() if name != "CPU") == pytest.approx(sorted(gpus))


@given(st.sampled_from([0.3, 0.4, 0.6, 0.7]), st.integers(1, 4))
def test_a_pool_grows_to_what_the_gpus_hold(share: float, count: int) -> None:
    """No actor is waited for that no GPU has room for: a pool that waits neither grows nor shrinks."""
    most = count * int(1 / share)
    assert fits({"GPU": float(count)}, {"GPU": share}) == most
    hungry = sight(needs={"GPU": share}, queued=50, busy=1.0, trend=LoadTrend(short_looks=GROW_LOOKS))
    for size in range(1, most + 1):
        left = by_gpu({"CPU": 1.0, "GPU": float(count)})
        take_resources(left, hungry.needs, size)
        wanted = scale([replace(hungry, size=size, ready=size)], [left], ONE, 1.0)[0].size
        assert size < wanted <= most if size < most else wanted == most


@pytest.mark.parametrize(
    ("task", "actor", "says"),
    [
        (Resources(1), Resources(1), ""),
        (Resources(0.5), Resources(0.5), ""),
        (Resources(2), Resources(1), "p: 2 actors x 1 CPU + 1 task x 2 CPU = 4 CPU, but this machine has 3 CPU"),
        (
            Resources(4),
            Resources(0),
            "a task needs {'CPU': 4}, but this machine has {'CPU': 3.0, 'memory': 4294967296}",
        ),
        (Resources(1), Resources(0, num_gpus=1), "p: 2 actors x 1 GPU = 2 GPU, but this machine has 0 GPU"),
        (
            Resources(1, memory=1 << 30),
            Resources(0, memory=2 << 30),
            "p: 2 actors x 2.00 GiB of memory + 1 task x 1.00 GiB of memory = 5.00 GiB of memory, but this machine has "
            "4.00 GiB of memory",
        ),
    ],
)
def test_the_smallest_pools_and_a_task_must_fit(task: Resources, actor: Resources, says: str) -> None:
    """Said with the sum, and what can be done."""
    found = does_not_fit({"CPU": 3.0, "memory": 4 << 30, "node:a": 1.0}, task, [PoolSpec("p", None, actor, 2)])
    assert found.split(";")[0] == says
    assert bool(found) == bool(says)
    if says:
        assert "RAY_ADDRESS" in found


def test_what_is_held_in_rays_names() -> None:
    """Nothing is asked for by a zero."""
    assert needs(Resources(0, 0.5, 1 << 30, {"TPU": 4})) == {"GPU": 0.5, "TPU": 4, "memory": 1 << 30}
