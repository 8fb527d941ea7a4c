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
class Ended:
    """A task is over; no message of it follows."""

    task: int
    end: End
    detail: str = ""


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
        """Returns how many tasks can run at once now."""
        ...

    def launch(self, task: int, payload: Any, pieces: int) -> None:
        """Starts a task over `pieces` pieces of work."""
        ...

    def poll(self, timeout_s: float) -> list[Message | Ended]:
        """Returns what has happened since the last call, waiting up to `timeout_s` for something to happen."""
        ...

    def cancel(self) -> None:
        """Ends all running tasks, by force; what they had not published is discarded."""
        ...

    def close(self) -> None:
        """Lets go of everything that `start` made."""
        ...
