"""The end of a job: a last look at its outputs, and `summary.json`, which exists if and only if every shard is done."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from curate.clock import Clock
from curate.dataclass import replace
from curate.driver.rivals import running_drivers
from curate.errors import ConfigError, CurateError, GenerationMismatch, ObjectNotFound, ShardError, StorageError
from curate.keywords import start_over
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing, OutputMatch, match_outputs
from curate.ledger.stages import ExchangeReport
from curate.log import get_logger
from curate.objects.record import read_record
from curate.prefetch import Threads
from curate.resume.history import RECORD_READERS, UNKNOWN, recovered
from curate.resume.state import Prepared
from curate.stage.outputs import books_of
from curate.stage.shard_index import INDEXED, publish_index
from curate.storage.protocol import Object, Outcome
from curate.tasks.books import Books
from curate.tasks.failure import ShardRecord

BLOCK_SHARDS = 1 << 16
"""Shards whose generations are compared at a time."""


def lost_or_foreign(prepared: Prepared, generations: Any, listing: OutputListing, now: OutputMatch) -> Any:
    """Returns the ranks of shards whose output is gone, or is not the object that this run knows of.

    `generations` are hashes of those that this run recorded, 0 where it found the output at its start; `listing` and
    `now` are what is there at its end. Such an output may be a zombie's, of other parameters.
    """
    seen = prepared.listing.generations
    lost = ~now.done
    for start in range(0, len(lost), BLOCK_SHARDS):
        there = start + np.flatnonzero(now.done[start : start + BLOCK_SHARDS])
        known = generations[there]
        earlier = known == 0
        position = prepared.matched.position[there[earlier]]
        known[earlier] = np.where(position >= 0, seen[position], 0) if len(seen) else 0
        lost[there] = listing.generations[now.position[there]] != known
    return np.flatnonzero(lost)


def late_outputs(prepared: Prepared, ranks: Any) -> Iterator[ShardRecord]:
    """Yields a record for each of these shards, which were given up, that has an output after all.

    A task that was taken for dead, or cut off, may publish one seconds later. One small call a shard: each of them cost
    many more before it was given up. Raises StorageError.
    """
    job, ledger, over = prepared.record, prepared.ledger, prepared.over

    def read(rank: int) -> ShardRecord | None:
        try:
            found = ledger.store.stat(ledger.uri(prepared.plan.shard_id(rank) + job.suffix))
            if over.get(found.uri) == found.generation or prepared.plan.came_back[rank]:
                return None  # it is, or may be, out of date: that which was to take its place has failed
            books = books_of(ledger.store, found, job, ledger.root)
        except (ObjectNotFound, ShardError, ConfigError):
            return None  # or none of this job's: then the name is taken, and that is why the shard failed
        return ShardRecord(rank, 0.0, books=books, generation=found.generation, bytes_out=found.size, existed=True)

    with Threads(RECORD_READERS) as pool:
        yield from (record for record in pool.map(read, ranks.tolist()) if record is not None)


def standing(prepared: Prepared, done: Callable[[int], bool]) -> Iterator[tuple[int, Books]]:
    """Yields the shards that were to be replaced and were not, each with the books of the output that still stands.

    One small read each. Raises StorageError.
    """
    job, ledger = prepared.record, prepared.ledger
    stale = {one.uri[len(ledger.root) + 1 : -len(job.suffix)]: one for one in prepared.uncommitted.stale}
    ranks = prepared.plan.ranks(pa.array(stale, pa.string())).tolist()
    for rank, found in zip(ranks, stale.values(), strict=True):
        if rank < 0 or done(rank):
            continue
        try:
            yield rank, books_of(ledger.store, found, job, ledger.root)
        except (ObjectNotFound, GenerationMismatch, ShardError, ConfigError):
            continue  # another driver has replaced or removed it


def what_stands(prepared: Prepared, failed: Sequence[int]) -> tuple[Books, int, int] | None:
    """Returns the books, the input and the output bytes of all outputs that are there now, without those of the shards
    that have `failed`; None, with a warning, if that cannot be read."""
    plan, books = prepared.plan, Books()
    asked = np.ones(len(plan), dtype=bool)
    asked[failed] = False
    try:
        there = replace(prepared.there, listing=prepared.ledger.list())
        matched = there.matched()
        for _, one, _ in recovered(there, matched, asked):
            books.add(one or Books())
    except (StorageError, ConfigError) as error:
        get_logger(job=prepared.record.name).warning("row counts include outputs that are gone", error=str(error))
        return None
    done = matched.done & asked
    sizes = there.listing.objects.numbers("size")[matched.position[done]]
    return books, int(plan.sizes[done].sum()), int(sizes.sum())


def unnamed_quarantine(prepared: Prepared, listing: OutputListing) -> list[str]:
    """Returns files of rows set aside that perhaps no output names, by a listing of a job whose outputs are all there.

    They are published before the output that names them, and an attempt that was killed in between, an input that was
    mended or a stale output that was replaced leaves one behind. Free: events say what outputs name. Of an output of
    which they do not, only its record tells; as long as there are no more files than such outputs, there are none.
    """
    if prepared.history.summarised:
        return []  # the job was complete before, and swept; nothing is known of its single shards
    told, earlier = prepared.history.quarantine, prepared.stage.earlier
    named = {layout.quarantine_hash(name) for _, name in (earlier.quarantine if earlier is not None else ())}
    named.update(told[told > UNKNOWN].tolist())
    unnamed = [name for name in listing.quarantine if layout.quarantine_hash(name) not in named]
    # What was set aside of an input that was removed, or has changed, must not stay by mere counting.
    exact = prepared.plan.planned_anew or bool(prepared.uncommitted.stale)
    if not unnamed or (len(unnamed) <= np.count_nonzero(told == UNKNOWN) and not exact):
        return []
    known = {*prepared.listing.plan_parts, *prepared.run_ids, prepared.run_id}
    if not known.issuperset((*listing.plan_parts, *listing.run_ids)) and _plan_has_grown(
        prepared.ledger, prepared.listing
    ):
        return []  # outputs of shards that another driver has added may name them: it knows of all
    return unnamed


def sweep_quarantine(prepared: Prepared, unnamed: Sequence[str], listing: OutputListing, now: OutputMatch) -> bool:
    """Removes those of these files that no output names. Reads the records of outputs of which events do not say what
    they name. Returns whether nobody has begun a run since the listing; else it removes none.

    Nor does a driver that was paused: a name is a hash of the rows, and an output that another one has made again may
    name what nobody named. It looks who has begun, and not how long that took: to list millions of outputs, and to read
    their records, takes minutes.
    """
    job, ledger, store, swept = prepared.record, prepared.ledger, prepared.ledger.store, 0

    def read(rank: int) -> str | None:
        record = read_record(store, listing.object(ledger.root, int(now.position[rank])), job.format, job.codec)
        return None if record is None else record["quarantine"]

    with ThreadPoolExecutor(RECORD_READERS) as pool:
        also = set(filter(None, pool.map(read, np.flatnonzero(prepared.history.quarantine == UNKNOWN).tolist())))
    started, runs = prepared.owned.moment(), store.list(ledger.uri(layout.RUNS))
    if not {layout.run_of(one.uri[len(ledger.root) + 1 :]) for one in runs} <= {None, *listing.run_ids}:
        return False
    for name in (one for one in unnamed if one not in also):
        if prepared.owned.was_paused_since(started):
            break
        swept += store.delete(ledger.uri(name))
    if swept:
        get_logger(job=job.name, run=prepared.run_id).info("removed quarantine that no output names", files=swept)
    return True


def _others_replace(prepared: Prepared, listing: OutputListing, clock: Clock) -> bool:
    """Returns whether another driver that is not gone replaces outputs that are out of date. A small read for each.

    By its heartbeat: once it has replaced them, and only looks at all there is once more (`unsaid`), it says so before
    it looks whether this one does. So of two that replace, one at least sees that the other does not any more.
    """
    others = set(listing.run_ids) - {prepared.run_id}
    return any(beat.replaces for beat, _ in running_drivers(prepared.ledger, others, clock, wait=False))


def refuse_lost_rows(exchanges: Iterable[ExchangeReport]) -> None:
    """Raises CurateError if an exchange wrote fewer rows than it read, or more."""
    for one in exchanges:
        if one.rows_in != one.rows_out:
            raise CurateError(
                f"the exchange of {one.name} read {one.rows_in:,} rows and wrote {one.rows_out:,}, so the output must "
                f"not be used; {start_over()}, and report this as an error of curate's or the store's"
            )


def publish_shard_index(prepared: Prepared, generations: Any, clock: Clock) -> Any:
    """Publishes the file that names all outputs, where the format wants one, of a job of which all are there.

    As with the summary, one that adds shards has the last word: it removes the file before it does, and this one looks
    at the plan once the file is there. To make it takes long, for the head of each output is read: so all outputs are
    looked at once more, and the ranks of shards that are not done after all are returned, as by `final_check`.
    """
    ledger, suffix = prepared.ledger, prepared.record.suffix
    if suffix != INDEXED or prepared.history.summarised:
        return ()
    listing = ledger.list()
    now = match_outputs(prepared.plan, listing, suffix)
    if now.done.all() and not _plan_has_grown(ledger, prepared.listing):
        published = publish_index(ledger, listing, now.position, suffix, prepared.record.fingerprint)
        if published is not None and _plan_has_grown(ledger, prepared.listing):
            _remove(ledger, published.uri, published)
    return final_check(prepared, generations, clock)


def publish_summary(prepared: Prepared, value: Mapping[str, Any]) -> None:
    """Publishes the summary of a driver that knows of every shard in its plan, and that all of them are done.

    Other drivers may be at work on the same output. Of two that end, the one that knows of more shards has the last
    word; one that adds shards removes the summary once they are in the plan, and this one looks at the plan once the
    summary is there, so that one of both sees the other. Beside one that replaces outputs, whoever is not sure of what
    that one replaced, or left rows set aside to it, writes none: one that replaces looks at all there is once more
    (`unsaid`), and so the last one to end says it. Raises JobReplacedError if the output is another job's by now.
    """
    ledger, replaced = prepared.ledger, bool(prepared.over)
    uri, data = ledger.uri(layout.SUMMARY), orjson.dumps(value, option=orjson.OPT_INDENT_2)
    prepared.unsaid = replaced and (prepared.beside_redo or _plan_has_grown(ledger, prepared.listing))
    if prepared.unsaid:
        _remove(ledger, uri)
    if prepared.unsaid or prepared.beside_redo:
        return
    published = ledger.store.publish(uri, data)
    if published.outcome is Outcome.DIFFERENT:
        if prepared.history.summarised:
            return  # what is told here was read from it, or from the one in whose place it is
        try:
            found = ledger.read_json(layout.SUMMARY)
        except ObjectNotFound:
            return  # another driver has new work
        if all(found.get(key) == value[key] for key in value if key != "run_id"):
            return  # it says the same of the job, whichever run wrote it
        # A zombie's, or of who overwrote this job, maybe for other inputs: which of the two, only `job.json` can tell.
        prepared.owned.confirm()
        if found.get("fingerprint") == value["fingerprint"] and _plan_has_grown(ledger, prepared.listing):
            return  # it may know what was added since: this one does not
        # It would never be believed again, nor replaced.
        _remove(ledger, uri, published.object)
        published = ledger.store.publish(uri, data)
    if _plan_has_grown(ledger, prepared.listing):
        prepared.unsaid = replaced
        _remove(ledger, uri, None if replaced else published.object)


def _remove(ledger: Ledger, uri: str, seen: Object | None = None) -> None:
    """Removes an object if it is the one that was seen; without one, whatever is there."""
    with contextlib.suppress(GenerationMismatch):
        ledger.store.delete(uri, seen.generation if seen is not None else None)


def _plan_has_grown(ledger: Ledger, listing: OutputListing) -> bool:
    try:
        ledger.store.stat(ledger.uri(ledger.next_part(listing)))
    except ObjectNotFound:
        return False
    return True


def final_check(prepared: Prepared, generations: Any, clock: Clock) -> Any:
    """Looks at all outputs once more, one listing, and sweeps the quarantine of a job that is complete: not while
    another one replaces outputs, which does so at its own end.

    That nobody does is known before the listing by which files are swept: in an older one there may be rows whose
    output has named them since. Returns the ranks of shards that are not done after all, or whose output is not the one
    that was recorded. Raises JobReplacedError if the output is another job's by now.
    """
    alone: set[str] = set()
    while True:
        listing = prepared.ledger.list()
        prepared.owned.confirm_by(listing)
        if not {*prepared.listing.plan_parts}.issubset(listing.plan_parts):
            return np.arange(len(prepared.plan))  # an overwrite began to remove it, and found that this run is alive
        now = match_outputs(prepared.plan, listing, prepared.record.suffix)
        ranks = lost_or_foreign(prepared, generations, listing, now)
        if len(ranks):
            if prepared.over:
                # It has left to this run to sweep, which is to find for itself what is there.
                _remove(prepared.ledger, prepared.ledger.uri(layout.SUMMARY))
            return ranks
        unnamed = unnamed_quarantine(prepared, listing)
        if unnamed and not alone.issuperset(listing.run_ids):
            prepared.beside_redo = _others_replace(prepared, listing, clock)
            alone = set(listing.run_ids)
            if not prepared.beside_redo:
                continue
        elif unnamed and not sweep_quarantine(prepared, unnamed, listing, now):
            continue
        return ranks
