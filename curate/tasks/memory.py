"""How much memory is asked for tasks because of what earlier ones held. Pure.

A node holds as many tasks as its CPUs allow, and says nothing of how much memory each takes. Where eight tasks of 6 GB
run on a node of 32, it runs out: some are killed, and all that they had done is paid for twice, again and again, for
only the shards that were killed ask for more. So what the first shards hold is what all others ask for, as soon as it
is more than a slot's share of its node: fewer run at once, and none is killed. Tasks that hold less ask for nothing.

What nine of ten shards stay below is asked for: a shard that holds far more than others is killed, and asks for itself.
"""

from __future__ import annotations

from collections import deque

from curate.units import GIB

LEAST_MEMORY = GIB
"""What a task that ran out of memory is taken to have had, at least: it asks for twice as much."""
KEPT = 100
"""Shards that it is learnt from: the last ones, so that it follows the data."""
BEYOND = 10
"""Of so many of them, one may have held more than what is asked for."""
FEW = 3
"""Of so many, one may have, too; of fewer, none: each may be what all others are like."""
ROOM = 1.1
"""What is asked for, to what was held."""
STEPS = 8
"""Parts of a slot's share that it is asked for in: a cluster places tasks that ask for different amounts apart."""
LOWER = 0.7
"""What is needed has to be so little of what is asked for before less is: a step up and down again helps nobody."""


class LearntMemory:
    """What tasks ask for, by what was held so far."""

    def __init__(self) -> None:
        self.asked: int | None = None
        """Bytes that each task is to ask for, at least; None: what it would ask for anyway."""
        self._held: deque[int] = deque(maxlen=KEPT)

    def held(self, held_bytes: int, share_bytes: int | None, most: int | None) -> bool:
        """Takes what the process of a shard held; returns whether another amount is asked for now.

        `share_bytes` is what a slot has of its node's memory if all slots have the same; None: not known, and nothing
        is asked for. `most` is the most that can be asked for.

        >>> learnt = LearntMemory()
        >>> learnt.held(3 << 30, 4 << 30, 32 << 30), learnt.asked
        (False, None)
        >>> learnt.held(6 << 30, 4 << 30, 32 << 30), learnt.asked / 2**30
        (True, 7.0)
        """
        self._held.append(held_bytes)
        if share_bytes is None or (self.asked is None and held_bytes <= share_bytes):
            return False
        return self._decide(share_bytes, most)

    def shared(self, share_bytes: int | None, most: int | None) -> bool:
        """Takes what a slot has now, of a cluster that has changed; returns whether another amount is asked for now."""
        if self.asked is None and not self._held:
            return False
        return self._decide(share_bytes, most)

    def _decide(self, share_bytes: int | None, most: int | None) -> bool:
        needed = None if share_bytes is None or not self._held else self._needed(share_bytes, most)
        if needed is not None and self.asked is not None and LOWER * self.asked < needed < self.asked:
            needed = self.asked if most is None else min(self.asked, most)
        before, self.asked = self.asked, needed
        return self.asked != before

    def _needed(self, share_bytes: int, most: int | None) -> int | None:
        """Returns what nine of ten shards need, None if a slot has that anyway."""
        inside = sorted(self._held)
        held = inside[-1 - max(len(inside) // BEYOND, len(inside) >= FEW)]
        if held <= share_bytes:
            return None
        step = max(1, share_bytes // STEPS)
        wanted = -(-int(held * ROOM) // step) * step
        return wanted if most is None else min(wanted, most)


def slots_with(asked: int | None, slots: int, share_bytes: int | None) -> int:
    """Returns how many of so many slots can be at work at once if tasks ask for that much, at least one of any.

    >>> slots_with(6 << 30, 8, 4 << 30), slots_with(None, 8, 4 << 30), slots_with(64 << 30, 2, 4 << 30)
    (5, 8, 1)
    """
    if asked is None or share_bytes is None or asked <= share_bytes:
        return slots
    return min(slots, max(1, int(slots * share_bytes / asked)))


def more_memory(had: int, peak_bytes: int, most: int | None) -> int | None:
    """Returns the bytes to ask for after a task ran out of memory, None if it had the `most` that there is.

    >>> more_memory(0, 3 * GIB, None) // GIB, more_memory(4 * GIB, 0, 6 * GIB) // GIB, more_memory(GIB, 0, GIB)
    (6, 6, None)
    """
    if most is not None and had >= most:
        return None
    wanted = 2 * max(had, peak_bytes, LEAST_MEMORY)
    return wanted if most is None else min(wanted, most)
