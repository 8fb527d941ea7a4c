"""What Ray's errors mean, without a cluster: also where they hide, and whatever their messages say."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import structlog.testing
from ray import exceptions as ray_errors

from curate.backends.ray import calls, cluster
from curate.backends.ray.cluster import hush
from curate.backends.ray.errors import MAX_DETAIL, CallSite, ended, killed_for_memory
from curate.pipeline.remote_error import CapturedError
from curate.runtime.protocol import CallLostError, TaskEnd, TaskFinished
from curate.tasks.failure import FailureKind

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


OBJECT = "00", b"owner", "here"
EVERY: dict[str, tuple[Callable[[], BaseException], TaskEnd]] = {
    "ActorAlreadyExistsError": (lambda: ray_errors.ActorAlreadyExistsError("a"), TaskEnd.RAISED),
    "ActorDiedError": (lambda: ray_errors.ActorDiedError(), TaskEnd.CRASHED),
    "ActorHandleNotFoundError": (lambda: ray_errors.ActorHandleNotFoundError("a"), TaskEnd.RAISED),
    "ActorPlacementGroupRemoved": (lambda: ray_errors.ActorPlacementGroupRemoved(), TaskEnd.UNSERVED),
    "ActorUnavailableError": (lambda: ray_errors.ActorUnavailableError("away", None), TaskEnd.LOST),
    "ActorUnschedulableError": (lambda: ray_errors.ActorUnschedulableError("nowhere"), TaskEnd.UNSERVED),
    "AsyncioActorExit": (lambda: ray_errors.AsyncioActorExit(), TaskEnd.RAISED),
    "AuthenticationError": (lambda: ray_errors.AuthenticationError("no token"), TaskEnd.UNSERVED),
    "CrossLanguageError": (
        lambda: ray_errors.CrossLanguageError(SimpleNamespace(formatted_exception_string="java", language=0)),
        TaskEnd.RAISED,
    ),
    "GetTimeoutError": (lambda: ray_errors.GetTimeoutError("late"), TaskEnd.UNSERVED),
    "LocalRayletDiedError": (lambda: ray_errors.LocalRayletDiedError(), TaskEnd.LOST),
    "NodeDiedError": (lambda: ray_errors.NodeDiedError("gone"), TaskEnd.LOST),
    "ObjectFetchTimedOutError": (lambda: ray_errors.ObjectFetchTimedOutError(*OBJECT), TaskEnd.LOST),
    "ObjectFreedError": (lambda: ray_errors.ObjectFreedError(*OBJECT), TaskEnd.LOST),
    "ObjectLostError": (lambda: ray_errors.ObjectLostError(*OBJECT), TaskEnd.LOST),
    "ObjectReconstructionFailedError": (lambda: ray_errors.ObjectReconstructionFailedError("00"), TaskEnd.LOST),
    "ObjectRefStreamEndOfStreamError": (lambda: ray_errors.ObjectRefStreamEndOfStreamError(), TaskEnd.RAISED),
    "ObjectStoreFullError": (lambda: ray_errors.ObjectStoreFullError("full"), TaskEnd.UNSERVED),
    "OufOfBandObjectRefSerializationException": (
        lambda: ray_errors.OufOfBandObjectRefSerializationException(),
        TaskEnd.RAISED,
    ),
    "OutOfDiskError": (lambda: ray_errors.OutOfDiskError(*OBJECT), TaskEnd.UNSERVED),
    "OutOfMemoryError": (lambda: ray_errors.OutOfMemoryError("low"), TaskEnd.OUT_OF_MEMORY),
    "OwnerDiedError": (lambda: ray_errors.OwnerDiedError(*OBJECT), TaskEnd.LOST),
    "PendingCallsLimitExceeded": (lambda: ray_errors.PendingCallsLimitExceeded("full"), TaskEnd.UNSERVED),
    "PlasmaObjectNotAvailable": (lambda: ray_errors.PlasmaObjectNotAvailable(), TaskEnd.LOST),
    "RayActorError": (lambda: ray_errors.RayActorError(), TaskEnd.CRASHED),
    "RayCgraphCapacityExceeded": (lambda: ray_errors.RayCgraphCapacityExceeded("full"), TaskEnd.RAISED),
    "RayChannelError": (lambda: ray_errors.RayChannelError("closed"), TaskEnd.RAISED),
    "RayChannelTimeoutError": (lambda: ray_errors.RayChannelTimeoutError("late"), TaskEnd.RAISED),
    "RayDirectTransportError": (lambda: ray_errors.RayDirectTransportError("odd"), TaskEnd.RAISED),
    "RayError": (lambda: ray_errors.RayError("odd"), TaskEnd.RAISED),
    "RaySystemError": (lambda: ray_errors.RaySystemError("a worker could not be started"), TaskEnd.UNSERVED),
    "RayTaskError": (
        lambda: ray_errors.RayTaskError("f", "Traceback", ValueError("odd"), pid=1, ip="1"),
        TaskEnd.RAISED,
    ),
    "ReferenceCountingAssertionError": (lambda: ray_errors.ReferenceCountingAssertionError(*OBJECT), TaskEnd.LOST),
    "RpcError": (lambda: ray_errors.RpcError("unavailable", 14), TaskEnd.UNSERVED),
    "RuntimeEnvSetupError": (lambda: ray_errors.RuntimeEnvSetupError("pip failed"), TaskEnd.UNSERVED),
    "StreamingGeneratorReplayInconsistentError": (
        lambda: ray_errors.StreamingGeneratorReplayInconsistentError("odd"),
        TaskEnd.RAISED,
    ),
    "TaskCancelledError": (lambda: ray_errors.TaskCancelledError(), TaskEnd.CRASHED),
    "TaskPlacementGroupRemoved": (lambda: ray_errors.TaskPlacementGroupRemoved(), TaskEnd.UNSERVED),
    "TaskUnschedulableError": (lambda: ray_errors.TaskUnschedulableError("nowhere"), TaskEnd.UNSERVED),
    "UnserializableException": (lambda: ray_errors.UnserializableException("Traceback"), TaskEnd.RAISED),
    "UserCodeException": (lambda: ray_errors.UserCodeException("odd"), TaskEnd.RAISED),
    "WorkerCrashedError": (lambda: ray_errors.WorkerCrashedError(), TaskEnd.CRASHED),
}
"""Each class of Ray's, one of it, and what it is taken for."""


