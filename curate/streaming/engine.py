"""Blocks on their way to a consumer: made by tasks, in order, within a budget of bytes.

The pieces of a source run as tasks, each a stream of blocks. A task stands still with every block that it has made,
until the block is taken; what was taken stays where it was made until the consumer gets it. So all that is made and
not consumed is known by its size:

    held      taken, in the queue of its piece
    offered   made; its task stands still
    coming    one for each task that runs, taken to be as large as the largest so far

A task goes on, and a piece is begun, only where another block fits into the budget beside all of them: the oldest
first, because it is consumed first. The oldest piece itself needs no room while it has nothing to give, so nothing
locks. Before the first block is seen, each slot gets its share of the budget. What is made is then at most the budget
and one block for each task that runs, however long the stream.

A piece gives the same blocks whenever it runs. If its worker or node is lost, or a block of it, it runs again and
leaves out what is there already.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import pyarrow as pa

from curate.clock import Clock, SystemClock
from curate.dataclass import dataclass, field
from curate.errors import StreamFailed, add_note
from curate.pipeline.classify import show_frames
from curate.pipeline.meters import MeterReport
from curate.pipeline.remote_error import CapturedError
from curate.runtime.protocol import (
    Backend,
    BackendEvent,
    Block,
    BlockLostError,
    BlockReady,
    Message,
    Pool,
    PoolUser,
    Program,
    TaskEnd,
    TaskFinished,
)
from curate.runtime.shipping import naming_unsendable
from curate.streaming.stream_metrics import StreamMetrics
from curate.tasks.dispatcher import POLL_S
from curate.tasks.failure import Failure, FailureKind
from curate.tasks.memory import more_memory
from curate.tasks.policy import Policy
from curate.tasks.task_end import failure_of_end, kind_of_end

STREAM_POLICY = Policy(user_error_retries=0)
"""A run's table, but that the consumer hears of errors of user code at once: somebody waits for the rows."""
BLOCK_OVERHEAD_BYTES = 4096
"""What a block costs beside its bytes: its reference, and what Ray keeps for it. Counted against the budget."""
MOST_PIECES = 1000
"""Pieces that are begun and not consumed, at most: many may give no rows at all while the oldest is at work."""
PATIENCE_S = 10.0
"""How long the oldest piece waits for a slot among tasks that stand still before one of them makes way."""

_at_work: set[int] = set()
"""Ids of the backends that have a stream, which keeps them alive."""


def stream_blocks(
    program: Program,
    pieces: Iterable[Any],
    backend: Backend,
    *,
    budget_bytes: int,
    label: Callable[[Any], str] = str,
    policy: Policy = STREAM_POLICY,
    clock: Clock | None = None,
    stopped: Callable[[], bool] = lambda: False,
    gauges: StreamMetrics | None = None,
) -> Iterator[pa.Table]:
    """Yields the tables that `program.run(piece)` yields, for each piece, in the order of pieces and tables.

    The pieces run as tasks of `backend`, which is started, and is this stream's alone until it ends. Nothing runs
    before the first table is asked for. Tables that are made and not consumed have `budget_bytes` bytes at most, and
    one table for each task that runs. `pieces` are asked for as they are begun. The same piece must give the same
    tables each time.

    A piece whose worker or node dies runs again, as often as `policy` says. To stop early (`break`, `close`) ends all
    tasks and frees what they made; so does `stopped`, which is asked while the stream waits for its next table: it says
    whether nobody wants that any more. `label` returns what a piece is called in errors. `gauges` tell how it is doing;
    what a program yields of type `MeterReport` goes there.

    Raises what the program raised, once all tables before it were consumed, with the traceback of the worker as a note.
    Raises StreamFailed where that cannot be sent, or a piece was given up; ValueError if the budget is no positive
    number; RuntimeError if the backend has another stream that has not ended.
    """
    if budget_bytes < 1:
        raise ValueError(f"budget_bytes is {budget_bytes}, but a stream needs memory for a block; pass some MiB")
    ticks, metrics = clock or SystemClock(), gauges or StreamMetrics()

    def streamed() -> Iterator[pa.Table]:
        if id(backend) in _at_work:
            raise RuntimeError("another stream uses this backend; close it first, or use a separate backend")
        _at_work.add(id(backend))
        stream = None
        try:
            pools = getattr(program, "pools", ())
            sent = [program, *(spec.program for spec in pools)] if backend.name != "inline" else []
            with naming_unsendable("what this dataset does", sent):
                backend.load(_Replayable(program, f"{program.key} as a stream"), pools, stopped=stopped)
            stream = _Stream(iter(pieces), backend, budget_bytes, label, policy, ticks, metrics)
            # From here on: how long actors take to load their models says nothing about who waits for whom.
            metrics.begin(ticks, budget_bytes)
            while stream.advance(stopped):
                # Not by a name: this frame must not keep what the consumer has let go of.
                yield stream.deliver()
                metrics.wait()
        finally:
            metrics.end()
            _at_work.discard(id(backend))
            backend.cancel()
            if stream is not None:
                # Whoever keeps what was raised keeps this frame.
                stream.forget()

    return streamed()


