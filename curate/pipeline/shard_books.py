"""The books of a shard while it is processed: rows dropped, quarantined and counted."""

from __future__ import annotations

import math
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError, TooManyBadRows
from curate.keywords import either_way
from curate.log import get_logger
from curate.objects.bad_line import GivenRows, RejectedRow, RowNumbers, advice
from curate.objects.quarantine import QuarantineWriter
from curate.objects.samples import DroppedRow
from curate.pipeline.dropped_rows import Chosen, DroppedSamples
from curate.tasks.books import Books
from curate.units import parse_percent, parse_whole

DEFAULT_BAD_ROWS = 10
DEFAULT_BAD_FRACTION = 0.001
"""Without `max_bad_rows`, a shard survives 0.1 % bad rows, and ten whatever its size."""
HOPELESS_BAD_ROWS = 100_000
"""A shard with more bad rows is given up without reading on, unless a number of rows allows more: the input is
something else than it was taken for."""
MOST_SEARCHED = 1000
"""Rows of a shard that were found bad by processing parts of their batches, each at the price of some runs of
`process`, after which a shard that is over its budget so far is given up without reading on."""
OTHER_KEYS = "rows_with_keys_left_out"
"""A counter."""
SHOWN_KEYS = 5
MOST_NAMES = 200
"""Different reasons, and different counters, in one shard. They travel in the output's record; more means that a name
holds data."""


_BOOKING = threading.RLock()
"""Held while something is booked: `process` may use threads, such as to ask a service, and a sum is read and written.
One for all shards of a process, for books are copied and sent, and a lock is not."""


def _renewed() -> None:
    """In a child of a fork, of a `process` that uses multiprocessing, whoever held it is not there."""
    global _BOOKING
    _BOOKING = threading.RLock()


os.register_at_fork(after_in_child=_renewed)


class BadRowBudget:
    """How many rows of a shard may be quarantined: a number, a fraction, or the default (0.1 %, at least 10, but not
    all rows of a file for the types of its columns). A fraction allows no more than 100,000."""

    def __init__(self, text: str | None = None) -> None:
        """`text` is `N`, `P%` or None for the default. Raises ConfigError for anything else."""
        self.count: int | None = None
        self.fraction = DEFAULT_BAD_FRACTION
        self.least = DEFAULT_BAD_ROWS
        if text is None:
            return
        self.least = 0
        if text.strip().endswith("%"):
            self.fraction = parse_percent(text)
            return
        self.count = parse_whole(text)
        if self.count is None:
            raise ConfigError(f"max_bad_rows {text!r} is not a number of rows or a percentage like 0.1%")

    def allows(self, bad: int, rows: int) -> bool:
        """Returns whether `bad` of `rows` rows are within the budget."""
        if self.count is not None:
            return bad <= self.count
        # 29 % of 100 rows is 29, and in floating point a little less.
        return bad <= max(self.least, math.floor(self.fraction * rows + 1e-6))

    @property
    def is_default(self) -> bool:
        """Whether nobody has said how many may be."""
        return self.least > 0

    def hopeless(self, bad: int) -> bool:
        """Returns whether no number of good rows to come can help."""
        return bad > (HOPELESS_BAD_ROWS if self.count is None else self.count)

    def __str__(self) -> str:
        if self.count is not None:
            return f"{self.count} row{'' if self.count == 1 else 's'}"
        return f"{self.fraction * 100:.4g}% of the rows" + (f", at least {self.least}" if self.least else "")


