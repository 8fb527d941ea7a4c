"""Passes of several consumers over one stream of blocks, and the states of their shares."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from functools import cached_property
from typing import Any

import pyarrow as pa

from curate.arrow.batches import joined
from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.streaming.prefetch import POLL_S, Make, Prefetcher, Stopped
from curate.units import whole

BLOCKS_AHEAD = 1
"""Blocks that wait for a consumer, at most."""
Shuffle = tuple[int, int, int]
"""A local shuffle: rows of a batch, rows of the buffer, and the seed."""


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
        epoch, rows = (whole(f"the state's {name}", state[name], 0) for name in ("epoch", "rows"))
        shuffle = state["shuffle"]
        return epoch, rows, None if shuffle is None else (shuffle[0], shuffle[1], shuffle[2])


class Epochs:
    """The passes of several consumers over the same blocks: one stream each, the next when all are done with the last.

    State: how many passes each share has begun; which shares are at one; those that nobody holds any more; the number
    of the last pass, and its relay.
    """

    def __init__(self, make: Make[pa.Table], shares: int, *, equal: bool) -> None:
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