# In the worker


@dataclass(slots=True)
class _Replayable:
    """Runs a piece from the block that is needed, and tells what it raises."""

    program: Program
    key: str

    def connect(self, pools: Sequence[Pool]) -> None:
        """Passes the pools on."""
        cast(PoolUser, self.program).connect(pools)

    def run(self, payload: tuple[Any, int]) -> Iterator[Any]:
        piece, skip = payload
        try:
            for item in self.program.run(piece):
                if isinstance(item, MeterReport):
                    yield item
                    continue
                if not isinstance(item, pa.Table):
                    raise TypeError(f"the program of a stream yields Arrow tables, but this one returned {type(item)}")
                if skip:
                    skip -= 1
                    continue
                yield item
                del item
        except Exception as error:  # noqa: BLE001 - whatever user code raises is the consumer's to hear
            show_frames(error)
            yield CapturedError.of(error)


# In the consumer's process


@dataclass(slots=True)
class _InFlight:
    """A piece that was begun and is not wholly consumed."""

    rank: int
    payload: Any
    consumed: int = 0
    """Blocks that the consumer got."""
    held: deque[tuple[Block, int]] = field(default_factory=deque)
    """Blocks that come next, with what each counts for, in bytes."""
    held_bytes: int = 0
    task: int | None = None
    """The task that runs it."""
    launched_s: float = 0.0
    started: bool = False
    """Whether that task is known to run."""
    offered: int | None = None
    """What the block that it offers counts for, in bytes."""
    offered_s: float = 0.0
    """When it was offered."""
    raised: CapturedError | None = None
    ended: bool = False
    """Whether no block follows those that are held."""
    error: Exception | None = None
    """What the consumer gets after them."""
    strikes: Counter[FailureKind] = field(default_factory=Counter)
    due_s: float = 0.0
    """When it may run again."""
    memory: int | None = None
    """Bytes to ask for instead of what every task asks for."""

    @property
    def comes(self) -> bool:
        """Whether its task works on a block."""
        return self.task is not None and self.offered is None


