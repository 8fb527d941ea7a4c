"""Storage: list, read ranges, publish create-only. Local, memory and GCS behind one protocol.

Importing this package is cheap; a store's own libraries are imported by the `open_store` that needs them.
"""

from __future__ import annotations

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
]


def open_store(uri: str, scratch: str | None = None) -> Store:
    """Returns the store that holds `uri`; makes no request.

    `scratch` is the directory for temporaries, `<output>/_curate/tmp/<attempt>`: only the local store uses it, and
    without it can read but not write. Raises ConfigError for a URI that no store can hold.
    """
    uri = normalise(uri)
    if uri.startswith("gs://"):
        from curate.storage.gcs import GCSStore

        return GCSStore()
    if uri.startswith("memory://"):
        from curate.storage.memory import MemoryStore

        return MemoryStore()
    from curate.storage.local import LocalStore

    return LocalStore(scratch=normalise(scratch) if scratch else None)
