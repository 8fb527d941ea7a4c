"""The fork server: a process of one thread that has imported what tasks need, and forks workers that have it too.

    driver ──control──▶ attach a channel; import modules
       └───channel────▶ fork a worker, which talks to the driver through the socket that comes with that; kill one
                    ◀── how a worker ended

Nothing runs here but imports, so that what is forked has no lock that nobody holds any more, and no half of a thread:
`import_modules` says which threads an import has left behind, and a server with such threads is not used. Each backend
has a channel, whose workers end with it. The server ends with its channels, and when the driver is gone: all processes
that workers have started are killed before. A worker ends when its server does.

It also watches over memory, since it never waits for anybody. When the machine, or a control group, is nearly full, or
the workers hold more than they may, with all that they have started, the largest worker is killed: its end frees most,
and it is likely the one that grows. The youngest may be innocent.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from curate.around import contextmanager
from curate.dataclass import dataclass, field
from curate.imports import uncollected
from curate.local import machine, wire

COMMAND = struct.Struct("<cq")
"""What the driver says: what to do, and a number."""
ATTACH, IMPORT = b"A", b"I"
"""Over the control socket: take the channel that comes with this; import modules, whose names follow."""
FORK, KILL = b"F", b"K"
"""Over a channel: fork a worker of that number, for the socket that comes with this; kill that worker."""
LOOK_S = 0.2
"""How often it is looked whether the driver lives, and how full the memory is."""
FAMILY_S = 1.0
"""How often it is looked what workers have started: a file of each of their threads is read for that."""
FREED_S = 1.0
"""How long the memory of a worker that was killed may take to be free, before another one is killed."""
_PARENT_DEATH = 1
"""PR_SET_PDEATHSIG"""
SET_UP = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OPENBLAS_NUM_THREADS": "1",
    "MIMALLOC_PURGE_DELAY": "30000",
}
"""Keeps Arrow and numpy from starting threads when they are imported; and makes Arrow give back memory that it does not
need half a minute later (mimalloc: milliseconds), not one. Where CPUs are busy, a shard takes seconds, and the next one
would have the kernel clear all of its memory anew: a third of the faults of a sort, and a tenth of its CPU. With ten
seconds, so did the next run of the same process: of shuffles of 570 MB with 12 s between them, 38,000 faults and 1.5 s
in the kernel, now 19,000 and 0.8 s.

