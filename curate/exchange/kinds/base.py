"""Base classes of exchanges: those that can be limited, held in memory, or cut by their keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa

from curate.arrow.order import Order, SortKey
from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError
from curate.exchange.protocol import Exchange, OneInput


@dataclass(frozen=True, slots=True)
class Limitable(OneInput):
    """An exchange that may be asked for its first rows alone; then it drops the others where they are."""

    first: int | None = field(default=None, kw_only=True)

    def limited(self, rows: int) -> Self:
        """Returns the same exchange, which gives `rows` rows at most."""
        return replace(self, first=rows if self.first is None else min(self.first, rows))

    def _told(self, name: str) -> str:
        return name if self.first is None else f"{name}, first {self.first:,}"

    def _identity(self, *identity: Any) -> Any:
        return [*identity] if self.first is None else [*identity, {"first": self.first}]


@dataclass(frozen=True, slots=True)
class Repartitioned(OneInput):
    """Rows as they came, in as many outputs, of as many rows each."""

    count: int
    even = True

    @property
    def name(self) -> str:
        return f"repartition({self.count})"

    def identity(self) -> Any:
        return ["repartition", self.count]


@dataclass(frozen=True, slots=True)
class Materialize(Limitable):
    """Rows as they came, kept: who reads them several times does not make them again, and reads the same rows."""

    called: str = field(default="hold", compare=False)
    """What it is for, as people are told."""

    @property
    def name(self) -> str:
        return self.called if self.first is None else f"limit({self.first:,})"

    def identity(self) -> Any:
        return self._identity("hold")

    @property
    def folds(self) -> bool:
        return self.first is not None

    def fold(self, table: pa.Table) -> pa.Table:
        return table.slice(0, self.first)


class Regrouping(Exchange):
    """An exchange that brings rows of equal keys together, and makes other rows of them."""

    __slots__ = ()
    keys: Any
    """The columns that rows are brought together by; of a join, of both sides."""
    aligned = True

    @property
    def orders(self) -> tuple[Order, ...]:
        return (order_by(self.keys),)


def order_by(keys: Sequence[str]) -> Order:
    """Returns the order of groups: ascending, NaN and then null last."""
    return Order(tuple(SortKey(key) for key in keys))


def column_names(method: str, given: Any) -> tuple[str, ...]:
    """Returns one column's name, or several, as a tuple. Raises ConfigError for other values, for a set, whose order is
    another one in each process, and for a column that is named twice."""
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    is_set = isinstance(given, set | frozenset)
    if is_set or not all(isinstance(name, str) for name in names):
        order = ": a set has another order in each process" if is_set else ""
        raise ConfigError(f"{method} takes the name of a column, or a list of names, found {given!r:.80}{order}")
    for name, times in Counter(names).items():
        if times > 1:
            raise ConfigError(f"{method}: the column {name!r} is named {times} times; name it once")
    return names


def key_columns(method: str, key: Any) -> tuple[str, ...]:
    """Returns columns as `column_names` does. Raises ConfigError for none, too."""
    if names := column_names(method, key):
        return names
    raise ConfigError(f"{method} takes the name of a column, or a list of names, found {key!r:.80}")


def slices(starts: np.ndarray[Any, np.dtype[np.int64]], table: pa.Table, rows: int) -> Iterator[pa.Table]:
    """Yields a sorted table, of groups that begin at `starts`, in parts of whole groups, of about `rows` rows."""
    at = 0
    while at < table.num_rows:
        next = int(np.searchsorted(starts, at + rows))
        stop = int(starts[next]) if next < len(starts) else table.num_rows
        yield table.slice(at, stop - at)
        at = stop
