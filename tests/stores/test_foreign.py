"""Inputs from file systems that fsspec knows: read of one generation, and never written to."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote

import aiohttp
import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

import curate
from curate.errors import (
    ConfigError,
    GenerationMismatch,
    ObjectNotFound,
    PermissionDenied,
    StorageError,
    TransientStorageError,
)
from curate.requests.retry import Retry
from curate.storage.uris import normalise, normalise_input
from curate.stores import foreign
from curate.stores.foreign import ForeignStore
from curate.stores.open import open_store
from curate.testing.clock import FakeClock
from tests.support.s3_emulator import S3Emulator

CONTENT = bytes(range(256)) * 40
LARGE = np.arange(3 << 18, dtype=">u4").tobytes()
"""More than a stream asks for at once."""


class Shelf(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A file system with folders, whose names leave out what their URIs begin with."""

    protocol = "shelf"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("shelf://", "memory://"))  # type: ignore[no-any-return]


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    fsspec.register_implementation("shelf", Shelf, clobber=True)
    Shelf.store.clear()
    yield Shelf(skip_instance_cache=True)
    Shelf.store.clear()


def test_each_place_has_its_file_system(store: ForeignStore) -> None:
    """Also where a place is not told by what follows the scheme: two repositories in one folder were one of them."""

    class Branches(Shelf):
        """Whose URIs are `branches://folder/repository:path`."""

        protocol = "branches"

        def __init__(self, repository: str, **options: Any) -> None:
            super().__init__(**options)
            self.repository = repository

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path.rpartition(":")[2]

        @staticmethod
        def _get_kwargs_from_urls(path: str) -> dict[str, str]:
            return {"repository": path.partition("://")[2].rpartition(":")[0]}

        def info(self, path: str, **_: Any) -> dict[str, Any]:
            return {"name": path, "type": "file", "size": 1, "ETag": self.repository}

    fsspec.register_implementation("branches", Branches, clobber=True)
    uris = [f"branches://code/{one}:a.txt" for one in ("x", "y", "x")]
    assert [store.stat(uri).generation for uri in uris] == ["code/x", "code/y", "code/x"]
    assert len(store._systems) == 2


@pytest.mark.parametrize(("etag", "other"), [('W/"one"', True), ('"one"', False), (None, True)])
def test_a_weak_etag_is_no_generation_of_its_own(store: ForeignStore, etag: str | None, other: bool) -> None:
    """What has the same one may be other bytes, by its time or its size: a strong one alone is that of these bytes. No
    stream has bytes of two versions."""
    now = [1.0, LARGE]

    class Loose(Shelf):
        protocol = "loose"

        def info(self, path: str, **_: Any) -> dict[str, Any]:
            return {"name": path, "type": "file", "size": len(now[1]), "ETag": etag, "mtime": now[0]}

        def cat_file(self, _: str, start: int = 0, end: int | None = None, **__: Any) -> bytes:
            return now[1][start:end]  # type: ignore[no-any-return, index]

    fsspec.register_implementation("loose", Loose, clobber=True)
    before = store.stat("loose://a")
    assert store.stat("loose://a") == before
    stream = store.open(before)
    assert stream.read(10) == LARGE[:10]
    for later in ([2.0, LARGE[::-1]], [1.0, LARGE[:-1]]):
        now[:] = later
        assert (store.stat("loose://a").generation != before.generation) == other
    now[:] = [2.0, LARGE[::-1]]
    with pytest.raises(GenerationMismatch) if other else contextlib.nullcontext():
        stream.read()


@pytest.fixture
def web(s3_emulator: S3Emulator) -> str:
    """A web server with ranges and ETags, and no listings: what is public in a bucket."""
    s3_emulator.put("s3://bucket/a/x.bin", CONTENT)
    return f"{s3_emulator.url}/bucket/a"


@pytest.fixture
def store(clock: FakeClock) -> ForeignStore:
    return ForeignStore(Retry(clock=clock, deadline_s=5.0))


