"""Methods of a Dataset that return its rows to this process: one by one, in batches, all at once, or split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from fractions import Fraction
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Self

import pyarrow as pa

from curate.arrow.batches import joined
from curate.arrow.schema import may_be_strict
from curate.dataset.base import Base
from curate.dataset.batches import Batches, fraction_of
from curate.dataset.execute import connection, settled
from curate.dataset.split import DataIterator
from curate.dataset.stats import LastRun
from curate.errors import ConfigError
from curate.imports import need
from curate.operators import columns as ops
from curate.operators import convert
from curate.operators.arguments import refuse_unused
from curate.plan.digest import plan_digest
from curate.plan.nodes import Limit, Scan, known_row_count, schema_of
from curate.plan.rewrites import shuffle_plan
from curate.sources.memory import Tables
from curate.streaming.epochs import Division, Epochs
from curate.units import whole, whole_seed

Batch = Any
"""A pyarrow.Table, or a dictionary of numpy arrays."""


class Consuming(Base, Batches):
    """Rows in this process: counted, one by one, in batches, all at once."""

    __slots__ = ()

    def _around(self) -> AbstractContextManager[Any]:
        return connection(settled(self._plan, self._how)[0], self._ran)

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
        least = self
        if found is not None and len(found):
            # Rows with a null in a column that has none are left out, wherever it is read.
            names = [one.name for at, one in enumerate(found) if not at or may_be_strict(one)]
            least = self._part(self._apply(ops.Select(tuple(names))))
        with self._watching():
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
        with self._watching():
            return list(self.iter_rows())

    def take_batch(self, batch_size: int = 20, *, batch_format: str = "pyarrow") -> Batch:
        """Returns the first `batch_size` rows as one batch. Raises ConfigError if there is no row.

        >>> curate.range(100).take_batch(2, batch_format="numpy")["id"].tolist()
        [0, 1]
        """
        convert.check_format(batch_format)
        table = self._limited(whole("batch_size", batch_size, 1)).to_arrow()
        if not table.num_rows:
            raise ConfigError("take_batch: the dataset has no rows")
        return convert.formatted(table, batch_format)

    def show(self, limit: int = 20) -> None:
        """Prints the first `limit` rows.

        >>> curate.range(2).show()
        {'id': 0}
        {'id': 1}
        """
        from rich.console import Console

        console = Console(width=200, soft_wrap=True)
        for row in self.take(limit):
            console.print(repr(row), markup=False, highlight=False)

    def to_pandas(self, limit: int | None = None) -> Any:
        """Returns all rows as a pandas.DataFrame; they have to fit into memory. Types are as for `map_batches`.

        Raises ConfigError if there are more than `limit` rows (None: any number), or pandas is not installed.

        >>> curate.range(2).to_pandas()["id"].tolist()
        [0, 1]
        """
        need("pandas", "to_pandas needs pandas", "pandas")
        if limit is None:
            return convert.to_pandas(self.to_arrow())
        limit = whole("limit", limit, 0)
        table = self._limited(limit + 1).to_arrow()
        if table.num_rows > limit:
            raise ConfigError(f"to_pandas: there are more than {limit:,} rows; take the first with limit({limit})")
        return convert.to_pandas(table)

    def streaming_split(self, n: int, *, equal: bool = False) -> list[DataIterator]:
        """Returns `n` iterators over disjoint shares of the rows, each for a separate thread.

        They have `iter_rows`, `iter_batches` and `iter_torch_batches`. All are fed from one run: block k goes to number
        k mod `n`; with `equal` each block is cut into `n` parts of as many rows, so that all get the same number, and
        the last rows, less than `n`, are left out. At most one block waits for each: a slow consumer slows the others,
        and one that never starts blocks them. One that stops early or was deleted is skipped. The run ends when all
        have ended.

        Once all have ended they can be iterated again, which runs everything again. They belong to this process. Each
        has a `state_dict()`, exact to the row that its consumer was handed, and `load_state_dict()`, with which the
        next pass in another process goes on there. Raises ConfigError for `n` below 1.

        >>> import concurrent.futures
        >>> shares = curate.range(6).streaming_split(2, equal=True)
        >>> with concurrent.futures.ThreadPoolExecutor(2) as threads:
        ...     list(threads.map(lambda share: [row["id"] for row in share.iter_rows()], shares))
        [[0, 1, 2], [3, 4, 5]]
        """
        n = whole("n", n, 1)
        passes = Epochs(self._blocks, n, equal=equal)
        division = Division(partial(plan_digest, self._plan), self._how.block_bytes, n, equal)
        return [DataIterator(passes, share, division) for share in range(n)]

    def to_arrow(self) -> pa.Table:
        """Returns all rows as one table; they have to fit into memory.

        >>> curate.range(3).to_arrow().num_rows
        3
        """
        return joined(self._tables())

    def materialize(self) -> Self:
        """Runs the dataset and returns its rows as a dataset in this process's memory.

        Later operations do not run it again.

        >>> numbers = curate.range(3).map(lambda row: {"n": row["id"] * 2}).materialize()
        >>> numbers.count(), numbers.take_all()
        (3, [{'n': 0}, {'n': 2}, {'n': 4}])
        """
        tables = self._tables()
        return self._held("materialize", tables, 0, sum(table.num_rows for table in tables))

    def split(self, n: int, *, equal: bool = False) -> list[Self]:
        """Runs the dataset and returns the rows as `n` consecutive datasets in memory, as `materialize` does.

        Their lengths differ by one at most; with `equal` they are the same, and the last rows, fewer than `n`, are left
        out. Raises ConfigError for `n` below 1.

        >>> [part.count() for part in curate.range(5).split(2)]
        [2, 3]
        >>> [part.take_all() for part in curate.range(5).split(2, equal=True)]
        [[{'id': 0}, {'id': 1}], [{'id': 2}, {'id': 3}]]
        """
        n = whole("n", n, 1)
        tables = self._tables()
        rows = sum(table.num_rows for table in tables)
        ends = [part * (rows // n) if equal else part * rows // n for part in range(n + 1)]
        return [self._held("split", tables, start, stop) for start, stop in pairwise(ends)]

    def split_at_indices(self, indices: Sequence[int]) -> list[Self]:
        """Runs the dataset and returns the rows, split before these row numbers, as datasets in memory. Raises
        ConfigError for no number, one below 0, or numbers that are not ascending.

        >>> [part.count() for part in curate.range(10).split_at_indices([2, 9])]
        [2, 7, 1]
        """
        ends = [whole("split_at_indices: an index", at, 0) for at in indices]
        if not ends or ends != sorted(ends):
            raise ConfigError(f"split_at_indices({ends}): expected at least one row number, in ascending order")
        return self._cut("split_at_indices", lambda rows: [min(one, rows) for one in ends])

    def split_proportionately(self, proportions: Sequence[float]) -> list[Self]:
        """Runs the dataset and returns the rows in parts of these proportions, then the rest, as datasets in memory.
        Raises ConfigError for numbers that are not above 0, or a sum of 1 or more.

        >>> [part.count() for part in curate.range(10).split_proportionately([0.2, 0.5])]
        [2, 5, 3]
        """
        parts = [fraction_of("split_proportionately", one) for one in proportions]
        if not parts or sum(parts) >= 1:
            raise ConfigError(f"split_proportionately({list(proportions)}): expected numbers whose sum is below 1")
        return self._cut("split_proportionately", lambda rows: [int(rows * one) for one in accumulate(parts)])

    def train_test_split(
        self, test_size: float, *, shuffle: bool = False, seed: int | None = None, stratify: str | None = None
    ) -> tuple[Self, Self]:
        """Runs the dataset and returns the first rows and the last rows as two datasets in memory.

        `test_size` is the number of the last ones, or a proportion of all between 0 and 1. With `shuffle` rows are put
        in random order first, by `seed`. For more rows than fit into memory use `streaming_train_test_split`. Raises
        ConfigError for another size, a size of all rows, and `stratify`, which is not supported.

        >>> train, test = curate.range(8).train_test_split(0.25)
        >>> train.count(), test.take_all()
        (6, [{'id': 6}, {'id': 7}])
        """
        if stratify is not None:
            raise ConfigError(
                f"train_test_split(stratify={stratify!r}) is not supported: split each class separately, "
                f"ds.filter(curate.col({stratify!r}) == value), and union the parts"
            )
        if seed is not None:
            seed = whole_seed(seed)
        if not shuffle:
            refuse_unused("train_test_split", "rows keep their order without shuffle=True", seed=seed)
        counted = hasattr(test_size, "__index__")
        last = whole("train_test_split: test_size", test_size, 1) if counted else 0
        share = Fraction(0) if counted else fraction_of("train_test_split", test_size)

        def ends(rows: int) -> list[int]:
            if counted and last >= rows:
                raise ConfigError(f"train_test_split({last}): there are {rows:,} rows; take fewer")
            return [rows - last if counted else int(rows * (1 - share))]

        rows = self._with(shuffle_plan(self._plan, seed, None)) if shuffle else self
        train, test = rows._cut("train_test_split", ends)
        return train, test

    def _limited(self, rows: int) -> Self:
        return self._part(self._with(Limit(self._plan, whole("limit", rows, 0))))

    def _cut(self, method: str, ends_of: Callable[[int], list[int]]) -> list[Self]:
        """Returns the rows, run once, in parts that end where a function of their number says."""
        tables = self._tables()
        rows = sum(table.num_rows for table in tables)
        ends = [0, *ends_of(rows), rows]
        return [self._held(method, tables, start, stop) for start, stop in pairwise(ends)]

    def _held(self, method: str, tables: Sequence[pa.Table], start: int, stop: int) -> Self:
        """Returns rows of tables as a dataset."""
        whole = joined(list(tables))
        ends = accumulate((table.num_rows for table in tables), initial=0)
        cut = [(max(first, start), min(last, stop)) for first, last in pairwise(ends)]
        pieces = tuple(whole.slice(first, last - first) for first, last in cut if first < last)
        return self._part(self._with(Scan(Tables(method, pieces, whole.schema))), LastRun(self._ran.last))
