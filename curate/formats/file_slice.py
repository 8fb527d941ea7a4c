"""A slice of a file that is to be read: which store has it, how it is written, and where it begins and ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from curate.dataclass import dataclass
from curate.formats.encoding import Encoding, ReadAs
from curate.objects.lines import line_blocks
from curate.objects.stream import DecompressedStream, StoredStream
from curate.storage.protocol import Object, Store
from curate.tasks.shard import Shard, SliceKind


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A file that is to be read, or a part of it."""

    store: Store
    object: Object
    encoding: Encoding
    kind: SliceKind = SliceKind.WHOLE
    start: int = 0
    stop: int | None = None
    """Where the next slice begins; None: it goes to the end of the file."""

    @classmethod
    def of(cls, store: Store, shard: Shard, encoding: Encoding) -> Self:
        """Returns the slice that a shard is."""
        whole = cls(store, Object(shard.uri, shard.object_bytes, shard.generation), encoding)
        return whole if shard.kind is SliceKind.WHOLE else whole.part(shard.kind, shard.start, shard.stop)

    def part(self, kind: SliceKind, start: int, stop: int) -> Self:
        """Returns another slice of the file."""
        return type(self)(self.store, self.object, self.encoding, kind, start, stop)

    @property
    def uri(self) -> str:
        """The name of the file."""
        return self.object.uri

    @property
    def how(self) -> ReadAs | None:
        """How the file is read, where somebody said so."""
        return self.encoding.how

    def open(self) -> DecompressedStream:
        """Returns the bytes of the file, decompressed, from the one before its lines that are read (see `lines_of`).
        Raises CorruptInput if it is gone or was replaced."""
        return DecompressedStream(self.store, self.object, self.encoding.codec, max(0, self.start - 1))

    def open_stored(self) -> StoredStream:
        """Returns the bytes of the file as they are stored. Raises CorruptInput as `open` does."""
        return StoredStream(self.store, self.object)

    def lines(self) -> Iterator[list[bytes]]:
        """Yields the lines that begin in the slice, as `line_blocks` does. Raises CorruptInput."""
        return line_blocks(self.store, self.object, self.encoding.codec, self.start, self.stop)
