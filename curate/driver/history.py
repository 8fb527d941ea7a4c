"""What is known of shards that earlier runs finished: from the summary, else events, else the outputs themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from curate.errors import ConfigError, CorruptInput, GenerationMismatch, ObjectNotFound
from curate.formats.record import read_record
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing, OutputMatch
from curate.ledger.manifest import ShardPlan
from curate.ledger.segments import done_events
from curate.ledger.side_outputs import sides_of_shards
from curate.ledger.stages import StageReport, parse_stages
from curate.pipeline.classify import ForeignOutputError
from curate.stage.job_record import JobRecord
from curate.stage.outputs import books_of
from curate.storage.protocol import Object
from curate.tasks.books import Books, UpstreamBooks

RECORD_READERS = 16
"""Records that are read from outputs at once: each is a request or two that waits for the store."""


@dataclass(slots=True)
class History:
    """What is known of the shards that are done."""

    books: Books = field(default_factory=Books)
    foreign: dict[int, Object] = field(default_factory=dict)
    """Outputs of another identity, by rank: to be removed and done again."""
    quarantining: Any = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """One boolean a shard: its output names a file of rows that were set aside."""
    summarised: bool = False
    """Whether it is what `summary.json` says; then it knows of no single shard."""
    earlier: UpstreamBooks | None = None
    """What happened to rows in the stages before, if the summary says so."""
    reports: tuple[StageReport, ...] = ()
    """The stages of the job, if the summary says so."""
    incomplete_input: tuple[Mapping[str, Any], ...] = ()
    """What was missing of the inputs, if the summary says so."""

    def add(self, rank: int, books: Books) -> None:
        """Adds what is known of a shard."""
        self.books.add(books)
        self.quarantining[rank] = books.quarantined > 0


def look_back(job: JobRecord, ledger: Ledger, listing: OutputListing, plan: ShardPlan, matched: OutputMatch) -> History:
    """Returns what is known of all done shards. Only reads: the summary where it holds, else what that was made of.

    Raises ConfigError naming an object that has the name of an output and was not written by curate.
    """
    return _summarised(job, ledger, listing, plan, matched) or _recovered(job, ledger, listing, plan, matched)


def _summarised(
    job: JobRecord, ledger: Ledger, listing: OutputListing, plan: ShardPlan, matched: OutputMatch
) -> History | None:
    """Returns what the summary says, if it still tells of exactly what is there: the same plan, all of it done."""
    if listing.summary is None or matched.count != len(plan):
        return None
    try:
        summary = ledger.read_json(layout.SUMMARY)
    except ObjectNotFound:
        return None  # another driver has just begun
    if not summary.keys() >= {"fingerprint", "shards", "rows", "counters"}:
        return None  # it says nothing that the outputs do not
    if summary["fingerprint"] != job.fingerprint or summary["shards"].get("total") != len(plan):
        return None
    books = Books.parse(summary["rows"], summary["counters"], summary.get("metrics"))
    return History(
        books,
        summarised=True,
        earlier=UpstreamBooks.of(summary),
        reports=parse_stages(summary),
        incomplete_input=tuple(summary.get("incomplete_input", ())),
    )


def _recovered(
    job: JobRecord, ledger: Ledger, listing: OutputListing, plan: ShardPlan, matched: OutputMatch
) -> History:
    history = History(quarantining=np.zeros(len(plan), dtype=bool))
    counted = np.zeros(len(plan), dtype=bool)
    for rank, event in done_events(ledger, listing, plan, matched):
        if not counted[rank]:
            counted[rank] = True
            history.add(rank, Books.parse(event["rows"], event["counters"], event.get("metrics")))

    def read(rank: int) -> tuple[int, Books | None]:
        found = listing.object(ledger.root, int(matched.position[rank]))
        try:
            return rank, _books(job, ledger, found)
        except ForeignOutputError:
            return rank, None

    for rank, books in _each(read, np.flatnonzero(matched.done & ~counted)):
        if books is None:
            history.foreign[rank] = listing.object(ledger.root, int(matched.position[rank]))
        else:
            history.add(rank, books)
    return history


def stale_outputs(
    job: JobRecord, ledger: Ledger, listing: OutputListing, matched: OutputMatch, ranks: Any
) -> list[Object]:
    """Returns the outputs of these shards as they were seen, which are to be replaced.

    Raises ConfigError naming one that was not written by curate: it is not for curate to remove.
    """

    def read(rank: int) -> Object:
        found = listing.object(ledger.root, int(matched.position[rank]))
        with contextlib.suppress(ForeignOutputError):
            _books(job, ledger, found)
        return found

    return list(_each(read, ranks))


def _books(job: JobRecord, ledger: Ledger, found: Object) -> Books:
    try:
        return books_of(ledger.store, found, job)
    except CorruptInput as error:
        if isinstance(gone := error.__cause__, ObjectNotFound | GenerationMismatch):
            # By another driver, which has ended the job and sweeps its stages; or by whoever removes outputs.
            raise type(gone)(
                f"{found.uri} was removed or replaced while this run looked at it: run this again"
            ) from error
        raise ConfigError(f"{error}; it has the name of an output: move it, or use another --output") from error


def ours(job: JobRecord, ledger: Ledger, listing: OutputListing, plan: ShardPlan, matched: OutputMatch) -> Any:
    """Returns one boolean a shard: it has an output, and curate wrote that."""
    mine = np.zeros(len(plan), dtype=bool)
    for rank, _ in done_events(ledger, listing, plan, matched):
        mine[rank] = True

    def read(rank: int) -> tuple[int, bool]:
        found = listing.object(ledger.root, int(matched.position[rank]))
        try:
            return rank, read_record(ledger.store, found, job.format, job.codec) is not None
        except CorruptInput:
            return rank, False

    for rank, written_by_curate in _each(read, np.flatnonzero(matched.done & ~mine)):
        mine[rank] = written_by_curate
    return mine


def our_sides(job: JobRecord, ledger: Ledger, listing: OutputListing, plan: ShardPlan, mine: Any) -> list[int]:
    """Returns the rows of the listing that are extra outputs of the plan's shards, and that curate wrote.

    Those of shards whose main output curate wrote, `mine`, are taken for it; the others are looked at.
    """
    done = sides_of_shards(listing, plan, job.suffix, np.flatnonzero(mine))
    others = sides_of_shards(listing, plan, job.suffix, np.flatnonzero(~mine))

    def read(row: int) -> bool:
        try:
            return read_record(ledger.store, listing.object(ledger.root, row), job.format, job.codec) is not None
        except CorruptInput:
            return False

    return [*done.tolist(), *(row for row, ours in zip(others.tolist(), _each(read, others), strict=True) if ours)]


def _each(read: Any, ranks: Any) -> Iterable[Any]:
    """Yields what `read` returns for each rank, in order; calls wait for the store, many at once."""
    if len(ranks):
        with ThreadPoolExecutor(RECORD_READERS) as pool:
            yield from pool.map(read, ranks.tolist())
