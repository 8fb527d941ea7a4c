"""Stores that remember what was read from them, so that a page that is made again costs a listing, and what is new.

Only memory: nothing is written anywhere. A listing says which generation each object has, and what was read of that
generation is not read again. Documents of a run are never replaced, its heartbeat aside, and need no listing for that.
"""

from __future__ import annotations

import io
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import numpy as np

from curate.dataclass import dataclass, field
from curate.ledger import layout
from curate.storage.listing import Columns, Listing, in_columns
from curate.storage.protocol import LIST_PAGE, Calls, Object, Store

MOST_BYTES = 256 << 20
"""What is remembered at most; what was not asked for the longest is forgotten first."""
LARGE_BYTES = 16 << 20
"""Objects from this size are not remembered."""
MOST_LISTINGS = 200
PER_ENTRY = 500
"""Bytes that an entry is counted as, beside its data."""
NEVER_REPLACED = 0
"""The generation of what is never replaced."""

_Key = tuple[str, int, int | None]


@dataclass(frozen=True, slots=True)
class _Listed:
    """What a listing said: 16 bytes an object, as there may be a million."""

    uris: Any
    """Hashes of URIs, in order."""
    generations: Any
    """Hashes of generations, in the same order."""

    def generation(self, uri: str) -> int | None:
        """Returns the hash of an object's generation; None if it was not there."""
        wanted = hash(uri)
        at = int(np.searchsorted(self.uris, wanted))
        return int(self.generations[at]) if at < len(self.uris) and self.uris[at] == wanted else None


@dataclass
class Memory:
    """What was read, of any store. Threads may share it."""

    _kept: OrderedDict[_Key, tuple[int, bytes]] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _stats: dict[str, Object] = field(default_factory=dict)
    _listings: OrderedDict[str, _Listed] = field(default_factory=OrderedDict)
    """By prefix, the one that ended last at the end."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, store: Store) -> Store:
        """Returns a store that reads as this one does, and remembers."""
        return cast(Store, _Remembering(store, self))

    def listed(self, prefix: str, uris: array[int], generations: array[int]) -> None:
        """Notes a listing that has ended."""
        found = np.array(uris), np.array(generations)
        order = np.argsort(found[0], kind="stable")
        with self._lock:
            self._listings.pop(prefix, None)
            self._listings[prefix] = _Listed(found[0][order], found[1][order])
            if len(self._listings) > MOST_LISTINGS:
                self._listings.popitem(last=False)

    def generation(self, uri: str) -> int | None:
        """Returns the hash of the generation that an object has as far as is known; None if that is not known."""
        if _is_of_run(uri):
            return NEVER_REPLACED
        with self._lock:
            for prefix in reversed(self._listings):
                if uri.startswith(prefix):
                    return self._listings[prefix].generation(uri)
        return None

    def find(self, key: _Key, generation: int | None) -> bytes | None:
        """Returns what was read of this generation of an object; None if nothing was."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept[0] != generation:
                return None
            self._kept.move_to_end(key)
            return kept[1]

    def keep(self, key: _Key, generation: int | None, data: bytes) -> None:
        """Remembers what was read of a generation, if that is known."""
        if generation is None or len(data) >= LARGE_BYTES:
            return
        with self._lock:
            self._forget(key)
            self._kept[key] = generation, data
            self._bytes += len(data) + PER_ENTRY
            while self._bytes > MOST_BYTES:
                self._forget(next(iter(self._kept)))

    def _forget(self, key: _Key) -> None:
        _, data = self._kept.pop(key, (0, None))
        self._bytes -= 0 if data is None else len(data) + PER_ENTRY

    def stat(self, store: Store, uri: str) -> Object:
        """Returns an object as it is now, which the listing says where it can."""
        known, generation = self._stats.get(uri), self.generation(uri)
        if known is not None and hash(known.generation) == generation:
            return known
        found = store.stat(uri)
        with self._lock:
            if len(self._stats) >= MOST_LISTINGS:
                self._stats.clear()
            self._stats[uri] = found
        return found


def _is_of_run(uri: str) -> bool:
    """Returns whether a URI is that of a document of a run that is never replaced."""
    return f"/{layout.LEDGER}/runs/" in uri and not uri.endswith("/heartbeat.json")


class _Remembering:
    def __init__(self, inner: Store, memory: Memory) -> None:
        self._inner, self._memory = inner, memory

    @property
    def calls(self) -> Calls:
        return self._inner.calls

    def list(self, prefix: str) -> Iterator[Object]:
        uris, generations = array("q"), array("q")

        def pages() -> Iterator[Columns]:
            for page in in_columns(self._inner.list(prefix), LIST_PAGE):
                uris.extend(map(hash, page.uris))
                generations.extend(map(hash, page.generations))
                yield page
            self._memory.listed(prefix, uris, generations)

        return Listing(pages())

    def stat(self, uri: str) -> Object:
        return self._memory.stat(self._inner, uri)

    def read(self, uri: str, start: int = 0, stop: int | None = None) -> bytes:
        # Asked before it is read: what was replaced in between is read again when that is listed.
        key, generation = (uri, start, stop), self._memory.generation(uri)
        data = self._memory.find(key, generation)
        if data is None:
            data = self._inner.read(uri, start, stop)
            self._memory.keep(key, generation, data)
        return data

    def open(self, object: Object) -> BinaryIO:
        if object.size >= LARGE_BYTES:
            return self._inner.open(object)
        key, generation = (object.uri, 0, None), hash(object.generation)
        data = self._memory.find(key, generation)
        if data is None:
            with self._inner.open(object) as stream:
                data = stream.read()
            self._memory.keep(key, generation, data)
        return io.BytesIO(data)

    # Nothing that makes pages writes.

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
