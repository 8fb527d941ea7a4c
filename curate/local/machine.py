"""What tasks may use of this machine: CPUs, memory and GPUs, as its kernel and control groups allow this process.

Read by the fork server too, which imports no more than it needs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.units import parse_bytes

MEMORY = "CURATE_LOCAL_MEMORY"
"""Environment variable: bytes that workers may hold together, in place of what the machine allows."""
FULL = 0.95
"""Share of the memory from which the machine, or a control group, counts as full: as Ray has it."""
_UNLIMITED = 1 << 60
_DEVICES = Path("/dev")


def cpus() -> float:
    """Returns the CPUs that this process may use: by affinity and control group, one at least."""
    try:
        allowed = float(len(os.sched_getaffinity(0)))
    except AttributeError:
        # Not on macOS.
        allowed = float(os.cpu_count() or 1)
    return max(1.0, min([allowed, *_quotas()]))


def gpus() -> tuple[str, ...]:
    """Returns the ids of the GPUs that this process may use: those in CUDA_VISIBLE_DEVICES, else all of NVIDIA's.

    CUDA numbers those that it sees from 0, and none that are behind an id that no GPU has, as -1. Files of devices have
    the numbers of the host, of which a container may have been given one alone.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        ids = named.replace(" ", "").split(",")
        return tuple(takewhile(lambda one: one not in ("", "-1", "NoDevFiles"), ids))
    return tuple(map(str, range(sum(one.name[6:].isdecimal() for one in _DEVICES.glob("nvidia*")))))


def memory_limit() -> int:
    """Returns the bytes that workers may hold together. Raises ConfigError if the variable that says so is no size."""
    if asked := os.environ.get(MEMORY, ""):
        try:
            found = parse_bytes(asked)
        except ConfigError as error:
            raise ConfigError(f"{MEMORY}: {error}") from error
        if found <= 0:
            raise ConfigError(f"{MEMORY} is {asked!r}, which no worker can do with; give a size above 0")
        return found
    return int(FULL * min([_machine()[0], *(limit for limit, _ in _groups())]))


def fullest() -> tuple[int, int]:
    """Returns the bytes in use, and those that there are, of the machine or the control group that is fullest."""
    return max(((used, limit) for limit, used in [_machine(), *_groups()]), key=lambda one: one[0] / one[1])


def holds() -> dict[str, float]:
    """Returns what all tasks and actors may hold together, in Ray's names."""
    return {"CPU": cpus(), "GPU": float(len(gpus())), "memory": float(memory_limit())}


def most_bytes(pid: int) -> int:
    """Returns the most memory that a process may hold for itself, with what it shares with the one it was forked from;
    which is told at once. 0 if it is gone."""
    try:
        resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def held_bytes(pid: int) -> int:
    """Returns the memory that a process holds: not files, and of what it shares its part. 0 if it is gone.

    The kernel looks at each page for that, which takes 20 ms a GiB (proc(5): smaps_rollup).
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return most_bytes(pid)
    found = [int(line.split()[1]) << 10 for line in lines if line.startswith("Pss_Anon:")]
    return found[0] if found else most_bytes(pid)


def family(pid: int) -> list[int]:
    """Returns a process and all that it has started and that has not outlived what started it."""
    found, at = [pid], 0
    while at < len(found):
        for children in Path(f"/proc/{found[at]}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, children.read_text().split())
        at += 1
    return found


@dataclass(frozen=True, slots=True)
class _Version:
    """Where a version of control groups keeps what is asked of it."""

    folder: str
    limit: str
    used: str
    cached: str
    """In `memory.stat`: what is given back before anything runs out."""


_V2 = _Version("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
_V1 = _Version("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _machine() -> tuple[int, int]:
    """Returns the bytes of memory that the machine has, and those in use."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        # macOS says what there is, not what is in use.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), 0
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines[:5]}
    return kib["MemTotal"] * 1024, (kib["MemTotal"] - kib["MemAvailable"]) * 1024


def _groups() -> Iterator[tuple[int, int]]:
    """Yields limit and use of each control group that limits the memory of this process."""
    for version in (_V2, _V1):
        for folder in _folders("memory" if version is _V1 else "", version.folder):
            with contextlib.suppress(OSError, ValueError):
                limit = int((folder / version.limit).read_text())
                if limit < _UNLIMITED:
                    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                    used = int((folder / version.used).read_text()) - int(stat.get(version.cached, 0))
                    yield limit, max(0, used)


def _quotas() -> Iterator[float]:
    """Yields the CPUs that each control group allows this process."""
    for folder in _folders("", "/sys/fs/cgroup"):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()
            yield int(quota) / int(period)
    for folder in _folders("cpu", "/sys/fs/cgroup/cpu"):
        with contextlib.suppress(OSError, ValueError):
            quota = (folder / "cpu.cfs_quota_us").read_text()
            if int(quota) > 0:
                yield int(quota) / int((folder / "cpu.cfs_period_us").read_text())


def _folders(controller: str, root: str) -> Iterator[Path]:
    """Yields the folders of this process's control group and of those above it.

    In a container the path may be that of the host, of which only the root is seen.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            own = Path(root + path)
            yield from (one for one in (own, *own.parents) if one.is_relative_to(root) and one.is_dir())
            return