def test_each_class_of_ray_has_a_kind() -> None:
    """One that a later Ray brings is to be looked at, and named here, before it counts against a shard."""
    classes = {name for name, one in vars(ray_errors).items() if isinstance(one, type) and issubclass(one, Exception)}
    assert {name for name in classes if getattr(ray_errors, name).__module__ == ray_errors.__name__} == set(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_what_each_class_of_ray_is_taken_for(name: str) -> None:
    """No shard pays for what the cluster lacks: no room, no answer, no place. What is said first says what to do."""
    make, end = EVERY[name]
    error = make()
    assert type(error) is getattr(ray_errors, name)
    for wrapped in (error, hidden(error), caused(error)) if name != "RayTaskError" else (error,):
        found = died(wrapped)
        assert found.end is end, wrapped
        if end is TaskEnd.UNSERVED:
            first, *others = found.detail.splitlines()
            assert len(first) > 20
            assert name in others[0]
            assert died(wrapped).detail.splitlines()[0] == first


def test_where_there_is_no_room() -> None:
    """On the node of the worker that raised it; where none did, on that of the process that asked for the object."""
    place = CallSite("node-7", 12, NODE)
    for error in (ray_errors.OutOfDiskError(*OBJECT), ray_errors.ObjectStoreFullError("full")):
        assert (died(hidden(error), place=place).node, died(hidden(error), place=place).pid) == ("node-7", 12)
        assert (died(error, place=place).node, died(error, place=place).pid) == (platform.node(), 0)
        assert "--object-store-memory" in died(error).detail.splitlines()[0]
    assert "--object-spilling-directory" in died(ray_errors.OutOfDiskError(*OBJECT)).detail.splitlines()[0]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> calls.CalledPool:
    """A pool in a task, without a cluster: nothing is sent."""
    made = calls.CalledPool.__new__(calls.CalledPool)
    made._board, made._gone, made._numbers = calls.ActorDirectory(), set(), itertools.count()
    monkeypatch.setattr(calls, "LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr(calls.CalledPool, "_look", Mock())
    monkeypatch.setattr(made, "_send", lambda call: setattr(call, "sends", call.sends + 1))
    return made


def test_a_payload_that_there_is_no_room_for(pool: calls.CalledPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no error of the job's: the shard waits, like that of a task that Ray had no room for."""
    monkeypatch.setattr(calls.ray, "put", Mock(side_effect=ray_errors.ObjectStoreFullError("full")))
    call = pool.call((np.zeros(calls.LARGE_BYTES),))
    assert call.ready()
    with pytest.raises(CallLostError) as lost:
        call.result()
    assert lost.value.ended.end is TaskEnd.UNSERVED
    assert CapturedError.of(lost.value).failure.kind is FailureKind.UNSERVED


def test_no_call_is_to_blame_for_an_answer_without_room(pool: calls.CalledPool) -> None:
    """It is made again, more often than one that actors die of, and then the shard waits."""
    call = calls._Call(pool, 3, "payload", 0, sends=1)
    end = died(ray_errors.OutOfDiskError(*OBJECT))
    while not call.settled:
        assert call.sends <= calls.MAX_SENDS
        pool.lost(call, end, dead=False)
    assert (call.deaths, call.sends) == (0, calls.MAX_SENDS)
    with pytest.raises(CallLostError):
        call.result()


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
