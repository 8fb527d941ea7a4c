"""What every backend with workers of its own does: how every way to die is told, what is cancelled, what waits."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from curate.runtime.protocol import BackendEvent, Message, Resources, Started, TaskEnd, TaskFinished
from tests.backends.calling import Calling, die, found, process_while, spoil
from tests.backends.polling import WORKERS, begun, ends, polled, the_end
from tests.support.harness import alive, wait_until
from tests.support.ray_head import own_ray

HERE = platform.node()
INTERVAL_S = 0.25
"""How often a bundle sends its messages, at most."""


@pytest.fixture(scope="module", params=WORKERS)
def machine(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A backend with two CPUs, and a program that calls what it is given."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        if request.param == "local":
            from curate.local.backend import LocalBackend

            patch.setattr("curate.local.machine.cpus", lambda: 2.0)
            backend: Any = LocalBackend()
        else:
            from curate.backends.ray.backend import RayBackend

            stack.enter_context(own_ray(2, object_store_memory=80 << 20))
            backend = RayBackend()
        backend.start(Resources())
        backend.load(Calling())
        yield backend
        backend.close()


def told(news: list[BackendEvent]) -> list[tuple[Any, ...]]:
    """Returns messages and ends, without where that was: of a task that is not announced, a backend may tell or not."""
    return [
        (one.task, one.items) if isinstance(one, Message) else (one.task, one.end)
        for one in news
        if isinstance(one, Message | TaskFinished)
    ]


@pytest.mark.slow
def test_a_single_piece(machine: Any) -> None:
    """Its message, and its end."""
    machine.launch(1, [(abs, -7)], 1)
    assert told(polled(machine, ends(1))) == [(1, [7]), (1, TaskEnd.RETURNED)]


@pytest.mark.parametrize("pieces", [1, 3])
def test_an_announced_task_tells_where_it_runs_first(machine: Any, pieces: int) -> None:
    """Then every message at once, by itself, and the end, with the place again."""
    machine.launch(4, [(abs, -n) for n in range(pieces)], pieces, announce=True)
    started, *messages, ended = polled(machine, ends(1))
    assert isinstance(started, Started)
    assert (started.task, started.node) == (4, HERE)
    assert alive(started.pid)
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
    """A hundred quick pieces are one message or two, and one more with each interval that they take."""
    began_s = time.monotonic()
    machine.launch(5, [(abs, n) for n in range(100)], 100)
    news = polled(machine, ends(1))
    intervals = (time.monotonic() - began_s) // INTERVAL_S
    messages = [one.items for one in news if isinstance(one, Message)]
    assert [n for items in messages for n in items] == list(range(100))
    assert len(messages) <= 2 + intervals


def test_no_message_and_an_empty_bundle(machine: Any) -> None:
    """A program that has nothing to say just ends."""
    machine.launch(6, [], 1)
    assert told(polled(machine, ends(1))) == [(6, TaskEnd.RETURNED)]
    machine.launch(7, [], 2)
    assert told(polled(machine, ends(1))) == [(7, TaskEnd.RETURNED)]


RAYS = "the worker died: killed, a segmentation fault, or an exit"
DIED = {
    "local": {
        "kill": "the worker died: killed by SIGKILL",
        "_exit": "the worker died: it ended itself with status 3",
        "segfault": "the worker died: killed by SIGSEGV, a segmentation fault",
        "exit": "SystemExit: 3",
    },
    "ray": dict.fromkeys(("kill", "_exit", "segfault", "exit"), RAYS),
}


@pytest.mark.ray(3)
@pytest.mark.parametrize("announce", [False, True])
@pytest.mark.parametrize("how", ["kill", "_exit", "segfault", "exit"])
def test_a_worker_that_dies_has_crashed(machine: Any, tmp_path: Path, how: str, announce: bool) -> None:
    """However it does. If announced, it is known where it was, and what it had said by then."""
    (alive := tmp_path / "alive").touch()
    if announce:
        machine.launch(1, [(abs, -1), (die, how, str(alive))], 2, announce=True)
        # Ray may lose what a worker says as it dies.
        news = polled(machine, lambda news: len(news) == 2)
    else:
        machine.launch(1, [(die, how)], 1)
        news = []
    alive.unlink()
    news += polled(machine, ends(1))
    end = the_end(news)
    assert end.end is TaskEnd.CRASHED
    if announce:
        started = news[0]
        assert isinstance(started, Started)
        assert news[1:-1] == [Message(1, [1])]
        assert (end.node, end.pid) == (HERE, started.pid)
    # The same wherever it was: failures are grouped by it.
    assert end.detail.splitlines()[0] == DIED[machine.name][how]
    if machine.name == "ray":
        assert (end.detail, bool(end.pid)) == (RAYS, announce)


@pytest.mark.parametrize("announce", [False, True])
def test_an_interrupt_in_the_worker_is_no_cancellation(machine: Any, announce: bool) -> None:
    """Ray calls it one. Were that believed, such a task would run again and again, like one that was lost."""
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
    assert told(polled(machine, ends(1))) == [(2, [kept]), (2, TaskEnd.RETURNED)]
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
    assert told(polled(machine, ends(1))) == [(9, [9]), (9, TaskEnd.RETURNED)]
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
    """So nobody asks for more than `largest_memory`, which is what there is: that much runs."""
    largest = machine.largest_memory()
    machine.launch(1, [(abs, -1)], 1, memory=largest)
    assert polled(machine, ends(1))[0] == Message(1, [1])
    machine.launch(2, [(abs, -1)], 1, memory=largest + (1 << 20))
    assert machine.poll(0.5) == []
    machine.cancel(2)
    assert the_end(polled(machine, ends(1))).end is TaskEnd.CANCELLED


def test_slots_share_the_memory_of_their_node(machine: Any) -> None:
    """What one has is what tasks may hold without asking: all slots at once hold no more than there is."""
    share = machine.slot_memory()
    assert 0 < share * machine.slots() <= machine.largest_memory()
    machine.launch(1, [(abs, -1)], 1, memory=share)
    assert polled(machine, ends(1))[0] == Message(1, [1])


@pytest.mark.slow
def test_what_a_program_changes_is_not_there_for_the_next(machine: Any, tmp_path: Path) -> None:
    """Its first task, too: what that changes may be what it was set up with, and stays as long as the program does."""

    def told(key: str, first: int, *call: Any) -> list[Any]:
        machine.load(Calling(key))
        for task in range(first, first + 6):
            machine.launch(task, [call], 1)
        return [one.items[0] for one in polled(machine, ends(6)) if isinstance(one, Message)]

    whole = {pid: rest for pid, *rest in told("looks", 1, found)}
    spoilt = set(told("spoils", 11, spoil, str(tmp_path)))
    after = {pid: rest for pid, *rest in told("looks again", 21, found)}
    # Which of its workers Ray takes is its affair.
    assert machine.name == "ray" or spoilt & whole.keys() & after.keys()
    assert {pid: after[pid] for pid in after.keys() & whole.keys()} == {
        pid: whole[pid] for pid in after.keys() & whole.keys()
    }
