"""User code gives its process back: no other shard feels what one has done to it, and no copy goes on with the work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import curate

ROOT = Path(__file__).parents[2]

HARMS = """
import decimal, fcntl, json, locale, os, resource, shutil, signal, sys
import numpy
from curate.runtime.process_guard import ProcessGuard, SavedProcess, spoilt

def remove_folder():
    os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
read, write = os.pipe()
harms = {
    "nothing": lambda: None,
    "stdout": lambda: os.close(1),
    "all streams": lambda: [os.close(number) for number in (0, 1, 2)],
    "stdout elsewhere": lambda: os.dup2(write, 1),
    "stdout taken": lambda: (os.close(1), os.open("/dev/null", os.O_WRONLY)),
    "sys.stdout": lambda: sys.stdout.close(),
    "sys.stderr": lambda: setattr(sys, "stderr", None),
    "folder": lambda: os.chdir("/"),
    "folder that goes": remove_folder,
    "environment": lambda: os.environ.clear(),
    "umask": lambda: os.umask(0o777),
    "open files": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (20, hard)),
    "alarm": lambda: signal.alarm(1000),
    "terminate": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "children": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
    "recursion": lambda: sys.setrecursionlimit(4321),
    "decimals": lambda: setattr(decimal.getcontext(), "prec", 3),
    "rounding": lambda: setattr(decimal.getcontext(), "rounding", decimal.ROUND_UP),
    "numpy": lambda: numpy.seterr(all="raise"),
}

def state():
    mask = os.umask(0); os.umask(mask)
    files = [(found.st_dev, found.st_ino) for found in map(os.fstat, (0, 1, 2))]
    printed = [stream is not None and not stream.closed for stream in (sys.stdout, sys.stderr)]
    return [os.getcwd(), dict(os.environ), mask, files, printed, signal.getitimer(signal.ITIMER_REAL)[0] > 0,
            resource.getrlimit(resource.RLIMIT_NOFILE), locale.setlocale(locale.LC_ALL),
            sys.getrecursionlimit(), str(decimal.Decimal(2) / 3), numpy.geterr(),
            [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]]

kept, told = SavedProcess(), {}
for name, harm in harms.items():
    before = state()
    with ProcessGuard(kept) as guard:
        harm()
    told[name] = [state() == before, guard.changed, spoilt()]
before, said = state(), []
try:
    with ProcessGuard(kept, said.extend):
        os.umask(0o777)
        raise ValueError
except ValueError:
    told["raised"] = [state() == before, said, spoilt()]
os.environ["ADDED"] = "stays"
with ProcessGuard(kept) as guard:
    os.environ["ADDED TOO"] = "stays"
told["added"] = ["ADDED TOO" in os.environ, guard.changed, spoilt()]
with ProcessGuard(kept) as guard:
    os.environ["INSTEAD"] = os.environ.pop("LC_ALL")
told["one for another"] = [{"INSTEAD", "LC_ALL"} <= os.environ.keys(), guard.changed, spoilt()]
print(json.dumps(told))
"""


def run(code: str, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": str(ROOT), "LC_ALL": "C"}
    return subprocess.run(
        [sys.executable, "-c", code, *args], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


def failed(ended: subprocess.CompletedProcess[str]) -> set[str]:
    """Returns the shards whose failures were warned of."""
    warned = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    return {one["shard"] for one in warned if one["event"].startswith("shard failed") and one["kind"] != "lost"}


def test_what_user_code_changes_is_set_back(tmp_path: Path) -> None:
    """Whatever it is and however it ends, and it is told; what it adds to the environment stays."""
    ended = run(HARMS, tmp_path)
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    assert len(told) > 15
    assert {name: (same, left) for name, (same, _, left) in told.items()} == dict.fromkeys(told, (True, ""))
    assert [name for name, (_, changed, _) in told.items() if not changed] == ["nothing", "added"]
    assert told["all streams"][1] == ["file descriptor 0", "file descriptor 1", "file descriptor 2"]
    assert told["open files"][1] == ["resource limits"]
    assert told["decimals"][1] == ["how numbers are calculated (decimal)"]


FORKED = """
import os, sys, curate
how = sys.argv[2]
def fork(row):
    if row["id"] == 1:
        copy = os.fork() == 0
        if copy and how == "exits":
            sys.exit(0)
        if copy and how == "raises":
            raise ValueError("in the copy")
        if copy and how == "ends":
            os._exit(0)
    return row
for number in range(3):
    with open(f"in-{number}.jsonl", "w") as file:
        file.write('{"id": %d}' % number)
try:
    ended = curate.read_json("in-*.jsonl").map(fork).write_parquet(sys.argv[1], backend="inline")
except curate.WriteFailed as error:
    ended = error.summary
print(ended.done, [group.error for group in ended.failures])
"""


@pytest.mark.ci(1)
@pytest.mark.slow
@pytest.mark.parametrize("how", ["returns", "exits", "raises", "ends"])
def test_a_copy_never_goes_on_with_the_work(tmp_path: Path, how: str) -> None:
    """However it comes back, it ends there; the shard that made it fails and says so, and the others are done. A copy
    that ends by itself harms nobody."""
    ended = run(FORKED, tmp_path, str(tmp_path / "out"), how)
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    if how == "ends":
        assert line == "3 []"
    else:
        assert line.startswith("2 ['CopyReturnedError: user code forked the process and the copy returned into curate")


POISON = """
import json, os, resource, sys, time
import curate

def poisoned(how):
    def fn(row):
        if row["id"] == 7:
            if how == "stdout":
                os.close(1)
            elif how == "hard limit":
                resource.setrlimit(resource.RLIMIT_NOFILE, (500, 500))
            elif how == "fork":
                os.fork()
            elif how == "exit":
                os._exit(1)
        return row
    return fn

