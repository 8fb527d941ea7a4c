"""What a worker tells the driver: one small record for every shard that it finished or failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from curate.storage.protocol import Calls
from curate.tasks.books import Books


class FailureKind(StrEnum):
    """Why a shard or its task did not end well; what follows is the scheduler's table."""

    USER_ERROR = "user_error"
    """`process` raised."""
    CORRUPT = "corrupt_input"
    """The input cannot be read, has too many bad rows, or gives another schema. Trying again would not help."""
    STORAGE = "storage"
    """The store refused for good, or went on throttling past the deadline of the call."""
    CRASHED = "crashed"
    """The worker process died on a node that lives."""
    LOST = "lost"
    """The node died, and the task with it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a shard failed."""

    kind: FailureKind
    error: str
    """Exception type and message, bounded."""
    traceback: str = ""
    """The traceback, bounded; empty where there is none to tell."""

    def __post_init__(self) -> None:
        # Exceptions quote whatever they choked on; what is not Unicode would stop the ledger, which is JSON.
        object.__setattr__(self, "error", printable(self.error))
        object.__setattr__(self, "traceback", printable(self.traceback))


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """How one attempt at one shard ended."""

    index: int
    """Rank of the shard in the plan."""
    seconds: float
    failure: Failure | None = None
    books: Books | None = None
    generation: str = ""
    """Generation of the output object."""
    bytes_out: int = 0
    existed: bool = False
    """The output was there before: nothing was computed."""
    different: bool = False
    """Another attempt had published different bytes: the job's code is not deterministic."""
    calls: Calls | None = None
    """Storage calls made for this shard."""


def printable(text: str) -> str:
    """Returns `text` with lone surrogates escaped, so that it can be encoded.

    >>> printable("café \\udce9")
    'café \\\\udce9'
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
