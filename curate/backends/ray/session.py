"""This process's connection to Ray: made by the first run that needs it, kept for later ones until the process ends.

Starting Ray takes seconds. So whatever runs in one process, jobs, writes and consumers one after the other or side by
side, shares one Ray. What a run made there, it releases itself.

A Ray that the program has initialised is joined as it is, and never shut down. One that was made here is made anew when
nobody uses it and it would not do any more: its processes died, or the workers would not find what they would have
found in a new one (folders of modules, the environment, the working directory).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray import exceptions as ray_errors
from ray.job_config import JobConfig

from curate.backends.ray.cluster import cluster_address, first_line, hush, made_by_this_process, node_here
from curate.backends.ray.find import answers
from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.log import ensure_configured, get_logger
from curate.runtime import shipping
from curate.runtime.interrupts import end_process, uninterrupted

SETTINGS = {"RAY_free_objects_period_milliseconds": "50"}
"""By itself Ray frees blocks that were consumed once a second: at a gigabyte a second, twice a budget of 512 MiB."""
_TOO_SLOW = "timed out during startup"
"""In what Ray says where its processes took longer than 30 s, as on a machine with much else to do."""
_AUTH_LOGGER = "ray._private.authentication.authentication_token_setup"
_VITAL = frozenset({"raylet", "gcs_server"})
"""Processes without which there is no cluster."""


@dataclass(frozen=True, slots=True)
class _Setting:
    """What workers get from the process that connects."""

    folders: tuple[str, ...]
    address: str
    folder: str = ""
    environ: Mapping[str, str] | None = None
    """None: workers get theirs from elsewhere, as of a cluster that was joined."""

    @classmethod
    def now(cls, *, made: bool) -> _Setting:
        """Returns it as it is now; `made`: for a cluster that this process makes."""
        folders, address = tuple(shipping.FOLDERS), os.environ.get("RAY_ADDRESS", "")
        if not made:
            return cls(folders, address)
        with contextlib.suppress(FileNotFoundError):
            return cls(folders, address, os.getcwd(), shipping.environ())  # noqa: PTH109
        return cls(folders, address)

    def changed(self, since: _Setting) -> str:
        """Returns what is another than it was, in words; empty if nothing is."""
        if self.folders != since.folders:
            return "the job's code is in another folder"
        if self.address != since.address:
            return "RAY_ADDRESS has changed"
        if self.folder != since.folder:
            return "the working directory has changed"
        mine, others = self.environ or {}, since.environ or {}
        # Names alone: values may be secrets.
        names = sorted(name for name in {*mine, *others} if mine.get(name) != others.get(name))
        return f"environment variables have changed: {', '.join(names[:5])}" if names else ""


class Session:
    """A connection that was made here."""

    def __init__(self, setting: _Setting, unhush: Callable[[], None]) -> None:
        self.users = 0
        self._setting = setting
        self._unhush = unhush
        self._node = node_here()

    def lasts(self) -> bool:
        """Returns whether this process is still connected by it: the program may have shut Ray down."""
        return ray.is_initialized() and node_here() is self._node

    def outdated(self) -> str:
        """Returns why it will not do for a run that begins now, empty if it will."""
        return _broken() or ("" if self.users else _Setting.now(made=made_by_this_process()).changed(self._setting))

    def end(self) -> None:
        """Disconnects, and so ends a cluster that was made for this process."""
        if self.lasts():
            ray.shutdown()
        # Last, because Ray says goodbye.
        self._unhush()


_lock = threading.RLock()
_session: Session | None = None
_forked = False
"""Whether this process is a copy of one that had a session: Ray's threads are not in it."""


def join() -> tuple[Session | None, float]:
    """Connects to Ray unless this process is connected. Returns the session that is used from now on, None if it is the
    program's own, and the seconds that this took.

    Raises ConfigError if no cluster answers where one is said to be, and if Ray cannot be started.
    """
    global _session
    began_s = time.monotonic()
    if _forked:
        raise ConfigError(
            "this process was forked from one that runs tasks on Ray, and Ray does not work after a fork; start "
            "processes "
            'with "spawn" (multiprocessing.set_start_method), or use backend="inline" in this one'
        )
    with _lock, uninterrupted("interrupted: this process ends as soon as Ray has started"):
        if _session is not None and not _session.lasts():
            leave_for_good()
        if _session is None and ray.is_initialized():
            if broken := _broken():
                raise ConfigError(
                    f"{broken}, and this program connected to it with ray.init: call ray.shutdown(), then ray.init() "
                    "again or let curate connect"
                )
            return None, 0.0
        if _session is not None and (why := _session.outdated()):
            get_logger().warning("Ray restarts for this process", reason=why)
            leave_for_good()
        new = _session is None
        if _session is None:
            _session = _connected()
        _session.users += 1
        return _session, time.monotonic() - began_s if new else 0.0


def leave(session: Session) -> None:
    """Ends a use of the session, which is kept."""
    with _lock:
        session.users -= 1


def leave_for_good() -> None:
    """Disconnects from Ray if this process was connected by `join`; the next `join` does so again."""
    global _session
    with _lock:
        session, _session = _session, None
        if session is not None:
            session.end()


