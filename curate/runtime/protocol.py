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


News = Started | Message | Ended
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
        self, task: int, payload: Any, pieces: int, *, memory: int | None = None, announce: bool = False
    ) -> None:
        """Starts a task over `pieces` pieces of work; `memory` bytes instead of what `start` was told, if given.

        With `announce`, `poll` tells when it runs (`Started`), where, also of one that dies later, and each message at
        once: of a worker that dies, nothing is left unsaid. Without, messages come in batches.
        """
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
