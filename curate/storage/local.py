"""The local store: files of one machine, or of a file system that several machines mount.

Publishing writes a temporary in the scratch directory, fsyncs it and hard-links it to its final name, which fails if
that name exists. A `kill -9` at any point leaves the whole object or none; `sync_directories` extends that to power
loss. Where the system can (Linux, `O_TMPFILE`), the temporary has no name until it is linked: making and removing one
took a third of a small publish, and the system itself frees what a kill leaves.

Generations are the modification time in nanoseconds and the size, so a copy that keeps times keeps generations.
"""

# Paths are strings here: a Path for each of 200,000 files would take longer than listing them.
# ruff: noqa: PTH103, PTH105, PTH108, PTH110, PTH112, PTH116, PTH120

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import itertools
import math
import os
import secrets
import shutil
import stat as stat_bits
import threading
import time
from collections.abc import Iterator
from typing import BinaryIO

from curate.errors import ConfigError, DiskFull, ObjectNotFound, PermissionDenied, StorageError
from curate.storage.protocol import LIST_PAGE, Calls, Object, Outcome, Published, clip, mismatch
from curate.storage.writer import BaseWriter

WRITE_BUFFER_BYTES = 64 << 10
"""No more: from 128 KiB on, the C library maps fresh pages for a buffer and gives them back with it, for every file."""
READ_BUFFER_BYTES = 1 << 20
"""At most; a small file gets a small buffer, for the same reason."""
_NAMED = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NAMELESS = os.O_WRONLY | os.O_CLOEXEC | getattr(os, "O_TMPFILE", 0)
_NO_NAMELESS = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}
"""What systems say that cannot open a file without a name; kernels that do not know of it take it for a directory."""
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_LINK_ATTEMPTS = 20
NAMELESS = hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd")
"""Whether this system may be asked for files without a name, and can give them one."""
_process = secrets.token_hex(8)
_temporaries = itertools.count()


class _Temporary:
    """A file that is written and not visible yet: nameless, or named in the scratch directory."""

    __slots__ = ("descriptor", "path")

    def __init__(self, descriptor: int, path: str | None) -> None:
        self.descriptor = descriptor
        self.path = path

    @property
    def source(self) -> str:
        """A path under which this process finds it while it is open."""
        return self.path or f"/proc/self/fd/{self.descriptor}"

    def link(self, uri: str) -> None:
        """Makes it visible under `uri`. Raises FileExistsError, FileNotFoundError."""
        # Given a directory, even where it does not matter, Python follows the link that /proc shows for the file.
        os.link(self.source, uri, src_dir_fd=None if self.path else self.descriptor)

    def discard(self) -> None:
        """Closes and removes it. One that cannot be removed is left to the sweep: the outcome of its publish stands."""
        with contextlib.suppress(OSError):
            os.close(self.descriptor)
        if self.path:
            _unlink(self.path)


