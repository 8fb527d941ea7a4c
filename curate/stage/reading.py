"""Reading ahead of computing: what the next shards of a task are read from is fetched by threads, where it is small.

To read a small object of a bucket is to wait: a round trip of some 50 ms, in which a worker could compute ten small
shards. So threads fetch the inputs of those that follow, whole, each in one request at the generation of the plan; who
opens one is given its bytes. A disk is not read ahead: the kernel does that, and a thread costs more than it spares.

What goes wrong ahead is nobody's error yet: the shard whose input it is asks again in its turn, and says what it gets.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

from curate import log
from curate.sources.protocol import StoreOf
from curate.storage.protocol import Object, Store
from curate.storage.uris import is_local
from curate.tasks.shard import Shard, SliceKind

SMALL_BYTES = 1 << 20
"""Stored bytes of an object that is fetched ahead, at most: what a stream's first request fetches, too."""
READ_AHEAD = 8
"""Shards whose inputs are there, or on their way, before their turn: as many as are published at a time."""


class InputsAhead:
    """What the shards of one task are read from, in order. Leaving the block waits for nothing."""

    def __init__(self, run: str, task: Sequence[tuple[int, Shard]], store_of: StoreOf, *, allowed: bool) -> None:
        """`run`: its key, for events; `task`: its shards, with their ranks; `allowed`: whether any may be fetched
        ahead."""
        self._run = run
        shards = [shard for _, shard in task]
        self._shards = shards if allowed and READ_AHEAD and any(map(_is_small, shards[1:])) else []
        self._store_of = store_of
        self._fetched: dict[Object, Future[bytes]] = {}
        self._begun = 0
        """Shards whose inputs need no look any more."""
        self._threads: ThreadPoolExecutor | None = None

    def turn_to(self, number: int) -> None:
        """Lets go of what the shard before this one was read from, and begins to fetch for those that follow."""
        if not self._shards:
            return
        if number:
            self._fetched.pop(_input_of(self._shards[number - 1]), None)
        for shard in self._shards[self._begun : number + 1 + READ_AHEAD]:
            if _is_small(shard):
                self._threads = self._threads or ThreadPoolExecutor(READ_AHEAD, "read")
                # Not in the thread: a store is made once.
                call = self._threads.submit(self._fetch, self._store_of(shard.uri), shard)
                self._fetched[_input_of(shard)] = call
        self._begun = max(self._begun, number + 1 + READ_AHEAD)

    def _fetch(self, store: Store, shard: Shard) -> bytes:
        with log.bound(run=self._run, shard=shard.id), store.open(_input_of(shard)) as stream:
            return stream.read()

    def store_of(self, uri: str) -> Store:
        """Returns the store that a URI lives in, which opens what was fetched without another request."""
        store = self._store_of(uri)
        return cast(Store, _Fetched(store, self)) if self._shards else store

    def open(self, store: Store, object: Object) -> BinaryIO:
        """Returns a stream over an object of that store, as `Store.open` does."""
        if (fetched := self._fetched.get(object)) is not None:
            try:
                return io.BytesIO(fetched.result())
            except Exception:  # noqa: BLE001 - whoever reads it now learns what is wrong, if it still is
                # A store that is down is not to be asked by all of them, again and again.
                self._begun = len(self._shards)
        return store.open(object)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
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


def _input_of(shard: Shard) -> Object:
    return Object(shard.uri, shard.object_bytes, shard.generation)


def _is_small(shard: Shard) -> bool:
    """Returns whether a shard is all of a small object, and of a store where reading is waiting."""
    return shard.kind is SliceKind.WHOLE and 0 < shard.object_bytes <= SMALL_BYTES and not is_local(shard.uri)
