"""What Ray's errors mean, without a cluster: also where they hide, and whatever their messages say."""

from __future__ import annotations

from typing import Any

import pytest
import structlog.testing
from ray import exceptions as ray_errors

from curate.backends.ray import cluster
from curate.backends.ray.cluster import hush
from curate.backends.ray.errors import MAX_DETAIL, CallSite, ended, killed_for_memory
from curate.runtime.protocol import CallLostError, TaskEnd, TaskFinished

NODE = "5762ece074c0a8b87a310c3ec0b68d273d38fb265216b0529ab1e924"
OUT_OF_MEMORY = f"""\
{{count}} worker(s) were killed due to the node running low on memory. Memory on the node (IP: 192.0.2.2, ID: {NODE}) \
was 2.61GB used / 23.54GB limit (0.110793)
OOM kill reason: Memory usage 2792005632B exceeded threshold of 2777887488B (11.0% of 25276502016B limit)
Object store memory usage: [- objects spillable: 0
(global lru) capacity: 83886080]
Ray killed {{count}} worker(s) based on the killing policy
Considered workers: [
{{workers}}
]
Total non-selected idle workers USS bytes: 0.04GB
Top 10 memory users: PID	MEM(GB)	COMMAND
10450	1.07	ray::plain
"""
WORKER = (
    "{verb}: (Task: job ID=01000000, lease ID=00, task name=plain, required resources={{CPU: 1}}, pid={pid}, "
    "actual memory used={used}GB, worker ID=df3eab165d890f20f437666cf62cd810860455ab77d20dac4a0d68bc)"
)


def out_of_memory(*workers: tuple[str, int, str]) -> str:
    """Returns Ray's message about workers: what became of each, its process, the memory it used."""
    lines = [WORKER.format(verb=verb, pid=pid, used=used) for verb, pid, used in workers]
    killed = sum(verb == "Selected to kill" for verb, _, _ in workers)
    return OUT_OF_MEMORY.format(count=killed, workers="\n".join(lines))


def died(
    error: ray_errors.RayError, *, place: CallSite | None = None, leaving: str = "", cancelled: bool = False
) -> TaskFinished:
    return ended(
        3,
        error,
        place or CallSite(),
        leaves=lambda node: node == leaving != "",
        names={NODE: "node-7"},
        cancelled=cancelled,
    )


KILLED, KEPT = "Selected to kill", "Not selected"


@pytest.mark.parametrize(
    ("workers", "pid", "found"),
    [
        ([(KILLED, 10450, "1.07")], 0, (10450, int(1.07 * 2**30))),
        ([(KILLED, 10450, "1.07")], 10450, (10450, int(1.07 * 2**30))),
        ([(KEPT, 4, "9.5"), (KILLED, 5, "2")], 0, (5, 2 << 30)),
        ([(KILLED, 4, "1.5"), (KILLED, 5, "3.00")], 4, (4, 3 << 29)),
        ([(KILLED, 4, "1.5"), (KILLED, 5, "3.00")], 0, (0, 3 << 30)),
        ([(KILLED, 4, "1.5")], 9, (9, 0)),
        ([(KILLED, 4, "1.5.7")], 4, (4, 0)),
        ([(KILLED, 4, "nan")], 0, (0, 0)),
        ([], 0, (0, 0)),
    ],
)
def test_the_memory_of_the_worker_that_was_killed(
    workers: list[tuple[str, int, str]], pid: int, found: tuple[int, int]
) -> None:
    """Its own, where it is known which it is; nothing is made up where the message does not say."""
    assert killed_for_memory(out_of_memory(*workers), pid) == found


def test_out_of_memory_tells_where_and_how_much() -> None:
    """Also of a task that never told where it ran; Ray's words follow, bounded."""
    end = died(ray_errors.OutOfMemoryError(out_of_memory((KILLED, 5, "1.50"))))
    assert (end.end, end.node, end.pid, end.peak_bytes) == (TaskEnd.OUT_OF_MEMORY, "node-7", 5, 3 << 29)
    assert end.detail.splitlines()[0] == "the worker used 1.50 GiB when its node ran out of memory"
    assert "Considered workers" in end.detail
    long = died(ray_errors.OutOfMemoryError("x" * 100_000))
    assert long.end is TaskEnd.OUT_OF_MEMORY
    assert long.detail.startswith("the worker was killed when its node ran out of memory\nxxx")
    assert len(long.detail) == MAX_DETAIL


def hidden(cause: Exception) -> ray_errors.RayError:
    """Returns what a task raises that was told of an error by Ray itself."""
    return ray_errors.RayTaskError("f", f"Traceback\n{cause}", cause, pid=1, ip="192.0.2.2").as_instanceof_cause()


