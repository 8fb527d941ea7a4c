"""What of this machine nobody holds: CPUs, memory, and its GPUs in shares, of which each process sees its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from curate.errors import ConfigError
from curate.local import machine
from curate.runtime.gpus import Gpus
from curate.runtime.protocol import PoolSpec, Resources
from curate.runtime.scaling import by_gpu, does_not_fit, needs, take_resources

NOTHING = {"task of no CPU": 1.0}
"""What a task holds that asks for nothing: of these there are as many as CPUs, as more at once would gain nothing."""


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

    def left(self, held: Iterable[Resources]) -> dict[str, float]:
        """Returns what there is beside those who hold something."""
        left = by_gpu(self.has)
        for one in held:
            take_resources(left, needs(one))
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
