"""What the machine does to workers: how their memory is counted, no further process, and how this one was started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from curate.local import machine
from tests.support.harness import ROOT, wait_until

MIB = 1 << 20

HOLDS = """
import subprocess, sys
held = bytearray(b"x") * (int(sys.argv[1]) << 20)
if len(sys.argv) > 2:
    subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]], start_new_session=True)
print("held", flush=True)
sys.stdin.read()
"""

LOCAL = """
import os, sys, curate
from curate.local import machine
machine.cpus = lambda: 4.0
{setting}
def seen(batch):
    {seen}
    return batch
for number in range(8):
    with open(f"{folder}/{{number}}.jsonl", "w") as file:
        file.write('{{"n": 1}}\\n' * 5)
ended = curate.read_json("{folder}/*.jsonl").map_batches(seen).write_json("{folder}/out", backend="local")
print(ended.state, ended.books.rows_out)
"""


def run(*command: str, **environ: str) -> str:
    """Returns what a program printed that ended well."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    ended = subprocess.run([sys.executable, *command], env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("devices", "named", "ids"),
    [
        ((), None, ()),
        (("nvidiactl", "nvidia-uvm", "nvidia-caps"), None, ()),
        # A container that was given one of the host's, and one that was given two of them.
        (("nvidia3", "nvidiactl", "nvidia-uvm"), None, ("0",)),
        (("nvidia7", "nvidia5", "nvidiactl"), None, ("0", "1")),
        (tuple(f"nvidia{n}" for n in range(12)), None, tuple(map(str, range(12)))),
        # What is said holds, as it is: CUDA understands these.
        (("nvidia3",), "3, GPU-5", ("3", "GPU-5")),
        (("nvidia3",), "", ()),
        (("nvidia3",), "-1", ()),
        (("nvidia0", "nvidia1"), "0,-1,1", ("0",)),
    ],
)
def test_gpus_have_the_ids_that_cuda_gives_them(
    devices: tuple[str, ...], named: str | None, ids: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By counting, or as CUDA_VISIBLE_DEVICES says: never by the names of device files, which are the host's."""
    monkeypatch.setattr(machine, "_DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    for one in devices:
        (tmp_path / one).touch()
    assert machine.gpus() == ids


def test_what_forked_processes_share_is_counted_once() -> None:
    """Together they hold what there is of it; each may hold all of it, as far as is told at once."""
    loaded = bytearray(b"x") * (200 * MIB)
    before, (ours, theirs) = machine.held_bytes(os.getpid()), os.pipe()
    pids = []
    for _ in range(3):
        if pid := os.fork():
            pids.append(pid)
        else:
            os.close(theirs)
            os.read(ours, 1)
            os._exit(0)
    each = [machine.held_bytes(pid) for pid in [os.getpid(), *pids]]
    assert all(40 * MIB < one < before - 100 * MIB for one in each)
    assert all(machine.most_bytes(pid) > 190 * MIB for pid in pids)
    os.close(theirs)
    for pid in pids:
        os.waitpid(pid, 0)
    del loaded
    assert machine.held_bytes(pids[0]) == machine.most_bytes(pids[0]) == 0


def test_what_a_process_has_started_is_its_family() -> None:
    """Also what leads a session of its own; and what that has started."""
    program = [sys.executable, "-c", HOLDS, "100", HOLDS]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        wait_until(lambda: len(machine.family(parent.pid)) == 2, "its child is there")
        wait_until(lambda: all(machine.held_bytes(pid) > 100 * MIB for pid in machine.family(parent.pid)), "both hold")
        assert parent.pid in machine.family(os.getpid())
        assert parent.stdin is not None
        parent.stdin.close()
    assert machine.family(parent.pid) == [parent.pid]


@pytest.mark.quick(3)
def test_where_no_further_process_can_be_started_one_does_all(tmp_path: Path) -> None:
    """As where a container may have so many. No shard is given up, nor tried again and again."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if any('curate.local.server' in one for one in getattr(sys, 'orig_argv', [])):\n"
        "    fork, made = os.fork, []\n"
        "    def refused():\n"
        "        if made:\n"
        "            raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "        made.append(1)\n"
        "        return fork()\n"
        "    os.fork = refused\n"
    )
    code = LOCAL.format(setting="", seen="import time; time.sleep(0.05)", folder=tmp_path)
    assert run("-c", code, PYTHONPATH=f"{tmp_path}:{ROOT}") == "complete 40\n"


@pytest.mark.quick(3)
def test_a_driver_with_many_open_files(tmp_path: Path) -> None:
    """More than `select` has room for."""
    setting = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (2000, 2000))\n"
    setting += "kept = [os.open('/dev/null', 0) for _ in range(1100)]"
    assert run("-c", LOCAL.format(setting=setting, seen="pass", folder=tmp_path)) == "complete 40\n"


@pytest.mark.quick(3)
def test_workers_are_interpreters_like_this_one(tmp_path: Path) -> None:
    """Optimized, in UTF-8, with its warnings; folders of modules that Python ignores are ignored there too."""
    setting = f"import pathlib; sys.path.append(pathlib.Path({str(tmp_path)!r}))\n"
    setting += "our = (__debug__, sys.flags.utf8_mode, sys.warnoptions)"
    seen = "(__debug__, sys.flags.utf8_mode, sys.warnoptions) == our or os._exit(1)"
    code = LOCAL.format(setting=setting, seen=seen, folder=tmp_path)
    assert run("-O", "-X", "utf8", "-W", "error::ResourceWarning", "-c", code) == "complete 40\n"
    isolated = "import sys, pathlib, curate\nsys.path.append(pathlib.Path('/'))\n"
    isolated += "print(curate.range(3).map(lambda row: {'debug': __debug__}, isolate=True).unique('debug'))"
    assert run("-O", "-c", isolated) == "[False]\n"
