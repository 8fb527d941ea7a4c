"""The local store: files of one machine, or of a file system that several machines mount.

Publishing writes a temporary in the scratch directory, fsyncs it and hard-links it to its final name, which fails if
that name exists. A `kill -9` at any point leaves the whole object or none; `sync_directories` extends that to power
loss. Where the system can (Linux, `O_TMPFILE`), the temporary has no name until it is linked: making and removing one
took a third of a small publish, and the system itself frees what a kill leaves.

Reading follows links; writing and removing never does below the root that a store writes to (see `nofollow`). What is
no regular file (a FIFO, a socket, a device) is no object: it is never opened for longer than it takes to see that.

Generations are the modification time in nanoseconds and the size, so a copy that keeps times keeps generations.

Long because publishing, removing and sweeping keep one promise together: whatever a kill leaves is whole, or can be
swept.
"""

# ruff: noqa: PTH108, PTH110, PTH112, PTH114, PTH116, PTH120

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import re
import secrets
import stat as stat_bits
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import PurePath
from typing import Any, BinaryIO, NamedTuple

from curate.errors import ConfigError, DiskFull, ObjectNotFound, PermissionDenied, StorageError
from curate.folders import nofollow
from curate.folders.lock import locked
from curate.folders.private import is_scratch
from curate.requests.ranges import clip
from curate.storage.listing import Columns, Listing
from curate.storage.protocol import LINK_TO_NOTHING, LIST_PAGE, Calls, Object, Outcome, Published, Writer, mismatch
from curate.units import shell_word

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
TEMPORARY = r"[0-9a-f]{16}-[0-9]+-[0-9]+(-link|-over)?"
"""What temporaries with a name are called: see `_named`."""
_PRIVATE_MODE = 0o600
_process = secrets.token_hex(8)
_numbers = itertools.count()


def is_temporary(name: str) -> bool:
    """Returns whether this is what a temporary in a scratch directory is called.

    >>> is_temporary("0123456789abcdef-4711-0"), is_temporary("notes.txt")
    (True, False)
    """
    return re.fullmatch(TEMPORARY, name) is not None


def _named() -> str:
    # The pid keeps the children of a fork apart, who share the other two.
    return f"{_process}-{os.getpid()}-{next(_numbers)}"


class _Temporary(NamedTuple):
    """A file that is written and not visible yet: nameless, or named in the scratch directory."""

    descriptor: int
    path: str | None

    @property
    def source(self) -> str:
        """A path under which this process finds it while it is open."""
        return self.path or f"/proc/self/fd/{self.descriptor}"

    def link(self, name: str, folder: int) -> None:
        """Makes it visible under `name` in a folder. Raises FileExistsError, FileNotFoundError."""
        # Given a directory, even where it does not matter, Python follows the link that /proc shows for the file.
        os.link(self.source, name, src_dir_fd=None if self.path else self.descriptor, dst_dir_fd=folder)

    def discard(self) -> None:
        """Closes and removes it. One that cannot be removed is left to the sweep: the outcome of its publish stands."""
        with contextlib.suppress(OSError):
            os.close(self.descriptor)
        if self.path:
            with contextlib.suppress(OSError):
                os.unlink(self.path)


