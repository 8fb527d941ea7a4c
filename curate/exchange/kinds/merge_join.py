"""Joins of two sorted tables: which groups of equal keys meet, and the rows that come of it, a slice at a time.

What a key gives, all pairs of its rows, is never held: output rows are numbered, and a slice of the numbers tells which
rows of both sides it is made of.

    key   left rows   right rows   inner: pairs      output rows
    a     0 1         0            (0,0) (1,0)       0 1
    b     2           -            -                 -
    c     3 4         1 2          (3,1) (3,2) …     2 3 4 5
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow.groups import Numbers
from curate.arrow.order import Order, take_rows
from curate.dataclass import dataclass
from curate.late_pandas import numbers

HOWS = ("inner", "left", "right", "outer", "semi", "anti")
"""What a join keeps: pairs of rows that match, and with left, right, outer also rows without a match, of that side or
of both; left rows that have a match (semi), or none (anti)."""
SPARSE = 4
"""Where a slice takes rows of a range with more than this many rows for each, they are taken chunk by chunk."""


@dataclass(frozen=True, slots=True)
class KeyMatches:
    """The keys of two sorted tables, in order: where the rows of each are, and how many, and whether they match."""

    left_starts: Numbers
    left_counts: Numbers
    right_starts: Numbers
    right_counts: Numbers
    matched: Numbers
    """Whether both sides have rows of the key, and it has no null: nulls match nothing."""


def match_keys(order: Order, left: pa.Table, right: pa.Table) -> KeyMatches:
    """Returns how the keys of two tables meet, which are sorted by `order`, and call the keys the same."""
    starts = [order.starts(one) for one in (left, right)]
    keys = [take_rows(order.keys_of(one), pa.array(at)) for one, at in zip((left, right), starts, strict=True)]
    # Without what the schema of one side says of nulls, which that of the other may not.
    both = pa.concat_tables([pa.table(one.columns, names=one.column_names) for one in keys])
    rows = numbers(order.indices(both)).astype(np.int64)
    ordered = take_rows(both, pa.array(rows))
    firsts = order.starts(ordered)
    groups = np.zeros(len(rows), np.int64)
    groups[firsts[1:]] = 1
    groups = np.cumsum(groups)
    found: list[tuple[Numbers, Numbers]] = []
    of_left = rows < len(starts[0])
    for one, at, mine, before in ((left, starts[0], of_left, 0), (right, starts[1], ~of_left, len(starts[0]))):
        first, count = np.zeros((2, len(firsts)), np.int64)
        first[groups[mine]] = at[rows[mine] - before]
        count[groups[mine]] = np.diff(np.append(at, one.num_rows))[rows[mine] - before]
        found.append((first, count))
    matched = (found[0][1] > 0) & (found[1][1] > 0)
    for column in take_rows(ordered, pa.array(firsts)).columns:
        if column.null_count:
            matched &= numbers(column.is_valid())
    return KeyMatches(*found[0], *found[1], matched)


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """The output rows of a join, by number."""

    meeting: KeyMatches
    pairs: Numbers
    """Whether a key gives all pairs of its rows."""
    left_alone: Numbers
    """How many left rows of a key come out by themselves."""
    right_alone: Numbers
    """How many right rows do, after those."""

    @classmethod
    def of(cls, meeting: KeyMatches, how: str) -> JoinedRows:
        """Returns what comes of a meeting of keys by one of HOWS."""
        nothing = np.zeros(len(meeting.matched), np.int64)
        unmatched = ~meeting.matched
        pairs = meeting.matched if how in ("inner", "left", "right", "outer") else np.zeros(len(nothing), bool)
        left = right = nothing
        if how in ("left", "outer", "anti"):
            left = meeting.left_counts * unmatched
        if how == "semi":
            left = meeting.left_counts * meeting.matched
        if how in ("right", "outer"):
            right = meeting.right_counts * unmatched
        return cls(meeting, pairs, left, right)

    def counts(self) -> Numbers:
        """Returns how many rows each key gives."""
        product = self.meeting.left_counts * self.meeting.right_counts
        return product * self.pairs + self.left_alone + self.right_alone

    def slices(self, rows: int) -> Iterator[tuple[Numbers, Numbers]]:
        """Yields which left and right row output rows are made of, -1 for none, of `rows` output rows at a time."""
        meeting = self.meeting
        for key, place in output_rows(self.counts(), rows):
            pairs, alone, width = self.pairs[key], self.left_alone[key], np.maximum(meeting.right_counts[key], 1)
            left = meeting.left_starts[key] + np.where(pairs, place // width, place)
            right = meeting.right_starts[key] + np.where(pairs, place % width, place - alone)
            yield np.where(pairs | (place < alone), left, -1), np.where(pairs | (place >= alone), right, -1)


def output_rows(counts: Numbers, rows: int) -> Iterator[tuple[Numbers, Numbers]]:
    """Yields whose output rows are, and which ones of that, `rows` at a time, where each gives so many."""
    ends = np.cumsum(counts)
    for start in range(0, int(ends[-1]) if len(ends) else 0, rows):
        numbers = np.arange(start, min(start + rows, int(ends[-1])))
        one = np.searchsorted(ends, numbers, side="right")
        yield one, numbers - (ends[one] - counts[one])


def rows_of(starts: Numbers, counts: Numbers, rows: int) -> Numbers:
    """Returns for each of so many rows whether it is one of those that begin at `starts`, `counts` each.

    >>> rows_of(np.array([0, 3]), np.array([2, 0]), 4).tolist()
    [True, True, False, False]
    """
    some = counts > 0
    change = np.zeros(rows + 1, np.int64)
    np.add.at(change, starts[some], 1)
    np.add.at(change, (starts + counts)[some], -1)
    return np.cumsum(change[:-1]) > 0


def take_or_null(table: pa.Table, rows: Numbers) -> pa.Table:
    """Returns rows of a table by number, nulls for -1. It looks at the part of the table only that they are in."""
    there = rows >= 0
    if not there.any():
        columns = [pa.nulls(len(rows), type) for type in table.schema.types]
        return pa.table(columns, schema=table.schema) if columns else table.slice(0, 0)
    first, last = int(rows[there].min()), int(rows[there].max())
    part, places = table.slice(first, last - first + 1), rows - first
    if part.num_rows > SPARSE * len(rows) and any(column.num_chunks > 1 for column in part.columns):
        wanted, numbers = np.unique(places[there], return_inverse=True)
        part, places = _picked(part, wanted), places.copy()
        places[there] = numbers
    return take_rows(part, pa.array(places, mask=~there))


def _picked(table: pa.Table, rows: Numbers) -> pa.Table:
    """Returns rows of a table, ascending, without bringing its chunks together as `take` does."""
    found = []
    at = 0
    for batch in table.to_batches():
        first, last = np.searchsorted(rows, [at, at + batch.num_rows])
        if first < last:
            found.append(take_rows(pa.Table.from_batches([batch]), pa.array(rows[first:last] - at)))
        at += batch.num_rows
    return pa.concat_tables(found)


def coalesce(left: pa.ChunkedArray, right: pa.ChunkedArray, rows: Numbers) -> pa.ChunkedArray:
    """Returns the values of `left`, but of `right` where `rows` is -1; both are as long."""
    if (rows >= 0).all():
        return left
    places = np.arange(len(rows))
    both = pa.chunked_array([*left.chunks, *right.chunks], left.type)
    chosen = pa.array(np.where(rows >= 0, places, places + len(rows)))
    return take_rows(pa.table({"key": both}), chosen).column(0)


def has_null(table: pa.Table) -> Numbers:
    """Returns which rows have a null."""
    found = np.zeros(table.num_rows, bool)
    for column in table.columns:
        if column.null_count:
            found |= numbers(pc.is_null(column))
    return found
