"""Asset: fetched once per node and generation, whole or not at all, however many processes ask at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import curate
from curate.errors import ConfigError, StorageError
from curate.job import asset as asset_module
from curate.job.asset import Asset
from curate.job.job import Job
from curate.ledger.summary import RunState
from curate.stores.memory import clear
from curate.stores.open import open_store
from tests.job.inline import numbered, output_rows, refusing, run_job, write_jsonl, write_parquet
from tests.support.gcs_emulator import GcsEmulator

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bucket() -> Iterator[str]:
    yield "memory://models"
    clear("models")


def put(uri: str, data: bytes) -> None:
    open_store(uri).replace(uri, data)


def files(cache: Path) -> dict[str, bytes]:
    """What is in the cache beside locks and checksums."""
    own = (".lock", ".sum")
    return {path.name: path.read_bytes() for path in cache.rglob("*") if path.is_file() and path.suffix not in own}


def test_a_local_asset_is_its_own_copy(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"weights")
    assert Asset(str(path)).local() == str(path)
    assert Asset(f"file://{path}").local() == str(path)
    assert not cache.exists()


def test_the_home_directory_may_be_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Asset("~/model.bin").uri == f"{tmp_path}/model.bin"


def test_it_is_fetched_once_and_keeps_its_name(bucket: str, cache: Path) -> None:
    """Libraries look at suffixes."""
    put(f"{bucket}/a/model.bin", b"weights")
    asset = Asset(f"{bucket}/a/model.bin")
    first = asset.local()
    assert Path(first).name == "model.bin"
    made = Path(first).stat()
    assert Asset(f"{bucket}/a/model.bin").local() == first
    assert Path(first).stat() == made, "nobody fetched it again"
    assert files(cache) == {"model.bin": b"weights"}


def _cut(path: Path) -> None:
    path.write_bytes(b"wei")


def _changed(path: Path) -> None:
    before = path.stat()
    path.write_bytes(b"WEIGHTS")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _planted(path: Path) -> None:
    path.unlink()
    path.with_name("theirs").write_bytes(b"theirs!")
    path.symlink_to("theirs")


def _waits(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _without_its_sum(path: Path) -> None:
    path.parent.with_suffix(".sum").unlink()


@pytest.mark.parametrize("spoil", [_cut, _changed, _planted, _waits, _without_its_sum])
@pytest.mark.parametrize("known", [True, False], ids=["used-before", "new-process"])
def test_a_copy_is_used_only_if_it_is_what_was_fetched(
    spoil: Callable[[Path], None], known: bool, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By size and checksum, and never through a link; else it is fetched again. By this process, which has used it
    before, or by another."""
    if known and spoil is _without_its_sum:
        pytest.skip("what this process has seen whole, and nobody changed since, is whole")
    put(f"{bucket}/model.bin", b"weights")
    path = Path(Asset(f"{bucket}/model.bin").local())
    if not known:
        monkeypatch.setattr(asset_module, "_whole", {})
    spoil(path)
    assert Path(Asset(f"{bucket}/model.bin").local()) == path
    assert path.read_bytes() == b"weights"
    assert not path.is_symlink()
    if spoil is _planted:
        assert path.with_name("theirs").read_bytes() == b"theirs!"


def test_a_cache_is_its_users_alone(bucket: str, cache: Path) -> None:
    """Whatever the umask: the folder, the parents that had to be made for it, and the files."""
    put(f"{bucket}/model.bin", b"weights")
    before = os.umask(0)
    try:
        Asset(f"{bucket}/model.bin").local()
    finally:
        os.umask(before)
    assert [path for path in (cache, *cache.rglob("*")) if path.stat().st_mode & 0o077] == []


