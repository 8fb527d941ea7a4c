"""The books of shards that earlier runs finished: from the summary, else events, else the outputs themselves."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from curate.dataclass import dataclass, field
from curate.errors import ConfigError, CorruptInput, GenerationMismatch, ObjectNotFound
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing, OutputMatch, match_outputs
from curate.ledger.manifest import ShardPlan
from curate.ledger.segments import done_events
from curate.ledger.side_outputs import bare, sides_of_shards
from curate.ledger.stages import StageReport, parse_stages
from curate.objects.record import OutputFormat, read_record
from curate.pipeline.classify import ForeignOutputError
from curate.prefetch import Threads
from curate.stage.job_record import JobRecord
from curate.stage.outputs import books_of
from curate.stage.shard_index import lacks_index
from curate.storage.protocol import Object
from curate.tasks.books import Books, UpstreamBooks

RECORD_READERS = 16
"""Records that are read from outputs at once: each is a request or two that waits for the store."""
UNKNOWN = 1
"""Stands for a file of rows that were set aside of which only the output says what it is called."""


@dataclass(frozen=True, slots=True)
class JobOutputs:
    """What there is of a job below its output, as it was seen, and the plan that says what belongs to it."""

    job: JobRecord
    ledger: Ledger
    listing: OutputListing
    plan: ShardPlan

    def matched(self) -> OutputMatch:
        """Returns which shards have an output."""
        return match_outputs(self.plan, self.listing, self.job.suffix)

    def at(self, row: int) -> Object:
        """Returns an object by its row in the listing."""
        return self.listing.object(self.ledger.root, int(row))

    def record(self, found: Object) -> dict[str, Any] | None:
        """Returns the record that an object carries, which may be empty where its name says whose it is; None if curate
        did not write it, or it is broken."""
        if found.uri.endswith(bare(self.job.suffix)):
            return {}
        with contextlib.suppress(CorruptInput):
            return read_record(self.ledger.store, found, self.job.format, self.job.codec)
        return None

    def done(self, matched: OutputMatch) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields rank and event of shards that this job has done, as `done_events`."""
        return done_events(self.ledger, self.listing, self.plan, matched, self.job.mark)


@dataclass(slots=True)
class History:
    """What is known of the shards that are done."""

    books: Books = field(default_factory=Books)
    foreign: dict[int, Object] = field(default_factory=dict)
    """Outputs of another identity, by rank: to be removed and done again."""
    quarantine: Any = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    """The file of rows that were set aside, of each shard: the hash that it is called by, `UNKNOWN` where only its
    output tells, 0 if there is none."""
    summarised: bool = False
    """Whether it is what `summary.json` says; then it knows of no single shard."""
    earlier: UpstreamBooks | None = None
    """What happened to rows in the stages before, if the summary says so."""
    reports: tuple[StageReport, ...] = ()
    """The stages of the job, if the summary says so."""
    incomplete_input: tuple[Mapping[str, Any], ...] = ()
    """What was missing of the inputs, if the summary says so."""

    def add(self, rank: int, books: Books, quarantine: str = "") -> None:
        """Adds what is known of a shard; `quarantine` is the name of its file of rows that were set aside."""
        self.books.add(books)
        self.quarantine[rank] = (layout.quarantine_hash(quarantine) or UNKNOWN) if books.quarantined else 0


def look_back(there: JobOutputs, matched: OutputMatch) -> History:
    """Returns what is known of all done shards. Only reads: the summary where it holds, else what that was made of.

    Raises ConfigError naming an object that has the name of an output and was not written by curate, or was cut off.
    """
    summary = _summary(there, matched)
    size = int(there.listing.objects.numbers("size")[matched.position[matched.done]].sum())
    # Whoever reads a run file finds what is off with it, and has it made again.
    is_same = there.job.format is OutputFormat.RUN or (summary or {}).get("bytes", {}).get("out") == size
    if summary is None or not is_same:
        found = _recovered(there, matched)
        if summary is None or found.foreign:
            return found
    return History(
        Books.parse(summary["rows"], summary["counters"], summary.get("metrics")),
        summarised=True,
        earlier=UpstreamBooks.of(summary),
        reports=parse_stages(summary),
        incomplete_input=tuple(summary.get("incomplete_input", ())),
    )


