"""Storage: list, read ranges, publish create-only. Local, memory and GCS behind one protocol.

Importing this package is cheap; a store's own libraries are imported by the `open_store` that needs them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from typing import cast

from curate.storage.protocol import Calls, Object, Outcome, Published, Store, Writer
from curate.storage.uris import is_local, join, normalise, relative

__all__ = [
    "Calls",
    "Object",
    "Outcome",
    "Published",
    "Store",
    "Writer",
    "is_local",
    "join",
    "normalise",
    "open_store",
    "relative",
    "wrap_stores",
]

_wrap: Callable[[Store], Store] | None = None


def open_store(uri: str, scratch: str | None = None) -> Store:
    """Returns the store that holds `uri`; makes no request.

    `scratch` is the directory for temporaries, `<output>/_curate/tmp/<attempt>`: only the local store uses it, and
    without it, or where the output is elsewhere, can read but not write. Raises ConfigError for a URI that no store can
    hold.
    """
    store = _open(normalise(uri), normalise(scratch) if scratch else None)
    if _wrap is not None:
        return _wrap(store)
    if "CURATE_TESTING_FAULTS" in os.environ:
        return cast(Store, importlib.import_module("curate.testing.store").from_environment(store))
    return store


@contextlib.contextmanager
def wrap_stores(wrap: Callable[[Store], Store]) -> Iterator[None]:
    """Makes `open_store` return what `wrap` makes of each store while the block lasts.

    The seam for tests (see `curate.testing`), and with the environment variable for processes that tests start the only
    one: nothing else in curate knows of faults.
    """
    global _wrap
    before, _wrap = _wrap, wrap
    try:
        yield
    finally:
        _wrap = before


def _open(uri: str, scratch: str | None) -> Store:
    if uri.startswith("gs://"):
        from curate.storage.gcs import GCSStore

        return GCSStore()
    if uri.startswith("memory://"):
        from curate.storage.memory import MemoryStore

        return MemoryStore()
    from curate.storage.local import LocalStore

    return LocalStore(scratch if scratch is not None and is_local(scratch) else None)
