"""What every worker process does with a program, whatever started it: runs it, and says in order what it said."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from curate.runtime.process_guard import ProcessGuard, ProcessSpoiltError, SavedProcess, spoilt
from curate.runtime.protocol import CallLostError, Program, TaskEnd, TaskFinished

MAX_DETAIL = 4000
"""Characters of an end's detail."""


_before: SavedProcess | None = None
"""This process as it was before its first program."""


def guarded(program: Program, work: Any, *, new: bool, retire: Callable[[], None]) -> Iterator[Any]:
    """Yields what a task yields, and gives the process back as it was: the next task may be another program's.

    What the first task of a `new` program changes may be what its `setup` changed: it is given back when the next
    program begins. Calls `retire` if something cannot be given back.
    """
    global _before
    if new and _before is not None:
        _before.give_back()
    elif new:
        _before = SavedProcess({})
    try:
        with ProcessGuard(None if new else SavedProcess()):
            yield from program.run(work)
    finally:
        if spoilt():
            retire()


def in_batches(items: Iterable[Any], interval_s: float) -> Iterator[list[Any]]:
    """Yields what a task says, all that it said within an interval at once; what is urgent, now."""
    batch: list[Any] = []
    sent = time.monotonic()
    try:
        for item in items:
            batch.append(item)
            if getattr(item, "urgent", False) or time.monotonic() - sent >= interval_s:
                yield batch
                batch, sent = [], time.monotonic()
    except (Exception, SystemExit, KeyboardInterrupt):
        # What was done before it stays done, also where user code ends the process.
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def raised_end(task: int, error: BaseException) -> TaskFinished | None:
    """Returns what an error of a task means by itself, if it is one that says so."""
    if isinstance(error, CallLostError):
        return replace(error.ended, task=task)
    if isinstance(error, ProcessSpoiltError):
        detail = f"its worker was replaced, because another shard had changed {error}"
        return TaskFinished(task, TaskEnd.LOST, detail)
    return None


def traced_end(task: int, error: BaseException) -> TaskFinished:
    """Returns how a task ended that raised this, which is being handled."""
    if (end := raised_end(task, error)) is not None:
        return end
    if isinstance(error, Exception):
        return TaskFinished(task, TaskEnd.RAISED, traceback.format_exc().strip()[-MAX_DETAIL:])
    return crashed_end(task, error)


def crashed_end(task: int, error: BaseException) -> TaskFinished:
    """Returns how a task ended of what would end its process, which is being handled: what it says, in the first line,
    and then where it was raised, unless that is said by its type."""
    says = "in the worker" if isinstance(error, KeyboardInterrupt) else str(error)
    where = "" if isinstance(error, KeyboardInterrupt | SystemExit) else f"\n{traceback.format_exc().strip()}"
    return TaskFinished(task, TaskEnd.CRASHED, f"{type(error).__name__}: {says}{where[-MAX_DETAIL:]}")
