"""The client of a service that all stores of a process share.

To make one looks for credentials and connects: that takes 10 ms of CPU with S3, and a token with GCS. A task that reads
a thousand files asks for a thousand stores.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from curate.errors import PermissionDenied


class _Client(Protocol):
    """What makes requests."""

    @property
    def pid(self) -> int:
        """The process whose connections it has."""

    def who(self) -> object:
        """Returns what the credentials that it signs with are told apart by."""


C = TypeVar("C", bound=_Client)
T = TypeVar("T")


class SharedClient(Generic[C]):
    """One client, as long as process and environment, which decide where it connects, are the same."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._kept: tuple[object, C] | None = None
        self._refused: WeakValueDictionary[int, C] = WeakValueDictionary()
        """By id: clients of gcsfs are equal if they were made alike."""

    def get(self) -> C:
        """Returns the client. Two threads may both make one: no harm."""
        # Variables one by one, as another thread may change them. After a fork, loops and connections are the parent's.
        environment = frozenset((name, os.environ.get(name)) for name in os.environ)
        key, kept = (os.getpid(), environment), self._kept
        if kept is None or kept[0] != key:
            kept = self._kept = key, self._make()
        return kept[1]

    def forget(self, client: C) -> None:
        """Has the next one ask for a new client: this one was refused, and somebody may log in meanwhile."""
        self._refused[id(client)] = client
        if self._kept is not None and self._kept[1] is client:
            self._kept = None

    def is_refused(self, client: C) -> bool:
        """Returns whether a client was forgotten."""
        return self._refused.get(id(client)) is client


class HeldClient(Generic[C]):
    """The client that one store goes on with, until it was refused, by whatever store, or is that of a parent."""

    def __init__(self, shared: SharedClient[C]) -> None:
        self._shared = shared
        self._held: C | None = None

    @property
    def client(self) -> C:
        held = self._held
        if held is None or held.pid != os.getpid() or self._shared.is_refused(held):
            held = self._held = self._shared.get()
        return held

    def ask(self, make: Callable[[C], T]) -> T:
        """Returns the answer to the request that `make` makes, once; once more if it is refused, and there are other
        credentials by now: keys end in the middle of a run, when new ones are there already."""
        client = self.client
        try:
            return make(client)
        except PermissionDenied:
            self._shared.forget(client)
            if (renewed := self.client).who() == client.who():
                raise
        try:
            return make(renewed)
        except PermissionDenied:
            self._shared.forget(renewed)
            raise
