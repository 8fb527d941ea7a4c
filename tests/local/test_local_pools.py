"""Pools of the local backend where what is below them fails: the fork server, the disk, the driver's own pauses."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from curate.errors import ConfigError
from curate.local import calls, machine, pools, spawner, wire
from curate.local.backend import LocalBackend
from curate.local.calls import Board
from curate.runtime.protocol import Message, PoolSpec, Resources, TaskEnd, TaskFinished
from tests.backends.polling import ends, polled
from tests.backends.pooling import Conducting, Serving, slowly
from tests.support.fakes import NEVER_S
from tests.support.harness import alive, wait_until

pytestmark = pytest.mark.quick(4)


class Patient(Conducting):
    """Waits for an actor for a second at most."""

    def run(self, payload: Any) -> Iterator[Any]:
        calls.PATIENCE_S = 1.0
        yield from super().run(payload)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LocalBackend]]:
    """Makes a backend of two CPUs with a pool of one actor, which writes its process into a folder."""
    monkeypatch.setattr(machine, "cpus", lambda: 2.0)
    made = LocalBackend()

    def serve(program: Any = None, gate: Path | None = None) -> LocalBackend:
        spec = PoolSpec("serving", Serving(tmp_path, gate=gate), Resources(num_cpus=1), min_size=1, max_size=1)
        made.start(Resources(), [spec])
        made.load(program or Conducting(), [spec])
        return made

    yield serve
    made.close()


def only_actor(backend: LocalBackend) -> Any:
    """Returns what is known of the actor; None while there is none."""
    assert backend._pools is not None
    return next(iter(backend._pools._pools[0].actors.values()), None)


def actors(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.iterdir()}


def answers(backend: LocalBackend, task: int, *payload: Any) -> list[Any]:
    """Returns the answers to the calls of one task, which is tried again where it is lost."""
    while True:
        backend.launch(task, list(payload), 1, announce=True)
        news = polled(backend, ends(1))
        if isinstance(news[-1], TaskFinished) and news[-1].end is TaskEnd.LOST:
            task += 1000
            continue
        assert isinstance(news[-1], TaskFinished)
        assert news[-1].end is TaskEnd.RETURNED, news[-1]
        items = [item for one in news if isinstance(one, Message) for item in one.items]
        return [value for value, _ in items[:-1]]


def test_the_fork_server_is_killed(served: Callable[..., LocalBackend], tmp_path: Path) -> None:
    """Its folder goes with it, and all processes: actors and boards are made anew elsewhere, and calls find them."""
    backend = served()
    assert answers(backend, 1, (abs, -1)) == [1]
    assert spawner._server is not None
    (first,) = actors(tmp_path)
    folder = spawner._server.folder
    os.kill(spawner._server._process.pid, signal.SIGKILL)
    wait_until(lambda: not alive(first), "its processes end")
    assert answers(backend, 2, *((abs, -k) for k in range(9))) == list(range(9))
    assert spawner._server.folder != folder
    assert not Path(folder).exists()
    assert len(actors(tmp_path)) == 2


def test_the_fork_server_is_killed_and_nothing_comes_after_it(served: Callable[..., LocalBackend]) -> None:
    backend = served()
    assert spawner._server is not None
    os.kill(spawner._server._process.pid, signal.SIGKILL)
    backend.close()


def test_a_disk_that_is_full_while_a_board_changes(
    served: Callable[..., LocalBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once, and told to the callers once there is room."""
    backend = served()
    publish, failed = Board.publish, []

    def full(_: Board, path: str) -> None:
        failed.append(path)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    (first,) = actors(tmp_path)
    with structlog.testing.capture_logs() as logs:
        monkeypatch.setattr(Board, "publish", full)
        os.kill(first, signal.SIGKILL)
        while len(failed) < 3 or len(actors(tmp_path)) < 2:
            backend.poll(0.05)
        monkeypatch.setattr(Board, "publish", publish)
        assert answers(backend, 1, (abs, -1)) == [1]
    assert sum("list of actors" in one["event"] for one in logs) == 1


def test_an_actor_that_was_set_up_while_nobody_looked(
    served: Callable[..., LocalBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook between two rows, or a driver that was stopped: it is heard before its time is looked at."""
    gate = tmp_path.parent / f"{tmp_path.name}-gate"
    backend = served(gate=gate)
    (first,) = actors(tmp_path)
    gate.touch()
    os.kill(first, signal.SIGKILL)
    while (second := only_actor(backend)) is None or second.pid in (0, first):
        backend.poll(0.01)
    assert second.process is not None
    gate.unlink()
    assert wire.readable(second.process.link.fileno(), NEVER_S)
    monkeypatch.setattr("curate.runtime.pools.SETUP_S", 0.0)
    backend.poll(0.0)
    assert backend.pools()[0].ready == 1


def test_a_call_that_was_at_work_for_long_is_made_again(served: Callable[..., LocalBackend], tmp_path: Path) -> None:
    """Where its actor dies, patience with a pool that has none begins then."""
    backend = served(Patient())
    (first,) = actors(tmp_path)
    backend.launch(1, [(slowly, "answer", 2.5)], 1, announce=True)
    actor = only_actor(backend)
    assert actor is not None
    while not pools.recorded(actor.path)[0]:
        backend.poll(0.01)
    # Longer than it is patient.
    time.sleep(1.5)
    os.kill(first, signal.SIGKILL)
    news = polled(backend, ends(1))
    assert next(item for one in news if isinstance(one, Message) for item in one.items)[0] == "answer"


def test_a_task_of_no_cpu_runs_beside_a_pool_that_has_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are CPUs."""
    monkeypatch.setattr(machine, "cpus", lambda: 2.0)
    backend, nothing = LocalBackend(), Resources(num_cpus=0)
    spec = PoolSpec("serving", Serving(tmp_path), Resources(num_cpus=1), min_size=2, max_size=2)
    backend.start(nothing, [spec])
    backend.load(Conducting(), [spec])
    assert backend.slots() == 2
    assert answers(backend, 1, (abs, -1), (abs, -2)) == [1, 2]
    for task in range(2, 6):
        backend.launch(task, [(abs, -task)], 1)
    news = polled(backend, ends(4))
    assert sorted(one.items[0][0] for one in news if isinstance(one, Message) and one.items[0][0] != "room") == [
        2,
        3,
        4,
        5,
    ]
    backend.close()


@pytest.mark.parametrize(
    ("sizes", "task", "says"),
    [
        ([("embed", 2, 0.6), ("classify", 1, 0.6)], 0.0, "an actor of classify asks for 0.6 GPU"),
        ([("embed", 2, 0.6)], 0.6, "a task asks for 0.6 GPU"),
        ([("embed", 1, 1.5)], 0.0, "an actor of embed asks for 1.5 GPUs: a share of one GPU, or whole ones"),
        ([("embed", 2, 0.5), ("classify", 2, 0.5)], 0.0, ""),
        ([("embed", 1, 1.0)], 0.5, ""),
    ],
)
def test_shares_that_fill_no_gpu_are_refused(
    sizes: list[tuple[str, int, float]], task: float, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together there may be enough, and no GPU that has it."""
    monkeypatch.setattr(machine, "cpus", lambda: 8.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    specs = [
        PoolSpec(name, Serving(tmp_path), Resources(num_cpus=1, num_gpus=each), min_size=count)
        for name, count, each in sizes
    ]
    backend = LocalBackend()
    if says:
        with pytest.raises(ConfigError, match=says):
            backend.start(Resources(num_gpus=task), specs)
    else:
        backend.start(Resources(num_gpus=task), specs)
    backend.close()
