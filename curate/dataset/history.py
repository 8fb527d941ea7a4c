"""The books of shards that earlier runs finished: from the summary, else events, else the outputs themselves."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from curate.dataset.spec import StageSpec
from curate.dataset.stage import ForeignOutputError, books_of
from curate.log import get_logger
from curate.storage.protocol import Object
from curate.tasks import layout
from curate.tasks.books import Books
from curate.tasks.ledger import Ledger
from curate.tasks.outputs import Matched, OutputListing
from curate.tasks.plan import Plan

RECORD_READERS = 16
"""Records that are read from outputs at once: each is a request or two that waits for the store."""


@dataclass(slots=True)
class History:
    """What is known of the shards that are done."""

    books: Books = field(default_factory=Books)
    removed: list[int] = field(default_factory=list)
    """Ranks of outputs of another identity, removed against their generation: to be done again."""


def summary_counts(ledger: Ledger, listing: OutputListing, plan: Plan, matched: Matched) -> dict[str, Any] | None:
    """Returns the summary if it still tells of exactly what is there: the same plan, all of it done. Else None."""
    if listing.summary is None or matched.count != len(plan):
        return None
    summary = ledger.read_json(layout.SUMMARY)
    return summary if summary["shards"]["total"] == len(plan) else None


def recover(spec: StageSpec, ledger: Ledger, listing: OutputListing, plan: Plan, matched: Matched) -> History:
    """Returns the books of all done shards. An event counts only for the object that is there: by its generation."""
    history = History()
    if not matched.count:
        return history
    counted = np.zeros(len(plan), dtype=bool)
    for event in ledger.events(listing.segments):
        rank = event["index"]
        if event["outcome"] != "done" or rank >= len(plan) or counted[rank] or not matched.done[rank]:
            continue
        if listing.generations[int(matched.position[rank])].as_py() == event["generation"]:
            history.books.add(Books.parse(event["rows"], event["counters"]))
            counted[rank] = True
    unknown = np.flatnonzero(matched.done & ~counted).tolist()
    for rank, books in _read_records(spec, ledger, listing, matched, unknown):
        if books is None:
            history.removed.append(rank)
        else:
            history.books.add(books)
    return history


def _read_records(
    spec: StageSpec, ledger: Ledger, listing: OutputListing, matched: Matched, ranks: list[int]
) -> Iterable[tuple[int, Books | None]]:
    def read(rank: int) -> tuple[int, Books | None]:
        row = int(matched.position[rank])
        found = Object(
            ledger.uri(listing.names[row].as_py()), listing.sizes[row].as_py(), listing.generations[row].as_py()
        )
        try:
            return rank, books_of(ledger.store, found, spec.format, spec.codec, spec.fingerprint)
        except ForeignOutputError as error:
            get_logger(job=spec.name).warning("removing an output of another identity", reason=str(error))
            ledger.store.delete(found.uri, found.generation)
            return rank, None

    with ThreadPoolExecutor(RECORD_READERS) as pool:
        yield from pool.map(read, ranks)
