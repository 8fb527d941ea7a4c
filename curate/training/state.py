"""Where a consumer is in an epoch: which samples each rank and each worker gets, and the state that resumes it. Pure.

A *global batch* is what all ranks get for one step: neighbouring places of the epoch. Rank `r` of `n` gets the `r`-th
of `n` equal parts of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.training.order import VERSION, Integers
from curate.units import whole


@dataclass(frozen=True, slots=True)
class Batches:
    """The global batches of an epoch."""

    samples: int
    """Of the corpus."""
    size: int
    """Samples of a global batch."""
    drop_last: bool
    """Whether the last batch is left out if it is not full."""

    @property
    def count(self) -> int:
        """Global batches of an epoch."""
        return self.samples // self.size if self.drop_last else -(-self.samples // self.size)

    @property
    def end(self) -> int:
        """The place behind the last sample of the last global batch."""
        return min(self.samples, self.count * self.size)

    def of(
        self, places: Integers, rank: int, ranks: int, worker: int = 0, workers: int = 1, first: int = 0
    ) -> Integers:
        """Returns those places whose samples a worker of a rank gets: its part of every `workers`-th global batch, from
        the batch `first` on.

        Of a last batch that is not full each rank gets about as many samples, and maybe none.

        >>> Batches(10, 4, False).of(np.arange(10), 1, 2).tolist()
        [2, 3, 6, 7, 9]
        """
        number, slot = places // self.size, places % self.size
        full = np.minimum(self.size, self.end - number * self.size)
        mine = (rank * full // ranks <= slot) & (slot < (rank + 1) * full // ranks)
        mine &= (places < self.end) & (number >= first)
        if workers > 1:
            mine &= (number - first) % workers == worker
        return places[mine]

    def rows(self, number: int, rank: int, ranks: int) -> int:
        """Returns how many samples of a global batch a rank gets."""
        full = min(self.size, self.end - number * self.size)
        return (rank + 1) * full // ranks - rank * full // ranks


@dataclass(frozen=True, slots=True)
class Reading:
    """What decides which sample is where: a state of another one means other samples."""

    seed: int
    corpus: str
    """Fingerprint of names, sizes, numbers of tokens and first bytes of all files."""
    sequence_length: int
    batch_size: int
    shuffle_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Returns it as a state names it."""
        return {
            "seed": self.seed,
            "corpus": self.corpus,
            "sequence_length": self.sequence_length,
            "batch_size": self.batch_size,
            "shuffle_bytes": self.shuffle_bytes,
            "order": VERSION,
        }

    def state(self, epoch: int, position: int) -> dict[str, Any]:
        """Returns the state of who has got all samples of an epoch before a place."""
        return {"epoch": epoch, "position": position, **self.as_dict()}

    def resumed(self, state: Any, batches: Batches) -> tuple[int, int]:
        """Returns epoch and position of a state. Raises ConfigError for a state of another reading, with both sides."""
        expected = self.state(0, 0)
        if not isinstance(state, Mapping) or set(state) != set(expected):
            found = ", ".join(map(str, state)) if isinstance(state, Mapping) else repr(state)[:200]
            raise ConfigError(
                f"this is not a state of TokenShards: found {found}; expected {', '.join(expected)}, as state_dict() "
                "returns them"
            )
        other = [name for name, value in self.as_dict().items() if state[name] != value]
        if other:
            told = "; ".join(f"{name}: {state[name]!r} in the state, {expected[name]!r} here" for name in other)
            what = "its position is in other data" if "corpus" in other else "its position means other samples here"
            raise ConfigError(
                f"the state belongs to another reading, {what}: {told}. Use the values of the state, or begin anew "
                "without it"
            )
        epoch, position = (whole(f"the state's {name}", state[name], 0) for name in ("epoch", "position"))
        if position % batches.size or position > max(batches.end, 0):
            raise ConfigError(
                f"the state has position {position:,}, expected a multiple of the batch size {batches.size:,}, and at "
                f"most {batches.end:,}, where the epoch ends"
            )
        return batches_after(epoch, position // batches.size, batches)


def batches_after(epoch: int, number: int, batches: Batches) -> tuple[int, int]:
    """Returns epoch and position after `number` global batches of an epoch: after the last, the next epoch begins.

    >>> batches_after(0, 2, Batches(10, 4, True)), batches_after(0, 2, Batches(10, 4, False))
    ((1, 0), (0, 8))
    """
    return (epoch + 1, 0) if number >= batches.count else (epoch, number * batches.size)


def check_share(batch_size: int, rank: int, world_size: int) -> tuple[int, int, int]:
    """Returns the numbers as Python has them. Raises ConfigError for a rank that there is not, and a batch that cannot
    be divided."""
    batch_size, world_size = whole("batch_size", batch_size, 1), whole("world_size", world_size, 1)
    rank = whole("rank", rank, 0)
    if rank >= world_size:
        raise ConfigError(f"rank is {rank}, expected a number below world_size, which is {world_size}")
    if batch_size % world_size:
        raise ConfigError(
            f"batch_size is {batch_size}, which {world_size} ranks cannot share equally; batch_size is that of all "
            f"ranks together: pass a multiple of world_size, such as {world_size * max(1, batch_size // world_size)}"
        )
    return batch_size, rank, world_size
