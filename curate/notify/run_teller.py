"""Tells somebody of one run, from its beginning to its end, and of earlier ones that could not tell it themselves."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from curate.around import contextmanager
from curate.clock import Clock
from curate.dataclass import dataclass, replace
from curate.errors import ConfigError, CurateError, ObjectNotFound
from curate.ledger import layout
from curate.ledger.heartbeat import Heartbeat
from curate.ledger.ledger import Ledger
from curate.ledger.summary import RunState, Summary
from curate.log import get_logger
from curate.notify.marks import ASKED, earlier_events, mark
from curate.notify.message import Event, of_beat, of_stall, of_summary
from curate.notify.post import Poster, To
from curate.notify.teller import Beat, Teller
from curate.notify.waiting import without_reason


@dataclass(frozen=True, slots=True)
class _Run:
    ledger: Ledger
    job: str
    run_id: str
    shared: bool


class RunTeller(Teller):
    """Tells a receiver. Nothing that goes wrong here stops a run, or delays its end by more than some seconds."""

    def __init__(self, to: To, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._log = get_logger()
        self._poster = Poster(to, "", clock)
        self._begun: dict[str, _Run] = {}
        """Runs of this process, in order; the last of them is the one that ends."""
        self._beat: Beat = dict
        """What the run says of itself that began last: a store that has failed it would not say how far it came."""
        self._earlier: list[Event] = []

    def look(self, output: str) -> None:
        """Sees what is to be told of earlier runs, before this one removes what says so. Told is it later: a run that
        is refused tells nothing."""
        try:
            self._earlier += earlier_events(output, self._clock.now())
        except CurateError as error:
            self._log.warning("cannot check for which earlier runs no notification was sent", error=str(error))

    def begins(self, ledger: Ledger, job: str, run_id: str, beat: Beat, *, shared: bool) -> None:
        """Notes in the ledger that somebody is to be told of this run, then tells of earlier ones."""
        if run_id in self._begun:
            return
        if self._begun:
            # A checkpoint, or the job that reads it: of its own runs nobody has looked yet.
            self.look(ledger.root)
        self.begun, self._begun[run_id], self._beat = True, _Run(ledger, job, run_id, shared), beat
        self._poster.by = run_id
        try:
            mark(ledger.root, run_id, ASKED, {"asked_by": run_id})
        except CurateError as error:
            self._log.warning("no notification will be sent if this run is killed", error=str(error))
        self._tell_earlier()

    def _tell_earlier(self) -> None:
        earlier, self._earlier = self._earlier, []
        own = {one.run_id for one in self._begun.values()}
        seen: dict[str, Event] = {one.id: one for one in earlier if one.run_id not in own}
        self._poster.put(*seen.values())

    def stands_still(self, run_id: str, beat: Heartbeat, now: float) -> None:
        """Tells that a run makes no progress."""
        run = self._begun.get(run_id)
        if run is not None:
            plain = without_reason(beat.waits_kind, beat.waits)
            self._poster.put(of_stall(run.job, run.ledger.root, beat, plain, now))

    def ended(self, summary: Summary) -> None:
        """Tells how the run ended, if it did anything; and of earlier ones."""
        run = self._begun.get(summary.run_id)
        if run is not None:
            self._end(of_summary(summary, self._leader(run, summary), socket.gethostname()))
        self._tell_earlier()
        self._poster.close()

    def raised(self, error: BaseException) -> None:
        """Tells how the run ended that raised this; nothing if it was refused."""
        run = next(reversed(self._begun.values()), None)
        if run is not None:
            state = RunState.INTERRUPTED if isinstance(error, KeyboardInterrupt) else RunState.FAILED
            beat = Heartbeat.of(run.run_id, self._beat())
            if beat is not None:
                self._end(of_beat(run.job, run.ledger.root, beat, state.value, now=self._clock.now()))
        elif not isinstance(error, ConfigError):
            self._tell_earlier()
        self._poster.close()

    def _end(self, event: Event) -> None:
        # Theirs is none to be told of: the end of a checkpoint, or of a stage that was made again.
        others = [(one.ledger.root, one.run_id) for one in self._begun.values() if one.run_id != event.run_id]
        self._poster.put(replace(event, also=tuple(others)), first=True)

    def _leader(self, run: _Run, summary: Summary) -> str:
        """Returns the run under whose id the end of a job is told that several drivers made: the one that said that it
        is complete. So it is told once, and what went wrong with one of them beside it."""
        if not run.shared or summary.state is not RunState.COMPLETE:
            return summary.run_id
        try:
            return str(run.ledger.read_json(layout.SUMMARY).get("run_id") or summary.run_id)
        except (ObjectNotFound, CurateError):
            return summary.run_id


@contextmanager
def telling(to: To | None, output: str, clock: Clock) -> Iterator[Teller]:
    """Yields who is told of a run, and tells them how it ends: what its block hands to `ended`, or raises."""
    if to is None:
        yield Teller()
        return
    teller = RunTeller(to, clock)
    teller.look(output)
    try:
        yield teller
    except BaseException as error:
        teller.raised(error)
        raise
