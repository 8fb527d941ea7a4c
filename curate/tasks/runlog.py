"""What one run writes while it goes on: `run.json`, segments of events, the heartbeat.

Written from a thread of its own, so that a store that throttles delays no task. Segments come every 2 s at first and
less and less often, up to 60 s apart, and only when there is something; the heartbeat every 10 s.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from curate.clock import Clock
from curate.errors import CurateError
from curate.log import get_logger
from curate.tasks import layout
from curate.tasks.ledger import Ledger, compress

HEARTBEAT_S = 10.0
STALLED_S = 60.0
"""A run that was silent for this long is shown as stalled."""
FIRST_SEGMENT_S = 2.0
LAST_SEGMENT_S = 60.0
SEGMENT_EVENTS = 20_000
"""Events that are written without waiting for the time to come: what the driver may hold in memory."""


def new_run_id(now: float) -> str:
    """Returns a run id that sorts by start time.

    >>> new_run_id(0)[:16]
    '19700101T000000Z'
    """
    from datetime import UTC, datetime

    return datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ") + "-" + uuid.uuid4().hex[:6]


def boot_id() -> str:
    """Returns what tells one boot of one machine from all others; empty where the system does not say."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def process_started(pid: int) -> str:
    """Returns the start time of a process in clock ticks since boot, empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The second field is the program's name in parentheses and may hold anything, spaces and parentheses too.
    return stat.rpartition(")")[2].split()[19]


def whereabouts() -> dict[str, Any]:
    """Returns where this process runs: enough to tell, on the same host, whether it still does."""
    return {
        "host": socket.gethostname(),
        "boot_id": boot_id(),
        "pid": os.getpid(),
        "pid_started": process_started(os.getpid()),
    }


def is_gone(heartbeat: dict[str, Any]) -> bool:
    """Returns whether the process of a heartbeat ran on this host and is gone. False if it cannot be told."""
    here = boot_id()
    if not here or heartbeat.get("boot_id") != here or not heartbeat.get("pid_started"):
        return False
    return process_started(int(heartbeat["pid"])) != str(heartbeat["pid_started"])


class RunLog:
    """The files of one run. Events may be added from one thread while another writes."""

    def __init__(self, ledger: Ledger, run_id: str, clock: Clock, heartbeat: Callable[[], dict[str, Any]]) -> None:
        """`heartbeat` returns the mutable object's content; it is called from the writing thread."""
        self.run_id = run_id
        self._ledger = ledger
        self._clock = clock
        self._heartbeat = heartbeat
        self._events: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._segments = 0
        self._segment_interval_s = FIRST_SEGMENT_S
        self._segment_due_s = clock.monotonic() + FIRST_SEGMENT_S
        self._heartbeat_due_s = clock.monotonic() + HEARTBEAT_S
        self._thread = threading.Thread(target=self._write_until_closed, name="curate-runlog", daemon=True)
        self._log = get_logger(run=run_id)

    def open(self, about: dict[str, Any]) -> None:
        """Publishes `run.json` and the first heartbeat, and starts the thread. Raises what the store raises."""
        import pyarrow

        from curate import __version__

        versions = {
            "curate": __version__,
            "python": platform.python_version(),
            "pyarrow": pyarrow.__version__,
        }
        value = {"run_id": self.run_id, **whereabouts(), "command": sys.argv, "versions": versions, **about}
        self._ledger.create_json(layout.run_file(self.run_id, "run.json"), value)
        self._write_heartbeat()
        self._thread.start()

    def add(self, event: dict[str, Any]) -> None:
        """Adds an event to the next segment."""
        with self._lock:
            self._events.append(event)
            full = len(self._events) >= SEGMENT_EVENTS
        if full:
            self._wake.set()

    def flush(self) -> None:
        """Writes what is waiting: events, then the heartbeat that counts them."""
        with self._writing:
            self._write_segment()
            self._write_heartbeat()

    def close(self) -> None:
        """Stops the thread and writes the rest."""
        self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self.flush()

    def _write_until_closed(self) -> None:
        while not self._closed:
            due_s = min(self._segment_due_s, self._heartbeat_due_s)
            self._wake.wait(max(0.0, due_s - self._clock.monotonic()))
            self._wake.clear()
            if self._closed:
                return
            try:
                self.write_due(self._clock.monotonic())
            except CurateError as error:
                # The outputs are the truth and the rerun reads them: a ledger that lags must not stop the work.
                self._log.warning("ledger write failed, will try again", error=str(error))

    def write_due(self, now_s: float) -> None:
        """Writes what is due at `now_s`."""
        with self._writing:
            if now_s >= self._segment_due_s or len(self._events) >= SEGMENT_EVENTS:
                self._segment_interval_s = min(LAST_SEGMENT_S, self._segment_interval_s * 1.5)
                self._segment_due_s = now_s + self._segment_interval_s
                self._write_segment()
            if now_s >= self._heartbeat_due_s:
                self._heartbeat_due_s = now_s + HEARTBEAT_S
                self._write_heartbeat()

    def _write_segment(self) -> None:
        with self._lock:
            events, self._events = self._events, []
        if not events:
            return
        data = b"".join(orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE) for event in events)
        name = layout.events_segment(self.run_id, self._segments + 1)
        try:
            self._ledger.store.publish(self._ledger.uri(name), compress(data))
        except BaseException:
            with self._lock:
                self._events = events + self._events
            raise
        self._segments += 1

    def _write_heartbeat(self) -> None:
        value = {"run_id": self.run_id, "updated": self._clock.now(), **whereabouts(), **self._heartbeat()}
        name = layout.run_file(self.run_id, "heartbeat.json")
        self._ledger.store.replace(self._ledger.uri(name), orjson.dumps(value, option=orjson.OPT_INDENT_2))
