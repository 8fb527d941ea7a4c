"""Follows a job's log to its end, whatever becomes of the connection: nothing is shown twice, nothing is left out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from .connect import Api, ConnectionLost, details

POLL_S = 3.0
"""Between two looks at the job's state. A look fails in time; a log in a dead connection is silent for ever."""
ASLEEP_S = 20.0
"""A look that comes that much later than it should: the machine slept, and its connections are gone."""
DRAIN_S = 10.0
"""For the rest of the log of a job that ended."""
LONGEST_PAUSE_S = 30.0
ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


class Source(Protocol):
    """A job on a cluster."""

    def tail(self) -> AsyncIterator[str]:
        """Yields the job's log from its beginning, until the job ends."""

    def details(self) -> Mapping[str, Any] | None:
        """Returns what the cluster knows of the job; None if it does not know it. Raises ConnectionLost."""

    def reconnect(self) -> None:
        """Makes the connection anew. Raises ConnectionLost."""


async def follow(
    source: Source,
    show: Callable[[str], None],
    say: Callable[[str], None],
    *,
    now: Callable[[], float] = time.time,
    poll_s: float | None = None,
) -> Mapping[str, Any] | None:
    """Shows a job's log until the job has ended; returns what the cluster says of it, None if it lost the job.

    A connection that breaks is made anew, for as long as it takes; after longer and longer pauses, unless the log went
    on meanwhile, or was open for as long as a look takes.
    """
    poll_s = POLL_S if poll_s is None else poll_s
    log = _Log(show)
    failures = 0
    while True:
        pump, shown = asyncio.create_task(log.pump(source.tail())), log.shown
        try:
            while True:
                before = now()
                await asyncio.wait({pump}, timeout=poll_s)
                if now() - before > poll_s + ASLEEP_S:
                    raise ConnectionLost("this machine slept")
                state = await asyncio.to_thread(source.details)
                if log.shown > shown or not pump.done():
                    failures = 0
                if state is None or state["status"] in ENDED:
                    await asyncio.wait({pump}, timeout=DRAIN_S)
                    return state
                if pump.done():
                    reason = pump.exception()
                    raise ConnectionLost(str(reason) if reason else "the log ended before the job")
        except ConnectionLost as lost:
            say(f"connection lost ({lost}); the job continues; reconnecting")
        finally:
            pump.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await pump
        while True:
            await asyncio.sleep(0 if not failures else min(LONGEST_PAUSE_S, poll_s * 2**failures))
            failures += 1
            try:
                await asyncio.to_thread(source.reconnect)
                break
            except ConnectionLost:
                continue


class _Log:
    """What was shown of a log that begins anew with each connection."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self.shown = 0
        """Characters so far."""

    async def pump(self, pieces: AsyncIterator[str]) -> None:
        position = 0
        async for piece in pieces:
            fresh = piece[max(0, self.shown - position) :]
            position += len(piece)
            if fresh:
                self._show(fresh)
                self.shown = position


class RayJob:
    """A job that Ray's job server knows, as a source."""

    def __init__(self, api: Api, submission: str, reopen: Callable[[], None] | None = None) -> None:
        self._api = api
        self._submission = submission
        self._reopen = reopen

    async def tail(self) -> AsyncIterator[str]:
        from ray.job_submission import JobSubmissionClient

        headers = {} if self._api.token is None else {"Authorization": f"Bearer {self._api.token}"}
        client = await asyncio.to_thread(JobSubmissionClient, self._api.address, headers=headers)
        async for piece in client.tail_job_logs(self._submission):
            yield piece

    def details(self) -> Mapping[str, Any] | None:
        return details(self._api, self._submission)

    def reconnect(self) -> None:
        if self._reopen is not None:
            self._reopen()
