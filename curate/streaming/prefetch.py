"""Work ahead of the consumer: an iterator runs in a thread, and what it makes goes to one consumer or to several.

What is made and not taken is bounded, and nothing is begun that has no room: item k goes to outlet k mod n, and is
asked for when fewer than `ahead` items wait there. So a consumer that is slow holds up the others. The iterator lives
and dies in its thread alone.
"""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Stopped = Callable[[], bool]
"""Tells a source whether anybody still wants what it makes; one that waits for something asks it often."""
Make = Callable[[Stopped], Generator[T]]
"""Makes a source."""


Around = Callable[[], AbstractContextManager[Any]]
"""Makes what is there while a source is."""
POLL_S = 0.1
"""How often a wait for something asks whether it is still wanted."""


def never_stopped() -> bool:
    """Says that a source is wanted to its end."""
    return False


def prefetched(make: Make[T], ahead: int, around: Around = nullcontext) -> Generator[T]:
    """Yields what a source gives, of which a thread makes `ahead` items ahead; 0: none, and no thread.

    Nothing runs before the first item is asked for. `around` is entered in the thread of the consumer before the source
    is made, and left when it has ended. What the source raises comes after what it gave before, as it is. To stop early
    ends the source, and returns when its thread has ended.
    """
    if ahead:
        yield from Prefetcher(make, 1, ahead, around).items(0)
    else:
        with around():
            yield from make(never_stopped)


class Prefetcher(Generic[T]):
    """Runs a source in a thread, from the first item that is asked for until all outlets are closed.

    State: what waits at each outlet; which outlets are open; whether the source has ended, and by which error; whether
    it is to stop. All of it is guarded by one condition, whose lock is reentrant: the collector of garbage may close an
    outlet in any thread, and in the middle of anything.
    """

    def __init__(self, make: Make[T], outlets: int, ahead: int, around: Around = nullcontext) -> None:
        self._make = make
        self._around = around
        self._entered = ExitStack()
        self._unattended = False
        """Whether nobody waits for the thread, so that it is the one to leave what is around."""
        self._ahead = ahead
        self._waiting: list[deque[T]] = [deque() for _ in range(outlets)]
        self._open = set(range(outlets))
        self._ended = False
        self._stopped = False
        self._error: BaseException | None = None
        """What the source raised: each outlet's consumer gets it."""
        self._failed_close: BaseException | None = None
        """What the source raised when it was closed early: whoever closed the last outlet gets it."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def items(self, outlet: int, stopped: Stopped = never_stopped) -> Generator[T]:
        """Yields what comes to an outlet, until `stopped`.

        Closing it closes the outlet; what would come to it is let go of.
        """
        try:
            while self._wait(outlet, stopped):
                # Not by a name: this frame must not keep what the consumer has let go of.
                yield self._take(outlet)
        finally:
            self.leave(outlet)

    def leave(self, outlet: int) -> None:
        """Closes an outlet. With the last one the source ends: this returns when its thread has ended."""
        with self._changed:
            self._open.discard(outlet)
            self._waiting[outlet].clear()
            if not self._open:
                self._stopped = True
            self._changed.notify_all()
            thread = self._thread if self._stopped else None
            self._unattended = thread is threading.current_thread()
        if thread is None or self._unattended:
            return
        thread.join()
        self._entered.close()
        with self._changed:
            # It holds on to the frames that it went through, and so to this.
            self._error = None
            failed, self._failed_close = self._failed_close, None
        if failed is not None:
            raise failed

    @property
    def closed(self) -> bool:
        """Whether all outlets are closed."""
        return not self._open

    def _wait(self, outlet: int, stopped: Stopped) -> bool:
        """Waits until there is something to take; False if nothing comes any more. Raises what the source raised."""
        with self._changed:
            if self._thread is None:
                self._entered.enter_context(self._around())
                # As if it were the consumer's own thread: in its context.
                context = contextvars.copy_context()
                self._thread = threading.Thread(target=context.run, args=(self._run,), name="prefetch", daemon=True)
                self._thread.start()
            while not self._waiting[outlet] and not self._ended:
                if stopped():
                    return False
                self._changed.wait(None if stopped is never_stopped else POLL_S)
            if not self._waiting[outlet] and self._error is not None:
                raise self._error
            return bool(self._waiting[outlet])

    def _take(self, outlet: int) -> T:
        with self._changed:
            self._changed.notify_all()
            return self._waiting[outlet].popleft()

    # In the thread

    def _run(self) -> None:
        source: Generator[T] | None = None
        try:
            source = self._make(self._is_stopped)
            number = 0
            while self._has_room(number % len(self._waiting)) and self._move(source, number % len(self._waiting)):
                number += 1
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the consumer's
            self._error = error
        finally:
            try:
                if source is not None:
                    source.close()
            except BaseException as error:  # noqa: BLE001 - as above
                self._failed_close = error
            if self._unattended:
                self._entered.close()
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _is_stopped(self) -> bool:
        return self._stopped

    def _has_room(self, outlet: int) -> bool:
        """Waits for room at an outlet; False when the source is to stop. Nothing waits at one that is closed."""
        with self._changed:
            while not self._stopped and len(self._waiting[outlet]) >= self._ahead:
                self._changed.wait()
            return not self._stopped

    def _move(self, source: Generator[T], outlet: int) -> bool:
        """Puts the next item to an outlet; False if there is none. Its frame ends, and with it what it holds."""
        try:
            item = next(source)
        except StopIteration:
            return False
        with self._changed:
            if outlet in self._open:
                self._waiting[outlet].append(item)
                self._changed.notify_all()
        return True
