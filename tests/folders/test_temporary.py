"""Temporary folders whose processes were killed are removed by the next process; all others stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import curate
from curate.folders import temporary
from curate.folders.temporary import lasting_folder, temporary_folder
from tests.support.harness import marked


def left(above: Path, name: str, machine: bytes | None = None) -> Path:
    """Makes what a process leaves that is killed, on this machine or another one."""
    (above / name / "stage").mkdir(parents=True)
    (above / name / "stage" / "a.run").write_bytes(b"rows")
    (above / name / ".owner").write_bytes(temporary._machine() if machine is None else machine)
    return above / name


def test_it_is_there_while_it_is_used(tmp_path: Path) -> None:
    """Whatever is in it, and whoever makes one beside it meanwhile, in this process too."""
    with temporary_folder(str(tmp_path)) as first:
        Path(first, "a").write_bytes(b"x")
        with temporary_folder(str(tmp_path)) as second:
            assert {one.path for one in os.scandir(tmp_path)} == {first, second}
        assert Path(first, "a").read_bytes() == b"x"
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """Nothing else: neither of another machine, nor what nobody has locked yet, nor what only looks like one."""
    gone = left(tmp_path, "curate-abcd_123")
    (gone / "outside").symlink_to(left(tmp_path, "mine"))
    left(tmp_path, "curate-elsewher", b"another machine")
    left(tmp_path, "curate-starting").joinpath(".owner").unlink()
    left(tmp_path, "0123456789abcdef")
    (tmp_path / "curate-linked00").symlink_to(tmp_path / "mine")
    stays = {path for path in tmp_path.rglob("*") if gone not in (path, *path.parents)}
    with temporary_folder(str(tmp_path)):
        assert not gone.exists()
    assert set(tmp_path.rglob("*")) == stays


def test_what_cannot_be_removed_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock goes last."""
    gone = left(tmp_path, "curate-abcd_123")
    with monkeypatch.context() as patch:
        patch.setattr(temporary, "shutil", SimpleNamespace(rmtree=os.rmdir))
        with temporary_folder(str(tmp_path)):
            pass
    assert (gone / ".owner").exists()
    with temporary_folder(str(tmp_path)):
        assert not gone.exists()


def test_a_folder_that_lasts_is_locked_until_its_descriptor_is_closed(tmp_path: Path) -> None:
    """It stays while any process has the descriptor."""
    folder, lock = lasting_folder(str(tmp_path))
    other, other_lock = lasting_folder(str(tmp_path))
    assert {one.path for one in os.scandir(tmp_path)} == {folder, other}
    inherited = os.dup(lock)
    os.close(lock)
    for still_there in (True, False):
        with temporary_folder(str(tmp_path)):
            assert Path(folder).exists() is still_there
        if still_there:
            os.close(inherited)
    os.close(other_lock)


CONSUMER = """
import signal, sys, curate
from curate.local import spawner
spawner.SHARED_MEMORY = sys.argv[2]
how = curate.Options(block_bytes=1 << 10, memory_budget=1 << 10, backend=sys.argv[1])
rows = curate.range(100_000).sort("id", descending=True).using(how).iter_batches(batch_size=10)
next(rows)
print("began", flush=True)
signal.pause()
"""


def killed(shared: Path, backend: str, **env: str) -> None:
    """Consumes some rows in another process, and kills that and all that it has started."""
    mark = uuid.uuid4().hex
    argv = [sys.executable, "-c", CONSUMER, backend, str(shared)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=os.environ | env | {"MARK": mark}) as consumer:
        assert consumer.stdout is not None
        began = consumer.stdout.readline()
        for process in marked(mark):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    assert began == "began\n"
    while marked(mark):
        os.sched_yield()


@pytest.mark.slow
def test_workers_that_are_killed_with_their_driver_leave_nothing_once_there_are_others(tmp_path: Path) -> None:
    """As a control group ends: nobody is left to remove the folders, of which one is in memory."""
    (tmp_path / "memory").mkdir()
    (tmp_path / "tmp").mkdir()
    env = {"TMPDIR": str(tmp_path / "tmp"), "CURATE_SCRATCH": str(tmp_path / "scratch")}
    for number in (1, 2, 3):
        killed(tmp_path / "memory", "local", **env)
        for folder in ("memory", "tmp", "scratch"):
            assert len(list((tmp_path / folder).iterdir())) == 1, number


@pytest.mark.slow
def test_a_consumer_that_is_killed_leaves_nothing_once_another_one_sorts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run files, which are as large as its rows, would stay on the disk."""
    monkeypatch.setenv("CURATE_SCRATCH", str(tmp_path))
    killed(tmp_path, "inline")
    assert list(tmp_path.rglob("*.run"))
    assert len(curate.range(3).sort("id").take_all()) == 3
    assert list(tmp_path.iterdir()) == []
