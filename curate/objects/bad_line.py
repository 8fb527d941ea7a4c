"""A row that cannot be read, and why."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Any

import numpy as np

from curate.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Some of the rows that a step is given of a shard, by their numbers (0-based) among all of these."""

    numbers: Sequence[int]
    step: str
    """The step's name; empty: it is given the rows that were read, one for one."""

    def chosen(self, position: int | None) -> GivenRows:
        """Returns the one at a position; without, the first and the last one. Raises ValueError if there is none."""
        if position is None:
            return GivenRows((int(self.numbers[0]), int(self.numbers[-1])), self.step)
        if not 0 <= index(position) < len(self.numbers):
            raise ValueError(
                f"position={position!r}: expected the position of a row in the batch, 0 to {len(self.numbers) - 1}"
            )
        return GivenRows((int(self.numbers[position]),), self.step)


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """One row that was left out of the tables. Its reason is one of few, so that reasons can be counted."""

    line: int
    """1-based within the slice: the line (JSONL, text), or the row after the header (CSV)."""
    reason: str
    """Names the rule that was broken and the column, never the row's data."""
    raw: bytes | str
    """The line as it stands without its end; for CSV, the row's text or its columns that were read."""
    given: GivenRows | None = None
    """Of a row that a step was given: which one, where its line is not known yet."""
    at: str = ""
    """Where it was, in words, if `line` alone does not say that."""


NO_COLUMNS = "no column is known: no row at the beginning of the files has one; declare schema="
"""The reason for each row where nothing told which columns there are: without it, all would be lost without a word."""


DECLARE = (
    "declare the column's type: with schema= of read_json or read_csv, or in `columns` of a job's class; for a job "
    "that is ready, write the input anew with curate.read_json(..., schema=...).write_parquet(...)"
)
"""What to do about values that are not of the type that a column has by its first rows."""


_OTHER_TYPE = re.compile(
    r"^column (['\"].*['\"]) is (?:not (?!a list of|base64|UTF-8)([^:]+?)(?:: found (\w+)|: a leading .*)?"
    r"|out of the range of u?int\d+)$"
)
"""A reason for which another type may help: the column, what its values are not, and what JSON has instead."""
_BEYOND = "decimal128(38, 0), or float64 if digits may be lost"
"""What whole numbers beyond a column's type are read as."""
_BOTH = "float64 if digits may be lost"
"""As what these and fractions are."""
_SHOWN = 10
"""Columns that are named."""


def advice(reasons: Iterable[str]) -> list[str]:
    """Returns what to do about values that are not of their column's type, which reasons of bad rows tell: as what to
    declare their columns, and of which columns no type holds all values.

    >>> advice(["column 'n' is not an integer: found fraction", "malformed JSON"])[0].rpartition("; ")[2]
    "these rows are read with 'n' as float64"
    >>> advice(["column 'n' is out of the range of int64"])[0].rpartition("; ")[2]
    "these rows are read with 'n' as decimal128(38, 0), or float64 if digits may be lost"
    >>> advice(["column 't' is not a string: found number"])
    ["write the values of 't' alike in the input: JSON has several types there, and no type holds them all"]
    """
    types: dict[str, set[str]] = {}
    for reason in reasons:
        if (found := _OTHER_TYPE.match(reason)) is not None:
            column, expected, instead = found.groups()
            # CSV, and a text of JSON that is no time, do not say what there is instead: text, as which all is read.
            type = "float64" if instead == "fraction" else _BEYOND if expected is None else "" if instead else "string"
            types.setdefault(column, set()).add(type)
    for several_types in types.values():
        if several_types == {"float64", _BEYOND}:
            several_types ^= {"float64", _BEYOND, _BOTH}
    held = [f"{column} as {min(one)}" for column, one in types.items() if len(one) == 1 and all(one)]
    mixed = [column for column, one in types.items() if len(one) > 1 or not all(one)]
    told = [f"{DECLARE}; these rows are read with {', '.join(held[:_SHOWN])}"] if held else []
    several = "JSON has several types there, and no type holds them all"
    return [
        *told,
        *([f"write the values of {', '.join(mixed[:_SHOWN])} alike in the input: {several}"] if mixed else []),
    ]


OnBadRow = Callable[[RejectedRow], None]
OnBlankLine = Callable[[int], None]
"""Takes the number of a line that is no row, 1-based within the slice."""


OnOtherKeys = Callable[[int, list[str]], None]
"""Takes how many rows have keys that no column holds, and those keys of the first of them."""


def ignored(number: int) -> None:
    """Takes no note of a line."""
    del number


class RowNumbers:
    """The numbers of rows that were read among all rows, or lines, of a slice; the others are told by their numbers.

    >>> numbers = RowNumbers([2, 3])
    >>> [numbers.number(index) for index in range(3)]
    [1, 4, 5]
    """

    def __init__(self, others: Iterable[int] = (), unit: str = "row") -> None:
        """`unit` is what is counted: "line", or "row" where a row is not always a line."""
        self.unit = unit
        self._others = array("q", others)

    def add(self, number: int) -> None:
        """Takes the number (1-based) of one that is not among the rows that were read."""
        if number > self.last:
            self._others.append(number)
        else:
            insort(self._others, number)

    def __len__(self) -> int:
        return len(self._others)

    @property
    def last(self) -> int:
        """The largest of these numbers; 0 if there is none."""
        return self._others[-1] if self._others else 0

    def number(self, index: int) -> int:
        """Returns the number (1-based) of the row `index` (0-based), once all before it that were not read are told."""
        others = self._others
        return index + 1 + bisect_right(range(len(others)), index, key=lambda before: others[before] - before - 1)

    def between(self, start: int, stop: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Returns the numbers of these rows, as `number` does of one.

        >>> RowNumbers([2, 3]).between(0, 3).tolist()
        [1, 4, 5]
        """
        others, rows = np.array(self._others, np.int64), np.arange(start, stop, dtype=np.int64)
        return rows + 1 + np.searchsorted(others - np.arange(len(others)) - 1, rows, side="right")
