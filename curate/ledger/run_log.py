"""The documents that a run writes while it runs: `run.json`, segments of events and failures, the heartbeat.

A separate thread writes them, so a store that throttles delays no task. Segments are written every 2 s at first, then
less often, up to every 60 s, and only if there is something to write; the heartbeat after 2 s, then every 10 s.

The ledger may lag or be incomplete, because only outputs count and the next run reads them. So an error here never
stops a run or its end.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from curate.clock import Clock
from curate.errors import ConfigError, CurateError, JobReplacedError
from curate.ledger import layout
from curate.ledger.failures import Tracebacks
from curate.ledger.heartbeat import boot_id, pid_space, process_started
from curate.ledger.ledger import Ledger
from curate.ledger.segments import Segments
from curate.log import get_logger, redacted
from curate.tasks.failure import printable
from curate.tasks.parts import Part

HEARTBEAT_S = 10.0
STALLED_S = 60.0
"""A run that was silent for this long is shown as stalled."""
FIRST_SEGMENT_S = 2.0
LAST_SEGMENT_S = 60.0
_RUN_ID = re.compile(r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{6}")
CLOSE_S = 150.0
"""How long the end of a run waits for the ledger: longer than a store goes on trying one call, then the run ends."""


def new_run_id(now: float, known: Iterable[str] = ()) -> str:
    """Returns a run id that sorts by start time, to the millisecond: a finished job is run again within a second.

    It sorts behind the runs that are `known`, whose clocks may be ahead of this one: what the newest run says counts.

    >>> new_run_id(0)[:20], new_run_id(0, {"20240101T000000.999Z-0a1b2c"})[:20]
    ('19700101T000000.000Z', '20240101T000001.000Z')
    """
    from datetime import datetime

    starts = [_start_of(now)]
    for one in known:
        if one[:20] >= starts[0] and _RUN_ID.fullmatch(one):
            with contextlib.suppress(ValueError, OverflowError):  # no run began then: there is no such day
                starts.append(_start_of(datetime.fromisoformat(one[:20]).timestamp() + 0.0015))
    return f"{max(starts)}-{uuid.uuid4().hex[:6]}"


def _start_of(now: float) -> str:
    from datetime import UTC, datetime

    second, millisecond = divmod(int(now * 1000), 1000)
    return f"{datetime.fromtimestamp(second, UTC).strftime('%Y%m%dT%H%M%S')}.{millisecond:03}Z"


def other_python(ledger: Ledger) -> str:
    """Returns a sentence, where the first run had another Python: code may seem to have changed that has not."""
    here = platform.python_version()
    try:
        items = ledger.store.list(ledger.uri(layout.RUNS))
        runs = [run_id for item in items if (run_id := layout.run_of(item.uri[len(ledger.root) + 1 :]))]
        versions = ledger.read_json(layout.run_file(min(runs), "run.json")).get("versions") if runs else None
    except CurateError:
        return ""  # what it goes with stands without it
    there = str(versions.get("python", "")) if isinstance(versions, Mapping) else ""
    if not there or there.split(".")[:2] == here.split(".")[:2]:
        return ""
    return (
        f" It was begun with Python {there}, and this is {here}: lambdas, and the code of a notebook, are known by "
        "what Python compiled, which is another with each of its versions. So the code may be as it was; with Python "
        f"{'.'.join(there.split('.')[:2])} it goes on."
    )


def whereabouts() -> dict[str, Any]:
    """Returns where this process runs: enough to tell, on the same host, whether it still does."""
    return {
        "host": socket.gethostname(),
        "boot_id": boot_id(),
        "pid_space": pid_space(),
        "pid": os.getpid(),
        "pid_started": process_started(os.getpid()),
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())  # a container's user need not have a name


def _cwd() -> str:
    try:
        return printable(os.getcwd())  # noqa: PTH109 - a path that is no Unicode stays text
    except OSError:
        return ""  # it was removed under the process


def command_line(argv: Sequence[str], original: Sequence[str]) -> list[str]:
    """Returns the words that start this process again: those of a script or a module begin with Python.

    `argv` is what the program sees of `original`. Programs that installation has made, as `curate`, stay as they are.

    >>> command_line(["jobs/mine.py", "--limit"], ["/usr/bin/python3", "-O", "jobs/mine.py", "--limit"])
    ['python3', '-O', 'jobs/mine.py', '--limit']
    """
    before = original[: len(original) - len(argv) + 1]
    if list(original[len(before) :]) != list(argv[1:]) or len(before) < 2:
        return list(argv)  # changed since, or begun by another program
    if before[-2] == "-c":
        before = [*before[:-1], "..."]
    elif before[-2] != "-m" and not before[-1].endswith(".py"):
        return list(argv)
    return [Path(before[0]).name, *before[1:], *argv[1:]]


class RunLog:
    """The files of one run. Events and failures may be added from one thread while another writes."""

    def __init__(
        self,
        ledger: Ledger,
        run_id: str,
        clock: Clock,
        heartbeat: Callable[[], dict[str, Any]],
        part: Part | None = None,
        *,
        replaces: bool = False,
    ) -> None:
        """`heartbeat` returns the mutable object's content; it is called from the writing thread. `part` is which of
        several drivers of one output the run is; `replaces`: it may put outputs in the place of others."""
        self.run_id = run_id
        self._mark = {**({} if part is None else {"part": str(part)}), **({"replaces": True} if replaces else {})}
        self._ledger = ledger
        self._clock = clock
        self._heartbeat = heartbeat
        self._events = Segments(ledger, lambda number: layout.events_segment(run_id, number))
        self._failures = Segments(ledger, lambda number: layout.failures_segment(run_id, number))
        self._tracebacks = Tracebacks()
        # Held while something is written, so that segments are numbered and published one after the other.
        self._writing = threading.Lock()
        self._segment_interval_s = FIRST_SEGMENT_S
        self._segment_due_s = clock.monotonic() + FIRST_SEGMENT_S
        # The second one soon: who looks at a run that has just begun wants to see it move.
        self._heartbeat_due_s = clock.monotonic() + FIRST_SEGMENT_S
        self._wake = threading.Event()
        self._closed = False
        self._replaced = False
        """Whether the output was found to be another run's by now: there is nothing to write to any more."""
        # A daemon: a store that does not answer cannot keep the process from ending.
        self._thread = threading.Thread(target=self._write_until_closed, name="curate-runlog", daemon=True)
        self._log = get_logger(run=run_id)

    def open(self, about: dict[str, Any]) -> None:
        """Publishes `run.json` and the first heartbeat, and starts the thread. Raises what the store raises."""
        from curate import __version__

        where = whereabouts()
        value = {
            "run_id": self.run_id,
            "user": _user(),
            **where,
            **self._mark,
            "command": [printable(redacted(word)) for word in command_line(sys.argv, sys.orig_argv)],
            "cwd": _cwd(),
            "versions": {
                "curate": __version__,
                "python": platform.python_version(),
                **_versions(),
            },
            **about,
        }
        there = self._ledger.create_json(layout.run_file(self.run_id, "run.json"), value)
        if any(there.get(name) != where[name] for name in where):
            raise ConfigError(
                f"the run id {self.run_id} is taken by another run of this job; run again to get a new one"
            )
        self._write_heartbeat()
        self._thread.start()

    def beat(self) -> None:
        """Has the next heartbeat written now. Never waits for the store."""
        self._heartbeat_due_s = self._clock.monotonic()
        self._wake.set()

    def add(self, event: Mapping[str, Any]) -> None:
        """Adds an event to the next segment. Never waits for the store."""
        self._add(self._events, event)

    def add_failure(self, failure: Mapping[str, Any]) -> None:
        """Adds a failed try, as `failure_event` makes them, to the next segment. Never waits for the store."""
        self._add(self._failures, self._tracebacks.bounded(failure))

    def _add(self, stream: Segments, event: Mapping[str, Any]) -> None:
        if stream.add(event):
            self._wake.set()
            if dropped := stream.take_dropped():
                self._log.warning(
                    "events cannot be written: the oldest are dropped, and the next run reads the outputs instead",
                    bytes=dropped,
                )

    def flush(self) -> None:
        """Writes what is waiting: segments, then the heartbeat that counts them. What fails is logged and kept."""
        with self._writing:
            self._seal_rest()
            self._try(self._write_segments)
            self._try(self._write_heartbeat)

    def close(self, within_s: float = CLOSE_S) -> None:
        """Writes the rest and ends the thread; gives up after `within_s`, and raises nothing if the store does.

        Does nothing if the log was never opened: then the files are nobody's, or another run's.
        """
        if self._thread.ident is None:
            return
        self._closed = True
        self._wake.set()
        self._thread.join(within_s)
        if self._thread.is_alive():
            self._log.warning("the last part of the ledger could not be written in time; the outputs are safe")

    def write_due(self, now_s: float) -> None:
        """Writes what is due at `now_s`. What fails is logged and kept until it is due again."""
        with self._writing:
            if now_s >= self._segment_due_s:
                self._segment_due_s = now_s + self._segment_interval_s
                self._segment_interval_s = min(LAST_SEGMENT_S, self._segment_interval_s * 1.5)
                self._seal_rest()
            self._try(self._write_segments)
            self._beat_if_due(now_s)

    def _write_until_closed(self) -> None:
        while not (self._closed or self._replaced):
            due_s = min(self._segment_due_s, self._heartbeat_due_s)
            self._wake.wait(max(0.0, due_s - self._clock.monotonic()))
            self._wake.clear()
            if not self._closed:
                self.write_due(self._clock.monotonic())
        self.flush()

    def _beat_if_due(self, now_s: float) -> None:
        if now_s >= self._heartbeat_due_s:
            self._heartbeat_due_s = now_s + HEARTBEAT_S
            self._try(self._write_heartbeat)

    def _try(self, write: Callable[[], None]) -> None:
        if self._replaced:
            return
        try:
            write()
        except JobReplacedError:
            # The run itself ends of it, and says so.
            self._replaced = True
        except CurateError as error:
            self._log.warning("ledger write failed; it will be retried", error=str(error))
        except Exception:  # noqa: BLE001 - were this thread to die, the run would be shown as stalled
            self._log.warning("ledger write failed; it will be retried", exc_info=True)

    def _seal_rest(self) -> None:
        for stream in (self._failures, self._events):
            stream.seal()

    def _write_segments(self) -> None:
        """Publishes the segments that are sealed, and beats in between: a slow store takes its time for each."""
        # Failures first: what an event mentions can then be looked up.
        for stream in (self._failures, self._events):
            stream.write(lambda: self._beat_if_due(self._clock.monotonic()))

    def says(self) -> dict[str, Any]:
        """Returns what a heartbeat of now has, without a word to the store."""
        about = {"run_id": self.run_id, "updated": self._clock.now(), **whereabouts(), **self._mark}
        return {**about, **self._heartbeat()}

    def _write_heartbeat(self) -> None:
        value = self.says()
        uri = self._ledger.uri(layout.run_file(self.run_id, "heartbeat.json"))
        self._ledger.store.replace(uri, orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str))


@cache
def _versions() -> dict[str, str]:
    """Returns the versions of what decides how a run goes, as far as it is installed: `local` does without Ray.

    Asked once, because reading it takes milliseconds.
    """
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("ray", "pyarrow"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
