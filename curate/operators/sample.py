"""Random samples of rows: the choice depends only on the seed and the places of the rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.expressions import refuse_unknown
from curate.arrow.hashing import VERSION, digest_rows
from curate.arrow.order import rows_where
from curate.arrow.unknown import empty
from curate.dataclass import dataclass
from curate.operators.protocol import Operator
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition

REASON = "random_sample"
"""What a write books the rows under that are left out."""
OTHER_SIDE = "train_test_split"
"""What it books the rows under that are on the other side of a split."""
BITS = 53
"""Of a row's number that are compared with the fraction: as many as a float has."""


@dataclass(frozen=True, slots=True)
class RandomSample(Operator):
    """Keeps a row if its own random number is below the fraction, so that a larger one keeps the same rows and more."""

    fraction: float
    seed: int

    @property
    def name(self) -> str:
        return f"random_sample({self.fraction}, seed={self.seed})"

    @property
    def by_place(self) -> bool:
        """Whether it goes by the places of rows, and not by what is in them."""
        return True

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        del schema
        return needed

    def identity(self) -> Any:
        return ["random_sample", self.fraction.hex(), self.seed]

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        numbers = random_numbers(self.seed, place.shard, place.row, table.num_rows)
        kept = rows_where(table, below(numbers, self.fraction))
        tally.drop(table.num_rows - kept.num_rows, REASON)
        yield kept


@dataclass(frozen=True, slots=True)
class TrainTestSide(RandomSample):
    """Keeps the rows on one side of a split: those that a sample of `fraction` takes (`test`), or all others."""

    test: bool
    column: str | None = None
    """Rows go by the hash of this column, so that equal values are on one side; None: each by its own number."""

    @property
    def name(self) -> str:
        by = f"seed={self.seed}" if self.column is None else f"hash_column={self.column!r}"
        return f"train_test_split({self.fraction}, {by}, side={'test' if self.test else 'train'!r})"

    @property
    def by_place(self) -> bool:
        return self.column is None

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        if found is not None and self.column is not None:
            refuse_unknown("train_test_split", [self.column], found.names)
            digest_rows(empty(found), [self.column])
        return found

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        del schema
        return needed if self.column is None else needed | {self.column}

    def identity(self) -> Any:
        by = self.seed if self.column is None else [self.column, VERSION]
        return ["train_test_split", self.fraction.hex(), by, self.test]

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        if self.column is None:
            numbers = random_numbers(self.seed, place.shard, place.row, table.num_rows)
        else:
            self.schema(table.schema)
            numbers = digest_rows(table, [self.column])[0]
        kept = rows_where(table, below(numbers, self.fraction) == self.test)
        tally.drop(table.num_rows - kept.num_rows, OTHER_SIDE)
        yield kept


def below(numbers: np.ndarray[Any, np.dtype[np.uint64]], fraction: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns which of uniform numbers of 64 bits are in the first `fraction` of all."""
    return numbers >> np.uint64(64 - BITS) < np.uint64(round(fraction * 2**BITS))


def random_numbers(seed: int, shard: str, row: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Returns uniform numbers of 64 bits for the rows from `row` on: the same for a row, however they are asked for.

    They are the output of Philox 4x64-10 (Salmon and others, 2011), a counter-based generator of which numpy keeps the
    bits the same for ever: keyed by seed and shard, counted by row, four rows to a count.

    >>> whole = random_numbers(7, "a.parquet", 0, 10)
    >>> bool((random_numbers(7, "a.parquet", 3, 5) == whole[3:8]).all())
    True
    """
    digest = hashlib.blake2b(f"{seed}\0{shard}".encode("utf-8", "surrogateescape"), digest_size=16).digest()
    skipped = row % 4
    bits = np.random.Philox(key=int.from_bytes(digest, "little"), counter=row // 4)
    return bits.random_raw(count + skipped)[skipped:]
