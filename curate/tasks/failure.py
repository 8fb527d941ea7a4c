"""A worker's report to the driver: one small record for each finished or failed shard."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar

from curate.dataclass import dataclass
from curate.log import redacted
from curate.storage.protocol import Calls
from curate.tasks.books import Books


class FailureKind(StrEnum):
    """Why a shard or its task did not end well; what follows is the scheduler's table."""

    THROTTLED = "throttled"
    """The store throttled, timed out or was unreachable for longer than the deadline of a call."""
    STORAGE = "storage"
    """The store refused: no right."""
    DISK_FULL = "disk_full"
    """There is no room for what is to be written."""
    LOST = "lost"
    """The node died or was preempted, and the task with it."""
    UNSERVED = "unserved"
    """What runs tasks had no room, or did not answer: its disk, its object store, a call within it."""
    CRASHED = "crashed"
    """The worker process died on a node that lives."""
    OUT_OF_MEMORY = "out_of_memory"
    """The worker was killed because its node ran out of memory."""
    TIMED_OUT = "timed_out"
    """The shard took longer than `task_timeout_s` and was cancelled."""
    USER_ERROR = "user_error"
    """`process` raised."""
    RETRY_LATER = "retry_later"
    """User code raised `RetryLater`."""
    CORRUPT = "corrupt_input"
    """The input cannot be read, has too many bad rows, or gives another schema. Trying again would not help."""
    FOREIGN = "foreign_output"
    """An output of another identity held the name; it was removed, or is to be, and the shard runs again."""
    MISCONFIGURED = "misconfigured"
    """What could not be seen before: a module is missing, or `setup` or the operator says that the job cannot run."""


class Refusal(StrEnum):
    """What a store refused that it may refuse to every shard."""

    WRITE = "write"
    """An output, or a part of it: no right, expired credentials, a bucket that is gone, a quota."""
    READ = "read"
    """What a shard is made of."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a shard failed."""

    kind: FailureKind
    error: str
    """Exception type and message, bounded."""
    traceback: str = ""
    """The traceback, bounded; empty where there is none to tell."""
    frame: str = ""
    """The innermost frame in user code, such as "jobs/toxicity.py:41 in process"; empty where there is none."""
    after_s: float = 0.0
    """Seconds that user code asked to wait for."""
    node: str = ""
    """Name of the machine."""
    pid: int = 0
    """Process of the worker there; 0 where it is not known."""
    peak_bytes: int = 0
    """Most memory that the worker had held by then; 0 where it is not known."""
    reason: str = ""
    """What user code said that it waits for; empty where it waits for nothing."""
    tries: int = 1
    """Tries in a row that ended like this: more than one where a worker made them without the driver."""
    wait_s: float = 0.0
    """Seconds until the shard is tried again; 0 where it is not, or at once."""
    refused: Refusal | None = None
    """What the store refused, of the kind `STORAGE`; None where that says nothing of other shards."""

    def __post_init__(self) -> None:
        # Exceptions quote whatever they choked on: signed URLs and tokens too, which are to be in no ledger. What is
        # not Unicode would stop it, as it is JSON.
        object.__setattr__(self, "error", printable(redacted(self.error)))
        object.__setattr__(self, "reason", printable(redacted(self.reason)))
        object.__setattr__(self, "traceback", printable(redacted(self.traceback)))


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
    meters: tuple[float, ...] = ()
    """What its operators measured, packed; empty where nothing was computed."""
    checksum: str = ""
    """That of the output's bytes; empty where nothing was computed."""
    held_bytes: int = 0
    """Most memory that its process held for itself since it last said so; 0 where that is not known."""
    quarantine: str = ""
    """Name of the file of its rows that were set aside; empty if there is none, or it is not known."""

    @property
    def urgent(self) -> bool:
        """Whether it is sent at once: a shard that failed leaves no output, and one that the worker dies of right after
        would be taken for it."""
        return self.failure is not None

    def __reduce__(self) -> tuple[Any, ...]:
        # A frozen dataclass with slots is pickled by Python code, which looks at its fields each time.
        return ShardRecord, tuple([getattr(self, name) for name in self.__slots__])


@dataclass(frozen=True, slots=True)
class ShardWaits:
    """Word of a shard whose task goes on: a call of user code waits for what is not there now, or no longer does."""

    index: int
    """Rank of the shard in the plan."""
    wait_s: float
    """Seconds until the call is made again; 0: it was answered."""
    reason: str = ""
    """What user code said that it waits for."""
    tries: int = 0
    """Waits of this call in a row."""
    urgent: ClassVar[bool] = True
    """It is sent at once: what sends it stands still."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", printable(redacted(self.reason)))


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """Word of a shard that takes long: how far it is. Telemetry alone: nothing is decided by it."""

    index: int
    """Rank of the shard in the plan."""
    rows: int
    """Rows that were read of it so far."""


def printable(text: str) -> str:
    """Returns `text` with lone surrogates escaped, so that it can be encoded.

    >>> printable("café \\udce9")
    'café \\\\udce9'
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
