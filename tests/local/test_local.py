"""The local backend: what ends its workers, what they may hold, what is left behind."""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.errors import ConfigError
from curate.local import machine, spawner
from curate.local.backend import LocalBackend
from curate.local.lasting import LastingBackend, _taken
from curate.local.restraint import LEAST_MODULES, Restraint
from curate.runtime.protocol import BlockReady, Message, PoolSpec, Resources, Started, TaskEnd, TaskFinished
from curate.streaming.engine import stream_blocks
from tests.backends.calling import Calling, holds, parent_and_child, process_while, take_memory, use_arrow
from tests.backends.polling import begun, ends, polled, the_end
from tests.backends.pooling import Conducting, Serving
from tests.streaming.streaming import Blocks
from tests.support.fakes import NEVER_S
from tests.support.harness import ROOT, alive, wait_until


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalBackend]:
    """One with two CPUs and a program that calls what it is given."""
    monkeypatch.setattr(machine, "cpus", lambda: 2.0)
    made = LocalBackend()
    made.start(Resources())
    made.load(Calling())
    yield made
    made.close()


@pytest.fixture
def lasting(monkeypatch: pytest.MonkeyPatch) -> Iterator[LastingBackend]:
    """One that leaves its workers to the next one."""
    monkeypatch.setattr(machine, "cpus", lambda: 2.0)
    made = begin()
    made.load(Calling())
    yield made
    made.end()
    if (crew := _taken()) is not None:
        crew.processes.close()


def begin(resources: Resources = Resources()) -> LastingBackend:  # noqa: B008
    """Returns another one that has started."""
    made = LastingBackend()
    made.start(resources)
    return made


def server() -> int:
    """Returns the process of the fork server."""
    assert spawner._server is not None
    return spawner._server._process.pid


DRIVER = """
import os, sys, time
from curate.local import machine
from curate.local.backend import LocalBackend
from curate.runtime.protocol import Resources
from curate.local.lasting import LastingBackend
from curate.runtime.protocol import Message
from tests.backends.calling import Calling, parent_and_child

backend = LastingBackend() if sys.argv[2] == "rests" else LocalBackend()
backend.start(Resources())
backend.load(Calling())
if sys.argv[2] == "rests":
    # Between two runs.
    backend.launch(1, [(os.getpid,), (os.getppid,)], 2)
    while not (said := [one for one in backend.poll(1.0) if isinstance(one, Message)]):
        pass
    backend.close()
    with open(sys.argv[1] + ".part", "w") as file:
        file.write(" ".join(map(str, said[0].items)))
    os.rename(sys.argv[1] + ".part", sys.argv[1])
    time.sleep(1000)
backend.launch(1, [(parent_and_child, sys.argv[1])], 1, announce=True)
if sys.argv[2] == "waits":
    while True:
        backend.poll(1.0)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
if sys.argv[2] == "forks":
    # A copy has all files of this process, so that nobody sees them closed.
    if os.fork():
        open(sys.argv[1] + ".forked", "w").close()
    time.sleep(1000)
if sys.argv[2] == "raises":
    raise SystemExit(3)
"""


@pytest.mark.quick(3)
@pytest.mark.parametrize("how", ["waits", "forks", "raises", "ends", "rests"])
def test_workers_end_with_their_driver(how: str, tmp_path: Path) -> None:
    """However it ends: killed in the middle of a wait, between two runs, with a copy of it alive, by an error, or as it
    should. And so does what workers have started, and the fork server, and its files."""
    pids, folder = tmp_path / "pids", tmp_path / "tmp"
    folder.mkdir()
    environ = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    arguments = [sys.executable, "-c", DRIVER, str(pids), how]
    with subprocess.Popen(arguments, env=environ, start_new_session=True) as driver:
        try:
            wait_until(Path(f"{pids}.forked" if how == "forks" else pids).exists, "the task runs")
            if how in ("waits", "forks", "rests"):
                driver.kill()
            driver.wait(timeout=NEVER_S)
            processes = [int(pid) for pid in pids.read_text().split()]
            wait_until(lambda: not any(alive(pid) for pid in processes), "all processes end")
            wait_until(lambda: not list(folder.iterdir()), "its files are gone")
        finally:
            if how == "forks":
                os.killpg(driver.pid, signal.SIGKILL)