def _connected() -> Session:
    address = cluster_address()
    ensure_configured()
    log = get_logger()
    if address is None:
        log.info("starting Ray on this machine")
    else:
        log.info("joining the Ray cluster", address=address)
    # Ray says in two lines that it asks for a token, which is safe and is its default for a cluster of its own.
    authentication = logging.getLogger(_AUTH_LOGGER)
    level = authentication.level
    authentication.setLevel(logging.ERROR)
    # Where the processes of a cluster that is made here look for them.
    added = {name: os.environ.setdefault(name, value) for name, value in SETTINGS.items() if name not in os.environ}
    began_s, on_terminate = time.monotonic(), signal.getsignal(signal.SIGTERM)
    try:
        if (error := _init(address)) is not None and _TOO_SLOW in str(error):
            log.warning("Ray's processes did not start in time; trying once more", error=first_line(error))
            error = _init(address)
        if error is not None:
            raise _refused(address, error) from error
    finally:
        authentication.setLevel(level)
        for name in added:
            del os.environ[name]
        _give_back(on_terminate)
    log.info("Ray is ready", seconds=round(time.monotonic() - began_s, 1))
    # Runs before Ray's own, which was registered when Ray was imported.
    atexit.unregister(_farewell)
    atexit.register(_farewell)
    return Session(_Setting.now(made=address is None), hush())


def _init(address: str | None) -> Exception | None:
    """Connects to Ray, which it starts if there is no address; returns why that failed."""
    try:
        # What workers print stays in Ray's own log files: a million tasks must not talk through one driver.
        ray.init(
            address or "local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level="warning",
            configure_logging=False,
            # As if a job's file were the program: what it imports from beside it, workers find too.
            job_config=JobConfig(_py_driver_sys_path=list(shipping.FOLDERS)) if shipping.FOLDERS else None,
        )
    except Exception as error:  # noqa: BLE001 - returned
        # What had been started is in the way of another try.
        with contextlib.suppress(Exception):
            ray.shutdown()
        return error
    return None


def _give_back(on_terminate: Any) -> None:
    """Gives SIGTERM back to whom it belonged, of this program; Ray took it. Where nobody did, Ray's ends in order."""
    if threading.current_thread() is threading.main_thread() and callable(on_terminate):
        signal.signal(signal.SIGTERM, on_terminate)


def _refused(address: str | None, error: Exception) -> ConfigError:
    """Returns what is said of a start that failed, in a line, with what helps."""
    if address is not None:
        if "Version mismatch" in str(error):
            return ConfigError(
                f"cannot join the Ray cluster at {address}: {' '.join(str(error).split())}; run the driver with the "
                "cluster's versions of Ray and Python, for example on its head (ray job submit)"
            )
        helps = (
            "use the token of the cluster, or the same RAY_AUTH_MODE on both sides"
            if isinstance(error, ray_errors.AuthenticationError)
            else "check it with ray status, or set RAY_ADDRESS=local to use this machine only"
        )
        return ConfigError(f"cannot join the Ray cluster at {address}: {first_line(error)}; {helps}")
    text = str(error)
    if "AF_UNIX" in text or "too long" in text:
        helps = "the path of its sockets is too long: set RAY_TMPDIR to a short path, for example /tmp/ray"
    elif isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
        helps = "set RAY_TMPDIR to a folder that you own and that has free space"
    elif "shm" in text or "object store" in text.lower() or isinstance(error, ValueError | MemoryError):
        helps = "it needs shared memory: enlarge /dev/shm, or set RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE=1"
    else:
        folder = os.environ.get("RAY_TMPDIR", "/tmp")
        helps = f"free memory and disk space; its logs are in {folder}/ray/session_latest/logs"
    return ConfigError(f'cannot start Ray on this machine: {first_line(error)}; {helps}; or run with backend "local"')


def _broken() -> str:
    """Returns what is wrong with the cluster that this process is connected to, empty if it is there."""
    node = node_here()
    if node is None:
        return ""
    died = sorted({name for name, _ in node.dead_processes()} & _VITAL) if node.is_head() else []
    address = str(node.gcs_address)
    if died:
        return f"processes of Ray died ({', '.join(died)})"
    if (error := answers(address)) is not None:
        return f"the cluster no longer answers at {address} ({error})"
    return ""


def _farewell() -> None:
    """Ends the session with the process."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                # All is done but that: an exception in the middle of it would be a traceback from the depths of Ray.
                signal.signal(number, _leave)
    leave_for_good()


def _leave(number: int, _frame: Any) -> None:
    end_process(128 + number)


def _after_fork() -> None:
    """Makes a copy of this process leave alone what is not its own: Ray would end the cluster when the copy ends."""
    global _session, _forked, _lock
    _lock = threading.RLock()
    if _session is None:
        return
    # Never freed here: it may be the last that holds a client of Ray, whose end waits for a thread that only the copied
    # process has. So a process that Ray starts, by way of a copy of this one, could wait for ever.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_session))
    _session, _forked = None, True
    atexit.unregister(_farewell)
    atexit.unregister(ray.shutdown)
    if (node := node_here()) is not None:
        node.all_processes = {}


os.register_at_fork(after_in_child=_after_fork)
