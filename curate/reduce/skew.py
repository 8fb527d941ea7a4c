"""Heavy keys: found in the indexes of run files; the error for one that does not fit into memory. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.order import Order, take_rows
from curate.arrow.recast import python_value
from curate.dataclass import dataclass
from curate.late_pandas import numbers
from curate.reduce.index import Index
from curate.units import format_bytes

_LONGEST = 60
"""How many characters of a key are shown."""


@dataclass(frozen=True, slots=True)
class HeavyKey:
    """A key, and what there is of it at least."""

    key: dict[str, Any]
    """Its value in each key column."""

    rows: int
    bytes: int
    """In memory."""


def heaviest(order: Order, index: Index) -> HeavyKey | None:
    """Returns the key that is known to have most bytes, the first of several; None where no page is of one key.

    A page is of one key if that begins both it and the next page of its segment. So the index misses less than two
    pages of each segment: rows at the end of the page before, and of the last page that it begins. Of every page, also
    where the index has only some of them.
    """
    if index.heavy is None or not index.heavy.num_rows or not order.keys:
        return None
    places = numbers(order.indices(index.heavy)).astype(np.int64)
    keys = take_rows(index.heavy, pa.array(places))
    starts = order.starts(keys)
    rows, bytes = (np.add.reduceat(one[places], starts) for one in (index.heavy_rows, index.heavy_bytes))
    worst = int(bytes.argmax())
    row = take_rows(keys, pa.array([int(starts[worst])]))
    key = {name: python_value(column[0]) for name, column in zip(row.column_names, row.columns, strict=True)}
    return HeavyKey(key, int(rows[worst]), int(bytes[worst]))


def refusal(where: str, heavy: HeavyKey, budget_bytes: int, *, copies: int) -> str:
    """Returns what is said of a key whose rows must be in one place and do not fit: the arithmetic, and what to do.

    `copies` is how often its rows are in memory at once.

    >>> heavy = HeavyKey({"user": "[deleted]"}, rows=52_000_000, bytes=6 << 30)
    >>> print(refusal("groupby('user').map_groups", heavy, 2 << 30, copies=2))
    groupby('user').map_groups: the rows of one key do not fit into the memory of a task.
      key      user='[deleted]'
      rows     52,000,000 or more
      bytes    6.00 GiB or more, 2 times in memory: 12.0 GiB
      budget   2.00 GiB
    One task needs all rows of a key. Filter this key out, or add a column to the key that splits it;
    drop columns that you do not need; or raise memory_budget to 6 times its value.
    """
    key = ", ".join(f"{name}={_shown(value)}" for name, value in heavy.key.items())
    needed = heavy.bytes * copies
    return (
        f"{where}: the rows of one key do not fit into the memory of a task.\n"
        f"  key      {key}\n"
        f"  rows     {heavy.rows:,} or more\n"
        f"  bytes    {format_bytes(heavy.bytes)} or more, {copies} times in memory: {format_bytes(needed)}\n"
        f"  budget   {format_bytes(budget_bytes)}\n"
        "One task needs all rows of a key. Filter this key out, or add a column to the key that splits it;\n"
        f"drop columns that you do not need; or raise memory_budget to {-(-needed // budget_bytes)} times its value."
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters in all)"
