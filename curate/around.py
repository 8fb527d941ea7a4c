"""Context managers that are written as generators, for blocks in which user code may raise.

Those of `contextlib` set `__traceback__` of the exception that leaves their block. An exception whose class takes no
attributes, such as a frozen dataclass, refuses that, and is hidden behind an AttributeError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


def contextmanager(fn: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """Makes a context manager of a generator function that yields once, around a block.

    >>> @contextmanager
    ... def told(name):
    ...     print("begins", name)
    ...     try:
    ...         yield
    ...     finally:
    ...         print("ends")
    >>> with told("block"):
    ...     print("works")
    begins block
    works
    ends
    """

    @wraps(fn)
    def made(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _Around(fn(*args, **kwargs))

    return made


class _Around(AbstractContextManager[T], Generic[T]):
    """A generator around a block; None of its own is set on what leaves the block."""

    def __init__(self, parts: Iterator[T]) -> None:
        self._parts = parts

    def __enter__(self) -> T:
        return next(self._parts)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if error is None:
            next(self._parts, None)
            return False
        try:
            self._parts.throw(error)  # type: ignore[attr-defined]
        except StopIteration as ended:
            return ended is not error  # the generator has caught it
        except BaseException as raised:
            # A StopIteration that leaves a generator does so as the cause of a RuntimeError.
            if raised is error or (isinstance(error, StopIteration) and raised.__cause__ is error):
                # As it left the block, without the frames of the generator; no attribute is set, which it may refuse.
                BaseException.with_traceback(error, at)
                return False
            raise
        raise RuntimeError("a context manager yields once, around its block; this one went on to yield again")
