"""The protocol of a backend, which runs tasks for the dispatcher. Implementations: `inline`, `local` and `ray`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, TypedDict, Unpack

from curate.dataclass import dataclass, field


class Program(Protocol):
    """What every worker of a stage runs. Shipped once, kept (with whatever it loaded) for the life of the process."""

    key: str
    """Two programs with the same key are the same: a worker that has it does not fetch it again."""

    def run(self, payload: Any) -> Iterator[Any]:
        """Yields one small message for each piece of the payload, as soon as it has ended."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one task holds while it runs. One shape for all tasks of a stage."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory: int | None = None
    """Bytes, for placement; None leaves it to the backend."""
    custom: Mapping[str, float] = field(default_factory=dict)


class LaunchOptions(TypedDict, total=False):
    """How one task is run."""

    memory: int | None
    """Bytes that it holds instead of what `start` was told."""
    announce: bool
    """`poll` tells when it runs (`Started`), where, also of one that dies later, and each message at once: of a worker
    that dies, nothing is left unsaid. Without, messages come in batches."""
    stream: bool
    """What the program yields that has `nbytes` is a block: it is offered, and the program stands still until it is
    taken. All else that it yields is a message. Announced, whatever `announce` says."""
    fresh: bool
    """In a process in which nothing has run before, where there are such."""


class TaskEnd(StrEnum):
    """How a task ended."""

    RETURNED = "returned"
    CRASHED = "crashed"
    """Its worker process died on a node that lives."""
    OUT_OF_MEMORY = "out of memory"
    """Its worker process was killed because the node ran out of memory."""
    LOST = "lost"
    """Its node died."""
    UNSERVED = "not served"
    """What runs tasks had no room for it, or did not answer: as it may for any other task. The first line of `detail`
    says what to do."""
    CANCELLED = "cancelled"
    RAISED = "raised"
    """The program itself raised, outside of user code; `detail` has the traceback."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a running task yielded since the last poll."""

    task: int
    items: list[Any]


@dataclass(frozen=True, slots=True)
class Started:
    """A task has left the queue and runs. Told of tasks that were launched with `announce`, and maybe of others."""

    task: int
    node: str
    """Name of the machine."""
    pid: int
    """The worker's process there."""


@dataclass(frozen=True, slots=True)
class TaskFinished:
    """A task is over; no message of it follows."""

    task: int
    end: TaskEnd
    detail: str = ""
    node: str = ""
    """Name of the machine that ran it; empty where that is not known."""
    pid: int = 0
    """The worker's process there; 0 where that is not known."""
    peak_bytes: int = 0
    """Memory that its worker held, as far as is known."""

    def told(self) -> dict[str, Any]:
        """Returns what logs say of it."""
        return {"how": self.end.value, "node": self.node, "pid": self.pid, "detail": self.detail[:300]}


@dataclass(frozen=True, slots=True)
class BlockReady:
    """A task that streams has made a block, and makes no other before this one is taken."""

    task: int
    size_bytes: int


class _Lost(Exception):
    def __init__(self, ended: TaskFinished) -> None:
        super().__init__(ended)
        self.ended = ended
        """How what made it, held it or was the last to work on it ended."""


class BlockLostError(_Lost):
    """A block that was taken cannot be fetched: it went with its node, or was never finished."""


class Block(Protocol):
    """A block that was taken. It is held where it was made; nobody holds it once this is gone."""

    def fetch(self) -> Any:
        """Returns what the program yielded. Raises BlockLostError."""


class PoolProgram(Protocol):
    """What every actor of a pool runs."""

    def setup(self) -> None:
        """Loads what is kept for the life of the actor. What it raises ends the run."""

    def call(self, payload: Any) -> Any:
        """Returns what a payload becomes, in one thread, one call at a time.

        An error of user code is part of the answer; what is raised is an error of curate's.
        """


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool of actors that the tasks of a program call."""

    name: str
    """What it is called in messages."""
    program: PoolProgram
    resources: Resources
    """What one actor holds."""
    min_size: int = 1
    """Actors that are there as long as the run goes on."""
    max_size: int | None = None
    """Actors at most; None: as many as the cluster can hold beside one task."""
    max_in_flight: int = 4
    """Calls that an actor is sent at a time, about: the one that it works on, and those that wait."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """How a pool is doing."""

    name: str
    ready: int
    """Actors that take calls."""
    starting: int
    """Actors that were asked for and do not take calls yet."""
    queued: int
    """Calls that wait for an actor that is at work."""
    busy: float
    """Share of the time since the last look in which actors that were ready were at work, 0 to 1."""


@dataclass(frozen=True, slots=True)
class ActorStatus:
    """What an actor says of itself."""

    at_s: float
    """When that was, by the actor's clock."""
    worked_s: float
    """How long it has worked."""
    queued: int
    """Calls that wait."""
    task: int | None
    """The task whose call is worked on."""


