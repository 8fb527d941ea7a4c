"""Other drivers on one output: before a driver starts, it checks whether another one is running.

Two drivers on one output are safe by construction, so this is courtesy and not a lock: two that start within a second
see nobody, and both end with the same bytes. Only `--overwrite` removes what others make, and is stricter.

What a run's heartbeat says, and what becomes of it:

| its process | last heartbeat | judged |
|---|---|---|
| ran on this host, is gone | - | gone, at once |
| runs on this host, stopped or not | - | alive, at once |
| elsewhere, or not to be told | older than 10 minutes | gone, at once |
| elsewhere, or not to be told | younger | looked at twice, 20 s apart: alive if it moved |

Ten minutes are sixty heartbeats, and more than clocks of two hosts are usually apart. A driver that is judged gone by
mistake costs double work; for `--overwrite`, which would cost its outputs, only a day of silence counts unseen.

Drivers of the parts of one output are not in each other's way, unless two have the same part, or divide the output into
other numbers of parts. While they run, each looks at the heartbeats of the others now and then. It does not wait for a
driver whose heartbeat did not change for 30 s. It counts these seconds itself, because the clocks of machines differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from curate.clock import Clock
from curate.errors import ConfigError
from curate.keywords import option
from curate.ledger import layout
from curate.ledger.heartbeat import (
    LONG_SILENT_S,
    NEWEST_RUNS,
    RUNS_A_PART,
    Heartbeat,
    Liveness,
    first_look,
    read_heartbeats,
)
from curate.ledger.ledger import Ledger
from curate.ledger.listing import refuse_special
from curate.ledger.run_log import HEARTBEAT_S
from curate.ledger.stages import stages_roots
from curate.log import get_logger
from curate.sources.protocol import StoreOf
from curate.storage.protocol import Special, Store
from curate.tasks.parts import Part
from curate.units import shell_word

BETWEEN_LOOKS_S = 2 * HEARTBEAT_S
PART_SILENT_S = 3 * HEARTBEAT_S
"""Silence after which the driver of another part is not waited for. If it was only slow, a few shards run twice."""
OVERWRITE_SILENT_S = 86_400.0
"""The same for a driver that is going to remove what the other one would still be making."""


def second_look(before: Heartbeat, after: Heartbeat) -> Liveness:
    """Returns what a run is taken for that was unclear, two heartbeats later: alive if it moved, else gone."""
    return Liveness.ALIVE if after.running and after.updated != before.updated else Liveness.GONE


def runs_of_parts(part: Part | None) -> int:
    """Returns how many of the newest runs to look at, for the driver of a part."""
    return NEWEST_RUNS + (0 if part is None else RUNS_A_PART * part.count)


def running_drivers(
    ledger: Ledger,
    run_ids: Iterable[str],
    clock: Clock,
    *,
    silent_s: float = LONG_SILENT_S,
    wait: bool = True,
    part: Part | None = None,
) -> list[tuple[Heartbeat, Liveness]]:
    """Returns the runs that are not gone: alive, or unclear where it may not `wait` for a second look; for the driver
    of a `part`, without those of other parts.

    One small read a run, of the newest 20; two heartbeats (20 s) later another of those that were unclear.
    """
    beats = read_heartbeats(ledger, run_ids, begun=True, newest=runs_of_parts(part))
    if part is not None:
        beats = [beat for beat in beats if beat.part == str(part) or not beat.part.endswith(f"/{part.count}")]
    looked = [(beat, first_look(beat, beat.process.state(), clock.now(), silent_s)) for beat in beats]
    found: list[tuple[Heartbeat, Liveness]] = [
        (beat, standing) for beat, standing in looked if standing is not Liveness.GONE
    ]
    unclear = {beat.run_id: beat for beat, standing in found if standing is Liveness.UNCLEAR}
    # One that is alive for certain decides; there is nothing to wait for.
    if not wait or not unclear or len(unclear) < len(found):
        return found
    get_logger().info(
        "another driver may be running on this output: looking whether it makes progress",
        run=next(reversed(unclear)),
        runs=len(unclear),
        wait_s=BETWEEN_LOOKS_S,
    )
    clock.sleep(BETWEEN_LOOKS_S)
    return [
        (after, Liveness.ALIVE)
        for after in read_heartbeats(ledger, unclear, begun=True)
        if second_look(unclear[after.run_id], after) is Liveness.ALIVE
    ]


def refuse_rivals(
    ledger: Ledger,
    run_ids: Iterable[str],
    clock: Clock,
    *,
    allow_concurrent: bool,
    overwrite: bool,
    part: Part | None = None,
) -> None:
    """Raises ConfigError if another driver is running on the output, naming it and what to do; for the driver of a
    `part`, unless the other one makes another part.

    With `allow_concurrent`, both help, and nothing is looked at; not with `overwrite`.
    """
    if allow_concurrent and not overwrite:
        return
    silent_s = OVERWRITE_SILENT_S if overwrite else LONG_SILENT_S
    found = running_drivers(ledger, run_ids, clock, silent_s=silent_s, part=part)
    if not found:
        return
    beat, _ = found[-1]
    ago = max(0, round(clock.now() - beat.updated))
    problem = f"another driver is running on {ledger.root}: {beat}, last heartbeat {ago:,} s ago"
    if overwrite:
        raise ConfigError(
            f"{problem}; {option('overwrite')} would remove what it makes. Wait until it has ended (curate status "
            f"{shell_word(ledger.root)}), or stop it first (on {beat.process.host}: kill {beat.process.pid})"
        )
    watch = f"Watch it with: curate status {shell_word(ledger.root)}. Run this again when it has ended"
    if part is not None:
        has = f"it has {option('part', beat.part)}" if beat.part else "it makes the whole output"
        one_each = "All drivers of an output need the same number of parts, and a part of their own"
        raise ConfigError(f"{problem}; {has}, this one {option('part', str(part))}. {one_each}. {watch}")
    raise ConfigError(f"{problem}. {watch}, or now with {option('allow_concurrent')} to help it")


def refuse_rivals_in_stages(output: str, stages: set[str], store_of: StoreOf, clock: Clock) -> set[str]:
    """Returns the runs of all stages of a job that is to be removed; `stages`: those in its output's own store. Raises
    ConfigError if another driver is running on one of them."""
    found: set[str] = set()
    for root in stages_roots(output, stages):
        store = store_of(root)
        for key, run_ids in runs_of_stages(store, root).items():
            refuse_rivals(Ledger(store, f"{root}/{key}"), run_ids, clock, allow_concurrent=False, overwrite=True)
            found |= run_ids
    return found


def runs_of_stages(store: Store, root: str) -> dict[str, set[str]]:
    """Returns the runs that stages know, by the stage's key."""
    found: dict[str, set[str]] = {}
    for item in store.list(f"{root}/"):
        key, _, name = item.uri[len(root) + 1 :].partition("/")
        if isinstance(item, Special):
            refuse_special(item, name)
        if run_id := layout.run_of(name):
            found.setdefault(key, set()).add(run_id)
    return found


