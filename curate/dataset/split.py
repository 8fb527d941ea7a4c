"""One of several shares of a dataset's rows, each for a thread of its own, and the state that resumes it."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyarrow as pa

from curate.dataset.batches import Batches, without_first
from curate.errors import ConfigError
from curate.streaming.epochs import Division, Epochs, Shuffle
from curate.streaming.prefetch import Stopped


class DataIterator(Batches):
    """One share of a dataset's rows, made by `Dataset.streaming_split`.

    >>> (share,) = curate.range(3).streaming_split(1)
    >>> [batch.num_rows for batch in share.iter_batches(batch_size=2)]
    [2, 1]
    """

    def __init__(self, passes: Epochs, share: int, division: Division) -> None:
        self._passes = passes
        self._share = share
        self._division = division
        self._epoch = 0
        """Passes that have ended."""
        self._rows = 0
        """Rows of this pass that the consumer was handed."""
        self._left = 0
        """Rows of the next pass that it was handed before a state was read."""
        self._open = False
        """Whether a pass has begun and not ended; the next one begins if it was left early."""
        self._shuffle: Shuffle | None = None
        """How this pass is shuffled, or was when the state was read."""
        self._coming: Shuffle | None = None
        """How the next one is."""
        # What nobody holds any more is not waited for.
        weakref.finalize(self, passes.abandon, share).atexit = False

    def _around(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def iter_rows(self) -> Generator[dict[str, Any]]:
        """Yields the rows as dictionaries of Python values, as `Dataset.iter_rows` does.

        >>> (share,) = curate.range(3).streaming_split(1)
        >>> next(share.iter_rows())
        {'id': 0}
        """
        self._shuffled(0, None, None)
        rows = super().iter_rows()
        try:
            yield from self._handed((1, row) for row in rows)
        finally:
            rows.close()

    def state_dict(self) -> dict[str, Any]:
        """Returns how many rows this share has handed out in its pass, rows read ahead not counted, as JSON values.

        Raises ConfigError for a dataset whose rows are in another order each time, or that cannot be known again.

        >>> (share,) = curate.range(6).streaming_split(1)
        >>> batches = share.iter_batches(batch_size=2)
        >>> batch, state = next(batches), share.state_dict()
        >>> state["epoch"], state["rows"]
        (0, 2)
        >>> (again,) = curate.range(6).streaming_split(1)
        >>> again.load_state_dict(state)
        >>> [row["id"] for row in again.iter_rows()]
        [2, 3, 4, 5]
        """
        return self._division.state(self._share, self._epoch, self._rows, self._shuffle)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Has the next pass go on where a state was read: rows handed out before are made again, and left out.

        Each share loads its own state before any of them is iterated. Batches begin at that row; with a local shuffle
        they have to be asked for as before, and a seed that was drawn is taken from the state. Raises ConfigError for a
        state of another dataset, share, number of shares, `equal` or `block_bytes`; RuntimeError while a pass runs.

        >>> shares = [curate.range(6).streaming_split(1)[0] for _ in range(2)]
        >>> row = next(shares[0].iter_rows())
        >>> shares[1].load_state_dict(shares[0].state_dict())
        >>> next(shares[1].iter_rows())
        {'id': 1}
        """
        epoch, rows, shuffle = self._division.resumed(self._share, state)
        self._passes.resume(self._share, epoch)
        self._epoch, self._rows, self._left, self._shuffle, self._open = epoch, rows, rows, shuffle, False

    def _shuffled(self, rows: int, buffer_rows: int | None, seed: int | None) -> Shuffle | None:
        before = self._shuffle if self._left else None
        if before is not None and seed is None:
            seed = before[2]
        asked = super()._shuffled(rows, buffer_rows, seed)
        if self._left and asked != before:
            raise ConfigError(
                f"the state was read in a pass {_told(before)}, and this one is {_told(asked)}: its rows would be in "
                "another order; iterate as before, or begin anew without the state"
            )
        self._coming = asked
        return asked

    def _resumed(self, tables: Generator[pa.Table]) -> Generator[pa.Table]:
        return without_first(tables, self._left) if self._left else tables

    def _handed(self, made: Generator[tuple[int, Any]]) -> Generator[Any]:
        begun = False

        def handed(pair: tuple[int, Any]) -> Any:
            nonlocal begun
            begun = begun or self._begin()
            self._rows += pair[0]
            return pair[1]

        try:
            yield from map(handed, made)
        finally:
            made.close()
        if not begun:
            self._begin()
        self._epoch, self._rows, self._open = self._epoch + 1, 0, False

    def _begin(self) -> bool:
        """Counts a pass as begun, and the one before as ended if it was left early."""
        self._epoch += self._open
        self._rows, self._left = self._left, 0
        self._open, self._shuffle = True, self._coming
        return True

    def _blocks(self, stopped: Stopped) -> Generator[pa.Table]:
        # In this frame, so that whoever iterates holds the share.
        yield from self._passes.blocks(self._share, stopped)


def _told(shuffle: Shuffle | None) -> str:
    if shuffle is None:
        return "without a local shuffle"
    rows, buffer_rows, seed = shuffle
    return f"with batch_size={rows}, local_shuffle_buffer_size={buffer_rows} and local_shuffle_seed={seed}"