class LocalStore:
    """Files by absolute path. Without a `scratch` directory it can read and delete, but not write."""

    def __init__(self, scratch: str | None = None) -> None:
        if scratch is not None:
            _path(scratch)
        self._scratch = scratch
        self._nameless = NAMELESS
        """Whether the file system has not refused a file without a name so far."""
        self._calls = Calls()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[LocalStore], tuple[str | None]]:
        return LocalStore, (self._scratch,)

    @property
    def calls(self) -> Calls:
        return self._calls

    @property
    def scratch(self) -> str | None:
        """The directory of temporaries; it exists once something was written."""
        return self._scratch

    def list(self, prefix: str) -> Iterator[Object]:
        files = _walk(_path(prefix))
        self._count("list")
        room = LIST_PAGE
        for found in files:
            if not room:
                self._count("list")
                room = LIST_PAGE
            room -= 1
            yield found

    def stat(self, uri: str) -> Object:
        self._count("get")
        try:
            status = os.stat(_path(uri))
        except OSError as error:
            raise _translated(error, uri) from error
        if stat_bits.S_ISDIR(status.st_mode):
            raise ObjectNotFound(f"{uri} does not exist as an object: it is a directory")
        return Object(uri, status.st_size, _generation(status))

    def read(self, uri: str, start: int = 0, stop: int | None = None) -> bytes:
        self._count("get")
        with self._opened(uri, buffering=0) as file:
            start, stop = clip(start, stop, os.fstat(file.fileno()).st_size)
            if start:
                file.seek(start)
            return _read_fully(file, stop - start, uri)

    def open(self, object: Object) -> BinaryIO:
        self._count("get")
        file = self._opened(object.uri, buffering=max(io.DEFAULT_BUFFER_SIZE, min(READ_BUFFER_BYTES, object.size)))
        found = _generation(os.fstat(file.fileno()))
        if found != object.generation:
            file.close()
            raise mismatch(object.uri, object.generation, found)
        return file

    def writer(self, uri: str, *, durable: bool = True) -> LocalWriter:
        return LocalWriter(self, _path(uri), durable)

    def publish(self, uri: str, data: bytes) -> Published:
        temporary, status = self._written(_path(uri), data, nameless=True)
        return self._link(temporary, uri, status)

    def replace(self, uri: str, data: bytes) -> Object:
        self._count("put")
        temporary, status = self._written(_path(uri), data, nameless=False)
        try:
            try:
                os.replace(temporary.source, uri)
            except FileNotFoundError:
                _make_parent(uri)
                os.replace(temporary.source, uri)
        except OSError as error:
            raise _translated(error, uri) from error
        finally:
            temporary.discard()
        return Object(uri, status.st_size, _generation(status))

    def delete(self, uri: str, generation: str | None = None) -> bool:
        self._count("delete")
        try:
            with _locked(os.path.dirname(_path(uri))):
                if generation is not None and (found := _generation(os.stat(uri))) != generation:
                    self._count("get")
                    raise mismatch(uri, generation, found)
                os.unlink(uri)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return False
        except OSError as error:
            raise _translated(error, uri) from error
        return True

    def may_delete(self, uri: str) -> bool:
        self._count("delete")
        directory = os.path.dirname(_path(uri))
        try:
            above, status = os.stat(directory), os.lstat(uri)
        except OSError as error:
            return _is_gone(error) or isinstance(error, NotADirectoryError)
        me = os.geteuid()
        # In a directory such as /tmp only the owner of a file, or of the directory, may remove it.
        if above.st_mode & stat_bits.S_ISVTX and me not in (0, status.st_uid, above.st_uid):
            return False
        return os.access(directory, os.W_OK | os.X_OK)

    def _written(self, uri: str, data: bytes, *, nameless: bool) -> tuple[_Temporary, os.stat_result]:
        """Writes `data` to a durable temporary; returns it and its status."""
        temporary = self._temporary(uri, nameless=nameless)
        try:
            view = memoryview(data)
            while len(view):
                view = view[os.write(temporary.descriptor, view) :]
            return temporary, _settled(temporary.descriptor)
        except BaseException as error:
            temporary.discard()
            if isinstance(error, OSError):
                raise _translated(error, uri, len(data)) from error
            raise

    def _temporary(self, uri: str, *, nameless: bool) -> _Temporary:
        """Creates an empty file in the scratch directory, which is made if it is missing."""
        if self._scratch is None:
            raise StorageError(
                f"{uri} cannot be written: this store was opened for reading, without a scratch directory; "
                "open it with open_store(uri, scratch='<output>/_curate/tmp/<attempt>')"
            )
        try:
            try:
                return self._created(self._scratch, nameless)
            except FileNotFoundError:
                os.makedirs(self._scratch, exist_ok=True)
                return self._created(self._scratch, nameless)
        except OSError as error:
            raise _translated(error, self._scratch) from error

    def _created(self, scratch: str, nameless: bool) -> _Temporary:
        if nameless and self._nameless:
            try:
                return _Temporary(os.open(scratch, _NAMELESS, 0o666), None)
            except OSError as error:
                if error.errno not in _NO_NAMELESS:
                    raise
                self._nameless = False
        # The pid keeps the children of a fork apart, who share the other two.
        path = f"{scratch}/{_process}-{os.getpid()}-{next(_temporaries)}"
        return _Temporary(os.open(path, _NAMED, 0o666), path)

    def _link(self, temporary: _Temporary, uri: str, status: os.stat_result, over: str = "") -> Published:
        """Makes the temporary visible under `uri` if that is free, or taken by the generation `over`; compares if it is
        not, and removes the temporary."""
        self._count("put")
        try:
            for _ in range(_LINK_ATTEMPTS):
                if over and (replaced := self._link_over(temporary, uri, status, over)) is not None:
                    return replaced
                try:
                    temporary.link(uri)
                except FileNotFoundError:
                    if not os.path.exists(temporary.source):
                        raise StorageError(
                            f"{uri} was not published: its temporary {temporary.source} was removed while it was "
                            "written; nothing may sweep the scratch directory of a running attempt; run the shard again"
                        ) from None
                    _make_parent(uri)
                except FileExistsError:
                    compared = self._compare(temporary, uri)
                    if compared is not None:
                        return compared
                else:
                    return Published(Outcome.CREATED, Object(uri, status.st_size, _generation(status)))
            raise StorageError(
                f"{uri} cannot be published: its name is taken, yet nothing can be read there; "
                "a dangling link or something that keeps appearing and vanishing; look with: ls -la and remove it"
            )
        except OSError as error:
            raise _translated(error, uri) from error
        finally:
            temporary.discard()

    def _link_over(self, temporary: _Temporary, uri: str, status: os.stat_result, over: str) -> Published | None:
        """Compares, and puts the temporary in the place of what holds its name, if that is the generation `over` and
        has other bytes; returns None if nothing is there.

        Nobody else removes it meanwhile, nor replaces it: that takes the same lock. Nobody creates it: its name is
        taken.
        """
        try:
            with _locked(os.path.dirname(uri)):
                found = self._compare(temporary, uri)
                if found is None or found.outcome is Outcome.IDENTICAL or found.object.generation != over:
                    return found
                # A link to a name that is taken fails, and a rename takes a name: so it gets one first.
                path = f"{self._scratch}/{_process}-{os.getpid()}-{next(_temporaries)}-over"
                temporary.link(path)
                os.replace(path, uri)
                return Published(Outcome.CREATED, Object(uri, status.st_size, _generation(status)))
        except FileNotFoundError:
            return None

    def _compare(self, temporary: _Temporary, uri: str) -> Published | None:
        """Compares the temporary with what holds its name; returns None if that is gone by now."""
        self._count("get")
        try:
            with open(uri, "rb", buffering=0) as theirs, open(temporary.source, "rb", buffering=0) as ours:
                status = os.fstat(theirs.fileno())
                same = status.st_size == os.fstat(ours.fileno()).st_size and _same_bytes(theirs, ours)
        except FileNotFoundError:
            return None
        except IsADirectoryError as error:
            raise StorageError(f"{uri} cannot be published: a directory has that name; move it away") from error
        return Published(
            Outcome.IDENTICAL if same else Outcome.DIFFERENT, Object(uri, status.st_size, _generation(status))
        )

    def _opened(self, uri: str, buffering: int) -> BinaryIO:
        try:
            return open(_path(uri), "rb", buffering=buffering)
        except IsADirectoryError as error:
            raise ObjectNotFound(f"{uri} does not exist as an object: it is a directory") from error
        except OSError as error:
            raise _translated(error, uri) from error

    def _count(self, kind: str) -> None:
        with self._lock:
            setattr(self._calls, kind, getattr(self._calls, kind) + 1)


