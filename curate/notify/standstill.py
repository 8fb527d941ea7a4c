"""Keeps what a run waits for while it goes on, and says once that nothing has ended for long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from curate.clock import Clock
from curate.dataclass import dataclass, field, replace
from curate.ledger.heartbeat import Heartbeat
from curate.log import get_logger
from curate.notify.teller import Teller
from curate.notify.waiting import Longest, Standing, Waiting, WaitingSince
from curate.requests.throttle import refusing
from curate.tasks.scheduler import Scheduler
from curate.units import format_duration

MOST_PLACES = 2_000
"""Tasks of which it is remembered where they run."""


@dataclass(slots=True)
class Standstill:
    """What the driver of a run knows of why it waits. Used under the lock of whoever has it."""

    clock: Clock
    after_s: float
    teller: Teller
    host: str = ""
    """Where all tasks run; empty if they run on several machines."""
    ended: float = 0.0
    """When a shard last ended, or the run began, by the wall clock."""
    no_place: str = ""
    others: str = ""
    _at: Standing = field(default_factory=Standing)
    """What the run was at when it was looked at last: while a driver is in the middle of a shard, nobody looks."""
    _since: WaitingSince = field(default_factory=WaitingSince)
    _places: dict[int, str] = field(default_factory=dict)
    _said: float | None = None
    """The end since which it was said that nothing has ended."""

    def __post_init__(self) -> None:
        self.ended = self.clock.now()

    def shard_ended(self) -> None:
        """Notes that a shard is done, or given up."""
        self.ended = self.clock.now()

    def started(self, task: int, node: str, pid: int) -> None:
        """Notes where a task runs; of the newest only."""
        self._places[task] = f"{node} (process {pid})" if pid else node
        if len(self._places) > MOST_PLACES:
            del self._places[next(iter(self._places))]

    def look(
        self, scheduler: Scheduler, shard_id: Callable[[int], str], left: int, slots: int, busy: tuple[int, str]
    ) -> Waiting | None:
        """Returns what the run waits for: `left` of its shards are not done, and so many wait for a service, which
        said something."""
        now, running = self.clock.now(), min(scheduler.running_tasks, slots)
        longest = None
        if (found := scheduler.longest()) is not None:
            task, rank, since_s = found
            since = now - (self.clock.monotonic() - since_s)
            longest = Longest(shard_id(rank), since, self._places.get(task) or self.host)
        pending = max(0, left - running)
        self._at = Standing(running, pending, slots, *busy, self.no_place, refusing(), self.others, self.ended, longest)
        return self._now()

    def _now(self) -> Waiting | None:
        return self._since.look(replace(self._at, ended=self.ended), self.clock.now())

    def text(self) -> str:
        """Returns what it waits for with how long; empty while it goes on as it should."""
        found = self._now()
        return "" if found is None else found.told(self.clock.now())

    def as_dict(self) -> dict[str, Any]:
        """Returns what a heartbeat says of it."""
        found = self._now()
        waits = {} if found is None else found.as_dict()
        return {"last_end": round(self.ended, 3), "no_progress_after_s": self.after_s, **waits}

    def speak(self, run_id: str, value: Mapping[str, Any]) -> None:
        """Logs that nothing has ended for long, and has it told, once each time; `value`: the heartbeat of now."""
        now = self.clock.now()
        beat = Heartbeat.of(run_id, {**value, "updated": now})
        if beat is None or not beat.quiet_s(now) or self._said == beat.last_end:
            return
        self._said = beat.last_end
        about = {"waits_for": beat.waits, "node": beat.waits_node}
        if beat.waits_since is not None:
            about["since"] = datetime.fromtimestamp(beat.waits_since, UTC).isoformat(timespec="seconds")
        get_logger(job=value.get("job"), run=run_id).warning(
            f"no progress: no shard has ended for {format_duration(beat.quiet_s(now))}",
            running=beat.shards["running"],
            **{name: one for name, one in about.items() if one},
        )
        self.teller.stands_still(run_id, beat, now)
