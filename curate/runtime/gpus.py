"""The GPUs of a machine, in shares: which of them each process sees."""

from __future__ import annotations

import os
from collections.abc import Sequence

from curate.dataclass import dataclass
from curate.runtime.protocol import Resources


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