class LocalWriter(BaseWriter):
    """Bytes collected in a temporary until they are published."""

    def __init__(self, store: LocalStore, uri: str, durable: bool) -> None:
        self._store = store
        self._durable = durable
        self._temporary = store._temporary(uri, nameless=True)
        # Its descriptor outlives this buffer: a nameless file is linked through it.
        self._file = open(self._temporary.descriptor, "wb", buffering=WRITE_BUFFER_BYTES, closefd=False)  # noqa: SIM115
        super().__init__(uri)

    def _append(self, data: bytes | memoryview) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            raise _translated(error, self._uri, self._size + memoryview(data).nbytes) from error

    def _finish(self) -> Published:
        try:
            self._file.flush()
            status = _settled(self._temporary.descriptor, self._durable)
            self._file.close()
        except OSError as error:
            self._discard()
            raise _translated(error, self._uri, self._size) from error
        return self._store._link(self._temporary, self._uri, status, self._over)

    def _discard(self) -> None:
        # Closing flushes: on a full disk that fails again, and the bytes are unwanted anyway.
        with contextlib.suppress(OSError):
            self._file.close()
        self._temporary.discard()


def probe_linking(scratch: str) -> None:
    """Refuses a file system on which a hard link cannot be made, or does not fail if its name is taken.

    Leaves nothing behind but the directory. Raises ConfigError, PermissionDenied.
    """
    store = LocalStore(scratch)
    temporary = store._temporary(scratch, nameless=True)
    target = f"{scratch}/{_process}-{os.getpid()}-{next(_temporaries)}-link"
    try:
        temporary.link(target)
        try:
            temporary.link(target)
        except FileExistsError:
            return
        raise ConfigError(
            f"{scratch} is on a file system where a second link replaces the first, so outputs could be overwritten; "
            "choose an output on a local disk or gs://"
        )
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise _translated(error, scratch) from error
        raise ConfigError(
            f"{scratch} is on a file system without hard links ({error.strerror}), which atomic publishing needs; "
            "choose an output on another file system or gs://"
        ) from error
    finally:
        _unlink(target)
        temporary.discard()


