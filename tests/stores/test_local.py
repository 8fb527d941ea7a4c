# ruff: noqa: PTH103, PTH106, PTH108, PTH110, PTH115, PTH208, PTH211
"""The local store: kills at every step, odd file systems, and what only files can do."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from curate.errors import (
    ConfigError,
    CurateError,
    DiskFull,
    GenerationMismatch,
    ObjectNotFound,
    PermissionDenied,
    StorageError,
)
from curate.folders import nofollow
from curate.storage.protocol import Outcome, Special
from curate.stores import local
from curate.stores.local import LocalStore, probe_linking, sweep_scratch, sync_directories
from curate.stores.open import open_store

SMALL = b"0123456789" * 10
LARGE = b"0123456789" * 500_000


@pytest.fixture
def root(tmp_path: Path) -> str:
    return f"{tmp_path}/out"


@pytest.fixture
def scratch(tmp_path: Path) -> str:
    return f"{tmp_path}/scratch"


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """On a disk: in memory a folder that was removed still takes files without a name."""
    return disk_path


@pytest.fixture(params=["nameless", "named"])
def temporaries(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a store of this module's tests keeps what is not published yet; not every file system has both ways."""
    kind: str = request.param
    if kind == "nameless" and not local.NAMELESS:
        pytest.skip("this system has no files without a name")
    monkeypatch.setattr(local, "NAMELESS", kind == "nameless")
    return kind


@pytest.fixture
def store(scratch: str, temporaries: str) -> LocalStore:
    del temporaries
    return LocalStore(scratch)


STEPS = ["open", "write", "utime", "fsync", "fstat", "link", "unlink"]
KILLED_CHILD = """
    import os, signal, sys
    how, step, when, root, scratch, temporaries = sys.argv[1:]
    from curate.stores import local
    from curate.stores.local import LocalStore

    local.NAMELESS = temporaries == "nameless"

    def killing(real):
        def call(*args, **kwargs):
            if when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            if when == "within" and step == "write":
                args = (args[0], args[1][: len(args[1]) // 2])
            result = real(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)
            return result
        return call

    store = LocalStore(scratch)
    data = b"0123456789" * (10 if how in ("publish", "replace") else 500_000)
    if when != "between":
        setattr(os, step, killing(getattr(os, step)))
    if how == "publish":
        store.publish(root + "/a/x", data)
    elif how == "replace":
        store.replace(root + "/x", data)
    else:
        with store.writer(root + "/a/x") as writer:
            writer.write(data)
            if when == "between":
                os.kill(os.getpid(), signal.SIGKILL)
            writer.publish()
    print("survived")
"""


def kill_child(how: str, step: str, when: str, root: str, scratch: str, temporaries: str) -> None:
    """Runs a publish in a process that kills itself, with a signal nobody can catch, around one system call."""
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED_CHILD), how, step, when, root, scratch, temporaries],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stdout + ran.stderr


AROUND = [(step, when) for step in STEPS for when in ("before", "after")]


@pytest.mark.ci(28)
@pytest.mark.quick(12)
@pytest.mark.parametrize(
    ("how", "step", "when"),
    [("publish", *kill) for kill in AROUND]
    + [("publish", "write", "within")]
    # Its buffer writes from C, out of reach of the patch: the kill comes between two writes instead.
    + [("writer", *kill) for kill in AROUND if kill[0] != "write"]
    + [("writer", "write", "between")],
)
def test_a_kill_at_any_step_leaves_all_or_nothing(
    root: str, scratch: str, temporaries: str, how: str, step: str, when: str
) -> None:
    """Killed between any two system calls, a publish has happened whole or not at all; running again completes it."""
    if step == "unlink" and temporaries == "nameless":
        pytest.skip("what has no name is not removed")
    kill_child(how, step, when, root, scratch, temporaries)
    assert temporaries == "named" or not os.path.exists(scratch) or os.listdir(scratch) == []
    data = SMALL if how == "publish" else LARGE
    path = Path(root, "a/x")
    linked = (step, when) in [("link", "after"), ("unlink", "before"), ("unlink", "after")]
    assert path.exists() is linked
    assert not linked or path.read_bytes() == data
    assert LocalStore(scratch).publish(str(path), data).outcome is (Outcome.IDENTICAL if linked else Outcome.CREATED)
    assert path.read_bytes() == data


