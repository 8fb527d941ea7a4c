"""Files that a job needs besides its input, for example a model or a word list: fetched once per node."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import xxhash

from curate.errors import ConfigError, GenerationMismatch, ObjectNotFound, StorageError
from curate.folders import private
from curate.stage.outputs import HashingSink
from curate.storage.protocol import Object, Store
from curate.storage.uris import at_home, is_local, normalise_input
from curate.stores.open import open_store

_BLOCK = 8 * 1024 * 1024


class Asset:
    """A file by URI. Its generation is part of the job's identity: another model is another job.

    >>> import tempfile
    >>> from curate.stores.open import open_store
    >>> with tempfile.NamedTemporaryFile("w") as file:
    ...     _ = file.write("spam")
    ...     file.flush()
    ...     words = curate.Asset(file.name)
    ...     words.resolve(open_store(words.uri))  # or, where its store is not known yet, words.look_up("--words")
    ...     sorted(words.identity()), open(words.local()).read()
    (['generation', 'uri'], 'spam')
    """

    def __init__(self, uri: str) -> None:
        """`uri` is a local path or a URI such as `gs://models/jigsaw.bin` or `hf://org/name/model.bin`."""
        self.uri = normalise_input(str(Path(at_home(uri))) if uri.startswith("~") else uri)
        """Where it is: an absolute path, or a URI."""
        self.object: Object | None = None
        """What the URI named when the job was started."""

    def __repr__(self) -> str:
        return f"Asset({self.uri!r})"

    def resolve(self, store: Store, given_as: str = "the parameter") -> None:
        """Looks the object up: one small call. Raises ConfigError, which names the argument, if there is none."""
        try:
            self.object = store.stat(self.uri)
        except ObjectNotFound as error:
            problem = _instead(self.uri) if is_local(self.uri) else "does not exist"
            several = "; of several, each is an option (an item of a list) of its own" if "," in self.uri else ""
            raise ConfigError(f"asset {self.uri!r} {problem}; check the path in {given_as}{several}") from error

    def look_up(self, given_as: str) -> None:
        """Looks the object up as `resolve` does. Raises ConfigError, too, for a URI of no store."""
        try:
            store = open_store(self.uri)
        except ConfigError as error:
            raise ConfigError(f"{given_as.removesuffix(' ...')}: {error}") from error
        self.resolve(store, given_as)

    def identity(self) -> dict[str, Any]:
        """Returns its part of the job's identity."""
        return {"uri": self.uri, "generation": self.object.generation if self.object else None}

    def open(self) -> BinaryIO:
        """Returns a stream over its bytes, for who needs some of them. Raises as `local`."""
        store, object = self._found()
        return store.open(object)

    def local(self) -> str:
        """Returns the path of a copy on this node, fetched by the first call on the node for this generation.

        Atomic, and safe with many processes at once: one fetches, the others wait. A local asset is its own copy.
        Raises ConfigError if the object does not exist, StorageError if it changed after the job started.
        """
        store, object = self._found()
        if is_local(self.uri):
            self._check_unchanged(store, object)
            return self.uri
        key = hashlib.sha256(f"{self.uri}\n{object.generation}".encode()).hexdigest()[:16]
        folder = Path(private.private(f"{cache_dir()}/{key}", private.CACHE))
        copy = _Copy(folder / self.uri.rsplit("/", 1)[1], folder.with_name(f"{key}.sum"), object.size)
        if not copy.is_whole():
            lock = private.open_lock(f"{folder}.lock")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not copy.is_whole():
                    self._fetch(store, object, copy)
            finally:
                os.close(lock)
        return str(copy.path)

    def _found(self) -> tuple[Store, Object]:
        store = open_store(self.uri)
        if self.object is None:
            self.resolve(store)
        assert self.object is not None
        return store, self.object

    def _check_unchanged(self, store: Store, object: Object) -> None:
        try:
            now = store.stat(self.uri)
        except ObjectNotFound as error:
            raise StorageError(
                f"asset {self.uri!r} does not exist on this node; put it on storage that every node can read"
            ) from error
        if now.generation != object.generation:
            raise self._changed()

    def _fetch(self, store: Store, object: Object, copy: _Copy) -> None:
        # One name for all: who fetches holds the lock, and removes what a kill left.
        partial = copy.path.with_name(f".{copy.path.name}.partial")
        try:
            with store.open(object) as source, _created(partial) as sink:
                summed = HashingSink(sink)
                shutil.copyfileobj(source, summed, _BLOCK)
                size = summed.tell()
                sink.flush()
                # The name must not survive a crash of the node that the bytes do not.
                os.fsync(sink.fileno())
            if size != object.size:
                raise StorageError(f"asset {self.uri!r} has {size} bytes, expected {object.size}; run again")
            copy.keep(partial, summed.checksum)
        except (ObjectNotFound, GenerationMismatch) as error:
            raise self._changed() from error
        finally:
            partial.unlink(missing_ok=True)

    def _changed(self) -> StorageError:
        return StorageError(f"asset {self.uri!r} changed after the job was started; start the job again")


def _instead(path: str) -> str:
    """Returns what is to be said of a path that is no regular file."""
    if Path(path).is_dir():
        return "is a directory, expected a file"
    return "is not a regular file" if Path(path).exists() else "does not exist"


def cache_dir() -> str:
    """Returns where assets are kept on this node: `$CURATE_CACHE`, else a folder of this user's for temporaries."""
    return private.place(private.CACHE)


class _Copy(NamedTuple):
    """A copy of an asset: used only if it is what was fetched, by size and checksum."""

    path: Path
    checksum: Path
    """The file that holds its checksum."""
    size: int

    def is_whole(self) -> bool:
        """Returns whether it is there and whole; it is read for that once in each process, and whenever it changed."""
        try:
            with _opened(self.path) as file:
                status = os.fstat(file.fileno())
                if status.st_size != self.size:
                    return False
                seen = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                if _whole.get(str(self.path)) == seen:
                    return True
                with _opened(self.checksum) as held:
                    expected = held.read(64).decode("ascii", "replace")
                found = hashlib.file_digest(file, xxhash.xxh3_128)
        except OSError:
            return False
        if found.hexdigest() != expected:
            return False
        _whole[str(self.path)] = seen
        return True

    def keep(self, partial: Path, digest: str) -> None:
        """Takes a file that was fetched for the copy. The checksum first: a copy without its own is fetched again."""
        written = self.checksum.with_name(f".{self.checksum.name}.partial")
        with _created(written) as sink:
            sink.write(digest.encode())
        written.replace(self.checksum)
        partial.replace(self.path)


_whole: dict[str, tuple[int, ...]] = {}
"""Copies that this process has found whole, and what tells that they were not changed since."""


def _created(path: Path) -> BinaryIO:
    """Makes a file for its owner alone, in the place of what has its name."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def _opened(path: Path) -> BufferedReader:
    """Opens a regular file. Raises OSError if it is none, or a link."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return file
