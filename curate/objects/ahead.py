"""Reading ahead of computing: small inputs that will be opened next are fetched by threads, each whole.

To read a small object of a bucket is to wait: a round trip of some 50 ms, in which a worker could compute ten small
shards. So when one is opened, threads fetch those that follow, each in one request at the generation of the plan; who
opens one of these is given its bytes. A disk is not read ahead: the kernel does that, and a thread costs more than it
spares.

What goes wrong ahead is nobody's error yet: who opens the object asks again, and hears what is wrong, if it still is.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, Self, cast

from curate.storage.protocol import Object, Store
from curate.storage.uris import is_local

SMALL_BYTES = 1 << 20
"""Stored bytes of an object that is fetched ahead, at most: what a stream's first request fetches, too."""
READ_AHEAD = 8
"""Objects that are here, or on their way, before they are opened: as many as are published at a time."""


class InputsAhead:
    """Objects that will be opened in this order, most of them. Leaving the block waits for nothing."""

    def __init__(self, objects: Iterable[Object], store_of: Callable[[str], Store]) -> None:
        """`objects`: all of each is read, unless nobody opens it."""
        self._store_of = store_of
        self._small = [one for one in objects if 0 < one.size <= SMALL_BYTES and not is_local(one.uri)]
        self._places: dict[Object, int] = {}
        if len(self._small) > 1:
            for place, one in enumerate(self._small):
                self._places.setdefault(one, place)
        self._at = self._begun = 0
        """The object that was opened last, and the first one that no thread was asked for."""
        self._fetched: dict[Object, Future[bytes]] = {}
        self._threads: ThreadPoolExecutor | None = None

    def store_of(self, uri: str) -> Store:
        """Returns the store that a URI lives in, which opens what was fetched without another request."""
        store = self._store_of(uri)
        return cast(Store, _Fetched(store, self)) if self._places else store

    def open(self, store: Store, object: Object) -> BinaryIO:
        """Returns a stream over an object of that store, as `Store.open` does."""
        place = self._places.get(object)
        if place is not None and place >= self._at:
            self._turn_to(place)
        if (fetched := self._fetched.get(object)) is not None:
            try:
                return io.BytesIO(fetched.result())
            except Exception:  # noqa: BLE001 - see above
                # A store that is down is not to be asked by all of them, again and again.
                self._begun = len(self._small)
        return store.open(object)

    def _turn_to(self, place: int) -> None:
        """Lets go of what comes before an object, and begins to fetch what follows it."""
        for one in self._small[self._at : place]:
            self._fetched.pop(one, None)
        self._at, self._begun = place, max(self._begun, place + 1)
        for one in self._small[self._begun : place + 1 + READ_AHEAD]:
            self._threads = self._threads or ThreadPoolExecutor(READ_AHEAD, "read")
            # Not in the thread: a store is made once.
            try:
                self._fetched[one] = self._threads.submit(_fetch, self._store_of(one.uri), one)
            except RuntimeError:
                # No further thread is to be had.
                self._begun = len(self._small)
                return
        self._begun = max(self._begun, place + 1 + READ_AHEAD)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._fetched.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


class _Fetched:
    """A store, of which some objects are here."""

    def __init__(self, inner: Store, inputs: InputsAhead) -> None:
        self._inner, self._inputs = inner, inputs

    def __reduce__(self) -> tuple[Any, ...]:
        # Elsewhere it is the store that it is made of.
        return _same, (self._inner,)

    def open(self, object: Object) -> BinaryIO:
        return self._inputs.open(self._inner, object)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _same(store: Store) -> Store:
    return store


def _fetch(store: Store, object: Object) -> bytes:
    with store.open(object) as stream:
        return stream.read()