class ShardBooks:
    """The books of the shard at hand and the rows set aside from it.

    Between `begin` and `commit` what is booked can be taken back: a batch that fails half way leaves nothing.
    """

    def __init__(self, budget: BadRowBudget, *, sampled: bool = False) -> None:
        """`sampled`: whether some of the rows that are dropped are kept, to be looked at."""
        self.books = Books()
        self.samples = DroppedSamples() if sampled else None
        self.quarantine: QuarantineWriter | None = None
        self._budget = budget
        self.numbers: RowNumbers | None = None
        """Those of the rows that are read, where they are read from a file."""
        self.piece = ""
        """What is read now, where a shard has several: a file, or a slice of one."""
        self._unit = "row"
        """What the place of the row that was set aside last counts."""
        self.calls = 0
        """Batches that were done: what is lost if the shard is begun again."""
        self._searched = 0
        self._before: tuple[dict[str, int], dict[str, Any], int, int] | None = None
        """What was dropped, counted, quarantined and singled out before the batch at hand."""
        self._sampled_before: dict[str, Any] = {}
        self.given: GivenRows | None = None
        """The rows of the batch that a step is at work on."""
        self._held: list[RejectedRow] = []
        """Rows set aside from the batch at hand: what is written to the quarantine cannot be taken back."""
        self._thread = 0
        """The one that the batch at hand is processed in."""
        self._by_others = False
        """Whether other threads have set rows of it aside: in any order."""

    def begin(self) -> None:
        """Makes what is booked from now on something that `rollback` takes back."""
        books = self.books
        self._before = dict(books.dropped), dict(books.counters), books.quarantined, self._searched
        self._thread, self._by_others = threading.get_ident(), False
        if self.samples is not None:
            self._sampled_before = self.samples.seen()

    def commit(self) -> None:
        """Makes what was booked since `begin` final."""
        self._before = None
        held, self._held = self._held, []
        for row in sorted(held, key=_place) if self._by_others else held:
            self._write(row)

    def rollback(self) -> None:
        """Takes back what was booked since `begin`; does nothing after a `commit`."""
        if self._before is not None:
            self.books.dropped, self.books.counters, self.books.quarantined, self._searched = self._before
            self._before = None
            self._held.clear()
            if self.samples is not None:
                self.samples.back_to(self._sampled_before)

    def drop(self, n: int, reason: str) -> None:
        """Books `n` rows as dropped for `reason`; which ones is not known: see `drop_rows`."""
        if n < 0:
            raise ValueError(f"drop({n}, {reason!r}): the number of rows cannot be negative")
        if n:
            with _BOOKING:
                self.books.dropped[reason] = self.books.dropped.get(reason, 0) + int(n)
                self._bound(self.books.dropped, "reasons for dropping")

    def drop_rows(self, table: pa.Table, dropped: Chosen, reason: str) -> None:
        """Books the rows of a table that are true in `dropped` as dropped for `reason`, and may keep some of them."""
        at = np.flatnonzero(dropped)
        if len(at):
            with _BOOKING:
                self.drop(len(at), reason)
                if self.samples is not None:
                    self.samples.add(reason, table, at)

    def count(self, name: str, n: int | float = 1) -> None:
        """Adds `n` to the counter `name`."""
        value = n.item() if hasattr(n, "item") else n
        with _BOOKING:
            self.books.counters[name] = self.books.counters.get(name, 0) + value
            self._bound(self.books.counters, "counters")

    def metric(self, name: str, n: int | float) -> None:
        """Adds `n` to the metric `name`. Not taken back with a batch that failed: it says what happened."""
        value = n.item() if hasattr(n, "item") else n
        with _BOOKING:
            self.books.metrics[name] = self.books.metrics.get(name, 0) + value
            self._bound(self.books.metrics, "metrics")

    def set_aside(self, row: RejectedRow, position: int | None = None) -> None:
        """Quarantines a row: the one at a position of the batch at hand, or of the file if there is no batch.

        Raises TooManyBadRows when the budget cannot hold any more, ValueError for a position that there is not.
        """
        if row.given is None and self.given is not None:
            row = replace(row, given=self.given.chosen(position))
        elif position is not None:
            row = replace(row, line=position + 1)
        self._set_aside(row)

    def _set_aside(self, row: RejectedRow) -> None:
        with _BOOKING:
            self._set_one_aside(row)

    def _set_one_aside(self, row: RejectedRow) -> None:
        row = self._placed(row)
        self._unit = "row" if self.numbers is None else self.numbers.unit
        if self._before is not None:
            self._by_others |= threading.get_ident() != self._thread
            self._held.append(row)
        else:
            self._write(row)
        self.books.quarantined += 1
        if self._budget.hopeless(self.books.quarantined):
            raise self._too_many("before its end")

    def _placed(self, row: RejectedRow) -> RejectedRow:
        """Returns a row with its line if it is known, and else with what is known of where it was.

        It is known as long as each step before keeps all rows. After an exchange, or a step that adds or drops rows, a
        row has its number among those that the step was given of the shard: the same in each run.
        """
        of = self.piece or "the shard"
        if row.given is None:
            unit = "row" if self.numbers is None else self.numbers.unit
            return replace(row, at=f"{unit} {row.line:,} of {of}") if row.line and self.piece else row
        step = row.given.step
        numbers = None if step else self.numbers
        unit = "row" if numbers is None else numbers.unit
        found = sorted({one + 1 if numbers is None else numbers.number(one) for one in row.given.numbers})
        line = found[0] if numbers is not None and len(found) == 1 else 0
        if line and not self.piece:
            return replace(row, line=line, given=None)
        at = f"{unit}{'s' * (len(found) > 1)} {' to '.join(f'{one:,}' for one in found)} of {of}"
        return replace(row, line=line, given=None, at=at + f", as given to {step}" * bool(step))

    def single_out(self, row: RejectedRow, position: int | None = None) -> None:
        """Quarantines a row that was found by processing parts of its batch, or single rows of it.

        Raises TooManyBadRows when the budget cannot hold any more, or such rows are many and it does not hold them now.
        """
        self.set_aside(row, position)
        self._searched += 1
        self._bound_searched()

    def merge(self, booked: RowsBooked) -> None:
        """Books what was booked elsewhere about rows of this shard. Raises TooManyBadRows over the budget."""
        self.calls += booked.calls
        for reason, n in booked.dropped.items():
            self.drop(n, reason)
        if self.samples is not None:
            for reason, sampled in booked.samples.items():
                self.samples.take(reason, sampled)
        for name, value in booked.counters.items():
            self.count(name, value)
        for name, value in booked.metrics.items():
            self.metric(name, value)
        self._searched += booked.searched
        for row in booked.rows:
            self._set_aside(row)
        if booked.searched:
            self._bound_searched()

    def _bound_searched(self) -> None:
        if self._searched >= MOST_SEARCHED and not self._budget.allows(self.books.quarantined, self.books.rows_in):
            raise self._too_many(f"of the first {self.books.rows_in}")

    def _write(self, row: RejectedRow) -> None:
        if self.quarantine is None:
            self.quarantine = QuarantineWriter()
        self.quarantine.add(row)

    def bad_row(self, row: RejectedRow) -> None:
        """Quarantines a row that could not be read: it counts as read."""
        self.books.rows_in += 1
        if self.numbers is not None:
            self.numbers.add(row.line)
        self._set_aside(row)

    def blank_line(self, number: int) -> None:
        """Takes the number of a line that is no row."""
        if self.numbers is not None:
            self.numbers.add(number)

    def other_keys(self, rows: int, keys: list[str]) -> None:
        """Counts rows that have more keys than there are columns, which are left out; `keys` are some of the first."""
        if OTHER_KEYS not in self.books.counters:
            get_logger().warning(
                "rows have keys that are no columns, and these are left out",
                keys=keys[:SHOWN_KEYS],
                next="columns are those that some files begin with: declare them all (schema, columns, keep_columns)",
            )
        self.count(OTHER_KEYS, rows)

    def close(self) -> None:
        """Balances the books. Raises TooManyBadRows if the shard is over its budget.

        That is of the rows that were read, and so the same in each stage that reads them, whatever they become there;
        where none were, of those that were made.
        """
        self.books.settle()
        if not self._budget.allows(self.books.quarantined, self.books.rows_in or self.books.rows_out):
            raise self._too_many(f"of {self.books.rows_in}")

    def _too_many(self, where: str) -> TooManyBadRows:
        reasons, budget, option = self.reasons(), str(self._budget), either_way("max_bad_rows")
        if self._budget.count is None and self._budget.hopeless(self.books.quarantined):
            budget += f", and at most {HOPELESS_BAD_ROWS:,} rows unless it is a number"
            option += f" as a number of rows, such as {10 * HOPELESS_BAD_ROWS}"
        return TooManyBadRows(
            f"{self.books.quarantined} bad rows {where}, the budget is {budget} ({_counted(reasons)}); "
            f"fix the input{self._such_as()}, or allow more with {'; or '.join([option, *advice(reasons)])}"
        )

    def _such_as(self) -> str:
        """Returns where one of the rows that were set aside is: nobody sees them of a shard that fails."""
        row = self.quarantine.first if self.quarantine is not None else next(iter(self._held), None)
        if row is None or not (row.line or row.at):
            return ""
        return f" (such as {row.at or f'{self._unit} {row.line:,} of the shard'})"

    def all_reasons(self) -> Counter[str]:
        """Returns how many rows were quarantined by reason."""
        counted = Counter(row.reason for row in self._held)
        return counted if self.quarantine is None else self.quarantine.reasons + counted

    def reasons(self) -> dict[str, int]:
        """Returns the same, most frequent first, at most five."""
        return dict(self.all_reasons().most_common(5))

    def refuse_other_types(self, reasons: Counter[str]) -> None:
        """Raises TooManyBadRows if all rows of a file were bad for these reasons: their columns are of other types."""
        if reasons and self._budget.is_default and all(advice([reason]) for reason in reasons):
            ways = [*advice(reasons), f"leave such rows out with {either_way('max_bad_rows')}"]
            found = f"none of the rows of this file fits the types of its columns ({_counted(reasons)})"
            raise TooManyBadRows("; ".join([found, "; or ".join(ways)]))

    @staticmethod
    def _bound(names: Mapping[str, Any], what: str) -> None:
        if len(names) > MOST_NAMES:
            raise ConfigError(
                f"more than {MOST_NAMES} different {what} in one shard (such as {next(reversed(list(names)))!r}); "
                "a name must not contain data of the row"
            )


