"""A worker of the local backend: a process that was forked for one program, and runs its tasks one after the other.

driver ──▶ WorkerSetup, then for each task: Work; Take, for a block that it offers
       ◀── Hello, then Said and Offer for what the task yields, then Over
"""

from __future__ import annotations

import faulthandler
import math
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from curate.local import actor, blocks, wire
from curate.local.calls import CalledPool
from curate.runtime.protocol import PoolUser, Program, TaskEnd, TaskFinished
from curate.runtime.worker import guarded, in_batches, traced_end

WATCH_S = 0.5
"""How often a worker sees whether its server lives, where the kernel does not end it with that."""


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


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker needs, before its first task."""

    program: str
    """File with the pickled program."""
    log: str
    """File for what is printed, by C code too."""
    folders: tuple[str, ...]
    """Where its blocks go: the first of them with room."""
    environ: dict[str, str]
    """Variables that it has beside those of the server."""
    pools: tuple[PoolAddress, ...] = ()
    """Those that its program calls."""
    actor: ActorPlace | None = None
    """What makes it an actor, whose program is a pool's."""


@dataclass(frozen=True, slots=True)
class Work:
    """A task to run."""

    task: int
    payload: bytes
    interval_s: float
    """How long messages may wait for one another."""
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Hello:
    """The worker is there."""

    pid: int


@dataclass(frozen=True, slots=True)
class Said:
    """What the task said since the last message."""

    items: list[Any]


@dataclass(frozen=True, slots=True)
class Offer:
    """A block that the task made; it stands still until a Take comes."""

    block: blocks.StoredBlock


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
    wire.send(link, Hello(os.getpid()))
    setup: WorkerSetup = wire.receive(link)
    _print_to(setup.log)
    os.environ.update(setup.environ)
    if (random := sys.modules.get("numpy.random")) is not None:
        # What was forked would draw the same numbers everywhere.
        random.seed()
    if setup.actor is not None:
        actor.serve(link, setup.program, setup.actor.path)
        return
    worker = _Worker(link, setup)
    try:
        while not worker.retires:
            worker.run(wire.receive(link))
    except EOFError:
        return


class _Worker:
    """What runs tasks."""

    def __init__(self, link: socket.socket, setup: WorkerSetup) -> None:
        self.retires = False
        self._link = link
        self._setup = setup
        self._program: Program | None = None
        self._pools = [CalledPool(one.name, one.board, self._tell_waits) for one in setup.pools]
        self._blocks = 0
        """Blocks that were stored."""

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
            end = TaskFinished(work.task, TaskEnd.RETURNED)
        except BaseException as error:  # noqa: BLE001 - what would end the process is told like all else
            end = traced_end(work.task, error)
            self.retires = self.retires or not isinstance(error, Exception)
        self._tell(*said, Over(end, self.retires))

    def _items(self, work: Work) -> Iterator[Any]:
        new = self._program is None
        if self._program is None:
            program = cast(Program, pickle.loads(Path(self._setup.program).read_bytes()))
            if self._pools:
                cast(PoolUser, program).connect(self._pools)
            self._program = program
        for pool in self._pools:
            pool.task = work.task
        return guarded(self._program, pickle.loads(work.payload), new=new, retire=self._retire)

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
