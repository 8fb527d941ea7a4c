"""Inputs from any file system that fsspec knows: `hf://`, `https://`, `sftp://`, `az://` and others. Read only.

None of them is known to create an object only if its name is free, so none can keep an output (why Azure is among them:
see `open`). What they list is sorted here, and held in memory. The generation is what the service says of the content,
its ETag or another checksum, else time and size, also beside an ETag that is weak: it is looked at again after each
range that is read.
"""

from __future__ import annotations

import io
import math
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeVar

import fsspec
from fsspec.asyn import AbstractFileSystem, AsyncFileSystem

from curate.errors import (
    ConfigError,
    CurateError,
    ObjectNotFound,
    PermissionDenied,
    StorageError,
    TransientStorageError,
)
from curate.requests.ranges import WHOLE_BYTES, clip, range_stream
from curate.requests.reached import REACHED, Place
from curate.requests.retry import Retry
from curate.storage.protocol import Calls, Object, mismatch
from curate.storage.uris import not_an_output
from curate.units import format_bytes

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

T = TypeVar("T")

_CHECKSUMS = ("ETag", "etag", "blob_id", "sha256", "checksum", "md5", "Content-MD5", "content_md5", "Digest")
_TIMES = ("mtime", "last_modified", "Last-Modified", "LastModified", "modified", "updated", "created")
_LOST = {"ClientConnectionError", "ClientPayloadError", "TransportError", "ServiceRequestError", "ServiceResponseError"}
"""Errors of a connection that are no OSError: those of aiohttp, of httpx (`hf://`) and of Azure's client."""
_ITSELF = re.compile(r"/(\.{1,2}/*|\?[^/]*)$")
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})


