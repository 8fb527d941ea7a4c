"""The protocol of an exchange: values in the plan, called by the tasks of both sides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from curate.arrow.order import Order
from curate.dataclass import dataclass
from curate.pipeline.shard_books import ShardBooks
from curate.tasks.books import GROUPED, LIMIT


class Exchange(ABC):
    """How rows of one input or more (the sides of a join) change shard. By default they stay as they are, and any
    may come to any output."""

    __slots__ = ()
    count: int | None = None
    """How many outputs there are; None: by their bytes."""
    first: int | None = None
    """How many rows it gives at most: the first ones in order; None: all. Only one of a single input has some."""
    beside = False
    """Whether inputs have as many rows each, and those of the same number come to one output."""
    by_key = False
    """Whether each output has rows of one key alone, as they came, and lies in the folder of the key."""
    keeps_rows = False
    """Whether there come out as many rows as went in."""
    serial = False
    """Whether there is one output, made by one task in one go: `scan` is called in place of `combine`."""
    sorts = False
    """Whether `combine` puts the rows in order itself: it is given them as they lie in the run files, one after the
    other."""
    plain = False
    """Whether what comes out is the rows, sorted, and nothing else: `combine` is not called."""

    if TYPE_CHECKING:
        # Where it is a field of a dataclass, a property here would be its default.
        @property
        @abstractmethod
        def name(self) -> str:
            """What it is called in plans and errors."""

    @property
    def orders(self) -> tuple[Order, ...]:
        """The order that rows of each input are sorted in, after `prepare`; as many keys, of the same types, in all."""
        return (Order(),)

    @property
    def aligned(self) -> bool:
        """Whether rows of equal keys must come to one output."""
        return False

    @property
    def even(self) -> bool:
        """Whether outputs have as many rows each, to one; then all rows of a key part of which is theirs come to them,
        and `ReducePart` says which rows of what they make are theirs. Else they are about as large.
        """
        return False

    @property
    def keys_begin_pages(self) -> bool:
        """Whether the run files have to tell how many rows there are of each key: for orders of few keys."""
        return self.even or self.by_key

    def folders(self, keys: pa.Table) -> Sequence[str]:
        """Returns the folder of the outputs of each of these keys, if outputs go by keys. Raises ConfigError if there
        are too many, and for a key after which no folder can be called."""
        return [""] * keys.num_rows

    def given_cuts(self, outputs: int) -> pa.Table | None:
        """Returns the keys at which all outputs but the first begin, where they are to be about as many and that can be
        told without a look at rows; None: cuts are where the bytes are. Asked where outputs are not counted."""
        del outputs
        return None

    @property
    def reason(self) -> str:
        """Why rows are dropped that `fold` makes others stand for."""
        return GROUPED if self.first is None else LIMIT

    @abstractmethod
    def identity(self) -> Any:
        """Returns what decides the bytes of what it makes, as JSON values."""

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        """Returns the schema of its rows from those of its inputs; None if unknown.

        Raises ConfigError for keys that are missing, nested, or of different types in two inputs.
        """
        del found
        return None

    def made(self, prepared: Sequence[pa.Schema]) -> pa.Schema | None:
        """Returns the schema of its rows from those that rows of its inputs have once they are prepared; None if
        unknown. It is asked where there is no row."""
        return self.schema(prepared)

    def prepare(self, side: int) -> tuple[Any, ...]:
        """Returns what is done to rows of an input before they are sorted: key columns of its own, partial groups.

        These are operators like those of the plan, which take batches as they come and run in the task.
        """
        del side
        return ()

    @property
    def folds(self) -> bool:
        """Whether `fold` makes fewer rows."""
        return False

    def fold(self, table: pa.Table) -> pa.Table:
        """Returns fewer rows that stand for those of `table`, in the schema of `table`; or the table. Called on the map
        side with what was prepared, over and over: of what it gave and what came since.
        """
        return table

    @abstractmethod
    def combine(self, tables: Sequence[pa.Table], tally: ShardBooks, part: ReducePart) -> Iterator[pa.Table]:
        """Yields what the rows of one output become, in order. `tables` has the rows of each input, sorted. Books in
        `tally` what it drops and creates; the rows of `tables` are booked as read.
        """

    def scan(self, read: Callable[[], Iterator[pa.Table]], tally: ShardBooks) -> Iterator[pa.Table]:
        """Yields what the rows become that `read` yields, in order: tables of 32 MiB, about, which may part rows of one
        key. `read` may be called again, for another pass. Books what it drops and creates in `tally`.
        """
        raise NotImplementedError


class InOneGo(Exchange):
    """An exchange of one input that is made by one task, which has a part of the rows in memory at a time."""

    __slots__ = ()
    serial = True

    def combine(self, tables: Sequence[pa.Table], tally: ShardBooks, part: ReducePart) -> Iterator[pa.Table]:
        del part
        yield from self.scan(lambda: iter(tables), tally)


class OneInput(Exchange):
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
