"""One stream of blocks for several consumers, each in its own thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyarrow as pa

from curate.arrow.batches import joined
from curate.dataset.batches import Batches, Blocks
from curate.streaming.prefetch import POLL_S, Prefetcher, Stopped

BLOCKS_AHEAD = 1
"""Blocks that wait for a consumer, at most."""


class DataIterator(Batches):
    """One share of a dataset's rows, made by `Dataset.streaming_split`.

    >>> (share,) = curate.range(3).streaming_split(1)
    >>> [batch.num_rows for batch in share.iter_batches(batch_size=2)]
    [2, 1]
    """

    def __init__(self, passes: Epochs, share: int) -> None:
        self._passes = passes
        self._share = share
        # What nobody holds any more is not waited for.
        weakref.finalize(self, passes.abandon, share).atexit = False

    def _around(self) -> AbstractContextManager[Any]:
        return nullcontext()

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
            while self._begun[share] == self._number:
                if stopped():
                    return None
                if self._relay is None or self._relay.closed:
                    self._number += 1
                    self._relay = Prefetcher(self._source, len(self._begun), BLOCKS_AHEAD)
                    for one in self._abandoned:
                        self._relay.leave(one)
                else:
                    self._changed.wait(POLL_S)
            self._begun[share] += 1
            return self._relay

    def _source(self, stopped: Stopped) -> Generator[pa.Table]:
        blocks = self._make(stopped)
        return equal_parts(blocks, len(self._begun)) if self._equal else blocks

    def abandon(self, share: int) -> None:
        """Counts a share as done with this pass and all that follow."""
        with self._changed:
            self._abandoned.add(share)
            relay = self._relay
        if relay is not None:
            relay.leave(share)
        with self._changed:
            self._changed.notify_all()


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
