"""Who hears of runs as they go: what a run tells, as a protocol, and nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from curate.ledger.heartbeat import Heartbeat
from curate.ledger.ledger import Ledger
from curate.ledger.summary import Summary

Beat = Callable[[], dict[str, Any]]
"""What a run says of itself now."""


class Teller(Protocol):
    """Hears of runs as they go."""

    @property
    def begun(self) -> bool:
        """Whether a run has begun."""

    def begins(self, ledger: Ledger, job: str, run_id: str, beat: Beat, *, shared: bool) -> None:
        """A run of a job is about to be in its ledger; `shared`: other drivers may be making the same output."""

    def stands_still(self, run_id: str, beat: Heartbeat, now: float) -> None:
        """Nothing has ended in a run for long; `beat` is what it says of itself now."""

    def ended(self, summary: Summary) -> None:
        """The run that was asked for has ended."""


class NoTeller:
    """Tells nobody."""

    def __init__(self) -> None:
        self.begun = False

    def begins(self, ledger: Ledger, job: str, run_id: str, beat: Beat, *, shared: bool) -> None:
        """Notes that a run has begun."""
        del ledger, job, run_id, beat, shared
        self.begun = True

    def stands_still(self, run_id: str, beat: Heartbeat, now: float) -> None:
        """Does nothing."""

    def ended(self, summary: Summary) -> None:
        """Does nothing."""
