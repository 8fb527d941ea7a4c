"""scripts/endings.py: a script that is ended by a signal leaves its blocks in order."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.harness import ROOT

PROGRAM = """
import endings, sys, tempfile
endings.in_order()
with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:
    print("ready", flush=True)
    sys.stdin.read()
"""


def ended_by(number: signal.Signals, folder: Path, *before: str) -> subprocess.Popen[str]:
    """Returns a program that was sent a signal within its block, when it has ended or its input has."""
    words = [*before, sys.executable, "-c", PROGRAM, str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT / "scripts", stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_blocks_are_left(tmp_path: Path, number: signal.Signals) -> None:
    """What they made is removed; the exit code is that of shells."""
    assert ended_by(number, tmp_path).returncode == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_who_wants_it_outlives_the_terminal(tmp_path: Path) -> None:
    """A script under `nohup` goes on when the terminal is closed."""
    assert ended_by(signal.SIGHUP, tmp_path, "nohup").returncode == 0


def test_all_that_start_sessions_of_their_own_do_so() -> None:
    """And those that make temporary folders outside a scratch folder."""
    for name in ("chaos", "cluster", "compare", "corpus"):
        assert "    endings.in_order()\n" in (ROOT / "scripts" / name).read_text(), name
