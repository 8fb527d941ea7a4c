"""Heartbeats: the last state that a run reported, and whether its process still runs, here or on another machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

from curate.dataclass import dataclass, field
from curate.errors import ConfigError, ObjectNotFound
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.stages import StageReport, parse_stages
from curate.log import get_logger
from curate.tasks.books import Books
from curate.tasks.parts import Part
from curate.tasks.times import Times

NEWEST_RUNS = 20
"""Runs that are looked at, newest first; a job may have thousands."""
RUNS_A_PART = 4
"""Runs that are looked at beside those for each part of a job that several drivers make."""

LONG_SILENT_S = 600.0
"""Silence after which a run elsewhere is taken for gone at the first look."""
NO_PROGRESS_AFTER_S = 1800.0
"""After so long without a shard that ended, a run says that it makes no progress, unless it was told otherwise."""

RUNNING = "running"
"""The state of a run that has not ended."""

NO_RATE = {"shards_per_s": 0.0, "rows_per_s": 0.0, "bytes_per_s": 0.0}
_OF_POOLS = ("actors", "starting", "queued", "busy", "wait_s")


class ProcessState(Enum):
    """What can be told from here about the process of a run."""

    GONE = "gone"
    ALIVE = "alive"
    UNKNOWN = "unknown"
    """It runs on another host or in another container, or it is this very process: a run of it may be over."""


@dataclass(frozen=True, slots=True)
class Process:
    """The process of a run, as `whereabouts` told of it."""

    host: str = "?"
    pid: int = 0
    boot_id: str = ""
    pid_space: str = ""
    started: str = ""

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Process:
        """Returns the process that a file of the ledger tells of."""
        boot, space = value.get("boot_id", ""), value.get("pid_space", "")
        return cls(value.get("host", "?"), value.get("pid", 0), boot, space, str(value.get("pid_started") or ""))

    def state(self) -> ProcessState:
        """Returns what this host knows about it."""
        here = (boot_id(), pid_space())
        if not all(here) or here != (self.boot_id, self.pid_space) or not self.started:
            return ProcessState.UNKNOWN
        if process_started(self.pid) != self.started:
            return ProcessState.GONE
        return ProcessState.UNKNOWN if self.pid == os.getpid() else ProcessState.ALIVE


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a run last said of itself."""

    run_id: str
    started: float
    updated: float
    state: str = RUNNING
    shards: Mapping[str, int] = field(default_factory=dict)
    """Numbers of shards: total, done, skipped, running, failed, stale."""
    process: Process = field(default_factory=Process)
    rows: Mapping[str, Any] = field(default_factory=lambda: Books().rows())
    counters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    rate: Mapping[str, float] = field(default_factory=NO_RATE.copy)
    eta_range_s: tuple[float, float] | None = None
    failures: tuple[Mapping[str, Any], ...] = ()
    retrying: tuple[Mapping[str, Any], ...] = ()
    operators: tuple[Mapping[str, Any], ...] = ()
    waits: str = ""
    """What it waits for, in words, without how long."""
    missing: tuple[int, int] = (0, 0)
    """Inputs of earlier runs that the run was not given, and their shards."""
    incomplete_input: tuple[Mapping[str, Any], ...] = ()
    stages: tuple[StageReport, ...] = ()
    rows_running: int = 0
    """Rows read so far of shards that go on and take long."""
    part: str = ""
    """Which of several drivers of one output it is, such as 0/4; empty if it is the only one."""
    at_hand: tuple[int, ...] = ()
    """Numbers of the shards that run, of such a driver."""
    calls: Mapping[str, int] = field(default_factory=dict)
    """Storage calls of the run, its workers' included, by kind."""
    tries: int = 0
    """Attempts at shards that ended in it."""
    waits_since: float | None = None
    waits_kind: str = ""
    waits_node: str = ""
    last_end: float | None = None
    """When a shard last ended in it, or it began; None if it does not say."""
    no_progress_after_s: float = NO_PROGRESS_AFTER_S
    """After how long without one it says that it makes no progress."""
    times: Mapping[str, Times] = field(default_factory=dict)
    """When attempts were at work, of each stage of a job of several, by key."""
    ended_by: str = ""
    """The error that ended the run, where no shard did."""
    replaces: bool = False
    """Whether it may be about to put outputs in the place of others."""

    @classmethod
    def of(cls, run_id: str, value: Mapping[str, Any]) -> Heartbeat | None:
        """Returns what a heartbeat that was checked says, or a `run.json` for want of one; None if that is too little.

        A run that was seen before its first heartbeat has only begun.
        """
        updated, shards = value.get("updated", value.get("started")), value.get("shards")
        if not isinstance(updated, int | float) or not isinstance(shards, Mapping) or "total" not in shards:
            return None
        operators, waits, at_hand = value.get("operators"), value.get("waits"), value.get("at_hand")
        inputs, missing = value.get("missing_inputs", (0, 0))
        return cls(
            value.get("run_id", run_id),
            value.get("started", updated),
            updated,
            value.get("state", RUNNING),
            {"done": shards.get("skipped", 0), "running": 0, "failed": 0, "stale": 0, **shards},
            Process.of(value),
            value.get("rows", Books().rows()),
            value.get("counters", {}),
            value.get("metrics", {}),
            value.get("rate", NO_RATE),
            _range(value.get("eta_range_seconds")),
            tuple(value.get("failures", ())),
            tuple(value.get("retrying", ())),
            tuple(filter(_is_operator, operators)) if isinstance(operators, list) else (),
            _text(waits),
            (inputs, missing),
            tuple(value.get("incomplete_input", ())),
            parse_stages(value),
            value.get("rows_running", 0),
            _part(value.get("part")),
            tuple(one for one in at_hand if isinstance(one, int)) if isinstance(at_hand, list) else (),
            value.get("storage_calls", {}),
            value.get("tasks", {}).get("attempts", 0),
            _number(value.get("waits_since")),
            _text(value.get("waits_kind")),
            _text(value.get("waits_node")),
            _number(value.get("last_end")),
            _number(value.get("no_progress_after_s")) or NO_PROGRESS_AFTER_S,
            _times(value.get("times")),
            _text(value.get("ended_by")),
            bool(value.get("replaces")),
        )

    @property
    def running(self) -> bool:
        """Whether it says that it is still at work."""
        return self.state == RUNNING

    def quiet_s(self, now: float, after_s: float | None = None) -> float:
        """Returns for how long nothing has ended in it, if that is so long that it makes no progress; else 0.

        That is `after_s`, else as long as it says itself.
        """
        if not self.running or self.last_end is None:
            return 0.0
        quiet_s = now - self.last_end
        return quiet_s if quiet_s >= (self.no_progress_after_s if after_s is None else after_s) else 0.0

    def __str__(self) -> str:
        done, total = self.shards["done"], self.shards["total"]
        process = self.process
        part = f"part {self.part}, " if self.part else ""
        return f"{part}run {self.run_id} on {process.host} (pid {process.pid}), {done:,} of {total:,} shards done"


