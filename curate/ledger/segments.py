"""A stream of JSON lines that reaches the store in compressed segments, numbered from 1.

A line is encoded when it is added, and lines are sealed into compressed segments, which wait in order until the store
takes them: a tenth of the memory, and a segment that is written again after its answer was lost is the same bytes under
the same name.
"""

from __future__ import annotations

import math
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import numpy as np
import orjson

from curate.ledger import validation
from curate.ledger.compression import compress
from curate.ledger.failures import group_failed
from curate.ledger.ledger import Ledger, Wanted
from curate.ledger.listing import OutputListing, OutputMatch, generation_hash
from curate.ledger.manifest import ShardPlan
from curate.storage.protocol import Outcome
from curate.tasks.events import Outcome as Ending
from curate.units import MIB

_ANY: Mapping[str, Any] = {}


def done_events(
    ledger: Ledger, listing: OutputListing, plan: ShardPlan, matched: OutputMatch, of: Mapping[str, Any] = _ANY
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields rank and event of shards that are done, some perhaps several times.

    An event counts only for the object that is there: by its generation. With `of`, a job's fingerprint and seed, not
    if a run of another job tells of it, which went on for a moment when this one had taken its place: that output is
    foreign. Nor if the output was made of another input than the plan says: see `ShardPlan.came_back`.
    """
    if not matched.count:
        return
    for event in plan.ranked(filter(validation.done, ledger.events(listing.segments))):
        rank = event["index"]
        if rank >= len(plan) or not matched.done[rank]:
            continue
        own = all(event.get(name, value) == value for name, value in of.items())  # earlier versions do not say it
        own = own and (not of or plan.of_its_input(rank, event))
        if own and listing.generations[matched.position[rank]] == generation_hash(event["generation"]):
            yield rank, event


def read_outcomes(
    ledger: Ledger, listing: OutputListing, plan: ShardPlan, wanted: Wanted | None = None
) -> Iterator[dict[str, Any]]:
    """Yields how each attempt at a shard ended, with the shard's rank; a failed one twice, where failures tell of it
    too. Those whose lines are `wanted`, if that is given."""
    names = [*listing.segments, *listing.failures]
    yield from plan.ranked(filter(validation.outcome, ledger.events(names, wanted)))


def given_up(
    ledger: Ledger, listing: OutputListing, plan: ShardPlan, matched: OutputMatch, most_groups: int
) -> tuple[int, list[Mapping[str, Any]]]:
    """Returns how many shards without an output were given up when they were last run, and what most of them failed of:
    groups with an example's error and shard."""
    wanted = _of_undone(plan, matched)
    failed = failed_now(read_outcomes(ledger, listing, plan, wanted), listing, matched) & ~matched.done
    tries = (event for _, event in ledger.newest_first(listing.failures, wanted) if validation.failure(event))
    groups = group_failed(plan.ranked(tries), failed)[:most_groups]
    return int(failed.sum()), [
        {"error": one.example.get("error", ""), "count": one.shards, "shard": one.example["shard"]} for one in groups
    ]


_ENDED = re.compile(rb'"outcome":"(?:done|failed)"')
_NUMBER = re.compile(rb'"index":(\d{1,9})\b')


def _of_undone(plan: ShardPlan, matched: OutputMatch) -> Wanted:
    """Returns what tells whether a line may say that a shard without an output was done, or given up: parsing costs
    ten times as much, and nearly all lines are of other shards, or of tries that others followed."""
    numbers = [plan.number(rank) for rank in np.flatnonzero(~matched.done).tolist()]
    undone = bytearray(1 + max(numbers, default=-1))
    for number in numbers:
        undone[number] = True

    def wanted(line: bytes) -> bool:
        if _ENDED.search(line) is None:
            return False
        found = _NUMBER.search(line)
        return found is None or ((number := int(found[1])) < len(undone) and bool(undone[number]))

    return wanted


def failed_now(outcomes: Iterable[Mapping[str, Any]], listing: OutputListing, matched: OutputMatch) -> Any:
    """Returns one boolean a shard: it was given up when it was last run, and has no output, or still the one whose
    place another was to take.

    Of runs, whose outcomes come in the order of their ids, the times tell what came last, for they may run at once. But
    one whose clock is behind those of runs that it found (its id sorts behind theirs) came after all of these.
    """
    over: dict[int, set[str]] = {}
    never = np.full(len(matched.done), -np.inf)
    failed_s, done_s = never.copy(), never.copy()
    clocks, run_id, by_clock = 0, "", np.zeros(len(never), dtype=np.int32)
    for event in outcomes:
        rank, outcome = event["index"], event["outcome"]
        if event.get("run_id", "") != run_id:
            run_id = event["run_id"]
            clocks += event["time"] < _began(run_id)
        if rank < len(never) and outcome in (Ending.DONE, Ending.FAILED):
            if by_clock[rank] != clocks:
                by_clock[rank], failed_s[rank], done_s[rank] = clocks, -np.inf, -np.inf
            last = failed_s if outcome == Ending.FAILED else done_s
            last[rank] = max(last[rank], event["time"])
            if outcome == Ending.FAILED and event.get("over"):
                over.setdefault(rank, set()).add(event["over"])
    stands = np.zeros(len(never), dtype=bool)
    for rank, generations in over.items():
        # No time tells which came first, for clocks may be apart: a try that saw this output came after it.
        if matched.done[rank]:
            stands[rank] = listing.objects.row(int(matched.position[rank]), "generation")[0] in generations
    return np.where(matched.done, stands, failed_s > done_s)


def _began(run_id: str) -> float:
    """Returns when a run began, at the latest, by its id: later than those that it found."""
    try:
        return datetime.fromisoformat(run_id[:20]).timestamp()
    except (ValueError, OverflowError):
        return -math.inf


SEGMENT_LINES = 20_000
SEGMENT_BYTES = 8 * MIB
"""Lines, and bytes of them, at which a segment is sealed without waiting for the time to come."""
MOST_WAITING_BYTES = 64 * MIB
"""Sealed segments that may wait for the store, some million events; beyond it the oldest are dropped."""


class Segments:
    """Lines may be added from one thread while another writes. The writer is one at a time: its callers see to that."""

    def __init__(self, ledger: Ledger, name_of: Callable[[int], str]) -> None:
        """`name_of` returns the name of a segment, relative to the output, from its number."""
        self._ledger = ledger
        self._name_of = name_of
        self._published = 0
        # Lines on their way: encoded, then sealed. Guarded by `_lock`, which nothing slow is done under.
        # One buffer, not a list: what orjson returns holds kilobytes for every line, however short it is.
        self._lines = bytearray()
        self._count = 0
        self._sealed: deque[bytes] = deque()
        self._sealed_bytes = 0
        self._dropped_bytes = 0
        self._lock = threading.Lock()

    def add(self, value: Mapping[str, Any]) -> bool:
        """Adds a line. Returns whether that sealed a segment, which is to be written. Never waits for the store."""
        line = orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE, default=str)
        with self._lock:
            self._lines += line
            self._count += 1
            full = self._count >= SEGMENT_LINES or len(self._lines) >= SEGMENT_BYTES
            if full:
                self._seal()
        return full

    def seal(self) -> None:
        """Makes a segment of the lines so far, if there are any."""
        with self._lock:
            if self._lines:
                self._seal()

    def take_dropped(self) -> int:
        """Returns the bytes of segments that were dropped since the last call."""
        with self._lock:
            dropped, self._dropped_bytes = self._dropped_bytes, 0
        return dropped

    def write(self, after_each: Callable[[], None]) -> None:
        """Publishes the sealed segments, in order. Raises what the store raises; what was not published is kept."""
        while True:
            with self._lock:
                if not self._sealed:
                    return
                data = self._sealed.popleft()
                self._sealed_bytes -= len(data)
            try:
                self._publish(data)
            except BaseException:
                with self._lock:
                    self._sealed.appendleft(data)
                    self._sealed_bytes += len(data)
                raise
            after_each()

    def _seal(self) -> None:
        data = compress(bytes(self._lines))
        self._lines.clear()
        self._count = 0
        self._sealed.append(data)
        self._sealed_bytes += len(data)
        while self._sealed_bytes > MOST_WAITING_BYTES and len(self._sealed) > 1:
            dropped = len(self._sealed.popleft())
            self._sealed_bytes -= dropped
            self._dropped_bytes += dropped

    def _publish(self, data: bytes) -> None:
        while True:
            uri = self._ledger.uri(self._name_of(self._published + 1))
            outcome = self._ledger.store.publish(uri, data).outcome
            self._published += 1
            # Other bytes hold the name if a segment whose answer was lost was dropped before it could be tried again.
            if outcome is not Outcome.DIFFERENT:
                return