def test_a_file_on_the_web(web: str, store: ForeignStore, s3_emulator: S3Emulator) -> None:
    """Found by its name without a listing; its ETag is its generation; ranges are what they should be."""
    uri = f"{web}/x.bin"
    (found,) = store.list(uri)
    assert found == store.stat(uri)
    assert (found.uri, found.size, found.generation) == (
        uri,
        len(CONTENT),
        s3_emulator.generation("s3://bucket/a/x.bin"),
    )
    for start, stop in [(0, None), (3, 9), (-5, None), (10_000, 99_999), (len(CONTENT), None), (7, 7)]:
        assert store.read(uri, start, stop) == CONTENT[start:stop]
    with store.open(found) as stream:
        stream.seek(1000)
        assert stream.read(10) == CONTENT[1000:1010]
        assert stream.read() == CONTENT[1010:]
    copy = pickle.loads(pickle.dumps(store))
    assert copy.read(uri) == CONTENT


class Plain(ThreadingHTTPServer):
    """A web server that knows no ranges, as `python -m http.server`, and says how often it was asked for all it has."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), PlainHandler)
        self.sent = 0


class PlainHandler(BaseHTTPRequestHandler):
    server: Plain

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(LARGE)))
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.end_headers()

    def do_GET(self) -> None:
        self.server.sent += 1
        self.do_HEAD()
        with contextlib.suppress(ConnectionError):  # who has enough of it goes
            self.wfile.write(LARGE)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def plain() -> Iterator[Plain]:
    with Plain() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class TestAServerWithoutRanges:
    """It sends all of a file for each range, so that what is read of it by ranges grew with the square of its size."""

    @pytest.mark.parametrize(
        "reads",
        [
            [(start, start + (64 << 10)) for start in range(0, len(LARGE), 64 << 10)],
            [(len(LARGE) - 8, len(LARGE)), (0, 9), (1 << 20, 2 << 20)],
            [(0, len(LARGE))],
        ],
    )
    def test_a_small_file_is_sent_once(self, plain: Plain, store: ForeignStore, reads: list[tuple[int, int]]) -> None:
        """However it is read, front to back or from its end."""
        found = store.stat(f"http://127.0.0.1:{plain.server_port}/x.bin")
        with store.open(found) as stream:
            for start, stop in reads:
                stream.seek(start)
                assert stream.read(stop - start) == LARGE[start:stop]
        assert plain.sent == 1

    def test_a_large_one_is_refused_at_once(
        self, plain: Plain, store: ForeignStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As soon as more arrives than was asked for: it is held nowhere. All of it may be asked for."""
        monkeypatch.setattr(foreign, "WHOLE_BYTES", len(LARGE) - 1)
        uri = f"http://127.0.0.1:{plain.server_port}/x.bin"
        message = r"x\.bin: its server knows no ranges, and sends all 3\.00 MiB for .*download it, and read the copy"
        for start, stop in ((0, 100), (5000, 6000), (1, None)):
            with pytest.raises(StorageError, match=message) as caught:
                store.read(uri, start, stop)
            assert type(caught.value) is StorageError
        assert plain.sent == 3
        assert store.read(uri) == LARGE

    def test_one_with_ranges_has_no_limit(self, web: str, store: ForeignStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(foreign, "WHOLE_BYTES", 10)
        with store.open(store.stat(f"{web}/x.bin")) as stream:
            stream.seek(1000)
            assert stream.read(10) == CONTENT[1000:1010]
            assert stream.read() == CONTENT[1010:]


def test_a_file_that_changes_under_a_read_is_named(web: str, store: ForeignStore, s3_emulator: S3Emulator) -> None:
    seen = store.stat(f"{web}/x.bin")
    s3_emulator.put("s3://bucket/a/x.bin", CONTENT[::-1])
    with pytest.raises(GenerationMismatch, match="it was replaced; list it again"):
        store.open(seen).read()


def test_what_goes_wrong_on_the_web_is_told(web: str, store: ForeignStore, s3_emulator: S3Emulator) -> None:
    """Missing, not allowed, passing, and out of order: each by its own error."""
    with pytest.raises(ObjectNotFound, match=r"nothing.bin: it does not exist"):
        store.stat(f"{web}/nothing.bin")
    assert list(store.list(f"{web}/nothing.bin")) == []
    for status, error in [(403, PermissionDenied), (400, StorageError)]:
        s3_emulator.fail(status=status, times=99)
        with pytest.raises(error) as caught:
            store.stat(f"{web}/x.bin")
        assert type(caught.value) is error
        s3_emulator.heal()
    s3_emulator.fail(status=503, times=2)
    assert store.stat(f"{web}/x.bin").size == len(CONTENT)
    s3_emulator.fail(status=503, times=999)
    with pytest.raises(TransientStorageError, match=r"stat http://.*503"):
        store.stat(f"{web}/x.bin")


@pytest.mark.parametrize("name", ["a b", "c+d", "100%41", "ü/日本"])
def test_names_on_the_web_are_those_of_addresses(s3_emulator: S3Emulator, store: ForeignStore, name: str) -> None:
    """Quoted, or as they are if they mean nothing else; a name that means another one is not found."""
    s3_emulator.put(f"s3://bucket/{name}", CONTENT)
    for spelled in {name, quote(name)}:
        found = list(store.list(f"{s3_emulator.url}/bucket/{spelled}"))
        assert [one.uri.rpartition("/bucket/")[2] for one in found] == ([] if "%41" in spelled else [spelled])
        assert [store.read(one.uri) for one in found] == [CONTENT] * len(found)


def test_a_host_where_nobody_is() -> None:
    clock = FakeClock()
    with pytest.raises(TransientStorageError, match=r"http://127.0.0.1:9 cannot be reached.*check the address"):
        ForeignStore(Retry(clock=clock)).stat("http://127.0.0.1:9/x.bin")
    assert sum(clock.sleeps) < 5


def test_a_folder_is_listed_in_order(shelf: Shelf, store: ForeignStore) -> None:
    """By code points of the whole name, and a prefix is a string."""
    names = ["a/b", "a-b", "a.b", "a b", "a/ä", "ab/z", "Z/1", "日本"]
    for name in names:
        shelf.pipe_file(f"shelf://top/{name}", name.encode())
    assert [one.uri for one in store.list("shelf://top/")] == [f"shelf://top/{name}" for name in sorted(names)]
    assert [one.uri for one in store.list("shelf://top/a/")] == ["shelf://top/a/b", "shelf://top/a/ä"]
    assert [one.uri[12:] for one in store.list("shelf://top/ab")] == ["ab/z"]
    assert list(store.list("shelf://top/none/")) == []
    for one in store.list("shelf://top/"):
        assert store.open(one).read().decode() == one.uri[12:]


class Folders(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A file system that is gone through a folder at a time, as over SSH; `answers` are what its folders say."""

    protocol = "folders"
    answers: dict[str, Any] = {}  # noqa: RUF012

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        del detail, kwargs
        found = self.answers[path]
        if isinstance(found, list) and found and isinstance(found[0], Exception):
            found = found.pop(0)
        if isinstance(found, Exception):
            raise found
        names = [f"{path.rstrip('/')}/{name}" if path else name for name in found]
        return [{"name": one, "type": "directory" if one[-1] == "/" else "file", "size": 3} for one in names]

    def info(self, path: str, **kwargs: Any) -> Any:
        del kwargs
        return {"name": path, "type": "file", "size": 3}


class TransportError(Exception):
    """As that of httpx, which need not be installed."""


class ReadTimeout(TransportError):
    pass


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    fsspec.register_implementation("folders", Folders, clobber=True)
    monkeypatch.setattr(Folders, "answers", {"top": ["b/", "a.x", "c/"], "top/b": ["d/", "e.x"], "top/b/d": ["f.x"]})
    Folders.answers["top/c"] = []
    return Folders.answers


@pytest.mark.parametrize("where", ["top", "top/b", "top/b/d"])
@pytest.mark.parametrize("error", [OSError("socket is closed"), PermissionError("denied"), ConnectionResetError()])
def test_a_folder_that_cannot_be_listed_is_not_left_out(
    folders: dict[str, Any], store: ForeignStore, where: str, error: Exception
) -> None:
    """However deep: its files would be no inputs, and the job complete without them."""
    folders[where] = error
    with pytest.raises(StorageError):
        list(store.list("folders://top/"))


@pytest.mark.parametrize("where", ["top", "top/b", "top/b/d"])
@pytest.mark.parametrize("error", [ConnectionResetError(), aiohttp.ServerDisconnectedError(), ReadTimeout("late")])
def test_it_is_listed_again(folders: dict[str, Any], store: ForeignStore, where: str, error: Exception) -> None:
    """After what may pass, whichever client's error it is."""
    listed = [one.uri.partition("//")[2] for one in store.list("folders://top/")]
    assert listed == ["top/a.x", "top/b/d/f.x", "top/b/e.x"]
    folders[where] = [error, *folders[where]]
    assert [one.uri.partition("//")[2] for one in store.list("folders://top/")] == listed


def test_a_folder_that_is_gone_by_then_has_nothing_in_it(folders: dict[str, Any], store: ForeignStore) -> None:
    folders["top/b/d"] = FileNotFoundError("top/b/d")
    assert [one.uri for one in store.list("folders://top/")] == ["folders://top/a.x", "folders://top/b/e.x"]
    folders["top"] = FileNotFoundError("top")
    assert list(store.list("folders://top/")) == []


@pytest.mark.parametrize("root", ["", "/", "top", "/top", "a/top"])
def test_names_that_come_again(
    folders: dict[str, Any], store: ForeignStore, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    """A folder within one of its name, and all that there is: each file is itself, once."""
    monkeypatch.setattr(Folders, "_strip_protocol", staticmethod(lambda _: root))
    above = root.rstrip("/")
    folders |= {root: ["x", "sub/", "top/"], f"{above}/sub": ["top/"], f"{above}/sub/top": ["x"], f"{above}/top": ["x"]}
    if not root:
        folders |= {"sub": ["top/"], "sub/top": ["x"], "top": ["x"]}
    listed = [one.uri.removeprefix("folders://host/") for one in store.list("folders://host/")]
    assert listed == ["sub/top/x", "top/x", "x"]


def test_a_page_that_links_to_itself(folders: dict[str, Any], store: ForeignStore) -> None:
    """As those of web servers do, to be in another order."""
    folders["top"] = ["?C=N;O=D", "?C=M;O=A", "./", "../", "b/", "a.x", ".hidden", "..x"]
    listed = [one.uri.partition("//")[2] for one in store.list("folders://top/")]
    assert listed == ["top/..x", "top/.hidden", "top/a.x", "top/b/d/f.x", "top/b/e.x"]


def test_nothing_is_written(store: ForeignStore) -> None:
    """Whatever is tried: refused with the reason, and the stores that can be outputs."""
    uri = "hf://datasets/org/name/x"
    for write in (
        lambda: store.publish(uri, b""),
        lambda: store.replace(uri, b""),
        lambda: store.writer(uri),
        lambda: store.delete(uri),
        lambda: normalise(uri),
    ):
        with pytest.raises(
            ConfigError, match=r"hf://.* cannot be an output.*expected gs://bucket/key, s3://bucket/key"
        ):
            write()
    assert store.may_delete(uri) is False


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("sftp://me:hunter 2@host/x", "sftp://[secret]@host/x"),
        ("https://host/x?sig=hunter2&y=1", "https://host/x?sig=[secret]&y=1"),
    ],
)
def test_a_secret_does_not_get_into_a_ledger(uri: str, shown: str) -> None:
    """Nor into the message: a password, and the signature of an address."""
    with pytest.raises(ConfigError, match=r"contains a secret.*use keys, or the configuration of fsspec") as caught:
        normalise_input(uri)
    assert repr(shown) in str(caught.value)
    assert "hunter" not in str(caught.value)


def test_a_user_is_no_secret() -> None:
    assert normalise_input("sftp://me@host/x/") == "sftp://me@host/x"


def test_a_package_that_is_missing_is_named(store: ForeignStore) -> None:
    """fsspec knows what a file system needs."""
    with pytest.raises(ConfigError, match=r"sftp:// needs a package that is not installed: .*paramiko"):
        store.stat("sftp://host/x")


def test_a_job_reads_what_others_keep(shelf: Shelf, tmp_path: Path) -> None:
    """By a glob, to the end; run again, it is done, and a file that changed is noticed. As an output it is refused."""
    for number in range(3):
        shelf.pipe_file(f"shelf://in/{number}.jsonl", b'{"text": "row %d"}\n' % number)
    assert isinstance(open_store("shelf://in/0.jsonl"), ForeignStore)
    ds = curate.read_json("shelf://in/*.jsonl")
    ds.write_parquet(f"{tmp_path}/out", backend="inline")
    rows = [row for path in sorted((tmp_path / "out").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert rows == [{"text": f"row {number}"} for number in range(3)]
    with pytest.raises(ConfigError, match="cannot be an output"):
        ds.write_parquet("shelf://out", backend="inline")
    assert [name for name in Shelf.store if "out" in name] == []
