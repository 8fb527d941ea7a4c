"""Retrying one storage call: full jitter between attempts, a deadline over all of them.

Only TransientStorageError is retried; everything else passes through at once. A service that has answered once may be
away for two minutes. One that has never answered is probably a wrong address, which is said after some seconds. The
clock is handed in, so that tests of both take no time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from curate.clock import Clock, SystemClock
from curate.dataclass import dataclass, field
from curate.errors import TransientStorageError
from curate.log import get_logger, unheard
from curate.requests.reached import REACHED, Place
from curate.requests.throttle import waited_s

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")
SAID_AFTER_S = 10.0
"""After which a call that is tried again says so, and how long a process then says nothing of others."""


class _Said:
    """When this process last said that a store does not answer: threads wait for the same one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said_s: float | None = None

    def may_say(self, now_s: float) -> bool:
        """Returns whether it is time to say so, and takes note of it."""
        with self._lock:
            # Another clock, of a test, may be behind.
            if self._said_s is not None and 0 <= now_s - self._said_s < SAID_AFTER_S:
                return False
            self._said_s = now_s
            return True


_SAID = _Said()


@dataclass(frozen=True, slots=True)
class Retry:
    """How long and how often a call is tried."""

    deadline_s: float = 120.0
    """No attempt starts later than this many seconds after the first one did, less what the call waited for its turn
    behind others of its process. The last may take `attempt_s` more."""
    first_look_s: float = 5.0
    """The same for a place that has never answered, waiting for turns included."""
    first_wait_s: float = 0.5
    """Upper bound of the first random wait; it doubles with every attempt (full jitter)."""
    longest_wait_s: float = 32.0
    """Upper bound of every wait."""
    stall_s: float = 60.0
    """An attempt that receives nothing for this many seconds has failed."""
    first_answer_s: float = 15.0
    """The same for one that sends nothing to a place that has never answered: what takes connections there may be
    another service, which waits for something else."""
    slow_bytes_per_s: int = 64 << 10
    """An attempt that moves fewer bytes a second than this has failed too: see `attempt_s`."""
    clock: Clock = field(default_factory=SystemClock)

    def silence_s(self, place: Place, sent_bytes: int) -> float:
        """Returns how long an attempt waits for the first byte, or the next, that has so many bytes to send."""
        is_first_look = place not in REACHED and not sent_bytes
        return min(self.first_answer_s, self.stall_s) if is_first_look else self.stall_s

    def attempt_s(self, moved_bytes: int) -> float:
        """Returns how long an attempt may take that has moved so many bytes so far.

        A small one ends within `stall_s`, also one whose answer drips in byte by byte; a large one may be slow, but not
        that slow.

        >>> Retry(stall_s=60.0, slow_bytes_per_s=1 << 16).attempt_s(32 << 20)
        572.0
        """
        return self.stall_s + moved_bytes / self.slow_bytes_per_s

    def call(self, what: str, attempt: Callable[[], T], place: Place | None = None) -> T:
        """Returns the first result of `attempt`, which is called again whenever it raises TransientStorageError.

        Raises TransientStorageError, naming `what`, when the next attempt would start after the deadline. Without a
        `place` that is `deadline_s`, whether or not anything has answered.
        """
        # Late: it imports asyncio, and a run on disk calls no service.
        from tenacity import Retrying, retry_if_exception_type, wait_random_exponential

        clock = self.clock
        started, waited = clock.monotonic(), waited_s()

        def unknown() -> bool:
            return place is not None and place not in REACHED

        def took_s() -> float:
            # A wrong address is told soon, however many ask there.
            return clock.monotonic() - started - (0.0 if unknown() else waited_s() - waited)

        def stop(state: RetryCallState) -> bool:
            limit_s = min(self.first_look_s, self.deadline_s) if unknown() else self.deadline_s
            return took_s() + state.upcoming_sleep > limit_s

        def give_up(state: RetryCallState) -> T:
            assert state.outcome is not None
            last = state.outcome.exception()
            tried = f"{state.attempt_number} attempts in {took_s():.0f} s"
            if place is not None and unknown():
                raise TransientStorageError(
                    f"{what}: {place.name} cannot be reached: {last} ({tried}); check {place.check} and the network, "
                    "then run again"
                ) from last
            raise TransientStorageError(
                f"{what}: {tried} failed, the last with: {last}; expected an answer within {self.deadline_s:.0f} s; "
                "the store is unreachable or throttled: check the network and quota, then run again"
            ) from last

        def say(state: RetryCallState) -> None:
            assert state.outcome is not None
            now_s = clock.monotonic()
            if took_s() >= SAID_AFTER_S and _SAID.may_say(now_s):
                limit_s = min(self.first_look_s, self.deadline_s) if unknown() else self.deadline_s
                with unheard():
                    get_logger().warning(
                        "a store does not answer, or refuses; it is tried again",
                        call=what,
                        error=str(state.outcome.exception()),
                        since=f"{took_s():.0f} s, of {limit_s:.0f} s at most",
                    )

        found: T = Retrying(
            sleep=clock.sleep,
            before_sleep=say,
            stop=stop,
            wait=wait_random_exponential(multiplier=self.first_wait_s, max=self.longest_wait_s),
            retry=retry_if_exception_type(TransientStorageError),
            retry_error_callback=give_up,
        )(attempt)
        if place is not None:
            REACHED.add(place)
        return found
