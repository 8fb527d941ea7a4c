"""One stream of blocks for several consumers, each in its own thread, and the state that resumes each."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from curate.arrow.batches import joined
from curate.dataset.batches import Batches, Blocks, Shuffle, check_rows, without_first
from curate.errors import ConfigError
from curate.streaming.prefetch import POLL_S, Prefetcher, Stopped

BLOCKS_AHEAD = 1
"""Blocks that wait for a consumer, at most."""


@dataclass(frozen=True)
class Division:
    """What decides which share a row is in."""

    digest: Callable[[], str]
    """Tells what decides the rows of the dataset. Raises ConfigError if nothing does."""
    block_bytes: int
    shares: int
    equal: bool

    @cached_property
    def dataset(self) -> str:
        """The digest, made when it is first asked for: it may take a look at all rows in memory."""
        return self.digest()

    def state(self, share: int, epoch: int, rows: int, shuffle: Shuffle | None) -> dict[str, Any]:
        """Returns the state of a share, as JSON values."""
        return {
            "epoch": epoch,
            "rows": rows,
            "share": share,
            "shares": self.shares,
            "equal": self.equal,
            "block_bytes": self.block_bytes,
            "dataset": self.dataset,
            "shuffle": None if shuffle is None else list(shuffle),
        }

    def resumed(self, share: int, state: Any) -> tuple[int, int, Shuffle | None]:
        """Returns epoch, rows and shuffle of a state. Raises ConfigError, with both sides, for one of another share."""
        expected = self.state(share, 0, 0, None)
        if not isinstance(state, Mapping) or set(state) != set(expected):
            found = ", ".join(map(str, state)) if isinstance(state, Mapping) else repr(state)[:200]
            raise ConfigError(f"this is not a state of a share: found {found}; expected {', '.join(expected)}")
        fixed = ("share", "shares", "equal", "block_bytes", "dataset")
        other = [
            f"{name}: {state[name]!r} in the state, {expected[name]!r} here"
            for name in fixed
            if state[name] != expected[name]
        ]
        if other:
            raise ConfigError(
                f"the state belongs to another split: {'; '.join(other)}. Split the same dataset in the same way, or "
                "begin anew without it"
            )
        for name in ("epoch", "rows"):
            check_rows(f"the state's {name}", state[name], 0)
        shuffle = state["shuffle"]
        return state["epoch"], state["rows"], None if shuffle is None else (shuffle[0], shuffle[1], shuffle[2])


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


class Epochs:
    """The passes of several consumers over the same blocks: one stream each, the next when all are done with the last.

    State: how many passes each share has begun; which shares are at one; those that nobody holds any more; the number
    of the last pass, and its relay.
    """

    def __init__(self, make: Blocks, shares: int, *, equal: bool) -> None:
        self._make = make
        self._equal = equal
        self._begun = [0] * shares
        self._at_work: set[int] = set()
        self._abandoned: set[int] = set()
        self._number = 0
        self._relay: Prefetcher[pa.Table] | None = None
        self._changed = threading.Condition()

    def blocks(self, share: int, stopped: Stopped) -> Generator[pa.Table]:
        """Yields the blocks of a share, in its next pass, once all shares are done with the pass before."""
        with self._changed:
            if share in self._at_work:
                raise RuntimeError(
                    "another iterator of this share is still open, so a second pass would wait forever; exhaust or "
                    "close that one first"
                )
            self._at_work.add(share)
        try:
            relay = self._joined(share, stopped)
            if relay is not None:
                yield from relay.items(share, stopped)
        finally:
            with self._changed:
                self._at_work.discard(share)
                self._changed.notify_all()

    def _joined(self, share: int, stopped: Stopped) -> Prefetcher[pa.Table] | None:
        """Returns the relay of the share's next pass, None if it is not wanted before that begins."""
        with self._changed:
            while self._begun[share] >= self._number:
                if stopped():
                    return None
                if self._relay is None or self._relay.closed:
                    wanted = [begun for one, begun in enumerate(self._begun) if one not in self._abandoned]
                    self._number = min(wanted, default=self._number) + 1
                    self._relay = Prefetcher(self._source, len(self._begun), BLOCKS_AHEAD)
                    # Who was further than others when its state was read has had this pass.
                    for one, begun in enumerate(self._begun):
                        if one in self._abandoned or begun >= self._number:
                            self._relay.leave(one)
                else:
                    self._changed.wait(POLL_S)
            self._begun[share] += 1
            return self._relay

    def _source(self, stopped: Stopped) -> Generator[pa.Table]:
        blocks = self._make(stopped)
        return equal_parts(blocks, len(self._begun)) if self._equal else blocks

    def resume(self, share: int, passes: int) -> None:
        """Has a share begin behind as many passes. Raises RuntimeError while one runs."""
        with self._changed:
            if self._relay is not None and not self._relay.closed:
                raise RuntimeError(
                    "a pass over these shares has begun; load the states of all shares before any of them is iterated"
                )
            self._relay, self._number = None, 0
            self._begun[share] = passes

    def abandon(self, share: int) -> None:
        """Counts a share as done with this pass and all that follow."""
        with self._changed:
            self._abandoned.add(share)
            relay = self._relay
        if relay is not None:
            relay.leave(share)
        with self._changed:
            self._changed.notify_all()


def _told(shuffle: Shuffle | None) -> str:
    if shuffle is None:
        return "without a local shuffle"
    rows, buffer_rows, seed = shuffle
    return f"with batch_size={rows}, local_shuffle_buffer_size={buffer_rows} and local_shuffle_seed={seed}"


def equal_parts(blocks: Generator[pa.Table], parts: int) -> Generator[pa.Table]:
    """Yields one table for each part in turn, all of the same number of rows.

    What cannot be divided goes with the next block, and at the end, less than a row a part, is left out.
    """
    left: list[pa.Table] = []
    try:
        for block in blocks:
            whole = joined([*left, block])
            rows = whole.num_rows // parts
            left = [whole.slice(rows * parts)]
            cut = [whole.slice(part * rows, rows) for part in range(parts)] if rows else []
            del block, whole
            while cut:
                yield cut.pop(0)
    finally:
        blocks.close()
