"""Runs calls to a store ahead of the consumer of their results, in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ahead(
    call: Callable[[T], R], items: Iterable[T], threads: int, when: Callable[[T], bool] | None = None
) -> Iterator[tuple[T, R]]:
    """Yields each item with what `call` returns for it, in order; raises what it raises, where its turn comes.

    At most `threads` calls are made at once, and twice as many results are waiting. Unlike the map of a pool, which
    takes all items at once: there may be a million. With `when`, only calls for items of which it says yes are made in
    threads; the others, which are quick, are made when they are met, and cost no thread.

    >>> list(ahead(abs, [-1, 2], threads=4))
    [(-1, 1), (2, 2)]
    """
    with Threads(threads) as pool:
        waiting: deque[tuple[T, Future[R]]] = deque()
        for item in items:
            if when is None or when(item):
                waiting.append((item, pool.submit(call, item)))
            elif waiting:
                waiting.append((item, _made(call, item)))
            else:
                yield item, call(item)
            while len(waiting) > 2 * threads:
                yield _first(waiting)
        while waiting:
            yield _first(waiting)


class Threads:
    """A pool of threads within a generator. Left early, it makes no further call; a generator that is closed does not
    wait for the calls that are being made.

    The collector of garbage may close a generator in the middle of anything, also while a thread starts. That holds a
    lock of the threading module, which whoever waits for a thread takes, too: they would wait for ever.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads)

    def __enter__(self) -> ThreadPoolExecutor:
        return self._pool

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown(wait=kind is not GeneratorExit, cancel_futures=kind is not None)


class ReadAhead:
    """Blocks of a stream that a thread reads ahead of who takes them. Closing it does not wait for that thread, nor for
    another one that takes a block: Arrow's reader of CSV has one."""

    def __init__(self, read: Callable[[], bytes], blocks: int) -> None:
        """`read` returns the next block, nothing at the end. At most `blocks` wait to be taken; 0: there is no thread,
        and each is read when it is taken."""
        self._read = read
        self._blocks = blocks
        self._thread = ThreadPoolExecutor(1) if blocks else None
        self._waiting: deque[Future[bytes]] = deque()
        self._ended = False

    def take(self) -> bytes:
        """Returns the next block; nothing at the end. Raises what `read` raises, where its turn comes."""
        if self._thread is None:
            return self._read()
        while len(self._waiting) < self._blocks and not self._ended:
            self._waiting.append(self._thread.submit(self._read))
        block = self._waiting.popleft().result() if self._waiting else b""
        self._ended = self._ended or not block
        return block

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


def _made(call: Callable[[T], R], item: T) -> Future[R]:
    made: Future[R] = Future()
    try:
        made.set_result(call(item))
    except Exception as error:  # noqa: BLE001  it is raised in its turn
        made.set_exception(error)
    return made


def _first(waiting: deque[tuple[T, Future[R]]]) -> tuple[T, R]:
    item, future = waiting.popleft()
    return item, future.result()
