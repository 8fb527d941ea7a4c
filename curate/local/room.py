"""What of this machine nobody holds: CPUs, memory, and its GPUs in shares, of which each process sees its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.local import machine
from curate.runtime.protocol import PoolSpec, Resources
from curate.runtime.scaling import does_not_fit, needs, take_resources

NOTHING = {"task of no CPU": 1.0}
"""What a task holds that asks for nothing: of these there are as many as CPUs, as more at once would gain nothing."""


@dataclass
class Gpus:
    """What no process holds, of each GPU."""

    free: dict[str, float]
    """By the id that CUDA_VISIBLE_DEVICES has for it, from 0 to 1."""

    @classmethod
    def of(cls, ids: Sequence[str]) -> Gpus:
        """Returns GPUs that nobody holds."""
        return cls(dict.fromkeys(ids, 1.0))

    def all_free(self) -> None:
        """Takes them from all processes, which are gone."""
        self.free = dict.fromkeys(self.free, 1.0)

    def take(self, resources: Resources) -> tuple[str, ...] | None:
        """Returns the GPUs that a process gets, None if they are not free now."""
        amount = resources.num_gpus
        each = min(1.0, amount)
        # Sums of tenths are not exact.
        free = [one for one, share in self.free.items() if share >= each - 1e-6] if amount else []
        count = max(1, int(amount)) if amount else 0
        if len(free) < count:
            return None
        for one in free[:count]:
            self.free[one] -= each
        return tuple(free[:count])

    def give(self, taken: tuple[str, ...], resources: Resources) -> None:
        """Takes back what a process had."""
        for one in taken:
            self.free[one] += min(1.0, resources.num_gpus)

    def environ(self, taken: tuple[str, ...], resources: Resources) -> dict[str, str]:
        """Returns the variables of a process: what it sees, and how many threads libraries start."""
        found = {"CUDA_VISIBLE_DEVICES": ",".join(taken)} if self.free else {}
        # As on Ray: what a library computes may depend on it.
        threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, int(resources.num_cpus)))
        return {"OMP_NUM_THREADS": threads, **found}


class Room:
    """What there is, and what of that no task holds, nor an actor."""

    def __init__(self, has: Mapping[str, float] | None = None, gpus: Sequence[str] = ()) -> None:
        has = has or {}
        self.has = {**has, **dict.fromkeys(NOTHING, has.get("CPU", 0.0))}
        self.free = dict(self.has)
        self.gpus = Gpus.of(gpus)

    @classmethod
    def of_machine(cls, resources: Resources, pools: Sequence[PoolSpec]) -> Room:
        """Returns what this machine has. Raises ConfigError if that cannot hold a task beside the pools."""
        has = machine.holds()
        found = cls(has, machine.gpus())
        if missing := does_not_fit(has, resources, pools):
            raise ConfigError(missing)
        return found

    def left(self, held: Mapping[str, float]) -> dict[str, float]:
        """Returns what there is beside what is held."""
        left = dict(self.has)
        take_resources(left, held)
        return left

    def all_free(self) -> None:
        """Takes all back: who held it is gone."""
        self.free = dict(self.has)
        self.gpus.all_free()

    def hold(self, resources: Resources) -> tuple[dict[str, str], Callable[[], None]] | None:
        """Takes what an actor holds; returns its variables, and what gives that back. None if no GPU is free now."""
        gpus = self.gpus.take(resources)
        if gpus is None:
            return None
        held = needs(resources)
        take_resources(self.free, held)

        def release() -> None:
            take_resources(self.free, held, -1)
            self.gpus.give(gpus, resources)

        return self.gpus.environ(gpus, resources), release
