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
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[tuple[T, Future[R]]] = deque()
        try:
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
        finally:
            pool.shutdown(cancel_futures=True)


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
