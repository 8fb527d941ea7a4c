"""What Ray's errors mean: how a task, or an actor during a call, ended."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ray import exceptions

from curate.dataclass import dataclass, replace
from curate.runtime.protocol import TaskEnd, TaskFinished
from curate.runtime.worker import MAX_DETAIL, raised_end
from curate.units import format_bytes

_OBJECT_LOST = (exceptions.ObjectLostError, exceptions.PlasmaObjectNotAvailable)
_LOST = (exceptions.NodeDiedError, exceptions.LocalRayletDiedError, *_OBJECT_LOST)
_NO_ROOM = (exceptions.OutOfDiskError, exceptions.ObjectStoreFullError)
_HEALTH = "`ray status` and the logs of that node, in /tmp/ray/session_latest/logs, show why"
_UNPLACED = "Ray can place it on no node: `ray status` shows what there is"
_NO_GROUP = "the placement group that the driver runs in was removed: run it again outside of that group"
_UNSERVED: tuple[tuple[type[BaseException], str], ...] = (
    (
        exceptions.OutOfDiskError,
        "Ray has no room for an object, in memory or on disk: free space on the disk of /tmp/ray there (`df -h`), or "
        "give `ray start` an --object-spilling-directory on a larger disk, or a larger --object-store-memory",
    ),
    (
        exceptions.ObjectStoreFullError,
        "Ray has no room for an object in memory: `ray memory` lists what is kept there; give `ray start` a "
        "larger --object-store-memory",
    ),
    (exceptions.GetTimeoutError, f"Ray did not answer in time: {_HEALTH}"),
    (exceptions.RpcError, f"a call within Ray failed: {_HEALTH}"),
    (
        exceptions.RuntimeEnvSetupError,
        "Ray could not make the environment of a worker: see that each node can install or download the runtime_env",
    ),
    (exceptions.TaskUnschedulableError, _UNPLACED),
    (exceptions.ActorUnschedulableError, _UNPLACED),
    (exceptions.TaskPlacementGroupRemoved, _NO_GROUP),
    (exceptions.ActorPlacementGroupRemoved, _NO_GROUP),
    (exceptions.PendingCallsLimitExceeded, "an actor takes no more calls now"),
    (exceptions.AuthenticationError, "the cluster refuses the token: each node needs that of the head"),
)
"""What any other task may run into as well, and what to do about it."""
_KILLED_FOR_MEMORY = re.compile(r"Selected to kill: \([^()]*?\bpid=(\d+)[^()]*?\bmemory used=(\d+(?:\.\d+)?)GB")
_NODE_ID = re.compile(r"\bID: ([0-9a-f]{56})\b")
_ACTORS_NODE_DIED = re.compile(r"\bnode (has )?died\b|\bnode is dead\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CallSite:
    """Where something ran, as far as that is known."""

    node: str = ""
    """Name of the machine."""
    pid: int = 0
    node_id: str = ""


def ended(
    task: int,
    error: exceptions.RayError,
    place: CallSite,
    *,
    leaves: Callable[[str], bool],
    names: Mapping[str, str],
    cancelled: bool = False,
) -> TaskFinished:
    """Returns what Ray's error means. What it is about may hide as the cause of a task's own error.

    `leaves` tells whether a node is dead or about to be, `names` the machine of a node. The first line of the detail is
    the same for all that is alike: failures are grouped by it.
    """
    node, pid, peak_bytes = place.node, place.pid, 0
    end, detail = TaskEnd.RAISED, str(error)[-MAX_DETAIL:]
    for link in _chain(error):
        if (found := raised_end(task, link)) is not None:
            return replace(found, node=found.node or node, pid=found.pid or pid)
        if isinstance(link, exceptions.OutOfMemoryError):
            pid, peak_bytes = killed_for_memory(str(link), pid)
            held = f"the worker used {format_bytes(peak_bytes)} when" if peak_bytes else "the worker was killed when"
            end, detail = TaskEnd.OUT_OF_MEMORY, f"{held} its node ran out of memory\n{link}"
        elif isinstance(link, _LOST):
            what = "an object was lost" if isinstance(link, _OBJECT_LOST) else "the node died"
            end, detail = TaskEnd.LOST, f"{what}\n{type(link).__name__}: {link}"
        elif says := unserved(link):
            end, detail = TaskEnd.UNSERVED, f"{says}\n{type(link).__name__}: {link}"
            if isinstance(link, _NO_ROOM) and not isinstance(error, exceptions.RayTaskError):
                # No worker raised it: there is none on the node of this process, which asked.
                node, pid = platform.node(), 0
        elif isinstance(link, exceptions.TaskCancelledError):
            # Unasked, it is a KeyboardInterrupt that came from the task itself.
            end = TaskEnd.CANCELLED if cancelled else TaskEnd.CRASHED
            detail = "it was cancelled" if cancelled else "KeyboardInterrupt: in the worker"
        elif isinstance(link, exceptions.WorkerCrashedError):
            if cancelled:
                end, detail = TaskEnd.CANCELLED, "its worker was killed"
            elif leaves(place.node_id):
                # What takes a machine away may kill its processes one by one.
                end, detail = TaskEnd.LOST, "the worker died on a node that is draining or dead"
            else:
                end, detail = TaskEnd.CRASHED, "the worker died: killed, a segmentation fault, or an exit"
        elif isinstance(link, exceptions.ActorUnavailableError):
            end, detail = TaskEnd.LOST, f"the actor could not be reached\n{link}"
        elif isinstance(link, exceptions.RayActorError):
            if link.preempted or _ACTORS_NODE_DIED.search(str(link)) or leaves(place.node_id):
                end, detail = TaskEnd.LOST, f"the actor's node died\n{link}"
            else:
                end, detail = TaskEnd.CRASHED, f"the actor died: killed, a segmentation fault, or an exit\n{link}"
        else:
            continue
        known = _NODE_ID.search(str(link))
        node = node or (names.get(known[1], "") if known else "")
        break
    return TaskFinished(task, end, detail[:MAX_DETAIL], node, pid, peak_bytes)


def unserved(error: BaseException) -> str:
    """Returns what to do about an error that says that Ray had no room, or did not answer; empty for any other."""
    if type(error) is exceptions.RaySystemError and not getattr(error, "traceback_str", None):
        # With a traceback, it is what somebody's code raised while a value was unpacked.
        return f"Ray itself failed: {_HEALTH}"
    return next((says for kind, says in _UNSERVED if isinstance(error, kind)), "")


def killed_for_memory(message: str, pid: int = 0) -> tuple[int, int]:
    """Returns process and bytes of the worker that Ray's memory monitor killed, by its message: 0 where it says none.

    A message may be about several workers, of which `pid` is meant; if that is not known, the largest stands for it.

    >>> killed_for_memory("Selected to kill: (Task: task name=f, pid=7, actual memory used=1.50GB, worker ID=a)")
    (7, 1610612736)
    >>> killed_for_memory("low on memory", pid=3)
    (3, 0)
    """
    killed = [(int(who), int(float(gibibytes) * 2**30)) for who, gibibytes in _KILLED_FOR_MEMORY.findall(message)]
    if pid:
        return pid, max((size for who, size in killed if who == pid), default=0)
    return killed[0] if len(killed) == 1 else (0, max((size for _, size in killed), default=0))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and all that caused it. Ray keeps what a task raised in `cause`."""
    links: list[Any] = [error]
    for link in links:
        if isinstance(link, BaseException):
            yield link
            causes = (getattr(link, "cause", None), link.__cause__)
            links += [cause for cause in causes if not any(cause is one for one in links)]
