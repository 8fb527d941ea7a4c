"""User functions over rows and batches: `map`, `flat_map`, `filter`, `map_batches`, `add_column`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, Self

import numpy as np
import pyarrow as pa

from curate.arrow.batches import combined
from curate.arrow.declared import identity_of
from curate.arrow.order import rows_where
from curate.code.closures import PLAIN
from curate.dataclass import dataclass, replace
from curate.errors import BadRow, SchemaMismatch
from curate.objects.bad_line import RejectedRow
from curate.operators.columns import with_column
from curate.operators.convert import is_data_frame, returned, rows, rows_to_table, to_table
from curate.operators.udf import UdfOperator, hint
from curate.pipeline.bad_rows import reason_of, row_at, row_text
from curate.pipeline.retry_later import Busy, busy, called_again, is_busy
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition


@dataclass(frozen=True, slots=True)
class MapBatches(UdfOperator):
    """A function of batches of at most `batch_size` rows; it is applied to one at a time."""

    batch_size: int | None
    batch_format: str
    method = "map_batches"

    @property
    def batch_rows(self) -> int | None:  # type: ignore[override]
        return self.batch_size

    def identity(self) -> Any:
        told = identity_of(self.output_schema)
        return ["map_batches", *self.fn.identity(self.name), self.batch_size, self.batch_format, *told]

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        del tally
        result = self.fn.of_batch(combined(table), self.batch_format)
        for one in result if isinstance(result, Iterator) else [result]:
            yield self.declared(to_table(f"{self.name} returned", one, table), table, place)


@dataclass(frozen=True, slots=True)
class AddColumn(UdfOperator):
    """Adds a column that a function of batches returns, the last one, or replaces one, at its place."""

    column: str
    batch_format: str

    @property
    def name(self) -> str:
        return f"add_column({self.column!r}, {self.fn.label})"

    def identity(self) -> Any:
        return ["add_column", self.column, *self.fn.identity(self.name), self.batch_format]

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        del tally, place
        values = self.fn.of_batch(combined(table), self.batch_format)
        if isinstance(values, pa.Table) or is_data_frame(values):
            raise TypeError(
                f"{self.name} returned {type(values).__name__}, expected one column: an array, series or list"
            )
        made = to_table(f"{self.name} returned", {self.column: values}, table)
        if len(made) != len(table):
            raise SchemaMismatch(
                f"{self.name} returned {len(made):,} values for {len(table):,} rows; expected one value per row"
            )
        yield with_column(table, self.column, made[self.column])


@dataclass(frozen=True, slots=True)
class MapRows(UdfOperator):
    """A function of rows: of one to one, or (flat) of one to any number."""

    flat: bool

    @property
    def method(self) -> str:  # type: ignore[override]
        return "flat_map" if self.flat else "map"

    def identity(self) -> Any:
        return [self.method, *self.fn.identity(self.name), *identity_of(self.output_schema)]

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        made: list[Mapping[str, Any]] = []
        fn = self.fn.called
        for result in each(partial(self._rows_of, fn) if self.flat else fn, table, tally, place.tries):
            if isinstance(result, Busy):
                yield result
            elif result is ASIDE:
                continue
            elif self.flat:
                made += result
            else:
                made.append(self._row(result))
        if made:
            yield self.declared(
                rows_to_table(f"{self.name} returned", made, table.schema, self.output_schema), table, place
            )

    def _rows_of(self, fn: Callable[[dict[str, Any]], Any], row: dict[str, Any]) -> list[Mapping[str, Any]]:
        result = fn(row)
        if isinstance(result, Mapping | str | bytes) or not isinstance(result, Iterable):
            raise TypeError(f"{returned(f'{self.name} returned', result)}, expected a list of dictionaries")
        # Here, for it may be a generator, whose rows are part of the call.
        return list(map(self._row, result))

    def _row(self, value: Any) -> Mapping[str, Any]:
        # Of what most functions return it is known at once; to ask an abstract class takes as long as a short call.
        if type(value) is not dict and not isinstance(value, Mapping):
            several = not (self.flat or isinstance(value, str | bytes)) and isinstance(value, Iterable)
            instead = "; flat_map takes several rows for each" if several else ""
            raise TypeError(f"{returned(f'{self.name} returned', value)}, expected a dictionary (one row){instead}")
        return row_as_it_is(value)


@dataclass(frozen=True, slots=True)
class MapIsolated(UdfOperator):
    """A function of rows that runs in a process of its own: a row that kills it, or takes too long, is a bad row."""

    timeout_s: float | None
    confined: Any = None
    """The `Sandboxed` that it runs in, once it was made."""

    @property
    def name(self) -> str:
        return f"map({self.fn.label}, isolate=True)"

    def opened(self) -> Self:
        """Returns the operator with its process, which starts with the first row and ends with the worker."""
        from curate.pipeline.sandbox import Sandboxed

        return replace(self, confined=Sandboxed(self.fn, self.timeout_s))

    def identity(self) -> Any:
        return ["map", *self.fn.identity(self.name), "isolate", self.timeout_s, *identity_of(self.output_schema)]

    def _results(self, rows: list[dict[str, Any]], tries: int) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yields each row with what the function returned or the BadRow, or a `Busy` before the row is run again."""
        done = 0
        while done < len(rows):
            try:
                for result in self.confined.results(rows[done:]):
                    yield rows[done], result
                    done, tries = done + 1, 0
            except Exception as error:
                if not is_busy(error):
                    raise
                tries += 1
                yield rows[done], busy(error, tries, kept=done > 0)

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        assert self.confined is not None
        given = rows(table)
        made: list[Mapping[str, Any]] = []
        done = 0
        for row, result in self._results(given, place.tries):
            if isinstance(result, Busy):
                yield result
                continue
            done += 1
            if isinstance(result, BadRow):
                # Not raised: a search for it would run into it again.
                tally.set_aside(RejectedRow(0, result.reason, row_text(row)), done - 1)
            elif isinstance(result, Mapping):
                made.append(result)
            else:
                raise TypeError(f"{returned(f'{self.name} returned', result)}, expected a dictionary (one row)")
        if made:
            gave = rows_to_table(f"{self.name} returned", made, table.schema, self.output_schema)
            yield self.declared(gave, table, place)


