"""The store of a URI, made when it is first asked for.

Azure (`az://`) can be read as an input, through fsspec, and is no store of curate's. Blobs can be created only if their
name is free, but no client makes that cheap: obstore 0.12 (imported in 0.15 s) does so in one request that is held in
memory and not at the end of an upload in parts, and it retries below the calls that are counted;
azure-storage-blob 12.31 is imported in 2 s. Own requests would be a store, and a strict emulator, as large as those of
S3.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from curate.around import contextmanager
from curate.errors import ConfigError
from curate.storage.protocol import Calls, Store
from curate.storage.uris import is_foreign, is_local, normalise, normalise_input

_wrap: Callable[[Store], Store] | None = None


def open_store(uri: str, scratch: str | None = None) -> Store:
    """Returns the store that holds `uri`; makes no request.

    `scratch` is the directory for temporaries, `<output>/_curate/tmp/<attempt>`: only the local store uses it, and
    without it, or where the output is elsewhere, can read but not write. Raises ConfigError for a URI that no store can
    hold.
    """
    store = _open(normalise_input(uri), normalise(scratch) if scratch else None)
    if _wrap is not None:
        return _wrap(store)
    if "CURATE_TESTING_FAULTS" in os.environ:
        from curate.stores.faulty import from_environment

        return from_environment(store)
    return store


class Stores:
    """One store a scheme, shared by all that a driver or a worker does, so that the calls can be counted."""

    def __init__(self, scratch: str = "") -> None:
        self.scratch = scratch
        self._stores: dict[str, Store] = {}

    def of(self, uri: str) -> Store:
        """Returns the store that `uri` lives in."""
        scheme = uri.partition("://")[0] if "://" in uri else ""
        if scheme not in self._stores:
            self._stores[scheme] = open_store(uri, scratch=self.scratch)
        return self._stores[scheme]

    @property
    def calls(self) -> Calls:
        """Returns the calls of all stores."""
        total = Calls()
        for store in self._stores.values():
            total = total.plus(store.calls)
        return total


@contextmanager
def wrap_stores(wrap: Callable[[Store], Store]) -> Iterator[None]:
    """Makes `open_store` return what `wrap` makes of each store, or of what a block around this one makes of it, while
    the block lasts.

    For what serves pages, which remembers what it has read; and the seam for tests (see `curate.testing`), with the
    environment variable for processes that tests start: nothing else in curate knows of faults.
    """
    global _wrap
    before = _wrap
    _wrap = wrap if before is None else lambda store: wrap(before(store))
    try:
        yield
    finally:
        _wrap = before


def _open(uri: str, scratch: str | None) -> Store:
    if uri.startswith("gs://"):
        from curate.stores.gcs import GCSStore

        return GCSStore()
    if uri.startswith("s3://"):
        return _s3()
    if uri.startswith("memory://"):
        from curate.stores.memory import MemoryStore

        return MemoryStore()
    if is_foreign(uri):
        from curate.stores.foreign import ForeignStore

        return ForeignStore()
    from curate.stores.local import LocalStore

    return LocalStore(scratch if scratch is not None and is_local(scratch) else None)


def _s3() -> Store:
    try:
        from curate.stores.s3.store import S3Store
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("botocore", "urllib3"):
            raise
        raise ConfigError("s3:// needs the package botocore: pip install 'curate[s3]', then run again") from error
    return S3Store()
