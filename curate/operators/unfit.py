"""Rows that a step can do nothing with: they are set aside, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.order import rows_where
from curate.late_pandas import numbers
from curate.objects.bad_line import RejectedRow
from curate.pipeline.bad_rows import row_at, row_text
from curate.pipeline.shard_books import ShardBooks

Chosen = np.ndarray[Any, np.dtype[np.bool_]]


def set_aside(batch: pa.Table, unfit: Sequence[tuple[Chosen, str]], tally: ShardBooks) -> tuple[pa.Table, Chosen]:
    """Puts rows in quarantine, each for the first reason that is true of it; returns the other rows, and which these
    are. Raises TooManyBadRows over the budget."""
    fit = np.ones(batch.num_rows, bool)
    for chosen, reason in unfit:
        for at in np.flatnonzero(chosen & fit).tolist():
            tally.set_aside(RejectedRow(0, reason, row_text(row_at(batch, at))), at)
        fit &= ~chosen
    return rows_where(batch, fit), fit


def nulls(batch: pa.Table, column: str) -> Chosen:
    """Returns which values of a column are missing."""
    return numbers(batch[column].is_null())