def caused(cause: Exception) -> ray_errors.RayError:
    error = hidden(ValueError("could not go on"))
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("wrap", [lambda error: error, hidden, caused], ids=["open", "hidden", "caused"])
@pytest.mark.parametrize(
    ("error", "end", "first_line"),
    [
        (ray_errors.NodeDiedError("gone"), TaskEnd.LOST, "the node died"),
        (ray_errors.LocalRayletDiedError(), TaskEnd.LOST, "the node died"),
        (ray_errors.ObjectLostError("00", "owner", "here"), TaskEnd.LOST, "an object was lost"),
        (ray_errors.OwnerDiedError("00", "owner", "here"), TaskEnd.LOST, "an object was lost"),
        (
            ray_errors.OutOfMemoryError("low"),
            TaskEnd.OUT_OF_MEMORY,
            "the worker was killed when its node ran out of memory",
        ),
        (
            ray_errors.WorkerCrashedError(),
            TaskEnd.CRASHED,
            "the worker died: killed, a segmentation fault, or an exit",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_error_has_its_meaning_wherever_it_hides(
    wrap: Any, error: Exception, end: TaskEnd, first_line: str
) -> None:
    """The task's own error may be only the messenger."""
    found = died(wrap(error))
    assert (found.task, found.end, found.detail.splitlines()[0]) == (3, end, first_line)


@pytest.mark.parametrize(
    ("says", "end"),
    [
        (
            "The actor died unexpectedly before finishing this task.\n\tpid: 7\nWorker exited: connection error",
            TaskEnd.CRASHED,
        ),
        ("The actor is dead because its node has died. Node Id: 0x", TaskEnd.LOST),
    ],
)
def test_an_actor_that_died_or_its_node(says: str, end: TaskEnd) -> None:
    """Ray has one error for both; its words tell. A node that is known to leave takes its actors with it."""
    place = CallSite("node-7", 12, NODE)
    found = died(ray_errors.RayActorError("00", says), place=place)
    assert (found.end, found.node, found.pid) == (end, "node-7", 12)
    assert died(ray_errors.RayActorError("00", says), place=place, leaving=NODE).end is TaskEnd.LOST


def test_a_task_whose_call_was_lost_ended_like_the_actor() -> None:
    """Whatever it says of it: the shard that made actors die is tried again as one that made a worker die."""
    lost = CallLostError(TaskFinished(0, TaskEnd.OUT_OF_MEMORY, "the worker used 2 GiB", "node-7", 12, 2 << 30))
    assert died(hidden(lost)) == TaskFinished(3, TaskEnd.OUT_OF_MEMORY, "the worker used 2 GiB", "node-7", 12, 2 << 30)


def test_causes_that_go_round_end() -> None:
    """An exception may be its own cause's cause."""
    first, second = ValueError("one"), ValueError("two")
    first.__cause__, second.__cause__ = second, first
    assert died(caused(first)).end is TaskEnd.RAISED


def test_other_errors_keep_their_last_words() -> None:
    """A traceback says at its end what happened."""
    end = died(ray_errors.RaySystemError(RuntimeError("odd"), "Traceback " + "x" * 9000 + "\nRuntimeError: odd"))
    assert end.end is TaskEnd.RAISED
    assert len(end.detail) <= MAX_DETAIL
    assert end.detail.splitlines()[-1].endswith("odd")


@pytest.mark.parametrize("error", [ray_errors.TaskCancelledError(), ray_errors.WorkerCrashedError()])
def test_what_was_cancelled_is_cancelled(error: ray_errors.RayError) -> None:
    """However Ray puts it."""
    assert died(error, cancelled=True).end is TaskEnd.CANCELLED
    assert died(error).end is TaskEnd.CRASHED


@pytest.mark.parametrize("private", ["get_draining_nodes", "get_cluster_config"])
def test_another_ray_may_lack_what_is_private(private: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no node is draining, and none can be started, as far as is known."""
    from ray._private.state import GlobalState

    monkeypatch.delattr(GlobalState, private)
    known = cluster.draining() if private == "get_draining_nodes" else cluster.configurable()
    assert not known


def test_ray_says_little(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One short line now and then, in the log, instead of a page for every node that dies on standard output."""
    from ray._private import worker

    now = [1000.0]
    monkeypatch.setattr(cluster.time, "monotonic", lambda: now[0])
    printed = worker.print_to_stdstream
    undo = hush()
    page = {"lines": ["Raylet is terminated.\n    [state-dump] " + "x" * 5000], "pid": "raylet", "is_err": False}
    with structlog.testing.capture_logs() as logs:
        for _ in range(50):
            worker.print_to_stdstream(page, ignore_prefix=False)
        now[0] += 11.0
        worker.print_to_stdstream({"lines": ["The node is dead"]}, ignore_prefix=False)
    undo()
    assert worker.print_to_stdstream is printed
    assert [(one["log_level"], one["untold"]) for one in logs] == [("warning", 0), ("warning", 49)]
    assert logs[0]["notice"].startswith("Raylet is terminated. [state-dump] xxx")
    assert len(logs[0]["notice"]) == 300
    assert capsys.readouterr() == ("", "")
