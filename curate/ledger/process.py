"""Whether a process still runs, here or on another machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def boot_id() -> str:
    """Returns what tells one boot of one machine from all others; empty where the system does not say."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def pid_space() -> str:
    """Returns what tells this process's numbering of processes from that of other containers on the same kernel."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def process_started(pid: int) -> str:
    """Returns the start time of a process in clock ticks since boot, empty if there is no such process (any more)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
    except OSError:
        return ""
    # The second field is the program's name in parentheses and may hold anything, spaces and parentheses too.
    fields = stat.rpartition(")")[2].split()
    # A zombie has ended, whether or not its parent has looked.
    return "" if fields[0] in "ZX" else fields[19]


def is_gone(heartbeat: Mapping[str, Any]) -> bool:
    """Returns whether the process of a heartbeat ran on this host and is gone. False if it cannot be told."""
    here = {"boot_id": boot_id(), "pid_space": pid_space()}
    if not all(here.values()) or any(heartbeat.get(name) != value for name, value in here.items()):
        return False
    started = heartbeat.get("pid_started")
    pid = heartbeat.get("pid")
    return bool(started) and isinstance(pid, int) and process_started(pid) != str(started)