@pytest.mark.parametrize(("step", "when"), [("fsync", "before"), ("replace", "before"), ("replace", "after")])
def test_a_kill_while_replacing_leaves_old_or_new(
    root: str, scratch: str, store: LocalStore, temporaries: str, step: str, when: str
) -> None:
    """A mutable object is the old one or the new one, never a mixture."""
    store.publish(f"{root}/x", b"old")
    kill_child("replace", step, when, root, scratch, temporaries)
    assert Path(root, "x").read_bytes() == (SMALL if when == "after" else b"old")


def test_nothing_is_left_in_scratch(store: LocalStore, root: str, scratch: str, temporaries: str) -> None:
    """However a write ends, its temporary is gone."""
    for data in (b"1", b"1", b"2"):
        store.publish(f"{root}/x", data)
    store.replace(f"{root}/x", b"3")
    with store.writer(f"{root}/x") as writer:
        writer.write(LARGE)
        assert len(os.listdir(scratch)) == (temporaries == "named")
        writer.publish()
        assert os.listdir(scratch) == []
    with store.writer(f"{root}/y") as writer:
        writer.write(LARGE)
    dropped = store.writer(f"{root}/y")
    dropped.write(LARGE)
    del dropped
    assert os.listdir(scratch) == []
    assert os.listdir(root) == ["x"]


def test_without_scratch_it_reads_and_deletes_but_does_not_write(store: LocalStore, root: str) -> None:
    """A store opened for reading says what it lacks."""
    created = store.publish(f"{root}/x", b"x").object
    reader = open_store(root)
    assert reader.read(created.uri) == b"x"
    for write in (
        lambda: reader.publish(created.uri, b"x"),
        lambda: reader.replace(created.uri, b"x"),
        lambda: reader.writer(created.uri),
    ):
        with pytest.raises(
            StorageError, match="opened for reading, without a scratch directory; open it with open_store"
        ):
            write()
    assert reader.delete(created.uri, created.generation)


def test_scratch_appears_when_it_is_first_needed(store: LocalStore, root: str, scratch: str) -> None:
    """Opening a store touches nothing; a swept scratch directory comes back."""
    list(store.list(f"{root}/"))
    assert not os.path.exists(scratch)
    store.publish(f"{root}/x", b"x")
    os.rmdir(scratch)
    store.publish(f"{root}/y", b"y")
    assert os.listdir(scratch) == []


def failing(number: int, calls: list[object]) -> Callable[..., object]:
    def fail(*args: object, **_: object) -> object:
        calls.append(args)
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("step", ["write", "fsync", "link"])
@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (errno.ENOSPC, StorageError, "the disk or its quota is full; free space and run again"),
        (errno.EACCES, PermissionDenied, "the operating system refused .* check the permissions with: ls -ld"),
        (errno.EROFS, PermissionDenied, "/out/x cannot be written: the file system is read-only on .*findmnt"),
        (errno.ENAMETOOLONG, ConfigError, "the name is too long: .* bytes, .* Shorten the names of inputs or .*/out/x"),
        (errno.EIO, StorageError, "/out/x: Input/output error: the disk, .* failed on .* run again when it works"),
        (errno.EXDEV, StorageError, "must be on one file system with hard links"),
    ],
)
def test_errors_of_the_system_are_translated(
    monkeypatch: pytest.MonkeyPatch,
    store: LocalStore,
    root: str,
    scratch: str,
    step: str,
    number: int,
    error: type[CurateError],
    message: str,
) -> None:
    """Each says what to do, is tried once, and leaves nothing behind."""
    calls: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, step, failing(number, calls))
        with pytest.raises(error, match=message):
            store.publish(f"{root}/x", b"x")
    assert len(calls) == 1
    assert os.listdir(scratch) == []
    assert not os.path.exists(f"{root}/x")


