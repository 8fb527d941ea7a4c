"""One row of each key, and the values that a column has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from curate.dataset.exchange.groups import Groups, Numbers, groups_of, groups_of_sorted
from curate.dataset.exchange.how import Part
from curate.dataset.exchange.order import Order, SortKey, take
from curate.dataset.lazy.grouping import Regrouping, key_columns, order_by, slices
from curate.dataset.lazy.operators import Plain, Select
from curate.dataset.lazy.plan import Apply, Exchanged, Plan, schema_of
from curate.dataset.pipeline import READ_ROWS, Place
from curate.dataset.tally import Tally
from curate.errors import ConfigError, did_you_mean

DUPLICATE = "duplicate"
"""Why rows are dropped of whose key another one is kept."""
KEEPS = ("first", "last")


@dataclass(frozen=True, slots=True)
class Distinct(Regrouping):
    """One row of each key, in order of the keys: the first or last one as they came, or by a column."""

    name: str
    keys: tuple[str, ...]
    keep: str = "first"
    by: str | None = None
    reason = DUPLICATE

    @property
    def orders(self) -> tuple[Order, ...]:
        return (order_by(self.keys),)

    def identity(self) -> Any:
        return ["distinct", list(self.keys), self.keep, self.by]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        [rows] = found
        if rows is not None:
            self._check(rows)
        return rows

    def _check(self, found: pa.Schema) -> None:
        order_by(self.keys).check(self.name, found)
        if self.by is not None:
            order_by([self.by]).check(self.name, found)

    def fold(self, side: int, table: pa.Table) -> pa.Table:
        del side
        self._check(table.schema)
        groups = groups_of(order_by(self.keys), table)
        if groups is None or groups.count == table.num_rows:
            return table
        # As they came: what is merged later is told apart by it.
        return take(table, pa.array(np.sort(self._kept(groups, table))))

    def combine(self, tables: Sequence[pa.Table], tally: Tally, part: Part) -> Iterator[pa.Table]:
        del part
        [table] = tables
        if not table.num_rows:
            return
        self._check(table.schema)
        order = order_by(self.keys)
        starts = order.starts(table)
        tally.drop(table.num_rows - len(starts), DUPLICATE)
        for rows in slices(starts, table, READ_ROWS):
            yield take(rows, pa.array(self._kept(groups_of_sorted(order, rows), rows)))

    def _kept(self, groups: Groups, table: pa.Table) -> Numbers:
        """Returns the row of each group that is kept."""
        if self.by is None:
            return groups.firsts() if self.keep == "first" else groups.lasts()
        # Nulls and NaN come last either way; of equal values it is the last row that is kept, where the last is.
        rows = np.arange(table.num_rows)
        order = Order((SortKey(self.by),))
        if self.keep == "last":
            rows = rows[::-1]
            order = Order((SortKey(self.by, descending=True),))
        column = take(table.select([self.by]), pa.array(rows))
        rows = rows[order.indices(column).to_numpy()]
        return np.asarray(rows[Groups(groups.ids[rows], groups.count).firsts()])


def distinct(plan: Plan, keys: Any, keep: str, order_by: str | None) -> Plan:
    """Returns one row of each key of a plan. `keys` of None are all its columns. Raises ConfigError."""
    if keep not in KEEPS:
        raise ConfigError(f"distinct(keep={keep!r}){did_you_mean(str(keep), KEEPS)}; expected first or last")
    if keys is None:
        known = schema_of(plan)
        if known is None:
            raise ConfigError("distinct: which columns there are is known only when rows are made; name the keys")
        keys = known.names
    named = key_columns("distinct", keys)
    if order_by in named:
        raise ConfigError(f"distinct(order_by={order_by!r}) is one of the keys, of which all rows have one value")
    how = f", keep={keep!r}" + (f", order_by={order_by!r}" if order_by is not None else "")
    name = f"distinct({', '.join(map(repr, named))}{how})"
    return Exchanged((plan,), Distinct(name, named, keep, order_by))


@dataclass(frozen=True, slots=True)
class Once(Plain):
    """Leaves out rows of a batch that are like another one before them."""

    how: Distinct
    keeps_rows = False

    @property
    def name(self) -> str:
        return self.how.name

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        return self.how.schema([found])

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        del schema
        return {*needed, *self.how.keys}

    def identity(self) -> Any:
        return self.how.identity()

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        del place
        kept = self.how.fold(0, table)
        tally.drop(table.num_rows - kept.num_rows, DUPLICATE)
        yield kept


def unique(plan: Plan, column: str, run: Callable[[Plan], Iterable[pa.Table]]) -> list[Any]:
    """Has a plan run, and returns the values that a column has, each once: ascending, then NaN, then None.

    They have to fit into memory. Raises ConfigError for a column that is not there, or whose values have no order.
    """
    [name] = key_columns("unique", column if isinstance(column, str) else [])
    how = Distinct(f"unique({name!r})", (name,))
    found: pa.Table | None = None
    pending: list[pa.Table] = []
    for block in run(Apply(Apply(plan, Select((name,))), Once(how))):
        pending.append(block)
        if sum(one.num_rows for one in pending) >= READ_ROWS + (0 if found is None else found.num_rows):
            found = how.fold(0, pa.concat_tables([*([] if found is None else [found]), *pending]))
            pending = []
    whole = [*([] if found is None else [found]), *pending]
    if not whole:
        return []
    order = how.orders[0]
    values = order.sort(pa.concat_tables(whole))
    return take(values, pa.array(order.starts(values))).column(0).to_pylist()  # type: ignore[no-any-return]
