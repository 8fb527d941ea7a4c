"""How the driver of a part helps the others: with what, when it looks at what they have done, and for what it waits.

When it is about to run out of work, it lists the outputs and reads the heartbeats of the others. It takes a batch of
the shards that have no output and that nobody runs; then it looks again. It leaves a shard that another driver runs to
that driver, as long as the heartbeat of that one changes. So a shard runs twice if two drivers take it within a
heartbeat (10 s), or if a driver is stopped and goes on later. Create-only publishing makes that safe. Before each shard
a worker looks whether its output exists: two drivers that meet in one part do one shard twice, not all that follow.

What it costs, in storage calls: one small read for each shard; and for each look a listing, or as many small reads as
shards are left if these are few, and a small read for each driver that goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from curate.clock import Clock
from curate.driver.finish import late_outputs
from curate.driver.rivals import OtherDrivers
from curate.driver.run_recorder import RunRecorder
from curate.errors import ObjectNotFound
from curate.ledger.heartbeat import Heartbeat
from curate.ledger.listing import OutputListing, OutputMatch, match_outputs
from curate.resume.history import JobOutputs, recovered
from curate.resume.state import Prepared
from curate.tasks.events import Event, Found, Released
from curate.tasks.failure import ShardRecord
from curate.tasks.parts import Part, batch_of, helping_order, part_of
from curate.tasks.scheduler import SHARD_OVERHEAD_BYTES, Scheduler
from curate.units import format_count

LEAST_WAIT_S = 0.5
MOST_WAIT_S = 10.0
"""Time between two looks while there is nothing to take; doubles each time. Heartbeats are as far apart."""
FEW_SHARDS = 12
"""Shards left, for each 1,000 outputs, up to which each one is looked at: a page of a listing costs as much."""

MOST_LISTINGS = 3
"""How often outputs are listed anew, where one is removed before its books are read."""


def held_back(part: Part | None, prepared: Prepared) -> Any:
    """Returns one boolean for each shard of `todo`: whether other drivers begin with it; None if there are none."""
    if part is None:
        return None
    return ~part.own(prepared.plan.sizes, SHARD_OVERHEAD_BYTES)[prepared.todo]


def describe_part(part: Part | None, prepared: Prepared) -> str:
    """Returns with what the driver of a part would begin, for `--dry-run`."""
    if (held := held_back(part, prepared)) is None:
        return ""
    return f"part     {part}: begins with {(~held).sum():,} of these, then helps with the others"


class Helping:
    """What one driver knows of the work of the others."""

    def __init__(
        self, part: Part, prepared: Prepared, scheduler: Scheduler, account: RunRecorder, clock: Clock
    ) -> None:
        self._part, self._prepared, self._scheduler = part, prepared, scheduler
        self._account, self._clock = account, clock
        self._parts = part_of(prepared.plan.sizes, SHARD_OVERHEAD_BYTES, part.count)
        self._others = OtherDrivers(prepared.ledger, part, clock)
        self._run_ids = prepared.run_ids
        self._seen: tuple[OutputListing, OutputMatch] | None = None
        """The outputs as they were listed last."""
        self._unread = np.zeros(len(prepared.plan), dtype=bool)
        """Shards that others have done, of which nothing else is known yet."""
        self._next_look_s = -np.inf
        self._wait_s = LEAST_WAIT_S

    def look(self) -> list[Event]:
        """Returns what is news for the scheduler: shards that others have done, and those to help with. Raises
        JobReplacedError, StorageError."""
        if self._clock.monotonic() < self._next_look_s or not (idle := self._scheduler.idle):
            return []
        held = self._scheduler.held()
        if not len(held):
            return []
        done = self._done(held)
        left = held[~done]
        alive = self._others.alive(self._run_ids)
        order = helping_order(self._part, left[~self._at_hand(alive)[left]], self._parts, self._prepared.plan.sizes)
        batch = batch_of(order, idle, 1 + len(alive))
        self._wait_s = LEAST_WAIT_S if len(batch) else min(MOST_WAIT_S, 2 * self._wait_s)
        self._next_look_s = self._clock.monotonic() + (0.0 if len(batch) else self._wait_s)
        waits = len(left) if not len(batch) else 0
        self._account.helps(batch, _waiting(waits, alive, self._clock.now()) if waits else "")
        return [Found(held[done].tolist()), Released(batch.tolist())]

    def _done(self, held: Any) -> Any:
        """Returns which of these shards have an output by now."""
        few = self._seen and len(held) <= FEW_SHARDS * (1 + len(self._seen[0].objects) // 1000)
        if few and not self._prepared.plan.came_back[held].any():
            found = {record.index: record for record in late_outputs(self._prepared, held)}
            self._account.found_elsewhere(list(found))
            for record in found.values():
                self._account.gathered(record)
            return np.isin(held, list(found))
        done: Any = self._listed().done[held]
        self._unread[held[done]] = True
        self._account.found_elsewhere(held[done])
        return done

    def _listed(self) -> OutputMatch:
        prepared = self._prepared
        listing = prepared.ledger.list()
        prepared.owned.confirm_by(listing)
        self._run_ids = frozenset(listing.run_ids) - {prepared.run_id}
        matched = match_outputs(prepared.plan, listing, prepared.record.suffix)
        self._seen = listing, matched
        return matched

    def _at_hand(self, alive: Sequence[Heartbeat]) -> Any:
        """Returns one boolean a shard of the plan: whether another driver runs it now."""
        plan = self._prepared.plan
        taken = np.zeros(len(plan), dtype=bool)
        for one in plan.ranked({"index": number} for beat in alive for number in beat.at_hand):
            if 0 <= one["index"] < len(plan):
                taken[one["index"]] = True
        return taken

    def gather(self) -> Any:
        """Books what others have done, from their events, else from the outputs. Raises StorageError, ConfigError.

        Returns the ranks of those whose output was removed since it was seen: they are booked as done, of no rows.
        """
        for _ in range(MOST_LISTINGS):
            with contextlib.suppress(ObjectNotFound):
                self._book()
                break
            # One was removed between the listing and now.
            self._listed()
        gone = np.flatnonzero(self._unread)
        for rank in gone.tolist():
            self._account.gathered(ShardRecord(rank, 0.0, existed=True))
        self._unread[:] = False
        return gone

    def _book(self) -> None:
        if self._seen is None or not self._unread.any():
            return
        (listing, matched), prepared = self._seen, self._prepared
        there = JobOutputs(prepared.record, prepared.ledger, listing, prepared.plan)
        for rank, books, quarantine in recovered(there, matched, self._unread):
            # One of another identity is found by the last look, and done again.
            found = there.at(matched.position[rank])
            generation = found.generation if books is not None else ""
            self._account.gathered(
                ShardRecord(rank, 0.0, None, books, generation, found.size, existed=True, quarantine=quarantine)
            )
            self._unread[rank] = False


def _waiting(shards: int, alive: Sequence[Heartbeat], now: float) -> str:
    """Returns in words what the driver of a part waits for."""
    drivers = sorted((beat for beat in alive if beat.at_hand), key=lambda beat: beat.updated)
    text = f"waiting for {format_count(shards, 'shard')} of other parts"
    if not drivers:
        return text
    oldest = drivers[0]
    others = f", and {format_count(len(drivers) - 1, 'other driver')}" if len(drivers) > 1 else ""
    ago = max(0, round(now - oldest.updated))
    where = f"part {oldest.part} on {oldest.process.host} (process {oldest.process.pid})"
    return f"{text}: {where}{others}; last heartbeat {ago} s ago"
