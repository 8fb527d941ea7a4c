"""The plan of an aggregate of all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from curate.exchange.kinds.aggregates import Aggregate, CollectList, make, output_name
from curate.exchange.kinds.base import key_columns
from curate.exchange.kinds.group import SLICE_ROWS, Grouped, Totals
from curate.operators.convert import rows
from curate.plan.nodes import Apply, Plan


def totals(
    plan: Plan, method: str, aggregates: Sequence[Aggregate], run: Callable[[Plan], Iterable[pa.Table]]
) -> dict[str, Any]:
    """Has a plan run, and returns aggregates of all its rows as Python values, by the names of their columns.

    Partial results are made where the rows are, and merged here in the order of the rows. Of no rows, counts are 0,
    lists empty, and all else is None. Raises ConfigError; SchemaMismatch for values that Python has none for.
    """
    grouped = Grouped(f"{method}()", (), tuple(aggregates))
    pending: list[pa.Table] = []
    pending_rows = 0
    for block in run(Apply(plan, Totals(grouped))):
        pending.append(block)
        pending_rows += block.num_rows
        if pending_rows >= SLICE_ROWS and all(one.merges for one in grouped.aggregates):
            pending = [grouped.fold(pa.concat_tables(pending))]
            pending_rows = pending[0].num_rows
    if pending_rows:
        return rows(grouped.finished(pa.concat_tables(pending)))[0]
    return {
        output_name(one): 0 if one.function == "count" else [] if isinstance(one, CollectList) else None
        for one in grouped.aggregates
    }


def total(
    plan: Plan, function: str, on: str | Sequence[str], run: Callable[[Plan], Iterable[pa.Table]], **how: Any
) -> Any:
    """Returns an aggregate of a column, or a dictionary of those of several, over all rows of a plan."""
    found = totals(plan, function, [make(function, one, **how) for one in key_columns(function, on)], run)
    return next(iter(found.values())) if isinstance(on, str) else found
