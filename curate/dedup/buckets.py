"""Pairs of rows that share a band: the exchanges that bring rows of one bucket together, and no bucket to one task.

A bucket of over a thousand rows in one map shard becomes pairs there. Of its rows the first of 16 twins stay (see
`pairs`), those with the least hashes, so that other map shards have the same; and pairs go their own way, by a hash of
their own. So no bucket is too heavy for a task.

Where rows are dropped for the very row that is kept, each row of a bucket has to meet the first of all of it, which a
map shard does not know. So the first of its own stays, too, as the leader of those that do not. These wait under the
leader's key, and `Led` pairs them with the first row of the bucket, which its leader has met.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.hashing import Words, hash_words
from curate.arrow.order import Order, SortKey
from curate.dataclass import dataclass
from curate.dedup.minhash import band_hashes, of_twin, signatures, twin_hashes
from curate.dedup.near import CLASS, OTHER, NearDedup
from curate.dedup.pairs import SMALL, Ints, distinct_pairs, pairs_of_buckets, runs
from curate.dedup.shingles import distinct
from curate.exchange.protocol import Exchange, ReducePart
from curate.exchange.row_ids import ROW_ID, row_ids
from curate.late_pandas import numbers
from curate.operators.protocol import Replacing
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition
from curate.tasks.books import GROUPED

NO_WORDS = "no words"
"""Why texts have no bands: there is nothing in them to be alike."""

HEAVY = 1024
"""Rows of a bucket in one map shard above which it is not sent as it is."""

BAND, TWIN = "__band", "__twin"

_MEMBER, _LED, _LEADER = -1, -2, -3
"""In place of the other row of a pair: a row of its bucket; one that waits for the first row of it; and one of a bucket
that others wait for."""
_SLICE_ROWS = 1 << 20
"""Rows of buckets that become pairs at a time, about."""


@dataclass(frozen=True, slots=True)
class Bands(Replacing):
    """Replaces each row by its bands: hash, place, twin (see `pairs`), which is of the next band, and class."""

    rule: NearDedup

    @property
    def name(self) -> str:
        return f"minhash({self.rule.column!r})"

    def made(self, found: pa.Schema) -> pa.Schema:
        del found
        return _BANDS

    def identity(self) -> Any:
        return ["minhash", self.rule.identity()]

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        near = self.rule
        sets = near.shingles(batch[near.column])
        found = signatures(sets, near.bands * near.rows, near.seed)
        some = np.flatnonzero(sets.counts)
        tally.drop(batch.num_rows - len(some), NO_WORDS)
        hashes = band_hashes(found, near.bands)[:, some]
        twins = np.roll(twin_hashes(found, near.bands, distinct(sets).sums)[:, some], -1, axis=0)
        # Row by row, so that the bands of a row are in one run file.
        at, classes = (
            np.repeat(one[some], near.bands) for one in (row_ids(place, batch.num_rows), near.classes(batch))
        )
        yield _bands(hashes.T.ravel(), at, twins.T.ravel(), np.full(len(at), _MEMBER), classes)


_BANDS = pa.schema(
    [(BAND, pa.uint64()), (ROW_ID, pa.int64()), (TWIN, pa.uint32()), (OTHER, pa.int64()), (CLASS, pa.int32())]
)
PAIRS = pa.schema([(ROW_ID, pa.int64()), (OTHER, pa.int64())])
_LED_PAIRS = pa.schema([pa.field(BAND, pa.uint64()), *PAIRS])


def _bands(*columns: Any) -> pa.Table:
    return pa.table([pa.array(np.ascontiguousarray(one)) for one in columns], schema=_BANDS)


class _Together(Exchange):
    __slots__ = ()
    near: NearDedup
    aligned = True
    orders = (Order((SortKey(BAND),)),)


@dataclass(frozen=True, slots=True)
class Buckets(_Together):
    """The exchange that brings rows of one band together, and makes pairs of them: `ROW_ID` before `OTHER`."""

    near: NearDedup
    folds = True

    @property
    def name(self) -> str:
        return self.near.name

    def identity(self) -> Any:
        return ["pairs", self.near.identity()]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        if found[0] is not None:
            self.near.check(found[0])
        return _LED_PAIRS if self.near.verified else PAIRS

    def prepare(self, side: int) -> tuple[Any, ...]:
        del side
        return (Bands(self.near),)

    def fold(self, table: pa.Table) -> pa.Table:
        bands, at, twins, other, classes = (numbers(table[name]) for name in _BANDS.names)
        members = _members(other)
        order = members[np.lexsort((at[members], classes[members], twins[members], bands[members]))]
        starts, sizes = runs(bands[order])
        large = np.repeat(sizes > HEAVY, sizes)
        if not large.any():
            return table
        rows = order[large]
        u, v = self._pairs(bands[rows], at[rows], twins[rows], classes[rows])
        own = of_twin(twins[rows])
        new = np.append(True, (bands[rows][1:] != bands[rows][:-1]) | (own[1:] != own[:-1]))
        heads = rows[new]
        first, many = runs(bands[heads])
        stay = heads[np.arange(len(heads)) - np.repeat(first, many) < SMALL]
        made = [_bands(pair_keys(u, v), u, np.zeros(len(u), np.uint32), v, np.zeros(len(u), np.int32))]
        if self.near.verified:
            by_class = rows[np.lexsort((at[rows], classes[rows], bands[rows]))]
            starts, sizes = runs(bands[by_class])
            leaders = by_class[starts]
            stay = np.unique(np.concatenate([stay, leaders, rows[other[rows] == _LEADER]]))
            led = np.isin(by_class, stay, invert=True)
            keys = np.repeat(_leads(bands[leaders], at[leaders]), sizes)[led]
            waiting = by_class[led]
            none = np.zeros(len(waiting), np.uint32)
            made.append(_bands(keys, at[waiting], none, np.full(len(waiting), _LED), classes[waiting]))
            other = other.copy()
            other[leaders] = _LEADER
            table = table.set_column(table.column_names.index(OTHER), OTHER, pa.array(other))
        kept = np.sort(np.concatenate([np.setdiff1d(np.arange(table.num_rows), rows), stay]))
        return pa.concat_tables([table.take(pa.array(kept)), *made])

    def combine(self, tables: Sequence[pa.Table], tally: ShardBooks, part: ReducePart) -> Iterator[pa.Table]:
        del part
        bands, at, twins, other, classes = (numbers(tables[0][name]) for name in _BANDS.names)
        starts, _ = runs(bands)
        made = first = 0
        while first < len(bands):
            next = int(np.searchsorted(starts, first + _SLICE_ROWS))
            last = int(starts[next]) if next < len(starts) else len(bands)
            members = first + _members(other[first:last])
            pairs = first + np.flatnonzero(other[first:last] >= 0)
            u, v = self._pairs(bands[members], at[members], twins[members], classes[members])
            u, v = distinct_pairs(np.concatenate([u, at[pairs]]), np.concatenate([v, other[pairs]]))
            if self.near.verified:
                waiting = first + np.flatnonzero(other[first:last] == _LED)
                keys, leaders = _leaders(bands[members], at[members], other[members], classes[members])
                keys = np.concatenate([pair_keys(u, v), bands[waiting], keys])
                u = np.concatenate([u, at[waiting], leaders])
                others = [v, np.full(len(waiting), _LED), np.full(len(leaders), _LEADER)]
                table = pa.table([keys, u, np.concatenate(others)], schema=_LED_PAIRS)
            else:
                table = pa.table([pa.array(u), pa.array(v)], schema=PAIRS)
            made += table.num_rows
            yield table
            first = last
        tally.drop(max(0, len(bands) - made), GROUPED)

    def _pairs(self, bands: Words, at: Ints, twins: Any, classes: Any) -> tuple[Ints, Ints]:
        return pairs_of_buckets(bands, at, twins, classes, with_first=self.near.verified)


@dataclass(frozen=True, slots=True)
class Led(_Together):
    """The exchange that pairs rows with the first of their bucket, where only their leader has met it; pairs that were
    made before stay as they are, each once."""

    near: NearDedup
    name = "pairs"

    def identity(self) -> Any:
        return ["led", self.near.identity()]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        del found
        return PAIRS

    def combine(self, tables: Sequence[pa.Table], tally: ShardBooks, part: ReducePart) -> Iterator[pa.Table]:
        del part
        keys, at, other = (numbers(tables[0][name]) for name in _LED_PAIRS.names)
        pairs, waiting, leads = (np.flatnonzero(one) for one in (other >= 0, other == _LED, other == _LEADER))
        u, v = at[pairs], other[pairs]
        if len(leads) and len(waiting):
            found = np.minimum(np.searchsorted(keys[leads], keys[waiting]), len(leads) - 1)
            led = keys[leads][found] == keys[waiting]
            one, two = at[leads][found][led], at[waiting][led]
            u, v = np.concatenate([u, np.minimum(one, two)]), np.concatenate([v, np.maximum(one, two)])
        u, v = distinct_pairs(u, v)
        tally.drop(max(0, len(keys) - len(u)), GROUPED)
        yield pa.table([pa.array(u), pa.array(v)], schema=PAIRS)


def _members(other: Ints) -> Ints:
    """Returns which rows are rows of their bucket."""
    return np.flatnonzero((other == _MEMBER) | (other == _LEADER))


def _leaders(bands: Words, at: Ints, other: Ints, classes: Any) -> tuple[Words, Ints]:
    """Returns for each leader among the rows of buckets what waits for it, as a key, and the first row of its bucket;
    not for those that are the first themselves, which what waits is paired with already.
    """
    if not (other == _LEADER).any():
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    order = np.lexsort((at, classes, bands))
    starts, sizes = runs(bands[order])
    firsts = np.repeat(at[order][starts], sizes)
    rows = at[order]
    told = (other[order] == _LEADER) & (firsts != rows)
    return _leads(bands[order][told], rows[told]), firsts[told]


def _leads(bands: Words, leaders: Ints) -> Words:
    """Returns the keys of what waits for leaders."""
    return hash_words(hash_words(bands) + leaders.view(np.uint64), 1)


def pair_keys(u: Ints, v: Ints) -> Words:
    """Returns keys of pairs, which spread them evenly."""
    return hash_words(hash_words(u.view(np.uint64)) + v.view(np.uint64))
