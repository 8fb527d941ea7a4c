"""Restores the state of a worker process after user code, for the next shard or job that runs in it.

A function that closes standard output, changes to a folder that it removes, lowers a limit or sets an alarm would make
unrelated shards fail. So the state is restored after each shard, as far as possible. Changes of a job's `setup` stay,
and so do additions to the environment. A process that left so many files open
that hardly any can be opened is replaced.

A copy of the process (`os.fork`) that returns from user code would continue the work of the original. It is ended at
once, and the shard that made it fails with the reason.
"""

from __future__ import annotations

import contextlib
import errno
import locale
import os
import resource
import select
import signal
import sys
import threading

# `signal.getsignal` looks for a name of each handler, which takes ten times as long, and is asked after each shard.
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

from curate.imports import imported

STREAMS = (0, 1, 2)
LIMITS = tuple(
    getattr(resource, name)
    for name in ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NOFILE")
    if hasattr(resource, name)
)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD)
ENDS = "this actor ends: user code has changed what cannot be given back"
LEAST_LEFT = 64
"""Files that a process is to be able to open yet, for shards that are read and published at the same time."""
COPY_S = 0.2
"""How long it is waited whether a copy that was made comes back."""
COPIED = (
    "user code forked the process and the copy returned into curate, where it would repeat the work; end the copy with "
    "os._exit(), or use subprocess"
)


class CopyReturnedError(RuntimeError):
    """User code forked the process, and returned in the copy too."""


class _Copies:
    """Copies of this process, and whether one has come back."""

    def __init__(self) -> None:
        self.made = 0
        self._owner = 0
        """The process that goes on."""
        self._guards = 0
        self._pipe: tuple[int, int] | None = None
        os.register_at_fork(before=self._before)

    def _before(self) -> None:
        self.made += 1

    def watch(self) -> None:
        """Makes this process the one that goes on, and those that it makes until `unwatch` its copies."""
        if self._owner != os.getpid():
            # A copy that was made while nobody watched is a process like any other.
            self._owner, self._guards, self._pipe = os.getpid(), 0, os.pipe()
        self._guards += 1

    def unwatch(self) -> None:
        """Ends a `watch`."""
        self._guards -= 1

    def leave(self) -> None:
        """Ends this process if it is a copy of the one that goes on; tells that one."""
        if self._guards and os.getpid() != self._owner:
            with contextlib.suppress(OSError):
                if self._pipe is not None:
                    os.write(self._pipe[1], b"x")
            os._exit(1)

    def returned(self, before: int) -> bool:
        """Returns whether a copy has come back, of those made since there were `before`."""
        if self.made == before or self._pipe is None:
            return False
        try:
            # Not by `select`, which has room for files below 1024 only.
            asked = select.poll()
            asked.register(self._pipe[0], select.POLLIN)
            if not asked.poll(COPY_S * 1000):
                return False
            os.read(self._pipe[0], 4096)
        except (OSError, ValueError):
            # User code has closed it.
            self._pipe = None
            return False
        return True


_copies = _Copies()
_Streams = dict[int, tuple[int, tuple[int, int]]]
"""A copy of each standard stream, and which file it is."""
_streams: _Streams = {}
"""Those of the last `SavedProcess` of its kind."""
_spoilt: list[str] = []
"""What could not be given back."""


