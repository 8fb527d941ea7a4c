"""An exception that user code raised in another process: recorded as a failure, raised again as the original type."""

from __future__ import annotations

import pickle
from typing import Any

from curate.dataclass import dataclass, replace
from curate.errors import add_note
from curate.pipeline.classify import failure_of
from curate.runtime.protocol import CallLostError
from curate.tasks.failure import Failure
from curate.tasks.task_end import failure_of_end, kind_of_end


@dataclass(frozen=True, slots=True)
class CapturedError:
    """Word of what was raised."""

    failure: Failure
    error: Exception | None
    """The exception; None once it was on its way and could not be sent."""
    sent: bool = False
    """Whether it came from another process."""

    @classmethod
    def of(cls, error: Exception) -> CapturedError:
        """Returns word of an exception; of one that only passes on what happened elsewhere, that."""
        if isinstance(error, RemoteError):
            return error.raised
        if isinstance(error, CallLostError):
            return cls(failure_of_end(error.ended, kind_of_end(error.ended.end)), error)
        return cls(failure_of(error), error)

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            packed = pickle.dumps(self.error)
            pickle.loads(packed)
        except Exception:  # noqa: BLE001 - exceptions are user code; what they say is in the failure all the same
            packed = pickle.dumps(None)
        return _received, (self.failure, packed)

    def tried(self, tries: int) -> CapturedError:
        """Returns this as what was raised so many times in a row."""
        return replace(self, failure=replace(self.failure, tries=tries))

    def noted(self, note: str) -> CapturedError:
        """Returns this with a note that says where it was."""
        if self.error is not None:
            add_note(self.error, note)
        return replace(self, failure=replace(self.failure, traceback=f"{self.failure.traceback.rstrip()}\n{note}\n"))


class RemoteError(Exception):
    """Passes on what was raised in another process."""

    def __init__(self, raised: CapturedError) -> None:
        super().__init__(raised.failure.error)
        self.raised = raised

    def add_note(self, note: str) -> None:
        """Says where it was raised."""
        self.raised = self.raised.noted(note)


def _received(failure: Failure, packed: bytes) -> CapturedError:
    try:
        error = pickle.loads(packed)
    except Exception:  # noqa: BLE001 - its class is not importable here; the text is told instead
        error = None
    return CapturedError(failure, error, sent=True)