for number in range(30):
    with open(f"in-{number:02d}.jsonl", "w") as file:
        file.write('{"id": %d}' % number)
told = {}
for how in ("stdout", "hard limit", "fork", "exit", "none"):
    try:
        out = f"{sys.argv[1]}/{how}"
        ended = curate.read_json("in-*.jsonl").map(poisoned(how)).write_parquet(out, backend=sys.argv[2])
    except curate.WriteFailed as error:
        ended = error.summary
    told[how] = [ended.done, ended.attempts, [(group.error.partition(":")[0], group.shard) for group in ended.failures]]
print(json.dumps(told))
"""


@pytest.mark.ray(0)
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.ray_lane)])
def test_no_shard_pays_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """On workers that many shards share: what can be set back costs nobody a try, what cannot costs the worker, which
    ends when its shard has; a shard that kills its worker is tried three times, and no other is given up. The next job
    finds nothing of it."""
    monkeypatch.setenv("RAY_ADDRESS", "local")
    ended = run(POISON, tmp_path, str(tmp_path / "out"), backend)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["stdout"] == [30, 30, []]
    assert told["none"] == [30, 30, []]
    done, _, failures = told["hard limit"]
    assert (done, failures) == (30, [])
    assert told["fork"] == [29, 33, [["CopyReturnedError", "in-07"]]]
    done, _, failures = told["exit"]
    assert (done, failures) == (29, [["crashed", "in-07"]])
    assert failed(ended) == {"in-07"}


LEAKS = """
import json, os, resource, sys
import curate

resource.setrlimit(resource.RLIMIT_NOFILE, (300, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
kept = []

each, first = int(sys.argv[3]), int(sys.argv[4])

def leaks(row):
    for _ in range(each if row["id"] else first):
        try:
            kept.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            break
    return row

for number in range(60):
    with open(f"in-{number:02d}.jsonl", "w") as file:
        file.write('{"id": %d}' % number)
rows = curate.read_json("in-*.jsonl").map(leaks)
try:
    ended = rows.write_parquet(sys.argv[1], backend=sys.argv[2], max_in_flight=1)
except curate.WriteFailed as error:
    ended = error.summary
print(json.dumps([ended.done, [(group.error.partition(":")[0], group.shard) for group in ended.failures]]))
"""


@pytest.mark.ci(1)
@pytest.mark.slow
@pytest.mark.parametrize(("each", "first"), [("12", "12"), ("0", "1000")], ids=["some of each shard", "all in one"])
def test_no_shard_fails_for_files_that_others_left_open(tmp_path: Path, each: str, first: str) -> None:
    """A worker that hardly any file can be opened in is replaced, before the next shard needs one. Who opens all that
    there may be fails for itself alone."""
    ended = run(LEAKS, tmp_path, str(tmp_path / "out"), "local", each, first)
    assert ended.returncode == 0, ended.stderr
    done, failures = json.loads(ended.stdout.splitlines()[-1])
    alone = [["StorageError", "in-00"]] if first == "1000" else []
    assert (done, failures) == (60 - len(alone), alone)
    assert failed(ended) == {shard for _, shard in alone}


@pytest.mark.slow
def test_in_this_process_no_shard_pays_for_another(tmp_path: Path) -> None:
    """Which nobody can replace: what cannot be given back strikes none."""
    code = POISON.replace('"stdout", "hard limit", "fork", "exit", "none"', '"hard limit",')
    ended = run(code, tmp_path, str(tmp_path / "out"), "inline")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == {"hard limit": [30, 30, []]}
    assert "shard failed" not in ended.stderr


LATE = """
import json, os, sys
import curate

seen = []

def poisoned(row):
    seen.append(row["id"])
    if len(seen) == 600 and not os.path.lexists("poison"):
        os.symlink(str(row["id"]), "poison")
    if os.path.lexists("poison") and os.readlink("poison") == str(row["id"]):
        os._exit(1)
    return row

for number in range(1600):
    with open(f"in-{number:04d}.jsonl", "w") as file:
        file.write('{"id": %d}' % number)
rows = curate.read_json("in-*.jsonl").map(poisoned)
try:
    ended = rows.write_parquet(sys.argv[1], backend=sys.argv[2], max_in_flight=1)
except curate.WriteFailed as error:
    ended = error.summary
print(json.dumps([ended.done, [(group.error.partition(":")[0], group.shard) for group in ended.failures]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=[pytest.mark.ray_lane, pytest.mark.nightly])])
def test_what_kills_its_worker_deep_in_a_bundle_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Where shards before it are still being published: these are not struck for it."""
    monkeypatch.setenv("RAY_ADDRESS", "local")
    ended = run(LATE, tmp_path, str(tmp_path / "out"), backend)
    assert ended.returncode == 0, ended.stderr
    killer = f"in-{int((tmp_path / 'poison').readlink().name):04d}"
    assert json.loads(ended.stdout.splitlines()[-1]) == [1599, [["crashed", killer]]]
    warned = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    kinds = [(one["shard"], one["kind"]) for one in warned if one["event"].startswith("shard failed")]
    assert [one for one in kinds if one[1] != "lost"] == [(killer, "crashed")] * 3
    assert len(kinds) <= 4


def test_what_a_program_removes_between_runs_stays_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in this process gives back what it found itself, and not what an earlier one did."""
    monkeypatch.setenv("OF_THE_PROGRAM", "1")
    rows = curate.range(2).map(lambda row: row)
    assert rows.count() == 2
    monkeypatch.delenv("OF_THE_PROGRAM")
    assert rows.take_all() == [{"id": 0}, {"id": 1}]
    assert "OF_THE_PROGRAM" not in os.environ
