"""Rows in random order, the same for the same seed: by buckets, each of which one task holds.

Where no number of outputs is asked for, each is some whole buckets, as many as the others to one: what is read is what
is written, and a plan need not know how many rows a bucket has, which in run files of 100 TB would be more pages than
anybody can count. Buckets are as even as chance allows, so outputs are; how many there are depends on the bytes alone,
and not on the seed. Outputs of as many rows each, to one, read the buckets whole that they begin and end in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.hashing import random_keys
from curate.arrow.order import Order, SortKey, take_rows
from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.exchange.kinds.base import Limitable
from curate.exchange.protocol import ReducePart
from curate.late_pandas import numbers
from curate.operators.protocol import Operator
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition

BUCKET = "__bucket"
"""The column that a shuffle sorts by; rows do not have it before, nor after."""
BUCKETS = 1 << 20
"""Most buckets that a shuffle throws rows into."""
COUNTED_BUCKETS = 1 << 16
"""The same where it is known how many rows each of them has: every one begins a page in each chunk of a run file."""
BUCKETS_PER_OUTPUT = 64
"""At least, where there are fewer than BUCKETS: an output has one more than another, or one less."""
COUNTED_PER_OUTPUT = 8
"""The same of outputs that are counted, where those at the ends are read twice."""


@dataclass(frozen=True, slots=True)
class Bucketed(Operator):
    """Adds the bucket that a row is thrown into: by its seed, its shard and its number there."""

    seed: int | None
    buckets: int
    part: int = 0
    """Which part of a union the rows are of, where each is a stage of its own: there may be shards of one name."""
    keeps_rows = True
    name = "bucket"

    def made(self, found: pa.Schema) -> pa.Schema:
        if BUCKET in found.names:
            raise ConfigError(f"random_shuffle: the rows already have a column {BUCKET!r}; rename it")
        return found.append(pa.field(BUCKET, bucket_type(self.buckets)))

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
        yield batch.append_column(BUCKET, pa.array(buckets.astype(bucket_type(self.buckets).to_pandas_dtype())))


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
    orders = (Order((SortKey(BUCKET),)),)

    @property
    def even(self) -> bool:
        """Where the rows of an output are counted."""
        return self.count is not None or self.first is not None

    @property
    def aligned(self) -> bool:
        return not self.even

    @property
    def name(self) -> str:
        return self._told(f"random_shuffle(seed={self.seed})")

    def identity(self) -> Any:
        said = self._identity("random_shuffle", self.seed, self.count, self.buckets)
        return said if self.even else [*said, "even buckets"]

    def given_cuts(self, outputs: int) -> pa.Table | None:
        outputs = min(outputs, self.buckets)
        starts = np.arange(1, outputs) * self.buckets // outputs
        return pa.table({BUCKET: pa.array(starts.astype(bucket_type(self.buckets).to_pandas_dtype()))})

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
        buckets = numbers(rows[BUCKET])
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


def bucket_type(buckets: int) -> pa.DataType:
    """Returns the type of a column of the numbers of buckets."""
    return pa.uint16() if buckets <= 1 << 16 else pa.uint32()


def buckets_for(outputs: int, *, counted: bool) -> int:
    """Returns how many buckets are used where there will be about as many outputs; `counted`: whether their rows are.

    >>> buckets_for(1, counted=False), buckets_for(100, counted=False), buckets_for(1_000_000, counted=False)
    (64, 8192, 1048576)
    >>> buckets_for(1, counted=True), buckets_for(100, counted=True), buckets_for(1_000_000, counted=True)
    (64, 1024, 65536)
    """
    wanted = max(64, outputs * (COUNTED_PER_OUTPUT if counted else BUCKETS_PER_OUTPUT))
    return min(COUNTED_BUCKETS if counted else BUCKETS, 1 << (wanted - 1).bit_length())
