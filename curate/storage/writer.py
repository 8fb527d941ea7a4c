"""What writers of stores over HTTP share: bytes are collected on disk, so that an upload knows its size and checksum
before it begins, can be made again, and costs nothing if it is discarded; and a name that is taken is compared.
"""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Callable
from typing import IO, cast

from curate.dataclass import dataclass
from curate.errors import GenerationMismatch, ObjectNotFound, StorageError
from curate.folders.temporary import kept, let_go
from curate.storage.protocol import Object, Outcome, Published, Writer

SIMPLE_BYTES = 8 << 20
"""The largest upload made in one request, and the most of one that a writer keeps in memory."""
_COMPARISONS = 5


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


class SpooledWriter(Writer):
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
