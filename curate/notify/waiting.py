"""What a run waits for, and since when: from what its driver knows, as a sentence. Values in, values out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from curate.dataclass import dataclass, field
from curate.units import ellipsize, format_duration

AT_ONCE_S = 0.0
SOON_S = 10.0
"""What passes sooner is not worth a word."""
QUIET_S = 300.0
"""After so long without a shard that ended, it is said what runs."""
MOST_CHARS = 300
SERVICE = "service"
_BUSY = ": service busy"


@dataclass(frozen=True, slots=True)
class Longest:
    """The shard that has run longest, of those that run now."""

    shard: str
    since: float
    """When it was last known to begin, by the wall clock."""
    node: str = ""
    """Where it runs; empty where that is not known."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a run is at, at one moment."""

    running: int = 0
    """Shards that run, as far as is known."""
    pending: int = 0
    """Shards that are neither done nor given up and do not run."""
    slots: int = 0
    """Tasks that can run at once."""
    busy: int = 0
    """Shards that wait for a service."""
    busy_reason: str = ""
    """What that service said, as the job's code tells it."""
    no_place: str = ""
    """What the cluster, or this machine, has no place for, in words."""
    store: str = ""
    """How the store refuses requests, in words."""
    others: str = ""
    """Which drivers of other parts it waits for, in words."""
    ended: float = 0.0
    """When a shard last ended, or the run began."""
    longest: Longest | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """One thing that a run waits for."""

    kind: str
    """What it is: place, store, parts, service, last, shards."""
    text: str
    """In words, without how long."""
    since: float
    node: str = ""

    def told(self, now: float) -> str:
        """Returns it with how long it has lasted.

        >>> Waiting("parts", "waiting for 3 shards of other parts", 100.0).told(280.0)
        'waiting for 3 shards of other parts (for 3 min)'
        """
        return f"{self.text} (for {format_duration(max(0.0, now - self.since))})"

    def as_dict(self) -> dict[str, Any]:
        """Returns it as a heartbeat has it."""
        return {"waits": self.text, "waits_since": round(self.since, 3), "waits_kind": self.kind} | (
            {"waits_node": self.node} if self.node else {}
        )


def causes(at: Standing, now: float) -> dict[str, str]:
    """Returns all that a run waits for, by kind, the most telling first.

    >>> causes(Standing(running=2, busy=2, busy_reason="HTTP 429"), 0.0)
    {'service': '2 shards wait: service busy (HTTP 429)'}
    >>> causes(Standing(running=1, slots=8, longest=Longest("s7", 0.0, "node-3")), 60.0)
    {'last': 'the last shard: s7 on node-3'}
    """
    found = {"place": at.no_place, "store": at.store, "parts": at.others}
    if at.busy and at.busy >= at.running:
        # Else others go on, and the shards that are tried again have a line of their own.
        waits = "1 shard waits" if at.busy == 1 else f"{at.busy:,} shards wait"
        found[SERVICE] = f"{waits}{_BUSY}" + (f" ({at.busy_reason})" if at.busy_reason else "")
    longest = at.longest
    if longest is not None:
        where = f" on {longest.node}" if longest.node else ""
        one = f"{longest.shard}{where}"
        if not at.pending and 0 < at.running < at.slots:
            last = "the last shard: " if at.running == 1 else f"the last {at.running:,} shards; longest runs "
            found["last"] = last + one
        elif now - at.ended >= QUIET_S:
            runs = "the shard that runs: " if at.running == 1 else f"{at.running:,} shards that run; longest "
            found["shards"] = runs + one
    return {kind: ellipsize(text, MOST_CHARS) for kind, text in found.items() if text}


_AFTER_S: Mapping[str, float] = {"store": SOON_S, "last": SOON_S}


def without_reason(kind: str, text: str) -> str:
    """Returns what is waited for without what user code said of it, for whoever is to see no row.

    >>> without_reason("service", "2 shards wait: service busy (no answer for 'Jane Doe')")
    '2 shards wait: service busy'
    """
    return text.partition(_BUSY)[0] + _BUSY if kind == SERVICE and _BUSY in text else text


@dataclass(slots=True)
class WaitingSince:
    """Remembers since when a run has waited for what."""

    _since: dict[str, float] = field(default_factory=dict)

    def look(self, at: Standing, now: float) -> Waiting | None:
        """Returns what a run waits for first of all; None while it goes on as it should."""
        found = causes(at, now)
        self._since = {kind: self._since.get(kind, now) for kind in found}
        for kind, text in found.items():
            longest = at.longest if kind in ("last", "shards") else None
            since = self._since[kind] if longest is None else longest.since
            if now - since >= _AFTER_S.get(kind, AT_ONCE_S):
                return Waiting(kind, text, since, "" if longest is None else longest.node)
        return None
