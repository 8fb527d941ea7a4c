"""How many actors each pool should have, and whether they fit: functions of what is seen of pools and nodes.

A pool grows when calls have waited for actors that are all at work, for some looks in a row; it shrinks when fewer
actors would have done, for a longer time. Between the two nothing happens, so that it does not swing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from curate.dataclass import dataclass
from curate.runtime.gpus import Gpus
from curate.runtime.protocol import PoolSpec, Resources
from curate.units import format_bytes

GROW_LOOKS = 3
"""Looks in a row that must show calls waiting before a pool grows."""
SHRINK_S = 30.0
"""How long fewer actors must have been enough before a pool shrinks."""
BUSY = 0.8
"""Share of the time that actors are at work, from which they count as all at work."""
BUSY_AFTER = 0.75
"""Share of the time that those who stay may be at work after a pool has shrunk: less than BUSY, or it would grow."""
CROWDED_S = 10.0
"""How long the first actor of a pool waits for a place that tasks have, before one of these makes way."""


_ONE_CPU = {"CPU": 1.0}
_ONE_GPU = "GPU:"
"""How the name of what is left of one GPU begins."""


@dataclass(frozen=True, slots=True)
class LoadTrend:
    """What the last looks at a pool showed."""

    short_looks: int = 0
    """Looks in a row in which calls waited for actors."""
    quiet_s: float = 0.0
    """For how long fewer actors would have done."""


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """What is seen of a pool at one look."""

    needs: Mapping[str, float]
    """What one actor holds."""
    min_size: int
    max_size: int | None
    """Actors at most; None: as many as fit."""
    size: int
    """Actors that take calls, or will."""
    ready: int
    """Actors that take calls."""
    queued: int
    """Calls that wait."""
    busy: float
    """Share of the time since the last look in which those that are ready were at work, 0 to 1."""
    start_s: float = 0.0
    """How long an actor takes to start."""
    trend: LoadTrend = LoadTrend()


@dataclass(frozen=True, slots=True)
class PoolTarget:
    """What a pool should have."""

    size: int
    trend: LoadTrend


def scale(
    sights: Sequence[PoolLoad], nodes: Sequence[Mapping[str, float]], task: Mapping[str, float], elapsed_s: float
) -> list[PoolTarget]:
    """Returns how many actors each pool should have now.

    `nodes` is what each node has that no actor holds, whether tasks use it or not; room for one `task` is left on one
    of them. `elapsed_s` is the time since the last look. Where there is not enough for all, the pools come first whose
    actors take longest to start: a mistake about those costs most.

    >>> pool = PoolLoad({"CPU": 1}, min_size=1, max_size=4, size=1, ready=1, queued=9, busy=1.0, trend=LoadTrend(2))
    >>> scale([pool], [{"CPU": 4}], {"CPU": 1}, 1.0)
    [PoolTarget(size=2, trend=LoadTrend(short_looks=0, quiet_s=0.0))]
    >>> scale([pool], [{"CPU": 1}], {"CPU": 1}, 1.0)[0].size
    1
    """
    wishes = [_wish(sight, elapsed_s) for sight in sights]
    left = [by_gpu(node) for node in nodes]
    _keep_room(left, task, [sight.needs for sight, wish in zip(sights, wishes, strict=True) if wish.size > sight.size])
    wanted = list(wishes)
    # What a pool has at least was promised; whether there is room for it was seen when the run began.
    for sight in sights:
        _place(left, sight.needs, sight.min_size - sight.size)
    for k in sorted(range(len(sights)), key=lambda k: -sights[k].start_s):
        sight, wish = sights[k], wishes[k]
        base = max(sight.size, sight.min_size)
        if wish.size > base:
            wanted[k] = PoolTarget(base + _place(left, sight.needs, wish.size - base), wish.trend)
    return wanted


def _wish(sight: PoolLoad, elapsed_s: float) -> PoolTarget:
    """Returns what a pool would have if there were room for everything."""
    size = max(sight.min_size, sight.size if sight.max_size is None else min(sight.size, sight.max_size))
    if size != sight.size or sight.ready < sight.size:
        # Those that start now will change what is seen.
        return PoolTarget(size, LoadTrend())
    if sight.queued >= sight.ready and sight.busy >= BUSY:
        short = sight.trend.short_looks + 1
        if short < GROW_LOOKS:
            return PoolTarget(size, LoadTrend(short_looks=short))
        more = min(max(1, size // 2), sight.queued)
        return PoolTarget(size + more if sight.max_size is None else min(size + more, sight.max_size), LoadTrend())
    enough = max(sight.min_size, math.ceil(sight.busy * sight.ready / BUSY_AFTER))
    if sight.queued or enough >= size:
        return PoolTarget(size, LoadTrend())
    quiet_s = sight.trend.quiet_s + elapsed_s
    if quiet_s < SHRINK_S:
        return PoolTarget(size, LoadTrend(quiet_s=quiet_s))
    return PoolTarget(size - max(1, (size - enough) // 2), LoadTrend())


def by_gpu(node: Mapping[str, float]) -> dict[str, float]:
    """Returns what a node has, each of its GPUs by itself: of what was taken, it is then known of which GPU it was.

    >>> by_gpu({"CPU": 8.0, "GPU": 2.0})
    {'CPU': 8.0, 'GPU:0': 1.0, 'GPU:1': 1.0}
    """
    found = {name: amount for name, amount in node.items() if name != "GPU"}
    return found | {f"{_ONE_GPU}{at}": 1.0 for at in range(int(node.get("GPU", 0.0)))}


def fits(node: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """Returns how many of something a node can hold; of what needs nothing, as many as it has CPUs. A share of a GPU is
    of one GPU, so that two GPUs hold two actors of 0.6 each.

    >>> fits({"CPU": 4, "GPU": 1}, {"CPU": 0.1, "GPU": 0.25})
    4
    >>> fits({"CPU": 4, "GPU": 2}, {"CPU": 0.1, "GPU": 0.6})
    2
    """
    asked = {name: amount for name, amount in needs.items() if amount} or _ONE_CPU
    counts = [
        _shares(node, amount) if name == "GPU" else _whole(node.get(name, 0.0) / amount)
        for name, amount in asked.items()
    ]
    return max(0, min(counts))


def _shares(node: Mapping[str, float], amount: float) -> int:
    """Returns how many times a node has so much of a GPU, or so many GPUs."""
    each = [left for name, left in node.items() if name.startswith(_ONE_GPU)]
    whole, rest = divmod(node.get("GPU", 0.0) + 1e-6, 1.0)
    if amount < 1:
        return int(whole) * _whole(1 / amount) + sum(_whole(left / amount) for left in [rest, *each])
    return int(whole + sum(left >= 1 - 1e-6 for left in each)) // math.ceil(amount)


def _whole(times: float) -> int:
    """Returns how often that is. Sums of tenths are not exact."""
    return math.floor(times + 1e-6)


def take_resources(node: dict[str, float], needs: Mapping[str, float], count: int = 1) -> None:
    """Takes what some of something hold from what a node has. Where that is known by GPU, a share is of the one that
    has least of those that have enough, as Ray takes it."""
    gpus = [name for name in node if name.startswith(_ONE_GPU)]
    for name, amount in needs.items():
        if name == "GPU" and gpus:
            for _ in range(count * max(1, math.ceil(amount))):
                each = min(1.0, amount)
                enough = [one for one in gpus if node[one] >= each - 1e-6]
                node[min(enough, key=node.__getitem__) if enough else max(gpus, key=node.__getitem__)] -= each
        else:
            node[name] = node.get(name, 0.0) - amount * count


def _place(left: list[dict[str, float]], needs: Mapping[str, float], count: int) -> int:
    """Takes up to `count` of something from what is left; returns how many there was room for."""
    placed = 0
    for node in left:
        here = min(count - placed, fits(node, needs))
        if here > 0:
            take_resources(node, needs if any(needs.values()) else _ONE_CPU, here)
            placed += here
    return placed


def _keep_room(left: list[dict[str, float]], task: Mapping[str, float], growing: Sequence[Mapping[str, float]]) -> None:
    """Takes one task from the node where that costs those who want to grow least."""

    def cost(node: dict[str, float]) -> int:
        without = dict(node)
        take_resources(without, task)
        return sum(fits(node, needs) - fits(without, needs) for needs in growing)

    able = [node for node in left if fits(node, task)]
    if able:
        take_resources(min(able, key=cost), task)


def does_not_fit(has: Mapping[str, float], resources: Resources, pools: Sequence[PoolSpec]) -> str:
    """Returns why a machine can never hold the smallest size of all pools and one task, empty if it can.

    >>> from curate.runtime.protocol import PoolSpec, Resources
    >>> pool = PoolSpec("embed", program=None, resources=Resources(num_cpus=1), min_size=2)
    >>> does_not_fit({"CPU": 2.0}, Resources(num_cpus=1), [pool]).split(";")[0]
    'embed: 2 actors x 1 CPU + 1 task x 1 CPU = 3 CPU, but this machine has 2 CPU'
    """
    task = needs(resources)
    names = dict.fromkeys(name for held in [task, *(needs(pool.resources) for pool in pools)] for name in held)
    for name in names:
        parts = [(pool.min_size, needs(pool.resources).get(name, 0.0), pool.name) for pool in pools]
        total = sum(count * each for count, each, _ in parts) + task.get(name, 0.0)
        if total <= has.get(name, 0.0) + 1e-6:
            continue
        sums = [f"{who}: {n} actor{'s' * (n != 1)} x {_amount(name, each)}" for n, each, who in parts if each]
        if not sums:
            machine = {kind: amount for kind, amount in sorted(has.items()) if ":" not in kind}
            return (
                f"a task needs {task}, but this machine has {machine}; "
                "request less in the job, or point RAY_ADDRESS at a larger cluster"
            )
        if name in task:
            sums.append(f"1 task x {_amount(name, task[name])}")
        return (
            f"{' + '.join(sums)} = {_amount(name, total)}, but this machine has {_amount(name, has.get(name, 0.0))}; "
            "shrink the pool, request less per actor or task, or point RAY_ADDRESS at a larger cluster"
        )
    gpus = has.get("GPU", 0.0)
    # Without a limit where somebody else says how many there are.
    return "" if math.isinf(gpus) else _gpus_do_not_fit(int(gpus), resources, pools)


def _gpus_do_not_fit(gpus: int, resources: Resources, pools: Sequence[PoolSpec]) -> str:
    """Returns why the smallest size of all pools and a task never get their shares of GPUs, empty if they do: each in
    turn, as they are started. A share is of one GPU, so that there may be enough of all together and of none."""
    shared = Gpus.of([str(at) for at in range(gpus)])
    asked = [(f"an actor of {pool.name}", pool.resources) for pool in pools for _ in range(pool.min_size)]
    for who, one in [*asked, ("a task", resources)]:
        amount = one.num_gpus
        if amount > 1 and amount != int(amount):
            return f"{who} asks for {amount:g} GPUs: a share of one GPU, or whole ones"
        if shared.take(one) is None:
            left = ", ".join(f"{share:g} of GPU {at}" for at, share in shared.free.items())
            return (
                f"{who} asks for {amount:g} GPU, and beside the actors before it there is left {left}; "
                "ask for shares that fill a GPU, or shrink a pool"
            )
    return ""


def needs(resources: Resources) -> dict[str, float]:
    """Returns what a task or an actor holds, in Ray's names."""
    held = {"CPU": resources.num_cpus, "GPU": resources.num_gpus, **resources.custom}
    if resources.memory:
        held["memory"] = resources.memory
    return {name: amount for name, amount in held.items() if amount}


def _amount(name: str, amount: float) -> str:
    return f"{format_bytes(int(amount))} of memory" if name == "memory" else f"{amount:g} {name}"


def mean(values: Sequence[float]) -> float:
    """Returns what values are on average; 0 of none."""
    return sum(values) / len(values) if values else 0.0
