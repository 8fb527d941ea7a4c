"""The log of a worker: events of `self.log`, prints, and stacks of hanging shards, in segments beside the outputs.

    self.log, curate's own events ─┐
    sys.stdout, sys.stderr ────────┼─▶ lines, bounded ─▶ runs/<run>/logs/<host>-<pid>-000001.jsonl.zst ...
    the stack of a shard that hangs┘

Lines are gathered in memory and published 10 s after the first of them, when 64 KiB have come together, and when a task
ends: from a thread that is there only while something waits. So a shard that hangs still shows what it said, and a job
that says nothing costs nothing and leaves no object. A worker that is killed takes what it had not published with it.

What is written to file descriptors beneath Python (by C libraries, by child processes) is not seen. What is seen goes
on to where it would have gone: the terminal, or Ray's own files on the worker's machine. Nothing goes to the driver.

The log is no part of the truth. A store that does not take it fails no shard; calls for it are in no shard's account.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import orjson

from curate import log
from curate.around import contextmanager
from curate.clock import Clock
from curate.ledger import layout
from curate.ledger.compression import compress
from curate.storage.protocol import Outcome, Store
from curate.tasks.failure import printable
from curate.units import KIB, MIB, format_duration

PUBLISH_S = 10.0
"""How long a line waits for others before it is published."""
PUBLISH_BYTES = 64 * KIB
WAITING_BYTES = 4 * MIB
"""Lines that may wait for a store that does not answer; those that come then are left out."""
BURST_LINES = 1000
LINES_PER_S = 50.0
"""What a worker process may say: so many lines at once, and so many a second in the long run."""
LINE_BYTES = 4 * KIB
"""A line that is longer is cut, and says so."""
MOST_TRIES = 3
"""Times that a segment is tried, 10 s apart, before its lines are given up; a store has tried for longer each time."""
FLUSH_S = 10.0
"""How long the end of a task waits for its lines to be published."""
_UNFINISHED_CHARS = 8 * KIB
"""What may be printed without an end of line before the rest of the line is left out."""
_KNOWN = {"level", "event", "shard", "attempt", "timestamp", "job", "run"}
"""Fields of an event that a line has already, or the name of its segment."""
_RENAMED = {"time": "time_", "stream": "stream_", "cut_bytes": "cut_bytes_"}
"""Fields that mean something else in a line."""


class TokenBucket:
    """A token bucket: `burst` at once, refilled at `per_s` a second."""

    def __init__(self, burst: float = BURST_LINES, per_s: float = LINES_PER_S) -> None:
        self._burst = burst
        self._per_s = per_s
        self._tokens = burst
        self._at_s: float | None = None

    def take(self, now_s: float) -> bool:
        """Returns whether one more may pass now."""
        if self._at_s is not None:
            self._tokens = min(self._burst, self._tokens + max(0.0, now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class WorkerLog:
    """The log of one worker process in one run. Lines may come from any thread; they are published by one."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        output: str,
        run_id: str,
        clock: Clock,
        hide: Callable[[str], str],
        *,
        background: bool = True,
    ) -> None:
        """`open_store` is called when there is something to publish.

        Without `background` nothing is published but by `flush` and `publish_due`.
        """
        self.failures = 0
        """Times that the store did not take a segment."""
        self._open_store = open_store
        self._store: Store | None = None
        self._output = output
        self._run_id = run_id
        self._clock = clock
        # What the job says is secret, and what looks like it.
        self._hide_own = hide
        self._background = background
        self._pid = os.getpid()
        self._worker = f"{socket.gethostname()}-{self._pid}"
        self._shard, self._attempt = "", 0
        self._active = False
        self._stdout, self._stderr = _Tee(self, "stdout"), _Tee(self, "stderr")
        self._budget = TokenBucket()
        # Guarded by `_changed`, whose lock one thread may take twice: a signal handler may log while a line is added.
        self._changed = threading.Condition(threading.RLock())
        self._lines = bytearray()
        self._left_out = 0
        self._first_s = 0.0
        """When the first of the lines that wait was added."""
        self._flushing = False
        self._thread: threading.Thread | None = None
        # Of whoever publishes.
        self._publishing = threading.Lock()
        self._sealed: bytes | None = None
        self._tries = 0
        self._retry_s = 0.0
        self._segments = 0

    @contextmanager
    def shard(self, shard: str, attempt: int, timeout_s: float | None = None) -> Iterator[None]:
        """Listens to events and prints within a block, which works on one attempt at a shard.

        With `timeout_s`, after which the worker will be killed, the stack of this thread is logged a little before.
        """
        self._shard, self._attempt, self._active = shard, attempt, True
        out, err = self._stdout.over(sys.stdout), self._stderr.over(sys.stderr)
        # The same two objects every time: handlers that `setup` makes keep the one that they found.
        sys.stdout = self._stdout if out is not None else out
        sys.stderr = self._stderr if err is not None else err
        log.listen(self._event)
        alarm = None if timeout_s is None else self._alarm(timeout_s)
        try:
            yield
        finally:
            log.stop_listening(self._event)
            if alarm is not None:
                alarm.cancel()
            # Unless user code has put something else there, for itself or for good.
            sys.stdout = _at_work(out) if sys.stdout is self._stdout else sys.stdout
            sys.stderr = _at_work(err) if sys.stderr is self._stderr else sys.stderr
            self._stdout.end()
            self._stderr.end()
            self._active = False

    def say(
        self,
        level: str,
        event: str,
        stream: str,
        fields: Mapping[str, Any],
        *,
        limited: bool = True,
        shard: str | None = None,
    ) -> None:
        """Adds a line; one that is over the budget is counted instead. Never waits for the store, never raises.

        `stream` is stdout, stderr, log (an event), or curate (what the log itself has to say); `shard` is that at hand,
        unless given.
        """
        if os.getpid() != self._pid:
            return  # a child that user code forked: the thread that publishes is not there
        now_s = self._clock.monotonic()
        with self._changed:
            if limited and (len(self._lines) >= WAITING_BYTES or not self._budget.take(now_s)):
                self._left_out += 1
                return
            if not self._lines:
                self._first_s = now_s
            self._lines += self._encoded(level, event, stream, fields, self._shard if shard is None else shard)
            if self._background:
                self._wake()

    def flush(self) -> None:
        """Publishes what waits; goes on after 10 s if the store has not answered. Costs nothing if nothing was said."""
        if not (self._lines or self._left_out or self._sealed) or os.getpid() != self._pid:
            return
        if not self._background:
            self._publish()
            return
        with self._changed:
            self._flushing = True
            self._wake()
            self._changed.wait_for(lambda: not self._flushing, FLUSH_S)

    def publish_due(self) -> None:
        """Publishes what waits if its time has come."""
        if self._due_s() <= self._clock.monotonic():
            self._publish()

    # Where lines come from

    def _event(self, event: Mapping[str, Any]) -> None:
        fields = {_RENAMED.get(name, name): value for name, value in event.items() if name not in _KNOWN}
        # A shard that a thread publishes is not the one at hand.
        shard = log.bound_now().get("shard")
        self.say(str(event.get("level", "info")), str(event.get("event", "")), "log", fields, shard=shard)

    def _printed(self, stream: str, line: str) -> None:
        if self._active:
            self.say("info", line, stream, {})

    def _alarm(self, timeout_s: float) -> threading.Timer:
        before_s = timeout_s - min(5.0, timeout_s / 4)
        wait_s = min(before_s, threading.TIMEOUT_MAX)  # a thread that is to wait longer raises
        alarm = threading.Timer(wait_s, self._tell_stack, [threading.get_ident(), before_s, timeout_s])
        alarm.daemon = True
        alarm.start()
        return alarm

    def _tell_stack(self, thread: int, after_s: float, timeout_s: float) -> None:
        frame = sys._current_frames().get(thread)
        if frame is None:
            return
        said = f"still running after {format_duration(after_s)}; task_timeout_s is {format_duration(timeout_s)}"
        stack = "".join(traceback.format_stack(frame))
        self.say("warning", said, "curate", {"stack": stack}, limited=False)
        with self._changed:
            # Nobody waits for it; but there are seconds left.
            self._flushing = True
            self._changed.notify_all()

    def _encoded(self, level: str, event: str, stream: str, fields: Mapping[str, Any], shard: str) -> bytes:
        said = printable(self._hide(event))
        own = {
            "time": round(self._clock.now(), 3),
            "level": level,
            "event": said,
            "shard": shard,
            "attempt": self._attempt,
            "stream": stream,
        }
        shown = {printable(self._hide(str(name))): self._shown(value) for name, value in fields.items()}
        line = orjson.dumps(own | shown, option=orjson.OPT_APPEND_NEWLINE)
        if len(line) <= LINE_BYTES:
            return line
        # An event says at its beginning what it is, a stack or a traceback at its end.
        half = LINE_BYTES // 2
        own["event"] = said.encode()[:half].decode(errors="ignore")
        ends = {
            name: shown[name].encode()[-half:].decode(errors="ignore")
            for name in ("stack", "exception")
            if name in shown
        }
        return orjson.dumps(own | ends | {"cut_bytes": len(line)}, option=orjson.OPT_APPEND_NEWLINE)

    def _hide(self, text: str) -> str:
        return log.redacted(self._hide_own(text))

    def _shown(self, value: Any) -> Any:
        """Returns a value as it is if JSON has it and it holds no secret, else as text."""
        if isinstance(value, str):
            return printable(self._hide(value))
        try:
            shown = repr(value)
        except Exception:  # noqa: BLE001 - the value is user code; a line of the log fails no shard
            return f"<a {type(value).__name__} that cannot be shown>"
        if self._hide(shown) == shown:
            with suppress(TypeError):
                return orjson.Fragment(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY))
        return printable(self._hide(shown))

    # Where they go

    def _wake(self) -> None:
        """Makes sure that there is a thread, and that it looks. The caller holds the lock."""
        if self._thread is None:
            # A daemon: a store that does not answer keeps no worker from ending.
            self._thread = threading.Thread(target=self._publish_while_waiting, name="curate-log", daemon=True)
            self._thread.start()
        elif self._flushing or len(self._lines) >= PUBLISH_BYTES:
            self._changed.notify_all()

    def _publish_while_waiting(self) -> None:
        while True:
            with self._changed:
                while (wait_s := self._due_s() - self._clock.monotonic()) > 0:
                    if wait_s == float("inf"):
                        # Nothing waits. The next line starts another thread.
                        self._thread = None
                        self._flushing = False
                        self._changed.notify_all()
                        return
                    self._changed.wait(wait_s)
            self._publish()
            with self._changed:
                self._flushing = False
                self._changed.notify_all()

    def _due_s(self) -> float:
        """Returns when to publish next: infinity if nothing waits."""
        with self._changed:
            if self._sealed is not None:
                return 0.0 if self._flushing else self._retry_s
            if not (self._lines or self._left_out):
                return float("inf")
            return 0.0 if self._flushing or len(self._lines) >= PUBLISH_BYTES else self._first_s + PUBLISH_S

    def _publish(self) -> None:
        """Publishes what waits. What fails is kept, and tried again in a while."""
        with self._publishing:
            # First what could not be published before. Not more often: who goes on talking waits for the next time.
            for _ in range(2):
                self._sealed = self._sealed or self._seal()
                if self._sealed is None or not self._published(self._sealed):
                    return
                self._sealed, self._tries = None, 0

    def _published(self, segment: bytes) -> bool:
        """Publishes a segment; returns whether it is done with: published, or given up."""
        try:
            self._write(segment)
        except Exception as error:  # noqa: BLE001 - the log is no part of the truth; nothing stops for it
            self.failures += 1
            self._tries += 1
            self._retry_s = self._clock.monotonic() + PUBLISH_S
            given_up = self._tries >= MOST_TRIES
            log.get_logger(run=self._run_id).warning(
                "the log of this worker could not be published" + (" and is lost" if given_up else ""),
                error=str(error),
                failures=self.failures,
            )
            return given_up
        return True

    def _seal(self) -> bytes | None:
        with self._changed:
            if self._left_out:
                said = (
                    f"{self._left_out:,} lines are left out here: a worker may log {BURST_LINES:,} at once, and "
                    f"{LINES_PER_S:.0f} per second"
                )
                self._lines += self._encoded("warning", said, "curate", {"left_out": self._left_out}, self._shard)
                self._left_out = 0
            if not self._lines:
                return None
            data = bytes(self._lines)
            self._lines.clear()
        return compress(data)

    def _write(self, data: bytes) -> None:
        if self._store is None:
            self._store = self._open_store()
        outcome = Outcome.DIFFERENT
        # A process of an earlier worker may have had this number, and a machine of another cluster this name.
        while outcome is Outcome.DIFFERENT:
            self._segments += 1
            name = layout.log_segment(self._run_id, self._worker, self._segments)
            try:
                outcome = self._store.publish(f"{self._output}/{name}", data).outcome
            except BaseException:
                # The next try is the same bytes under the same name, whether or not these arrived.
                self._segments -= 1
                raise


