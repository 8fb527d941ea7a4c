"""The order of rows by some columns: sorting, places in what is sorted, groups of equal keys."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column to sort by."""

    column: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """The order by these keys, one after the other; rows of equal keys as they came. Of no key: all as they came."""

    keys: tuple[SortKey, ...] = ()
    nulls: str = "at_end"
    """Where nulls are, whichever way a key goes: `at_end` or `at_start`. NaN is beside them, on the inner side."""
