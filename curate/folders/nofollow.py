"""Folders below a root of the user's: reached step by step from there, and never through a link.

The root itself, and whatever leads to it, may be a link: it is the user's. What lies below is curate's, who makes no
links: one that is there was put there by somebody else, and writing or removing through it would do that elsewhere.
Each step is taken from the descriptor of the folder above, so that a link that takes a folder's place meanwhile is not
followed either. Whatever curate removes on a local disk, it removes here: told by its name, which the caller knows.
"""

# ruff: noqa: PTH103, PTH115

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator

from curate.around import contextmanager
from curate.errors import ConfigError

_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_LEDGER = "/_curate/"
"""Where what is curate's begins below an output."""


def root_of(path: str) -> str:
    """Returns the root that a path lies below: the output whose ledger or stages it is part of, else its own folder.

    >>> root_of("/out/_curate/tmp/1"), root_of("/out/_curate/stages/0a/_curate/job.json"), root_of("/home/tmp")
    ('/out', '/out', '/home')
    """
    above, found, _ = path.partition(_LEDGER)
    return (above if found else os.path.dirname(path)) or "/"  # noqa: PTH120


def open_folder(root: str, path: str, *, make: int = 0) -> int:
    """Returns a descriptor of the folder `path`, which is `root` or lies below it; with `make`, what is missing is made
    in that mode.

    It is good for calls that take a `dir_fd`, and must be closed. Raises ConfigError naming the link that is in the
    way, FileNotFoundError, NotADirectoryError.
    """
    if make:
        os.makedirs(root, make, exist_ok=True)
    here = os.open(root, _FOLDER)
    done = root.rstrip("/")
    try:
        for part in path[len(done) :].split("/"):
            if part:
                below = _step(here, part, done, make)
                os.close(here)
                here, done = below, f"{done}/{part}"
    except BaseException:
        os.close(here)
        raise
    return here


@contextmanager
def folder(root: str, path: str, *, make: int = 0) -> Iterator[int]:
    """Yields what `open_folder` returns, and closes it."""
    descriptor = open_folder(root, path, make=make)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _step(above: int, part: str, done: str, make: int) -> int:
    for mode in (make, 0):
        try:
            return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
        except FileNotFoundError:
            if not mode:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, mode, dir_fd=above)
        except OSError:
            refuse_link(above, part, done)
            raise
    raise AssertionError("unreachable")


def refuse_link(above: int, name: str, path: str) -> os.stat_result | None:
    """Returns the status of a name in a folder, None if there is none; `path` is that of the folder.

    Raises ConfigError if it is a link.
    """
    try:
        status = os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        raise linked(f"{path}/{name}", os.readlink(name, dir_fd=above))
    return status


def linked(path: str, target: str) -> ConfigError:
    """Returns the error for a link where curate was about to write or to remove something."""
    return ConfigError(
        f"{path} is a link (to {target}), but curate never writes or removes through a link; nothing was changed. "
        "Remove the link, or use another folder"
    )


def refuse_links(root: str, folders: Iterable[str], paths: Iterable[str]) -> None:
    """Raises ConfigError if one of `folders` is a link, or holds one, however deep, or if one of `paths` is one, or
    leads through one. All are below `root`; those that do not exist are fine."""
    for top in folders:
        _refuse_links_in(root, top)
    known: dict[str, list[str]] = {}
    for path in paths:
        above, _, name = path.rpartition("/")
        known.setdefault(above, []).append(name)
    for above, names in known.items():
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), folder(root, above) as descriptor:
            for name in names:
                refuse_link(descriptor, name, above)


def _refuse_links_in(root: str, top: str) -> None:
    try:
        above, _, name = top.rpartition("/")
        with folder(root, above) as descriptor:
            if refuse_link(descriptor, name, above) is None:
                return
    except (FileNotFoundError, NotADirectoryError):
        return
    pending = [top]
    while pending:
        here = pending.pop()
        try:
            entries = os.scandir(here)
        except (FileNotFoundError, NotADirectoryError):
            continue
        with entries:
            for entry in entries:
                if entry.is_symlink():
                    raise linked(entry.path, os.readlink(entry.path))
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)


NamePredicate = Callable[[str], bool]


def remove(
    root: str,
    path: str,
    is_ours: NamePredicate,
    *,
    leads: NamePredicate = lambda _: False,
    keep: str = "",
    before: float = math.inf,
) -> int:
    """Removes from the folder `path`, which is `root` or lies below it, what has a name of curate's; returns how many
    of its own entries went.

    `is_ours` is asked with names relative to `path`, those of folders with a slash at the end; only in folders of
    curate's names anything is looked at, and in those that may lead to some. They go once they are empty; those that
    only lead there go with what was in them; all in the reverse order of names. What was written to at `before` or
    later stays, and `keep`, relative too. Nothing but regular files and folders is removed, and what cannot be removed
    stays.
    """
    try:
        above = open_folder(root, path)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    try:
        here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=above)
    finally:
        os.close(above)
    try:
        return _remove(here, "", is_ours, leads, keep, before)
    finally:
        os.close(here)


def _remove(here: int, prefix: str, is_ours: NamePredicate, leads: NamePredicate, keep: str, before: float) -> int:
    removed = 0
    with os.scandir(here) as found:
        entries = sorted(found, key=lambda entry: entry.name, reverse=True)
    for entry in entries:
        name = prefix + entry.name
        with contextlib.suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                own = is_ours(name + "/")
                if not (own or leads(name + "/")) or name == keep:
                    continue
                # Before what is in it goes, which is written to it.
                old = entry.stat(follow_symlinks=False).st_mtime < before
                inside = _remove_in(here, entry.name, name + "/", is_ours, leads, keep, before)
                if old and (own or inside):
                    os.rmdir(entry.name, dir_fd=here)
                    removed += 1
            elif (
                entry.is_file(follow_symlinks=False)
                and is_ours(name)
                and name != keep
                and entry.stat(follow_symlinks=False).st_mtime < before
            ):
                os.unlink(entry.name, dir_fd=here)
                removed += 1
    return removed


def _remove_in(
    above: int, name: str, prefix: str, is_ours: NamePredicate, leads: NamePredicate, keep: str, before: float
) -> int:
    here = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        return _remove(here, prefix, is_ours, leads, keep, before)
    finally:
        os.close(here)
