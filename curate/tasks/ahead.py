"""Calls that wait for a store, made some ahead of who takes their results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ahead(call: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[tuple[T, R]]:
    """Yields each item with what `call` returns for it, in order; raises what it raises, where its turn comes.

    At most `threads` calls are made at once, and twice as many results are waiting. Unlike the map of a pool, which
    takes all items at once: there may be a million.

    >>> list(ahead(abs, [-1, 2], threads=4))
    [(-1, 1), (2, 2)]
    """
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[tuple[T, Future[R]]] = deque()
        try:
            for item in items:
                waiting.append((item, pool.submit(call, item)))
                if len(waiting) > 2 * threads:
                    first, future = waiting.popleft()
                    yield first, future.result()
            for first, future in waiting:
                yield first, future.result()
        finally:
            pool.shutdown(cancel_futures=True)
