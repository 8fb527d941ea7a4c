"""The row counts of the stages before the last one, kept because these stages are removed when the job is complete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from curate.ledger import layout
from curate.ledger.ledger import Ledger, open_ledger
from curate.ledger.segments import done_events
from curate.objects.samples import DroppingShards, encode_samples, lowest, read_samples, stage_samples
from curate.observe.browse import quarantines
from curate.observe.job import find_job
from curate.stage.stage import Stage
from curate.storage.protocol import Outcome
from curate.tasks.books import Books, UpstreamBooks


def upstream_books_of(stage: Stage, place_of: Callable[[Stage], str], ledger: Ledger) -> UpstreamBooks | None:
    """Returns the books of the stages that rows come through on their way to this one, which are complete; None if
    there are none. The rows that they set aside are copied to the job's own `ledger`, and some of those they dropped.

    `place_of` returns the output prefix of a stage. Checkpoints have books of their own.
    """
    stages = [before.stage for before in stage.before if before.path is None and before.marks is None]
    if not stages:
        return None
    books = Books()
    files: list[tuple[str, str]] = []
    for one in stages:
        place = place_of(one)
        summary = open_ledger(place).read_json(layout.SUMMARY)
        own = Books.parse(summary["rows"], summary["counters"], summary.get("metrics"))
        if (inner := upstream_books_of(one, place_of, ledger)) is not None:
            own = own.after(inner.books)
            files += inner.quarantine
        if summary["rows"]["quarantined"]:
            files += _copied(place, ledger)
        if summary["rows"]["dropped"]:
            _keep_samples(place, ledger)
        books.add(own)
    return UpstreamBooks(books, tuple(files))


def _copied(place: str, ledger: Ledger) -> list[tuple[str, str]]:
    """Copies the files of rows that a stage set aside; returns each shard with its file."""
    found = find_job(place)
    files = list(quarantines(found))
    for _, name in files:
        # Called by its content, so that what is there already is the same.
        ledger.store.publish(ledger.uri(name), found.ledger.store.read(found.ledger.uri(name)))
    return files


def _keep_samples(place: str, ledger: Ledger) -> None:
    """Keeps some of the rows that a stage dropped, as one file of the job's own ledger: see `read_samples`."""
    found = find_job(place)
    if not len(found.listing.samples):
        return
    dropping, key = DroppingShards(), place.rpartition("/")[2]
    for rank, event in done_events(found.ledger, found.listing, found.plan, found.matched):
        dropping.note(rank, event["rows"]["dropped"])
    chosen = lowest(read_samples(found.ledger, found.listing, found.plan, dropping))
    data = encode_samples(replace(row, stage=key) for rows in chosen.values() for row in rows)
    uri = ledger.uri(layout.samples(stage_samples(key)))
    if ledger.store.publish(uri, data).outcome is Outcome.DIFFERENT:
        ledger.store.replace(uri, data)
