"""Who hears of runs as they go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from curate.ledger.heartbeat import Heartbeat
from curate.ledger.ledger import Ledger
from curate.ledger.summary import Summary

Beat = Callable[[], dict[str, Any]]
"""What a run says of itself now."""


class Teller:
    """Hears of runs as they go; this one tells nobody."""

    def __init__(self) -> None:
        self.begun = False
        """Whether a run has begun."""

    def begins(self, ledger: Ledger, job: str, run_id: str, beat: Beat, *, shared: bool) -> None:
        """A run of a job is about to be in its ledger; `shared`: other drivers may be making the same output."""
        del ledger, job, run_id, beat, shared
        self.begun = True

    def stands_still(self, run_id: str, beat: Heartbeat, now: float) -> None:
        """Nothing has ended in a run for long; `beat` is what it says of itself now."""

    def ended(self, summary: Summary) -> None:
        """The run that was asked for has ended."""
