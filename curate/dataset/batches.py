"""Turns blocks into a consumer's batches and rows: cut to a size, shuffled in a buffer, prefetched, converted."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from fractions import Fraction
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from curate.arrow.batches import combined, joined, rechunk
from curate.arrow.order import take_rows
from curate.errors import ConfigError
from curate.imports import need
from curate.operators.arguments import answer_methods
from curate.operators.convert import check_format, formatted, rows, to_numpy
from curate.operators.tensors import moved, to_torch
from curate.streaming.epochs import Shuffle
from curate.streaming.prefetch import Stopped, prefetched
from curate.units import whole


def fraction_of(method: str, value: float) -> Fraction:
    """Returns a proportion as it is written: 0.7 and 0.1 are 0.8. Raises ConfigError if it is not between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ConfigError(f"{method}: {value!r} is not a fraction; expected a number between 0 and 1")
    return Fraction(str(value))


@answer_methods
class Batches:
    """What has blocks of rows, for one consumer: row by row, or in batches."""

    __slots__ = ()
    if TYPE_CHECKING:

        def _blocks(self, stopped: Stopped) -> Generator[pa.Table]:
            """Yields the rows, of one pass."""

        def _around(self) -> AbstractContextManager[Any]:
            """Returns what is entered in the consumer's thread while there is a pass in batches."""

    def _resumed(self, tables: Generator[pa.Table]) -> Generator[pa.Table]:
        """Yields what a consumer has not got before."""
        return tables

    def _handed(self, made: Generator[tuple[int, Any]]) -> Generator[Any]:
        """Yields what goes to the consumer, of pairs of its number of rows and itself."""
        try:
            yield from map(itemgetter(1), made)
        finally:
            made.close()

    def _shuffled(self, rows: int, buffer_rows: int | None, seed: int | None) -> Shuffle | None:
        """Returns how a pass is shuffled that is asked for so; None: not at all."""
        if buffer_rows is None:
            return None
        return rows, max(buffer_rows, rows), secrets.randbits(64) if seed is None else seed

    def iter_rows(self) -> Generator[dict[str, Any]]:
        """Yields the rows as dictionaries of Python values, the first while later ones are still being read.

        Stopping early ends all running tasks.

        >>> next(curate.range(3).iter_rows())
        {'id': 0}
        """
        for block in prefetched(lambda stopped: self._resumed(self._blocks(stopped)), 0):
            for batch in block.to_batches(max_chunksize=1024):
                yield from rows(batch)

    def iter_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        batch_format: str = "pyarrow",
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Generator[Any]:
        """Yields the rows in batches of `batch_size` rows, the last one smaller, or left out with `drop_last`.

        With `batch_size=None`, yields blocks unchanged, of 1 MiB at first and `block_bytes` later. Formats are as for
        `map_batches`. A thread prepares `prefetch_batches` batches ahead, in addition to the memory budget; with 0, the
        caller's thread does the work between two batches.

        With `local_shuffle_buffer_size`, each batch is drawn at random from a full buffer of that many rows (at least
        `batch_size`): every row appears once, at most one buffer too early. The order depends on the order of the rows,
        these numbers and `local_shuffle_seed` alone (and on the version of numpy); without a seed it differs each time.

        Errors reach the caller after the batches before them. Stopping early (`break`, `close`) ends all running tasks,
        frees their blocks, and returns when the thread has ended. Raises ConfigError for an unknown format, a size
        below 1, or a shuffle without a `batch_size`.

        >>> [batch.num_rows for batch in curate.range(5).iter_batches(batch_size=2)]
        [2, 2, 1]
        >>> shuffled = curate.range(6).iter_batches(batch_size=3, local_shuffle_buffer_size=6, local_shuffle_seed=0)
        >>> sorted(number for batch in shuffled for number in batch["id"].to_pylist())
        [0, 1, 2, 3, 4, 5]
        """
        check_format(batch_format)
        form = partial(formatted, batch_format=batch_format)
        shuffle = local_shuffle_buffer_size, local_shuffle_seed
        return self._formed(form, prefetch_batches, batch_size, drop_last, *shuffle)

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
        """Yields batches as dictionaries of torch tensors, or as `collate_fn` converts a dictionary of arrays.

        Lists of one length become a further dimension. `dtypes` is the type of all tensors, or types by column name;
        default: the type of the column. Tensors, also those in lists, tuples and dictionaries that `collate_fn`
        returns, are put on `device` ("auto": the CPU), from pinned memory with `pin_memory`. The thread does this ahead
        of time; everything else is as for `iter_batches`.

        Raises ConfigError if torch is not installed, for `dtypes` beside `collate_fn`, and as `iter_batches` does; when
        the batch is made, for `dtypes` of an unknown column, and TypeError for a column of texts, or of lists of
        several lengths, and for a number, or null, that a type of whole numbers does not hold.

        >>> [batch["id"].tolist() for batch in curate.range(3).iter_torch_batches(batch_size=2)]  # doctest: +SKIP
        [[0, 1], [2]]
        """
        need("torch", "iter_torch_batches needs torch", "embed")
        if collate_fn is not None and dtypes is not None:
            raise ConfigError(
                "iter_torch_batches: collate_fn makes the tensors, so dtypes has no effect; pass one of them"
            )
        where = "cpu" if device == "auto" else device

        def form(table: pa.Table) -> Any:
            # A tensor can be written to, also one that shares the memory of an array; that of a block must not be.
            arrays = {name: one if one.flags.writeable else one.copy() for name, one in to_numpy(table).items()}
            made = collate_fn(arrays) if collate_fn is not None else to_torch(arrays, dtypes)
            return moved(made, where, pin_memory)

        shuffle = local_shuffle_buffer_size, local_shuffle_seed
        return self._formed(form, prefetch_batches, batch_size, drop_last, *shuffle)

    def _formed(
        self,
        form: Callable[[pa.Table], Any],
        prefetch_batches: int,
        batch_size: int | None,
        drop_last: bool,
        buffer_rows: int | None,
        seed: int | None,
    ) -> Generator[Any]:
        """Yields what `form` makes of batches of rows. Nothing runs before the first is asked for."""
        prefetch_batches = whole("prefetch_batches", prefetch_batches, 0)
        if batch_size is not None:
            batch_size = whole("batch_size", batch_size, 1)
        if buffer_rows is not None:
            buffer_rows = whole("local_shuffle_buffer_size", buffer_rows, 1)
            if batch_size is None:
                raise ConfigError("a local shuffle needs a batch_size")
            if seed is not None:
                seed = whole("local_shuffle_seed", seed, 0)
        shuffle = self._shuffled(batch_size or 0, buffer_rows, seed)

        def pair(table: pa.Table) -> tuple[int, Any]:
            return table.num_rows, form(table)

        def made(stopped: Stopped) -> Generator[tuple[int, Any]]:
            stream = self._blocks(stopped)
            try:
                # Shuffled rows are drawn from the first on: which are drawn depends on those drawn before.
                tables: Iterator[pa.Table] = (
                    self._resumed(stream) if shuffle is None else self._resumed(shuffle_rows(stream, *shuffle))
                )
                if batch_size is not None:
                    tables = rebatched(tables, batch_size) if shuffle is None else tables
                    if drop_last:
                        tables = (table for table in tables if table.num_rows == batch_size)
                # Not a loop: its variable would keep a table while the next one is made.
                yield from map(pair, tables)
            finally:
                stream.close()

        return self._handed(prefetched(made, prefetch_batches, self._around))