class ForeignStore:
    """Files that others keep, to be read. Connects nowhere before the first call."""

    def __init__(self, retry: Retry | None = None) -> None:
        self._retry = retry or Retry()
        self.calls = Calls()
        self._counting = threading.Lock()
        self._systems: dict[tuple[int, str, str], Any] = {}
        """By process and place."""

    def __reduce__(self) -> tuple[type[ForeignStore], tuple[Retry]]:
        return ForeignStore, (self._retry,)

    def list(self, prefix: str) -> Iterator[Object]:
        found = self._file(prefix) if not prefix.endswith("/") else None
        objects = [found] if found is not None else self._below(prefix[: prefix.rindex("/")])
        yield from sorted((one for one in objects if one.uri.startswith(prefix)), key=lambda one: one.uri)

    def stat(self, uri: str) -> Object:
        return self._call(f"stat {uri}", "get", uri, lambda system, path: _object(uri, system.info(path)))

    def read(self, uri: str, start: int = 0, stop: int | None = None) -> bytes:
        clip(start, stop, 0)
        seen = self.stat(uri)
        begin, end = clip(start, stop, seen.size)
        return self._read(seen, begin, end) if end > begin else b""

    def open(self, object: Object) -> BinaryIO:
        whole = b""

        def fetch(start: int, stop: int) -> bytes:
            nonlocal whole
            data = whole or self._fetch(object, start, stop)
            if len(data) == stop - start:
                return data
            # All that is read after it is in it.
            whole = data
            return data[start:stop]

        return range_stream(fetch, object.size)

    def may_delete(self, uri: str) -> bool:
        del uri
        return False

    def _refuse(self, uri: str, *_: Any, **__: Any) -> NoReturn:
        raise ConfigError(not_an_output(uri))

    writer = publish = replace = delete = _refuse

    def _file(self, uri: str) -> Object | None:
        """Returns the object of exactly this name, if there is one: a folder need not have a listing."""

        def look(system: Any, path: str) -> Object | None:
            info = system.info(path)
            return _object(uri, info) if info.get("type") != "directory" else None

        try:
            return self._call(f"stat {uri}", "get", uri, look)
        except ObjectNotFound:
            return None

    def _below(self, folder: str) -> Iterator[Object]:
        """Yields the files below a folder."""

        alike = None
        for name, info in self._tree(folder).items():
            uri = f"{folder}/{name}"
            # A listing of web pages has names alone, and others describe a file otherwise than when it is asked for.
            listed = _object(uri, info) if info.get("size") is not None else None
            if alike is None:
                alike = listed == self.stat(uri)
            yield listed if alike and listed is not None else self.stat(uri)

    def _tree(self, folder: str) -> dict[str, Mapping[str, Any]]:
        """Returns the files below a folder, by their names in it. fsspec's own way through folders leaves out, without
        a word, each that it could not list; here only one that is gone is empty."""
        found: dict[str, Mapping[str, Any]] = {}
        root: str | None = None
        seen, left = set(), [""]
        while left:
            try:
                path, listed = self._call(f"list {folder}/", "list", folder, partial(_listed, left.pop()))
            except ObjectNotFound:
                continue
            root = path.strip("/") if root is None else root
            seen.add(path.rstrip("/"))
            # Web pages link to themselves, also with a query: the same page in another order.
            named = [info for info in listed if not _ITSELF.search(info["name"])]
            found |= {info["name"]: info for info in named if info.get("type") != "directory"}
            left += sorted({info["name"].rstrip("/") for info in named if info.get("type") == "directory"} - seen)
        # Names are those of the service, which may leave out what comes before the folder, a host for example.
        below = {name.strip("/"): info for name, info in found.items() if name.strip("/") != root}
        return {name.split(f"{root}/", 1)[-1] if root else name: info for name, info in below.items()}

    def _read(self, object: Object, start: int, stop: int) -> bytes:
        """Returns exactly these bytes of exactly this generation."""
        data = self._fetch(object, start, stop)
        return data if len(data) == stop - start else data[start:stop]

    def _fetch(self, object: Object, start: int, stop: int) -> bytes:
        """Returns these bytes of exactly this generation; or all of it, where a server knows no ranges and it is small
        enough. Raises StorageError where it is not, once more has arrived than was asked for."""
        most = stop - start if object.size > WHOLE_BYTES else math.inf

        def fetch(system: Any, path: str) -> bytes:
            data: bytes
            if object.uri.startswith(("http://", "https://")):
                sink = _Sink(object, most)
                headers = {**system.kwargs.get("headers", {}), "Range": f"bytes={start}-{stop - 1}"}
                system.get_file(path, sink, headers=headers)
                data = sink.getvalue()
            else:
                data = system.cat_file(path, start=start, end=stop)
            if len(data) not in (stop - start, object.size):
                raise TransientStorageError(f"{len(data)} bytes arrived, expected {stop - start}")
            return data

        data = self._call(f"read {object.uri}", "get", object.uri, fetch)
        now = self.stat(object.uri)
        if now.generation != object.generation:
            raise mismatch(object.uri, object.generation, now.generation)
        return data

    def _call(self, what: str, kind: str, uri: str, do: Callable[[Any, str], T]) -> T:
        """Returns what `do` makes of the file system and the path in it; tries again what may pass."""

        # A host, or what else follows the scheme.
        place = Place("/".join(uri.split("/")[:3]), "the address")

        def attempt() -> T:
            with self._counting:
                setattr(self.calls, kind, getattr(self.calls, kind) + 1)
            try:
                system, path = self._system(uri)
                # What is remembered of a listing is not how things are now.
                system.invalidate_cache()
                return do(system, path)
            except CurateError:
                raise
            except ImportError as error:
                scheme = uri.partition("://")[0]
                raise ConfigError(f"{scheme}:// needs a package that is not installed: {error}") from error
            except Exception as error:
                cause, status = _cause(error)
                if status is not None:
                    # Whatever it says, it is there.
                    REACHED.add(place)
                raise _translated(what, uri, cause, status) from error

        return self._retry.call(what, attempt, place)

    def _system(self, uri: str) -> tuple[Any, str]:
        """Returns the file system that holds a URI, and the path in it; one for each place, and for each process."""
        scheme = uri.partition("://")[0]
        # What of a URI says where that is, which may be more than the host, its file system alone knows.
        said = fsspec.get_filesystem_class(scheme)._get_kwargs_from_urls(uri)
        place = os.getpid(), scheme, repr(sorted(said.items()))
        if place not in self._systems:
            options = {"skip_instance_cache": True, "use_listings_cache": False}
            self._systems[place] = fsspec.core.url_to_fs(uri, **options)[0]
        system = self._systems[place]
        return system, system._strip_protocol(uri)


