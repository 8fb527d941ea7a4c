"""Looks at jobs now and then, and tells of their runs: how they ended, that they were killed, or make no progress.

For `curate serve --notify`. It tells of runs that it saw go on, also those that were started without --notify: it marks
them, so that it tells of their ends after it was killed itself and started again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from curate.clock import Clock
from curate.errors import CurateError
from curate.ledger.heartbeat import Liveness, first_look
from curate.ledger.ledger import open_ledger
from curate.log import get_logger
from curate.notify.marks import ASKED, job_name, last_words, leader_of, mark, read_marks, untold
from curate.notify.message import Event
from curate.notify.post import Poster, To

LOOK_S = 30.0
"""Time between two looks at all jobs."""
BY = "curate serve"
LATER = "curate serve sends it at its next look"


class Watcher:
    """Tells a receiver of the runs of some outputs."""

    def __init__(
        self, to: To, outputs: Callable[[], Sequence[str]], clock: Clock, *, after_s: float | None = None
    ) -> None:
        """`outputs` are looked up each time. `after_s`: seconds without a shard that ended after which a run makes no
        progress; None: as each run says."""
        # Each event once a look: a receiver that does not answer keeps it from the other jobs for some seconds alone.
        self._poster = Poster(to, BY, clock, try_s=0.0, later=LATER)
        self._outputs = outputs
        self._clock = clock
        self._after_s = after_s
        self._told: dict[str, tuple[tuple[str, str], ...]] = {}
        """What was told, by id, with the other runs of which that was the end: an output that cannot be written has no
        marks."""
        self._over: set[str] = set()
        """Runs that ended, and of which nobody asked to be told, or was."""
        self._unmarked: set[str] = set()
        """Runs that were seen to go on, where they cannot be marked."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="curate-watch", daemon=True)

    def start(self) -> None:
        """Begins to look, in a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        """Looks no more."""
        self._ended.set()
        self._poster.close()

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                self.look()
            except Exception:  # noqa: BLE001 - were this thread to die, nothing more would be told
                get_logger().warning(f"cannot look at jobs; the next look is in {LOOK_S:g} s", exc_info=True)
            self._ended.wait(LOOK_S)

    def look(self) -> None:
        """Looks at all outputs once, and tells what is to be told; returns when each has arrived or was tried."""
        try:
            outputs = self._outputs()
        except CurateError as error:
            get_logger().warning("cannot read the list of jobs", error=str(error))
            return
        for output in outputs:
            try:
                self._look_at(output)
            except CurateError as error:
                # A job that was removed, or whose store is away: the others are looked at.
                get_logger().warning("cannot look at a job", output=output, error=str(error))
            except Exception:  # noqa: BLE001 - whatever is wrong with it, the others are looked at
                get_logger().warning("cannot look at a job", output=output, exc_info=True)

    def _look_at(self, output: str) -> None:
        ledger, now = open_ledger(output), self._clock.now()
        marks = read_marks(ledger)
        runs = {*marks.open_runs(), *marks.open_runs(asked=True)}
        open_runs = sorted(runs - self._over)
        beats = last_words(ledger, open_runs) if open_runs else []
        for beat in beats:
            asked = marks.has(beat.run_id, ASKED) or beat.run_id in self._unmarked
            gone = first_look(beat, beat.process.state(), now) is Liveness.GONE
            if not asked and not gone:
                try:
                    mark(output, beat.run_id, ASKED, {"asked_by": BY})
                except CurateError:
                    self._unmarked.add(beat.run_id)
                asked = True
            if asked:
                marks.told.setdefault(beat.run_id, set()).add(ASKED)
            elif gone:
                # It ended before anybody looked.
                self._over.add(beat.run_id)
        if not beats:
            return
        job, leader = job_name(ledger), leader_of(ledger, beats)
        for event in untold(job, output, marks, beats, now, leader=leader, stalls=True, after_s=self._after_s):
            self._tell(event)

    def _tell(self, event: Event) -> None:
        if self._told.get(event.id) == event.also:
            return
        if event.id in self._told:
            # The driver of another part ended later: of that one, too, nothing more is to be told.
            self._poster.mark(event)
        elif not self._poster.tell(event):
            return
        self._told[event.id] = event.also
