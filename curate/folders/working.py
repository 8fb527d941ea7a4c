"""The working folder of this process, which may have been removed."""

from __future__ import annotations

import os
from collections.abc import Iterator

from curate.around import contextmanager
from curate.errors import ConfigError


@contextmanager
def naming_lost_folder() -> Iterator[None]:
    """Is around a program, which asks for its working folder in many places. Raises ConfigError where one of them did
    not find it, as it was removed: only what needs no relative path goes on without."""
    try:
        yield
    except FileNotFoundError as error:
        if _is_there():
            raise
        raise ConfigError(
            "the folder that this shell, or program, works in was removed; change to one that exists (cd)"
        ) from error


def _is_there() -> bool:
    try:
        return bool(os.getcwd())  # noqa: PTH109
    except OSError:
        return False
