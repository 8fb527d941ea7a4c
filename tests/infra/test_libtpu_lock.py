"""The lock file that libtpu leaves behind goes before a worker starts, unless a process has a chip open."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from scripts.clusters.render import INFRA

LOCK = "/tmp/libtpu_lockfile"


def clear(lock: Path) -> None:
    """Runs the command of the cluster file, for another lock file, as the one who it would become."""
    config = yaml.safe_load((INFRA / "cluster.yaml").read_text())
    (command,) = [line for line in config["worker_start_ray_commands"] if LOCK in line]
    subprocess.run(["bash", "-c", command.replace(LOCK, str(lock)).removeprefix("sudo ")], check=True)


@pytest.mark.parametrize("chip", ["accel0", "vfio/3"])
def test_it_goes_once_nothing_has_a_chip_open(tmp_path: Path, chip: str) -> None:
    """Chips are told by the names of what processes have open: /dev/accel0, or /dev/vfio/3."""
    lock, device = tmp_path / "lock", tmp_path / "dev" / chip
    device.parent.mkdir(parents=True)
    for path in (lock, device):
        path.touch()
    with device.open():
        clear(lock)
        assert lock.exists()
    clear(lock)
    assert not lock.exists()
    clear(lock)  # none is no error


def test_it_goes_before_ray_starts() -> None:
    """On workers; the head has no chips."""
    config = yaml.safe_load((INFRA / "cluster.yaml").read_text())
    lines = config["worker_start_ray_commands"]
    (place,) = [number for number, line in enumerate(lines) if LOCK in line]
    assert [number for number, line in enumerate(lines) if "ray start" in line] == [place + 1]
    assert not any(LOCK in line for line in config["head_start_ray_commands"])
