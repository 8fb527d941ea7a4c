"""Whether a run may remove what it is asked to remove: seen before it begins, not half way through."""

from __future__ import annotations

from collections.abc import Iterable

from curate.errors import ConfigError
from curate.storage.protocol import Object, Store
from curate.storage.uris import is_local

MOST_FOLDERS = 16
"""Folders that are asked about: rights are given for prefixes, and each question is a request."""


def refuse_undeletable(store: Store, objects: Iterable[Object], why: str) -> None:
    """Raises ConfigError if one of the objects may not be deleted; asks about one in each of the first folders.

    `why` says who wants them removed: "--overwrite".
    """
    asked: set[str] = set()
    for one in objects:
        folder = one.uri.rpartition("/")[0]
        if folder in asked:
            continue
        if len(asked) == MOST_FOLDERS:
            return
        asked.add(folder)
        if not store.may_delete(one.uri):
            who = (
                f"this user may not write to {folder}" if is_local(one.uri) else "it lacks storage.objects.delete there"
            )
            raise ConfigError(
                f"{why} would remove {one.uri}, which is not allowed: {who}; nothing was removed. Write to another "
                f"--output, or run this as someone who may delete there"
            )
