"""A user function that is called once for each group."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.declared import identity_of
from curate.arrow.groups import one_chunk
from curate.arrow.offsets import unpack_rows
from curate.dataclass import dataclass, replace
from curate.errors import BadRow
from curate.exchange.kinds.group import GROUP
from curate.late_pandas import numbers
from curate.operators.convert import to_table
from curate.operators.udf import UdfOperator
from curate.pipeline.retry_later import Busy, call_with_retries
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import READ_ROWS, BatchPosition


@dataclass(frozen=True, slots=True)
class MapGroups(UdfOperator):
    """A function of groups, each of which it is given as a batch of rows."""

    batch_format: str
    method = "map_groups"

    def identity(self) -> Any:
        return ["map_groups", *self.fn.identity(self.name), self.batch_format, *identity_of(self.output_schema)]

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        del tally
        groups = one_chunk(table.column(GROUP))
        rows = groups.flatten()
        ends = np.cumsum(numbers(groups.value_lengths()))
        pending: list[pa.Table] = []
        pending_rows = 0
        start = 0
        for position, end in enumerate(ends.tolist()):
            group = unpack_rows(rows.slice(start, end - start))
            tables: list[pa.Table] = []
            for answer in call_with_retries(
                partial(self._of, group, position, place), kept=position > 0, tries=0 if position else place.tries
            ):
                if isinstance(answer, Busy):
                    yield answer
                else:
                    tables = answer.value
            for made in tables:
                # Tables of their own if they differ: whoever takes them says how.
                if pending and (pending_rows >= READ_ROWS or not made.schema.equals(pending[0].schema)):
                    yield pa.concat_tables(pending)
                    pending, pending_rows = [], 0
                pending.append(made)
                pending_rows += made.num_rows
            start = end
        if pending:
            yield pa.concat_tables(pending)

    def _of(self, group: pa.Table, position: int, place: BatchPosition) -> list[pa.Table]:
        """Returns what a group becomes. A BadRow is about the whole of it."""
        at = replace(place, row=place.row + position)
        try:
            result = self.fn.of_batch(group, self.batch_format)
            tables = [
                to_table(f"{self.name} returned", one, group)
                for one in (result if isinstance(result, Iterator) else [result])
            ]
            return [self.declared(one, group, at) for one in tables]
        except BadRow as error:
            raise BadRow(error.reason, position) from error
