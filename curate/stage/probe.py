"""The answer to a probe: the schemas of outputs, derived from the first tables of a shard."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from curate.ledger.side_outputs import MAIN
from curate.pipeline.remote_error import CapturedError
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import SideTable
from curate.stage.messages import Probe, Probed
from curate.tasks.failure import FailureKind, ShardWaits

PROBED_BATCHES = 16
"""Batches of a shard that are tried for a table: a job that drops most of its rows must not be run for its schema."""
PROBED_TABLES = 16
"""Tables of a shard, for each of its outputs, that are looked at for the types of columns, while some are null in all
before."""


def answer_to(probe: Probe, tables_of: Callable[[ShardBooks, Iterator[int]], Iterator[Any] | None]) -> Probed:
    """Returns what a shard's tables say. `tables_of` is given the books to keep, and a number for each batch that may
    be read; it returns None where there is nothing to ask with."""
    tally = ShardBooks(BadRowBudget("100%"))
    answer = vacant = Probed(sides=dict.fromkeys(probe.sides))
    ended = False
    few = probe.shard is not None and not probe.whole
    numbers: Iterator[int] = iter(range(PROBED_BATCHES)) if few else count()
    most = PROBED_TABLES * (1 + len(probe.sides)) if few else math.inf
    try:
        tables = tables_of(tally, numbers)
        if tables is None:
            return answer
        looked, known = 0, 0
        for table in (one for one in tables if not isinstance(one, ShardWaits)):
            name, rows = (table.side, table.table) if isinstance(table, SideTable) else (MAIN, table)
            if name == MAIN or name in probe.sides:
                schema = rows.schema.remove_metadata()
                one = Probed(schema) if name == MAIN else Probed(sides={name: schema})
                # What no row was seen of may be called anything: numpy takes an empty list for floats.
                if rows.num_rows or probe.shard is None:
                    answer = answer.filled(one)
                else:
                    vacant = vacant.filled(one)
            looked, known = looked + 1, known + answer.known
            if answer.typed or looked >= most or known >= PROBED_TABLES:
                break
        else:
            ended = probe.shard is not None and next(numbers, None) is not None
    except Exception as raised:  # noqa: BLE001 - a shard that fails here fails again, and is booked, when it runs
        failure = CapturedError.of(raised).failure
        passing = failure.kind in (FailureKind.RETRY_LATER, FailureKind.THROTTLED)
        again_s = failure.after_s if passing else None
        error = failure.error if passing or not answer.known else ""
        answer = replace(answer, error=error, again_s=again_s)
    told = vacant.schema is not None or any(one is not None for one in vacant.sides.values())
    return replace(answer, rows=tally.books.rows_in, ended=ended, vacant=vacant if told else None)