class _Tee:
    """Stands in for standard output or standard error: passes on what is printed, and tells the log line by line."""

    def __init__(self, owner: WorkerLog, stream: str) -> None:
        self.beneath: Any = None
        """What it stands in for."""
        self._owner = owner
        self._stream = stream
        self._line = ""
        """What was printed of a line so far."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)

    def over(self, stream: Any) -> Any:
        """Stands in for a stream from now on, and returns it. Where that stands in for this one, as of two runs in
        threads of one process each may put back what the other one had there, all stays as it is."""
        found = stream
        while isinstance(found, _Tee):
            if found is self:
                return self.beneath
            found = found.beneath
        self.beneath = stream
        return stream

    def write(self, text: str) -> int:
        """Writes what it is given."""
        written: int = self.beneath.write(text)
        *lines, rest = f"{self._line}{text}".split("\n")
        # Twice what of a line is shown, so that no secret is cut in two there and shown in part.
        self._line = _redrawn(rest)[:_UNFINISHED_CHARS]
        for line in lines:
            self._tell(line)
        return written

    def writelines(self, lines: Any) -> None:
        """Writes what it is given."""
        for line in lines:
            self.write(line)

    def end(self) -> None:
        """Tells of a line that has no end."""
        if self._line:
            line, self._line = self._line, ""
            self._tell(line)

    def _tell(self, line: str) -> None:
        if line := _redrawn(line).rstrip("\r"):
            self._owner._printed(self._stream, line)


def _at_work(stream: Any) -> Any:
    """Returns a stream, or what it stands in for where that is for nothing any more."""
    while isinstance(stream, _Tee) and not stream._owner._active:
        stream = stream.beneath
    return stream


def _redrawn(line: str) -> str:
    """Returns what a terminal shows of a line: a progress bar returns to its start, and what stood there is gone.

    >>> _redrawn("10 %\\r20 %\\r")
    '20 %\\r'
    """
    return line[:-1].rpartition("\r")[2] + line[-1:]
