"""The exchange that puts rows in the order of some columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from curate.arrow.order import Order, take_rows
from curate.dataclass import dataclass
from curate.exchange.kinds.base import Limitable

FOLDED_ROWS = 1 << 16
"""Most rows that a sort is limited to which every map shard puts in order, to keep no more: it does so for each quarter
of a million of its rows."""


@dataclass(frozen=True, slots=True)
class Sorted(Limitable):
    """Rows by keys; those of equal keys as they came. A heavy key goes on in the next output."""

    order: Order

    @property
    def name(self) -> str:
        keys = (f"{one.column} descending" if one.descending else one.column for one in self.order.keys)
        return self._told(f"sort({', '.join(keys)})")

    @property
    def orders(self) -> tuple[Order, ...]:
        return (self.order,)

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        if found[0] is not None:
            self.order.check("sort", found[0])
        return found[0]

    def identity(self) -> Any:
        return self._identity("sort", self.order.identity())

    @property
    def folds(self) -> bool:
        return self.first is not None and self.first <= FOLDED_ROWS

    def fold(self, table: pa.Table) -> pa.Table:
        return take_rows(table, self.order.indices(table).slice(0, self.first))
