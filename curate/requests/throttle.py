"""Limits a process's concurrent requests to one store: more while they succeed, half as many when they are refused.

Additive increase, multiplicative decrease, as in TCP (Chiu and Jain, 1989): clients that know nothing of each other
come to share what the store can take. As in CUBIC, a window remembers where it was refused and stays below for a while:
one that only goes up and down is refused at every turn. Full jitter alone, on the other hand, lets few clients through
and makes the others wait for half a minute.

`Window` and its two transitions are values; `Limiter` puts them around requests. Waiting between attempts is the
business of `Retry` and happens outside: a request that waits takes no place. A process that makes one request at a time
has nothing to narrow; there the waits do the work.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Iterator
from weakref import WeakValueDictionary

from curate.around import contextmanager
from curate.clock import Clock, SystemClock
from curate.dataclass import dataclass, replace
from curate.errors import TransientStorageError


@dataclass(frozen=True, slots=True)
class Bounds:
    """Between what the limit moves, and how fast."""

    start: int = 16
    """Requests at once before anything is known of the store."""
    floor: int = 1
    ceiling: int = 64
    kept: float = 0.5
    """The share of the limit that a refusal leaves."""
    probe_s: float = 10.0
    """How long after a refusal the limit stays below the one that was refused."""

    def __post_init__(self) -> None:
        if not (1 <= self.floor <= self.start <= self.ceiling and 0 < self.kept < 1):
            raise ValueError(f"{self}: expected 1 <= floor <= start <= ceiling and 0 < kept < 1")


@dataclass(frozen=True, slots=True)
class Window:
    """How many requests may be under way at once, and what was seen since that changed."""

    limit: int
    successes: int = 0
    """Requests that succeeded with the window full, since the limit last changed."""
    lowered_s: float = -math.inf
    """When the limit was last lowered, by a monotonic clock."""
    refused_at: float = math.inf
    """The limit that was lowered then."""

    def succeeded(self, bounds: Bounds, *, full: bool, now_s: float) -> Window:
        """Returns the window after a request was answered: one wider after `limit` of them.

        A window that was not `full` was not tried out, and says nothing about a wider one.

        >>> Window(2, successes=1).succeeded(Bounds(), full=True, now_s=0.0).limit
        3
        >>> Window(2, 1, lowered_s=50.0, refused_at=3).succeeded(Bounds(), full=True, now_s=59.0).limit
        2
        """
        refused = self.limit + 1 >= self.refused_at and now_s - self.lowered_s < bounds.probe_s
        if not full or refused or self.limit >= bounds.ceiling:
            return self
        if self.successes + 1 < self.limit:
            return replace(self, successes=self.successes + 1)
        return replace(self, limit=self.limit + 1, successes=0)

    def refused(self, bounds: Bounds, *, sent_s: float, now_s: float) -> Window:
        """Returns the window after a request was throttled, reset or timed out: half as wide.

        A request that was `sent_s` before the limit was last lowered is of the old window and says nothing of the new
        one: so the refusals of a burst count once.

        >>> lowered = Window(16).refused(Bounds(), sent_s=4.5, now_s=5.0)
        >>> lowered
        Window(limit=8, successes=0, lowered_s=5.0, refused_at=16)
        >>> lowered.refused(Bounds(), sent_s=4.9, now_s=7.0).limit
        8
        """
        if sent_s < self.lowered_s:
            return replace(self, successes=0)
        return Window(max(bounds.floor, int(self.limit * bounds.kept)), 0, now_s, self.limit)


_LIMITERS: WeakValueDictionary[int, Limiter] = WeakValueDictionary()
"""Those of this process. Threads add to them while others look: `valuerefs` copies them in one step, which no lock does
that the child of a fork might find taken."""
REFUSED_S = 60.0
"""A store that refused a request so long ago still counts as one that does."""


def refusing() -> str:
    """Returns in words that a store refuses requests of this process; empty if none does now."""
    for reference in _LIMITERS.valuerefs():
        if (one := reference()) is not None and (text := one.refusing()):
            return text
    return ""


class _Line(threading.local):
    """How long a thread has waited for places so far."""

    waited_s = 0.0


_LINE = _Line()


def waited_s() -> float:
    """Returns how many seconds this thread has waited for places so far: those are not the store's."""
    return _LINE.waited_s


class Limiter:
    """Lets the requests of one process to one store through, first come first served. Safe to share between threads.

    A thread holds at most one place. So one that is interrupted in the middle of a request and makes another does not
    wait for itself, and the place of a thread that ended without giving it back is free.
    """

    REAP_S = 1.0
    """How often one that waits looks for places whose threads have ended."""

    def __init__(self, bounds: Bounds | None = None, clock: Clock | None = None) -> None:
        self._bounds = bounds or Bounds()
        self._clock = clock or SystemClock()
        self._window = Window(self._bounds.start)
        self._changed = threading.Condition()
        self._held: set[threading.Thread] = set()
        self._queue: deque[object] = deque()
        _LIMITERS[id(self)] = self

    def refusing(self) -> str:
        """Returns in words that the store refuses requests; empty if it does not now."""
        window = self._window
        if self._clock.monotonic() - window.lowered_s > REFUSED_S:
            return ""
        at_once = "1 request" if window.limit == 1 else f"{window.limit:,} requests"
        before = f" instead of {window.refused_at:,.0f}" if window.limit < window.refused_at else ""
        return f"the store refuses or loses requests: {at_once} at once{before}"

    @property
    def window(self) -> Window:
        """The window as it is now."""
        return self._window

    @property
    def under_way(self) -> int:
        """Requests being made now."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._queue)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Holds a place while its block makes one request, and learns from how that ends.

        TransientStorageError is a refusal. Every other error is an answer, but an interrupt says nothing.
        """
        mine = threading.current_thread()
        try:
            self._enter(mine)
            sent_s = self._clock.monotonic()
            try:
                yield
            except TransientStorageError:
                with self._changed:
                    self._window = self._window.refused(self._bounds, sent_s=sent_s, now_s=self._clock.monotonic())
                raise
            except Exception:
                self._succeeded()
                raise
            self._succeeded()
        finally:
            with self._changed:
                self._held.discard(mine)
                self._changed.notify_all()

    def _enter(self, mine: threading.Thread) -> None:
        """Waits for a place, behind those who came before."""
        ticket = object()
        with self._changed:
            if mine in self._held:
                return
            begun_s = self._clock.monotonic()
            self._queue.append(ticket)
            try:
                while self._queue[0] is not ticket or not self._free():
                    self._changed.wait(self.REAP_S)
                self._held.add(mine)
            finally:
                self._queue.remove(ticket)
                _LINE.waited_s += self._clock.monotonic() - begun_s
                # There may be room for the next in line too.
                self._changed.notify_all()

    def _free(self) -> bool:
        if len(self._held) >= self._window.limit:
            self._held = {thread for thread in self._held if thread.is_alive()}
        return len(self._held) < self._window.limit

    def _succeeded(self) -> None:
        with self._changed:
            full = len(self._held) + len(self._queue) >= self._window.limit
            self._window = self._window.succeeded(self._bounds, full=full, now_s=self._clock.monotonic())


_of_services: dict[tuple[int, str], Limiter] = {}
"""By process and service."""


def limiter_of(service: str) -> Limiter:
    """Returns the limiter of all stores of this process that speak to a service and were not given their own."""
    # The child of a fork has none of the threads that its parent's limiter waits for.
    key = (os.getpid(), service)
    return _of_services.get(key) or _of_services.setdefault(key, Limiter())
