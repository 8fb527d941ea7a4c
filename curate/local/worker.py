"""A worker of the local backend: a process that runs the tasks of a program one by one, and then those of the next.

driver ──▶ WorkerSetup, then for each task: Work; Take, for a block that it offers. Rest, between programs
       ◀── Hello, then Said and Offer for what the task yields, then Over; Imported, in its first task. Hello, to Rest
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import math
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

from curate.dataclass import dataclass
from curate.imports import imported
from curate.local import actor, blocks, machine, wire
from curate.local.calls import CalledPool
from curate.runtime.protocol import PoolUser, Program, TaskEnd, TaskFinished
from curate.runtime.worker import guarded, in_batches, traced_end

WATCH_S = 0.5
"""How often a worker sees whether its server lives, where the kernel does not end it with that."""
IDLE_S = 30.0
"""How long a worker has nothing to do before it gives back memory: as long as Arrow keeps what a shard left."""


@dataclass(frozen=True, slots=True)
class PoolAddress:
    """Where a pool is found."""

    name: str
    """What it is called in messages."""
    board: str
    """The file that says who is in it."""


@dataclass(frozen=True, slots=True)
class ActorPlace:
    """Where an actor takes calls."""

    path: str
    """Of its socket."""
    program: str
    """File with the pickled program of the pool."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a worker imports before it has a task, since another one had to."""

    modules: tuple[str, ...]
    finds: Any
    """What decides which modules these names mean, and what these read: as it was when they were imported."""


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker needs, before its first task."""

    log: str
    """File for what is printed, by C code too."""
    folders: tuple[str, ...]
    """Where its blocks go: the first of them with room."""
    environ: dict[str, str]
    """Variables that it has beside those of the server."""
    pools: tuple[PoolAddress, ...] = ()
    """Those that its program calls."""
    actor: ActorPlace | None = None
    """What makes it an actor."""
    ahead: Ahead | None = None
    """What it imports before it says Hello."""


@dataclass(frozen=True, slots=True)
class Work:
    """A task to run."""

    task: int
    payload: bytes
    interval_s: float
    """How long messages may wait for one another."""
    share: int
    """Bytes of memory that it may hold."""
    stream: bool = False
    program: str = ""
    """File with its pickled program: known when the task is begun, as the fork server may be another one by then."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing more of a program comes: all that the worker has of it is to go. It says Hello, or ends, if something
    that user code has changed cannot go."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The worker is there, and new to whatever it is told."""

    pid: int
    rested: bool = False
    """Whether this answers a Rest."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the task said since the last message."""

    items: list[Any]


@dataclass(frozen=True, slots=True)
class Offer:
    """A block that the task made; it stands still until a Take comes."""

    block: blocks.StoredBlock


@dataclass(frozen=True, slots=True)
class Imported:
    """What the worker's first task has imported, the program with it."""

    count: int
    """Modules since the last message of this kind."""
    seconds: float
    """Since then, or since the task began."""
    ahead: Ahead
    """All of them."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Whether the task does nothing but wait for an actor, from now on."""

    waits: bool


@dataclass(frozen=True, slots=True)
class Take:
    """The block was taken."""


@dataclass(frozen=True, slots=True)
class Over:
    """The task is over."""

    end: TaskFinished
    retires: bool
    """Whether the worker ends too, since nothing else is to run in it."""


def work(link: socket.socket, server: int) -> None:
    """Is the worker: returns when it is not needed any more."""
    if sys.platform != "linux":
        threading.Thread(target=_watch, args=(server,), daemon=True).start()
    setup: WorkerSetup = wire.receive(link)
    _print_to(setup.log)
    os.environ.update(setup.environ)
    if setup.ahead is not None and not _imports(setup.ahead, setup.environ):
        return
    wire.send(link, Hello(os.getpid()))
    if (random := imported("numpy.random")) is not None:
        # What was forked would draw the same numbers everywhere.
        random.seed()
    if setup.actor is not None:
        actor.serve(link, setup.actor.program, setup.actor.path)
        return
    worker = _Worker(link, setup)
    try:
        while not worker.retires:
            match _next_order(link):
                case Work() as order:
                    worker.run(order)
                case Rest():
                    worker.rest()
    except EOFError:
        return


