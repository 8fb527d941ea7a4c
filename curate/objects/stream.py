"""The bytes of one input, decompressed, with every way they can fail given a name.

What is wrong with the object (gone, replaced, truncated, not what its suffix says) becomes CorruptInput: reading it
again would give the same. What is wrong with the way to it (TransientStorageError, PermissionDenied, an OSError of the
store's stream) passes through untouched. Arrow reports a broken stream as an OSError too, hence the bookkeeping here.

Gzip is unpacked by isal, in 0.4 times what zlib takes (660 MB of text a second of processor time, to 260), zstd by
Arrow (900), bzip2 and xz by Python (some 20 and 40). Each in a thread, a few blocks ahead of who parses them: all let
go of the interpreter.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO, Literal, Self, cast

import pyarrow as pa
from isal import igzip
from isal.igzip_lib import IsalError

from curate.around import contextmanager
from curate.errors import ConfigError, CorruptInput, GenerationMismatch, ObjectNotFound, StorageError
from curate.objects.charset import FETCH, POINTER
from curate.prefetch import ReadAhead
from curate.storage.protocol import Object, Store

Codec = Literal["gzip", "zstd", "bz2", "xz"]
"""The compression of a whole object."""

BLOCK_BYTES = 1 << 20
"""Decompressed bytes read at a time. Parsed JSON takes some ten times this; larger blocks are no faster."""
_BLOCKS_AHEAD = 3
_STORED_BYTES = 256 << 10
"""What Python unpacks is read so many bytes at a time, as Arrow and isal read."""
_BEGINS = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zX")
_SKIPPABLE = b"\x2a\x4d\x18"
"""Behind the first byte of what zstd passes over."""
_IN_BUCKETS = ("gs://", "s3://")
_SMALL_BYTES = 256 << 10
"""Stored bytes of an object for which a thread is not worth its start."""


@contextmanager
def naming(uri: str, store: Store | None = None) -> Iterator[None]:
    """Turns "it is gone" and "it was replaced" into CorruptInput with the URI. Given its store, "its bucket is gone"
    becomes a StorageError: that says nothing of the object."""
    try:
        yield
    except ObjectNotFound as error:
        if store is not None:
            _refuse_lost_bucket(uri, store)
        how = "put it back, or run the job again, which says how to take it out"
        raise CorruptInput(f"{uri}: the object was removed after the plan was made: {error}; {how}") from error
    except GenerationMismatch as error:
        how = "run the job again, which looks at it anew, or says how to replace outputs of its other parts"
        raise CorruptInput(f"{uri}: the object was replaced after the plan was made: {error}; {how}") from error


def _refuse_lost_bucket(uri: str, store: Store) -> None:
    """Raises StorageError if the bucket of an object that is gone is, too: answers about an object do not say."""
    if not uri.startswith(_IN_BUCKETS):
        return
    try:
        next(iter(store.list(uri)), None)
    except ObjectNotFound as error:
        lost = StorageError(f"{uri} cannot be read: its bucket is gone ({error}); make it available, and run again")
        lost.refused = "read"
        raise lost from error


class StoredStream:
    """The object's bytes as stored: what Arrow sees as a Python file. Remembers the error that went through it."""

    def __init__(self, store: Store, object: Object) -> None:
        """Opens the object. Raises CorruptInput if it is gone or replaced."""
        self.uri = object.uri
        self.error: Exception | None = None
        self.begins = b""
        """The first bytes that were read."""
        self._stream: BinaryIO
        self._store = store
        with naming(self.uri, store):
            self._stream = store.open(object)

    def read(self, size: int = -1) -> bytes:
        """Returns up to `size` bytes; none at the end."""
        try:
            data = self._stream.read(size)
            self.begins = self.begins or data[: len(POINTER)]
            return data
        except (ObjectNotFound, GenerationMismatch) as error:
            self.error = error
            with naming(self.uri, self._store):
                raise
        except Exception as error:
            self.error = error
            raise

    def readinto(self, buffer: Any) -> int:
        """Reads into a buffer, as isal does, and returns how many bytes; 0 at the end."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, position: int, whence: int = 0) -> int:
        """Moves to a byte of the stored object."""
        return self._stream.seek(position, whence)

    def tell(self) -> int:
        """Returns the byte that is read next."""
        return self._stream.tell()

    @property
    def closed(self) -> bool:
        """Whether the stream is closed."""
        return self._stream.closed

    def close(self) -> None:
        """Closes the stream."""
        self._stream.close()

    def readable(self) -> bool:
        """Arrow asks."""
        return True

    def seekable(self) -> bool:
        """Arrow asks."""
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DecompressedStream:
    """The object's bytes, decompressed, from its beginning or (uncompressed only) from byte `start`."""

    def __init__(
        self, store: Store, object: Object, codec: Codec | None, start: int = 0, stored: StoredStream | None = None
    ) -> None:
        """Opens the object, unless it is given as `stored`. Raises CorruptInput if it is gone or replaced."""
        if codec is not None and start:
            raise ValueError(f"{object.uri}: cannot start at byte {start} of a {codec} stream")
        self.uri = object.uri
        self._codec = codec
        self._stored = StoredStream(store, object) if stored is None else stored
        self._left = object.size - start
        self._unread = b""
        self._unpacked: ReadAhead | None = None
        if codec is not None:
            stream = _unpacking(self._stored, codec)
            # What is so small is one block.
            ahead = 0 if object.size < _SMALL_BYTES else _BLOCKS_AHEAD
            self._unpacked = ReadAhead(lambda: stream.read(BLOCK_BYTES), ahead)
        elif start:
            self._stored.seek(start)

    def read(self, size: int) -> bytes:
        """Returns up to `size` decompressed bytes; none at the end. Raises CorruptInput if the stream is broken."""
        if self._unpacked is None:
            if self._unread:
                back, self._unread = self._unread[:size], self._unread[size:]
                return back
            # The listed size says where the end is, which saves the read that would return nothing.
            if self._left <= 0:
                return b""
            data = self._stored.read(min(size, self._left))
            self._left -= len(data)
            if not data:
                raise CorruptInput(f"{self.uri}: ends {self._left} bytes before its listed size")
            return data
        blocks = [self._unread] if self._unread else []
        size, self._unread = size - len(self._unread), b""
        try:
            # As many as were asked for: who parses rows that are longer than a block asks for more of them.
            while size > 0 and (block := self._unpacked.take()):
                blocks.append(block)
                size -= len(block)
            if size > 0 and not self._stored.begins:
                # A compressed stream of nothing has some bytes.
                raise EOFError("it is empty")
        except _BROKEN as error:
            if self._stored.error is not None:
                raise
            raise CorruptInput(f"{self.uri}: not a whole {self._codec} stream ({self._broken()}): {error}") from error
        if size < 0:
            blocks[-1], self._unread = blocks[-1][:size], blocks[-1][size:]
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def _broken(self) -> str:
        """Returns what may be wrong with a stream that cannot be unpacked."""
        begins = self._stored.begins
        if not begins or begins.startswith(_BEGINS) or begins[1:4] == _SKIPPABLE:
            return "truncated, or followed by something else"
        if begins == POINTER:
            return f"it is a pointer of Git LFS; {FETCH}"
        return "it does not begin as one; if it is not compressed, name it without its last suffix"

    def peek(self, size: int) -> bytes:
        """Returns what `read` does, and leaves it to be read."""
        data = self.read(size)
        self.unread(data)
        return data

    def unread(self, data: bytes) -> None:
        """Takes bytes that were read back: they are read next."""
        self._unread = data + self._unread

    @property
    def compressed(self) -> bool:
        """Whether the bytes are stored compressed."""
        return self._codec is not None

    # Arrow's CSV reader takes the source for a Python file.
    closed = False

    def readable(self) -> bool:
        """Arrow asks."""
        return True

    def close(self) -> None:
        """Closes the stream."""
        if self._unpacked is not None:
            self._unpacked.close()
        self._stored.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_BROKEN: tuple[type[Exception], ...] = (OSError, EOFError, cast(type[Exception], IsalError), pa.ArrowInvalid)
