"""The fork server of this process, as its backends see it: started by the first of them, kept until the process ends.

It is started anew where workers would not find what they would have found in a new one: other folders of modules,
another environment or working directory, a module that has changed. The one before ends with its last backend.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickletools
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from curate.errors import ConfigError
from curate.folders.temporary import lasting_folder
from curate.local import server, wire
from curate.log import get_logger
from curate.runtime import shipping

ROOTS = ("curate", "pyarrow", "numpy", "pandas", "orjson", "xxhash")
"""What every task needs: as much of these as the driver has imported. Where there is pandas, Arrow imports it with the
first array that it makes of Python values: in the driver, and in each worker that does not have it."""
NOT = "curate.backends.ray"
"""Of these, what no worker needs, and takes time to import."""
IMPORT_S = 60.0
"""How long imports may take before workers are started without them."""
STARTS = 4
"""Servers that are started one after the other, where each is killed, before a run gives up."""
MOST_BYTES = 16 << 20
"""Of a program that are searched for names of modules."""
SHARED_MEMORY = "/dev/shm"


class _ServerGone(ConfigError):
    """The fork server has ended."""


class ForkServer:
    """The process that forks workers."""

    def __init__(self, setting: Any) -> None:
        self.owner = os.getpid()
        self.setting = setting
        self._due = 0
        """Imports that have not ended."""
        self.imported: dict[str, tuple[int, int] | None] = {}
        """Modules that it was told to import, and what their files were then."""
        self._beneath: dict[str, tuple[int, int] | None] = {}
        """The same of modules of the user's own that this process had then: it has those that the others import."""
        self.folder, lock = lasting_folder(tempfile.gettempdir())
        """For programs, logs and sockets."""
        shared = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else tempfile.gettempdir()
        blocks, lock_of_blocks = lasting_folder(shared)
        self._locks: tuple[int, ...] = (lock, lock_of_blocks)
        """Of these folders, for both processes: who finds them unlocked knows that both were killed."""
        self.folders = (blocks, self.folder)
        """For blocks: the first with room."""
        self._control, far = socket.socketpair()
        start = f"from curate.local.server import serve; serve({far.fileno()}, {os.getpid()}, {list(self.folders)!r})"
        with far, open(f"{self.folder}/server.log", "wb") as log:
            self._process = subprocess.Popen(
                shipping.interpreter(start),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[far.fileno(), *self._locks],
                # Ctrl-C at the terminal is for the program.
                start_new_session=True,
            )

    def alive(self) -> bool:
        """Returns whether it is there, for this process."""
        return self.owner == os.getpid() and self._control.fileno() >= 0 and self._process.poll() is None

    def channel(self) -> socket.socket:
        """Returns a new channel."""
        near, far = socket.socketpair()
        with far:
            try:
                socket.send_fds(self._control, [server.COMMAND.pack(server.ATTACH, 0)], [far.fileno()])
            except OSError as error:
                near.close()
                raise self._gone() from error
        return near

    def load(self, names: list[str]) -> None:
        """Makes it import modules; does not wait for that."""
        new = self.lacks(names)
        if not new:
            return
        self.imported |= {name: _file_of(name) for name in new}
        self._beneath = {name: _file_of(name) for name in _own_modules()} | self._beneath
        data = json.dumps(new).encode()
        try:
            self._control.sendall(server.COMMAND.pack(server.IMPORT, len(data)) + data)
        except OSError as error:
            raise self._gone() from error
        self._due += 1

    def lacks(self, names: list[str]) -> list[str]:
        """Returns those modules that it was not told to import."""
        return [name for name in names if name not in self.imported]

    def threads(self) -> list[str] | None:
        """Waits for its imports; returns the threads that these left behind, None if they do not end."""
        until_s, found = time.monotonic() + IMPORT_S, list[str]()
        while self._due:
            if not wire.readable(self._control.fileno(), max(0.0, until_s - time.monotonic())):
                return None
            try:
                found = wire.receive(self._control)
            except (OSError, EOFError) as error:
                raise self._gone() from error
            self._due -= 1
        return found

    def outdated(self) -> bool:
        """Returns whether a module that it has imported has changed since, be it one that another one imported."""
        known = {**self._beneath, **self.imported}
        return any(before != _file_of(name) for name, before in known.items() if name in sys.modules)

    def leave(self) -> None:
        """Makes it end with its last channel."""
        self._control.close()
        if self.owner != os.getpid():
            return
        for lock in self._locks:
            os.close(lock)
        self._locks = ()
        if self._process.poll() is None:
            _left.append(self._process)
        else:
            # It was killed, and could not do that.
            for folder in self.folders:
                shutil.rmtree(folder, ignore_errors=True)

    def _gone(self) -> _ServerGone:
        self._process.wait()
        with contextlib.suppress(OSError):
            says = Path(f"{self.folder}/server.log").read_text(errors="replace").strip()
            return _ServerGone(f"the process that starts workers has ended: {says[-500:] or 'killed'}; run again")
        return _ServerGone("the process that starts workers was killed; run again")


