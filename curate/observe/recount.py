"""Counts the books of existing outputs if no run has: it was killed, or outputs were removed."""

from __future__ import annotations

import numpy as np

from curate.errors import CorruptInput
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing, OutputMatch
from curate.ledger.manifest import ShardPlan
from curate.ledger.segments import done_events
from curate.objects.record import OutputFormat, read_record
from curate.prefetch import ahead
from curate.tasks.books import Books

MOST_SHARDS = 100_000
"""Shards of a job up to which its outputs are counted anew: a second or so of events."""
MOST_RECORDS = 2_000
"""Outputs of which no event tells, up to which each one's record is read."""
READERS = 16


def recount(
    ledger: Ledger, listing: OutputListing, plan: ShardPlan, matched: OutputMatch, written_as: tuple[OutputFormat, str]
) -> Books | None:
    """Returns the books of all outputs: from events, and from the records of outputs that no event tells of.

    None if there are too many of either, or an output cannot be read.
    """
    if len(plan) > MOST_SHARDS:
        return None
    books, counted = Books(), np.zeros(len(plan), dtype=bool)
    for rank, event in done_events(ledger, listing, plan, matched):
        if not counted[rank]:
            counted[rank] = True
            books.add(Books.parse(event["rows"], event["counters"], event.get("metrics")))
    missing = np.flatnonzero(matched.done & ~counted).tolist()
    if len(missing) > MOST_RECORDS:
        return None

    def read(rank: int) -> Books | None:
        try:
            record = read_record(ledger.store, listing.object(ledger.root, int(matched.position[rank])), *written_as)
        except CorruptInput:
            return None
        return None if record is None else Books.parse(record["rows"], record["counters"])

    for _, own in ahead(read, missing, READERS):
        if own is None:
            return None
        books.add(own)
    return books