@pytest.mark.parametrize("read", [lambda file: file.read(), lambda file: file.read(4)])
def test_what_the_disk_says_while_a_file_is_read_is_an_error_of_the_store(
    read: Callable[[Any], bytes], store: LocalStore
) -> None:
    """For an OSError, those who unpack or parse would hold the bytes for broken ones, which are set aside for good."""
    if not os.path.exists(memory := "/proc/self/mem"):
        pytest.skip("there is no file here of which a read fails")
    with (
        store.open(store.stat(memory)) as file,
        pytest.raises(StorageError, match=f"{memory}: Input/output error: .* run again when it works"),
    ):
        read(file)


def test_a_file_system_without_inodes_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, store: LocalStore, root: str
) -> None:
    """Gigabytes may be free, and no file more; where files are not counted, it is the disk."""
    free = os.statvfs("/")

    def statvfs(files: int, left: int) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=10**9, f_frsize=free.f_frsize, f_files=files, f_favail=left)

    monkeypatch.setattr(os, "write", failing(errno.ENOSPC, []))
    monkeypatch.setattr(os, "statvfs", lambda _: statvfs(1000, 0))
    with pytest.raises(
        DiskFull, match=r"takes no more files \(0 inodes are free; [\d,]{13,} bytes are\); remove files"
    ):
        store.publish(f"{root}/x", b"x")
    monkeypatch.setattr(os, "statvfs", lambda _: statvfs(0, 0))
    with pytest.raises(DiskFull, match="the disk or its quota is full; free space and run again"):
        store.publish(f"{root}/x", b"x")


def test_a_full_disk_under_a_writer_is_told(monkeypatch: pytest.MonkeyPatch, store: LocalStore, root: str) -> None:
    """The same through a buffer: at publish."""
    with store.writer(f"{root}/x") as writer:
        writer.write(b"x")
        monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC, []))
        with pytest.raises(StorageError, match="is full"):
            writer.publish()


def test_a_sweep_under_a_running_writer_is_told(store: LocalStore, root: str, scratch: str, temporaries: str) -> None:
    """A temporary that someone removed cannot be published, and nothing loops; one without a name cannot be removed."""
    with store.writer(f"{root}/x") as writer:
        writer.write(b"x")
        for name in os.listdir(scratch):
            os.unlink(f"{scratch}/{name}")
        if temporaries == "nameless":
            assert writer.publish().outcome is Outcome.CREATED
            return
        with pytest.raises(StorageError, match=r"its temporary .* was removed while it was written"):
            writer.publish()


@pytest.mark.parametrize(("how", "step"), [("replace", "replace"), ("publish", "link"), ("writer", "link")])
def test_what_a_kill_leaves_is_swept(tmp_path: Path, how: str, step: str) -> None:
    """Named temporaries of every kind of write, a probe's link, files of a scratch directory without folders; after a
    day, by whoever comes next, and never one's own, nor what has another name."""
    tmp = tmp_path / "tmp"
    for scratch in ("of-a-run", "mine"):
        kill_child(how, step, "before", f"{tmp_path}/out", str(tmp / scratch), "named")
        assert len(list((tmp / scratch).iterdir())) == 1
    (tmp / "of-a-run" / "0123456789abcdef-1-2-link").write_bytes(b"")
    half, foreign = tmp / "0123456789abcdef-1-2", tmp / "notes-1-2"
    for path in (half, foreign):
        path.write_bytes(b"half")
    now = half.stat().st_mtime

    def sweep(now: float) -> int:
        return sweep_scratch(str(tmp), f"{tmp}/mine/", now, 86_400, lambda name: name in ("of-a-run", "mine"))

    assert sweep(now) == 0
    assert sweep(now + 86_401) == 2
    assert sorted(path.name for path in tmp.iterdir()) == ["mine", foreign.name]
    assert len(list((tmp / "mine").iterdir())) == 1
    assert sweep_scratch(f"{tmp_path}/nowhere", "", now, 0) == 0


