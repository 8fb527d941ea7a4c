"""Folders for one user, in places that all users of a machine may share: scratch space and caches.

A folder in `/tmp` can be made by anybody, under any name, before curate gets there: a folder of somebody else's, or one
that others may write to, or a link, is refused. What curate makes, parents too, is for its owner alone, whatever the
umask.
"""

# ruff: noqa: PTH100, PTH102, PTH112, PTH114, PTH115, PTH118, PTH120

from __future__ import annotations

import contextlib
import os
import stat
import tempfile

from curate.errors import ConfigError

SCRATCH = "CURATE_SCRATCH"
"""Environment variable: where files are kept that only this machine reads."""
CACHE = "CURATE_CACHE"
"""Environment variable: where copies of assets are kept."""
_NAMES = {SCRATCH: "curate", CACHE: "curate-assets"}
"""What the folders are called by default, in that of the system for temporaries; the user's id follows."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def place(variable: str) -> str:
    """Returns the folder that SCRATCH or CACHE names, else one of this user's among the temporaries, there or not."""
    default = os.path.join(tempfile.gettempdir(), f"{_NAMES[variable]}-{os.geteuid()}")
    return os.path.abspath(os.environ.get(variable) or default)


def private(path: str, variable: str) -> str:
    """Returns the folder `path`, which is `place(variable)` or below it, once it is there and this user's alone.

    Raises ConfigError if it is somebody else's, or others may write to it, or it is a link.
    """
    root = place(variable)
    _made(root)
    _check(root, root, variable)
    below = root
    for part in path[len(root) :].split("/"):
        if part:
            below = f"{below}/{part}"
            _made(below)
            _check(below, root, variable)
    return path


def is_private(path: str, variable: str) -> bool:
    """Returns whether the folder is there, to be looked into. Raises ConfigError as `private` does; makes nothing."""
    root = place(variable)
    if not os.path.lexists(path) or not os.path.lexists(root):
        return False
    _check(root, root, variable)
    if path != root:
        _check(path, root, variable)
    return True


def is_scratch(path: str) -> bool:
    """Returns whether a local path is in the folder of files that only this machine reads."""
    return path.startswith(f"{place(SCRATCH)}/")


def open_lock(path: str) -> int:
    """Returns a descriptor of a file to lock, made if it is missing; nothing is followed, cut or waited for to get it.

    Raises ConfigError if a link, or no regular file, has its name.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise ConfigError(f"{path} cannot be used as a lock ({error.strerror}); remove it") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError(f"{path} cannot be used as a lock, because it is not a regular file; remove it")
    return descriptor


def _made(path: str) -> None:
    if os.path.lexists(path):
        return
    above = os.path.dirname(path)
    if not os.path.isdir(above):
        _made(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)


def _check(path: str, root: str, variable: str) -> None:
    """Raises ConfigError unless a folder is this user's, and nobody else may write to it."""
    try:
        descriptor = os.open(path, _FOLDER)
    except OSError as error:
        problem = f"is a link to {os.readlink(path)}" if os.path.islink(path) else f"cannot be used ({error.strerror})"
        raise _refused(path, problem, variable) from error
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise _refused(path, f"belongs to user id {status.st_uid}, and this is {os.geteuid()}", variable)
        if status.st_mode & 0o022:
            problem = f"can be written to by others (mode {stat.S_IMODE(status.st_mode):o})"
            raise _refused(path, problem, variable, f"chmod 700 {path} if it is yours and only you used it, or ")
        if status.st_mode & 0o077 and (path != root or not os.environ.get(variable)):
            # Made by curate, not by the user: its names are nobody else's business.
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


def _refused(path: str, problem: str, variable: str, first: str = "") -> ConfigError:
    what = "intermediate files" if variable == SCRATCH else "copies of assets"
    return ConfigError(
        f"{path} {problem}; {what} must be in a folder that only you can write. Next: {first}name a folder of your "
        f"own, which need not exist, in {variable}"
    )