def _summary(there: JobOutputs, matched: OutputMatch) -> dict[str, Any] | None:
    """Returns the summary, if it still tells of exactly what is there: the same plan, all of it done."""
    shards, listing = len(there.plan), there.listing
    if listing.summary is None or matched.count != shards or lacks_index(listing, there.job.suffix):
        return None
    try:
        summary = there.ledger.read_json(layout.SUMMARY)
    except ObjectNotFound:
        return None  # another driver has just begun
    if not summary.keys() >= {"fingerprint", "shards", "rows", "counters"}:
        return None  # it says nothing that the outputs do not
    own = summary["fingerprint"] == there.job.fingerprint and summary["shards"].get("total") == shards
    return summary if own else None


def _recovered(there: JobOutputs, matched: OutputMatch) -> History:
    history = History(quarantine=np.zeros(len(there.plan), dtype=np.uint64))
    for rank, books, quarantine in recovered(there, matched, matched.done):
        if books is None:
            history.foreign[rank] = there.at(matched.position[rank])
        else:
            history.add(rank, books, quarantine)
    return history


def recovered(there: JobOutputs, matched: OutputMatch, asked: Any) -> Iterator[tuple[int, Books | None, str]]:
    """Yields the shards that are done and `asked` for, one boolean a shard, with their books and the name of their file
    of rows that were set aside, if that is known: from events, else from outputs; None for an output of another
    identity, or that may be of another input. Raises ConfigError for one that was not written by curate."""
    left = matched.done & asked
    # Workers of a job that was overwritten, or of the stage of one, may be late: nothing is of a job without a plan.
    # But where there is no ledger, nor was one removed by an overwrite that was killed, outputs are what they say.
    seen = there.listing
    before = seen.has_job or seen.overwritten or there.job.format is OutputFormat.RUN
    begun = bool(seen.plan_parts) or not before
    for rank, event in there.done(matched) if begun and left.any() else ():
        if left[rank]:
            left[rank] = False
            books = Books.parse(event["rows"], event["counters"], event.get("metrics"))
            yield rank, books, str(event.get("quarantine", ""))

    def read(rank: int) -> tuple[int, Books | None, str]:
        try:
            books = _books(there, there.at(matched.position[rank]))
            return rank, None if there.plan.came_back[rank] or not begun else books, ""
        except ForeignOutputError:
            return rank, None, ""

    yield from each_of(read, np.flatnonzero(left).tolist())


def stale_outputs(there: JobOutputs, matched: OutputMatch, ranks: Any) -> list[Object]:
    """Returns the outputs of these shards as they were seen, which are to be replaced.

    Raises ConfigError naming one that was not written by curate: it is not for curate to remove.
    """

    def read(rank: int) -> Object:
        found = there.at(matched.position[rank])
        with contextlib.suppress(ForeignOutputError):
            _books(there, found)
        return found

    return list(each_of(read, ranks.tolist()))


def _books(there: JobOutputs, found: Object) -> Books:
    try:
        return books_of(there.ledger.store, found, there.job, there.ledger.root)
    except CorruptInput as error:
        if isinstance(gone := error.__cause__, ObjectNotFound | GenerationMismatch):
            # By another driver, which has ended the job and sweeps its stages; or by whoever removes outputs.
            raise type(gone)(f"{found.uri} was removed or replaced while this run read it: run this again") from error
        raise ConfigError(f"{error}; it has the name of an output: move it, or use another output") from error


def ours(there: JobOutputs, matched: OutputMatch) -> Any:
    """Returns one boolean a shard: it has an output, and curate wrote that."""
    mine = np.zeros(len(there.plan), dtype=bool)
    for rank, _ in done_events(there.ledger, there.listing, there.plan, matched):
        mine[rank] = True

    def read(rank: int) -> tuple[int, bool]:
        return rank, there.record(there.at(matched.position[rank])) is not None

    for rank, written_by_curate in each_of(read, np.flatnonzero(matched.done & ~mine).tolist()):
        mine[rank] = written_by_curate
    return mine


def our_sides(there: JobOutputs, mine: Any) -> list[int]:
    """Returns the rows of the listing that are extra outputs of the plan's shards, and that curate wrote.

    Those of shards whose main output curate wrote, `mine`, are taken for it; the others are looked at.
    """
    done, others = (
        sides_of_shards(there.listing, there.plan, there.job.suffix, np.flatnonzero(one)) for one in (mine, ~mine)
    )

    def read(row: int) -> bool:
        return there.record(there.at(row)) is not None

    rows = others.tolist()
    return [*done.tolist(), *itertools.compress(rows, each_of(read, rows))]


def each_of(read: Callable[[int], Any], ranks: Sequence[int]) -> Iterator[Any]:
    """Yields what `read` returns for each rank, in order; calls wait for the store, many at once."""
    if ranks:
        with Threads(RECORD_READERS) as pool:
            yield from pool.map(read, ranks)
