"""The retry policy of shards: number of tries, and waits."""

from __future__ import annotations

import math
from fractions import Fraction

from curate.dataclass import dataclass
from curate.keywords import option
from curate.tasks.failure import FailureKind

LEAST_WINDOW = 16
"""Tasks in flight even with few slots, or none: pending tasks are the demand that an autoscaler sees."""

LONGEST_BACKOFF_S = 60.0


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules that a run may choose; the defaults are the design's."""

    target_task_s: float = 120.0
    """Seconds of work to bundle into one task."""
    max_in_flight: int | None = None
    """Tasks launched and not ended, at most; None: max(least_window, 2 x slots)."""
    least_window: int = LEAST_WINDOW
    """Tasks launched and not ended, however few slots there are."""
    max_failed: int | None = None
    """Stop when more shards than this have failed; None: never."""
    task_timeout_s: float | None = None
    """Seconds after which a shard that has not ended is cancelled; None: never."""
    declared_memory: int | None = None
    """Bytes that every task asks for; None: nothing is asked for."""
    speculate: bool = True
    """Whether stragglers get a copy when slots are idle."""
    user_error_retries: int = 3
    """Times a shard whose `process` raised is tried again, alone."""
    storage_retries: int = 3
    """Times a shard is tried again after the store refused."""
    throttle_limit: int = 20
    """Times a shard is tried again after the store failed for longer than a call's deadline."""
    retry_later_limit: int = 20
    """Times in a row that a shard may ask to be run later without a batch of it done."""
    crash_limit: int = 3
    """Tries of a shard at which its worker may die before it is given up."""
    memory_limit: int = 3
    """Tries of a shard at which its node may run out of memory before it is given up."""
    timeout_limit: int = 3
    """Tries of a shard that may time out before it is given up."""
    loss_limit: int = 20
    """Losses of a shard with its node before it is given up."""
    unserved_limit: int = 20
    """Times a shard is tried again after what runs tasks had no room for it, or did not answer."""
    foreign_limit: int = 5
    """Times a shard may find its name taken by an output of another identity."""
    backoff_s: float = 1.0
    """Wait before the first retry of a failed shard; doubles each time, up to a minute."""

    def __post_init__(self) -> None:
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise ValueError(f"max_in_flight is {self.max_in_flight}; below 1 a run would never end")

    def limit(self, kind: FailureKind) -> int:
        """Returns how many failures of `kind` a shard survives."""
        return {
            FailureKind.THROTTLED: self.throttle_limit,
            FailureKind.STORAGE: self.storage_retries,
            FailureKind.DISK_FULL: self.storage_retries,
            FailureKind.LOST: self.loss_limit,
            FailureKind.UNSERVED: self.unserved_limit,
            FailureKind.CRASHED: self.crash_limit - 1,
            FailureKind.OUT_OF_MEMORY: self.memory_limit - 1,
            FailureKind.TIMED_OUT: self.timeout_limit - 1,
            FailureKind.USER_ERROR: self.user_error_retries,
            FailureKind.RETRY_LATER: self.retry_later_limit,
            FailureKind.CORRUPT: 0,
            FailureKind.FOREIGN: self.foreign_limit,
            FailureKind.MISCONFIGURED: 0,
        }[kind]

    def wait_s(self, kind: FailureKind, failures: int, after_s: float = 0.0) -> float:
        """Returns the seconds to wait before the try that follows the `failures`th failure of `kind`.

        At least the `after_s` that user code asked for. Zero where waiting would help nobody.
        """
        if kind in _REQUEUED_AT_ONCE:
            return 0.0
        return max(min(self.backoff_s * 2.0 ** (failures - 1), LONGEST_BACKOFF_S), after_s)


_REQUEUED_AT_ONCE = {FailureKind.LOST, FailureKind.OUT_OF_MEMORY, FailureKind.FOREIGN}
"""Kinds after which waiting would help nobody."""


def max_failed_shards(text: str, total: int) -> int:
    """Returns how many failed shards of `total` the option value `text` (`N` or `P%`) tolerates.

    >>> max_failed_shards("3", 1000), max_failed_shards("1%", 1000)
    (3, 10)
    """
    from curate.errors import ConfigError
    from curate.units import parse_percent, parse_whole

    if (number := text.strip()).endswith("%"):
        parse_percent(text)
        # In whole numbers: as a float, 29 % of 100 are a little less than 29.
        return math.floor(Fraction(number.rstrip("%").strip()) * total / 100)
    count = parse_whole(text)
    if count is None:
        raise ConfigError(f"{option('max_failed_shards', text)} is not a number of shards or a percentage like 1%")
    return count