def test_a_lock_that_somebody_planted_is_neither_followed_nor_cut(bucket: str, cache: Path, tmp_path: Path) -> None:
    """It is said which one it is; one that is a file is used as it is."""
    put(f"{bucket}/model.bin", b"weights")
    path = Path(Asset(f"{bucket}/model.bin").local())
    lock = path.parent.with_suffix(".lock")
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    for plant in (lambda: lock.symlink_to(precious), lambda: os.mkfifo(lock), lambda: lock.write_bytes(b"held")):
        path.unlink()
        lock.unlink()
        plant()
        if lock.is_file() and not lock.is_symlink():
            assert Path(Asset(f"{bucket}/model.bin").local()).read_bytes() == b"weights"
            assert lock.read_bytes() == b"held"
        else:
            with pytest.raises(ConfigError, match=rf"{lock.name} cannot be used as a lock.*remove it"):
                Asset(f"{bucket}/model.bin").local()
            path.touch()
    assert precious.read_bytes() == b"mine"
    assert list(files(cache)) == ["model.bin"]


def test_another_generation_is_another_copy(bucket: str) -> None:
    uri = f"{bucket}/model.bin"
    put(uri, b"one")
    old = Asset(uri)
    old.resolve(open_store(uri))
    first = old.local()
    put(uri, b"two")
    assert Path(Asset(uri).local()).read_bytes() == b"two"
    assert Path(first).read_bytes() == b"one"
    assert old.local() == first, "what a job was started with stays what it has"


def test_one_that_changes_while_the_job_runs_is_refused(bucket: str, cache: Path, tmp_path: Path) -> None:
    """Half of the outputs would come from another model than the identity says."""
    for uri in (f"{bucket}/model.bin", str(tmp_path / "model.bin")):
        if uri.startswith("/"):
            Path(uri).write_bytes(b"one")
        else:
            put(uri, b"one")
        asset = Asset(uri)
        asset.resolve(open_store(uri))
        if uri.startswith("/"):
            Path(uri).write_bytes(b"another")
        else:
            put(uri, b"another")
        with pytest.raises(StorageError, match="changed after the job was started; start the job again"):
            asset.local()
    assert files(cache) == {}


def test_one_that_is_gone_is_named(bucket: str, tmp_path: Path) -> None:
    for uri in (f"{bucket}/nowhere.bin", str(tmp_path / "nowhere.bin")):
        with pytest.raises(ConfigError, match=r"asset '.*nowhere.bin' does not exist; check the path"):
            Asset(uri).local()
    asset = Asset(f"{bucket}/model.bin")
    put(asset.uri, b"x")
    asset.resolve(open_store(asset.uri))
    open_store(asset.uri).delete(asset.uri)
    with pytest.raises(StorageError, match="changed after the job was started"):
        asset.local()


