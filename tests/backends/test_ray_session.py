"""One Ray for all that runs in a process: started once, kept, and made anew only where it would not do any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from curate.errors import ConfigError
from tests.support.harness import Driver, wait_until

ROOT = Path(__file__).parents[2]
LONG = "OSError: AF_UNIX path length cannot exceed 107 bytes: /a/very/long/name/sockets/plasma_store"


class Counted:
    """Stands in for `ray.init`: starts nothing, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *args: Any, **_: Any) -> None:
        self.calls.append(args)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(LONG), r"cannot start Ray on this machine: OSError: .*AF_UNIX.*; .*too long: set RAY_TMPDIR"),
        (
            PermissionError(13, "Permission denied", "/tmp/ray"),
            r"Permission denied.*; set RAY_TMPDIR to a folder that you own",
        ),
        (ValueError("the object store needs 80 MB"), r"needs 80 MB; it needs shared memory: enlarge /dev/shm"),
        (
            RuntimeError("The current node timed out during startup.\nmore"),
            r"timed out during startup\.; .*its logs are",
        ),
    ],
)
def test_a_start_that_fails_says_so_in_a_line(error: Exception, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed, what helps, and what can be done without; it can be tried again, and is where Ray was but slow."""
    import ray

    from curate.backends.ray.backend import RayBackend
    from curate.runtime.protocol import Resources

    init = Counted(error)
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setattr(ray, "init", init)
    for _ in range(2):
        with pytest.raises(ConfigError, match=says) as caught:
            RayBackend().start(Resources())
        assert "\n" not in str(caught.value)
        assert str(caught.value).endswith('or run with backend "local"')
    assert init.calls == [("local",)] * (4 if "timed out" in str(error) else 2)


@pytest.mark.slow
def test_the_command_says_it_without_a_traceback(tmp_path: Path) -> None:
    """Exit code 2, and standard output is empty: it belongs to the result."""
    (tmp_path / "in.jsonl").write_text('{"file": "a", "id": 1, "text": "x"}\n')
    code = (
        "import ray\n"
        "def init(*_, **__): raise RuntimeError('no raylet\\nlong story')\n"
        "ray.init = init\n"
        "from tests.e2e.jobs.curation import Curation\n"
        "Curation.main()"
    )
    argv = ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out"), "--backend", "ray", "--json"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *argv],
        cwd=ROOT,
        env=os.environ | {"RAY_ADDRESS": "local"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "starting Ray on this machine" in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("error: cannot start Ray on this machine: RuntimeError: no raylet;")
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "out").exists()


def test_what_workers_would_find_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever a new Ray would see that the old one did not is a reason for a new one, and told by its name alone."""
    from curate.backends.ray.session import _Setting
    from curate.runtime import shipping

    before = _Setting.now(made=True)
    assert _Setting.now(made=True).changed(before) == ""
    with monkeypatch.context() as patch:
        patch.setenv("SOME_TOKEN", "a secret")
        assert _Setting.now(made=True).changed(before) == "environment variables have changed: SOME_TOKEN"
        joined = _Setting.now(made=False)
    # What was joined had its environment from elsewhere.
    assert _Setting.now(made=False).changed(joined) == ""
    with monkeypatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
        assert _Setting.now(made=False).changed(joined) == "RAY_ADDRESS has changed"
    with monkeypatch.context() as patch:
        patch.setattr(shipping, "FOLDERS", ["/jobs"])
        assert _Setting.now(made=False).changed(joined) == "the job's code is in another folder"
    monkeypatch.chdir(tmp_path)
    assert _Setting.now(made=True).changed(before) == "the working directory has changed"


@pytest.mark.slow
def test_a_copy_of_this_process_frees_nothing_of_ray() -> None:
    """A client of Ray that ends in a copy waits for a thread that is not there, also at the copy's own end."""
    code = (
        "import os, sys\n"
        "from curate.backends.ray import session\n"
        "class Client:\n"
        "    def __del__(self): os.write(1, b'freed')\n"
        "session._session = Client()\n"
        "if not (copy := os.fork()): sys.exit(0)\n"
        "os.waitpid(copy, 0)\n"
        "os._exit(0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


PROGRAM = """
import json, os, signal, sys, threading, time
import curate
from curate import Dataset

def consume(fn=lambda batch: batch):
    began_s = time.monotonic()
    found = curate.range(1000).using(backend="ray").map_batches(fn)
    assert sum(len(batch) for batch in found.iter_batches()) == 1000
    return ray.get_runtime_context().get_session_name(), time.monotonic() - began_s, " to start Ray; " in found.stats()

import ray
told = {}
said = {}
first, told["first_s"], said["first"] = consume()
second, told["second_s"], said["second"] = consume()
ended = curate.range(10).write_parquet(sys.argv[1], backend="ray")
said["write"] = ended.start_seconds > 0
told["same"] = first == second == ray.get_runtime_context().get_session_name()
told["said"] = said

# Interrupted in the middle.
folder = sys.argv[2]
def wait(batch):
    open(f"{folder}/begun", "w").close()
    while os.path.exists(f"{folder}/hold"):
        time.sleep(0.01)
    return batch
open(f"{folder}/hold", "w").close()
def interrupt():
    while not os.path.exists(f"{folder}/begun"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    consume(wait)
    told["interrupted"] = False
except KeyboardInterrupt:
    told["interrupted"] = True
os.unlink(f"{folder}/hold")
told["same_after_interrupt"] = consume()[0] == first

# A copy of this process does no harm to it.
read, write = os.pipe()
child = os.fork()
if not child:
    try:
        consume()
        says = "nothing"
    except curate.ConfigError as error:
        says = str(error)
    os.write(write, says.encode())
    import atexit
    atexit._run_exitfuncs()
    os._exit(0)
os.waitpid(child, 0)
told["forked"] = os.read(read, 4096).decode()
told["same_after_fork"] = consume()[0] == first

# Died in between, killed from outside.
from ray._private import worker
os.kill(worker._global_node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
worker._global_node.all_processes["raylet"][0].process.wait()
third = consume()[0]
told["new_after_death"] = third != first

# The program's own is joined and left alone.
ray.shutdown()
ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False)
own = ray.get_runtime_context().get_session_name()
told["own"] = consume()[0] == own and ray.is_initialized() and ray.cluster_resources()["CPU"] == 3

# Shut down by the program while its rows are made and none is left: nothing starts another one.
def slowly(batch):
    time.sleep(0.5)
    return batch
rows = curate.range(1000).using(backend="ray").map_batches(slowly, batch_size=10).iter_batches(batch_size=10)
next(rows)
ray.shutdown()
try:
    for _ in rows:
        pass
except curate.ConfigError as error:
    told["left"] = str(error)
rows.close()
told["stays_down"] = not ray.is_initialized()
print(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.ray_lane
def test_started_once_and_kept(tmp_path: Path) -> None:
    """The second consumption costs no start; a write, an interrupt and a fork change nothing; a cluster that died is
    noticed; one that is the program's own is joined and never shut down. All ends with the process."""
    (tmp_path / "f").mkdir()
    env = {"RAY_ADDRESS": "local", "PYTHONPATH": str(ROOT)}
    with Driver(["-c", PROGRAM, str(tmp_path / "out"), str(tmp_path / "f")], env, cwd=tmp_path) as driver:
        ended = driver.end()
        driver.wait_for_children()
    assert ended.code == 0, ended.err
    assert "Traceback" not in ended.err
    told = json.loads(ended.out.splitlines()[-1])
    # Shown by `pytest -rP`: how long each took.
    sys.stdout.write(f"first {told['first_s']:.2f} s, second {told['second_s']:.2f} s\n")
    assert told["said"] == {"first": True, "second": False, "write": False}
    assert "forked from one that runs tasks on Ray" in told["forked"]
    assert "Ray was shut down while curate used it" in told["left"]
    others = ("same", "interrupted", "same_after_interrupt", "same_after_fork", "new_after_death", "own", "stays_down")
    assert {name: told[name] for name in others} == dict.fromkeys(others, True)
    assert ended.err.count("starting Ray on this machine") == 2
    assert "Ray restarts for this process" in ended.err


@pytest.mark.slow
@pytest.mark.ray_lane
def test_interrupted_while_it_starts(tmp_path: Path) -> None:
    """A program without a handler of its own gets its KeyboardInterrupt when Ray has started, and goes on with it."""
    code = (
        "import curate\n"
        "found = curate.range(10).using(backend='ray').map_batches(lambda batch: batch)\n"
        "try:\n    found.count()\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n"
        "print(found.count())\n"
    )
    env = {"RAY_ADDRESS": "local", "PYTHONPATH": str(ROOT)}
    with Driver(["-c", code], env, cwd=tmp_path, errors=tmp_path / "err") as driver:
        wait_until(lambda: "starting Ray" in (tmp_path / "err").read_text(), "Ray starts")
        driver.interrupt_group()
        ended = driver.end()
    assert (ended.code, ended.out) == (0, "interrupted\n10\n"), ended.err
    assert "this process ends as soon as Ray has started" in ended.err
    assert "Traceback" not in ended.err
