"""The protocol of an exchange: values in the plan, called by the tasks of both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from curate.arrow.order import Order
from curate.dataclass import dataclass
from curate.pipeline.shard_books import ShardBooks
from curate.tasks.books import GROUPED, LIMIT


class ExchangeDefaults:
    """What exchanges answer as a rule: rows stay as they are, and any may come to any output."""

    __slots__ = ()
    beside = False
    by_key = False
    count: int | None = None
    first: int | None = None
    keeps_rows = False
    plain = False
    serial = False
    sorts = False

    @property
    def orders(self) -> tuple[Order, ...]:
        return (Order(),)

    @property
    def aligned(self) -> bool:
        return False

    @property
    def even(self) -> bool:
        return False

    @property
    def reason(self) -> str:
        return GROUPED if self.first is None else LIMIT

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        del found
        return None

    @property
    def keys_begin_pages(self) -> bool:
        return self.even or self.by_key

    def folders(self, keys: pa.Table) -> Sequence[str]:
        return [""] * keys.num_rows

    def given_cuts(self, outputs: int) -> pa.Table | None:
        del outputs
        return None

    def made(self, prepared: Sequence[pa.Schema]) -> pa.Schema | None:
        return self.schema(prepared)

    def prepare(self, side: int) -> tuple[Any, ...]:
        del side
        return ()

    @property
    def folds(self) -> bool:
        return False

    def fold(self, table: pa.Table) -> pa.Table:
        return table

    def scan(self, read: Callable[[], Iterator[pa.Table]], tally: ShardBooks) -> Iterator[pa.Table]:
        raise NotImplementedError


class InOneGo(ExchangeDefaults):
    """An exchange of one input that is made by one task, which has a part of the rows in memory at a time."""

    __slots__ = ()
    serial = True

    def combine(self, tables: Sequence[pa.Table], tally: ShardBooks, part: ReducePart) -> Iterator[pa.Table]:
        del part
        yield from self.scan(lambda: iter(tables), tally)


class OneInput(ExchangeDefaults):
    """An exchange of one input whose rows all come out."""

    __slots__ = ()
    keeps_rows = True
    plain = True

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        return found[0]

    def combine(self, tables: Sequence[pa.Table], tally: ShardBooks, part: ReducePart) -> Iterator[pa.Table]:
        del tally, part
        yield from tables


def unequal(lengths: Sequence[str]) -> str:
    """Returns what is said of datasets of different lengths."""
    return f"zip needs datasets with equal numbers of rows, but these have {', '.join(lengths)} rows"


@dataclass(frozen=True, slots=True)
class ReducePart:
    """Which output of an exchange is made."""

    number: int
    of: int
    skip: int = 0
    """Rows at the start of what is made that are another output's."""
    take: int | None = None
    """Rows after those that are this output's; None: all."""


class Exchange(Protocol):
    """How rows of one input or more (the sides of a join) change shard."""

    @property
    def name(self) -> str:
        """What it is called in plans and errors."""

    @property
    def orders(self) -> tuple[Order, ...]:
        """The order that rows of each input are sorted in, after `prepare`; as many keys, of the same types, in all."""

    @property
    def aligned(self) -> bool:
        """Whether rows of equal keys must come to one output."""

    @property
    def count(self) -> int | None:
        """How many outputs there are; None: by their bytes."""

    @property
    def first(self) -> int | None:
        """How many rows it gives at most: the first ones in order; None: all. Only one of a single input has some."""

    @property
    def beside(self) -> bool:
        """Whether inputs have as many rows each, and those of the same number come to one output."""

    @property
    def even(self) -> bool:
        """Whether outputs have as many rows each, to one; then all rows of a key part of which is theirs come to them,
        and `ReducePart` says which rows of what they make are theirs. Else they are about as large.
        """

    @property
    def by_key(self) -> bool:
        """Whether each output has rows of one key alone, as they came, and lies in the folder of the key."""

    @property
    def keys_begin_pages(self) -> bool:
        """Whether the run files have to tell how many rows there are of each key: for orders of few keys."""

    def folders(self, keys: pa.Table) -> Sequence[str]:
        """Returns the folder of the outputs of each of these keys, if outputs go by keys. Raises ConfigError if there
        are too many, and for a key after which no folder can be called."""

    def given_cuts(self, outputs: int) -> pa.Table | None:
        """Returns the keys at which all outputs but the first begin, where they are to be about as many and that can be
        told without a look at rows; None: cuts are where the bytes are. Asked where outputs are not counted."""

    @property
    def keeps_rows(self) -> bool:
        """Whether there come out as many rows as went in."""

    @property
    def serial(self) -> bool:
        """Whether there is one output, made by one task in one go: `scan` is called in place of `combine`."""

    @property
    def sorts(self) -> bool:
        """Whether `combine` puts the rows in order itself: it is given them as they lie in the run files, one after the
        other.
        """

    @property
    def plain(self) -> bool:
        """Whether what comes out is the rows, sorted, and nothing else: `combine` is not called."""

    @property
    def reason(self) -> str:
        """Why rows are dropped that `fold` makes others stand for."""

    def identity(self) -> Any:
        """Returns what decides the bytes of what it makes, as JSON values."""

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        """Returns the schema of its rows from those of its inputs; None if unknown.

        Raises ConfigError for keys that are missing, nested, or of different types in two inputs.
        """

    def made(self, prepared: Sequence[pa.Schema]) -> pa.Schema | None:
        """Returns the schema of its rows from those that rows of its inputs have once they are prepared; None if
        unknown. It is asked where there is no row."""

    def prepare(self, side: int) -> tuple[Any, ...]:
        """Returns what is done to rows of an input before they are sorted: key columns of its own, partial groups.

        These are operators like those of the plan, which take batches as they come and run in the task.
        """

    @property
    def folds(self) -> bool:
        """Whether `fold` makes fewer rows."""

    def fold(self, table: pa.Table) -> pa.Table:
        """Returns fewer rows that stand for those of `table`, in the schema of `table`; or the table. Called on the map
        side with what was prepared, over and over: of what it gave and what came since.
        """

    def combine(self, tables: Sequence[pa.Table], tally: ShardBooks, part: ReducePart) -> Iterator[pa.Table]:
        """Yields what the rows of one output become, in order. `tables` has the rows of each input, sorted. Books in
        `tally` what it drops and creates; the rows of `tables` are booked as read.
        """

    def scan(self, read: Callable[[], Iterator[pa.Table]], tally: ShardBooks) -> Iterator[pa.Table]:
        """Yields what the rows become that `read` yields, in order: tables of 32 MiB, about, which may part rows of one
        key. `read` may be called again, for another pass. Books what it drops and creates in `tally`.
        """
