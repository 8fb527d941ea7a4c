"""Posts events one after the other, in a thread of its own, and marks those that arrived."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from curate.clock import Clock
from curate.errors import CurateError
from curate.log import get_logger
from curate.notify.marks import mark
from curate.notify.message import Event
from curate.notify.receiver import PostError

if TYPE_CHECKING:
    from tenacity import RetryCallState

TRY_S = 600.0
"""How long a post is tried while the run goes on."""
END_S = 5.0
"""How long the end of a run waits for its posts: what was not told by then, the next run tells."""
LATER = "the next run with notify sends it"
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0


class To(Protocol):
    """What takes posts: `Receiver`, or a test's."""

    @property
    def name(self) -> str:
        """Who it is, as may be said to everybody."""

    def post(self, message: Mapping[str, Any]) -> None:
        """Posts a message once. Raises PostError."""


class Poster:
    """Posts events in order. A receiver that does not answer delays nobody but the ones behind."""

    def __init__(self, to: To, by: str, clock: Clock, *, try_s: float = TRY_S, later: str = LATER) -> None:
        """`by` is who tells, as messages say it; `later` says who sends what does not arrive."""
        self.by = by
        self._to = to
        self._clock = clock
        self._try_s = try_s
        self._later = later
        self._queue: deque[Event] = deque()
        self._changed = threading.Condition()
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None
        self._log = get_logger()

    def put(self, *events: Event, first: bool = False) -> None:
        """Has events posted; `first`: before those that wait. Never waits."""
        with self._changed:
            (self._queue.extendleft if first else self._queue.extend)(events)
            if self._thread is None and events:
                # A daemon: a receiver that does not answer keeps no process from ending.
                self._thread = threading.Thread(target=self._work, name="curate-notify", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, within_s: float = END_S) -> None:
        """Ends the thread once all is posted, or tried once more; gives up after `within_s`."""
        with self._changed:
            self._leaving.set()
            self._changed.notify_all()
        if self._thread is None:
            return
        try:
            self._thread.join(within_s)
        except KeyboardInterrupt:
            # The run is over and says so; only this is given up.
            self._log.warning(f"interrupted while a notification was sent; {self._later}")
            return
        if self._thread.is_alive():
            self._log.warning(f"no time was left to send a notification; {self._later}", host=self._to.name)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    if self._leaving.is_set():
                        return
                    self._changed.wait()
                event = self._queue.popleft()
            try:
                self.tell(event)
            except Exception:  # noqa: BLE001 - were this thread to die, nothing more would be told
                self._log.warning(f"a notification was not sent; {self._later}", exc_info=True)

    def tell(self, event: Event) -> bool:
        """Posts an event, again and again if it does not arrive, and marks it. Returns whether it arrived."""
        from tenacity import Retrying, retry_if_exception, wait_random_exponential

        message = event.message(self.by)
        started_s = self._clock.monotonic()

        def stop(state: RetryCallState) -> bool:
            return self._leaving.is_set() or self._clock.monotonic() - started_s + state.upcoming_sleep > self._try_s

        try:
            Retrying(
                sleep=self._nap,
                stop=stop,
                wait=wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S),
                retry=retry_if_exception(lambda error: isinstance(error, PostError) and error.again),
                reraise=True,
            )(self._to.post, message)
        except PostError as error:
            self._log.warning(
                f"a notification was not sent; {self._later}",
                of=event.id,
                state=event.state,
                why=str(error),
            )
            return False
        self.mark(event)
        return True

    def mark(self, event: Event) -> None:
        """Notes in the ledger that an event has arrived."""
        about = {"told_by": self.by, "at": self._clock.now(), "id": event.id}
        for output, run_id in ((event.output, event.run_id), *event.also):
            try:
                mark(output, run_id, event.name, about)
            except CurateError as error:
                self._log.warning(
                    "cannot record that a notification was sent; it is sent again, with the same id",
                    of=event.id,
                    error=str(error),
                )

    def _nap(self, seconds: float) -> None:
        """Waits between two attempts, no longer than until somebody wants to leave."""
        self._leaving.wait(seconds)
