"""Files that a job needs beside its input, such as a model or a word list: fetched once per node."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from curate.errors import ConfigError, GenerationMismatch, ObjectNotFound, StorageError
from curate.storage import is_local, normalise, open_store
from curate.storage.protocol import Object, Store

_BLOCK = 8 * 1024 * 1024


class Asset:
    """A file by URI. Its generation is part of the job's identity: another model is another job."""

    def __init__(self, uri: str) -> None:
        """`uri` is a local path or a URI such as `gs://models/jigsaw.bin`."""
        home = uri.startswith("~")
        self.uri = normalise(str(Path(uri).expanduser()) if home else uri)
        self.object: Object | None = None
        """What the URI named when the job was started."""

    def __repr__(self) -> str:
        return f"Asset({self.uri!r})"

    def resolve(self, store: Store) -> None:
        """Looks the object up: one small call. Raises ConfigError if there is none."""
        try:
            self.object = store.stat(self.uri)
        except ObjectNotFound as error:
            problem = "is no regular file, expected one" if _is_something(self.uri) else "does not exist"
            raise ConfigError(f"asset {self.uri!r} {problem}; check the path that the parameter gives") from error

    def identity(self) -> dict[str, Any]:
        """Returns what of it enters the job's identity."""
        return {"uri": self.uri, "generation": self.object.generation if self.object else None}

    def local(self) -> str:
        """Returns the path of a copy on this node, fetched by the first call on the node for this generation.

        Atomic, and safe with many processes at once: one fetches, the others wait. A local asset is its own copy.
        Raises ConfigError if the object is not there, StorageError if it changed since the job was started.
        """
        store = open_store(self.uri)
        if self.object is None:
            self.resolve(store)
        assert self.object is not None
        if is_local(self.uri):
            self._check_unchanged(store)
            return self.uri
        key = hashlib.sha256(f"{self.uri}\n{self.object.generation}".encode()).hexdigest()[:16]
        folder = cache_dir() / key
        path = folder / self.uri.rsplit("/", 1)[1]
        if path.exists():
            return str(path)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with Path(f"{folder}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                self._fetch(store, path)
        return str(path)

    def _check_unchanged(self, store: Store) -> None:
        assert self.object is not None
        try:
            now = store.stat(self.uri)
        except ObjectNotFound as error:
            raise StorageError(
                f"asset {self.uri!r} is not there on this node; put it on storage that every node sees"
            ) from error
        if now.generation != self.object.generation:
            raise self._changed()

    def _fetch(self, store: Store, path: Path) -> None:
        assert self.object is not None
        # One name for all: who fetches holds the lock, and writes over what a kill left.
        partial = path.with_name(f".{path.name}.partial")
        try:
            with store.open(self.object) as source, partial.open("wb") as sink:
                shutil.copyfileobj(source, sink, _BLOCK)
                sink.flush()
                # The name must not survive a crash of the node that the bytes do not.
                os.fsync(sink.fileno())
                size = sink.tell()
            if size != self.object.size:
                raise StorageError(f"asset {self.uri!r} gave {size} bytes, expected {self.object.size}; run again")
            partial.replace(path)
        except (ObjectNotFound, GenerationMismatch) as error:
            raise self._changed() from error
        finally:
            partial.unlink(missing_ok=True)

    def _changed(self) -> StorageError:
        return StorageError(f"asset {self.uri!r} changed after the job was started; start the job again")


def _is_something(uri: str) -> bool:
    return is_local(uri) and Path(uri).exists()


def cache_dir() -> Path:
    """Returns where assets are kept on this node: `$CURATE_CACHE`, else a directory among the temporaries."""
    named = os.environ.get("CURATE_CACHE")
    return Path(named) if named else Path(tempfile.gettempdir()) / f"curate-assets-{os.getuid()}"
