"""Calls made ahead of who takes their results: in order, a bounded number of them."""

from __future__ import annotations

import ast
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import curate
from curate.prefetch import ReadAhead, ahead
from tests.support.fakes import NEVER_S


def test_results_come_in_order_however_long_calls_take() -> None:
    """The first call ends last."""
    last = threading.Event()

    def call(item: int) -> int:
        if item == 0:
            assert last.wait(30)
        elif item == 3:
            last.set()
        return -item

    assert list(ahead(call, range(100), threads=4)) == [(item, -item) for item in range(100)]


def test_few_calls_are_made_that_nobody_has_asked_for() -> None:
    """However many items there are, and however slow who takes them."""
    taken = iter(range(1000))
    results = ahead(abs, taken, threads=4)
    assert next(results) == (0, 0)
    assert next(taken) == 9
    results.close()  # type: ignore[attr-defined]
    assert next(taken) == 10


def test_an_error_comes_when_its_turn_does() -> None:
    """What was called before it is not lost."""

    def call(item: int) -> int:
        if item == 2:
            raise ValueError("boom")
        return item

    results = ahead(call, range(5), threads=2)
    assert [next(results), next(results)] == [(0, 0), (1, 1)]
    with pytest.raises(ValueError, match="boom"):
        next(results)


@given(st.lists(st.booleans(), max_size=60))
def test_quick_calls_between_slow_ones_keep_the_order(slow: list[bool]) -> None:
    """Whatever is called in threads and what is not; only what is slow is."""
    here = threading.get_ident()
    items = list(enumerate(slow))
    found = list(ahead(lambda _: threading.get_ident(), items, threads=2, when=lambda item: item[1]))
    assert [item for item, _ in found] == items
    assert [thread != here for _, thread in found] == slow


def test_an_error_of_a_quick_call_comes_when_its_turn_does() -> None:
    """A slow call before it is not lost."""
    results = ahead(lambda item: 1 // item, [1, 2, 0], threads=2, when=lambda item: item == 1)
    assert [next(results), next(results)] == [(1, 1), (2, 0)]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_who_closes_it_waits_for_no_call() -> None:
    """The collector of garbage may close it while a thread starts, which holds a lock that waiting takes."""
    release = threading.Event()
    made: list[int] = []

    def call(item: int) -> int:
        if item:
            assert release.wait(NEVER_S)
        made.append(item)
        return item

    results = ahead(call, range(100), threads=2)
    assert next(results) == (0, 0)
    results.close()  # type: ignore[attr-defined]
    assert made == [0]
    release.set()


@pytest.mark.slow
def test_no_generator_waits_for_threads_where_it_is_closed() -> None:
    """A pool of the standard library joins its threads: in a generator it is `Threads`."""
    found = []
    for path in sorted(Path(curate.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_pool = isinstance(node, ast.With) and "ThreadPoolExecutor" in "".join(map(ast.unparse, node.items))
            if is_pool and any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node)):
                found.append(f"{path.name}:{node.lineno}")
    assert found == []


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_blocks_come_in_order_until_there_is_none(blocks: int) -> None:
    """And no further: a stream that has ended is not read again and again."""
    stream = [b"a", b"b", b"c", b""]
    reading = ReadAhead(lambda: stream.pop(0), blocks)
    assert [reading.take() for _ in range(4)] == [b"a", b"b", b"c", b""]
    assert not stream
    reading.close()


def test_what_breaks_a_stream_is_raised_behind_what_was_read_before() -> None:
    """Though the thread met it before."""
    broken = threading.Event()

    def read() -> bytes:
        if stream:
            return stream.pop(0)
        broken.set()
        raise OSError("cut")

    stream = [b"a", b"b"]
    reading = ReadAhead(read, 3)
    assert reading.take() == b"a"
    assert broken.wait(NEVER_S)
    assert reading.take() == b"b"
    with pytest.raises(OSError, match="cut"):
        reading.take()
    reading.close()


def test_no_more_blocks_than_asked_for_wait() -> None:
    """And closing waits for none."""
    begun, release, reads = threading.Semaphore(0), threading.Event(), []

    def read() -> bytes:
        reads.append(1)
        if len(reads) > 1:
            begun.release()
            assert release.wait(NEVER_S)
        return b"a"

    reading = ReadAhead(read, 2)
    assert reading.take() == b"a"
    assert begun.acquire(timeout=NEVER_S)
    reading.close()
    release.set()
    assert len(reads) == 2
