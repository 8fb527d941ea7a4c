"""A store over another one, whose calls fail as scripted."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast

from curate.clock import Clock, SystemClock
from curate.requests.retry import Retry
from curate.storage.faults import ENVIRONMENT, Fault, Faults, When, parse_faults
from curate.storage.protocol import Calls, Object, Outcome, Published, Store, Writer

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


T = TypeVar("T")


QUICK = Retry(first_wait_s=0.01, longest_wait_s=0.2)
"""As GCS is retried, with waits for tests."""
_WRITES = frozenset({"publish", "replace", "delete"})
"""What has an effect that can be there although the answer was lost."""


class FaultyStore(Store):
    """Any store, with faults. Without a fault it behaves like the store below it.

    Without `retry`, the caller sees the errors. With it, a failed call is retried inside, as in the GCS store: the
    caller sees a slower store, and a publish whose answer was lost returns `Outcome.IDENTICAL`.

    >>> from curate.stores.memory import MemoryStore
    >>> store = FaultyStore(MemoryStore(), Fault("publish", nth=2, when="after"), retry=QUICK)
    >>> [store.publish(f"memory://doc/{n}", b"data").outcome.value for n in (1, 2)]
    ['created', 'identical']
    >>> store.faults.calls
    Counter({'publish': 3})
    """

    def __init__(
        self,
        inner: Store,
        *scripted: Fault,
        faults: Faults | None = None,
        retry: Retry | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`faults` in place of `scripted` ones can be shared by several stores; `clock` is for those that are slow."""
        if scripted and faults is not None:
            raise TypeError("pass faults one by one, or as one `faults`")
        self.inner = inner
        """The store beneath."""
        self.faults = Faults(scripted) if faults is None else faults
        """What goes wrong, and what did."""
        self._retry = retry
        self._clock = clock or SystemClock()

    @property
    def calls(self) -> Calls:
        """Requests that reached the store beneath."""
        return self.inner.calls

    def list(self, prefix: str) -> Iterator[Object]:
        yield from self._call("list", prefix, lambda: self.inner.list(prefix), lambda fault: self._half(prefix, fault))

    def stat(self, uri: str) -> Object:
        return self._call("stat", uri, lambda: self.inner.stat(uri))

    def read(self, uri: str, start: int = 0, stop: int | None = None) -> bytes:
        return self._call("read", uri, lambda: self.inner.read(uri, start, stop))

    def open(self, object: Object) -> BinaryIO:
        def torn(fault: Fault) -> BinaryIO:
            return cast(BinaryIO, io.BufferedReader(_TornReader(self.inner.open(object), object.size // 2, fault)))

        return self._call("open", object.uri, lambda: self.inner.open(object), torn)

    def writer(self, uri: str, *, durable: bool = True) -> Writer:
        return _FaultyWriter(self, uri, durable)

    def publish(self, uri: str, data: bytes) -> Published:
        return self._call("publish", uri, lambda: self.inner.publish(uri, data))

    def replace(self, uri: str, data: bytes) -> Object:
        return self._call("replace", uri, lambda: self.inner.replace(uri, data))

    def delete(self, uri: str, generation: str | None = None) -> bool:
        return self._call("delete", uri, lambda: self.inner.delete(uri, generation))

    def may_delete(self, uri: str) -> bool:
        return self._call("may_delete", uri, lambda: self.inner.may_delete(uri))

    def _call(self, operation: str, uri: str, effect: Callable[[], T], torn: Callable[[Fault], T] | None = None) -> T:
        """Makes one call, with whatever is wrong with it. `torn` returns what breaks off later."""

        def attempt() -> T:
            fault = self.faults.next(operation, uri)
            if fault is None:
                return effect()
            if fault.when is When.SLOW:
                self._clock.sleep(fault.slow_s)
                return effect()
            if fault.when is When.TORN and torn is not None and self._retry is None:
                return torn(fault)
            if fault.when is When.AFTER and operation in _WRITES:
                effect()
            raise fault.make_error()

        return attempt() if self._retry is None else self._retry.call(f"{operation} {uri}", attempt)

    def _half(self, prefix: str, fault: Fault) -> Iterator[Object]:
        found = list(self.inner.list(prefix))
        yield from found[: len(found) // 2]
        raise fault.make_error()


class _FaultyWriter(Writer):
    """The writer beneath, with a publish that can fail, and that can be made again."""

    def __init__(self, store: FaultyStore, uri: str, durable: bool) -> None:
        self._store = store
        self._inner = store.inner.writer(uri, durable=durable)
        self._done: Published | None = None
        super().__init__(uri)

    def _append(self, data: bytes | memoryview) -> int:
        return self._inner.write(data)

    def _finish(self) -> Published:
        try:
            return self._store._call("publish", self._uri, self._published)
        finally:
            self._discard()

    def _published(self) -> Published:
        if self._done is None:
            self._done = self._inner.publish(self._over)
            return self._done
        # Published before, but the answer was lost: made again, it finds its own object.
        taken = self._done.outcome is Outcome.CREATED
        return replace(self._done, outcome=Outcome.IDENTICAL) if taken else self._done

    def _discard(self) -> None:
        self._inner.__exit__(None, None, None)


class _TornReader(io.RawIOBase):
    """A stream that fails at `ends_at`."""

    def __init__(self, inner: BinaryIO, ends_at: int, fault: Fault) -> None:
        self._inner = inner
        self._ends_at = ends_at
        self._fault = fault

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._inner.seek(offset, whence)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        room = self._ends_at - self._inner.tell()
        if room <= 0:
            raise self._fault.make_error()
        data = self._inner.read(min(room, len(view)))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._inner.close()
        super().close()


def from_environment(store: Store) -> Store:
    """Returns the store with the faults that `CURATE_TESTING_FAULTS` means, one count for all stores of the process."""
    return FaultyStore(store, faults=_of_process(os.environ[ENVIRONMENT], os.getpid()), retry=QUICK)


@functools.cache
def _of_process(text: str, pid: int) -> Faults:
    del pid  # the child of a fork counts for itself
    return parse_faults(text)