def rebatched(stream: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yields tables of `rows` rows, the last one smaller. Blocks of other types are widened where they meet in one."""
    pending: list[pa.Table] = []
    held = 0
    for block in stream:
        pending.append(block)
        held += block.num_rows
        del block
        if held >= rows:
            whole = joined(pending)
            cut = held - held % rows
            pending, held = ([whole.slice(cut)], held - cut) if held > cut else ([], 0)
            cuttable = iter([whole.slice(0, cut)])
            del whole
            yield from rechunk(cuttable, rows)
    if pending:
        yield combined(joined(pending))


def without_first(tables: Generator[pa.Table], rows: int) -> Generator[pa.Table]:
    """Yields tables without the first rows.

    >>> stream = (pa.table({"n": [k, k]}) for k in range(3))
    >>> [table["n"].to_pylist() for table in without_first(stream, 3)]
    [[1], [2, 2]]
    """
    try:
        for table in tables:
            if table.num_rows > rows:
                cut = [table.slice(rows)]
                del table
                yield cut.pop()
                break
            rows -= table.num_rows
        yield from tables
    finally:
        tables.close()


# Local shuffle


def shuffle_rows(stream: Iterator[pa.Table], rows: int, buffer_rows: int, seed: int) -> Generator[pa.Table]:
    """Yields the rows, each once, in tables of `rows` rows, the last one smaller, drawn at random from a buffer.

    The buffer has `buffer_rows` rows, at least `rows`, and is filled up from the stream before each draw, so that a row
    comes at most `buffer_rows` rows too early. Which row comes when depends on the numbers and the order of the rows
    alone, not on how they are cut into blocks. In memory are the buffer, a quarter of it, and a block.
    """
    random = np.random.default_rng(seed)
    table: pa.Table | None = None
    """The rows of the buffer, those drawn from it since the table was made, and those that come next."""
    buffer = np.empty(0, np.int64)
    """The places in `table` of the rows of the buffer."""
    following = 0
    """The place in `table` of the first row that comes next."""
    ended = False
    while True:
        coming = 0 if table is None else table.num_rows - following
        if len(buffer) + coming < buffer_rows and not ended:
            # More than is needed now, so that what is copied for it is a few times the rows that come, however small
            # the blocks.
            least = max(buffer_rows - len(buffer) - coming, buffer_rows // 4)
            kept = [] if table is None else [take_rows(table, pa.array(buffer)), table.slice(following)]
            del table
            gathered, ended = _gathered(stream, least)
            parts = [part for part in (*kept, *gathered) if part.num_rows]
            kept.clear()
            gathered.clear()
            if not parts:
                return
            following = len(buffer)
            buffer = np.arange(following)
            table = combined(joined(parts))
            parts.clear()
            coming = table.num_rows - following
        assert table is not None
        filled = min(coming, buffer_rows - len(buffer))
        buffer = np.concatenate([buffer, np.arange(following, following + filled)])
        following += filled
        if not len(buffer):
            return
        drawn = random.choice(len(buffer), min(rows, len(buffer)), replace=False)
        yield take_rows(table, pa.array(buffer[drawn]))
        buffer = np.delete(buffer, drawn)


def _gathered(stream: Iterator[pa.Table], rows: int) -> tuple[list[pa.Table], bool]:
    """Returns the next blocks, of `rows` rows together at least, and whether the stream has ended before."""
    found: list[pa.Table] = []
    for block in stream:
        found.append(block)
        rows -= block.num_rows
        if rows <= 0:
            return found, False
    return found, True
