"""Rows in random order, the same for the same seed: by buckets, each of which one task holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.hashing import random_keys
from curate.arrow.order import Order, SortKey, take_rows
from curate.errors import ConfigError
from curate.exchange.kinds.base import Limitable
from curate.exchange.protocol import ReducePart
from curate.operators.protocol import OperatorDefaults
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition

BUCKET = "__bucket"
"""The column that a shuffle sorts by; rows do not have it before, nor after."""
BUCKETS = 1 << 16
"""Most buckets that a shuffle throws rows into."""
BUCKETS_PER_OUTPUT = 8
"""An output reads the buckets whole that it begins and ends in."""


@dataclass(frozen=True, slots=True)
class Bucketed(OperatorDefaults):
    """Adds the bucket that a row is thrown into: by its seed, its shard and its number there."""

    seed: int | None
    buckets: int
    part: int = 0
    """Which part of a union the rows are of, where each is a stage of its own: there may be shards of one name."""
    keeps_rows = True

    @property
    def name(self) -> str:
        return "bucket"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        if found is None:
            return None
        if BUCKET in found.names:
            raise ConfigError(f"random_shuffle: the rows already have a column {BUCKET!r}; rename it")
        return found.append(pa.field(BUCKET, pa.uint16()))

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        return needed & set(schema.names)

    def identity(self) -> Any:
        return ["bucket", self.seed, self.buckets, *([self.part] if self.part else [])]

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        del tally
        self.schema(batch.schema)
        assert self.seed is not None
        shard = f"{self.part}\0{place.shard}" if self.part else place.shard
        keys = random_keys(self.seed, shard, place.row, batch.num_rows)
        # The upper bits of a product: as even as the keys, for any number of buckets.
        buckets = ((keys >> np.uint64(32)) * np.uint64(self.buckets)) >> np.uint64(32)
        yield batch.append_column(BUCKET, pa.array(buckets.astype(np.uint16)))


@dataclass(frozen=True, slots=True)
class Shuffled(Limitable):
    """Rows in random order: each is thrown into a bucket, and those of a bucket are permuted.

    A row's bucket depends on the seed and on where it was read; the permutation, on the seed and the bucket. So the
    order is uniform, and the same whatever the schedule.
    """

    seed: int | None
    """None: the first run chooses one."""
    buckets: int
    count: int | None
    plain = False
    sorts = True
    even = True

    @property
    def name(self) -> str:
        return self._told(f"random_shuffle(seed={self.seed})")

    @property
    def orders(self) -> tuple[Order, ...]:
        return (Order((SortKey(BUCKET),)),)

    def identity(self) -> Any:
        return self._identity("random_shuffle", self.seed, self.count, self.buckets)

    def made(self, prepared: Sequence[pa.Schema]) -> pa.Schema | None:
        [found] = prepared
        return self.schema([pa.schema([field for field in found if field.name != BUCKET])])

    def prepare(self, side: int) -> tuple[Any, ...]:
        del side
        return (Bucketed(self.seed, self.buckets),)

    def combine(self, tables: Sequence[pa.Table], tally: ShardBooks, part: ReducePart) -> Iterator[pa.Table]:
        (rows,) = tables
        if not rows.num_rows:
            return
        assert self.seed is not None
        # In one piece: Arrow lays texts of several end to end for each `take`.
        rows = rows.combine_chunks()
        buckets = rows[BUCKET].to_numpy()
        together = np.argsort(buckets, kind="stable")
        sizes = np.bincount(buckets)
        order = np.empty_like(together)
        start = 0
        for bucket in np.flatnonzero(sizes).tolist():
            stop = start + int(sizes[bucket])
            order[start:stop] = together[start:stop][permutation(self.seed, bucket, stop - start)]
            start = stop
        own = order[part.skip : None if part.take is None else part.skip + part.take]
        # Those of the neighbours were read beside them, and are not this output's.
        tally.books.rows_in -= len(order) - len(own)
        plain = rows.drop_columns([BUCKET])
        for start in range(0, len(own), SLICE_ROWS):
            yield take_rows(plain, pa.array(own[start : start + SLICE_ROWS]))


SLICE_ROWS = 1 << 16
"""Rows that are taken at a time."""


def permutation(seed: int, bucket: int, rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the numbers below `rows` in random order, the same for the same seed and bucket."""
    keys = random_keys(seed, f"bucket {bucket}", 0, rows)
    order = np.argsort(keys)
    ordered = keys[order]
    if (ordered[1:] == ordered[:-1]).any():
        # Once in 2^64 pairs; which comes first, the quick sort leaves to the machine.
        return np.argsort(keys, kind="stable")
    return order


def buckets_for(outputs: int) -> int:
    """Returns how many buckets are used where there will be about as many outputs.

    >>> buckets_for(1), buckets_for(100), buckets_for(1_000_000)
    (64, 1024, 65536)
    """
    wanted = max(64, outputs * BUCKETS_PER_OUTPUT)
    return min(BUCKETS, 1 << (wanted - 1).bit_length())
