"""Ray's own commands: shown, then run, or with `--dry-run` only shown."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from .connect import ConnectionLost
from .problems import Refused

TUNNEL_S = 45.0
"""In which a tunnel stands: it asks Google for the head's address and starts an ssh."""


def ray_command() -> str:
    """Returns the path of the `ray` of this Python, whatever is first on PATH."""
    return str(Path(sys.executable).parent / "ray")


@dataclass
class Shell:
    """Runs commands and shows each on standard error; dry, shows them on standard output and runs nothing."""

    dry: bool = False
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def run(self, *words: str) -> int:
        """Returns the command's exit code. Where it is interrupted, all that the command has started ends with it."""
        self._show(words)
        if self.dry:
            return 0
        process = None
        try:
            # In the session of this process, so that it can ask at the terminal; a tunnel has one of its own.
            process = subprocess.Popen(self._argv(words), env=self.env)
            return process.wait()
        except (KeyboardInterrupt, SystemExit):
            # A signal to this process alone: the ssh of `ray dashboard` would keep its port. It may come when the
            # command has begun, and is not known here yet.
            for pid in _started_by(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    if os.getsid(pid) == os.getsid(0):
                        os.kill(pid, signal.SIGTERM)
            if process is not None:
                process.kill()
                process.wait()
            raise

    def ask(self, *words: str) -> tuple[int, str]:
        """Returns the command's exit code and what it printed, which is not shown."""
        self._show(words)
        if self.dry:
            return 0, ""
        ended = subprocess.run(self._argv(words), env=self.env, check=False, capture_output=True, text=True)
        return ended.returncode, (ended.stdout + ended.stderr).rstrip()

    def start(self, *words: str, log: Path) -> subprocess.Popen[bytes]:
        """Starts a command that goes on beside this process; what it prints goes to a file."""
        self._show(words)
        with log.open("wb") as out:
            return subprocess.Popen(
                self._argv(words),
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _show(self, words: Sequence[str]) -> None:
        click.echo(f"$ {shlex.join(words)}", err=not self.dry)

    def _argv(self, words: Sequence[str]) -> list[str]:
        return [ray_command() if words[0] == "ray" else words[0], *words[1:]]


class Tunnel:
    """The head's dashboard at a port of this machine, by `ray dashboard`; made anew when it broke."""

    def __init__(self, shell: Shell, file: str) -> None:
        self._shell = shell
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self._port: int = found.getsockname()[1]
        self._log: Path | None = None
        """What the tunnel prints, in a folder that goes with it."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def open(self) -> None:
        """Ends the tunnel that there is, and returns when a new one stands. Raises ConnectionLost if none comes."""
        self.close()
        words = ("ray", "dashboard", self._file, "--port", str(self._port))
        self._log = Path(tempfile.mkdtemp(prefix="curate-tunnel-")) / "log"
        self._process = self._shell.start(*words, log=self._log)
        until = time.monotonic() + TUNNEL_S
        while time.monotonic() < until:
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            if self._process.poll() is not None:
                break
            time.sleep(0.2)
        said = _last_line(self._log)
        self.close()
        raise ConnectionLost(f"`ray dashboard` made no tunnel: {said}")

    def close(self) -> None:
        """Ends the tunnel, and what it started."""
        if self._process is not None:
            # `ray dashboard` and its ssh have a session of their own.
            subprocess.run(["kill", "--", f"-{self._process.pid}"], check=False, capture_output=True)
            self._process.wait()
            self._process = None
        if self._log is not None:
            shutil.rmtree(self._log.parent)
            self._log = None


def _started_by(pid: int) -> list[int]:
    """Returns the processes that one has started, and those that they have; none where the system does not say."""
    try:
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], check=False, capture_output=True, text=True).stdout
    except OSError:
        return []
    parents = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found = [pid]
    for one in found:
        found += [child for child, parent in parents if parent == one]
    return found[1:]


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it printed nothing"


def needs_google() -> None:
    """Raises Refused where `ray up` cannot speak to Google Cloud from here."""
    from importlib.util import find_spec

    if find_spec("googleapiclient") is None:
        raise Refused(
            "`ray up` needs google-api-python-client on this machine: "
            ".venv/bin/python -m pip install google-api-python-client"
        )
