"""What is printed into a file on a full disk: one line says so, and no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")


@pytest.mark.slow
@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a device that is full")
@pytest.mark.parametrize("command", [["jobs"], ["status"], ["run", "shuffle", "--help"]], ids=" ".join)
def test_a_full_disk_is_told_in_a_line(command: list[str]) -> None:
    with FULL.open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "curate", *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr == "error: standard output cannot be written: No space left on device; send it elsewhere\n"
