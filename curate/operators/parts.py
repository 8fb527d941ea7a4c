"""Parts of a corpus by the hash of a value: a row is in the same part in whatever corpus it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.expressions import refuse_unknown
from curate.arrow.hashing import VERSION, Words, digest_rows, salted
from curate.arrow.order import rows_where
from curate.arrow.unknown import empty
from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.ledger.side_outputs import check_sides
from curate.operators.protocol import Operator
from curate.operators.sample import below
from curate.operators.unfit import nulls, set_aside
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition, SideTable
from curate.units import LARGEST_SEED, keep_whole

SALT = "split_off"
"""What the hash is made with: who draws from a part by the hash of the same column finds all of its rows alike."""
LITTLE = 1e-9
"""By how much shares may go beyond 1, as numbers with a fraction do that are added."""


@dataclass(frozen=True, slots=True)
class SplitOff(Operator):
    """Sends parts of the rows to extra outputs, and lets the others go on."""

    parts: tuple[tuple[str, float], ...]
    """The name and the share of each."""
    column: str
    """Whose hash decides."""
    cluster: str | None = None
    """The column whose hash decides where it is not null, so that rows of one value are in one part."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError('split_off: there is no part; name at least one with its share, as {"test": 0.01}')
        check_sides("split_off", self.sides)
        for name, share in self.parts:
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
                raise ConfigError(f"split_off: the share of {name!r} is {share!r}, expected a number between 0 and 1")
        total = math.fsum(share for _, share in self.parts)
        if total > 1 + LITTLE:
            told = " + ".join(f"{share:g}" for _, share in self.parts)
            raise ConfigError(f"split_off: the shares are {told} = {total:g} of all rows, expected 1 at most")
        keep_whole(self, "", {"seed": 0}, LARGEST_SEED)

    @property
    def name(self) -> str:
        told = ", ".join(f"{name}={share:g}" for name, share in self.parts)
        return f"split_off({told}, column={(self.cluster or self.column)!r})"

    @property
    def sides(self) -> tuple[str, ...]:
        """The extra outputs that it has."""
        return tuple(name for name, _ in self.parts)

    def made(self, found: pa.Schema) -> pa.Schema:
        asked = (self.column,) if self.cluster is None else (self.column, self.cluster)
        refuse_unknown("split_off", asked, found.names)
        self._numbers(empty(found))
        return found

    def identity(self) -> Any:
        parts = [[name, float(share).hex()] for name, share in self.parts]
        return [SALT, parts, self.column, self.cluster, self.seed, VERSION]

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table | SideTable]:
        del place
        self.schema(batch.schema)
        batch, _ = set_aside(batch, [(nulls(batch, self.column), f"no {self.column}")], tally)
        numbers = self._numbers(batch)
        left = np.ones(batch.num_rows, bool)
        edges = pairwise([0.0, *accumulate(share for _, share in self.parts)])
        for (name, _), (low, high) in zip(self.parts, edges, strict=True):
            # Up to 1, though sums of fractions may end next to it.
            inside = below(numbers, min(1.0, high)) & ~below(numbers, min(1.0, low))
            left &= ~inside
            tally.drop(int(inside.sum()), f"in {name}")
            # Also without rows: it tells the columns of the extra output.
            yield SideTable(name, rows_where(batch, inside))
        yield rows_where(batch, left)

    def _numbers(self, batch: pa.Table) -> Words:
        """Returns the number of each row, uniform over 64 bits: by cluster, or by its own value where that is null."""
        seed = salted(SALT, self.seed)
        numbers = digest_rows(batch, [self.column], seed)[0]
        if self.cluster is None:
            return numbers
        # As one value is hashed alike in both columns, a cluster may be called after one of its rows.
        return np.where(nulls(batch, self.cluster), numbers, digest_rows(batch, [self.cluster], seed)[0])


def split_off(parts: Mapping[str, float], column: str, cluster: str | None, seed: int) -> SplitOff:
    """Returns what sends parts of rows to extra outputs, in order of their names. Raises ConfigError."""
    if not isinstance(parts, Mapping):
        raise ConfigError(f'split_off takes shares by the names of parts, as {{"test": 0.01}}, found {parts!r}')
    return SplitOff(tuple(sorted(parts.items(), key=lambda part: str(part[0]))), column, cluster, seed)
