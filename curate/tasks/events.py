"""The input events of the scheduler, and its actions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NewType

from curate.dataclass import dataclass
from curate.tasks.failure import FailureKind, Refusal

TaskId = NewType("TaskId", int)


# What happens


@dataclass(frozen=True, slots=True)
class SlotsChanged:
    """So many tasks can run at once now. The first event of a run."""

    slots: int
    largest_memory: int | None = None
    """Most bytes that one task can ask for on a node that lives or can be started; None: unknown."""
    slot_memory: int | None = None
    """Bytes that each slot has of its node's memory, where all have the same, and it is least; None: unknown."""


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """A task has left the queue and runs; told only where a backend knows."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class ShardDone:
    """A shard's output exists."""

    task: TaskId
    shard: int
    size_bytes: int
    seconds: float
    computed: bool
    """False: it existed already, which says nothing about the rate."""
    held_bytes: int = 0
    """Most memory that its process held for itself; 0 where that is not known."""


@dataclass(frozen=True, slots=True)
class ShardFailed:
    """A try of one shard failed, and its task goes on."""

    task: TaskId
    shard: int
    kind: FailureKind
    after_s: float = 0.0
    """Seconds that user code asked to wait for."""
    peak_bytes: int = 0
    """Memory that its worker had held by then, as far as is known."""
    tries: int = 1
    """Tries in a row that ended like this, those included that its worker made by itself."""
    refused: Refusal | None = None
    """What the store refused, if it may refuse that to every shard."""


@dataclass(frozen=True, slots=True)
class ShardWaiting:
    """A shard that runs waits for what is not there now, and then goes on where it is; or it no longer does."""

    task: TaskId
    shard: int
    waits: bool


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A task is over. Nothing more is heard of it."""

    task: TaskId
    kind: FailureKind | None = None
    """Why it did not get to its last shard; None: it did."""
    suspect: int | None = None
    """The first of its shards without an output, where somebody looked: the one that it died of."""
    suspects: int = 1
    """How many of its shards, from `suspect` on, it may have died of: others were begun before that one was there."""
    peak_bytes: int = 0
    """Memory that it held, as far as is known."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: backoffs end, deadlines pass, stragglers show."""

    held_up: frozenset[int] = frozenset()
    """Tasks that wait for actors which are at work for others: their shards' time limit does not run."""
    crowded: bool = False
    """Whether tasks have what an actor needs of a pool that has none: nothing is launched before it has a place, and
    those that wait for it make way."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The user wants to stop: nothing is launched from now on."""


@dataclass(frozen=True, slots=True)
class Released:
    """These shards, which were held back, are to be run too, after those that are pending, in this order."""

    shards: Sequence[int]


@dataclass(frozen=True, slots=True)
class Found:
    """The outputs of these shards, none of which was launched, exist: another driver made them."""

    shards: Sequence[int]


Event = SlotsChanged | TaskStarted | ShardDone | ShardFailed | ShardWaiting | TaskEnded | Tick | Stop | Released | Found


# What is to be done


@dataclass(frozen=True, slots=True)
class Launch:
    """Run these shards as one task, in this order."""

    task: TaskId
    shards: tuple[int, ...]
    attempt: int
    """1 for shards that were never launched; the outputs of later attempts may exist already."""
    last: bool = False
    """Whether a shard whose `process` raises now is given up."""
    memory: int | None = None
    """Bytes to ask for instead of what every task asks for."""
    copy_of: TaskId | None = None
    """The straggler that this is a speculative copy of."""
    part_of: TaskId | None = None
    """The task that had these shards, and was not at one of them: it is cancelled when it has ended the others."""
    asks: bool = False
    """Whether it is to say that a first batch is done: a service that the shards need was busy when it was launched."""
    fresh: bool = False
    """Whether to run them in a process that has run nothing: a worker has died of one of them, or of what a shard that
    ran there before had left behind."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End this task by force. Its `TaskEnded` follows, whatever it says."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class AskMemory:
    """Tell that tasks ask for another amount of memory from now on, because of what earlier ones held."""

    memory: int | None
    """Bytes that each asks for, at least; None: what it would ask for anyway."""
    at_once: int
    """How many can run at once then, about."""


class Outcome(StrEnum):
    """What an event meant for a shard."""

    DONE = "done"
    RETRY = "retry"
    """It failed and is tried again."""
    FAILED = "failed"
    """It failed and is given up."""
    COPY_FAILED = "copy_failed"
    """It failed in one task while another one runs it."""


@dataclass(frozen=True, slots=True)
class Record:
    """Book this."""

    shard: int
    task: TaskId
    outcome: Outcome
    kind: FailureKind | None = None
    tries: int = 0
    """Tries of this kind so far, of a shard that is tried again."""
    wait_s: float = 0.0
    """Seconds until it is; 0: at once."""


class SchedulerState(StrEnum):
    """Where the whole run stands."""

    ACTIVE = "active"
    STOPPING = "stopping"
    """Nothing new is launched; running tasks may end."""
    ABORTED = "aborted"
    """Too many shards failed, there is no room for outputs, or the store takes none; running tasks are to be
    cancelled."""
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over, as `state` says. The last action of all."""

    state: SchedulerState


Action = Launch | Cancel | Record | AskMemory | Finish
