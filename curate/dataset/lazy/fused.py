"""Operators run one after another over each batch, as one generator: the operator of a stage, and of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from curate.dataset.formats import rechunk
from curate.dataset.lazy.expressions import describe
from curate.dataset.lazy.operators import MapBatches, Operator
from curate.dataset.tally import Tally
from curate.errors import SchemaMismatch

READ_ROWS = 16_384
"""Rows of a batch as it is read, about."""


@dataclass(slots=True)
class Seen:
    """What an operator was given and gave so far, of one shard."""

    rows: int = 0
    schema: pa.Schema | None = None


@dataclass(frozen=True)
class Fused:
    """Neighbouring operators as one."""

    operators: tuple[Operator, ...]
    reads_files = False

    def setup(self) -> None:
        """Does nothing: functions have no state."""

    def apply(self, batch: pa.Table, tally: Tally) -> Iterator[pa.Table]:
        """Yields what a batch becomes."""
        return self.run(batch, tally, [Seen() for _ in self.operators])

    def hide(self, text: str) -> str:
        """Returns the text: there are no secrets."""
        return text

    def run(self, batch: pa.Table, tally: Tally, seen: list[Seen]) -> Iterator[pa.Table]:
        """Yields what a batch becomes; `seen` is what the operators saw of the shard before."""
        tables: Iterator[pa.Table] = iter([batch])
        for operator, before in zip(self.operators, seen, strict=True):
            tables = _through(operator, tables, tally, before)
        return tables


def _through(operator: Operator, tables: Iterator[pa.Table], tally: Tally, seen: Seen) -> Iterator[pa.Table]:
    for table in _batches(operator, tables):
        made = iter(operator.apply(table, tally))
        while True:
            try:
                one = next(made, None)
                if one is not None:
                    seen.schema = _agreed(operator, seen.schema, one.schema)
            except Exception as error:
                error.add_note(
                    f"in {operator.name}, of the rows {seen.rows} to {seen.rows + table.num_rows - 1} it got"
                )
                raise
            if one is None:
                break
            yield one
        seen.rows += table.num_rows


def _batches(operator: Operator, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yields what an operator is given at a time; never nothing, and never rows of two tables."""
    size = operator.batch_size if isinstance(operator, MapBatches) else None
    for table in tables:
        if table.num_rows:
            yield from [table] if size is None else rechunk(iter([table]), size)


def _agreed(operator: Operator, before: pa.Schema | None, found: pa.Schema) -> pa.Schema:
    """Returns the schema that holds both, types of nulls filled in and numbers widened. Raises SchemaMismatch."""
    if before is None or before.equals(found):
        return found
    if before.names == found.names:
        try:
            return pa.unify_schemas([before, found], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            pass
    raise SchemaMismatch(
        f"{operator.name} gave a batch with ({describe(found)}) after batches with ({describe(before)}); every batch "
        "must have the same columns, in one order, of one type"
    )


def read_rows(operators: Iterable[Operator]) -> int:
    """Returns how many rows to read at a time: about READ_ROWS, and whole batches of the first `map_batches`."""
    for operator in operators:
        if isinstance(operator, MapBatches) and operator.batch_size is not None:
            return operator.batch_size * max(1, READ_ROWS // operator.batch_size)
    return READ_ROWS