_lock = threading.Lock()
_server: ForkServer | None = None
_left: list[subprocess.Popen[bytes]] = []
"""Servers that end by themselves, to be waited for."""
_bare = False
"""Whether an import has left threads behind: then workers import by themselves what they need."""


def attach(programs: Sequence[bytes]) -> tuple[ForkServer, socket.socket]:
    """Returns the server of this process and a new channel of it. It has imported what pickled programs need.

    Raises ConfigError if it does not start.
    """
    with _lock:
        for _ in range(STARTS - 1):
            # One that was killed just now is replaced.
            with contextlib.suppress(_ServerGone):
                return _attached(programs)
        return _attached(programs)


def serves(server: ForkServer, programs: Sequence[bytes]) -> bool:
    """Returns whether a server is that of this process, and what it has forked has all modules that these need."""
    with _lock:
        return _current() is server and (_bare or not server.lacks(modules_of(programs)))


def _attached(programs: Sequence[bytes]) -> tuple[ForkServer, socket.socket]:
    global _server, _bare
    found = _current()
    if not _bare:
        found.load(modules_of(programs))
        if (threads := found.threads()) != []:
            why = f"imports have started threads: {', '.join(threads)}" if threads else "imports do not end"
            get_logger().warning("each worker imports its modules by itself, which takes longer", reason=why)
            found.leave()
            _bare, found = True, ForkServer(_setting())
            _server = found
    return found, found.channel()


def start() -> None:
    """Starts the server, which is there then when it is needed, and has imported what every task needs."""
    with _lock:
        found = _current()
        if not _bare:
            # Of one that was killed just now, who attaches makes another.
            with contextlib.suppress(_ServerGone):
                found.load(modules_of(()))


def _current() -> ForkServer:
    """Returns the server of this process; the caller has the lock."""
    global _server
    _left[:] = [one for one in _left if one.poll() is None]
    found, setting = _server, _setting()
    if found is not None and (not found.alive() or found.setting != setting or found.outdated()):
        found.leave()
        found = None
    _server = found or ForkServer(setting)
    return _server


def modules_of(programs: Sequence[bytes]) -> list[str]:
    """Returns the modules that pickled programs need, and what the driver has of those that every task needs."""
    named = set[str]()
    for program in programs:
        with contextlib.suppress(ValueError):
            named.update(arg for _, arg, _ in pickletools.genops(program[:MOST_BYTES]) if isinstance(arg, str))
    # Not those of which this process alone has the code.
    named -= {module.__name__ for module in shipping.shipped()} | {"__main__"}
    found = []
    for name in list(sys.modules):
        root = name.partition(".")[0]
        if (root in ROOTS and not name.startswith(NOT)) or (name in named and root != "ray"):
            found.append(name)
    return found


def _setting() -> Any:
    """Returns what workers get from this process."""
    environ = shipping.environ()
    with contextlib.suppress(OSError):
        return shipping.folders(), environ, os.getcwd()  # noqa: PTH109
    return shipping.folders(), environ, ""


def _own_modules() -> list[str]:
    """Returns the modules of this process that are neither Python's nor installed."""
    installed = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    # Not by `getattr`: what stands for a module may import something then.
    files = [(name, getattr(module, "__dict__", {}).get("__file__")) for name, module in list(sys.modules.items())]
    return [name for name, file in files if isinstance(file, str) and not file.startswith(installed)]


def _file_of(name: str) -> tuple[int, int] | None:
    """Returns what tells a module's file from another one of that name."""
    path = getattr(sys.modules.get(name), "__file__", None)
    with contextlib.suppress(OSError, TypeError):
        # Some hundred, each time that a run begins: a `Path` of each would take three times as long.
        found = os.stat(path)  # type: ignore[arg-type]  # noqa: PTH116
        return found.st_mtime_ns, found.st_size
    return None
