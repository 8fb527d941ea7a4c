"""The life of a writer, the same for every store: open, then published or discarded, once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from curate.errors import StorageError
from curate.storage.protocol import Published


class BaseWriter(ABC):
    """A `Writer` without its storage: a store's own writer says how bytes are kept, made visible and dropped.

    It is file enough to be the sink of pyarrow, gzip, zstandard or csv.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._size = 0
        self._closed = False
        self._over = ""
        """Generation of the object whose place the new one takes; empty: its name has to be free."""

    @property
    def closed(self) -> bool:
        return self._closed

    def write(self, data: bytes | memoryview, /) -> int:
        self._check("written to")
        count = self._append(data)
        self._size += count
        return count

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        self._check("flushed")

    def close(self) -> None:  # noqa: B027
        """Does nothing; see `Writer.close`."""

    def publish(self, over: str = "") -> Published:
        self._check("published")
        self._closed = True
        self._over = over
        return self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._drop()

    def __del__(self) -> None:
        # Missing if the constructor failed.
        if not getattr(self, "_closed", True):
            self._drop()

    @abstractmethod
    def _append(self, data: bytes | memoryview) -> int:
        """Keeps the bytes; returns how many."""

    @abstractmethod
    def _finish(self) -> Published:
        """Publishes, and lets go of everything whether or not that succeeds."""

    @abstractmethod
    def _discard(self) -> None:
        """Lets go of everything. Called at most once, and not after `_finish`."""

    def _drop(self) -> None:
        if not self._closed:
            self._closed = True
            self._discard()

    def _check(self, what: str) -> None:
        if self._closed:
            raise StorageError(f"{self._uri}: {what} after it was published or discarded; open a new writer")