def test_a_scratch_directory_that_was_removed_is_made_again(store: LocalStore, root: str, scratch: str) -> None:
    """By the same store, which had written there: another run may have swept it."""
    for name in "abc":
        assert store.publish(f"{root}/{name}", SMALL).outcome is Outcome.CREATED
        with store.writer(f"{root}/{name}-written") as writer:
            writer.write(SMALL)
            writer.publish()
        os.rmdir(scratch)


def test_a_scratch_directory_that_is_removed_as_it_is_made_is_made_again(
    store: LocalStore, root: str, scratch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever that is: as another run ends on the same output. Not for ever."""
    made = nofollow.open_folder
    removals = iter([True, True])

    def removed(root: str, path: str, *, make: int = 0) -> int:
        found = made(root, path, make=make)
        if make and path == scratch and next(removals, False):
            os.close(found)
            os.rmdir(scratch)
            raise FileNotFoundError(2, "removed meanwhile", path)
        return found

    monkeypatch.setattr(nofollow, "open_folder", removed)
    assert store.publish(f"{root}/a", SMALL).outcome is Outcome.CREATED
    assert next(removals, None) is None
    shutil.rmtree(scratch)
    removals = iter(lambda: True, False)
    with pytest.raises(StorageError, match="another process keeps removing it"):
        store.publish(f"{root}/b", SMALL)


def test_a_temporary_that_is_being_written_is_not_swept(
    store: LocalStore, root: str, scratch: str, temporaries: str
) -> None:
    """However old its directory is; one without a name needs no directory."""
    with store.writer(f"{root}/x") as writer:
        for _ in range(3):
            writer.write(LARGE)
        os.utime(scratch, (1, 1))
        swept = sweep_scratch(str(Path(scratch).parent), "", time.time() + 60, 3600, lambda name: name == "scratch")
        assert swept == (temporaries == "nameless")
        assert writer.publish().outcome is Outcome.CREATED


def test_a_file_system_without_nameless_files_gets_named_ones(
    monkeypatch: pytest.MonkeyPatch, scratch: str, root: str
) -> None:
    """It is asked once; what it writes is the same."""
    if not local.NAMELESS:
        pytest.skip("this system has no files without a name")
    real, asked = os.open, []

    def without(path: str, flags: int, *rest: int, **where: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            asked.append(os.readlink(f"/proc/self/fd/{where['dir_fd']}"))
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, *rest, **where)

    monkeypatch.setattr(os, "open", without)
    store = LocalStore(scratch)
    for name in "ab":
        assert store.publish(f"{root}/{name}", SMALL).outcome is Outcome.CREATED
        assert store.read(f"{root}/{name}") == SMALL
    assert asked == [scratch]
    assert os.listdir(scratch) == []


def test_a_name_that_cannot_be_taken_is_told(store: LocalStore, root: str) -> None:
    """A directory, or a link to nothing, in the place of the object."""
    os.makedirs(f"{root}/dir")
    os.symlink("nowhere", f"{root}/dangling")
    with pytest.raises(StorageError, match="a directory has that name; move it"):
        store.publish(f"{root}/dir", b"x")
    with pytest.raises(StorageError, match="its name exists but cannot be read"):
        store.publish(f"{root}/dangling", b"x")


def test_a_file_where_a_folder_is_to_be_is_told(store: LocalStore, root: str) -> None:
    """Of what is written it would be no help to hear that it does not exist, and of what is read, it does not."""
    store.publish(f"{root}/file", b"x")
    uri = f"{root}/file/below/it"
    error = f"{uri} cannot be written: {root}/file is not a folder; move it, and run again"
    for write in (store.publish, store.replace):
        with pytest.raises(StorageError, match=re.escape(error)):
            write(uri, b"x")
    with pytest.raises(StorageError, match=re.escape(error)), store.writer(uri) as writer:
        writer.publish()
    with pytest.raises(StorageError, match=f"cannot be written: {root}/file is not a folder"):
        LocalStore(f"{root}/file/scratch").publish(f"{root}/other", b"x")
    with pytest.raises(ObjectNotFound, match=f"{uri} does not exist"):
        store.stat(uri)
    assert store.delete(uri) is False


def test_directories_are_not_objects(store: LocalStore, root: str) -> None:
    """They are not listed, empty or not, and not found."""
    os.makedirs(f"{root}/empty/nested")
    store.publish(f"{root}/full/x", b"x")
    assert [found.uri for found in store.list(root)] == [f"{root}/full/x"]
    for call in (store.stat, store.read):
        with pytest.raises(ObjectNotFound, match="it is a directory"):
            call(f"{root}/full")
    assert store.delete(f"{root}/full") is False


def test_links_are_followed_but_not_in_circles(store: LocalStore, root: str, tmp_path: Path) -> None:
    """Data often lies behind links; a link to nothing is told as what it is, and no object; one to a directory above it
    would never end."""
    store.publish(f"{tmp_path}/elsewhere/deep/z", b"z")
    store.publish(f"{root}/a", b"a")
    for target, link in [
        ("a", "b-file"),
        (f"{tmp_path}/elsewhere", "c-directory"),
        ("nowhere", "d-dangling"),
        ("e-itself", "e-itself"),
        (".", "f-here"),
        ("..", "g-above"),
        ("/", "h-top"),
    ]:
        os.symlink(target, f"{root}/{link}")
    os.symlink("../..", f"{tmp_path}/elsewhere/deep/back")
    listed = list(store.list(f"{root}/"))
    links = {one.uri.removeprefix(f"{root}/"): one.kind for one in listed if isinstance(one, Special)}
    assert links == {"d-dangling": "a link to nothing", "e-itself": "a link to nothing"}
    found = [one.uri.removeprefix(f"{root}/") for one in listed if not isinstance(one, Special)]
    assert [name for name in found if "back" not in name] == ["a", "b-file", "c-directory/deep/z"]
    os.symlink(root, f"{tmp_path}/linked-root")
    assert next(store.list(f"{tmp_path}/linked-root/")).uri == f"{tmp_path}/linked-root/a"


@pytest.mark.parametrize("seed", range(8))
def test_links_that_lead_to_each_other_end(store: LocalStore, root: str, seed: int) -> None:
    """Folders that link to each other in any way: each is entered by every way on which it is not passed already, and
    nothing else is, and none of the links is taken for one to nothing. There were two to the fortieth ways before."""
    choose = random.Random(seed)
    folders = ["a", "a/x", "b", "b/y/z", "c"]
    for folder in folders:
        store.publish(f"{root}/{folder}/file", b"")
    for number in range(2 + seed):
        os.symlink(f"{root}/{choose.choice(folders)}", f"{root}/{choose.choice(folders)}/to-{number}")

    def files(folder: Path, passed: frozenset[Path]) -> Iterator[str]:
        real = folder.resolve()
        if folder.is_symlink() and any(one.is_relative_to(real) for one in passed):
            return
        for path in folder.iterdir():
            if path.is_dir():
                yield from files(path, passed | {real})
            else:
                yield str(path)

    assert [one.uri for one in store.list(f"{root}/")] == sorted(files(Path(root), frozenset()))
    for below in ("a/", "b/y/"):
        whole = [one for one in store.list(f"{root}/") if one.uri.startswith(f"{root}/{below}")]
        assert list(store.list(f"{root}/{below}")) == whole


def test_files_that_vanish_while_listing_are_skipped(store: LocalStore, root: str) -> None:
    """A listing is of what is there when it gets there."""
    for name in ("a", "b", "c/d", "e"):
        store.publish(f"{root}/{name}", b"")
    listing = store.list(f"{root}/")
    assert next(listing).uri == f"{root}/a"
    store.delete(f"{root}/b")
    store.delete(f"{root}/c/d")
    os.rmdir(f"{root}/c")
    assert [found.uri for found in listing] == [f"{root}/e"]


def test_a_directory_that_may_not_be_read_is_told(
    monkeypatch: pytest.MonkeyPatch, store: LocalStore, root: str
) -> None:
    """A listing without part of its objects would be a lie."""
    store.publish(f"{root}/a/x", b"")
    monkeypatch.setattr(os, "scandir", failing(errno.EACCES, []))
    with pytest.raises(PermissionDenied, match="out/"):
        list(store.list(f"{root}/"))


def test_a_stream_keeps_its_object(store: LocalStore, root: str) -> None:
    """What was opened stays readable after it was replaced or deleted."""
    stream = store.open(store.publish(f"{root}/x", LARGE).object)
    store.replace(f"{root}/x", b"new")
    assert stream.read() == LARGE
    stream.close()


@pytest.mark.parametrize("size", [100, 3 * local.READ_BUFFER_BYTES], ids=["small", "large"])
@pytest.mark.parametrize("ask", [-1, 10, 1 << 20])
@pytest.mark.parametrize("change", ["grown", "cut", "written over"])
def test_a_stream_gives_no_bytes_of_a_file_that_changes_in_place(
    store: LocalStore, root: str, size: int, ask: int, change: str
) -> None:
    """Somebody writes to it between any two reads: each gives bytes of the object that was opened, or says that it is
    another one by now."""
    uri = f"{root}/x"
    published = store.publish(uri, b"a" * size).object
    with store.open(published) as stream:
        assert stream.read(10) == b"a" * 10
        with open(uri, "ab" if change == "grown" else "wb" if change == "cut" else "r+b") as file:
            file.write(b"b" * (5 if change == "cut" else size))
        given: list[bytes] = []
        with pytest.raises(GenerationMismatch, match=f"expected {published.generation}: it was replaced"):
            given.extend(iter(lambda: stream.read(ask), b""))
    assert not b"".join(given).strip(b"a")


def test_racing_overwriters_delete_only_what_they_saw(store: LocalStore, root: str) -> None:
    """Of two who replace the same stale output, the slower cannot delete what the faster published."""
    for lap in range(50):
        uri = f"{root}/{lap}"
        stale = store.publish(uri, b"stale").object
        barrier = threading.Barrier(4)

        def overwrite(uri: str, generation: str, barrier: threading.Barrier) -> list[Outcome]:
            barrier.wait()
            try:
                if not store.delete(uri, generation):
                    return []
            except StorageError:
                return []
            return [store.publish(uri, b"fresh").outcome]

        with ThreadPoolExecutor(4) as pool:
            racing = [pool.submit(overwrite, uri, stale.generation, barrier) for _ in range(4)]
            assert [outcome for done in racing for outcome in done.result()] == [Outcome.CREATED]
        assert store.read(uri) == b"fresh"


def test_probing_accepts_a_file_system_with_links(scratch: str) -> None:
    """And leaves nothing in it."""
    probe_linking(scratch)
    assert os.listdir(scratch) == []


def test_probing_refuses_a_file_system_without_links(monkeypatch: pytest.MonkeyPatch, scratch: str) -> None:
    """None at all, or such that a second link wins: both would break create-only publishing."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", failing(errno.EPERM, []))
        with pytest.raises(
            ConfigError, match=r"without hard links .*choose an output on another file system, gs:// or s3://"
        ):
            probe_linking(scratch)
    monkeypatch.setattr(os, "link", lambda *_, **__: None)
    with pytest.raises(ConfigError, match="hard links replace existing files"):
        probe_linking(scratch)
    assert os.listdir(scratch) == []


