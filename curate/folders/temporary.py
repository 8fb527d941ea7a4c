"""Temporary folders that are removed even if their process is killed: by the next process that makes one beside them.

A folder has a file that its process keeps locked. Who can lock it knows that this process is gone. Nothing is known of
another machine that shares the disk, because its locks may not be seen here: its folders stay.
"""

# ruff: noqa: PTH104, PTH108

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir, mkdtemp
from typing import Any

from curate.around import contextmanager
from curate.errors import CurateError, StorageError
from curate.folders.private import open_lock

_PREFIX = "curate-"
_NAME = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
"""As Python calls them."""
_LOCK = ".owner"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@contextmanager
def temporary_folder(above: str) -> Iterator[str]:
    """Makes a folder in a folder of this user's alone, and removes it at the end; first those beside it whose processes
    were killed."""
    _remove_orphans(above)
    with TemporaryDirectory(prefix=_PREFIX, dir=above) as folder:
        descriptor = _locked(folder)
        try:
            yield folder
        finally:
            os.close(descriptor)


def lasting_folder(above: str) -> tuple[str, int]:
    """Makes a folder in one that all users may share, for who removes it later, and returns it with the descriptor to
    be closed then; first removes those beside it whose processes were killed."""
    _remove_orphans(above)
    folder = mkdtemp(prefix=_PREFIX, dir=above)
    return folder, _locked(folder)


@contextmanager
def kept(what: str, folder: str = "", refused: type[CurateError] = StorageError) -> Iterator[None]:
    """Turns an OSError of the block, which writes to a folder of temporary files, into `refused`, which names the
    folder and says what to do. `folder`: by default that of this process."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error  # in pyarrow's there is more than that
        says = f"{what} cannot be kept in {folder or gettempdir()} ({why}); free space there or set TMPDIR"
        raise refused(says) from error


def let_go(file: Any) -> None:
    """Closes a file that nobody wants, whether or not there is room for what is pending."""
    with suppress(OSError):
        file.close()


def _locked(folder: str) -> int:
    """Returns a descriptor that has the folder locked, until it is closed or the process ends."""
    # It has its name only once it is locked: before that, the folder would look as if nobody had it.
    new = f"{folder}/{_LOCK}.new"
    descriptor = open_lock(new)
    with suppress(OSError):  # a disk without locks: the folder stays if this process is killed
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, _machine())
        os.rename(new, f"{folder}/{_LOCK}")
    return descriptor


def _is_ours(one: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # it is gone by now
        known = _NAME.fullmatch(one.name) is not None and one.is_dir(follow_symlinks=False)
        return known and one.stat(follow_symlinks=False).st_uid == os.geteuid()
    return False


def _remove_orphans(above: str) -> None:
    with os.scandir(above) as entries:
        beside = [one.path for one in entries if _is_ours(one)]
    for folder in beside:
        with suppress(OSError):  # it has no lock (yet), its process is alive, or another one removes it
            descriptor = os.open(f"{folder}/{_LOCK}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if os.read(descriptor, len(_machine()) + 1) == _machine():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(folder)
            finally:
                os.close(descriptor)


def _remove(folder: str) -> None:
    """Removes a folder, its lock last: what could not be removed is then found again."""
    with os.scandir(folder) as entries:
        for one in entries:
            if one.is_dir(follow_symlinks=False):
                shutil.rmtree(one.path)
            elif one.name != _LOCK:
                os.unlink(one.path)
    shutil.rmtree(folder)


@cache
def _machine() -> bytes:
    """Returns what this machine is known by until it is started again."""
    try:
        return _BOOT.read_bytes().strip()
    except OSError:
        return platform.node().encode()
