"""The part of a Dataset that gives its rows to this process."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Self

import pyarrow as pa
from rich.console import Console

from curate.arrow.batches import joined
from curate.dataset.base import Base
from curate.dataset.batches import Batches, check_rows
from curate.dataset.execute import connection
from curate.dataset.split import DataIterator, Epochs
from curate.errors import ConfigError
from curate.operators import columns as ops
from curate.operators import convert
from curate.plan.nodes import Limit, known_row_count, schema_of

Batch = Any
"""A pyarrow.Table, or a dictionary of numpy arrays."""


class Consuming(Base, Batches):
    """Rows in this process: counted, one by one, in batches, all at once."""

    __slots__ = ()

    def _around(self) -> AbstractContextManager[Any]:
        return connection(self._how, self._ran)

    def count(self) -> int:
        """Returns the number of rows; from the footers of Parquet files where every row is known to be kept.

        >>> import pyarrow.compute as pc
        >>> curate.range(10).filter(pc.field("id") < 3).count()
        3
        """
        known = known_row_count(self._plan)
        if known is not None:
            return known
        found = schema_of(self._plan)
        least = self if found is None or not len(found) else self._part(self._apply(ops.Select((found.names[0],))))
        return sum(block.num_rows for block in least._blocks())

    def take(self, limit: int = 20) -> list[dict[str, Any]]:
        """Returns the first `limit` rows as dictionaries; reads no more than it takes. Raises ConfigError if negative.

        >>> curate.range(100).take(1)
        [{'id': 0}]
        """
        return self._limited(limit).take_all()

    def take_all(self) -> list[dict[str, Any]]:
        """Returns all rows as dictionaries; they have to fit into memory.

        >>> curate.range(1).take_all()
        [{'id': 0}]
        """
        return list(self.iter_rows())

    def take_batch(self, batch_size: int = 20, *, batch_format: str = "pyarrow") -> Batch:
        """Returns the first `batch_size` rows as one batch. Raises ConfigError if there is no row.

        >>> curate.range(100).take_batch(2, batch_format="numpy")["id"].tolist()
        [0, 1]
        """
        convert.check_format(batch_format)
        check_rows("batch_size", batch_size, 1)
        table = self._limited(batch_size).to_arrow()
        if not table.num_rows:
            raise ConfigError("take_batch: the dataset has no rows")
        return convert.formatted(table, batch_format)

    def show(self, limit: int = 20) -> None:
        """Prints the first `limit` rows.

        >>> curate.range(2).show()
        {'id': 0}
        {'id': 1}
        """
        console = Console(width=200, soft_wrap=True)
        for row in self.take(limit):
            console.print(repr(row), markup=False, highlight=False)

    def to_pandas(self, limit: int | None = None) -> Any:
        """Returns all rows as a pandas.DataFrame; they have to fit into memory. Types are as for `map_batches`.

        Raises ConfigError if there are more than `limit` rows (None: any number), or pandas is not installed.

        >>> curate.range(2).to_pandas()["id"].tolist()
        [0, 1]
        """
        convert.need_pandas("to_pandas")
        if limit is None:
            return convert.to_pandas(self.to_arrow())
        check_rows("limit", limit, 0)
        table = self._limited(limit + 1).to_arrow()
        if table.num_rows > limit:
            raise ConfigError(f"to_pandas: there are more than {limit:,} rows; take the first with limit({limit})")
        return convert.to_pandas(table)

    def streaming_split(self, n: int, *, equal: bool = False) -> list[DataIterator]:
        """Returns `n` iterators over disjoint shares of the rows, each to be consumed in a thread of its own.

        They have `iter_rows`, `iter_batches` and `iter_torch_batches`. All are fed from one run: block k goes to number
        k mod `n`; with `equal` each block is cut into `n` parts of as many rows, so that all get the same number, and
        the last rows, less than `n`, are left out. One block waits for each at most: a consumer that is slow holds up
        the others, and one that does not begin holds them up for good. One that stops early, or that nobody holds any
        more, is left out. The run ends when all have ended.

        They can be iterated again, which runs all again, once all have ended. They belong to this process. It is not
        resumable: which rows a consumer has seen is written down nowhere. Raises ConfigError for `n` below 1.

        >>> import concurrent.futures
        >>> shares = curate.range(6).streaming_split(2, equal=True)
        >>> with concurrent.futures.ThreadPoolExecutor(2) as threads:
        ...     list(threads.map(lambda share: [row["id"] for row in share.iter_rows()], shares))
        [[0, 1, 2], [3, 4, 5]]
        """
        check_rows("n", n, 1)
        passes = Epochs(self._blocks, n, equal=equal)
        return [DataIterator(passes, share) for share in range(n)]

    def to_arrow(self) -> pa.Table:
        """Returns all rows as one table; they have to fit into memory.

        >>> curate.range(3).to_arrow().num_rows
        3
        """
        return joined(self._tables())

    def _limited(self, rows: int) -> Self:
        check_rows("limit", rows, 0)
        return self._part(self._with(Limit(self._plan, rows)))