class _Stream:
    """All that is known of a stream; `_pieces` has the oldest first."""

    def __init__(
        self,
        source: Iterator[Any],
        backend: Backend,
        budget_bytes: int,
        label: Callable[[Any], str],
        policy: Policy,
        clock: Clock,
        gauges: StreamMetrics,
    ) -> None:
        self._source = source
        self._backend = backend
        self._budget = budget_bytes
        self._label = label
        self._policy = policy
        self._clock = clock
        self._gauges = gauges
        self._pieces: deque[_InFlight] = deque()
        self._by_task: dict[int, _InFlight] = {}
        self._begun = 0
        self._launched = 0
        self._exhausted = False
        self._largest = 0
        self._next: pa.Table | None = None

    def advance(self, stopped: Callable[[], bool]) -> bool:
        """Works until there is a table to deliver; False if there will be none, or nobody wants it."""
        self._steer()
        while (self._pieces or not self._exhausted) and not stopped():
            news = self._backend.poll(self._timeout_s())
            for one in news:
                self._hear(one)
            self._steer()
            if self._fetch():
                # The room that it leaves is used while the consumer is busy with it.
                self._steer()
                return True
            if not news:
                self._make_way()
        return False

    def forget(self) -> None:
        """Lets go of all blocks that are made and not consumed."""
        for piece in self._pieces:
            piece.held.clear()
        self._next = None

    def deliver(self) -> pa.Table:
        """Returns the table, and keeps none of it."""
        table, self._next = self._next, None
        assert table is not None
        self._gauges.give(table)
        return table

    def _fetch(self) -> bool:
        while self._pieces:
            head = self._pieces[0]
            if head.held:
                block, size_bytes = head.held.popleft()
                head.held_bytes -= size_bytes
                try:
                    self._next = block.fetch()
                except BlockLostError as lost:
                    self._rewind(head, lost.ended)
                    return False
                head.consumed += 1
                return True
            if not head.ended:
                return False
            if head.error is not None:
                raise head.error
            self._pieces.popleft()
            self._gauges.over(head.rank)
            self._steer()
        return False

    # What to do

    def _steer(self) -> None:
        """Takes what may be taken and begins what may begin, oldest first."""
        slots = max(self._backend.slots(), 1)
        window = self._policy.max_in_flight or slots + 1
        block = self._largest or self._budget // (slots + 1)
        used = sum(piece.held_bytes + (piece.offered or 0) + (block if piece.comes else 0) for piece in self._pieces)
        now_s = self._clock.monotonic()
        self._gauges.look(now_s, self._backend, slots, self._on_its_way)
        for rank, piece in enumerate(self._pieces):
            fits = used + block <= self._budget
            if piece.offered is not None:
                if fits or (rank == 0 and not piece.held):
                    assert piece.task is not None
                    piece.held.append((self._backend.take(piece.task), piece.offered))
                    piece.held_bytes += piece.offered
                    piece.offered = None
                    self._gauges.blocked(now_s - piece.offered_s)
                    used += block
            elif piece.task is None and not piece.ended and piece.due_s <= now_s:
                fits = fits and len(self._by_task) < window
                if fits or rank == 0:
                    self._launch(piece, now_s)
                    used += block
            if piece.error is not None:
                # Nothing after it is ever consumed.
                return
        while len(self._by_task) < window and len(self._pieces) < MOST_PIECES:
            if self._exhausted or (self._pieces and used + block > self._budget):
                return
            try:
                payload = next(self._source)
            except StopIteration:
                self._exhausted = True
                return
            piece = _InFlight(self._begun, payload)
            self._begun += 1
            self._pieces.append(piece)
            self._launch(piece, now_s)
            used += block

    def _on_its_way(self) -> tuple[int, int, int]:
        """Returns how many blocks are made and not consumed, how many bytes these are, and how many tasks run."""
        queued = queued_bytes = running = 0
        for piece in self._pieces:
            queued += len(piece.held) + (piece.offered is not None)
            queued_bytes += piece.held_bytes + (piece.offered or 0)
            running += piece.task is not None and piece.started
        return queued, queued_bytes, running

    def _launch(self, piece: _InFlight, now_s: float) -> None:
        task, self._launched = self._launched, self._launched + 1
        piece.task, piece.launched_s, piece.started, piece.raised = task, now_s, False, None
        self._by_task[task] = piece
        skip, fresh = piece.consumed + len(piece.held), piece.strikes[FailureKind.CRASHED] > 0
        self._backend.launch(task, (piece.payload, skip), 1, memory=piece.memory, stream=True, fresh=fresh)

    def _make_way(self) -> None:
        """Ends the youngest task if the oldest piece waits for a slot and all who have one stand still.

        It happens after the oldest piece was lost. What is ended is run again from where it stood.
        """
        head = self._pieces[0] if self._pieces else None
        if head is None or head.task is None or head.started:
            return
        running = [piece for piece in self._pieces if piece.started and piece.task is not None]
        if not running or any(piece.comes for piece in running):
            return
        waited_s = self._clock.monotonic() - head.launched_s
        if len(running) >= self._backend.slots() or waited_s >= PATIENCE_S:
            youngest = running[-1]
            assert youngest.task is not None
            self._backend.cancel(youngest.task)
            youngest.offered = None

    def _timeout_s(self) -> float:
        """Waits here where the backend has nothing to wait for."""
        head = self._pieces[0] if self._pieces else None
        if head is not None and head.held:
            return 0.0
        due = [piece.due_s for piece in self._pieces if piece.task is None and not piece.ended]
        now_s = self._clock.monotonic()
        wait_s = max(0.0, min([POLL_S, *(due_s - now_s for due_s in due if due_s > now_s)]))
        if any(piece.comes for piece in self._pieces):
            return wait_s
        if due:
            self._clock.sleep(wait_s)
        return 0.0

    # What the backend tells

    def _hear(self, news: BackendEvent) -> None:
        piece = self._by_task.get(news.task)
        if piece is None:
            # Of a task that was cancelled because a block of it was lost.
            return
        if isinstance(news, TaskFinished):
            self._ended(piece, news)
            return
        piece.started = True
        if isinstance(news, BlockReady):
            piece.offered = news.size_bytes + BLOCK_OVERHEAD_BYTES
            piece.offered_s = self._clock.monotonic()
            self._largest = max(self._largest, piece.offered)
        elif isinstance(news, Message):
            for item in news.items:
                if isinstance(item, MeterReport):
                    self._gauges.hear(piece.rank, item)
                else:
                    piece.raised = item

    def _ended(self, piece: _InFlight, news: TaskFinished) -> None:
        del self._by_task[news.task]
        piece.task = piece.offered = None
        if piece.raised is not None:
            self._strike(piece, piece.raised.failure, piece.raised)
        elif news.end is TaskEnd.RETURNED:
            piece.ended = True
        elif news.end is not TaskEnd.CANCELLED:
            self._strike(piece, failure_of_end(news, kind_of_end(news.end)))

    def _rewind(self, piece: _InFlight, ended: TaskFinished) -> None:
        """A block was lost, and those after it are the same piece's: it runs again from there."""
        if piece.task is not None:
            self._backend.cancel(piece.task)
            del self._by_task[piece.task]
        piece.task = piece.offered = piece.error = None
        piece.ended = False
        piece.held.clear()
        piece.held_bytes = 0
        self._strike(piece, failure_of_end(ended, kind_of_end(ended.end)))

    def _strike(self, piece: _InFlight, failure: Failure, raised: CapturedError | None = None) -> None:
        kind = failure.kind
        # A worker may have waited for what is not there now many times in a row.
        piece.strikes[kind] += failure.tries
        tries = piece.strikes[kind]
        wanted = None
        if kind is FailureKind.OUT_OF_MEMORY:
            had = max(self._policy.declared_memory or 0, piece.memory or 0)
            wanted = more_memory(had, failure.peak_bytes, self._backend.largest_memory())
        if tries > self._policy.limit(kind) or (kind is FailureKind.OUT_OF_MEMORY and wanted is None):
            piece.ended, piece.error = True, self._consumer_error(piece, failure, raised)
            return
        piece.memory = wanted or piece.memory
        piece.due_s = self._clock.monotonic() + self._policy.wait_s(kind, tries, failure.after_s)

    def _consumer_error(self, piece: _InFlight, failure: Failure, raised: CapturedError | None) -> Exception:
        """Returns what the consumer gets for a piece that was given up."""
        if raised is not None and raised.error is not None:
            if raised.sent:
                add_note(raised.error, f"In process {failure.pid} on {failure.node}:\n{failure.traceback}")
            return raised.error
        tries = piece.strikes[failure.kind]
        times = "" if tries == 1 else f" {tries} times"
        # What is told of a worker's end may be no more than the error.
        known = failure.error.endswith(failure.traceback)
        detail = "" if known else f"\n{failure.traceback}"
        return StreamFailed(f"{self._label(piece.payload)} failed{times}: {failure.error}{detail}")