def row_as_it_is(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row that user code made, which no later change changes: of dictionaries, lists and arrays that can be
    changed it has copies, for user code may make its next row in the same ones.

    >>> lengths = [1]
    >>> row = row_as_it_is({"lengths": lengths})
    >>> lengths.append(2)
    >>> row
    {'lengths': [1]}
    """
    if PLAIN.issuperset(map(type, row.values())):
        return dict(row)
    return {name: value if type(value) in PLAIN else _as_it_is(value) for name, value in row.items()}


def _as_it_is(value: Any) -> Any:
    if isinstance(value, dict):
        return row_as_it_is(value)
    if isinstance(value, list | tuple):
        # All elements are of one kind, or the row is refused.
        first = next((one for one in value if one is not None), None)
        if isinstance(first, _CHANGING):
            return [_as_it_is(one) for one in value]
        return value.copy() if type(value) is list else value
    if isinstance(value, np.ndarray) and value.dtype == object:
        return deepcopy(value)
    if isinstance(value, np.ndarray):
        return value.copy() if value.flags.writeable else value
    return value.copy() if isinstance(value, bytearray | set) else value


_CHANGING = (dict, list, tuple, np.ndarray, bytearray, set)


ASIDE = object()
"""In place of what a function returns, for a row that was set aside."""


def each(fn: Callable[[dict[str, Any]], Any], table: pa.Table, tally: ShardBooks, tries: int = 0) -> Iterator[Any]:
    """Yields what a function returns for each row, and `Busy` each time that it is to be called again for a row, since
    it raised RetryLater: `tries` times before for the first one. A row for which it raises BadRow is set aside, and the
    others go on: to begin anew for each would take the square of their number."""
    for position, row in enumerate(rows(table)):
        try:
            answer = fn(row)
        except Exception as error:  # noqa: BLE001 - raised there, if it is no answer
            yield from _after(error, fn, table, position, tally, 0 if position else tries)
        else:
            yield answer


def _after(
    error: Exception,
    fn: Callable[[dict[str, Any]], Any],
    table: pa.Table,
    position: int,
    tally: ShardBooks,
    tries: int,
) -> Iterator[Any]:
    """Yields what becomes of the row for which a function raised an error."""

    def anew() -> Any:
        # The call that raised may have changed its row.
        return fn(rows(table.slice(position, 1))[0])

    try:
        for answer in called_again(error, anew, kept=position > 0, tries=tries):
            yield answer if isinstance(answer, Busy) else answer.value
    except BadRow as bad:
        if bad.row is not None:
            raise
        tally.single_out(RejectedRow(0, reason_of(bad), row_text(row_at(table, position))), position)
        yield ASIDE
    except ValueError as wrong:
        hint(wrong)
        raise


@dataclass(frozen=True, slots=True)
class FilterRows(UdfOperator):
    """Keeps the rows for which a function of the row is true."""

    reason: str
    method = "filter"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        return found

    def identity(self) -> Any:
        return ["filter", *self.fn.identity(self.name), self.reason]

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        kept: list[bool | None] = []
        for answer in each(self.fn.called, table, tally, place.tries):
            if answer is True or answer is False:
                kept.append(answer)
            elif isinstance(answer, Busy):
                yield answer
            else:
                kept.append(None if answer is ASIDE else self._is_kept(answer))
        if None in kept:
            table = rows_where(table, np.array([one is not None for one in kept], bool))
            kept = [one for one in kept if one is not None]
        keeps = np.array(kept, bool)
        tally.drop_rows(table, ~keeps, self.reason)
        yield rows_where(table, keeps)

    def _is_kept(self, answer: Any) -> bool:
        if isinstance(answer, Iterator | Awaitable):
            # All of these are true, whatever they would give.
            raise TypeError(f"{self.name} returned a {type(answer).__name__}, expected True or False")
        return bool(answer)
