"""The Ray backend against real clusters: how every way to die is told, where tasks run, what nodes can hold."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from curate.errors import ConfigError
from curate.runtime.protocol import BackendEvent, Message, Resources, Started, TaskEnd, TaskFinished
from tests.runtime.calling import Calling, die, process_while
from tests.support.fakes import NEVER_S
from tests.support.harness import wait_until
from tests.support.nodes import alive

pytestmark = [pytest.mark.slow, pytest.mark.serial]
HERE = platform.node()


@pytest.fixture(scope="module")
def machine() -> Iterator[Any]:
    """A cluster of this process alone, with two CPUs, and a backend on it."""
    import ray

    from curate.runtime.ray.backend import RayBackend

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        ray.init("local", num_cpus=2, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)
    backend = RayBackend()
    backend.start(Resources())
    backend.load(Calling())
    yield backend
    backend.close()
    assert ray.is_initialized(), "closing ended what others had begun"
    ray.shutdown()


def polled(backend: Any, enough: Callable[[list[BackendEvent]], bool], within_s: float = NEVER_S) -> list[BackendEvent]:
    """Returns the news until there is enough of it."""
    news: list[BackendEvent] = []
    until = time.monotonic() + within_s
    while not enough(news):
        assert time.monotonic() < until, f"only {news} within {within_s} s"
        news += backend.poll(0.5)
    return news


def ends(count: int) -> Callable[[list[BackendEvent]], bool]:
    return lambda news: sum(isinstance(one, TaskFinished) for one in news) == count


def the_end(news: list[BackendEvent]) -> TaskFinished:
    (end,) = [one for one in news if isinstance(one, TaskFinished)]
    assert news[-1] == end
    return end


def begun(path: Path, count: int = 1) -> list[int]:
    """Returns the processes that wait for a file to vanish, once there are as many as that."""
    until = time.monotonic() + NEVER_S
    while len(found := [int(one.suffix[1:]) for one in path.parent.glob(f"{path.name}.*")]) < count:
        assert time.monotonic() < until
        time.sleep(0.01)
    return found


def test_a_single_piece_is_a_plain_task(machine: Any) -> None:
    """Its message and its end come together, and nothing else: no stream, which would cost more than the task."""
    machine.launch(1, [(abs, -7)], 1)
    assert polled(machine, ends(1)) == [Message(1, [7]), TaskFinished(1, TaskEnd.RETURNED)]


@pytest.mark.parametrize("pieces", [1, 3])
def test_an_announced_task_tells_where_it_runs_first(machine: Any, pieces: int) -> None:
    """Then every message at once, by itself, and the end, with the place again."""
    machine.launch(4, [(abs, -n) for n in range(pieces)], pieces, announce=True)
    started, *messages, ended = polled(machine, ends(1))
    assert isinstance(started, Started)
    assert (started.task, started.node) == (4, HERE)
    assert Path(f"/proc/{started.pid}").exists()
    assert messages == [Message(4, [n]) for n in range(pieces)]
    assert ended == TaskFinished(4, TaskEnd.RETURNED, "", HERE, started.pid)


def test_a_fresh_process_is_one_of_its_own(machine: Any) -> None:
    """Nothing has run there, however it is asked for."""
    pids = []
    for fresh, announce in ((False, False), (True, False), (True, True), (False, False)):
        machine.launch(8, [(os.getpid,)], 1, fresh=fresh, announce=announce)
        pids += [item for one in polled(machine, ends(1)) if isinstance(one, Message) for item in one.items]
    assert pids[1] not in (pids[0], pids[2], pids[3])
    assert pids[2] not in (pids[0], pids[3])


def test_a_bundle_sends_its_messages_in_batches(machine: Any) -> None:
    """A hundred quick pieces are one message or two; where it runs is told all the same."""
    machine.launch(5, [(abs, n) for n in range(100)], 100)
    started, *messages, ended = polled(machine, ends(1))
    assert isinstance(started, Started)
    assert [n for message in messages for n in message.items] == list(range(100))
    assert len(messages) <= 2
    assert isinstance(ended, TaskFinished)


def test_no_message_and_an_empty_bundle(machine: Any) -> None:
    """A program that has nothing to say just ends."""
    machine.launch(6, [], 1)
    assert polled(machine, ends(1)) == [TaskFinished(6, TaskEnd.RETURNED)]
    machine.launch(7, [], 2)
    assert [type(one) for one in polled(machine, ends(1))] == [Started, TaskFinished]


@pytest.mark.parametrize("announce", [False, True])
@pytest.mark.parametrize("how", ["kill", "_exit", "segfault", "exit"])
def test_a_worker_that_dies_has_crashed(machine: Any, how: str, announce: bool) -> None:
    """However it does: Ray cannot tell. If announced, it is known where it was, and what it had done by then."""
    machine.launch(1, [(abs, -1), (die, how)] if announce else [(die, how)], 2 if announce else 1, announce=announce)
    news = polled(machine, ends(1))
    end = the_end(news)
    assert end.end is TaskEnd.CRASHED
    if announce:
        started = news[0]
        assert isinstance(started, Started)
        assert news[1:-1] == [Message(1, [1])]
        assert (end.node, end.pid) == (HERE, started.pid)
    else:
        assert (end.node, end.pid) == ("", 0)
    # The same wherever it was: failures are grouped by it.
    assert end.detail == "the worker died: killed, a segmentation fault, or an exit"


@pytest.mark.parametrize("announce", [False, True])
def test_an_interrupt_in_the_worker_is_no_cancellation(machine: Any, announce: bool) -> None:
    """Ray calls it one. Were it believed, such a task would run again and again, like one that was lost."""
    machine.launch(1, [(die, "interrupt")], 1, announce=announce)
    end = the_end(polled(machine, ends(1)))
    assert (end.end, end.detail) == (TaskEnd.CRASHED, "KeyboardInterrupt: in the worker")


@pytest.mark.parametrize("announce", [False, True])
def test_an_error_of_the_program_is_told_with_its_traceback(machine: Any, announce: bool) -> None:
    """Bounded, the end of it kept: there is what happened."""
    machine.launch(1, [(die, "boom" * 5000)], 1, announce=announce)
    end = the_end(polled(machine, ends(1)))
    assert end.end is TaskEnd.RAISED
    assert end.detail.endswith("boom")
    assert len(end.detail) == 4000
    machine.launch(2, [(die, "boom")], 1, announce=announce)
    end = the_end(polled(machine, ends(1)))
    assert end.detail.splitlines()[-1] == "ValueError: boom"
    assert "calling.py" in end.detail


@pytest.mark.parametrize("announce", [False, True])
def test_cancelling_a_task_that_runs_ends_it_alone(machine: Any, announce: bool, tmp_path: Path) -> None:
    """Its worker is killed, its end is told, and the others never notice."""
    cancelled, other = tmp_path / "cancelled", tmp_path / "other"
    cancelled.touch()
    other.touch()
    machine.launch(1, [(process_while, str(cancelled))], 1, announce=announce)
    machine.launch(2, [(process_while, str(other))], 1)
    (pid,) = begun(cancelled)
    (kept,) = begun(other)
    machine.cancel(1)
    end = the_end(polled(machine, ends(1)))
    assert (end.task, end.end) == (1, TaskEnd.CANCELLED)
    other.unlink()
    assert polled(machine, ends(1)) == [Message(2, [kept]), TaskFinished(2, TaskEnd.RETURNED)]
    wait_until(lambda: not alive(pid), "its worker ends")
    assert machine._tasks == {}


@pytest.mark.parametrize("announce", [False, True])
def test_cancelling_a_task_in_the_queue(machine: Any, announce: bool, tmp_path: Path) -> None:
    """Its end is told at once, though it never ran."""
    hold = tmp_path / "hold"
    hold.touch()
    for task in (1, 2):
        machine.launch(task, [(process_while, str(hold))], 1)
    begun(hold, 2)
    machine.launch(3, [(process_while, str(hold))], 1, announce=announce)
    machine.cancel(3)
    end = the_end(polled(machine, ends(1)))
    assert (end.task, end.end, end.pid) == (3, TaskEnd.CANCELLED, 0)
    hold.unlink()
    assert {one.task for one in polled(machine, ends(2))} == {1, 2}
    assert len(begun(hold)) == 2
    assert machine._tasks == {}


@pytest.mark.parametrize("announce", [False, True])
def test_cancelling_a_task_that_has_ended(machine: Any, announce: bool, tmp_path: Path) -> None:
    """It has ended, and that is told; one that is not known is no mistake: its end may have been told just before."""
    gone = tmp_path / "gone"
    machine.launch(1, [(process_while, str(gone))], 1, announce=announce)
    begun(gone)
    time.sleep(0.5)
    machine.cancel(1)
    assert the_end(polled(machine, ends(1))).end is TaskEnd.RETURNED
    machine.cancel(1)
    assert machine.poll(0.0) == []


def test_nothing_is_told_after_all_are_cancelled(machine: Any, tmp_path: Path) -> None:
    """Whoever cancels everything is not interested any more; the slots are free at once."""
    hold = tmp_path / "hold"
    hold.touch()
    for task in range(4):
        machine.launch(task, [(process_while, str(hold))], 1, announce=task % 2 == 1)
    pids = begun(hold, 2)
    machine.cancel()
    assert machine.poll(0.1) == []
    machine.launch(9, [(abs, -9)], 1)
    assert polled(machine, ends(1)) == [Message(9, [9]), TaskFinished(9, TaskEnd.RETURNED)]
    wait_until(lambda: not any(alive(pid) for pid in pids), "their workers end")


def test_asking_for_memory_makes_no_new_workers(machine: Any) -> None:
    """The same function in another shape runs in the processes that are there, which have loaded what they need."""
    machine.launch(0, [(os.getpid,)], 1)
    polled(machine, ends(1))
    seen = set()
    for task in range(1, 13):
        machine.launch(task, [(os.getpid,)], 1, memory=(task % 6 + 1) << 20, announce=task % 2 == 0)
        seen |= {n for one in polled(machine, ends(1)) if isinstance(one, Message) for n in one.items}
    assert len(seen) <= 2


def test_more_memory_than_there_is_waits(machine: Any) -> None:
    """So nobody asks for more than `largest_memory`, which is what a node offers: that much runs."""
    import ray

    largest = machine.largest_memory()
    assert largest == int(ray.cluster_resources()["memory"])
    machine.launch(1, [(abs, -1)], 1, memory=largest)
    assert polled(machine, ends(1))[0] == Message(1, [1])
    machine.launch(2, [(abs, -1)], 1, memory=largest + 1)
    assert machine.poll(0.5) == []
    machine.cancel(2)
    assert the_end(polled(machine, ends(1))).end is TaskEnd.CANCELLED


def test_looking_at_the_nodes_is_rare(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dispatcher asks for the slots after every harvest; Ray is asked every two seconds."""
    import ray

    asked: list[int] = []
    nodes = ray.nodes
    monkeypatch.setattr(ray, "nodes", lambda: asked.append(1) or nodes())
    machine._view.forget()
    assert {machine.slots() for _ in range(1000)} == {2}
    assert machine.largest_memory() > 0
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("ray://127.0.0.1:10001", "submit the script with `ray job submit`"),
        ("http://127.0.0.1:8265", "submit the script with `ray job submit`"),
        ("127.0.0.1", "Invalid address format"),
    ],
)
def test_an_address_that_is_none_is_refused(address: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do instead."""
    import ray

    from curate.runtime.ray.backend import RayBackend

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=says):
        RayBackend().start(Resources())


def test_a_cluster_that_does_not_answer_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would try for minutes."""
    import ray

    from curate.runtime.ray.backend import RayBackend

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(ConfigError, match=r"no cluster answers there .*set RAY_ADDRESS=local to use this machine"):
            RayBackend().start(Resources())
