"""Finds the rows for which an operator raises, quarantines them, and processes the rest of their batch in one call.

    batch ──apply──▶ tables                    the usual way: nothing else happens
            │ raises
            ▼
    its results and counts are discarded ─▶ which rows? ─▶ quarantine ─▶ the rest of the batch, from the start

`BadRow` may give the position of the bad row in the batch. Without a position, halves of the batch are processed again
and again, until single rows are found that raise it alone. Other errors are searched for in the same way only if the
caller asks for it (a job that opted in, on a shard's last try); a row is the cause only if it alone raises the same
type twice.

Results and counts of the search are discarded, and the rest of the batch is processed in one call. So the output
depends only on which rows are bad, not on how they were found. An operator may see rows more than once, and parts of
batches; one that keeps state between calls must allow for that.

What calls a function for each row sets its bad rows aside itself: nothing is searched, and no row is seen again.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from operator import index
from typing import Any, NamedTuple, Protocol

import numpy as np
import orjson
import pyarrow as pa

from curate.arrow.order import rows_where
from curate.arrow.recast import python_value
from curate.errors import BadRow
from curate.objects.bad_line import GivenRows, RejectedRow
from curate.pipeline.classify import PASSING, kind_of, summary_of
from curate.pipeline.retry_later import Busy, busy, is_busy
from curate.pipeline.shard_books import DetachedBooks, ShardBooks
from curate.tasks.failure import FailureKind, printable
from curate.units import MIB, format_bytes

HELD_BYTES = 64 * MIB
"""What a batch becomes is held back until all of it is there, up to this much; beyond, it goes on as it comes, and an
error in what is left of the batch cannot be pinned on a row any more."""
MAX_REASON = 200
"""Characters of a reason that comes from an exception."""


class Applies(Protocol):
    """The part of an operator that is needed here."""

    def apply(self, batch: Any, tally: ShardBooks) -> Iterable[Any]:
        """Yields the tables that a batch becomes."""

    def hide(self, text: str) -> str:
        """Returns text without what must not be written down."""


def applied(
    operator: Applies,
    batch: pa.Table,
    tally: ShardBooks,
    *,
    errors: bool = False,
    hold: bool = True,
    tries: int = 0,
    first: int = 0,
    step: str = "",
) -> Iterator[Any]:
    """Yields the tables that `batch` becomes without its bad rows, which are quarantined.

    Where what the operator needs is not there now (RetryLater), yields `Busy`, and calls it again for the same rows:
    what it booked and gave of them is taken back. `tries`: how often it was called for them in vain before.
    `first`: the number of its first row among those that `step` is given of the shard; without a name, among those that
    were read.

    `hold`: whether a table goes on only when the whole batch did well; without, for who only looks, at once, and again.
    `errors`: whether a row that raises something else than `BadRow`, alone and twice, is bad too. Raises what the
    operator raised if no single row explains it, and at once what has nothing to do with rows: errors of a store,
    MemoryError. Raises TooManyBadRows over the budget.
    """
    places: Sequence[int]
    rows, places = batch, range(first, first + batch.num_rows)
    before = tries
    while True:
        error = yield from _whole(operator, rows, tally, hold, GivenRows(places, step))
        if error is None:
            return
        if is_busy(error):
            tries += 1
            yield busy(error, tries)
            continue
        # Those before may have been in vain for a call that comes now: of the good rows, or within the search.
        tries = before
        if not _explainable(error, errors):
            raise error
        bad = []
        for found in _Search(operator, rows, errors, before, tally).bad_rows(0, rows.num_rows, error):
            if isinstance(found, Busy):
                yield found
                continue
            position, reason = found
            text = operator.hide(row_text(row_at(rows, position)))
            tally.single_out(RejectedRow(0, operator.hide(reason), text, GivenRows(places, step).chosen(position)))
            bad.append(position)
        if not bad:
            if isinstance(error, BadRow):
                raise _unexplained(error, rows.num_rows) from error
            raise error
        good = np.ones(rows.num_rows, dtype=bool)
        good[bad] = False
        rows, places = rows_where(rows, good), [places[one] for one in np.flatnonzero(good)]
        if not rows.num_rows:
            return


def row_text(row: Mapping[str, Any]) -> str:
    """Returns a row as one line of JSON: bytes as text or base64, what JSON does not have as Python shows it."""
    # Not its times of day: it leaves out the zero that their microseconds begin with.
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATETIME
    try:
        return orjson.dumps(dict(row), default=_other, option=options).decode()
    except TypeError:
        # Text that is not valid Unicode, very large numbers: kept as they can be.
        return orjson.dumps({str(key): repr(value) for key, value in row.items()}).decode()


def _whole(
    operator: Applies, rows: pa.Table, tally: ShardBooks, hold: bool, given: GivenRows
) -> Generator[Any, None, Exception | None]:
    """Yields the tables of all rows, or nothing; returns what was raised, with all that was booked taken back."""
    held: list[Any] = []
    held_bytes = 0
    tally.begin()
    try:
        for table in _made(operator.apply(rows, tally), tally, given):
            if isinstance(table, Busy):
                # A call within the batch: those before it are done, and what they gave stays held.
                yield table
                continue
            if not hold or held_bytes > HELD_BYTES:
                yield table
                continue
            held.append(table)
            # One table is there anyway; to measure it would cost more than all else that is done for a batch.
            if len(held) > 1:
                held_bytes += table.nbytes if held_bytes else sum(one.nbytes for one in held)
                if held_bytes > HELD_BYTES:
                    tally.commit()
                    yield from held
                    held.clear()
    except Exception as error:
        if held_bytes > HELD_BYTES:
            if isinstance(error, BadRow):
                raise _too_late(error, held_bytes) from error
            raise
        tally.rollback()
        return error
    tally.commit()
    tally.calls += 1
    yield from held
    return None


def _made(tables: Iterable[Any], tally: ShardBooks, given: GivenRows) -> Iterator[Any]:
    """Yields tables; while one is made, the books know which rows it is made of: between two, other steps work."""
    made = iter(tables)
    while True:
        tally.given = given
        try:
            table = next(made)
        except StopIteration:
            return
        yield table


class _Search(NamedTuple):
    """The search for the rows of one batch that raise alone."""

    operator: Applies
    rows: pa.Table
    errors: bool
    tries: int
    """How often the batch was sent in vain before."""
    tally: ShardBooks
    """Takes the metrics."""

    def bad_rows(self, start: int, stop: int, error: Exception) -> Iterator[tuple[int, str] | Busy]:
        """Yields position and reason of bad rows among those which raised `error`, in order; maybe not of all. And a
        `Busy` for each call that is made again."""
        if isinstance(error, BadRow) and error.row is not None:
            yield start + _position(error, stop - start), reason_of(error)
        elif stop - start > 1:
            middle = (start + stop) // 2
            for low, high in ((start, middle), (middle, stop)):
                if (found := (yield from self._raised(low, high))) is not None:
                    yield from self.bad_rows(low, high, found)
        elif isinstance(error, BadRow):
            yield start, reason_of(error)
        elif type((yield from self._raised(start, stop))) is type(error):
            yield start, printable(summary_of(error)[:MAX_REASON])

    def _raised(self, start: int, stop: int) -> Generator[Busy, None, Exception | None]:
        """Returns what a part of the batch raises that its rows may explain. What it gives and books goes nowhere, but
        for metrics, which say what happened."""
        tries = self.tries
        while True:
            nowhere = DetachedBooks()
            nowhere.books.metrics = self.tally.books.metrics
            nowhere.begin()
            try:
                for item in self.operator.apply(self.rows.slice(start, stop - start), nowhere):
                    if isinstance(item, Busy):
                        yield item
            except Exception as error:
                if is_busy(error):
                    tries += 1
                    yield busy(error, tries)
                    continue
                if _explainable(error, self.errors):
                    return error
                if kind_of(error) in PASSING:
                    raise
            return None


def _explainable(error: Exception, errors: bool) -> bool:
    return isinstance(error, BadRow) or (errors and kind_of(error) is FailureKind.USER_ERROR)


def reason_of(error: BadRow) -> str:
    """Returns why a row is bad, as text that can be shown."""
    return printable(str(error.reason)) or "no reason given"


def _position(error: BadRow, rows: int) -> int:
    try:
        position = index(error.row)  # type: ignore[arg-type]
    except TypeError:
        position = -1
    if not 0 <= position < rows:
        raise ValueError(
            f"BadRow({error.reason!r}, row={error.row!r}): expected the position of a row in the batch that process "
            f"was given, 0 to {rows - 1}"
        ) from error
    return position


def _unexplained(error: BadRow, rows: int) -> Exception:
    return RuntimeError(
        f"process raised BadRow({error.reason!r}) for {rows} rows together, but for no single row; name the row: "
        f"BadRow({error.reason!r}, row=position in the batch)"
    )


def _too_late(error: BadRow, held_bytes: int) -> Exception:
    return RuntimeError(
        f"process raised BadRow({error.reason!r}) after it had given {format_bytes(held_bytes)} of the batch, which "
        "cannot be undone; raise it before the first table, or lower batch_size"
    )


def row_at(rows: pa.Table, position: int) -> dict[str, Any]:
    """Returns a row as Python values; those that Python does not have as Arrow prints them."""
    row = rows.slice(position, 1)
    return {name: python_value(column[0]) for name, column in zip(row.column_names, row.columns, strict=True)}


def _other(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if type(value) in (datetime.date, datetime.datetime, datetime.time):
        return value.isoformat()
    as_py = getattr(value, "as_py", None)
    return as_py() if as_py is not None else str(value)
