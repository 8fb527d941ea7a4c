"""A row that cannot be read, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """One row that was left out of the tables. Its reason is one of few, so that reasons can be counted."""

    line: int
    """1-based within the slice: the line (JSONL, text), or the row after the header (CSV)."""
    reason: str
    """Names the rule that was broken and the column, never the row's data."""
    raw: bytes | str
    """The line as it stands without its end; for CSV, the row's text or its columns that were read."""


NO_COLUMNS = "no column is known: no row at the beginning of the files; declare schema="
"""The reason for each row where nothing told which columns there are: without it, all would be lost without a word."""


OnBadRow = Callable[[RejectedRow], None]