SLOW = """
import os, time
from dataclasses import dataclass
if str(os.getpid()) != os.environ["DRIVER"]:
    with open("importing", "w") as file:
        file.write(str(os.getpid()))
    time.sleep(1000)
@dataclass
class Program:
    key: str = "slow"
    def run(self, payload):
        yield payload
"""
IMPORTING = """
import os
os.environ["DRIVER"] = str(os.getpid())
import slow
from curate.local.backend import LocalBackend
from curate.runtime.protocol import Resources

backend = LocalBackend()
backend.start(Resources())
backend.load(slow.Program())
backend.launch(1, 1, 1)
while True:
    backend.poll(1.0)
"""


@pytest.mark.slow
def test_the_driver_is_killed_while_modules_are_imported(tmp_path: Path) -> None:
    """The fork server, which does nothing else then, ends in the middle of it, and its files go."""
    (tmp_path / "slow.py").write_text(SLOW)
    folder = tmp_path / "tmp"
    folder.mkdir()
    environ = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}", "TMPDIR": str(folder)}
    with subprocess.Popen([sys.executable, "-c", IMPORTING], env=environ, cwd=tmp_path) as driver:
        pid = int(
            wait_until(lambda: (tmp_path / "importing").exists() and (tmp_path / "importing").read_text(), "it does")
        )
        driver.kill()
    wait_until(lambda: not alive(pid), "the server ends")
    wait_until(lambda: not list(folder.iterdir()), "its files are gone")


@pytest.mark.slow
def test_the_fork_server_is_killed(backend: LocalBackend, tmp_path: Path) -> None:
    """What ran is lost, which is no fault of its shards; what is launched then runs."""
    hold = tmp_path / "hold"
    hold.touch()
    backend.launch(1, [(abs, -1), (process_while, str(hold))], 1, announce=True)
    (pid,) = begun(hold)
    os.kill(server(), signal.SIGKILL)
    news = polled(backend, ends(1))
    assert [type(one) for one in news] == [Started, Message, TaskFinished]
    assert (the_end(news).end, the_end(news).detail) == (TaskEnd.LOST, "the process that starts workers was killed")
    wait_until(lambda: not alive(pid), "its worker ends with it")
    backend.launch(2, [(abs, -2)], 1)
    assert polled(backend, ends(1))[0] == Message(2, [2])


@pytest.mark.slow
def test_the_fork_server_is_killed_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the very moment in which it is told what to import: another one is started, and nobody is told."""
    monkeypatch.setattr(machine, "cpus", lambda: 1.0)
    monkeypatch.setattr(
        spawner.ForkServer, "alive", lambda one: one.owner == os.getpid() and one._process.returncode is None
    )
    monkeypatch.setenv("ANOTHER_SETTING", "1")
    spawner.start()
    os.kill(server(), signal.SIGKILL)
    os.waitid(os.P_PID, server(), os.WEXITED | os.WNOWAIT)
    monkeypatch.setattr(spawner.ForkServer, "outdated", lambda _: False)
    assert spawner._server is not None
    spawner._server.imported.clear()
    made = LocalBackend()
    made.start(Resources())
    made.load(Calling())
    made.launch(1, [(abs, -3)], 1)
    assert polled(made, ends(1))[0] == Message(1, [3])
    made.close()


@pytest.mark.slow
def test_what_a_worker_has_started_ends_with_it(backend: LocalBackend, tmp_path: Path) -> None:
    """Of a task that is cancelled."""
    pids = tmp_path / "pids"
    backend.launch(1, [(parent_and_child, str(pids))], 1)
    wait_until(pids.exists, "the task runs")
    backend.cancel(1)
    assert the_end(polled(backend, ends(1))).end is TaskEnd.CANCELLED
    wait_until(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()[:2]), "both end")


@pytest.mark.slow
def test_the_largest_worker_is_killed_when_memory_runs_out(
    backend: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end says so, with figures; another task goes on. With as much as there is, it would be alone."""
    limit = 400 << 20
    monkeypatch.setenv(machine.MEMORY, str(limit))
    backend.start(Resources())
    backend.load(Calling())
    assert backend.largest_memory() == limit
    hold = tmp_path / "hold"
    hold.touch()
    backend.launch(1, [(process_while, str(hold))], 1)
    begun(hold)
    backend.launch(2, [(take_memory, 2 << 30)], 1, announce=True)
    end = the_end(polled(backend, ends(1)))
    assert (end.task, end.end) == (2, TaskEnd.OUT_OF_MEMORY)
    assert end.peak_bytes > limit // 2
    first, figures = end.detail.splitlines()
    assert first.startswith("the worker used ")
    assert first.endswith("iB when its node ran out of memory")
    assert f"of {limit:,} bytes" in figures
    hold.unlink()
    assert the_end(polled(backend, ends(1))).end is TaskEnd.RETURNED


