"""Parts of a job: with which shards each of several drivers begins, and in which order it helps the others. Pure.

Part K of N is a range of neighbours in the plan, a N-th of all bytes: the slices of one input are read by one machine,
and machines list and write different ranges of names. Within its part a driver begins with the largest shard.

Then it helps. It begins with the part behind its own, so that no two drivers begin to help with the same one, and with
the end of what its driver would do last. Where several help with one part, they begin evenly spread over it:

    part 2 of 4, 12 shards left   0 1 2 3 4 5 6 7 8 9 10 11
    its own driver                > >
    helper of part 1                                  < <    begins at the end
    helper of part 0                          < <            a third before it
    helper of part 3                  < <                    two thirds before it
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from curate.dataclass import dataclass
from curate.errors import ConfigError

Numbers = Sequence[int]

PARTS = "CURATE_PARTS"
"""Number of parts of a Kubernetes job: it tells its pods their own number only."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which of several drivers of one output this one is.

    >>> str(Part.parse("2/4")), Part.parse("2/4").count
    ('2/4', 4)
    """

    index: int
    """From 0."""
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the part that a text such as `0/4` names. Raises ConfigError for any other text."""
        found = re.fullmatch(r"\s*([0-9]{1,9})\s*/\s*([0-9]{1,9})\s*", text) if isinstance(text, str) else None
        if found is None:
            raise ConfigError(f"part {text!r} is not K/N, such as 0/4 for the first of four drivers, and not auto")
        index, count = map(int, found.groups())
        if index >= count:
            ends = f"parts of {count} are 0/{count} to {count - 1}/{count}" if count else "there is at least one part"
            raise ConfigError(f"part {text!r} is out of range: {ends}")
        return cls(index, count)

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> Self:
        """Returns the part that Slurm, Kubernetes or torchrun gave to this process.

        >>> str(Part.of_environment({"RANK": "1", "WORLD_SIZE": "3"}))
        '1/3'

        Raises ConfigError if none did, or several did and do not agree.
        """
        found = {name: text for name, text in (one(environ) for one in _SCHEDULERS) if text}
        if not found:
            raise ConfigError(
                "this process has no number of Slurm (SLURM_ARRAY_TASK_ID), of Kubernetes "
                "(JOB_COMPLETION_INDEX) or of torchrun (RANK); give the part as K/N"
            )
        if len(set(found.values())) > 1:
            told = ", ".join(f"{name}: {text}" for name, text in found.items())
            raise ConfigError(f"this process has several numbers ({told}); give the part as K/N")
        return cls.parse(next(iter(found.values())))

    def own(self, sizes: Numbers, overhead: int) -> Any:
        """Returns one boolean a shard of the plan: whether it is in this part."""
        return part_of(sizes, overhead, self.count) == self.index


def part_of(sizes: Numbers, overhead: int, count: int) -> Any:
    """Returns the part of each shard of a plan: ranges of neighbours of about the same bytes.

    `overhead` is what a shard costs beside its bytes, in bytes.

    >>> part_of([5, 5, 5, 5, 20], 0, 2).tolist()
    [0, 0, 0, 0, 1]
    """
    costs = np.asarray(sizes, dtype=np.float64) + max(1, overhead)
    middles = np.cumsum(costs) - costs / 2
    return np.minimum((middles * count / costs.sum()).astype(np.int64), count - 1) if len(costs) else np.zeros(0, int)


def helping_order(part: Part, left: Any, parts: Any, sizes: Any) -> Any:
    """Returns the shards `left` of other parts in the order in which this driver takes them.

    `left` are ranks; `parts` and `sizes` are of all shards of the plan, by rank.
    """
    found = [np.zeros(0, dtype=np.int64)]
    for distance in range(1, part.count):
        theirs = left[parts[left] == (part.index + distance) % part.count]
        # As its own driver does them, backwards.
        theirs = theirs[np.argsort(-sizes[theirs], kind="stable")][::-1]
        found.append(np.roll(theirs, -(len(theirs) * (distance - 1) // (part.count - 1))))
    # Of more drivers than parts, or of another number of parts.
    own = left[parts[left] == part.index]
    return np.concatenate([*found, own])


def batch_of(order: Any, idle: int, drivers: int) -> Any:
    """Returns the shards to take now: half of this driver's share of what is left, and one for each idle slot at least.

    Then what is left is looked at again, by a listing of all outputs: a dozen of times for a thousand shards.
    """
    return order[: max(idle, len(order) // (2 * max(1, drivers)))]


def _of_slurm(environ: Mapping[str, str]) -> tuple[str, str]:
    number, first = environ.get("SLURM_ARRAY_TASK_ID", ""), environ.get("SLURM_ARRAY_TASK_MIN", "0")
    step = environ.get("SLURM_ARRAY_TASK_STEP", "1")
    if not number:
        return "Slurm", ""
    count = _count(environ, "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT")
    if not all(one.isascii() and one.isdigit() for one in (number, first, step)) or int(number) < int(first):
        return "Slurm", f"{number}/{count}"
    after = int(number) - int(first)
    # An array of single numbers (1,5,9) has no step: what is out of range is refused.
    return "Slurm", f"{after if after % max(1, int(step)) else after // max(1, int(step))}/{count}"


def _of_kubernetes(environ: Mapping[str, str]) -> tuple[str, str]:
    number = environ.get("JOB_COMPLETION_INDEX", "")
    if number and PARTS not in environ:
        raise ConfigError(
            f"JOB_COMPLETION_INDEX is {number}, but a Kubernetes job does not tell its pods how many there "
            f"are: set {PARTS} to its completions, as in infra/parts-kubernetes.yaml"
        )
    return "Kubernetes", f"{number}/{environ[PARTS]}" if number else ""


def _of_torchrun(environ: Mapping[str, str]) -> tuple[str, str]:
    number = environ.get("RANK", "")
    return "torchrun", f"{number}/{_count(environ, 'RANK', 'WORLD_SIZE')}" if number else ""


def _count(environ: Mapping[str, str], number: str, count: str) -> str:
    if not (text := environ.get(count, "")):
        raise ConfigError(
            f"{number} is {environ[number]}, but {count}, the number of parts, is not set; give K/N instead"
        )
    return text


_SCHEDULERS = (_of_slurm, _of_kubernetes, _of_torchrun)
