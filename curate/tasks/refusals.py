"""Whether a store that refused some shards would refuse all of them: credentials have expired, a bucket is gone.

Such a run would compute shard after shard, and have each refused at its end. What one shard is refused for itself, such
as a lock on one name, ends no run: others are accepted in between.
"""

from __future__ import annotations

from curate.tasks.failure import Refusal

LEAST_SHARDS = 3
"""Shards that are refused, with none accepted in between, before it is taken for the rule."""
MOST_SHARDS = 100
"""Shards that are refused, with none accepted in between, before no other is begun until these are tried again."""
LEAST_S = 7.0
"""How long none is accepted: as long as the waits between the tries of one shard, in which a right that was granted a
moment ago becomes known everywhere."""


def refuses_all(refusal: Refusal, shards: int, seconds: float, *, elsewhere: bool) -> bool:
    """Returns whether a store that has refused so many `shards`, and accepted none, for so many seconds refuses all.

    What is refused to be read may be one folder of the inputs, whose shards are neighbours: then a shard from
    `elsewhere` has to have been refused too. There is one place for outputs, and it takes minutes to make one.

    >>> refuses_all(Refusal.WRITE, 3, 7.0, elsewhere=False), refuses_all(Refusal.READ, 3, 7.0, elsewhere=False)
    (True, False)
    """
    return shards >= LEAST_SHARDS and seconds >= LEAST_S and (elsewhere or refusal is Refusal.WRITE)


class Refusals:
    """The shards that were refused since one was last accepted."""

    def __init__(self) -> None:
        self._shards: dict[Refusal, set[int]] = {}
        self._since_s: dict[Refusal, float] = {}
        self._elsewhere: set[Refusal] = set()

    @property
    def doubtful(self) -> bool:
        """Whether so many were refused that shards from elsewhere are to be tried next, at little cost."""
        return any(len(shards) >= LEAST_SHARDS for shards in self._shards.values())

    @property
    def lack_others(self) -> bool:
        """Whether others are to be tried, before those that were refused, to see whether all are."""
        few = any(len(shards) < LEAST_SHARDS for shards in self._shards.values())
        return few or (Refusal.READ in self._shards and Refusal.READ not in self._elsewhere)

    @property
    def suffice(self) -> bool:
        """Whether there are so many that time alone shows whether all are refused."""
        return any(
            len(shards) >= MOST_SHARDS and refuses_all(one, len(shards), LEAST_S, elsewhere=one in self._elsewhere)
            for one, shards in self._shards.items()
        )

    def accepted(self) -> None:
        """Notes that a shard was read, computed and published."""
        for noted in (self._shards, self._since_s, self._elsewhere):
            noted.clear()

    def refused(self, refusal: Refusal, shard: int, now_s: float, *, elsewhere: bool) -> bool:
        """Notes that a shard was refused, one from `elsewhere` or not; returns whether all would be."""
        shards, since_s = self._shards.setdefault(refusal, set()), self._since_s.setdefault(refusal, now_s)
        shards.add(shard)
        if elsewhere:
            self._elsewhere.add(refusal)
        return refuses_all(refusal, len(shards), now_s - since_s, elsewhere=refusal in self._elsewhere)