class SavedProcess:
    """The process as it is now. Made once and used for many shards: it costs as much as publishing a small file."""

    def __init__(self, streams: _Streams | None = None) -> None:
        """`streams` keeps its copies of the standard streams; None: those that all others keep."""
        self._streams = _streams if streams is None else streams
        self._main = threading.current_thread() is threading.main_thread()
        self._folder = _folder()
        self._umask = _umask()
        self._limits = [resource.getrlimit(limit) for limit in LIMITS]
        self._left = _files_left()
        self._handlers = [getsignal(number) for number in SIGNALS] if self._main else []
        self._alarm = signal.getitimer(signal.ITIMER_REAL)[0] > 0
        self._locale = locale.setlocale(locale.LC_ALL)
        self._printed = {
            number: name for number, name in ((1, "stdout"), (2, "stderr")) if getattr(sys, name) is not None
        }
        for number in STREAMS:
            _keep(number, self._streams)
        self._recursion = sys.getrecursionlimit()
        self._arithmetic = _arithmetic()
        self._environ, self._named = dict(os.environ), set(_variables())

    def give_back(self) -> list[str]:
        """Makes the process what it was; returns what was not."""
        changed = []
        for number in STREAMS:
            if _restored(number, self._streams):
                changed.append(f"file descriptor {number}")
        for number, name in self._printed.items():
            found = getattr(sys, name)
            if found is None or getattr(found, "closed", False):
                setattr(sys, name, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115
                changed.append(f"sys.{name}")
        if self._folder and _folder() != self._folder:
            changed.append("working directory")
            try:
                os.chdir(self._folder)
            except OSError as error:
                _spoilt.append(f"its working directory: {error}")
        # Set, and not only asked for: that takes two calls, and files that others make in between get the wrong mode.
        if (umask := os.umask(self._umask)) != self._umask:
            changed.append(f"umask ({umask:03o})")
        for limit, before in zip(LIMITS, self._limits, strict=True):
            if resource.getrlimit(limit) != before:
                changed.append("resource limits")
                try:
                    resource.setrlimit(limit, before)
                except (OSError, ValueError) as error:
                    _spoilt.append(f"a resource limit: {error}")
        if _files_left() < min(LEAST_LEFT, self._left // 4):
            # Shards that open none but their own would fail for it.
            changed.append("open files")
            spoil("its open files: it left so many that hardly any can be opened")
        if not self._alarm and signal.getitimer(signal.ITIMER_REAL)[0] > 0:
            signal.setitimer(signal.ITIMER_REAL, 0)
            changed.append("alarm")
        for number, handler in zip(SIGNALS, self._handlers, strict=False):
            if getsignal(number) is not handler and handler is not None:
                signal.signal(number, handler)
                changed.append(f"handler of {number.name}")
        if locale.setlocale(locale.LC_ALL) != self._locale:
            locale.setlocale(locale.LC_ALL, self._locale)
            changed.append("locale")
        if sys.getrecursionlimit() != self._recursion:
            sys.setrecursionlimit(self._recursion)
            changed.append("recursion limit")
        if (found := _arithmetic()) != self._arithmetic:
            _calculate(self._arithmetic)
            named = sorted(
                name for name in {*found, *self._arithmetic} if found.get(name) != self._arithmetic.get(name)
            )
            changed.append(f"how numbers are calculated ({', '.join(named)})")
        if not self._named <= _variables():
            os.environ.update({name: value for name, value in self._environ.items() if name not in os.environ})
            changed.append("environment variables")
        return changed


def _variables() -> AbstractSet[Any]:
    """Returns the names of the environment's variables, as it keeps them: to decode all takes as long as all else."""
    return getattr(os.environ, "_data", os.environ).keys()


class ProcessGuard:
    """Is around what runs user code."""

    def __init__(self, kept: SavedProcess | None = None, tell: Callable[[list[str]], None] = lambda _: None) -> None:
        """`kept`: what the process is to be again in the end; may be set later, None: as it is by then. `tell` is told
        what was changed, if anything was."""
        self.kept = kept
        self._tell = tell
        self.changed: list[str] = []
        """What user code had changed, in words."""
        self._copies = 0

    def check(self) -> None:
        """Ends this process if it is a copy. Raises CopyReturnedError if one has come back."""
        _copies.leave()
        if _copies.returned(self._copies):
            self._copies = _copies.made
            raise CopyReturnedError(COPIED)

    def __enter__(self) -> ProcessGuard:
        _copies.watch()
        self._copies = _copies.made
        return self

    def __exit__(self, *_: object) -> None:
        # Whatever it raised.
        _copies.leave()
        _copies.unwatch()
        if self.kept is not None:
            self.changed = self.kept.give_back()
            if self.changed:
                self._tell(self.changed)


class ProcessSpoiltError(Exception):
    """User code has changed what cannot be given back: nothing else is to run in this process."""


def spoil(why: str) -> None:
    """Takes note of what cannot be given back: nothing else is to run in this process."""
    if why not in _spoilt:
        _spoilt.append(why)


def spoilt() -> str:
    """Returns what user code has changed in this process that could not be given back, empty if there is nothing."""
    return "; ".join(_spoilt)


def leave_if_copy() -> None:
    """Ends this process if it is a copy that came back from user code, of one that is guarded."""
    _copies.leave()


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return ""


def _umask() -> int:
    # There is no call that only asks.
    found = os.umask(0o077)
    os.umask(found)
    return found


def _files_left() -> int:
    """Returns how many files this process can open; all that it may have, as long as these are hardly half of them."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    # To list them takes longer. Of what is left open, numbers are taken from below, with holes.
    if not _any_open(range(limit // 2, limit, max(1, limit // 8))):
        return limit
    try:
        return limit - len(os.listdir("/dev/fd"))  # noqa: PTH208
    except OSError as error:
        return 0 if error.errno == errno.EMFILE else limit


def _any_open(numbers: range) -> bool:
    """Returns whether any of these is an open file: all are asked for at once, where each would raise otherwise."""
    asked = select.poll()
    for number in numbers:
        asked.register(number, 0)
    return sum(found == select.POLLNVAL for _, found in asked.poll(0)) < len(numbers)


def _file(number: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _keep(number: int, streams: _Streams) -> None:
    """Keeps a copy of a standard stream, that of the file which it is now."""
    now = _file(number)
    copy, file = streams.get(number, (-1, None))
    if now is None or (now == file and _file(copy) == file):
        return
    if _file(copy) == file and file is not None:
        os.close(copy)
    import fcntl

    # Far from the numbers that are given next.
    streams[number] = (fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 100), now)


def _restored(number: int, streams: _Streams) -> bool:
    """Makes a standard stream the file that it was; returns whether it was another."""
    kept: Any = streams.get(number)
    if kept is None or _file(number) == kept[1] or _file(kept[0]) != kept[1]:
        return False
    os.dup2(kept[0], number)
    return True


# What decides what numbers come out


_DEFAULTS: dict[str, Any] = {
    "decimal": (28, "ROUND_HALF_EVEN", -999999, 999999, 1, 0),
    "numpy": {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"},
}
"""Of a library that is not imported yet: as it begins."""


def _arithmetic() -> dict[str, Any]:
    """Returns how libraries calculate now in this thread, of those that are imported."""
    found: dict[str, Any] = {}
    if (decimal := imported("decimal")) is not None:
        now = decimal.getcontext()
        found["decimal"] = (now.prec, now.rounding, now.Emin, now.Emax, now.capitals, now.clamp)
    if (numpy := imported("numpy")) is not None:
        found["numpy"] = numpy.geterr()
    return {name: how for name, how in found.items() if how != _DEFAULTS[name]}


def _calculate(wanted: dict[str, Any]) -> None:
    """Makes libraries calculate as they did."""
    if (decimal := imported("decimal")) is not None:
        now = decimal.getcontext()
        how = wanted.get("decimal", _DEFAULTS["decimal"])
        now.prec, now.rounding, now.Emin, now.Emax, now.capitals, now.clamp = how
    if (numpy := imported("numpy")) is not None:
        numpy.seterr(**wanted.get("numpy", _DEFAULTS["numpy"]))