def test_syncing_reaches_every_directory(monkeypatch: pytest.MonkeyPatch, store: LocalStore, root: str) -> None:
    """One fsync for each; none for those that are left out, and what is in them."""
    for name in ("a/b/c/x", "a/y", "d/z"):
        store.publish(f"{root}/{name}", b"")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    assert sync_directories(root) == 5
    assert sorted(synced) == [root, f"{root}/a", f"{root}/a/b", f"{root}/a/b/c", f"{root}/d"]
    synced.clear()
    assert sync_directories(root, ["a/b", "gone"]) == 3
    assert sorted(synced) == [root, f"{root}/a", f"{root}/d"]


def test_a_folder_that_another_driver_removes_meanwhile_is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has completed the job and removes the stages, while this one syncs the folders."""
    (tmp_path / "stage").mkdir()
    walked = [(str(tmp_path / "stage"), [], []), (str(tmp_path / "gone"), [], [])]
    monkeypatch.setattr(os, "walk", lambda _: iter(walked))
    assert sync_directories(str(tmp_path)) == 1


@pytest.mark.parametrize("call", ["open", "fsync"])
@pytest.mark.parametrize(
    ("number", "said"), [(errno.EIO, "failed on .*run again"), (errno.EDQUOT, "free space and run")]
)
def test_a_folder_that_the_disk_cannot_keep_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, said: str
) -> None:
    """As a file is: nobody is told that a crash of the machine would lose nothing, and no run ends in a traceback."""

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(StorageError, match=rf"{tmp_path}.*{said}"):
        sync_directories(str(tmp_path))


def test_folders_of_a_file_system_that_syncs_none_end_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some shares answer that a folder is nothing to sync: each run would fail at its end."""

    def refuse(_: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", refuse)
    assert sync_directories(str(tmp_path)) == 0


def test_whoever_may_not_write_to_a_directory_may_not_delete_there() -> None:
    """Nor another's file where only owners may. Asked as another user, in a child."""
    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        # The folders of tests are closed to others.
        Path(root).chmod(0o755)
        for name, mode in (("closed", 0o755), ("open", 0o777), ("sticky", 0o1777)):
            folder = Path(root, name)
            folder.mkdir()
            (folder / "x").write_bytes(b"x")
            folder.chmod(mode)
        uris = [f"{root}/{name}/x" for name in ("closed", "open", "sticky")]
        assert as_nobody(lambda: [LocalStore().may_delete(uri) for uri in uris]) == [False, True, False]


def test_a_refusal_says_whose_permissions_to_look_at() -> None:
    """Of what there is: a folder that was to be made is none that `ls` could show, nor is what a closed one has."""
    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        for name in ("of others", "closed", "open"):
            Path(root, name).mkdir()
            Path(root, name, "x").write_bytes(b"x")
            Path(root, name, "x").chmod(0o600)
        for name, mode in (("", 0o755), ("of others", 0o755), ("closed", 0o700), ("open", 0o755)):
            Path(root, name).chmod(mode)

        uris = [f"{root}/of others/out/_curate/x", f"{root}/closed/x", f"{root}/open/x"]
        assert as_nobody(lambda: [local._refusing(uri) for uri in uris]) == [
            f"'{root}/of others'",
            f"{root}/closed",
            f"{root}/open {root}/open/x",
        ]


def as_nobody(ask: Callable[[], Any]) -> Any:
    """Returns what a function returns in a child that is another user. Skips the test where it may not be one."""
    if os.geteuid() != 0:
        pytest.skip("only the superuser may become another user")
    here, there = os.pipe()
    child = os.fork()
    if not child:
        os.setresuid(65534, 65534, 65534)
        os.write(there, json.dumps(ask()).encode())
        os._exit(0)
    os.close(there)
    os.waitpid(child, 0)
    with os.fdopen(here) as told:
        return json.loads(told.read())


@pytest.mark.parametrize("output", ["/proc/out", "/proc/out/deep/er"])
def test_where_no_folder_can_be_made(output: str) -> None:
    """A file system that says so of no right, but that what was made is not there: it is refused as one that does."""
    store = open_store(output, scratch=f"{output}/_curate/tmp/a")
    with pytest.raises(PermissionDenied, match="/proc"):
        store.publish(f"{output}/x", b"x")


def test_where_folders_are_removed_by_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no property of the place: it may be tried again."""

    def gone(*_: object, **__: object) -> int:
        raise FileNotFoundError

    monkeypatch.setattr("curate.folders.nofollow.open_folder", gone)
    store = open_store(str(tmp_path / "out"), scratch=str(tmp_path / "out" / "_curate" / "tmp" / "a"))
    with pytest.raises(StorageError, match="another process keeps removing it") as caught:
        store.publish(str(tmp_path / "out" / "x"), b"x")
    assert not isinstance(caught.value, PermissionDenied)
    assert list(tmp_path.iterdir()) == []