class Liveness(Enum):
    """What a run is taken for."""

    GONE = "gone"
    ALIVE = "alive"
    UNCLEAR = "unclear"
    """A second look will tell."""


def first_look(beat: Heartbeat, process: ProcessState, now: float, silent_s: float = LONG_SILENT_S) -> Liveness:
    """Returns what a run is taken for at once, by its process; after `silent_s` seconds of silence it is gone."""
    if not beat.running or process is ProcessState.GONE:
        return Liveness.GONE
    if process is ProcessState.ALIVE:
        # However long it was silent: one that is stopped, or waits for the store, goes on where it was.
        return Liveness.ALIVE
    return Liveness.GONE if now - beat.updated > silent_s else Liveness.UNCLEAR


def _range(value: Any) -> tuple[float, float] | None:
    match value:
        case [int() | float() as low, int() | float() as high]:
            return low, high
    return None


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _times(value: Any) -> Mapping[str, Times]:
    if not isinstance(value, Mapping):
        return {}
    found = {str(key): Times.parse(one) for key, one in value.items()}
    return {key: one for key, one in found.items() if one is not None}


def _part(value: Any) -> str:
    try:
        return str(Part.parse(value))
    except ConfigError:
        return ""


def _is_operator(one: Any) -> bool:
    return (
        isinstance(one, dict)
        and isinstance(one.get("name"), str)
        and all(isinstance(one.get(name), int | float) for name in ("rows_in", "rows_out", "wall_s", "cpu_s"))
        and ("actors" not in one or all(isinstance(one.get(name), int | float) for name in _OF_POOLS))
    )


@lru_cache(maxsize=1024)
def _warn_of_damaged(run_id: str, error: str) -> None:
    """Says once in a process that the last state of a run cannot be read: runs are looked at again and again."""
    get_logger().warning(
        "cannot read the last state of a run; its failures are in: curate failures",
        run=run_id,
        error=error,
    )


def read_heartbeats(
    ledger: Ledger, run_ids: Iterable[str], *, begun: bool = False, newest: int = NEWEST_RUNS
) -> list[Heartbeat]:
    """Returns the last heartbeats of the newest runs, in order, those left out that are not there or make no sense.

    With `begun`, a run without one is told of by its `run.json`: it was killed between the two, or has just begun.
    """
    names = ("heartbeat.json", "run.json") if begun else ("heartbeat.json",)

    def read(run_id: str) -> Heartbeat | None:
        for name in names:
            try:
                return Heartbeat.of(run_id, ledger.read_json(layout.run_file(run_id, name)))
            except ObjectNotFound:
                continue
            except ConfigError as error:
                _warn_of_damaged(run_id, str(error))  # it says nothing, so nothing it said is counted
                return None
        return None

    with ThreadPoolExecutor(NEWEST_RUNS) as pool:
        return [beat for beat in pool.map(read, sorted(run_ids)[-newest:]) if beat is not None]


def newest_heartbeats(ledger: Ledger, run_ids: Sequence[str]) -> list[Heartbeat]:
    """Returns the last heartbeats of the newest runs, as `read_heartbeats`; of more runs if drivers have parts."""
    beats = read_heartbeats(ledger, run_ids)
    parts = max((Part.parse(beat.part).count for beat in beats if beat.part), default=0)
    before = sorted(run_ids)[:-NEWEST_RUNS]
    more = read_heartbeats(ledger, before, newest=RUNS_A_PART * parts) if parts and before else []
    return [*more, *beats]


def boot_id() -> str:
    """Returns what tells one boot of one machine from all others; empty where the system does not say."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def pid_space() -> str:
    """Returns what tells this process's numbering of processes from that of other containers on the same kernel."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def process_started(pid: int) -> str:
    """Returns the start time of a process in clock ticks since boot, empty if there is no such process (any more)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
    except OSError:
        return ""
    # The second field is the program's name in parentheses and may hold anything, spaces and parentheses too.
    fields = stat.rpartition(")")[2].split()
    # A zombie has ended, whether or not its parent has looked.
    return "" if fields[0] in "ZX" else fields[19]
