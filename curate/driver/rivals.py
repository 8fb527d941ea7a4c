"""Other drivers on one output: a driver that is about to work looks whether another is at work already.

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
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any

from curate.clock import Clock
from curate.errors import ConfigError, ObjectNotFound
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.process import boot_id, is_gone, pid_space, process_started
from curate.ledger.run_log import HEARTBEAT_S
from curate.log import get_logger
from curate.observe.status import RUNNING

NEWEST_RUNS = 20
"""Runs that are looked at, newest first; a job may have thousands."""

BETWEEN_LOOKS_S = 2 * HEARTBEAT_S

LONG_SILENT_S = 600.0
"""Silence after which a run elsewhere is taken for gone at the first look."""

OVERWRITE_SILENT_S = 86_400.0
"""The same for a driver that is going to remove what the other one would still be making."""


class ProcessState(Enum):
    """What can be told from here about the process of a run."""

    GONE = "gone"
    ALIVE = "alive"
    UNKNOWN = "unknown"
    """It runs on another host or in another container, or it is this very process: a run of it may be over."""


class Liveness(Enum):
    """What a run is taken for."""

    GONE = "gone"
    ALIVE = "alive"
    UNCLEAR = "unclear"
    """A second look will tell."""


@dataclass(frozen=True, slots=True)
class DriverHeartbeat:
    """What a run last said of itself."""

    run_id: str
    running: bool
    """Whether it says that it is still at work."""
    updated: float
    process: ProcessState
    host: str = "?"
    pid: int = 0
    done: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"run {self.run_id} on {self.host} (pid {self.pid}), {self.done:,} of {self.total:,} shards done"


def first_look(beat: DriverHeartbeat, now: float, silent_s: float = LONG_SILENT_S) -> Liveness:
    """Returns what a run is taken for at once; one that was silent for `silent_s` seconds is gone."""
    if not beat.running or beat.process is ProcessState.GONE:
        return Liveness.GONE
    if beat.process is ProcessState.ALIVE:
        # However long it was silent: one that is stopped, or waits for the store, goes on where it was.
        return Liveness.ALIVE
    return Liveness.GONE if now - beat.updated > silent_s else Liveness.UNCLEAR


def second_look(before: DriverHeartbeat, after: DriverHeartbeat) -> Liveness:
    """Returns what a run is taken for that was unclear, two heartbeats later: alive if it moved, else gone."""
    return Liveness.ALIVE if after.running and after.updated != before.updated else Liveness.GONE


def beat_of(
    run_id: str, value: Mapping[str, Any], process_of: Callable[[Mapping[str, Any]], ProcessState]
) -> DriverHeartbeat | None:
    """Returns what a heartbeat says, or a `run.json` for want of one; None if it makes no sense."""
    updated, shards = value.get("updated", value.get("started")), value.get("shards")
    if not isinstance(updated, int | float) or not isinstance(shards, Mapping):
        return None
    return DriverHeartbeat(
        run_id,
        # A run that was seen before its first heartbeat has only begun.
        value.get("state", RUNNING) == RUNNING,
        float(updated),
        process_of(value),
        str(value.get("host", "?")),
        value.get("pid", 0),
        shards.get("done", shards.get("skipped", 0)),
        shards.get("total", 0),
    )


def process_here(value: Mapping[str, Any]) -> ProcessState:
    """Returns what this host knows about the process that wrote a heartbeat."""
    if is_gone(value):
        return ProcessState.GONE
    here = (boot_id(), pid_space())
    same_host = all(here) and here == (value.get("boot_id"), value.get("pid_space"))
    if not same_host or value.get("pid") == os.getpid() or not value.get("pid_started") or not value.get("pid"):
        return ProcessState.UNKNOWN
    return ProcessState.ALIVE if process_started(int(value["pid"])) else ProcessState.GONE


def running_drivers(
    ledger: Ledger, run_ids: Iterable[str], clock: Clock, *, silent_s: float = LONG_SILENT_S, wait: bool = True
) -> list[tuple[DriverHeartbeat, Liveness]]:
    """Returns the runs that are not gone: alive, or unclear where it may not `wait` for a second look.

    One small read a run, of the newest 20; two heartbeats (20 s) later another of those that were unclear.
    """
    looked = [(beat, first_look(beat, clock.now(), silent_s)) for beat in _read(ledger, sorted(run_ids)[-NEWEST_RUNS:])]
    found: list[tuple[DriverHeartbeat, Liveness]] = [
        (beat, standing) for beat, standing in looked if standing is not Liveness.GONE
    ]
    unclear = {beat.run_id: beat for beat, standing in found if standing is Liveness.UNCLEAR}
    # One that is alive for certain decides; there is nothing to wait for.
    if not wait or not unclear or len(unclear) < len(found):
        return found
    get_logger().info(
        "another driver may be at work on this output: looking whether it moves",
        run=next(reversed(unclear)),
        runs=len(unclear),
        wait_s=BETWEEN_LOOKS_S,
    )
    clock.sleep(BETWEEN_LOOKS_S)
    return [
        (after, Liveness.ALIVE)
        for after in _read(ledger, list(unclear))
        if second_look(unclear[after.run_id], after) is Liveness.ALIVE
    ]


def refuse_rivals(
    ledger: Ledger, run_ids: Iterable[str], clock: Clock, *, allow_concurrent: bool, overwrite: bool
) -> None:
    """Raises ConfigError if another driver is at work on the output, naming it and what to do.

    With `allow_concurrent`, both help, and nothing is looked at; not with `overwrite`.
    """
    if allow_concurrent and not overwrite:
        return
    found = running_drivers(ledger, run_ids, clock, silent_s=OVERWRITE_SILENT_S if overwrite else LONG_SILENT_S)
    if not found:
        return
    beat, _ = found[-1]
    problem = f"another driver is at work on {ledger.root}: {beat}, last heard of {_ago(clock.now() - beat.updated)}"
    if overwrite:
        raise ConfigError(
            f"{problem}; --overwrite would remove what it makes. Wait until it has ended (curate status "
            f"{ledger.root}), or stop it first (on {beat.host}: kill {beat.pid})"
        )
    raise ConfigError(
        f"{problem}. Watch it with: curate status {ledger.root}. Run this again when it has ended, or now with "
        "--allow-concurrent to help it"
    )


def describe_rivals(found: Sequence[tuple[DriverHeartbeat, Liveness]]) -> str:
    """Returns a line for each run of `running_drivers`, for `--dry-run`."""
    words = {Liveness.ALIVE: "is at work", Liveness.UNCLEAR: "may be at work"}
    return "\n".join(f"driver   another one {words[standing]}: {beat}" for beat, standing in found)


def _ago(seconds: float) -> str:
    return f"{max(0, round(seconds)):,} s ago"


def _read(ledger: Ledger, run_ids: Sequence[str]) -> list[DriverHeartbeat]:
    """Returns what the runs say now, in order; those left out that say nothing, or nothing that makes sense."""

    def read(run_id: str) -> DriverHeartbeat | None:
        for name in ("heartbeat.json", "run.json"):
            try:
                return beat_of(run_id, ledger.read_json(layout.run_file(run_id, name)), process_here)
            except ObjectNotFound:
                continue
            except ConfigError:
                return None  # damaged; status says so
        return None

    if not run_ids:
        return []
    with ThreadPoolExecutor(NEWEST_RUNS) as pool:
        return [beat for beat in pool.map(read, run_ids) if beat is not None]