def sync_directories(root: str) -> int:
    """Makes the names published below `root` survive a power loss; returns the number of directories synced.

    Publishing syncs contents, which is what surviving a kill takes; the directories are synced once, at a run's end.
    """
    synced = 0
    for directory, _, _ in os.walk(_path(root)):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        synced += 1
    return synced


def sweep_scratch(parent: str, keep: str, now: float, older_than_s: float) -> int:
    """Removes what is in `parent`, scratch directories and files, and was not written to for `older_than_s`.

    Returns how many it removed. `keep` is never removed. What a kill leaves there (temporaries with a name, of objects
    that are replaced or of file systems without nameless ones, and the link that a probe makes) is invisible to every
    reader, and only takes space. Of a directory, the youngest file counts: a temporary may be written to for hours.
    """
    removed = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(_path(parent)) as entries:
        for entry in entries:
            if entry.path == keep.rstrip("/") or now - _last_written(entry) < older_than_s:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                _unlink(entry.path)
            removed += not os.path.lexists(entry.path)
    return removed


def _last_written(entry: os.DirEntry[str]) -> float:
    """Returns the time of the last change to a file, or to a directory and the files in it; the end of time if gone."""
    try:
        latest = entry.stat(follow_symlinks=False).st_mtime
        if entry.is_dir(follow_symlinks=False):
            with os.scandir(entry.path) as inside:
                return max([latest, *(file.stat(follow_symlinks=False).st_mtime for file in inside)])
    except FileNotFoundError:
        return math.inf
    return latest


def remove_scratch(scratch: str) -> None:
    """Removes a scratch directory that no attempt writes to any more."""
    shutil.rmtree(_path(scratch), ignore_errors=True)


def _walk(prefix: str) -> Iterator[Object]:
    """Yields the files whose path starts with `prefix`, in code-point order of the whole path.

    Directories sort as if their name ended in the slash that follows it in every path below: "a-b" < "a/b" < "a.b"
    is wrong, "a-b" < "a.b" < "a/b" is right. Links are followed, except from a directory into one that contains it.
    """
    top, _, start = prefix.rpartition("/")
    if top and os.path.normpath(top) != top:
        # To the system "a//b" is "a/b"; as a string it begins no path that this function yields.
        return
    pending = [(f"{top}/", iter(_names(f"{top}/", start)))]
    while pending:
        directory, names = pending[-1]
        for name in names:
            path = directory + name
            if name[-1] == "/":
                pending.append((path, iter(_names(path))))
                break
            try:
                status = os.stat(path)
            except OSError as error:
                if _is_gone(error):
                    continue
                raise _translated(error, path) from error
            yield Object(path, status.st_size, f"{status.st_mtime_ns}-{status.st_size}")
        else:
            pending.pop()


