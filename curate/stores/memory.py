"""The memory store: the protocol written out in its plainest form, against which the other stores are tested.

Contents belong to the process, not to the instance: every `MemoryStore` sees every bucket, and a pickled one shows
the contents of the process it wakes up in. Calls are counted as GCS would bill them.
"""

from __future__ import annotations

import io
import itertools
import threading
from collections.abc import Iterator
from typing import BinaryIO

from curate.errors import ObjectNotFound
from curate.requests.ranges import clip
from curate.storage.listing import Columns, Listing
from curate.storage.protocol import LIST_PAGE, Calls, Object, Outcome, Published, Writer, mismatch
from curate.storage.uris import bucket_and_key

_buckets: dict[str, dict[str, tuple[bytes, str]]] = {}
"""Content and generation of every object of the process, by bucket and key. Guarded by `_lock`."""
_lock = threading.Lock()
_generations = itertools.count(1)


class MemoryStore:
    """Objects in the memory of this process."""

    def __init__(self) -> None:
        self.calls = Calls()

    def __reduce__(self) -> tuple[type[MemoryStore], tuple[()]]:
        return MemoryStore, ()

    def list(self, prefix: str) -> Iterator[Object]:
        return Listing(self._pages(prefix))

    def _pages(self, prefix: str) -> Iterator[Columns]:
        bucket, start = bucket_and_key(prefix, "memory")
        with _lock:
            found = sorted((k, len(v[0]), v[1]) for k, v in _buckets.get(bucket, {}).items() if k.startswith(start))
        for page in range(0, max(len(found), 1), LIST_PAGE):
            self._count("list")
            yield Columns.of(f"memory://{bucket}/", found[page : page + LIST_PAGE])

    def stat(self, uri: str) -> Object:
        self._count("get")
        return self._find(uri)[1]

    def read(self, uri: str, start: int = 0, stop: int | None = None) -> bytes:
        self._count("get")
        content, seen = self._find(uri)
        start, stop = clip(start, stop, seen.size)
        return content[start:stop]

    def open(self, object: Object) -> BinaryIO:
        self._count("get")
        content, seen = self._find(object.uri)
        if seen.generation != object.generation:
            raise mismatch(object.uri, object.generation, seen.generation)
        return io.BytesIO(content)

    def writer(self, uri: str, *, durable: bool = True) -> MemoryWriter:
        del durable  # none of it is
        return MemoryWriter(self, uri)

    def publish(self, uri: str, data: bytes) -> Published:
        return self._publish(uri, data, "")

    def _publish(self, uri: str, data: bytes, over: str) -> Published:
        bucket, key = bucket_and_key(uri, "memory")
        self._count("put")
        with _lock:
            taken = _buckets.setdefault(bucket, {}).get(key)
            if taken is None or (taken[1] == over and taken[0] != data):
                return Published(Outcome.CREATED, _put(uri, data))
        self._count("get")
        content, generation = taken
        outcome = Outcome.IDENTICAL if content == data else Outcome.DIFFERENT
        return Published(outcome, Object(uri, len(content), generation))

    def replace(self, uri: str, data: bytes) -> Object:
        self._count("put")
        with _lock:
            return _put(uri, data)

    def delete(self, uri: str, generation: str | None = None) -> bool:
        bucket, key = bucket_and_key(uri, "memory")
        self._count("delete")
        with _lock:
            seen = _buckets.get(bucket, {}).get(key)
            if seen is None:
                return False
            if generation is None or seen[1] == generation:
                del _buckets[bucket][key]
                return True
        self._count("get")
        raise mismatch(uri, generation, seen[1])

    def may_delete(self, uri: str) -> bool:
        bucket_and_key(uri, "memory")
        self._count("delete")
        return True

    def _find(self, uri: str) -> tuple[bytes, Object]:
        bucket, key = bucket_and_key(uri, "memory")
        with _lock:
            seen = _buckets.get(bucket, {}).get(key)
        if seen is None:
            raise ObjectNotFound(f"{uri} does not exist", uri)
        return seen[0], Object(uri, len(seen[0]), seen[1])

    def _count(self, kind: str) -> None:
        with _lock:
            setattr(self.calls, kind, getattr(self.calls, kind) + 1)


class MemoryWriter(Writer):
    """Collects an object's bytes until they are published."""

    def __init__(self, store: MemoryStore, uri: str) -> None:
        bucket_and_key(uri, "memory")
        super().__init__(uri)
        self._store = store
        self._chunks: list[bytes] = []

    def _append(self, data: bytes | memoryview) -> int:
        self._chunks.append(bytes(data))
        return len(self._chunks[-1])

    def _finish(self) -> Published:
        return self._store._publish(self._uri, b"".join(self._chunks), self._over)

    def _discard(self) -> None:
        self._chunks.clear()


def clear(bucket: str | None = None) -> None:
    """Forgets every object of `bucket`, or of all buckets. For tests."""
    with _lock:
        if bucket is None:
            _buckets.clear()
        else:
            _buckets.pop(bucket, None)


def _put(uri: str, data: bytes) -> Object:
    """Stores `data`; the caller holds `_lock`."""
    bucket, key = bucket_and_key(uri, "memory")
    generation = str(next(_generations))
    _buckets.setdefault(bucket, {})[key] = (bytes(data), generation)
    return Object(uri, len(data), generation)
