"""The progress of a stream, measured while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from curate.clock import Clock, SystemClock
from curate.observe.metrics import LOOK_AT_POOLS_S, Capacity, Flow
from curate.pipeline.meters import Meter, MeterReport, add_packed, blank, packed
from curate.runtime.protocol import Backend

LOOK_S = 0.1
"""How often a stream notes how it is doing, at most."""


class StreamMetrics:
    """How a stream is doing: written by the thread that consumes it, read by any. Kept when it has ended.

    What pieces measured is known in full of those that have ended, and of the others as far as they said. A piece that
    runs again counts once.
    """

    def __init__(self) -> None:
        self.capacity = Capacity()
        self.slots = 0
        self.running = 0
        self._flow = Flow()
        self._clock: Clock = SystemClock()
        self._totals: dict[int, list[Meter]] = {}
        self._words: dict[int, MeterReport] = {}
        """The last word of each piece that has not ended."""
        self._since_s: float | None = None
        """Since when consumer or blocks wait; None: the stream does not run."""
        self._waiting = False
        """Whether it is the consumer that waits."""
        self._looked_s = self._looked_at_pools_s = float("-inf")
        self._lock = threading.Lock()

    def meters(self, chain: int, count: int) -> list[Meter]:
        """Returns what the `count` operators of a chain have measured so far."""
        with self._lock:
            found = [Meter() for _ in range(count)]
            if chain in self._totals:
                add_packed(found, packed(self._totals[chain]))
            for word in self._words.values():
                if word.chain == chain:
                    add_packed(found, word.numbers)
            return found

    def flow(self) -> Flow:
        """Returns how blocks go from tasks to the consumer."""
        with self._lock:
            return self._passed(self._flow)

    # What the stream says

    def begin(self, clock: Clock, budget_bytes: int) -> None:
        """The consumer waits for the first block."""
        with self._lock:
            self._clock = clock
            self._flow = replace(self._flow, budget_bytes=budget_bytes)
            self._since_s, self._waiting = clock.monotonic(), True

    def give(self, table: pa.Table) -> None:
        """The consumer has got a block."""
        size_bytes = table.nbytes
        with self._lock:
            flow = self._passed(self._flow)
            self._flow = replace(
                flow,
                blocks=flow.blocks + 1,
                rows=flow.rows + table.num_rows,
                bytes=flow.bytes + size_bytes,
                largest_bytes=max(flow.largest_bytes, size_bytes),
            )
            self._since_s, self._waiting = self._clock.monotonic(), False

    def wait(self) -> None:
        """The consumer waits for the next block."""
        with self._lock:
            self._flow = self._passed(self._flow)
            self._since_s, self._waiting = self._clock.monotonic(), True

    def end(self) -> None:
        """The stream has ended; nothing is made any more."""
        with self._lock:
            self._flow = replace(self._passed(self._flow), queued=0, queued_bytes=0)
            self._since_s, self.running = None, 0
            self.capacity.look(self._clock.monotonic(), self.slots, None)

    def blocked(self, seconds: float) -> None:
        """A task stood still with a block."""
        with self._lock:
            self._flow = replace(self._flow, blocked_s=self._flow.blocked_s + seconds)

    def hear(self, piece: int, word: MeterReport) -> None:
        """A piece says what it has measured so far."""
        with self._lock:
            self._words[piece] = word

    def over(self, piece: int) -> None:
        """A piece is wholly consumed, and runs no more: what it said last is final."""
        with self._lock:
            word = self._words.pop(piece, None)
            if word is not None:
                add_packed(self._totals.setdefault(word.chain, blank(word.numbers)), word.numbers)

    def look(self, now_s: float, backend: Backend, slots: int, on_its_way: Callable[[], tuple[int, int, int]]) -> None:
        """Notes what is queued and what runs, if it is time to.

        `on_its_way` returns how many blocks are made and not consumed, how many bytes these are, and how many tasks
        run; it is asked only then.
        """
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        pools = None
        if now_s - self._looked_at_pools_s >= LOOK_AT_POOLS_S:
            self._looked_at_pools_s, pools = now_s, backend.pools()
        queued, queued_bytes, running = on_its_way()
        with self._lock:
            self.slots, self.running = slots, running
            self.capacity.look(now_s, slots, pools)
            self._flow = replace(self._flow, queued=queued, queued_bytes=queued_bytes)

    def _passed(self, flow: Flow) -> Flow:
        """Returns the flow with the time that has passed since someone began to wait."""
        if self._since_s is None:
            return flow
        passed_s = self._clock.monotonic() - self._since_s
        if self._waiting:
            return replace(flow, waited_s=flow.waited_s + passed_s)
        return replace(flow, consumer_s=flow.consumer_s + passed_s)