class OtherDrivers:
    """The other drivers of an output, as one of them sees them from time to time."""

    def __init__(self, ledger: Ledger, part: Part, clock: Clock) -> None:
        self._ledger = ledger
        self._newest = runs_of_parts(part)
        self._clock = clock
        self._seen: dict[str, tuple[float, float, float]] = {}
        """Of each run: when it last beat, by its clock; by this driver's, when that was seen to change, and when the
        run was first seen."""
        self._ended: set[str] = set()

    def alive(self, run_ids: Iterable[str]) -> list[Heartbeat]:
        """Returns the last heartbeats of those runs that go on. One small read for each that was not seen to end."""
        now_s, found = self._clock.monotonic(), []
        for beat in read_heartbeats(self._ledger, set(run_ids) - self._ended, begun=True, newest=self._newest):
            process, now = beat.process.state(), self._clock.now()
            if first_look(beat, process, now, math.inf) is Liveness.GONE:
                self._ended.add(beat.run_id)
                continue
            # By its clock, which may be far behind: then it is seen to go on at the next look.
            silent = first_look(beat, process, now) is Liveness.GONE
            before = beat.updated, -math.inf if silent else now_s, now_s
            updated, moved_s, seen_s = self._seen.get(beat.run_id, before)
            if updated != beat.updated:
                moved_s = now_s
            self._seen[beat.run_id] = beat.updated, moved_s, seen_s
            if now_s - moved_s <= PART_SILENT_S:
                found.append(beat)
            elif silent and now_s - seen_s > PART_SILENT_S:
                self._ended.add(beat.run_id)
        return found


def describe_rivals(found: Sequence[tuple[Heartbeat, Liveness]]) -> str:
    """Returns a line for each run of `running_drivers`, for `--dry-run`."""
    words = {Liveness.ALIVE: "is running", Liveness.UNCLEAR: "may be running"}
    return "\n".join(f"driver   another one {words[standing]}: {beat}" for beat, standing in found)