class CallLostError(_Lost):
    """A call has no answer: every actor that it was sent to died."""


class Call(Protocol):
    """A call of a pool that was made. The answer is kept until it is asked for, or this is gone."""

    def ready(self) -> bool:
        """Returns whether there is an answer, without waiting."""

    def result(self) -> Any:
        """Returns the answer, once; waits for it.

        An actor that dies is none of the caller's business: the call is made again on another one. Raises CallLostError
        after three that died.
        """


class Pool(Protocol):
    """A pool as a program sees it, in the process of a task. Used by one thread."""

    @property
    def room(self) -> int:
        """How many calls this task may have made now and not asked for the answer of: its share, at least 1."""

    def call(self, payload: Any) -> Call:
        """Sends a payload to the actor that is likely to be free first; does not wait."""


class PoolUser(Program, Protocol):
    """A program that calls pools."""

    def connect(self, pools: Sequence[Pool]) -> None:
        """Takes the pools, in the order in which `load` was given them: once in each worker, before the first run."""


BackendEvent = Started | Message | BlockReady | TaskFinished
"""What a poll tells of tasks, of each in this order."""


class Backend(Protocol):
    """Runs tasks of one program. Used by one thread. By default it starts nothing, has no pools, a place for all that
    runs, and no bounds of memory."""

    name: str

    def start(self, resources: Resources, pools: Sequence[PoolSpec] = ()) -> float:
        """Gets ready for tasks that each hold `resources`, beside the smallest size of all pools; returns the seconds
        that it took to start what runs them, 0 if that was there.

        Raises ConfigError if no node can ever hold one, or the pools would leave no room for one task.
        """
        del resources, pools
        return 0.0

    def load(
        self, program: Program, pools: Sequence[PoolSpec] = (), *, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Ships the program that the tasks launched from now on run; those of the one before are over.

        With pools the program is a `PoolUser`: their actors are started, and this returns when each has one that is
        ready, or `stopped` says so. Pools of the program before are closed. Raises PoolFailed, with the traceback, if
        an actor's `setup` raises. `poll` replaces actors that die, and raises PoolFailed if none can be made any more.
        """

    def pools(self) -> list[PoolState]:
        """Returns how the pools are doing."""
        return []

    def held_up(self) -> frozenset[int]:
        """Returns the tasks that wait for actors of a pool which are at work on calls of others, as far as is known."""
        return frozenset()

    def crowded_out(self) -> bool:
        """Returns whether tasks have had, for a while, what an actor needs of a pool that has none: all of them wait
        for it, and it for the end of one of them."""
        return False

    def waits(self) -> str:
        """Returns, in words, what there has been no place for for a while; empty if there is one for everything."""
        return ""

    def slots(self) -> int:
        """Returns how many tasks can run at once now. A node that is draining has none."""

    def largest_memory(self) -> int | None:
        """Returns the most bytes that one task can ask for on a node that lives or can be started, None if unknown."""
        return None

    def slot_memory(self) -> int | None:
        """Returns the bytes that each slot has if those of its node share its memory, of the node where that is least;
        None if unknown."""
        return None

    def alone(self) -> bool:
        """Returns whether all tasks run on this machine, now and later."""

    def launch(self, task: int, payload: Any, pieces: int, **how: Unpack[LaunchOptions]) -> None:
        """Starts a task over `pieces` pieces of work. `task` is a number that no other task of this program had."""

    def take(self, task: int) -> Block:
        """Returns the block that a task offers, which then goes on. The block is not moved before it is fetched."""

    def poll(self, timeout_s: float) -> list[BackendEvent]:
        """Returns what has happened since the last call, waiting up to `timeout_s` for something to happen."""

    def cancel(self, task: int | None = None) -> None:
        """Ends a task, or all of them, by force; what they had not published is discarded.

        Of a single task that is cancelled, `poll` still tells the end; nothing is told after all of them are. An actor
        that is at work on a call of a task that is cancelled dies with it, if the call goes on.
        """

    def close(self) -> None:
        """Releases everything that was made since `start`. What runs tasks stays for the next run of this process."""