class _Sink(io.BytesIO):
    """Takes so many bytes of an object, and ends the answer that has more."""

    def __init__(self, object: Object, most: float) -> None:
        super().__init__()
        self._object = object
        self._most = most

    def write(self, data: ReadableBuffer, /) -> int:
        written = super().write(data)
        if self.tell() > self._most:
            raise StorageError(
                f"{self._object.uri}: its server knows no ranges, and sends all {format_bytes(self._object.size)} for "
                f"each part of it, which is done up to {format_bytes(WHOLE_BYTES)}; download it, and read the copy"
            )
        return written


def _listed(path: str, system: Any, root: str) -> tuple[str, Collection[Mapping[str, Any]]]:
    """Returns what is in a folder, the root for none; what is below it, if the file system has its own way to tell."""
    kind, path = type(system), path or root
    if getattr(kind, "_find", AsyncFileSystem._find) is AsyncFileSystem._find and kind.find is AbstractFileSystem.find:
        return path, system.ls(path, detail=True)
    return path, [{**info, "name": name} for name, info in system.find(path, detail=True).items()]


def _said(info: Mapping[str, Any], names: tuple[str, ...]) -> str:
    found = next((info[name] for name in names if info.get(name)), "")
    return str(found.timestamp() if isinstance(found, datetime) else found)


def _object(uri: str, info: Mapping[str, Any]) -> Object:
    """Returns a file as its service describes it. Raises StorageError if that is not enough to read it safely."""
    size = info.get("size")
    if size is None:
        raise StorageError(f"{uri}: its server does not say how long it is; download it, and read the copy")
    checksum, time = _said(info, _CHECKSUMS), _said(info, _TIMES)
    if checksum and not checksum.startswith("W/"):
        return Object(uri, int(size), checksum.strip('"'))
    # A weak ETag is that of other bytes, too, which the server takes for as good.
    weak = f"{checksum}, " if checksum else ""
    return Object(uri, int(size), f"{weak}{time or 'no time'}, {int(size)} bytes")


def _cause(error: Exception) -> tuple[BaseException, int | None]:
    """Returns what is behind an error of a file system, and the status of the answer, if there was one."""
    # Over HTTP all is "not found", and the cause tells why.
    cause = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ is not None else error
    response = getattr(cause, "response", None)
    status = getattr(cause, "status", None) or getattr(response, "status_code", None)
    return cause, status if isinstance(status, int) else None


def _translated(what: str, uri: str, cause: BaseException, status: int | None) -> StorageError:
    """Returns the error of ours that one of a file system's stands for."""
    said = f"{type(cause).__name__}: {str(cause)[:300]}"
    if isinstance(cause, PermissionError) or status in (401, 403):
        return PermissionDenied(f"{what}: {said}; give it the credentials that fsspec finds for this file system")
    if isinstance(cause, FileNotFoundError | NotADirectoryError) or status in (404, 410):
        return ObjectNotFound(f"{what}: it does not exist; {said}", uri)
    lost = isinstance(cause, OSError | EOFError) or not _LOST.isdisjoint(one.__name__ for one in type(cause).__mro__)
    passes = status in _LATER if status is not None else lost
    if passes:
        return TransientStorageError(said)
    return StorageError(f"{what}: {said}, which a retry would not change; check the address")
