"""Totals of a run, updated as shards end: done and failed shards, and causes. Pure: no store, no clock, no lock."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from curate.dataclass import dataclass, field
from curate.ledger.failures import Signature, Signatures
from curate.ledger.manifest import ShardPlan
from curate.ledger.summary import FailureGroup
from curate.storage.protocol import Calls
from curate.tasks.books import Books
from curate.tasks.failure import Failure, FailureKind, ShardProgress, ShardRecord

MOST_GROUPS = 100
"""Different errors that are kept apart; further ones are counted together."""
OTHER_ERRORS = Signature("other errors", "", "")
DISTURBED = Signature(
    "the output was removed or replaced by others, again and again; the next run does it again", "", ""
)


@dataclass
class RunTotals:
    """Running totals of a job and of one run of it."""

    plan: ShardPlan
    books: Books
    """Of the job's shards that are done."""
    bytes_in: int
    bytes_out: int
    done: int
    """Shards of the scope with an output."""
    job_done: int
    bytes_left: int
    """Input bytes of the scope's shards that are neither done nor given up."""
    bytes_scope: int = 0
    """Input bytes of all shards of the scope."""
    failed: int = 0
    rows_read: int = 0
    """Rows read in this run, for the rate."""
    bytes_read: int = 0
    shards_run: int = 0
    elsewhere: int = 0
    """Shards of the scope that other drivers have done, and whose books are not known yet."""
    worker_calls: Calls = field(default_factory=Calls)
    _moving: dict[int, int] = field(default_factory=dict)
    """Rows read so far of shards that go on and take long, by rank."""
    _rows_seen: int = 0
    _counts: Counter[Signature] = field(default_factory=Counter)
    _examples: dict[Signature, tuple[str, str]] = field(default_factory=dict)
    """What the first of each group said, and a shard of it."""
    _in_code: set[Signature] = field(default_factory=set)
    """Those of which one was user code that raised, or returned what it must not."""
    _signatures: Signatures = field(default_factory=Signatures)
    _groups: list[Signature] = field(default_factory=list)
    """Groups in the order of their numbers."""

    def __post_init__(self) -> None:
        self._group_of = np.zeros(len(self.plan), dtype=np.uint8)
        """For each shard that was given up, the number of its group, from 1; 0 for the others."""
        self._of_others = np.zeros(len(self.plan), dtype=bool)
        """One boolean a shard: another driver has done it during this run, and it is booked."""

    @property
    def given_up(self) -> Any:
        """Ranks of the shards that this run gave up."""
        return np.flatnonzero(self._group_of)

    @property
    def by_others(self) -> int:
        """Shards that other drivers have done during this run, and that are booked."""
        return int(np.count_nonzero(self._of_others))

    def moves(self, word: ShardProgress) -> None:
        """Notes how far a shard is that goes on."""
        self._moving[word.index] = max(word.rows, self._moving.get(word.index, 0))

    @property
    def rows_running(self) -> int:
        """Rows read so far of shards that go on and take long."""
        return sum(self._moving.values())

    def rows_seen(self) -> int:
        """Returns the rows read in this run, of shards that go on too. A try that failed takes none back."""
        self._rows_seen = max(self._rows_seen, self.rows_read + self.rows_running)
        return self._rows_seen

    def bytes_moved(self) -> int:
        """Returns the input bytes of the scope that are done, of shards that go on as far as they are.

        How many bytes a row of those has, is known from the shards that are done.
        """
        given_up = int(self.plan.sizes[self.given_up].sum()) if self.failed else 0
        done = max(0, self.bytes_scope - self.bytes_left - given_up)
        row_bytes = self.bytes_read / self.rows_read if self.rows_read else 0.0
        return done + sum(min(int(n * row_bytes), int(self.plan.sizes[rank])) for rank, n in self._moving.items())

    def add_calls(self, record: ShardRecord) -> None:
        """Counts the storage calls of a try that has ended, whatever came of it."""
        self._moving.pop(record.index, None)
        self.worker_calls = self.worker_calls.plus(record.calls or Calls())

    def shard_done(self, record: ShardRecord) -> None:
        """Counts a shard as done, but for its books."""
        size, books = int(self.plan.sizes[record.index]), record.books or Books()
        self._booked(record)
        self.bytes_left -= size
        self.shards_run += 1
        self.rows_read += max(books.rows_in, books.rows_out)
        self.bytes_read += size
        self.add_calls(record)

    def _booked(self, record: ShardRecord) -> None:
        self.done += 1
        self.job_done += 1
        self.bytes_in += int(self.plan.sizes[record.index])
        self.bytes_out += record.bytes_out
        self._of_others[record.index] = record.existed

    def helps(self, ranks: Any) -> None:
        """Counts shards of others as this run's to do."""
        size = int(self.plan.sizes[ranks].sum())
        self.bytes_left += size
        self.bytes_scope += size

    def found_elsewhere(self, ranks: Any) -> None:
        """Counts shards that others have done, and of which nothing else is known."""
        self.elsewhere += len(ranks)
        self.bytes_scope += int(self.plan.sizes[ranks].sum())

    def gathered(self, record: ShardRecord) -> None:
        """Counts one of those as done, but for its books."""
        self.elsewhere -= 1
        self._booked(record)

    def shard_failed(self, index: int, shard: str, failure: Failure) -> None:
        """Counts a shard as given up, with those that failed of the same."""
        self.failed += 1
        self.bytes_left -= int(self.plan.sizes[index])
        alike = self._signatures.of({"error": failure.error, "frame": failure.frame})
        if alike not in self._counts and len(self._counts) >= MOST_GROUPS:
            alike = OTHER_ERRORS
            self._examples.setdefault(alike, (OTHER_ERRORS.error, shard))
        if alike not in self._counts:
            self._groups.append(alike)
        self._counts[alike] += 1
        self._examples.setdefault(alike, (failure.error, shard))
        if failure.kind is FailureKind.USER_ERROR:
            self._in_code.add(alike)
        self._group_of[index] = self._groups.index(alike) + 1

    def failed_no_more(self, index: int) -> None:
        """Takes back that a shard was given up."""
        number = int(self._group_of[index])
        group = self._groups[number - 1]
        self._group_of[index] = 0
        self.failed -= 1
        self.bytes_left += int(self.plan.sizes[index])
        self._counts[group] -= 1
        error, shard = self._examples[group]
        if not self._counts[group]:
            del self._counts[group], self._examples[group]
        elif shard == self.plan.shard_id(index):
            other = int(np.flatnonzero(self._group_of == number)[0])
            self._examples[group] = error, self.plan.shard_id(other)

    def lost(self, ranks: Any, stands: tuple[Books, int, int] | None = None) -> None:
        """Counts shards as failed that were done, and whose output is gone or another's now. `stands` are the books,
        the input and the output bytes of those that are there."""
        if stands is not None:
            self.books, self.bytes_in, self.bytes_out = stands
        self.done -= len(ranks)
        self.job_done -= len(ranks)
        self.failed += len(ranks)
        self._of_others[ranks] = False
        self._counts[DISTURBED] += len(ranks)
        self._examples.setdefault(DISTURBED, (DISTURBED.error, self.plan.shard_id(int(ranks[0]))))

    def as_dict(self) -> dict[str, Any]:
        """Returns rows, counters, metrics and bytes of the job, as heartbeats and summaries have them."""
        return {
            "rows": self.books.rows(),
            "counters": self.books.sorted_counters(),
            **self.books.sorted_metrics(),
            "bytes": {"in": self.bytes_in, "out": self.bytes_out},
            **({"rows_running": self.rows_running} if self._moving else {}),
        }

    def failures(self) -> tuple[FailureGroup, ...]:
        """Returns what shards have failed of, most shards first."""
        return tuple(
            FailureGroup(error, count, shard, alike.frame, alike in self._in_code)
            for alike, count in self._counts.most_common()
            for error, shard in [self._examples[alike]]
        )