def test_a_fetch_that_breaks_off_leaves_nothing(bucket: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one starts anew."""
    import shutil

    put(f"{bucket}/model.bin", b"weights")

    def breaks(source: Any, sink: Any, length: int = 0) -> None:
        del length
        sink.write(source.read(3))
        raise OSError("connection reset")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", breaks)
        with pytest.raises(OSError, match="connection reset"):
            Asset(f"{bucket}/model.bin").local()
    assert files(cache) == {}
    assert Path(Asset(f"{bucket}/model.bin").local()).read_bytes() == b"weights"


def test_what_a_killed_fetch_left_is_written_over(bucket: str, cache: Path) -> None:
    """However often: no second copy, and nothing but the asset in the end."""
    put(f"{bucket}/model.bin", b"weights")
    made = Path(Asset(f"{bucket}/model.bin").local())
    made.rename(made.with_name(".model.bin.partial"))
    assert Path(Asset(f"{bucket}/model.bin").local()) == made
    assert files(cache) == {"model.bin": b"weights"}


def test_a_short_fetch_is_noticed(bucket: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    put(f"{bucket}/model.bin", b"weights")
    monkeypatch.setattr(shutil, "copyfileobj", lambda source, sink, length: sink.write(source.read(3)))  # noqa: ARG005
    with pytest.raises(StorageError, match="has 3 bytes, expected 7"):
        Asset(f"{bucket}/model.bin").local()
    assert files(cache) == {}


def test_threads_of_one_process_fetch_once(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fetches = []
    real = Asset._fetch
    monkeypatch.setattr(Asset, "_fetch", lambda self, *args: (fetches.append(1), real(self, *args)))
    put(f"{bucket}/model.bin", b"weights" * 100_000)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(Asset(f"{bucket}/model.bin").local())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 8
    assert len(fetches) == 1


FETCH = (
    "from curate import Asset; print(open(Asset('gs://bucket/model.bin').local(), 'rb').read() == b'weights' * 1000)"
)


@pytest.mark.slow
def test_processes_of_one_node_fetch_once(emulator: GcsEmulator, cache: Path) -> None:
    """One downloads, the others wait for it. Each looks which generation there is."""
    put("gs://bucket/model.bin", b"weights" * 1000)
    before = emulator.counts()["get"]
    environ = os.environ | emulator.environ | {"CURATE_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen([sys.executable, "-c", FETCH], env=environ, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [process.communicate()[0].strip() for process in started] == ["True"] * 3
    assert emulator.counts()["get"] - before == 3 + 1
    assert list(files(cache)) == ["model.bin"]


class Lookup(Job):
    """Keeps the rows whose id is in a word list."""

    version = "1"
    columns = ("id",)
    words: Asset

    def setup(self) -> None:
        self.known = Path(self.words.local()).read_text().split()

    def process(self, batch: pa.Table) -> pa.Table:
        return batch.filter(pa.array([one in self.known for one in batch["id"].to_pylist()]))


class TestInAJob:
    def test_setup_reads_the_local_copy(self, tmp_path: Path, emulator: GcsEmulator) -> None:
        put("gs://bucket/words.txt", b"r1 r3")
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 5))
        summary = run_job(Lookup(words="gs://bucket/words.txt"), tmp_path / "in", tmp_path / "out")
        assert summary.state is RunState.COMPLETE
        assert [row["id"] for row in output_rows(tmp_path / "out")] == ["r1", "r3"]
        assert emulator.objects()["gs://bucket/words.txt"] == b"r1 r3"

    def test_another_generation_on_an_existing_output_is_refused_with_the_difference(self, tmp_path: Path) -> None:
        words = tmp_path / "words.txt"
        words.write_text("r1")
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 5))
        run_job(Lookup(words=str(words)), tmp_path / "in", tmp_path / "out")
        words.write_text("r1 r2")
        with refusing(f"parameters.words: {words} was written again since (generation ") as caught:
            run_job(Lookup(words=str(words)), tmp_path / "in", tmp_path / "out")
        assert "-2 before, " in str(caught.value), "the generation ends in the size"
        assert "-5 now)" in str(caught.value)

    def test_a_missing_asset_is_refused_and_leaves_nothing(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 5))
        with refusing("asset 'memory://models/nowhere' does not exist"):
            run_job(Lookup(words="memory://models/nowhere"), tmp_path / "in", tmp_path / "out")
        assert not (tmp_path / "out").exists()


class Weighing(Job):
    """Has a file of its own, and some more."""

    version = "1"
    model: Asset = curate.param("memory://assets/model.bin", help="one")
    others: list[Asset] = curate.param([], help="more")

    def setup(self) -> None:
        self.size = sum(len(one.open().read()) for one in (self.model, *self.others))

    def process(self, batch: pa.Table) -> pa.Table:
        return batch.append_column("size", pa.array([self.size] * len(batch)))


@pytest.mark.parametrize("sorts", [False, True])
@pytest.mark.parametrize("which", ["model", "others"])
def test_one_in_memory_is_seen_by_this_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, sorts: bool
) -> None:
    """Another process found it changed, or not there, once the run had begun. Where no backend is named, this process
    is taken."""
    open_store("memory://assets/").publish("memory://assets/model.bin", b"four")
    (tmp_path / "plain.bin").write_bytes(b"four")
    write_parquet(tmp_path / "in" / "0.parquet", [{"n": 1}])
    plain = str(tmp_path / "plain.bin")
    if sorts:
        monkeypatch.setattr(Weighing, "build", lambda self, ds: Job.build(self, ds).sort("n"))
    job = Weighing() if which == "model" else Weighing(model=plain, others=["memory://assets/model.bin"])
    for backend in ("local", "ray"):
        with pytest.raises(ConfigError, match=r"model\.bin is in the memory of this process"):
            job.run(input=str(tmp_path / "in"), output=str(tmp_path / "out"), backend=backend)
        assert not (tmp_path / "out").exists()
    assert job.run(input=str(tmp_path / "in"), output=str(tmp_path / "out"), backend="auto").state == "complete"