"""What is raised for a stream that is not whole."""


def _unpacking(stored: StoredStream, codec: Codec) -> Any:
    if codec == "gzip":
        return igzip.IGzipFile(fileobj=stored, mode="rb")  # type: ignore[no-untyped-call]
    if codec == "zstd":
        return pa.CompressedInputStream(pa.PythonFile(stored, mode="r"), codec)
    return _Streams(stored, codec)


class _Streams:
    """Unpacks bzip2 or xz: streams one behind the other. Python's own readers leave out, without a word, what is behind
    a stream and does not begin as one; Arrow refuses streams of nothing behind each other."""

    def __init__(self, stored: StoredStream, codec: Codec) -> None:
        try:
            if codec == "xz":
                import lzma

                self._new: Callable[[], Any] = partial(lzma.LZMADecompressor, lzma.FORMAT_XZ)
                self._broken: type[Exception] = lzma.LZMAError
                # There may be zeros behind each (the .xz format, 2.2).
                self._padding = b"\0"
            else:
                import bz2

                self._new, self._broken, self._padding = bz2.BZ2Decompressor, OSError, b""
        except ImportError as error:  # Python can be built where there is no such library
            raise ConfigError(
                f"cannot read {stored.uri}: this Python cannot unpack {codec} ({error}); unpack the file, pack it "
                "as gzip or zstd, or use a Python that was built with that library"
            ) from error
        self._stored = stored
        self._stream: Any = None

    def read(self, size: int) -> bytes:
        """Returns up to `size` bytes; none at the end."""
        while True:
            packed = b""
            if self._stream is None or self._stream.eof:
                packed = self._begin()
                if not packed:
                    return b""
            elif self._stream.needs_input:
                packed = self._stored.read(_STORED_BYTES)
                if not packed:
                    raise EOFError("it ends within a stream")
            try:
                data: bytes = self._stream.decompress(packed, size)
            except self._broken as error:
                raise OSError(str(error)) from error
            if data:
                return data

    def _begin(self) -> bytes:
        """Begins with the next stream, and returns the first bytes of it that are stored; none if there is no other."""
        padding = b"" if self._stream is None else self._padding
        packed = b"" if self._stream is None else self._stream.unused_data.lstrip(padding)
        while not packed and (data := self._stored.read(_STORED_BYTES)):
            packed = data.lstrip(padding)
        if packed:
            self._stream = self._new()
        return packed


class _Raw(io.RawIOBase):
    def __init__(self, source: DecompressedStream) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._source.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def buffered(source: DecompressedStream) -> io.BufferedReader:
    """Returns a stream whose reads of any size return that many bytes, fewer only at the end. Its errors are those of
    the source."""
    return io.BufferedReader(_Raw(source), BLOCK_BYTES)
