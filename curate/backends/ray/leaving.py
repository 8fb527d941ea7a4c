"""Ends tasks that nobody waits for any more.

To kill a worker costs more than its task: a new process has everything to load again, and if the task had just ended,
the next one that Ray gave to that worker dies with it. So a stream is told to end where it stands still, waiting for
its block to be taken; there it hears within a second or two.

Ray may lose what it is told: of a task that a worker was given and has not begun, it then tells no end, and the CPU is
never free again. So a task is told until it has ended.

Nothing of this is left to a thread. Where the program shuts Ray down meanwhile, Ray's functions start another one,
unasked, and two that start at once wait for each other for ever; or the whole process is ended by Ray.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray

NEXT_BLOCK_S = 3.0
"""How long a stream that nobody consumes any more may take to its next block before its worker is killed. Whoever stops
consuming waits so long at most."""
AGAIN_S = 2.0
"""How long after it was told to end a task is told again, by force."""
TIMES_TOLD = 3
"""How often it is told before it is left to Ray."""


def stands(stream: Any) -> bool:
    """Returns whether a task waits for its next item to be taken, or has ended, without waiting.

    The generator's own `next_ready` waits for ever where Ray has lost the task's end.
    """
    return stream._stream_exhausted() or bool(ray.wait([stream], timeout=0, fetch_local=False)[0])


def end_streams(streams: Sequence[Any]) -> None:
    """Tells tasks to end that stream blocks: where they stand, if they get there soon, else by force."""
    left, until_s = list(streams), time.monotonic() + NEXT_BLOCK_S
    while left and (left_s := until_s - time.monotonic()) > 0:
        standing, left = ray.wait(left, timeout=left_s, fetch_local=False)
        for ref in standing:
            ray.cancel(ref, force=False)
    for ref in left:
        ray.cancel(ref, force=True)


def kill_until_ended(ends: Sequence[Any]) -> None:
    """Waits until tasks have ended that were told to, and tells them again; `ends` are what tells that they have."""
    left = list(ends)
    for _ in range(TIMES_TOLD):
        if left:
            _, left = ray.wait(left, num_returns=len(left), timeout=AGAIN_S, fetch_local=False)
        for ref in left:
            ray.cancel(ref, force=True)