class _Folder:
    """A descriptor of a folder, closed when nobody uses it any more."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


class LocalStore:
    """Files by absolute path. Without a `scratch` directory it can read and delete, but not write."""

    def __init__(self, scratch: str | None = None) -> None:
        if scratch is not None:
            _path(scratch)
        self._scratch = scratch
        self._root = None if scratch is None else nofollow.root_of(scratch)
        alone = scratch is not None and is_scratch(scratch)
        # What lies where only this machine reads is its user's alone, whatever the umask.
        self._file_mode, self._folder_mode = (_PRIVATE_MODE, 0o700) if alone else (0o666, 0o777)
        self._temporaries: _Folder | None = None
        """The scratch directory, once it was reached: each object that is written begins there."""
        self._nameless = NAMELESS
        """Whether the file system has not refused a file without a name so far."""
        self.calls = Calls()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[LocalStore], tuple[str | None]]:
        return LocalStore, (self._scratch,)

    @property
    def scratch(self) -> str | None:
        """The directory of temporaries; it exists once something was written."""
        return self._scratch

    def list(self, prefix: str) -> Iterator[Object]:
        return Listing(self._pages(prefix))

    def _pages(self, prefix: str) -> Iterator[Columns]:
        seen = 0
        for page in itertools.chain(_walk(_path(prefix)), [Columns()]):
            if seen % LIST_PAGE == 0 and (page or not seen):
                self._count("list")
            seen += len(page)
            yield page

    def stat(self, uri: str) -> Object:
        self._count("get")
        try:
            status = os.stat(_path(uri))
        except OSError as error:
            raise _translated(error, uri) from error
        _refuse_special(status, uri)
        return Object(uri, status.st_size, _generation(status))

    def read(self, uri: str, start: int = 0, stop: int | None = None) -> bytes:
        self._count("get")
        with self._opened(uri) as file:
            start, stop = clip(start, stop, os.fstat(file.fileno()).st_size)
            if start:
                file.seek(start)
            return _read_fully(file, stop - start, uri)

    def open(self, object: Object) -> BinaryIO:
        self._count("get")
        file = self._opened(object.uri, object)
        return io.BufferedReader(file, max(io.DEFAULT_BUFFER_SIZE, min(READ_BUFFER_BYTES, object.size)))

    def writer(self, uri: str, *, durable: bool = True) -> LocalWriter:
        return LocalWriter(self, _path(uri), durable)

    def root_of(self, uri: str) -> str:
        """Returns the root below which nothing is written or removed through a link, to reach `uri`."""
        if self._root is not None and uri.startswith(self._root.rstrip("/") + "/"):
            return self._root
        return nofollow.root_of(uri)

    def _folder(self, uri: str) -> contextlib.AbstractContextManager[int]:
        return nofollow.folder(self.root_of(uri), uri.rpartition("/")[0] or "/")

    def publish(self, uri: str, data: bytes) -> Published:
        temporary, status = self._written(_path(uri), data, nameless=True)
        return self._link(temporary, uri, status)

    def replace(self, uri: str, data: bytes) -> Object:
        self._count("put")
        temporary, status = self._written(_path(uri), data, nameless=False)
        try:
            try:
                self._rename(temporary, uri)
            except FileNotFoundError:
                self._make_parent(uri)
                self._rename(temporary, uri)
        except OSError as error:
            raise _unwritten(error, uri) from error
        finally:
            temporary.discard()
        return Object(uri, status.st_size, _generation(status))

    def _rename(self, temporary: _Temporary, uri: str) -> None:
        above, _, name = uri.rpartition("/")
        with self._folder(uri) as folder:
            there = nofollow.refuse_link(folder, name, above)
            if there is not None and not stat_bits.S_ISREG(there.st_mode):
                raise StorageError(f"{uri} cannot be written: {_kind_of(there.st_mode)} has that name; move it")
            os.replace(temporary.source, name, dst_dir_fd=folder)

    def delete(self, uri: str, generation: str | None = None) -> bool:
        self._count("delete")
        above, _, name = _path(uri).rpartition("/")
        try:
            with self._folder(uri) as folder, locked(folder, uri):
                status = nofollow.refuse_link(folder, name, above)
                if status is None or not stat_bits.S_ISREG(status.st_mode):
                    return False
                if generation is not None and (found := _generation(status)) != generation:
                    self._count("get")
                    raise mismatch(uri, generation, found)
                os.unlink(name, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
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
            _sync(temporary.descriptor)
            return temporary, os.fstat(temporary.descriptor)
        except BaseException as error:
            temporary.discard()
            if isinstance(error, OSError):
                raise _translated(error, uri, len(data)) from error
            raise

    def _temporary(self, uri: str, *, nameless: bool, mode: int = 0o777) -> _Temporary:
        """Creates an empty file in the scratch directory, which is made if it is missing."""
        if self._scratch is None or self._root is None:
            raise StorageError(
                f"{uri} cannot be written: this store was opened for reading, without a scratch directory; "
                "open it with open_store(uri, scratch='<output>/_curate/tmp/<attempt>')"
            )
        try:
            mode &= self._file_mode
            if (known := self._temporaries) is not None:
                # Removed meanwhile, systems say different things of it: whatever it was, it is reached again.
                with contextlib.suppress(OSError):
                    return self._created(known, nameless, mode)
            with contextlib.suppress(FileNotFoundError):
                return self._created(self._reached(self._root, self._scratch), nameless, mode)
            for _ in range(_LINK_ATTEMPTS):
                # Whoever ends on the same output removes what is empty there, the folder above included.
                with (
                    contextlib.suppress(FileNotFoundError),
                    nofollow.folder(self._root, self._scratch, make=self._folder_mode),
                ):
                    return self._created(self._reached(self._root, self._scratch), nameless, mode)
            _refuse_folderless(self._scratch)
            raise StorageError(
                f"{self._scratch} cannot be made: it is not there right after, as another process keeps removing it; "
                "stop that process, or choose another output"
            )
        except OSError as error:
            raise _unwritten(error, self._scratch) from error

    def _reached(self, root: str, scratch: str) -> _Folder:
        """Opens the scratch directory. Its descriptor stays good however its path changes, but for its removal."""
        found = self._temporaries = _Folder(nofollow.open_folder(root, scratch))
        return found

    def _created(self, folder: _Folder, nameless: bool, mode: int) -> _Temporary:
        if nameless and self._nameless:
            try:
                return _Temporary(os.open(".", _NAMELESS, mode, dir_fd=folder.descriptor), None)
            except OSError as error:
                if error.errno not in _NO_NAMELESS:
                    raise
                self._nameless = False
        name = _named()
        return _Temporary(os.open(name, _NAMED, mode, dir_fd=folder.descriptor), f"{self._scratch}/{name}")

    def _make_parent(self, uri: str) -> None:
        with nofollow.folder(self.root_of(uri), os.path.dirname(uri), make=self._folder_mode):
            pass

    def _link(self, temporary: _Temporary, uri: str, status: os.stat_result, over: str = "") -> Published:
        """Makes the temporary visible under `uri` if that is free, or taken by the generation `over`; compares if it is
        not, and removes the temporary."""
        self._count("put")
        try:
            for _ in range(_LINK_ATTEMPTS):
                if over and (replaced := self._link_over(temporary, uri, status, over)) is not None:
                    return replaced
                try:
                    with self._folder(uri) as folder:
                        temporary.link(uri.rpartition("/")[2], folder)
                except FileNotFoundError:
                    if not os.path.exists(temporary.source):
                        raise StorageError(
                            f"{uri} was not published: its temporary {temporary.source} was removed while it was "
                            "written; no other process may clean the scratch directory of a running attempt; run the "
                            "shard again"
                        ) from None
                    self._make_parent(uri)
                except FileExistsError:
                    compared = self._compare(temporary, uri)
                    if compared is not None:
                        return compared
                else:
                    return Published(Outcome.CREATED, Object(uri, status.st_size, _generation(status)))
            raise StorageError(
                f"{uri} cannot be published: its name exists but cannot be read; it is a dangling link, or another "
                "process keeps creating and removing it; look with: ls -la and remove it"
            )
        except OSError as error:
            raise _unwritten(error, uri) from error
        finally:
            temporary.discard()

    def _link_over(self, temporary: _Temporary, uri: str, status: os.stat_result, over: str) -> Published | None:
        """Compares, and puts the temporary in the place of what holds its name, if that is the generation `over` and
        has other bytes; returns None if nothing is there.

        Nobody else removes it meanwhile, nor replaces it: that takes the same lock. Nobody creates it: its name is
        taken.
        """
        assert self._root is not None
        assert self._scratch is not None
        above, _, name = uri.rpartition("/")
        try:
            with self._folder(uri) as folder, locked(folder, uri):
                nofollow.refuse_link(folder, name, above)
                found = self._compare(temporary, uri)
                if found is None or found.outcome is Outcome.IDENTICAL or found.object.generation != over:
                    return found
                # A link to a name that is taken fails, and a rename takes a name: so it gets one first.
                scratch = (self._temporaries or self._reached(self._root, self._scratch)).descriptor
                own = f"{_named()}-over"
                temporary.link(own, scratch)
                os.replace(own, name, src_dir_fd=scratch, dst_dir_fd=folder)
                return Published(Outcome.CREATED, Object(uri, status.st_size, _generation(status)))
        except FileNotFoundError:
            return None

    def _compare(self, temporary: _Temporary, uri: str) -> Published | None:
        """Compares the temporary with what holds its name; returns None if that is gone by now."""
        self._count("get")
        try:
            with _regular(uri) as theirs, open(temporary.source, "rb", buffering=0) as ours:
                status = os.fstat(theirs.fileno())
                same = status.st_size == os.fstat(ours.fileno()).st_size and _same_bytes(theirs, ours)
        except FileNotFoundError:
            return None
        except _NotRegularError as error:
            raise StorageError(f"{uri} cannot be published: {error} has that name; move it") from error
        return Published(
            Outcome.IDENTICAL if same else Outcome.DIFFERENT, Object(uri, status.st_size, _generation(status))
        )

    def _opened(self, uri: str, object: Object | None = None) -> _File:
        try:
            return _regular(_path(uri), object)
        except _NotRegularError as error:
            raise ObjectNotFound(f"{uri} does not exist as an object: it is {error}", uri) from error
        except OSError as error:
            raise _translated(error, uri) from error

    def _count(self, kind: str) -> None:
        with self._lock:
            setattr(self.calls, kind, getattr(self.calls, kind) + 1)


class LocalWriter(Writer):
    """Bytes collected in a temporary until they are published."""

    def __init__(self, store: LocalStore, uri: str, durable: bool) -> None:
        self._store = store
        self._durable = durable
        # What is not durable is an intermediate, which nobody else needs to read.
        self._temporary = store._temporary(uri, nameless=True, mode=0o777 if durable else _PRIVATE_MODE)
        # Its descriptor outlives this buffer: a nameless file is linked through it.
        self._file = open(self._temporary.descriptor, "wb", buffering=WRITE_BUFFER_BYTES, closefd=False)  # noqa: SIM115
        self._synced = False
        super().__init__(uri)

    def settle(self) -> bool:
        self._check("settled")
        self._sync()
        return True

    def _append(self, data: bytes | memoryview) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            raise _translated(error, self._uri, self._size + memoryview(data).nbytes) from error

    def _finish(self) -> Published:
        try:
            self._sync()
            status = os.fstat(self._temporary.descriptor)
            self._file.close()
        except BaseException as error:
            self._discard()
            if isinstance(error, OSError):
                raise _translated(error, self._uri, self._size) from error
            raise
        return self._store._link(self._temporary, self._uri, status, self._over)

    def _sync(self) -> None:
        """Makes the bytes survive what the file is to survive, once."""
        if not self._synced:
            try:
                self._file.flush()
                _sync(self._temporary.descriptor, self._durable)
            except OSError as error:
                raise _translated(error, self._uri, self._size) from error
            self._synced = True

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
    target = f"{_named()}-link"
    try:
        with nofollow.folder(store.root_of(f"{scratch}/"), scratch) as folder:
            try:
                temporary.link(target, folder)
                temporary.link(target, folder)
            except FileExistsError:
                return
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(target, dir_fd=folder)
        raise ConfigError(
            f"{scratch} is on a file system whose hard links replace existing files, so outputs could be overwritten; "
            "choose an output on a local disk, gs:// or s3://"
        )
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise _translated(error, scratch) from error
        raise ConfigError(
            f"{scratch} is on a file system without hard links ({error.strerror}), which atomic publishing needs; "
            "choose an output on another file system, gs:// or s3://"
        ) from error
    finally:
        temporary.discard()


def sync_directories(root: str, leave: Collection[str] = ()) -> int:
    """Makes the names published below `root` survive a power loss; returns the number of directories synced.

    Folders in it that `leave` names, and what is in them, are left out: those of earlier runs, which may be thousands.
    Publishing syncs contents, which is what surviving a kill takes; the directories are synced once, at a run's end.
    Raises StorageError for one that the disk cannot keep: nobody may be told that it would survive.
    """
    synced, left = 0, {f"{root}/{one}" for one in leave}
    for directory, within, _ in os.walk(_path(root)):
        within[:] = (one for one in within if f"{directory}/{one}" not in left)
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # another driver, which has completed the job, removes its stages
        except OSError as error:
            raise _translated(error, directory) from error
        try:
            os.fsync(descriptor)
        except OSError as error:
            # Of a file system that keeps no folder apart, as some shares, nobody can ask more than it does by itself.
            if error.errno != errno.EINVAL:
                raise _translated(error, directory) from error
        else:
            synced += 1
        finally:
            os.close(descriptor)
    return synced


def sweep_scratch(
    parent: str, keep: str, now: float, older_than_s: float, is_scratch: Callable[[str], bool] = lambda _: False
) -> int:
    """Removes temporaries of curate's in `parent`, and in the scratch directories there, that were not written to for
    `older_than_s`, and those directories once they are empty; returns how many entries of `parent` it removed.

    Temporaries are told by their names, and so are scratch directories, by `is_scratch`: whatever else is there is
    somebody else's and stays. `keep` is never removed. What a kill leaves there (temporaries with a name, of objects
    that are replaced or of file systems without nameless ones, and the link that a probe makes) is invisible to every
    reader, and only takes space. Raises ConfigError if there is a link on the way to `parent`.
    """

    def is_ours(name: str) -> bool:
        above, _, last = name.rstrip("/").rpartition("/")
        return is_scratch(last) if name[-1] == "/" and not above else name[-1] != "/" and is_temporary(last)

    root = nofollow.root_of(_path(parent))
    kept = keep.rstrip("/").removeprefix(f"{parent.rstrip('/')}/")
    return nofollow.remove(root, parent, is_ours, keep=kept, before=now - older_than_s)


def remove_scratch(scratch: str) -> None:
    """Removes a scratch directory that no attempt writes to any more; what is in it and no temporary of curate's stays,
    and so does the directory then."""
    above, _, name = _path(scratch).rstrip("/").rpartition("/")
    with contextlib.suppress(OSError, ConfigError):
        nofollow.remove(
            nofollow.root_of(above),
            above,
            lambda one: one == f"{name}/" or (one.startswith(f"{name}/") and is_temporary(one[len(name) + 1 :])),
        )


class _File(io.FileIO):
    """A regular file that is read: as one object, if it is given one. Others may write to the file in place.

    What the disk says is a StorageError: of an OSError, who unpacks or parses would think that the bytes are wrong."""

    object: Object | None = None

    def readinto(self, buffer: Any, /) -> int | None:
        try:
            count = super().readinto(buffer)
        except OSError as error:
            raise _translated(error, str(self.name)) from error
        self.check()
        return count

    def readall(self) -> bytes:
        try:
            data = super().readall()
        except OSError as error:
            raise _translated(error, str(self.name)) from error
        self.check()
        return data

    def check(self) -> None:
        """Raises GenerationMismatch if this is not the object any more: what was just read may be of either."""
        if (seen := self.object) and (found := _generation(os.fstat(self.fileno()))) != seen.generation:
            raise mismatch(seen.uri, seen.generation, found)


def _regular(path: str, object: Object | None = None) -> _File:
    """Opens a regular file, and never waits for one who writes to a FIFO. Raises OSError, _NotRegularError, and
    GenerationMismatch if it is not the object."""
    try:
        file = _File(path, opener=_without_waiting)
    except IsADirectoryError:
        raise _NotRegularError("a directory") from None
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise _NotRegularError(_kind_of(os.stat(path).st_mode)) from None
    try:
        if not stat_bits.S_ISREG(mode := os.fstat(file.fileno()).st_mode):
            raise _NotRegularError(_kind_of(mode))
        file.object = object
        file.check()
    except BaseException:
        file.close()
        raise
    return file


def _walk(prefix: str) -> Iterator[Columns]:
    """Yields the files whose path starts with `prefix`, in code-point order of the whole path, in pages: the first one
    is in a page of its own, for whoever looks for one file is not to be told that what lies behind it cannot be read.

    A link to nothing is told, too: on a disk that is not mounted, or of data that were not fetched, a file would be.
    Directories sort as if their name ended in the slash that follows it in every path below: "a-b" < "a/b" < "a.b"
    is wrong, "a-b" < "a.b" < "a/b" is right. Links are followed, except into a directory that was passed on the way.
    """
    top, _, start = prefix.rpartition("/")
    if top and os.path.normpath(top) != top:
        # To the system "a//b" is "a/b"; as a string it begins no path that this function yields.
        return
    pending = [(f"{top}/", iter(_names(f"{top}/", start)))]
    page, last = Columns(), 1
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
                if not _is_gone(error):
                    raise _translated(error, path) from error
                if not os.path.islink(path):
                    continue
                page.add_special(path, LINK_TO_NOTHING)
            else:
                if stat_bits.S_ISREG(status.st_mode):
                    page.uris.append(path)
                    page.sizes.append(size := status.st_size)
                    page.generations.append(f"{status.st_mtime_ns}-{size}")
                else:
                    page.add_special(path, _kind_of(status.st_mode))
            if len(page.uris) >= last:
                yield page
                page, last = Columns(), LIST_PAGE - 1 if last == 1 else LIST_PAGE
        else:
            pending.pop()
    if page:
        yield page


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
                elif not _leads_back(entry.path):
                    names.append(name + "/")
            else:
                names.append(name + "/" if entry.is_dir() else name)
    names.sort()
    return names


def _leads_back(link: str) -> bool:
    """Returns whether a link leads to a directory that contains it, or a link on the way to it: the way would come by
    there again, and following it would never end."""
    target = os.path.realpath(link).rstrip("/") + "/"
    on_the_way = link
    while on_the_way != "/":
        above = os.path.dirname(on_the_way)
        # Between two links each directory contains the next one, so that only the last one is to be looked at.
        if os.path.islink(on_the_way) and (os.path.realpath(above) + "/").startswith(target):
            return True
        on_the_way = above
    return False


def _is_gone(error: OSError) -> bool:
    """Returns whether the file vanished since it was seen, or is a link to nothing or in a ring."""
    return error.errno in (errno.ENOENT, errno.ELOOP)


def _path(uri: str) -> str:
    if uri[:1] != "/":
        raise ConfigError(f"{uri!r} was given to a store of local files; expected an absolute path; normalise(uri) it")
    return uri


class _NotRegularError(Exception):
    """What has a name is no regular file; the message says what it is: "a FIFO"."""


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


_KINDS = {
    stat_bits.S_IFDIR: "a directory",
    stat_bits.S_IFIFO: "a FIFO",
    stat_bits.S_IFSOCK: "a socket",
    stat_bits.S_IFCHR: "a device",
    stat_bits.S_IFBLK: "a device",
}


def _kind_of(mode: int) -> str:
    return _KINDS.get(stat_bits.S_IFMT(mode), "no regular file")


def _refuse_special(status: os.stat_result, uri: str) -> None:
    if not stat_bits.S_ISREG(status.st_mode):
        raise ObjectNotFound(f"{uri} does not exist as an object: it is {_kind_of(status.st_mode)}", uri)


def _generation(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}-{status.st_size}"


def _sync(descriptor: int, durable: bool = True) -> None:
    """Gives a written file its time, and syncs it, if it is to be durable.

    The kernel stamps files with the time of its last tick, milliseconds ago; the exact time keeps two contents of the
    same size, written one after the other under one name, at different generations.
    """
    now_ns = time.time_ns()
    os.utime(descriptor, ns=(now_ns, now_ns))
    if durable:
        os.fsync(descriptor)


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


def _free(path: str) -> tuple[int, int | None]:
    """Returns the bytes and the inodes that are free where a path is, or will be, for who is not root.

    0 bytes if that cannot be told; None if the file system does not limit the number of files.
    """
    while path != "/" and not os.path.exists(path):
        path = os.path.dirname(path)
    try:
        found = os.statvfs(path)
    except OSError:
        return 0, None
    return found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None


def _unwritten(error: OSError, uri: str) -> StorageError | ConfigError:
    """As `_translated`, of what was to be written: a file may lie where a folder above it is to be."""
    if not isinstance(error, NotADirectoryError):
        return _translated(error, uri)
    taken = next(folder for folder in PurePath(uri).parents if os.path.lexists(folder))
    return StorageError(f"{uri} cannot be written: {taken} is not a folder; move it, and run again")


def _refuse_folderless(path: str) -> None:
    """Raises PermissionDenied if the last folder on the way to a path is there, and says of a new one that it is not:
    as a file system does whose folders are no place for files, such as /proc."""
    missing = [one for one in (path, *map(str, PurePath(path).parents)) if not os.path.lexists(one)]
    if not missing:
        return
    above = os.path.dirname(missing[-1])
    try:
        os.mkdir(missing[-1])  # noqa: PTH102
        os.rmdir(missing[-1])  # noqa: PTH106
    except FileNotFoundError:
        if os.path.isdir(above):
            raise PermissionDenied(
                f"{missing[-1]} cannot be made: the file system of {above} takes no new folders; choose another output"
            ) from None
    except OSError:
        # Another process, or what the next try says.
        return


def _refusing(uri: str) -> str:
    """Returns what there is of a path whose permissions may be why it is refused, for a shell: it and its folder, or
    the last folder on the way there that can be seen."""
    path = PurePath(uri)
    seen = [one for one in (path, *path.parents) if os.path.lexists(one)][:2]
    return " ".join(shell_word(str(one)) for one in (reversed(seen) if path in seen else seen[:1]))


def _translated(error: OSError, uri: str, size: int | None = None) -> StorageError | ConfigError:
    """Returns the error of this layer that an error of the operating system stands for: found, expected, what to do.

    What another machine may be able to do, or the next try, is a StorageError, and tried again; a name that is too long
    is too long everywhere. `size`: bytes of the file so
    far, those that were about to be written included, if that is known.
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ObjectNotFound(f"{uri} does not exist", uri)
    if isinstance(error, PermissionError):
        return PermissionDenied(
            f"{uri}: the operating system refused ({error.strerror}) user id {os.geteuid()}; check the permissions "
            f"with: ls -ld {_refusing(uri)}"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(uri, size, *_free(uri))
    if error.errno == errno.EROFS:
        return PermissionDenied(
            f"{uri} cannot be written: the file system is read-only on {os.uname().nodename}; mount it writable (see: "
            "findmnt -T PATH), or choose another output, and run again"
        )
    if error.errno == errno.ENAMETOOLONG:
        longest, whole = max(len(os.fsencode(part)) for part in uri.split("/")), len(os.fsencode(uri))
        return ConfigError(
            # The reason first: what follows may be cut off.
            f"the name is too long: {longest:,} bytes, and the whole path {whole:,}; most file systems take 255 and "
            f"4,096. Shorten the names of inputs or the path of the output: {uri}"
        )
    if error.errno == errno.EIO:
        return StorageError(
            f"{uri}: {error.strerror}: the disk, or the connection to it, failed on {os.uname().nodename}; look at the "
            "kernel's messages (dmesg), and run again when it works"
        )
    if error.errno in _NO_LINKS:
        return StorageError(
            f"{uri} cannot be published from its scratch directory ({error.strerror}); "
            "both must be on one file system with hard links"
        )
    return StorageError(f"{uri}: {error.strerror or error}")
