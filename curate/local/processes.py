"""The processes of one backend: forked over its channel, heard through a socket each, killed by their number."""

from __future__ import annotations

import itertools
import os
import platform
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.folders.temporary import kept
from curate.local import spawner, wire
from curate.local.server import COMMAND, FORK, KILL, WorkerEnd
from curate.local.spawner import ForkServer
from curate.local.worker import WorkerSetup
from curate.runtime.protocol import TaskEnd, TaskFinished
from curate.units import format_bytes

LOG_CHARS = 2000
"""Characters of what a process printed last that are told when it died."""


@dataclass(eq=False, slots=True)
class Process:
    """A process that was forked and is not known to have ended."""

    number: int
    link: socket.socket
    inbox: wire.Inbox
    log: str
    hear: Callable[[Any], None]
    """Is told what it says, in order; at last, by a WorkerEnd, how it ended."""
    doomed: bool = False
    """Whether it ends: it was killed, or said so."""

    def say(self, value: Any) -> None:
        """Sends a value. Who is gone is heard of by its end."""
        with suppress(OSError):
            wire.send(self.link, value)


class Processes:
    """All of a backend."""

    def __init__(self) -> None:
        self.folder, self.folders = "", ("", "")
        """For programs, logs and sockets; for blocks."""
        self._server: ForkServer | None = None
        self._channel: socket.socket | None = None
        self._news: wire.Inbox | None = None
        self._selector = selectors.DefaultSelector()
        self._processes: dict[int, Process] = {}
        self._numbers = itertools.count()
        self._programs: list[bytes] = []
        self._paths: list[str] = []
        """Files of these."""

    def load(self, programs: Sequence[bytes]) -> None:
        """Ends all processes; those that are forked from now on run one of these pickled programs, imports included."""
        self.close()
        self._programs = list(programs)
        self._attach()

    def reload(self, programs: Sequence[bytes]) -> bool:
        """Has processes run these from now on, those that there are too; returns False, and does nothing, if one of
        these would have to import what is not new to those that are forked now."""
        if self._channel is None or self._server is None or not spawner.serves(self._server, programs):
            return False
        self._remove_programs()
        self._store(programs)
        return True

    def program(self, number: int) -> str:
        """Returns the file of the program of that number."""
        return self._paths[number]

    def attached(self) -> None:
        """Starts what starts processes, if it was killed. Then folders and files of programs are others."""
        if self._channel is None:
            self._attach()

    def fork(self, environ: Mapping[str, str], hear: Callable[[Any], None], **more: Any) -> Process:
        """Forks a process; `hear` is told what it says."""
        self.attached()
        assert self._channel is not None
        number = next(self._numbers)
        near, far = socket.socketpair()
        log = f"{self.folder}/{os.getpid()}-{next(_files)}.log"
        process = Process(number, near, wire.Inbox(near), log, hear)
        self._processes[number] = process
        self._selector.register(near, selectors.EVENT_READ, process)
        with far, suppress(OSError):
            # If that fails, the server is gone, which is heard of by all processes.
            socket.send_fds(self._channel, [COMMAND.pack(FORK, number)], [far.fileno()])
        process.say(WorkerSetup(log, self.folders, dict(environ), **more))
        return process

    def kill(self, process: Process) -> None:
        """Kills a process and all that it has started; its end is heard of."""
        process.doomed = True
        if self._channel is not None:
            with suppress(OSError):
                self._channel.sendall(COMMAND.pack(KILL, process.number))

    def wait(self, timeout_s: float) -> None:
        """Tells what was said and who has ended, waiting for the first of it."""
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._hear_server()
            elif key.data.number in self._processes:
                # Its end may have been heard of just now, with all that it said.
                self._hear(key.data)

    def wait_for(self, processes: Sequence[Process], timeout_s: float) -> None:
        """Waits until all of these have ended, or the time is up."""
        until_s = time.monotonic() + timeout_s
        while any(one.number in self._processes for one in processes) and (left_s := until_s - time.monotonic()) > 0:
            self.wait(left_s)

    def close(self) -> None:
        """Ends all processes; nothing is heard of them any more."""
        if self._channel is not None:
            self._selector.unregister(self._channel)
            self._channel.close()
            self._channel = self._news = None
        for process in self._processes.values():
            self._forget(process)
        self._processes.clear()
        self._remove_programs()

    def _remove_programs(self) -> None:
        for path in self._paths:
            Path(path).unlink(missing_ok=True)
        self._paths.clear()

    def _store(self, programs: Sequence[bytes]) -> None:
        self._programs = list(programs)
        self._paths = [f"{self.folder}/{os.getpid()}-{next(_files)}-program" for _ in programs]
        for path, program in zip(self._paths, programs, strict=True):
            with kept("what worker processes run", self.folder, ConfigError):
                Path(path).write_bytes(program)

    def _attach(self) -> None:
        self._server, channel = spawner.attach(self._programs)
        self.folder, self.folders = self._server.folder, self._server.folders
        try:
            self._store(self._programs)
        except BaseException:
            channel.close()
            raise
        self._channel, self._news = channel, wire.Inbox(channel)
        self._selector.register(channel, selectors.EVENT_READ)

    def _hear(self, process: Process) -> None:
        for value in process.inbox.values():
            process.hear(value)
        if process.inbox.ended and process.link.fileno() in self._selector.get_map():
            # How it ended, the server tells.
            self._selector.unregister(process.link)

    def _hear_server(self) -> None:
        assert self._news is not None
        assert self._channel is not None
        ends: list[WorkerEnd] = self._news.values()
        if self._news.ended:
            self._selector.unregister(self._channel)
            self._channel.close()
            self._channel = self._news = None
            # They have ended with it.
            told = {end.number for end in ends}
            lost = "the process that starts workers was killed"
            ends += [WorkerEnd(number, lost=lost) for number in self._processes if number not in told]
        for end in ends:
            process = self._processes.pop(end.number, None)
            if process is not None:
                # What it said before it died.
                self._hear(process)
                process.hear(end)
                self._forget(process)

    def _forget(self, process: Process) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(process.link)
        process.link.close()
        Path(process.log).unlink(missing_ok=True)


_files = itertools.count()
"""Numbers of files: several backends share a folder."""


def _last_words(process: Process) -> str:
    """Returns what a process printed last."""
    with suppress(OSError), open(process.log, "rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_CHARS))
        return log.read().decode(errors="replace").strip()
    return ""


def end_of(
    what: str, task: int, pid: int, process: Process, end: WorkerEnd, *, cancelled: bool = False
) -> TaskFinished:
    """Returns how a task ended whose process did. The first line of the detail is the same for all that is alike."""
    if cancelled:
        how, detail = TaskEnd.CANCELLED, f"its {what} was killed"
    elif end.refused:
        how, detail = TaskEnd.UNSERVED, end.refused
    elif end.lost:
        how, detail = TaskEnd.LOST, end.lost
    elif end.memory:
        how = TaskEnd.OUT_OF_MEMORY
        detail = f"the {what} used {format_bytes(end.peak_bytes)} when its node ran out of memory\n{end.memory}"
    else:
        how, detail = TaskEnd.CRASHED, f"the {what} died: {_status_text(end.status)}\n{_last_words(process)}"
    return TaskFinished(task, how, detail.strip(), platform.node(), pid, end.peak_bytes)


def _status_text(status: int) -> str:
    if status >= 0:
        return f"it ended itself with status {status}"
    with suppress(ValueError):
        name = signal.Signals(-status).name
        return f"killed by {name}" + (", a segmentation fault" if name == "SIGSEGV" else "")
    return f"killed by signal {-status}"
