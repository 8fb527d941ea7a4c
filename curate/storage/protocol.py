"""The protocol of a store: five calls and a create-only publish. The memory store is the executable specification.

A store speaks of objects by absolute URI (`gs://bucket/key`, `/absolute/path`, `memory://bucket/key`), lists by string
prefix as object stores do (so `list("gs://b/a")` includes `gs://b/ab`), and returns names in code-point order of the
URI. Every call is counted once per request that the store would bill; a retry is a request and counts again.
All stores count alike, so that a test of a job's cost holds for GCS whichever store it runs on: a listing costs a
`list` for every 1,000 objects, `stat` and `read` a `get`, a publish a `put`; a publish that finds its name taken, and
a `delete` that finds another generation, a `get` more, to look. (A stream from `open` costs one `get` at once locally,
and one for each range it fetches on GCS.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import Enum
from typing import BinaryIO, Protocol, Self

from curate.dataclass import dataclass
from curate.errors import GenerationMismatch, StorageError

LIST_PAGE = 1000
"""Objects in one page of a listing: the most that GCS gives."""


@dataclass(frozen=True, slots=True)
class Object:
    """One object as a listing shows it."""

    uri: str
    size: int
    """Bytes as stored (compressed, if the object is)."""
    generation: str
    """Changes whenever the content is replaced: GCS's generation; locally, inode time in ns and size."""


LINK_TO_NOTHING = "a link to nothing"
"""The kind of a link whose target is not there, or that leads to itself."""


@dataclass(frozen=True, slots=True)
class Special(Object):
    """What a listing of a local disk finds that is no object, and cannot be read as one: a FIFO, a socket, a device."""

    kind: str
    """What it is, with its article: "a FIFO"."""


class Outcome(Enum):
    """How a create-only publish ended."""

    CREATED = "created"
    IDENTICAL = "identical"
    """The name was taken by the same bytes: another attempt, or this one before its connection was reset."""
    DIFFERENT = "different"
    """The name was taken by other bytes. What is there stays."""


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a publish: what happened, and the object that is now visible under the name."""

    outcome: Outcome
    object: Object


@dataclass(slots=True)
class Calls:
    """Requests made so far, by kind. `list` counts pages; `put` counts uploads (a resumable upload is one)."""

    list: int = 0
    get: int = 0
    put: int = 0
    delete: int = 0

    def as_dict(self) -> dict[str, int]:
        """Returns the four counts by name."""
        return {"list": self.list, "get": self.get, "put": self.put, "delete": self.delete}

    def since(self, earlier: Calls) -> Calls:
        """Returns the calls made after `earlier` was copied."""
        return Calls(
            self.list - earlier.list,
            self.get - earlier.get,
            self.put - earlier.put,
            self.delete - earlier.delete,
        )

    def plus(self, other: Calls) -> Calls:
        """Returns the calls of both."""
        return Calls(self.list + other.list, self.get + other.get, self.put + other.put, self.delete + other.delete)

    def copy(self) -> Calls:
        """Returns the counts as they are now."""
        return Calls(self.list, self.get, self.put, self.delete)


class Writer(ABC):
    """Bytes on their way to one object, visible once `publish` is called; leaving the block before discards them. A
    store's own writer says how bytes are kept, made visible and dropped.

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
        """Whether the bytes were published or discarded."""
        return self._closed

    def write(self, data: bytes | memoryview, /) -> int:
        """Appends `data`."""
        self._check("written to")
        count = self._append(data)
        self._size += count
        return count

    def tell(self) -> int:
        """Returns the number of bytes written so far."""
        return self._size

    def flush(self) -> None:
        """Does nothing: bytes reach the store when they are published. There for libraries that flush their sink."""
        self._check("flushed")

    def close(self) -> None:  # noqa: B027
        """Does nothing: a library that closes its sink does not decide what becomes of the bytes; `publish` does."""

    def settle(self) -> bool:
        """Does ahead what `publish` would wait for, where that is apart from making the object visible; returns whether
        `publish` then waits for nothing. Nothing more is written after it."""
        return False  # an upload makes the object visible

    def publish(self, over: str = "") -> Published:
        """Makes the object visible, whole, if and only if its name is free; compares contents if it is not.

        With `over`, a generation, also if its name is taken by that one, whose place it takes at once: every reader
        sees one or the other. If they have the same content, what is there stays.
        """
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


class Store(Protocol):
    """One kind of storage. Instances are safe to share between threads; each process makes its own."""

    @property
    def calls(self) -> Calls:
        """Requests made through this instance."""

    def list(self, prefix: str) -> Iterator[Object]:
        """Yields every object whose URI starts with `prefix`, in code-point order, paged, never holding them all.

        A prefix that matches nothing yields nothing. A local disk also yields what is no regular file, as `Special`.
        Raises PermissionDenied.
        """

    def stat(self, uri: str) -> Object:
        """Returns the object as it is now. Raises ObjectNotFound, PermissionDenied."""

    def read(self, uri: str, start: int = 0, stop: int | None = None) -> bytes:
        """Returns bytes `start` to `stop` (the end by default, clipped to it; a negative `start` counts from the end).

        Past the end, or with `stop` before `start`, there are no bytes. Raises ObjectNotFound, PermissionDenied.
        """

    def open(self, object: Object) -> BinaryIO:
        """Returns a seekable, buffered stream over the object's bytes at its generation.

        Sequential reads are few large requests; nothing is read before it is asked for. This call or the first read
        raises ObjectNotFound if the object is gone, GenerationMismatch if it was replaced.
        """

    def writer(self, uri: str, *, durable: bool = True) -> Writer:
        """Returns a writer whose `publish` is create-only.

        What is not `durable` may be lost, or cut, when the machine crashes, and on a disk only its owner may read it:
        for intermediates, which are checked when they are read, and can be made again.
        """

    def publish(self, uri: str, data: bytes) -> Published:
        """Publishes a small object, create-only, in one call."""

    def replace(self, uri: str, data: bytes) -> Object:
        """Writes the object whether or not it exists, atomically. For the few mutable ones (heartbeats)."""

    def delete(self, uri: str, generation: str | None = None) -> bool:
        """Removes the object; returns False if it was gone already. One whose own first answer was lost removed it.

        With `generation`, only that one: raises GenerationMismatch if the object is another by now, unless an answer
        was lost: then what was to go is gone, whoever removed it.
        """

    def may_delete(self, uri: str) -> bool:
        """Returns whether `delete` of the object would be allowed; removes nothing. True of one that does not exist."""


def mismatch(uri: str, expected: str, found: str) -> GenerationMismatch:
    """Returns the error for an object that is no longer the one that was seen."""
    return GenerationMismatch(f"{uri} is at generation {found}, expected {expected}: it was replaced; list it again")
