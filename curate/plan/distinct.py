"""Rows without duplicates, and the values of a column, as plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from curate.arrow.order import take_rows
from curate.errors import ConfigError, refuse_other
from curate.exchange.kinds.base import key_columns
from curate.exchange.kinds.distinct import KEEPS, Distinct, DistinctBatch
from curate.operators.columns import Select
from curate.operators.convert import rows
from curate.pipeline.step import READ_ROWS
from curate.plan.nodes import Apply, Exchanged, Plan, schema_of


def distinct(plan: Plan, keys: Any, keep: str, order_by: str | None) -> Plan:
    """Returns one row of each key of a plan. `keys` of None are all its columns. Raises ConfigError."""
    refuse_other("distinct: keep", keep, KEEPS)
    if keys is None:
        known = schema_of(plan)
        if known is None:
            raise ConfigError("distinct: the columns are known only when the job runs; name the keys")
        keys = known.names
    named = key_columns("distinct", keys)
    if order_by in named:
        raise ConfigError(f"distinct(order_by={order_by!r}) is a key, so all rows of a group have the same value")
    how = f", keep={keep!r}" + (f", order_by={order_by!r}" if order_by is not None else "")
    name = f"distinct({', '.join(map(repr, named))}{how})"
    return Exchanged((plan,), Distinct(name, named, keep, order_by))


def unique(plan: Plan, column: str, run: Callable[[Plan], Iterable[pa.Table]]) -> list[Any]:
    """Has a plan run, and returns the values that a column has, each once: ascending, then NaN, then None.

    They have to fit into memory. Raises ConfigError for a column that is not there, or whose values have no order;
    SchemaMismatch for values that Python has none for.
    """
    [name] = key_columns("unique", column if isinstance(column, str) else [])
    how = Distinct(f"unique({name!r})", (name,))
    found: pa.Table | None = None
    pending: list[pa.Table] = []
    for block in run(Apply(Apply(plan, Select((name,))), DistinctBatch(how))):
        pending.append(block)
        if sum(one.num_rows for one in pending) >= READ_ROWS + (0 if found is None else found.num_rows):
            found = how.fold(pa.concat_tables([*([] if found is None else [found]), *pending]))
            pending = []
    whole = [*([] if found is None else [found]), *pending]
    if not whole:
        return []
    order = how.orders[0]
    values = order.sort(pa.concat_tables(whole))
    return [row[name] for row in rows(take_rows(values, pa.array(order.starts(values))))]
