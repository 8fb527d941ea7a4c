"""The client of a service that all stores of a process share.

To make one looks for credentials and connects: that takes 10 ms of CPU with S3, and a token with GCS. A task that reads
a thousand files asks for a thousand stores.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

C = TypeVar("C")


class SharedClient(Generic[C]):
    """One client, as long as process and environment, which decide where it connects, are the same."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._kept: tuple[object, C] | None = None

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
        if self._kept is not None and self._kept[1] is client:
            self._kept = None
