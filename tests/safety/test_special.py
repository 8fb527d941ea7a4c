"""What is no regular file (a FIFO, a socket, a device) is never waited for, read as empty, or taken for an input."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import curate
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError, DamagedRun, ObjectNotFound, StorageError
from curate.exchange.run_file import RunFile
from curate.job.asset import Asset
from curate.job.job import Job
from curate.job.shapes import FileJob
from curate.ledger import layout
from curate.ledger.summary import RunState
from curate.storage.protocol import Object, Special
from curate.stores.open import open_store
from tests.cli.running import Curate
from tests.cli.running import curate as curate_
from tests.job.inline import everything, run_job, write_jsonl

__all__ = ["curate_"]


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    """A path of a socket is at most 108 bytes long: it is bound from its own folder."""
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


def _device(path: Path) -> None:
    """One that gives zeros for ever, behind a link, as only the superuser may make devices."""
    path.symlink_to("/dev/zero")


KINDS: dict[str, Callable[[Path], None]] = {"a FIFO": _fifo, "a socket": _socket, "a device": _device}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def special(kind: str) -> Callable[[Path], Path]:
    """Puts one in the place of whatever is there."""

    def put(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        KINDS[kind](path)
        return path

    return put


def test_a_store_takes_it_for_no_object(special: Callable[[Path], Path], kind: str, tmp_path: Path) -> None:
    """Every call says so at once; a name that it takes is not replaced."""
    path = special(tmp_path / "out" / "x")
    store = open_store(str(tmp_path), scratch=f"{tmp_path}/scratch")
    uri = str(path)
    assert list(store.list(f"{tmp_path}/out/")) == [Special(uri, 0, "", kind)]
    for call in (
        lambda: store.stat(uri),
        lambda: store.read(uri),
        lambda: store.read(uri, 0, 5),
        lambda: store.open(Object(uri, 5, "1-5")),
    ):
        with pytest.raises(ObjectNotFound, match=f"{uri} does not exist as an object: it is {kind}"):
            call()
    with pytest.raises(StorageError, match=f"{uri} cannot be published: {kind} has that name; move it"):
        store.publish(uri, b"x")
    with pytest.raises(StorageError, match="has that name; move it"), store.writer(uri) as writer:
        writer.publish()
    if path.is_symlink():
        for change in (lambda: store.replace(uri, b"x"), lambda: store.delete(uri)):
            with pytest.raises(ConfigError, match=f"{uri} is a link"):
                change()
    else:
        with pytest.raises(StorageError, match=f"{uri} cannot be written: {kind} has that name; move it"):
            store.replace(uri, b"x")
        assert store.delete(uri) is False
    assert os.path.lexists(path)
    assert not path.is_file()


def test_a_run_file_is_one(special: Callable[[Path], Path], tmp_path: Path) -> None:
    """Else it is damaged: what made it runs again."""
    uri = str(special(tmp_path / "map-0123456789abcdef.run"))
    with pytest.raises(DamagedRun, match="it is missing"):
        RunFile.open(open_store(uri), Object(uri, 100, "1-100"))


class Same(Job):
    """Returns what it is given."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


class Files(FileJob):
    """Takes whole files."""

    version = "1"

    def process_file(self, file):  # type: ignore[no-untyped-def]
        with file.open() as opened:
            yield {"size": len(opened.read())}


READS: dict[str, Callable[[str], Dataset]] = {
    "jsonl": curate.read_json,
    "csv": curate.read_csv,
    "parquet": curate.read_parquet,
    "txt": curate.read_text,
    "bin": curate.read_binary_files,
    "png": curate.read_images,
}


@pytest.mark.parametrize("suffix", READS)
@pytest.mark.parametrize("how", ["named", "folder", "glob"])
def test_one_among_the_inputs_is_refused(
    special: Callable[[Path], Path], kind: str, how: str, suffix: str, tmp_path: Path
) -> None:
    """Named, found in a folder, or matched by a glob: which one it is and what; whatever is read, and by whom."""
    path = special(tmp_path / "in" / f"b.{suffix}")
    source = {"named": path, "folder": path.parent, "glob": path.parent / "*"}[how]
    with pytest.raises(ConfigError, match=rf"input '{path}' is {kind}, expected a file"):
        READS[suffix](str(source)).take_all()
    for job in (Same(), Files()):
        with pytest.raises(ConfigError, match=rf"input '{path}' is {kind}, expected a file"):
            run_job(job, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_that_is_hidden_or_does_not_match_is_in_nobodys_way(
    special: Callable[[Path], Path], tmp_path: Path
) -> None:
    """It is none of the inputs."""
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"id": "1"}])
    special(tmp_path / "in" / ".hidden.jsonl")
    special(tmp_path / "in" / "_work" / "b.jsonl")
    assert run_job(Same(), tmp_path / "in", tmp_path / "out").state is RunState.COMPLETE
    special(tmp_path / "in" / "agent.sock")
    assert run_job(Same(), tmp_path / "in" / "*.jsonl", tmp_path / "out").state is RunState.COMPLETE
    (tmp_path / "in" / "c.jsonl").symlink_to(tmp_path / "in" / "a.jsonl")
    assert run_job(Same(), tmp_path / "in" / "*.jsonl", tmp_path / "out").total == 2, "a link to a file is the user's"


