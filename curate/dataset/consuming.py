"""The part of a Dataset that gives its rows to this process."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Self

import numpy as np
import pyarrow as pa
from rich.console import Console

from curate.arrow.batches import joined
from curate.dataset import batches
from curate.dataset.base import Base
from curate.dataset.batches import check_rows
from curate.dataset.execute import connection
from curate.dataset.split import DataIterator, Epochs
from curate.errors import ConfigError
from curate.operators import columns as ops
from curate.operators import convert
from curate.plan.nodes import Limit, known_row_count, schema_of

Batch = Any
"""A pyarrow.Table, or a dictionary of numpy arrays."""


class Consuming(Base):
    """Rows in this process: counted, one by one, in batches, all at once."""

    __slots__ = ()

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

    def iter_rows(self) -> Generator[dict[str, Any]]:
        """Yields the rows as dictionaries of Python values, the first while later ones are still being read.

        To stop early ends all that runs.

        >>> next(curate.range(3).iter_rows())
        {'id': 0}
        """
        return batches.iter_rows(self._blocks)

    def iter_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        batch_format: str = "pyarrow",
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Generator[Batch]:
        """Yields the rows in batches of `batch_size` rows, the last one smaller, or left out with `drop_last`.

        With `batch_size=None`, blocks as they come, of 1 MiB at first and `block_bytes` in the end. Formats as for
        `map_batches`. A thread makes `prefetch_batches` batches ahead, which are held beside the memory budget; with 0,
        all is done between two batches, in the caller's thread.

        With `local_shuffle_buffer_size`, each batch is drawn at random from a buffer of as many rows, at least
        `batch_size`, which is filled up before: every row comes once, none more than a buffer too early. The order
        depends on the order of the rows, these numbers and `local_shuffle_seed` alone (and on the version of numpy);
        without a seed it is another one each time.

        What is raised reaches the caller after the batches before it. To stop early (`break`, `close`) ends all that
        runs, frees what was made, and returns when the thread has ended. Raises ConfigError for an unknown format, a
        size below 1, or a shuffle without a `batch_size`.

        >>> [batch.num_rows for batch in curate.range(5).iter_batches(batch_size=2)]
        [2, 2, 1]
        >>> shuffled = curate.range(6).iter_batches(batch_size=3, local_shuffle_buffer_size=6, local_shuffle_seed=0)
        >>> sorted(number for batch in shuffled for number in batch["id"].to_pylist())
        [0, 1, 2, 3, 4, 5]
        """
        return batches.iter_batches(
            self._blocks,
            prefetch_batches=prefetch_batches,
            batch_size=batch_size,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
            form=batches.in_format(batch_format),
            around=partial(connection, self._how, self._ran),
        )

    def iter_torch_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        dtypes: Any = None,
        device: Any = "auto",
        collate_fn: Callable[[dict[str, np.ndarray[Any, Any]]], Any] | None = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        pin_memory: bool = False,
    ) -> Generator[Any]:
        """Yields batches as dictionaries of torch tensors; or what `collate_fn` makes of a dictionary of arrays.

        Lists of one length become a further dimension. `dtypes` is the type of all tensors, or those of columns by
        name; else it is that of the column. Tensors, also those in lists, tuples and dictionaries that `collate_fn`
        returns, are put on `device` ("auto": the CPU), from pinned memory with `pin_memory`. All of it is done ahead,
        in the thread, and all else is as for `iter_batches`.

        Raises ConfigError if torch is not installed, for `dtypes` beside `collate_fn`, and as `iter_batches` does;
        TypeError, when the batch is made, for a column of texts, or of lists of several lengths.

        >>> [batch["id"].tolist() for batch in curate.range(3).iter_torch_batches(batch_size=2)]  # doctest: +SKIP
        [[0, 1], [2]]
        """
        return batches.iter_torch_batches(
            self._blocks,
            prefetch_batches=prefetch_batches,
            batch_size=batch_size,
            dtypes=dtypes,
            device=device,
            collate_fn=collate_fn,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
            pin_memory=pin_memory,
            around=partial(connection, self._how, self._ran),
        )

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
