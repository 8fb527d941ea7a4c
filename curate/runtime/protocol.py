"""What the dispatcher asks of the thing that runs tasks. Two implementations: `inline` and `ray`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class Program(Protocol):
    """What every worker of a stage runs. Shipped once, kept (with whatever it loaded) for the life of the process."""

    key: str
    """Two programs with the same key are the same: a worker that has it does not fetch it again."""

    def run(self, payload: Any) -> Iterator[Any]:
        """Yields one small message for each piece of the payload, as soon as it has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Resources:
    """What one task holds while it runs. One shape for all tasks of a stage."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory: int | None = None
    """Bytes, for placement; None leaves it to the backend."""
    custom: Mapping[str, float] = field(default_factory=dict)


class End(StrEnum):
    """How a task ended."""

    RETURNED = "returned"
    CRASHED = "crashed"
    """Its worker process died on a node that lives."""
    OUT_OF_MEMORY = "out of memory"
    """Its worker process was killed because the node ran out of memory."""
    LOST = "lost"
    """Its node died."""
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
class Ended:
    """A task is over; no message of it follows."""

    task: int
    end: End
    detail: str = ""
    node: str = ""
    """Name of the machine that ran it; empty where that is not known."""
    pid: int = 0
    """The worker's process there; 0 where that is not known."""
    peak_bytes: int = 0
    """Memory that its worker held, as far as is known."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A task that streams has made a block, and makes no other before this one is taken."""

    task: int
    size_bytes: int


class BlockLostError(Exception):
    """A block that was taken cannot be fetched: it went with its node, or was never finished."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended)
        self.ended = ended
        """How what made it, or held it, ended."""


class Block(Protocol):
    """A block that was taken. It is held where it was made; nobody holds it once this is gone."""

    def fetch(self) -> Any:
        """Returns what the program yielded. Raises BlockLostError."""
        ...


News = Started | Message | Offer | Ended
"""What a poll tells of tasks, of each in this order."""


class Backend(Protocol):
    """Runs tasks of one program. Used by one thread."""

    name: str

    def start(self, resources: Resources) -> None:
        """Gets ready for tasks that each hold `resources`. Raises ConfigError if no node can ever hold one."""
        ...

    def load(self, program: Program) -> None:
        """Ships the program that the tasks launched from now on run."""
        ...

    def slots(self) -> int:
        """Returns how many tasks can run at once now. A node that is draining has none."""
        ...

    def largest_memory(self) -> int | None:
        """Returns the most bytes that one task can ask for on a node that lives or can be started, None if unknown."""
        ...

    def launch(
        self,
        task: int,
        payload: Any,
        pieces: int,
        *,
        memory: int | None = None,
        announce: bool = False,
        stream: bool = False,
    ) -> None:
        """Starts a task over `pieces` pieces of work; `memory` bytes instead of what `start` was told, if given.

        With `announce`, `poll` tells when it runs (`Started`), where, also of one that dies later, and each message at
        once: of a worker that dies, nothing is left unsaid. Without, messages come in batches.

        With `stream`, what the program yields that has `nbytes` is a block: it is offered, and the program stands still
        until it is taken. All else that it yields is a message. Announced, whatever `announce` says.
        """
        ...

    def take(self, task: int) -> Block:
        """Returns the block that a task offers, which then goes on. The block is not moved before it is fetched."""
        ...

    def poll(self, timeout_s: float) -> list[News]:
        """Returns what has happened since the last call, waiting up to `timeout_s` for something to happen."""
        ...

    def cancel(self, task: int | None = None) -> None:
        """Ends a task, or all of them, by force; what they had not published is discarded.

        Of a single task that is cancelled, `poll` still tells the end; nothing is told after all of them are.
        """
        ...

    def close(self) -> None:
        """Lets go of everything that `start` made."""
        ...