def _names(directory: str, start: str = "") -> list[str]:
    """Returns the sorted names in `directory` that begin with `start`, those of directories with a slash at the end."""
    try:
        entries = os.scandir(directory)
    except OSError as error:
        if _is_gone(error) or isinstance(error, NotADirectoryError):
            return []
        raise _translated(error, directory) from error
    names: list[str] = []
    with entries:
        for entry in entries:
            name = entry.name
            if start and not name.startswith(start):
                continue
            if entry.is_symlink():
                if not os.path.isdir(entry.path):
                    names.append(name)
                elif not _is_above(entry.path):
                    names.append(name + "/")
            else:
                names.append(name + "/" if entry.is_dir() else name)
    names.sort()
    return names


def _is_above(link: str) -> bool:
    """Returns whether the link leads to a directory that contains the link itself: following it would never end."""
    target = os.path.realpath(link)
    return (os.path.realpath(os.path.dirname(link)) + "/").startswith(target.rstrip("/") + "/")


def _is_gone(error: OSError) -> bool:
    """Returns whether the file vanished since it was seen, or is a link to nothing or in a ring."""
    return error.errno in (errno.ENOENT, errno.ELOOP)


def _path(uri: str) -> str:
    if uri[:1] != "/":
        raise ConfigError(f"{uri!r} was given to a store of local files; expected an absolute path; normalise(uri) it")
    return uri


def _generation(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}-{status.st_size}"


def _settled(descriptor: int, durable: bool = True) -> os.stat_result:
    """Syncs a written file, if it is to be durable, and returns its final status.

    The kernel stamps files with the time of its last tick, milliseconds ago; the exact time keeps two contents of the
    same size, written one after the other under one name, at different generations.
    """
    now_ns = time.time_ns()
    os.utime(descriptor, ns=(now_ns, now_ns))
    if durable:
        os.fsync(descriptor)
    return os.fstat(descriptor)


def _make_parent(uri: str) -> None:
    os.makedirs(os.path.dirname(uri), exist_ok=True)


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Holds the lock of `directory` against other deletes.

    Between the look at a generation and the unlink, a name can only come to mean another object by being deleted and
    published again; so it is enough that deletes exclude each other. Where a network file system cannot lock a
    directory, that race of two operators stays open.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read_fully(file: BinaryIO, size: int, uri: str) -> bytes:
    """Reads `size` bytes; Linux gives at most 2 GiB a call."""
    try:
        first = file.read(size)
        if len(first) == size:
            return first
        parts = io.BytesIO()
        parts.write(first)
        while len(first) and parts.tell() < size:
            first = file.read(size - parts.tell())
            parts.write(first)
        return parts.getvalue()
    except OSError as error:
        raise _translated(error, uri) from error


def _same_bytes(theirs: BinaryIO, ours: BinaryIO) -> bool:
    while True:
        left, right = theirs.read(READ_BUFFER_BYTES), ours.read(READ_BUFFER_BYTES)
        if left != right:
            return False
        if not left:
            return True


def _free_bytes(path: str) -> int:
    """Returns what is free where a path is, or will be, for who is not root; 0 if that cannot be told."""
    while path != "/" and not os.path.exists(path):
        path = os.path.dirname(path)
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _translated(error: OSError, uri: str, size: int | None = None) -> StorageError:
    """Returns the error of this layer that an error of the operating system stands for. `size`: bytes of the file so
    far, those that were about to be written included, if that is known.
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ObjectNotFound(f"{uri} does not exist")
    if isinstance(error, PermissionError):
        return PermissionDenied(
            f"{uri}: the operating system refused ({error.strerror}) user id {os.geteuid()}, which must be allowed to; "
            f"look at the rights with: ls -ld {os.path.dirname(uri)}"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(uri, size, _free_bytes(uri))
    if error.errno in _NO_LINKS:
        return StorageError(
            f"{uri} cannot be published from its scratch directory ({error.strerror}); "
            "both must lie on one file system that has hard links"
        )
    return StorageError(f"{uri}: {error.strerror or error}")
