"""The life of a writer, the same for every store: open, then published or discarded, once.

What stores over HTTP share is here as well: bytes are collected on disk, so that an upload knows its size and checksum
before it begins, can be made again, and costs nothing if it is discarded; and a name that is taken is compared.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import IO, Self, cast

from curate.dataclass import dataclass
from curate.errors import GenerationMismatch, ObjectNotFound, StorageError
from curate.folders.temporary import kept, let_go
from curate.storage.protocol import Object, Outcome, Published

SIMPLE_BYTES = 8 << 20
"""The largest upload made in one request, and the most of one that a writer keeps in memory."""
_COMPARISONS = 5


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

    def settle(self) -> bool:
        return False  # an upload makes the object visible

    def publish(self, over: str = "") -> Published:
        self._check("published")
        self._closed = True
        self._over = over
        return self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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


@dataclass(frozen=True, slots=True)
class Content:
    """What is to be uploaded."""

    file: IO[bytes] | None
    data: bytes | None
    """The bytes themselves, where they are in memory."""
    size: int

    def bytes_at(self, start: int, stop: int) -> bytes:
        """Returns a part of it."""
        if self.data is not None:
            return self.data[start:stop]
        assert self.file is not None
        self.file.seek(start)
        return self.file.read(stop - start)


class SpooledWriter(BaseWriter):
    """Collects an object's bytes, in memory and beyond 8 MiB on disk, until they are published."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self._file = tempfile.SpooledTemporaryFile(max_size=SIMPLE_BYTES)  # noqa: SIM115

    @abstractmethod
    def _digest(self, data: bytes) -> None:
        """Adds bytes to the checksum."""

    @abstractmethod
    def _upload(self, file: IO[bytes]) -> Published:
        """Publishes `self._size` bytes, over `self._over`."""

    def _append(self, data: bytes | memoryview) -> int:
        data = bytes(data)
        with kept(f"what is written to {self._uri}, until it is uploaded,"):
            self._file.write(data)
        self._digest(data)
        return len(data)

    def _finish(self) -> Published:
        try:
            with kept(f"what is written to {self._uri}, until it is uploaded,"):
                self._file.seek(0)  # writes what is pending
            return self._upload(cast("IO[bytes]", self._file))
        finally:
            self._discard()

    def _discard(self) -> None:
        let_go(self._file)


def upload_compared(
    uri: str, over: str, upload: Callable[[str], Object | None], look: Callable[[], tuple[Object, Callable[[], bool]]]
) -> Published:
    """Uploads create-only, or in place of the generation `over`; compares contents if the name is taken.

    `upload` takes the generation to replace, empty for a name that has to be free, and returns None if the name is
    taken, by another one; `look` returns what is there, and what tells whether it has the same content.
    """
    for number in range(_COMPARISONS):
        if not over or number:
            created = upload("")
            if created is not None:
                return Published(Outcome.CREATED, created)
        try:
            theirs, is_same = look()
            same = is_same()
        except (ObjectNotFound, GenerationMismatch):
            continue
        if not same and over and theirs.generation == over:
            created = upload(over)
            if created is not None:
                return Published(Outcome.CREATED, created)
            continue  # it is another one by now, or gone
        return Published(Outcome.IDENTICAL if same else Outcome.DIFFERENT, theirs)
    raise StorageError(
        f"{uri} was refused {_COMPARISONS} times because it exists, but did not exist when curate looked; find the "
        "process that creates and deletes it, or choose another output"
    )