All else stays as Arrow has it. Tried with a shuffle of 300 MB of texts (user + system of all processes, medians of
interleaved runs, from 3.9 + 1.4 s as it is): no purge at all 3.8 + 1.4 s; jemalloc with huge pages 3.7 + 1.5 s; glibc's
allocator with huge pages 3.8 + 1.6 s; glibc's thresholds raised 3.9 + 1.1 s, within what runs differ by. Without huge
pages it is 4.0 + 1.0 s, on one virtual machine, perhaps for what its host does; a bare loop of the same calls gains
nothing from that (2.7 + 1.0 s, with them 2.5 + 1.0 s), and where pages are at hand, to touch 256 MiB takes the
kernel 0.03 s with huge pages and 0.13 s without."""


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """How a worker ended."""

    number: int
    status: int = 0
    """Exit status, negative for a signal."""
    peak_bytes: int = 0
    memory: str = ""
    """Why it was killed, if it was for memory."""
    lost: str = ""
    """What ended it that was not its own doing."""
    refused: str = ""
    """Why it could not be started."""


@dataclass(slots=True)
class _Worker:
    """A worker that was forked and is not known to have ended."""

    number: int
    channel: socket.socket
    peak_bytes: int = 0
    memory: str = ""
    killed: bool = False
    """Whether it ends, and what it holds is free soon."""


def serve(number: int, driver: int, folders: list[str]) -> NoReturn:
    """Does what it is told through the socket of that number; removes `folders` in the end."""

    def end() -> NoReturn:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    try:
        _Server(socket.socket(fileno=number), driver, end).run()
    finally:
        end()


@dataclass(slots=True)
class _Server:
    control: socket.socket
    driver: int
    end: Callable[[], NoReturn]
    workers: dict[int, _Worker] = field(default_factory=dict)
    """By their processes."""
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    looked_s: float = 0.0
    families: dict[int, list[int]] = field(default_factory=dict)
    """Workers and what they have started, as far as was seen."""
    counted_s: float = 0.0
    """When that was."""
    freed_s: float = 0.0
    """When the last worker that was killed for memory was gone."""

    def run(self) -> None:
        """Works until nobody needs it any more."""
        ends, wake = socket.socketpair()
        for one in (ends, wake):
            one.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self.selector.register(self.control, selectors.EVENT_READ)
        self.selector.register(ends, selectors.EVENT_READ)
        # The selector's map has the one that wakes it, too.
        while len(self.selector.get_map()) > 1 and os.getppid() == self.driver:
            for key, _ in self.selector.select(LOOK_S):
                if key.fileobj is ends:
                    with contextlib.suppress(BlockingIOError):
                        ends.recv(4096)
                elif not self._obey(key.fileobj):  # type: ignore[arg-type]
                    self._let_go(key.fileobj)  # type: ignore[arg-type]
            self._reap()
            self._look()
        self._kill_all()

    def _kill_all(self) -> None:
        for pid in self.workers:
            kill_group(pid)

    def _obey(self, link: socket.socket) -> bool:
        """Does what it is told; returns False if nobody tells anything any more."""
        try:
            data, sockets, *_ = socket.recv_fds(link, COMMAND.size, 1, socket.MSG_WAITALL)
        except ConnectionError:
            return False
        if len(data) < COMMAND.size:
            return False
        what, number = COMMAND.unpack(data)
        if what == ATTACH:
            self.selector.register(socket.socket(fileno=sockets[0]), selectors.EVENT_READ)
        elif what == IMPORT:
            names = json.loads(_received(link, number))
            with self._ends_with_driver():
                found = import_modules(names)
            wire.send(link, found)
        elif what == FORK:
            self._fork(link, number, sockets[0])
        else:
            for pid, worker in self.workers.items():
                if worker.number == number and worker.channel is link:
                    worker.killed = True
                    kill_group(pid)
        return True

    @contextmanager
    def _ends_with_driver(self) -> Iterator[None]:
        """Is around what takes seconds, in which the driver may be killed: nobody looks at sockets meanwhile."""

        def look(*_: Any) -> None:
            if os.getppid() != self.driver:
                self._kill_all()
                self.end()

        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _let_go(self, link: socket.socket) -> None:
        """Forgets a channel, and kills its workers."""
        self.selector.unregister(link)
        link.close()
        for pid, worker in self.workers.items():
            if worker.channel is link:
                worker.killed = True
                kill_group(pid)

    def _fork(self, channel: socket.socket, number: int, link: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            _tell(channel, WorkerEnd(number, refused=f"this machine started no further process: {error}"))
            os.close(link)
            return
        if pid == 0:
            self._become_worker(link)
        # Here too: it may have to be killed before it has come to make the group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)
        os.close(link)
        self.workers[pid] = _Worker(number, channel)

    def _become_worker(self, link: int) -> NoReturn:
        """Is the worker. Never returns to what the server was doing."""
        try:
            os.setpgid(0, 0)
            server = os.getppid()
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for key in list(self.selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]
            self.selector.close()
            # The server may have died before that was asked for.
            if os.getppid() == server:
                from curate.local.worker import work

                work(socket.socket(fileno=link), server)
        except BaseException:  # noqa: BLE001 - nothing is above it: told as the interpreter would tell it
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)

    def _reap(self) -> None:
        while self.workers:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            # What it has started ends with it.
            kill_group(pid)
            worker = self.workers.pop(pid, None)
            if worker is None:
                continue
            if worker.memory:
                self.freed_s = time.monotonic()
            peak_bytes = worker.peak_bytes or usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            end = WorkerEnd(worker.number, os.waitstatus_to_exitcode(status), peak_bytes, worker.memory)
            _tell(worker.channel, end)

    def _look(self) -> None:
        """Kills the largest worker where memory runs out, and no other before what that held is free."""
        now_s = time.monotonic()
        if now_s - self.looked_s < LOOK_S or not self.workers:
            return
        self.looked_s = now_s
        if now_s - self.counted_s >= FAMILY_S:
            self.counted_s, self.families = now_s, {pid: machine.family(pid) for pid in self.workers}
        families = {pid: self.families.get(pid, [pid]) for pid in self.workers}
        held = {pid: sum(map(machine.most_bytes, family)) for pid, family in families.items()}
        limit, (used, there) = machine.memory_limit(), machine.fullest()
        if sum(held.values()) > limit or used > machine.FULL * there:
            # Exactly: what this process has imported, all share.
            held = {pid: sum(map(machine.held_bytes, family)) for pid, family in families.items()}
        for pid, size in held.items():
            self.workers[pid].peak_bytes = max(self.workers[pid].peak_bytes, size)
        if any(worker.killed for worker in self.workers.values()) or now_s - self.freed_s < FREED_S:
            return
        total = sum(held.values())
        if total > limit or used > machine.FULL * there:
            pid = max(held, key=lambda one: held[one])
            self.workers[pid].killed = True
            self.workers[pid].memory = (
                f"the workers of this machine held {total:,} of {limit:,} bytes; {used:,} of {there:,} bytes of memory "
                "were in use"
            )
            kill_group(pid)


def import_modules(names: list[str]) -> list[str]:
    """Imports modules, as far as that works; returns the threads that this process has beside the one that runs."""
    before = dict(os.environ)
    for name, value in SET_UP.items():
        os.environ.setdefault(name, value)
    if "pyarrow" in names:
        from curate.late_pandas import import_pandas_late

        import_pandas_late()
    with uncollected():
        for name in names:
            # A worker that needs it raises what it raises.
            with contextlib.suppress(BaseException):
                importlib.import_module(name)
    for name in SET_UP:
        if name not in before:
            os.environ.pop(name, None)
    # So that workers share its pages, nothing of it is looked at again. Nor before that: of 60,000 objects, 2,000 are
    # garbage.
    gc.freeze()
    return sorted(_threads())


def kill_group(pid: int) -> None:
    """Kills a worker and all that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _threads() -> Iterator[str]:
    """Yields the names of the other threads of this process."""
    names = {one.native_id: one.name for one in threading.enumerate() if one is not threading.main_thread()}
    # Those of C code too, where that can be seen.
    for task in Path("/proc/self/task").glob("*"):
        number = int(task.name)
        if number != os.getpid() and number not in names:
            with contextlib.suppress(OSError):
                names[number] = (task / "comm").read_text().strip()
    yield from names.values()


def _tell(channel: socket.socket, end: WorkerEnd) -> None:
    # Whoever has gone wants to know nothing.
    with contextlib.suppress(OSError):
        wire.send(channel, end)


def _received(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := link.recv(size - len(data))):
        data += more
    return data
