"""Looks at many jobs at once, each in a store of its own that may not answer."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from curate.errors import CurateError, TransientStorageError
from curate.observe.job import quick_status
from curate.observe.status import JobStatus
from curate.storage.uris import is_local
from curate.units import shell_word

LOOKERS = 16
"""Jobs that are looked at at once."""
ANSWER_S = 10.0
"""Jobs that are left when no other one has answered for so long are unreachable."""


def look_at(known: Sequence[dict[str, Any]], now: float) -> list[tuple[dict[str, Any], JobStatus | CurateError]]:
    """Returns jobs with their status, those whose store does not answer soon as unreachable: they hide no other one."""
    answers: list[Future[JobStatus | CurateError]] = [Future() for _ in known]
    waiting: SimpleQueue[int] = SimpleQueue()
    # Those on disk first: they answer, whatever the others wait for.
    for number in sorted(range(len(known)), key=lambda number: not is_local(known[number]["output"])):
        waiting.put(number)

    def peek() -> None:
        with contextlib.suppress(Empty):
            while True:
                number = waiting.get_nowait()
                try:
                    answers[number].set_result(quick_status(known[number]["output"], now))
                except CurateError as error:
                    answers[number].set_result(error)
                except BaseException as error:  # noqa: BLE001 - raised where the answers are read
                    answers[number].set_exception(error)

    for _ in range(min(LOOKERS, len(known))):
        # Daemons, which an interrupt need not wait for.
        Thread(target=peek, daemon=True).start()
    came, pending = set(answers), set(answers)
    while came and pending:
        came, pending = wait(pending, ANSWER_S, FIRST_COMPLETED)
    return [(entry, one.result() if one.done() else _late(entry)) for entry, one in zip(known, answers, strict=True)]


def _late(entry: dict[str, Any]) -> CurateError:
    return TransientStorageError(
        f"{entry['output']}: no answer within {ANSWER_S:.0f} s; wait longer with: curate status "
        f"{shell_word(entry['output'])}"
    )
