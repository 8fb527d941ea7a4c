"""The meaning of a task's end for its shard. Imports no scheduler, for processes that must start fast."""

from __future__ import annotations

from typing import Any

from curate.runtime.protocol import TaskEnd, TaskFinished
from curate.tasks.failure import Failure, FailureKind

MAX_ERROR = 1000
MAX_DETAIL = 8000
"""Characters of what is told about a task that died: it is kept for every shard that this counts against."""


def kind_of_end(end: TaskEnd) -> FailureKind:
    """Returns what the end of a task means for those of its shards that it did not report on."""
    if end in (TaskEnd.LOST, TaskEnd.CANCELLED):
        return FailureKind.LOST
    if end is TaskEnd.UNSERVED:
        return FailureKind.UNSERVED
    # Returned without a word: the backend lost a message, or the program kept one back. Tried again like a crash, and
    # as often: the other shards go on, and the run ends and says so.
    return FailureKind.OUT_OF_MEMORY if end is TaskEnd.OUT_OF_MEMORY else FailureKind.CRASHED


def failure_of_end(news: TaskFinished, kind: FailureKind, suspects: int = 1) -> Failure:
    """Returns what is told of a shard that a task left when it ended; it may have died of any of `suspects`."""
    where: dict[str, Any] = {"node": news.node, "pid": news.pid, "peak_bytes": news.peak_bytes}
    if kind is FailureKind.TIMED_OUT:
        return Failure(kind, "timed out: the shard took longer than task_timeout_s and was cancelled", **where)
    if news.end is TaskEnd.RETURNED:
        return Failure(kind, "returned: the task ended without a result for this shard", **where)
    lines = [line.strip() for line in news.detail.splitlines() if line.strip()] or ["no detail"]
    # A traceback says what happened in its last line, a message of Ray's in its first.
    line = lines[-1] if news.end is TaskEnd.RAISED else lines[0]
    what = f"{news.end.value}: {line}"[:MAX_ERROR]
    if suspects > 1 and kind is FailureKind.LOST:
        what = f"lost with its task, by it or by another of {suspects} shards, which run again one by one; {what}"
    return Failure(kind, what, news.detail[-MAX_DETAIL:], **where)