def _place(row: RejectedRow) -> tuple[Any, ...]:
    """Returns what puts rows in one order, whichever was set aside first."""
    numbers = [] if row.given is None else [int(one) for one in row.given.numbers]
    raw = row.raw.encode("utf-8", "surrogatepass") if isinstance(row.raw, str) else row.raw
    return row.line, numbers, row.at, row.reason, raw


def _counted(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{n} x {reason}" for reason, n in reasons.items())


def counted(tables: Iterator[Any], tally: ShardBooks) -> Iterator[Any]:
    """Yields tables of a slice of a file that are read, and books their rows as they are taken.

    Raises TooManyBadRows if none of its rows has the types that files are known by: these are not some bad rows, but a
    file of other types; unless somebody has said how many may be bad.
    """
    before, reasons = tally.books.rows_in, tally.all_reasons()
    there = False
    for table in tables:
        there = True
        tally.books.rows_in += table.num_rows
        yield table
    if not there and tally.books.rows_in > before:
        tally.refuse_other_types(tally.all_reasons() - reasons)


@dataclass(frozen=True, slots=True)
class RowsBooked:
    """What was booked about a batch, on its way to the books of its shard."""

    dropped: Mapping[str, int] = field(default_factory=dict)
    counters: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[RejectedRow, ...] = ()
    """Rows that were set aside, in order."""
    searched: int = 0
    """How many of them were found by processing parts of the batch."""
    calls: int = 0
    """Batches that were done."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[str, Sequence[DroppedRow]] = field(default_factory=dict)
    """Some of the rows that were dropped, by reason."""


class DetachedBooks(ShardBooks):
    """Takes down what user code says about a batch where the books of its shard are not at hand."""

    def __init__(self, *, sampled: bool = False) -> None:
        # Whether there are too many, the books of the shard tell.
        super().__init__(BadRowBudget(str(1 << 62)), sampled=sampled)
        self._rows: list[RejectedRow] = []

    def _placed(self, row: RejectedRow) -> RejectedRow:
        return row  # what is read, the books of the shard know

    def _write(self, row: RejectedRow) -> None:
        self._rows.append(row)

    def _bound_searched(self) -> None:
        """Whether there are too many, the books of the shard tell."""

    def booked(self) -> RowsBooked:
        """Returns what was booked."""
        books, rows = self.books, tuple(self._rows)
        sampled = {} if self.samples is None else self.samples.by_reason()
        return RowsBooked(books.dropped, books.counters, rows, self._searched, self.calls, books.metrics, sampled)