def _next_order(link: socket.socket) -> Work | Rest:
    """Waits for what is to be done. When none has come for a while, gives back the memory that Arrow keeps for one."""
    ready = select.poll()
    ready.register(link, select.POLLIN)
    if not ready.poll(IDLE_S * 1000) and (arrow := imported("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    order: Work | Rest = wire.receive(link)
    return order


class _Worker:
    """What runs tasks."""

    def __init__(self, link: socket.socket, setup: WorkerSetup) -> None:
        self.retires = False
        self._link = link
        self._setup = setup
        self._program: Program | None = None
        self._begins = _finds(setup.environ)
        self._pools = [CalledPool(one.name, one.board, self._tell_waits) for one in setup.pools]
        self._blocks = 0
        """Blocks that were stored."""
        self._imported_since = _Imported(setup.environ)
        self._imported: _Imported | None = self._imported_since
        """None once its first task is over."""

    def run(self, work: Work) -> None:
        """Runs a task, and says what becomes of it."""
        said: list[Any] = []
        try:
            if work.stream:
                self._stream(work)
            else:
                for batch in in_batches(self._items(work), work.interval_s):
                    said.append(Said(batch))
                    if work.interval_s < math.inf:
                        self._tell(*said)
                        said.clear()
                        _keep_within(work.share)
            end = TaskFinished(work.task, TaskEnd.RETURNED)
        except BaseException as error:  # noqa: BLE001 - what would end the process is told like all else
            end = traced_end(work.task, error)
            self.retires = self.retires or not isinstance(error, Exception)
        if self._imported is not None:
            said.append(self._imported.message())
            self._imported = None
        _keep_within(work.share)
        self._tell(*said, Over(end, self.retires))

    def _items(self, work: Work) -> Iterator[Any]:
        new = self._program is None
        if self._program is None:
            program = cast(Program, pickle.loads(Path(work.program).read_bytes()))
            if self._pools:
                cast(PoolUser, program).connect(self._pools)
            self._program = program
        for pool in self._pools:
            pool.task = work.task
        for item in guarded(self._program, pickle.loads(work.payload), new=new, retire=self._retire):
            if new and self._imported is not None:
                # What the task says first, it says when it is set up.
                self._tell(self._imported.message())
                new = False
            yield item

    def rest(self) -> None:
        """Forgets the program, and says so; ends if that has changed what other programs would find."""
        if self._program is not None:
            self._program = None
            # What it had loaded may be in circles.
            gc.collect()
            # What it had printed says nothing of what comes.
            with contextlib.suppress(OSError):
                os.ftruncate(1, 0)
        self.retires = _finds(self._setup.environ) != self._begins or self._imported_since.outdated()
        if not self.retires:
            self._imported = _Imported(self._setup.environ)
            self._tell(Hello(os.getpid(), rested=True))

    def _stream(self, work: Work) -> None:
        """Runs a task whose blocks are offered one at a time."""
        for item in self._items(work):
            if not hasattr(item, "nbytes"):
                self._tell(Said([item]))
                continue
            self._blocks += 1
            offer = Offer(blocks.store(item, self._setup.folders, f"{os.getpid()}-{self._blocks}"))
            # What is stored is not kept here too.
            del item
            self._tell(offer)
            try:
                wire.receive(self._link)
            except EOFError:
                os._exit(1)

    def _tell_waits(self, waits: bool) -> None:
        self._tell(Waits(waits))

    def _retire(self) -> None:
        self.retires = True

    def _tell(self, *values: Any) -> None:
        try:
            self._link.sendall(b"".join(map(wire.packed, values)))
        except OSError:
            # The driver is gone, or user code has closed what it did not open.
            os._exit(1)


def _keep_within(share: int) -> None:
    """Gives back the memory that Arrow keeps, if the process holds more than its share: when others need theirs, it
    would be killed for what nobody needs, and a task be tried again for what another one had held."""
    if machine.most_bytes(os.getpid()) > share and (arrow := imported("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()


class _Imported:
    """What this process has imported since this was made."""

    def __init__(self, own: Collection[str]) -> None:
        """`own` are variables that no other worker has the same values of."""
        self._own = own
        self._before = set(sys.modules)
        self._told, self._told_s = 0, time.monotonic()
        self._since_s = time.time()

    def outdated(self) -> bool:
        """Returns whether the file of something that was imported has changed since this was made: by the time of its
        inode, which no copy keeps."""
        return any(_changed(name, self._since_s) for name in list(sys.modules) if name not in self._before)

    def message(self) -> Imported:
        """Returns what is told of it now."""
        new = [name for name in list(sys.modules) if name not in self._before]
        now_s = time.monotonic()
        count, seconds = len(new) - self._told, now_s - self._told_s
        self._told, self._told_s = len(new), now_s
        return Imported(count, seconds, Ahead(tuple(name for name in new if _is_found(name)), _finds(self._own)))


def _imports(ahead: Ahead, own: Collection[str]) -> bool:
    """Imports what another worker had to; returns whether that came out the same. It does not where user code had set
    a variable, or changed `sys.path`, before it imported something."""
    for name in ahead.modules:
        # The task that needs it raises what it raises.
        with contextlib.suppress(BaseException):
            importlib.import_module(name)
    return bool(_finds(own) == ahead.finds)


def _finds(own: Collection[str]) -> Any:
    return list(sys.path), {name: value for name, value in os.environ.items() if name not in own}


def _is_found(name: str) -> bool:
    """Returns whether a module was imported by this name, and is none that was made here."""
    # Not by `getattr`: what stands for a module may import something then.
    spec = getattr(sys.modules[name], "__dict__", {}).get("__spec__")
    return spec is not None and spec.name == name and spec.loader is not None and name != "__main__"


def _changed(name: str, since_s: float) -> bool:
    """Returns whether a module's file has changed since then, or is gone."""
    path = getattr(sys.modules[name], "__dict__", {}).get("__file__")
    if not isinstance(path, str):
        return False
    try:
        found = Path(path).stat()
    except OSError:
        # In an archive, it cannot change alone.
        return ".zip" not in path
    return max(found.st_mtime, found.st_ctime) > since_s


def _print_to(path: str) -> None:
    """Makes what is printed go to a file, and what a crash says of itself."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()


def _watch(server: int) -> NoReturn:
    """Ends the worker, and what it has started, once its server is gone."""
    while os.getppid() == server:
        time.sleep(WATCH_S)
    os.killpg(0, signal.SIGKILL)
    raise AssertionError
