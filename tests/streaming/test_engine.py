"""A stream of blocks: in order whatever the completion, within its budget, made again when lost, over when left."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.backends.make import make_backend
from curate.errors import RetryLater, StreamFailed
from curate.runtime.protocol import (
    Backend,
    BackendEvent,
    Block,
    BlockLostError,
    BlockReady,
    Message,
    PoolSpec,
    Program,
    Resources,
    Started,
    TaskEnd,
    TaskFinished,
)
from curate.streaming.engine import BLOCK_OVERHEAD_BYTES, stream_blocks
from curate.testing.clock import FakeClock
from tests.support.examples import examples


@dataclass
class Counting:
    """A piece is a list of block sizes in rows; block k of the piece has rows (piece, k)."""

    key: str = "counting"
    made: list[tuple[int, int]] = field(default_factory=list)
    closed: int = 0

    def run(self, piece: tuple[int, list[int]]) -> Iterator[pa.Table]:
        rank, sizes = piece
        try:
            for k, rows in enumerate(sizes):
                self.made.append((rank, k))
                yield table_of(rank, k, rows)
        finally:
            self.closed += 1


def table_of(rank: int, k: int, rows: int) -> pa.Table:
    return pa.table({"piece": pa.array([rank] * rows, pa.int64()), "block": pa.array([k] * rows, pa.int64())})


def pieces_of(sizes: list[list[int]]) -> list[tuple[int, list[int]]]:
    return list(enumerate(sizes))


def expected(sizes: list[list[int]]) -> list[pa.Table]:
    return [table_of(rank, k, rows) for rank, blocks in enumerate(sizes) for k, rows in enumerate(blocks)]


@dataclass
class _Running:
    work: Iterator[Any]
    started: bool = False
    offers: Any = None


class Made:
    """A block that counts as made until it is fetched or dropped."""

    def __init__(self, backend: Scripted, value: pa.Table, lost: bool) -> None:
        self.backend, self.value, self.lost = backend, value, lost
        backend.taken[id(self)] = value.nbytes

    def fetch(self) -> pa.Table:
        if self.lost:
            raise BlockLostError(TaskFinished(0, TaskEnd.LOST, "an object was lost"))
        return self.value

    def __del__(self) -> None:
        del self.backend.taken[id(self)]


@dataclass
class Scripted(Backend):
    """A backend with slots of its own, whose tasks proceed, die and lose blocks at random, from a seed.

    The oldest launch gets a free slot first. A task that has a slot keeps it while its block is not taken.
    """

    seed: int
    width: int
    clock: FakeClock
    deaths: int = 0
    """Times that a task dies, at most."""
    losses: int = 0
    """Blocks that are lost after they were taken, at most."""
    end: TaskEnd = TaskEnd.LOST
    name: str = "scripted"
    tasks: dict[int, _Running] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    most_bytes: int = 0
    cancelled_all: int = 0
    cancelled: list[int] = field(default_factory=list)
    memory: list[int | None] = field(default_factory=list)
    fresh: list[bool] = field(default_factory=list)
    launches: int = 0
    polls: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.dying: list[int] = []

    def load(self, program: Program, pools: Sequence[PoolSpec] = (), **how: Any) -> None:
        del how
        assert not pools
        self.program = program

    def slots(self) -> int:
        return self.width

    def launch(self, task: int, payload: Any, pieces: int, *, memory: int | None = None, **how: Any) -> None:
        self.fresh.append(how.pop("fresh"))
        assert how == {"stream": True}
        assert pieces == 1
        self.launches += 1
        self.memory.append(memory)
        self.tasks[task] = _Running(self.program.run(payload))

    def take(self, task: int) -> Block:
        running = self.tasks[task]
        assert running.offers is not None, "it was not offered"
        lost = self.losses > 0 and self.random.random() < 0.3
        self.losses -= lost
        block, running.offers = Made(self, running.offers, lost), None
        return block

    def poll(self, timeout_s: float) -> list[BackendEvent]:
        self.polls += 1
        assert self.polls < 10_000, "it goes round in circles"
        news: list[BackendEvent] = []
        for task in self.dying:
            del self.tasks[task]
            news.append(TaskFinished(task, TaskEnd.CANCELLED))
        self.dying.clear()
        if news:
            return news
        free = self.width - sum(one.started for one in self.tasks.values())
        for task, one in self.tasks.items():
            if not one.started and free > 0:
                one.started, free = True, free - 1
                news.append(Started(task, "here", 1))
        able = [task for task, one in self.tasks.items() if one.started and one.offers is None]
        for task in self.random.sample(able, self.random.randint(min(1, len(able)), len(able))):
            news.append(self._step(task))
        if not news:
            self.clock.advance(timeout_s)
        self.most_bytes = max(self.most_bytes, self.bytes)
        return news

    def _step(self, task: int) -> BackendEvent:
        if self.deaths and self.random.random() < 0.3:
            self.deaths -= 1
            del self.tasks[task]
            return TaskFinished(task, self.end, "it died", peak_bytes=0)
        item = next(self.tasks[task].work, None)
        if item is None:
            del self.tasks[task]
            return TaskFinished(task, TaskEnd.RETURNED)
        if not hasattr(item, "nbytes"):
            return Message(task, [item])
        self.tasks[task].offers = item
        return BlockReady(task, item.nbytes)

    @property
    def bytes(self) -> int:
        return sum(self.taken.values()) + sum(one.offers.nbytes for one in self.tasks.values() if one.offers)

    def cancel(self, task: int | None = None) -> None:
        if task is not None:
            self.cancelled.append(task)
            self.dying.append(task)
            self.tasks[task].offers = None
            return
        self.cancelled_all += 1
        self.tasks.clear()

    def close(self) -> None:
        pass


SIZES = st.lists(st.lists(st.integers(0, 50), max_size=5), max_size=12)


@settings(max_examples=examples(300), deadline=None)
@given(SIZES, st.integers(1, 5), st.integers(1, 60_000), st.integers(0, 2**32), st.integers(0, 15), st.integers(0, 4))
def test_the_order_is_that_of_the_input(
    sizes: list[list[int]], slots: int, budget: int, seed: int, deaths: int, losses: int
) -> None:
    """Whatever the order in which tasks proceed, which of them are lost and which blocks, and however small the budget:
    the same tables, each once. What is made and not consumed stays within the budget and a block for each task.
    """
    backend = Scripted(seed, slots, FakeClock(), deaths, losses)
    stream = stream_blocks(Counting(), pieces_of(sizes), backend, budget_bytes=budget, clock=backend.clock)
    assert list(stream) == expected(sizes)
    assert backend.taken == {}
    assert not backend.tasks
    largest = max((rows for blocks in sizes for rows in blocks), default=0) * 16
    assert backend.most_bytes <= budget + (slots + 1) * (largest + BLOCK_OVERHEAD_BYTES)


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_consumer_is_waited_for(seed: int) -> None:
    """Blocks of one size, a budget for ten: no more are made ahead, and about as many are, at every moment."""
    rows = 10_000
    size = rows * 16
    budget = 10 * (size + BLOCK_OVERHEAD_BYTES)
    sizes = [[rows] * 20] * 10
    backend = Scripted(seed, 4, FakeClock())
    ahead = []
    for _ in stream_blocks(Counting(), pieces_of(sizes), backend, budget_bytes=budget, clock=backend.clock):
        ahead.append(backend.bytes)
    assert max(ahead) <= budget
    assert backend.most_bytes <= budget
    assert min(ahead[60:100]) >= budget // 2


def test_no_piece_is_begun_without_room_for_a_block() -> None:
    """Each slot has one before a size is known. Then, with room for two blocks, the oldest is alone."""
    rows = 10_000
    backend = Scripted(1, 4, FakeClock())
    stream = stream_blocks(
        Counting(), pieces_of([[rows] * 5] * 12), backend, budget_bytes=2 * rows * 16, clock=backend.clock
    )
    running = [len(backend.tasks) for _ in stream]
    assert max(running) == 5
    assert set(running[25:]) <= {0, 1}


def test_inline_makes_what_is_asked_for_and_nothing_else() -> None:
    """Nothing runs before the first table is asked for, then one block each; who leaves closes the program."""
    backend = make_backend("inline")
    backend.start(Resources())
    program = Counting()
    stream = stream_blocks(program, pieces_of([[1, 1], [], [1] * 1000]), backend, budget_bytes=1 << 30)
    assert program.made == []
    made = []
    for table in stream:
        made.append((table["piece"][0].as_py(), table["block"][0].as_py()))
        assert program.made == made
        if len(made) == 4:
            break
    del stream
    assert made == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert program.closed == 3
    assert backend.poll(0.0) == []


@pytest.mark.parametrize("leave", ["close", "forget"])
def test_who_stops_early_ends_all_tasks_and_frees_all_blocks(leave: str) -> None:
    """With one call, and no piece is begun that would not have been."""
    backend = Scripted(3, 2, FakeClock())
    stream = stream_blocks(Counting(), pieces_of([[10] * 9] * 50), backend, budget_bytes=50_000, clock=backend.clock)
    for _ in range(7):
        next(stream)
    assert backend.tasks
    assert backend.taken
    assert backend.cancelled_all == 0
    if leave == "close":
        stream.close()  # type: ignore[attr-defined]
    del stream
    assert (backend.tasks, backend.taken, backend.cancelled_all) == ({}, {}, 1)
    assert backend.launches <= 1 + 7 // 9 + 3


@dataclass
class Raising:
    """Yields two tables, then raises what the piece says, if anything; `after` times only."""

    key: str = "raising"
    times: int = 10**9
    ran: Counter[int] = field(default_factory=Counter)

    def run(self, piece: tuple[int, Exception | None]) -> Iterator[pa.Table]:
        rank, error = piece
        self.ran[rank] += 1
        yield table_of(rank, 0, 1)
        yield table_of(rank, 1, 1)
        if error is not None and self.ran[rank] <= self.times:
            raise error


@pytest.mark.parametrize("name", ["inline", "scripted"])
def test_an_error_of_user_code_comes_after_the_tables_before_it(name: str) -> None:
    """At once, once, as it was raised; what lies behind it is not told."""
    clock = FakeClock()
    backend: Any = make_backend("inline") if name == "inline" else Scripted(1, 3, clock)
    program, error = Raising(), KeyError("no such word")
    pieces = [(0, None), (1, error), (2, None)]
    got: list[pa.Table] = []
    with pytest.raises(KeyError, match="no such word") as caught:
        got.extend(stream_blocks(program, pieces, backend, budget_bytes=1 << 20, clock=clock))
    assert caught.value is error
    assert got == [table_of(0, 0, 1), table_of(0, 1, 1), table_of(1, 0, 1), table_of(1, 1, 1)]
    assert program.ran[1] == 1
    assert clock.monotonic() == FakeClock().monotonic()


def test_retry_later_waits_and_goes_on_where_it_was() -> None:
    """As the table of a run says: not before the time that was asked for, and no table twice."""
    clock, program = FakeClock(), Raising(times=2)
    before_s = clock.monotonic()
    backend = make_backend("inline")
    pieces = [(0, RetryLater(60.0)), (1, None)]
    got = list(stream_blocks(program, pieces, backend, budget_bytes=1 << 20, clock=clock))
    assert got == [table_of(rank, k, 1) for rank in range(2) for k in range(2)]
    assert program.ran == {0: 3, 1: 1}
    assert 120 <= clock.monotonic() - before_s < 125


@pytest.mark.parametrize(
    ("end", "tries", "words"),
    [
        (TaskEnd.LOST, 21, "failed 21 times: lost: it died"),
        (TaskEnd.CRASHED, 3, "failed 3 times: crashed: it died"),
        (TaskEnd.OUT_OF_MEMORY, 3, "failed 3 times: out of memory: it died"),
    ],
)
def test_a_piece_that_always_kills_its_worker_is_given_up(end: TaskEnd, tries: int, words: str) -> None:
    """After as many tries as a shard of a job has; the consumer is told of which piece, and does not hang."""
    clock = FakeClock()
    backend = Scripted(1, 1, clock, deaths=10**9, end=end)
    backend.random.random = lambda: 0.0  # type: ignore[method-assign]
    with pytest.raises(StreamFailed, match=rf"^\(0, \[1\]\) {words}"):
        list(stream_blocks(Counting(), [(0, [1])], backend, budget_bytes=1 << 20, clock=clock))
    assert backend.launches == tries
    # What a worker died of may be what another piece had left behind there.
    assert backend.fresh == [False] + [end is TaskEnd.CRASHED] * (tries - 1)
    if end is TaskEnd.OUT_OF_MEMORY:
        assert backend.memory == [None, 2 << 30, 4 << 30]


@pytest.mark.slow
def test_one_that_stands_still_makes_way_for_the_oldest() -> None:
    """The oldest piece was lost; the others have all slots and a full budget. The youngest is ended, and nothing of it
    is lost or told twice.
    """
    made_way = 0
    for seed in range(100):
        backend = Scripted(seed, 2, FakeClock(), deaths=3)
        sizes, budget = [[1] * 6] * 6, 4 * (16 + BLOCK_OVERHEAD_BYTES)
        stream = stream_blocks(Counting(), pieces_of(sizes), backend, budget_bytes=budget, clock=backend.clock)
        assert list(stream) == expected(sizes)
        assert len(backend.cancelled) <= 3
        made_way += len(backend.cancelled)
    assert made_way


def test_what_is_no_table_is_told() -> None:
    """With what it was."""

    class Wrong:
        key = "wrong"

        def run(self, piece: int) -> Iterator[Any]:
            yield {"x": piece}

    with pytest.raises(TypeError, match=r"a stream yields Arrow tables, but this one returned <class 'dict'>"):
        list(stream_blocks(Wrong(), [1], make_backend("inline"), budget_bytes=1))


def test_a_backend_has_one_stream_at_a_time() -> None:
    """A second one is refused, which does not disturb the first; once that has ended, there may be another."""
    backend = make_backend("inline")
    first = stream_blocks(Counting(), [(0, [1, 1])], backend, budget_bytes=1)
    next(first)
    with pytest.raises(RuntimeError, match="another stream uses this backend"):
        next(stream_blocks(Counting(), [(5, [1])], backend, budget_bytes=1))
    assert list(first) == [table_of(0, 1, 1)]
    assert list(stream_blocks(Counting(), [(5, [1])], backend, budget_bytes=1)) == [table_of(5, 0, 1)]


def test_a_budget_of_nothing_is_refused() -> None:
    """At the call, not at the first table."""
    with pytest.raises(ValueError, match="budget_bytes is 0"):
        stream_blocks(Counting(), [], make_backend("inline"), budget_bytes=0)
