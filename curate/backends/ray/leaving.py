"""Ends tasks that nobody waits for any more, beside whatever goes on.

To kill a worker costs more than its task: a new process has everything to load again, and if the task had just ended,
the next one that Ray gave to that worker dies with it. So a stream is told to end where it stands still, waiting for
its block to be taken; there it hears within a second.

Ray may lose what it is told: of a task that a worker was given and has not begun, it then tells no end, and the CPU is
never free again. So a task is told until it has ended.

All of this is in a thread, which must not be the one to start Ray: Ray's functions do so, unasked, where the program
has shut Ray down meanwhile, and two that start Ray at once wait for each other for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray

from curate.backends.ray.cluster import node_here

NEXT_BLOCK_S = 5.0
"""How long a stream that nobody consumes any more may take to its next block before its worker is killed."""
AGAIN_S = 1.0
"""How long after it was told to end a task is told again, by force."""
TIMES_TOLD = 10
"""How often it is told before it is left to Ray: until a worker has started, a task that it was given may be lost."""
LOOK_S = 0.1
"""How often it is looked whether Ray is to be left."""


def tell(ref: Any, *, force: bool) -> None:
    """Tells a task to end, as `ray.cancel` does."""
    _asked(ray.cancel)(ref, force=force)


def stands(stream: Any) -> bool:
    """Returns whether a task waits for its next item to be taken, or has ended, without waiting.

    The generator's own `next_ready` waits for ever where Ray has lost the task's end.
    """
    return stream._stream_exhausted() or bool(_asked(ray.wait)([stream], timeout=0, fetch_local=False)[0])


def _asked(function: Any) -> Any:
    # The function that Ray has wrapped in one that starts Ray.
    return getattr(function, "__wrapped__", function)


@dataclass(slots=True)
class _Leaving:
    """Tasks that are to end."""

    streams: list[Any]
    """Those that may get to their next block first."""
    ends: list[Any]
    """What tells of each task that it has ended, streams too."""
    node: Any = field(default_factory=node_here)
    """What stands for the Ray that they run on."""
    left: threading.Event = field(default_factory=threading.Event)
    """Set where Ray is about to be left."""

    def run(self) -> None:
        # Where Ray is left meanwhile, all tasks are; in a thread that waits, it raises SystemExit.
        with suppress(Exception, SystemExit):
            until_s = time.monotonic() + NEXT_BLOCK_S
            while self.streams and time.monotonic() < until_s:
                standing, self.streams = self._wait(self.streams, 1)
                for ref in standing:
                    tell(ref, force=False)
            for ref in self.streams:
                tell(ref, force=True)
            for _ in range(TIMES_TOLD):
                until_s = time.monotonic() + AGAIN_S
                while self.ends and time.monotonic() < until_s:
                    _, self.ends = self._wait(self.ends, len(self.ends))
                for ref in self.ends:
                    tell(ref, force=True)

    def _wait(self, refs: list[Any], count: int) -> tuple[list[Any], list[Any]]:
        if self.left.is_set() or node_here() is not self.node:
            raise SystemExit
        found: tuple[list[Any], list[Any]] = _asked(ray.wait)(
            refs, num_returns=count, timeout=LOOK_S, fetch_local=False
        )
        return found


_running: dict[threading.Thread, _Leaving] = {}


def end_soon(streams: Sequence[Any], ends: Sequence[Any]) -> None:
    """Sees to it that tasks end; returns at once. `streams` get to their next block first, the others have been told;
    `ends` are what `ray.wait` tells the end of each by."""
    if not ends:
        return
    leaving = _Leaving(list(streams), list(ends))
    thread = threading.Thread(target=leaving.run, name="curate-leaving", daemon=True)
    for over in [one for one in _running if not one.is_alive()]:
        _running.pop(over, None)
    _running[thread] = leaving
    thread.start()


def stop() -> None:
    """Returns when nothing is told to end any more, because Ray, and all that runs there, is about to be left."""
    for thread, leaving in list(_running.items()):
        leaving.left.set()
        with suppress(RuntimeError):
            thread.join(10 * LOOK_S)
    _running.clear()