@pytest.mark.slow
@pytest.mark.parametrize("asked", [None, 1 << 30])
def test_a_worker_keeps_no_more_than_its_share_of_what_its_work_has_let_go(
    asked: int | None, backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a shard, and behind a task: when another worker needs its share, the small task that is at work then would
    be killed for what a large one before had held."""
    share, large = 250 << 20, 350 << 20
    monkeypatch.setenv(machine.MEMORY, str(2 * share if asked is None else 4 << 30))
    backend.start(Resources())
    backend.load(Calling())
    how: Any = {} if asked is None else {"memory": asked}
    backend.launch(1, [(use_arrow, large), (holds,)], 2, announce=True, **how)
    _, held = [one.items[0] for one in polled(backend, ends(1)) if isinstance(one, Message)]
    backend.launch(2, [(use_arrow, large)], 1, **how)
    (pid,) = [one.items[0] for one in polled(backend, ends(1)) if isinstance(one, Message)]
    for one in (held, machine.most_bytes(pid)):
        assert one < share if asked is None else one > large


@pytest.mark.parametrize(("text", "size"), [("1GiB", 1 << 30), ("800m", 800 << 20), ("4096", 4096)])
def test_the_memory_of_workers_may_be_said_as_a_size(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(machine.MEMORY, text)
    assert machine.memory_limit() == size


@pytest.mark.parametrize("text", ["abc", "-5", "1e9", "0"])
def test_what_is_no_size_is_refused_with_its_variable(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(machine.MEMORY, text)
    with pytest.raises(ConfigError, match=machine.MEMORY):
        LocalBackend().start(Resources())


@pytest.mark.slow
def test_tasks_hold_the_memory_that_they_ask_for(backend: LocalBackend, tmp_path: Path) -> None:
    """One that asks for all of it runs alone, and others wait for it."""
    hold = tmp_path / "hold"
    hold.touch()
    backend.launch(1, [(process_while, str(hold))], 1, memory=backend.largest_memory())
    begun(hold)
    backend.launch(2, [(abs, -2)], 1, memory=1 << 30)
    backend.launch(3, [(abs, -3)], 1)
    assert polled(backend, ends(1))[0] == Message(3, [3])
    hold.unlink()
    assert [one.task for one in polled(backend, ends(2)) if isinstance(one, TaskFinished)] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(("stream", "order"), [(False, [2, 0, 1]), (True, [1, 0])])
def test_a_task_that_asks_for_no_memory_holds_the_share_of_its_slot(
    stream: bool, order: list[int], backend: LocalBackend, tmp_path: Path
) -> None:
    """What asks for all of it begins when such a task has ended, and is not killed with it. But one whose blocks are
    taken in turn may be the one that waits."""
    hold = tmp_path / "hold"
    hold.touch()
    backend.launch(0, [(process_while, str(hold))], 1, stream=stream)
    begun(hold)
    backend.launch(1, [(abs, -1)], 1, memory=backend.largest_memory())
    if not stream:
        assert backend.waits().startswith("1 task waits for ")
        backend.launch(2, [(abs, -2)], 1)
    ended = [one.task for one in polled(backend, ends(1)) if isinstance(one, TaskFinished)]
    hold.unlink()
    ended += [one.task for one in polled(backend, ends(len(order) - 1)) if isinstance(one, TaskFinished)]
    assert ended == order


@pytest.mark.slow
def test_what_actors_alone_keep_memory_from_runs_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a pool has grown since it was launched: with no other task at work, nobody would give memory back."""
    monkeypatch.setattr(machine, "cpus", lambda: 4.0)
    spec = PoolSpec("serving", Serving(tmp_path), Resources(num_cpus=1, memory=1 << 30), min_size=1, max_size=1)
    made = LocalBackend()
    made.start(Resources(), [spec])
    there = made.largest_memory()
    made.load(Conducting(), [spec])
    made.launch(1, [(abs, -1)], 1, memory=there)
    assert the_end(polled(made, ends(1))).end is TaskEnd.RETURNED
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize(("spare", "ends_idle"), [(0, True), (4 << 30, False)])
def test_a_worker_that_is_idle_ends_where_a_task_asks_for_its_memory(
    spare: int, ends_idle: bool, backend: LocalBackend, tmp_path: Path
) -> None:
    """It would be counted with what the task holds, and the task be killed for it."""
    folders = [tmp_path / name for name in ("a", "b")]
    for task, folder in enumerate(folders):
        folder.touch()
        backend.launch(task, [(process_while, str(folder))], 1)
    pids = {begun(folder)[0] for folder in folders}
    for folder in folders:
        folder.unlink()
    polled(backend, ends(2))
    hold = tmp_path / "hold"
    hold.touch()
    backend.launch(2, [(process_while, str(hold))], 1, memory=backend.largest_memory() - spare)
    (used,) = begun(hold)
    (idle,) = pids - {used}
    if ends_idle:
        wait_until(lambda: not alive(idle), "the other one ends")
    hold.unlink()
    polled(backend, ends(1))
    assert alive(idle) != ends_idle
    assert alive(used)


@pytest.mark.slow
def test_gpus_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task sees its own; two may share one; more than there are is refused with the arithmetic."""
    monkeypatch.setattr(machine, "cpus", lambda: 8.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    made = LocalBackend()
    with pytest.raises(ConfigError, match=r"a task needs .*'GPU': 3.*but this machine has .*'GPU': 2"):
        made.start(Resources(num_gpus=3))
    for each, slots, seen in (
        (1.0, 2, ["3", "GPU-5"]),
        (2.0, 1, ["3,GPU-5"]),
        (0.5, 4, ["3", "3", "GPU-5", "GPU-5"]),
        (0.6, 2, ["3", "GPU-5"]),
    ):
        made.start(Resources(num_cpus=0, num_gpus=each))
        made.load(Calling())
        assert made.slots() == slots
        for task in range(slots):
            made.launch(task, [(os.getenv, "CUDA_VISIBLE_DEVICES"), (time.sleep, 0.2)], 2, announce=True)
        news = polled(made, ends(slots))
        assert sorted(one.items[0] for one in news if isinstance(one, Message) and one.items[0]) == seen
    made.close()


@pytest.mark.slow
def test_what_waits_for_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """While there are CPUs for it; what waits for a CPU waits for its turn."""
    monkeypatch.setattr(machine, "cpus", lambda: 2.0)
    monkeypatch.setattr(machine, "memory_limit", lambda: 8 << 30)
    made = LocalBackend()
    made.start(Resources())
    made.load(Calling())
    made.launch(0, [(time.sleep, NEVER_S)], 1, memory=6 << 30)
    assert made.waits() == ""
    made.launch(1, [(os.getpid,)], 1, memory=4 << 30)
    assert made.waits() == "1 task waits for 4.00 GiB of memory; 2.00 GiB is free on this machine"
    made.launch(2, [(os.getpid,)], 1, memory=3 << 30)
    assert made.waits() == "2 tasks wait for 4.00 GiB of memory each; 2.00 GiB is free on this machine"
    made.launch(3, [(time.sleep, NEVER_S)], 1)
    assert made.waits() == ""
    made.close()


@pytest.fixture
def with_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalBackend]:
    """One with eight CPUs and two GPUs."""
    monkeypatch.setattr(machine, "cpus", lambda: 8.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    made = LocalBackend()
    yield made
    made.close()


@pytest.mark.slow
def test_each_actor_has_a_gpu_of_its_own(with_gpus: LocalBackend, tmp_path: Path) -> None:
    """The task that calls it has none. One that dies gives its own to the one that takes its place."""
    spec = PoolSpec("serving", Serving(tmp_path), Resources(num_cpus=1, num_gpus=1), min_size=2, max_size=2)
    with_gpus.start(Resources(), [spec])
    with_gpus.load(Conducting(), [spec])
    numbers, until_s = itertools.count(), time.monotonic() + NEVER_S

    def seen() -> dict[int, str]:
        """Returns what actors see, by their processes, once both have answered."""
        found: dict[int, str] = {}
        while len(found) < 2:
            assert time.monotonic() < until_s
            with_gpus.launch(next(numbers), [(os.getenv, "CUDA_VISIBLE_DEVICES")] * 8, 1)
            told = [one for news in polled(with_gpus, ends(1)) if isinstance(news, Message) for one in news.items]
            found = {pid: value for value, pid in told if value != "room"}
        return found

    first = seen()
    assert sorted(first.values()) == ["3", "GPU-5"]
    killed, kept = first
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not alive(killed), "it is gone")
    while with_gpus.pools()[0].ready == 2:
        with_gpus.poll(0.05)
    second = seen()
    assert sorted(second.values()) == ["3", "GPU-5"]
    assert second[kept] == first[kept]


@pytest.mark.slow
def test_the_gpu_of_a_task_that_was_cancelled_is_free(with_gpus: LocalBackend, tmp_path: Path) -> None:
    """Once its worker has ended. A task that asked for none sees none."""
    with_gpus.start(Resources(num_gpus=2))
    with_gpus.load(Calling())
    hold = tmp_path / "hold"
    hold.touch()
    with_gpus.launch(1, [(process_while, str(hold))], 1)
    begun(hold)
    with_gpus.launch(2, [(os.getenv, "CUDA_VISIBLE_DEVICES")], 1)
    assert with_gpus.poll(0.0) == []
    with_gpus.cancel(1)
    assert [one for one in polled(with_gpus, ends(2)) if isinstance(one, Message)] == [Message(2, ["3,GPU-5"])]
    with_gpus.start(Resources())
    with_gpus.load(Calling())
    with_gpus.launch(3, [(os.getenv, "CUDA_VISIBLE_DEVICES")], 1)
    assert polled(with_gpus, ends(1))[0] == Message(3, [""])


def files() -> set[Path]:
    """Returns the blocks that are stored."""
    assert spawner._server is not None
    return {one for folder in spawner._server.folders for one in Path(folder).iterdir() if one.suffix == ""}


def offered(count: int) -> Callable[[list[Any]], bool]:
    return lambda news: sum(isinstance(one, BlockReady) for one in news) == count


@pytest.mark.slow
def test_blocks_leave_nothing_behind(backend: LocalBackend, tmp_path: Path) -> None:
    """Neither one that was consumed, nor one that was dropped, or offered to nobody; what was fetched stays."""
    before = files()
    backend.load(Blocks(tmp_path, 1000))
    programs = files() - before
    backend.launch(1, (0, 4), 1, stream=True)
    polled(backend, offered(1))
    first = backend.take(1)
    polled(backend, offered(1))
    second = backend.take(1)
    polled(backend, offered(1))
    assert len(files() - before - programs) == 3
    table: pa.Table = first.fetch()
    del second, first
    assert len(files() - before - programs) == 1
    backend.cancel(1)
    assert the_end(polled(backend, ends(1))).end is TaskEnd.CANCELLED
    assert files() - before - programs == set()
    assert table.num_rows == 1000
    backend.close()
    assert files() <= before


@dataclass
class FailsLate:
    """Raises in the first piece, when three blocks of the second were taken."""

    folder: Path
    key: str = "fails late"

    def run(self, piece: int) -> Iterator[pa.Table]:
        if piece == 0:
            wait_until((self.folder / "3").exists, "the blocks of the second piece")
            raise ZeroDivisionError
        for number in range(4):
            (self.folder / str(number)).touch()
            yield pa.table({"number": [number]})


@pytest.mark.slow
def test_a_stream_that_failed_leaves_no_blocks(backend: LocalBackend, tmp_path: Path) -> None:
    """While its backend goes on, and what it raised is kept with all frames."""
    before = files()
    stream = stream_blocks(FailsLate(tmp_path), [0, 1], backend, budget_bytes=1 << 30)
    with pytest.raises(ZeroDivisionError) as raised:
        next(stream)
    assert {one.name for one in files() - before if not one.name.endswith("-program")} == set()
    assert raised.value.__traceback__ is not None


def test_a_block_goes_where_there_is_room(tmp_path: Path) -> None:
    """Shared memory may be small: then on disk."""
    from curate.local import blocks as stored

    table = pa.table({"n": range(100_000)})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "1").symlink_to("/dev/full")
    (tmp_path / "disk").mkdir()
    found = stored.store(table, [str(tmp_path / "full"), str(tmp_path / "disk")], "1")
    assert found.path == str(tmp_path / "disk" / "1")
    assert stored.LocalBlock(found, 1).fetch().equals(table)


IMPORTS = """
import sys, threading
from curate.local.backend import LocalBackend
from curate.runtime.protocol import Resources, TaskFinished
sys.path.insert(0, sys.argv[1])
import starts
from tests.backends.calling import Calling

backend = LocalBackend()
backend.start(Resources())
backend.load(Calling())
for _ in range(2):
    backend.load(starts.Program())
    backend.launch(1, None, 1)
    news = []
    while not any(isinstance(one, TaskFinished) for one in news):
        news += backend.poll(1.0)
    print(news[0].items[0])
backend.close()
assert "ray" not in sys.modules
"""
STARTS = """
import threading
from dataclasses import dataclass
lock = threading.Lock()
def hold():
    while True:
        lock.acquire(timeout=0.001)
threading.Thread(target=hold, daemon=True, name="holds").start()
@dataclass
class Program:
    key: str = "starts"
    def run(self, payload):
        import sys
        yield [one.name for one in threading.enumerate()], "ray" in sys.modules
"""


@pytest.mark.slow
def test_nothing_is_forked_that_has_threads(tmp_path: Path) -> None:
    """A module that starts one when it is imported is imported by each worker; that is said once. Ray is imported by
    none, nor by the driver."""
    (tmp_path / "starts.py").write_text(STARTS)
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-c", IMPORTS, str(tmp_path)]
    ended = subprocess.run(arguments, env=environ, capture_output=True, text=True, timeout=NEVER_S, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["(['MainThread', 'holds'], False)"] * 2
    assert ended.stderr.count("each worker imports its modules by itself") == 1


@pytest.mark.slow
def test_a_program_that_workers_cannot_load(backend: LocalBackend) -> None:
    """Each task raises what that raised."""
    backend.load(Unloadable())
    backend.launch(1, None, 1)
    end = the_end(polled(backend, ends(1)))
    assert end.end is TaskEnd.RAISED
    assert end.detail.splitlines()[-1] == "ValueError: not here"


@pytest.fixture
def many_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of modules that only a task imports, as many as workers are held back for."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    names = [f"one_of_many_{number}" for number in range(LEAST_MODULES)]
    for name in names:
        (folder / f"{name}.py").write_text("")
    return names


def import_all(names: list[str], variable: str = "") -> int:
    if variable:
        os.environ[variable] = "1"
    for name in names:
        importlib.import_module(name)
    return os.getpid()


def has_imported(name: str) -> bool:
    return name in sys.modules


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("variable", ["", "SET_BY_A_TASK"])
def test_a_second_worker_imports_what_the_first_one_had_to(
    many_modules: list[str], backend: LocalBackend, tmp_path: Path, variable: str
) -> None:
    """Before it has a task; unless the first one had set a variable, which the modules may have read."""
    backend.start(Resources())
    backend.load(Calling())
    backend.launch(1, [(import_all, many_modules, variable)], 1)
    polled(backend, ends(1))
    hold = tmp_path / "hold"
    hold.touch()
    backend.launch(2, [(process_while, str(hold))], 1)
    backend.launch(3, [(has_imported, many_modules[-1])], 1)
    assert polled(backend, ends(1))[0] == Message(3, [not variable])
    hold.unlink()
    polled(backend, ends(1))


@pytest.mark.slow
def test_a_second_worker_is_not_forked_for_little_work(
    many_modules: list[str], backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it would import for longer than the first one takes for all."""
    monkeypatch.setattr(Restraint, "left_s", lambda self, *_: NEVER_S if self._due_s else 0.0)
    backend.start(Resources())
    backend.load(Calling())
    backend.launch(1, [(import_all, many_modules)], 1)
    (first,) = (one.items for one in polled(backend, ends(1)) if isinstance(one, Message))
    for task in range(2, 8):
        backend.launch(task, [(os.getpid,)], 1)
    assert [one.items for one in polled(backend, ends(6)) if isinstance(one, Message)] == [first] * 6


def workers(backend: LocalBackend, hold: Path, change: str = "", module: str = "") -> set[int]:
    """Returns the workers that run two tasks at once."""
    hold.touch()
    for task in (1, 2):
        backend.launch(task, [(change_this, change, module), (process_while, str(hold))], 2, announce=True)
    began = polled(backend, lambda news: sum(isinstance(one, Started) for one in news) == 2)
    hold.unlink()
    polled(backend, ends(2))
    return {one.pid for one in began if isinstance(one, Started)}


class Keeping(Calling):
    """A program that says in a file when a process has let go of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))

    def __del__(self) -> None:
        Path(f"{self.key}.{os.getpid()}").touch()


@pytest.mark.slow
def test_workers_run_the_next_program_too(lasting: LastingBackend, tmp_path: Path) -> None:
    """Of another backend of this process, or of the same; and have nothing left of the one before, nor of what it
    printed."""
    kept = tmp_path / "program"
    lasting.load(Keeping(kept))
    first = workers(lasting, tmp_path / "first")
    assert len(first) == 2
    lasting.close()
    second = begin()
    second.load(Calling())
    assert workers(second, tmp_path / "second") == first
    assert {int(one.suffix[1:]) for one in tmp_path.glob("program.*")} - {os.getpid()} == first
    second.start(Resources(num_cpus=0.5, memory=1 << 20))
    second.load(Calling())
    assert workers(second, tmp_path / "third") == first
    second.launch(3, [(print, "before"), (print, "more")], 2)
    polled(second, ends(1))
    second.close()
    lasting.start(Resources())
    lasting.load(Calling())
    for task in (4, 5):
        lasting.launch(task, [(os.kill, 0, signal.SIGKILL)], 1)
    assert not any("before" in one.detail for one in polled(lasting, ends(2)) if isinstance(one, TaskFinished))


@pytest.mark.slow
@pytest.mark.ci(2)
@pytest.mark.quick(1)
@pytest.mark.parametrize("change", ["variable", "path", "threads", "imports", "file"])
def test_workers_of_another_kind_do_not_run_the_next_program(
    many_modules: list[str], lasting: LastingBackend, tmp_path: Path, change: str
) -> None:
    """If user code has changed what others would find there, or there is something else to import, to be found, or to
    be seen. They end. The modules are first: workers are to find them from the beginning."""
    first = workers(lasting, tmp_path / "first", change, many_modules[0])
    assert len(first) == 2
    lasting.close()
    if change == "file":
        (tmp_path / "modules" / f"{many_modules[0]}.py").write_text("VALUE = 1")
    second = begin(Resources(num_cpus=2) if change == "threads" else Resources())
    if change == "imports":
        importlib.import_module(many_modules[0])
    second.load(Calling(many_modules[0]))
    if change == "threads":
        second.launch(1, [(os.getpid,), (os.getenv, "OMP_NUM_THREADS")], 2)
        pid, threads = (item for one in polled(second, ends(1)) if isinstance(one, Message) for item in one.items)
        assert pid not in first
        assert threads == "2"
    else:
        assert not workers(second, tmp_path / "second") & first
    for pid in first:
        wait_until(lambda: not alive(pid), "it has ended")  # noqa: B023 - is waited for before the next
    second.end()


@pytest.mark.slow
def test_workers_do_not_run_what_has_pools(lasting: LastingBackend, tmp_path: Path) -> None:
    """Nor those of that what comes next."""
    seen: list[set[int]] = []
    for pooled in (False, True, False):
        spec = PoolSpec("serving", Serving(tmp_path), Resources(num_cpus=0), min_size=1, max_size=1)
        specs = [spec] if pooled else []
        lasting.close()
        lasting.start(Resources(), specs)
        lasting.load(Conducting() if pooled else Calling(), specs)
        if pooled:
            lasting.launch(1, [(os.getpid,)], 1, announce=True)
            seen.append({one.pid for one in polled(lasting, ends(1)) if isinstance(one, Started)})
        else:
            seen.append(workers(lasting, tmp_path / f"hold-{len(seen)}"))
    assert all(seen)
    assert sum(map(len, seen)) == len(set.union(*seen))


@pytest.mark.slow
def test_a_worker_that_is_at_work_does_not_run_the_next_program(lasting: LastingBackend, tmp_path: Path) -> None:
    """It ends, and what it had begun is not told of."""
    hold = tmp_path / "first"
    hold.touch()
    lasting.launch(7, [(process_while, str(hold))], 1)
    (at_work,) = begun(hold)
    lasting.close()
    second = begin()
    second.load(Calling())
    hold.unlink()
    assert at_work not in workers(second, tmp_path / "second")
    assert not alive(at_work)
    second.end()


@pytest.mark.slow
def test_workers_that_die_while_they_wait_are_replaced(lasting: LastingBackend, tmp_path: Path) -> None:
    """No task is given to them."""
    first = workers(lasting, tmp_path / "first")
    lasting.close()
    for pid in first:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not alive(pid), "it has ended")  # noqa: B023 - is waited for before the next
    second = begin()
    second.load(Calling())
    assert not workers(second, tmp_path / "second") & first
    second.end()


def test_two_backends_at_once_share_no_worker(lasting: LastingBackend, tmp_path: Path) -> None:
    """And when both leave, those of one end."""
    second = begin()
    second.load(Calling())
    first, others = workers(lasting, tmp_path / "first"), workers(second, tmp_path / "second")
    assert not first & others
    lasting.close()
    second.close()
    for pid in first:
        wait_until(lambda: not alive(pid), "it has ended")  # noqa: B023 - is waited for before the next
    assert all(map(alive, others))


@pytest.mark.slow
def test_a_fork_of_the_driver_leaves_its_workers_alone(lasting: LastingBackend, tmp_path: Path) -> None:
    """It has its own; what waits in the driver still answers to that."""
    first = workers(lasting, tmp_path / "first")
    lasting.close()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            mine = begin()
            mine.load(Calling())
            code = 0 if not workers(mine, tmp_path / "fork") & first else 2
            mine.end()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    second = begin()
    second.load(Calling())
    assert workers(second, tmp_path / "second") == first
    second.end()


def change_this(what: str, module: str) -> None:
    """Changes what other programs would find here, or imports a module."""
    if what == "file":
        importlib.import_module(module)
    if what == "variable":
        os.environ["SET_BY_A_TASK"] = "1"
    if what == "path":
        sys.path.append("/nowhere")


class Unloadable:
    """A program that only the driver has."""

    key = "unloadable"

    def __reduce__(self) -> Any:
        return refused, ()

    def run(self, payload: Any) -> Iterator[Any]:
        del payload
        yield


def refused() -> None:
    raise ValueError("not here")