@pytest.mark.parametrize("job", [Same, Files])
def test_one_that_takes_an_inputs_place_fails_its_shard(
    job: type[Job], special: Callable[[Path], Path], kind: str, tmp_path: Path
) -> None:
    """After the plan was made: no task waits for it, and the others are done."""

    class Swapping(job):  # type: ignore[misc,valid-type]
        def setup(self) -> None:
            special(tmp_path / "in" / "b.jsonl")

    for name in "ab":
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", [{"id": name}])
    summary = run_job(Swapping(), tmp_path / "in", tmp_path / "out")
    assert (summary.done, summary.failed) == (1, 1)
    assert f"it is {kind}" in summary.failures[0].error


def test_an_asset_is_a_file(special: Callable[[Path], Path], tmp_path: Path) -> None:
    """And nothing else that has a name."""
    path = special(tmp_path / "model.bin")
    with pytest.raises(ConfigError, match=rf"asset '{path}' is not a regular file"):
        Asset(str(path)).local()


COMMANDS = ("status", "failures", "verify", "head", "quarantine", "logs", "retry", "replay", "failures --shard a")
LEDGER = ["job.json", "summary.json", "plan/*", "runs/*/*", "runs/*/logs/*", "schema/*", "quarantine/*", "runs/x", "x"]


class Loud(Job):
    """Sets a row aside, and prints."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        print("said")  # noqa: T201
        return batch


@pytest.mark.ci(10)
@pytest.mark.quick(6)
@pytest.mark.parametrize("name", LEDGER)
def test_one_in_the_ledger_is_named_by_every_command(
    name: str, special: Callable[[Path], Path], tmp_path: Path, curate_: Curate
) -> None:
    """None waits for it, nor goes on as if it were empty; a run does not, nor does one that overwrites."""
    write_jsonl(tmp_path / "in" / "a.jsonl", b'{"id": "1"}\n{broken\n')
    output = tmp_path / "out"
    run_job(Loud(max_bad_rows=5), tmp_path / "in", output)
    paths = sorted((output / layout.LEDGER).glob(name)) or [output / layout.LEDGER / name]
    for path in paths:
        if path.is_dir():
            continue
        held = path.read_bytes() if path.exists() else None
        special(path)
        before = everything(output)
        for command in COMMANDS:
            first, *rest = command.split()
            more = ["--shard", "a"] if first == "replay" else []
            shown = curate_(first, str(output), *rest, *more)
            assert (shown.code, f"{path} is " in shown.err) == (2, True), (command, shown)
        for overwrite in (False, True):
            with pytest.raises(ConfigError, match=rf"{path} is .* where only files of the ledger belong.*remove it"):
                run_job(Loud(max_bad_rows=5), tmp_path / "in", output, overwrite=overwrite, confirm=lambda _: True)
        assert everything(output) == before
        path.unlink()
        if held is not None:
            path.write_bytes(held)


def test_one_in_an_outputs_place_fails_its_shard(special: Callable[[Path], Path], kind: str, tmp_path: Path) -> None:
    """It is no output, so that the shard is not done, and it is not replaced."""
    for name in "ab":
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", [{"id": name}])
    path = special(tmp_path / "out" / "a.parquet")
    summary = run_job(Same(), tmp_path / "in", tmp_path / "out")
    assert (summary.done, summary.failed) == (1, 1)
    assert f"{path} cannot be published: {kind} has that name; move it" in summary.failures[0].error
    path.unlink()
    assert run_job(Same(), tmp_path / "in", tmp_path / "out").state is RunState.COMPLETE


def test_one_among_the_notes_of_jobs_is_named(
    special: Callable[[Path], Path], home: Path, tmp_path: Path, curate_: Curate
) -> None:
    """The others are listed."""
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"id": "1"}])
    run_job(Same(), tmp_path / "in", tmp_path / "out")
    path = special(home / "jobs" / "x.json")
    shown = curate_("status")
    assert shown.code == 0
    assert str(path) in shown.err + shown.out
    assert "out" in shown.out
